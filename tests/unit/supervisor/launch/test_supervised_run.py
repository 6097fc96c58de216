"""Where nothing can be supervised, nothing is run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.model.errors import UnsupportedError
from holdfast.supervisor.launch.supervised_run import require_calls, require_tracing

MAY_TRACE = 1 << 19


@pytest.mark.parametrize(("scope", "capabilities"), [(0, 0), (0, MAY_TRACE), (1, 0), (1, MAY_TRACE), (2, MAY_TRACE)])
def test_a_keeper_that_may_look_at_its_tree_is_let(scope: int, capabilities: int) -> None:
    require_tracing(scope, capabilities)


@pytest.mark.parametrize(("scope", "capabilities"), [(2, 0), (2, 1), (3, 0), (3, MAY_TRACE)])
def test_a_keeper_that_would_be_blind_is_refused(scope: int, capabilities: int) -> None:
    with pytest.raises(UnsupportedError, match=f"ptrace_scope is {scope}") as caught:
        require_tracing(scope, capabilities)
    assert caught.value.hint


FILTERED = """
from holdfast.testing.yama_stub import refuse_calls
refuse_calls([{}])
from holdfast.supervisor.launch.supervised_run import require_calls
require_calls()
"""


def test_calls_are_allowed_outside_of_a_container() -> None:
    require_calls()


UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
PIDFD_GETFD = 438


@pytest.mark.parametrize("number", [UNSHARE, PIDFD_GETFD])
def test_a_container_that_refuses_calls_of_the_keeper_is_noticed(number: int) -> None:
    tried = subprocess.run([sys.executable, "-c", FILTERED.format(number)], capture_output=True, text=True, check=False)
    assert "UnsupportedError: a filter of system calls" in tried.stderr
