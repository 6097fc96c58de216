"""What the README shows are commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from holdfast.cli import command_table
from holdfast.cli.command import parse
from holdfast.cli.global_options import split_options

README = (Path(__file__).parents[3] / "README.md").read_text()
SHOWN = [part.strip() for line in re.findall(r"^\$ (.*)$", README, re.MULTILINE) for part in line.split("&&")]
ONE_LINERS = [
    part.strip() for line in re.findall(r"^pip install .*$", README, re.MULTILINE) for part in line.split("&&")
]


@pytest.mark.parametrize("line", [line for line in SHOWN + ONE_LINERS if line.startswith("holdfast ")])
def test_the_commands_of_the_readme_can_be_parsed(line: str) -> None:
    found = split_options(shlex.split(line)[1:])
    assert found.command is not None
    name = command_table.ALIASES.get(found.command, found.command)
    assert parse(name, command_table.load(name), found.arguments) is not None


def test_the_readme_shows_commands() -> None:
    assert len(SHOWN) > 10
    assert ONE_LINERS[0] == "pip install ."
