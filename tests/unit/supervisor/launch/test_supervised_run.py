"""Where nothing can be supervised, nothing is run."""

from __future__ import annotations

import pytest

from holdfast.model.errors import UnsupportedError
from holdfast.supervisor.launch.supervised_run import require_tracing

MAY_TRACE = 1 << 19


@pytest.mark.parametrize(("scope", "capabilities"), [(0, 0), (0, MAY_TRACE), (1, 0), (1, MAY_TRACE), (2, MAY_TRACE)])
def test_a_keeper_that_may_look_at_its_tree_is_let(scope: int, capabilities: int) -> None:
    require_tracing(scope, capabilities)


@pytest.mark.parametrize(("scope", "capabilities"), [(2, 0), (2, 1), (3, 0), (3, MAY_TRACE)])
def test_a_keeper_that_would_be_blind_is_refused(scope: int, capabilities: int) -> None:
    with pytest.raises(UnsupportedError, match=f"ptrace_scope is {scope}") as caught:
        require_tracing(scope, capabilities)
    assert caught.value.hint
