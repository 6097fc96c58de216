"""Every command has its fields documented."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.cli import command_table

DOCS = Path(__file__).parents[3] / "docs"
EVERY = command_table.every()


def test_every_command_has_fields_that_are_documented() -> None:
    fields = (DOCS / "reference/json.md").read_text()
    for name, command in EVERY.items():
        if command.verbs is None:
            assert re.search(rf"^###.*\b{name}\b", fields, re.MULTILINE), name
