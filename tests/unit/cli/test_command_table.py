"""Every command and option that there is, is documented, and every one that is documented is there."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from holdfast.cli import command_table
from holdfast.cli.argparse_parser import build_parser
from holdfast.cli.global_options import add_global_options

DOCS = Path(__file__).parents[3] / "docs"
SECTIONS = re.split(r"^#{2,3} ", (DOCS / "reference/commands.md").read_text(), flags=re.MULTILINE)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}


def common() -> set[str]:
    parser = argparse.ArgumentParser()
    add_global_options(parser)
    return options(parser)


def section(name: str) -> str:
    """What is said of one command; of two that share a section, what is said of both."""
    return next(text for text in SECTIONS if re.search(rf"`{name}\b", text.partition("\n")[0]))


def mentioned(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "".join(re.findall(r"`[^`]+`", text))))


EVERY = command_table.every()


@pytest.mark.parametrize("name", [name for name, command in EVERY.items() if command.verbs is None])
def test_a_command_has_exactly_the_options_that_are_documented(name: str) -> None:
    own = options(build_parser(name, EVERY[name])) - common()
    said = mentioned(section(name))
    assert said - common() == own


def test_the_common_options_are_documented() -> None:
    assert common() <= mentioned(next(text for text in SECTIONS if text.startswith("Common to all")))


def test_no_command_is_documented_that_does_not_exist() -> None:
    titles = [text.partition("\n")[0] for text in SECTIONS]
    families = [name for name, command in EVERY.items() if command.verbs is not None]
    pattern = rf"`((?:(?:{'|'.join(families)}) )?[a-z]+)"
    shown = [name for title in titles for name in re.findall(pattern, title)]
    assert sorted(shown) == sorted([*(EVERY.keys() - families), *command_table.ALIASES])


def test_every_command_has_fields_that_are_documented() -> None:
    fields = (DOCS / "reference/json.md").read_text()
    for name, command in EVERY.items():
        if command.verbs is None:
            assert re.search(rf"^###.*\b{name}\b", fields, re.MULTILINE), name
