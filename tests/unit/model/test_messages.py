"""What errors say, for every face."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
COMMAND_LINE = re.compile(r"\bholdfast [a-z]|(?<![\w-])--[a-z]")
OF_THE_COMMAND_LINE = ("cli", "testing", "engine/upkeep/store_copies.py", "engine/running/run.py")
"""What no frontend or model asks for."""


def messages() -> Iterator[tuple[str, str]]:
    """Where an error is made, and the fixed parts of its message."""
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(OF_THE_COMMAND_LINE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name.endswith("Error"):
                parts = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
                yield f"{place}:{node.lineno}", "".join(part for part in parts if isinstance(part, str))


def test_only_hints_name_commands() -> None:
    """A frontend and a model have no command line: hints are translated for them or left out, messages are not."""
    found = dict(messages())
    assert len(found) > 500
    assert {place: said for place, said in found.items() if COMMAND_LINE.search(said)} == {}
