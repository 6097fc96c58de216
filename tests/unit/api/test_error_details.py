"""What the faces advise is for who speaks with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.api._error_details import FOR_CLIENTS, FOR_FRONTENDS, FOR_MODELS, hint
from holdfast.model.errors import HoldfastError, RefusedError

OF_THE_COMMAND_LINE = ("holdfast ", "--", "current directory")
SOURCE = Path(__file__).parents[3] / "src/holdfast"


@pytest.mark.parametrize("known", [FOR_FRONTENDS, FOR_MODELS, FOR_CLIENTS])
def test_advice_for_the_command_line_is_left_out(known: Mapping[str, str]) -> None:
    said = 0
    for path in [*SOURCE.glob("engine/**/*.py"), *SOURCE.glob("undo/*.py"), *SOURCE.glob("store/*.py")]:
        for found in re.findall(r'hint=f?"([^"]+)"', path.read_text()):
            said += 1
            told = hint(HoldfastError("no", hint=found), known)
            assert told == (None if any(word in found for word in OF_THE_COMMAND_LINE) else found)
    assert said > 30
    assert all("holdfast" not in advice and "--" not in advice for advice in known.values())


def test_where_something_else_is_to_be_done_that_is_advised() -> None:
    error = RefusedError("no", hint="--force undoes it nevertheless", code="barrier")
    assert hint(error, FOR_FRONTENDS) == FOR_FRONTENDS["barrier"]
    assert hint(error, FOR_MODELS) == FOR_MODELS["barrier"]
    assert hint(HoldfastError("no"), FOR_MODELS) is None
