"""Every command says what it prints with ``--json``."""

from __future__ import annotations

from holdfast.cli import command_table

from ...answers import SECTIONS

FOR_PEOPLE = {"hook", "rewind", "session shell", "stdio"}
"""What prints no object."""


def test_every_command_has_fields_that_are_documented() -> None:
    titles = {name for title in SECTIONS for name in title.split(", ")}
    for name, command in command_table.every().items():
        if command.verbs is None:
            assert (name in titles) != (name in FOR_PEOPLE), name
