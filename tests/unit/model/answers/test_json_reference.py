"""Every field of an answer is documented: docs/reference/json.md has it where it has the command."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.model.answers import commands, experiments, files, merges, sessions, steps, upkeep, workspace
from holdfast.model.json_encoder import fields, is_described

from ....answers import SECTIONS

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
MODULES = (commands, experiments, files, merges, sessions, steps, upkeep, workspace)
EVERYWHERE = {workspace.Counts, workspace.NotCaptured, workspace.Paths}
"""The table at the beginning of the page has them."""
ELSEWHERE: dict[str, list[type]] = {
    "stdio.md": [files.Entry, files.Part],
    "../reference/merge.md": [merges.FileRecord, merges.RungAttempt],
}
"""On other pages: the objects that no command prints, and what is recorded of a merge."""


def words(text: str) -> set[str]:
    """What stands in the code of a page."""
    codes = re.findall(r"```.*?```|`[^`]+`", text, flags=re.DOTALL)
    return {word for code in codes for word in re.findall(r"\w+", code)}


def sections() -> dict[str, set[str]]:
    """The words of each section of the page, by its title."""
    parts = re.split(r"^#{2,3} ", (REFERENCE / "json.md").read_text(), flags=re.MULTILINE)
    return {title: words(text) for title, _, text in (part.partition("\n") for part in parts)}


def public(module: ModuleType) -> set[type]:
    """The descriptions of a module."""
    found = {each for each in vars(module).values() if is_described(each) and each.__module__ == module.__name__}
    return {each for each in found if not each.__name__.startswith("_")}


def undocumented(kind: type, known: set[str]) -> list[str]:
    """The fields of ``kind`` that are not among the words; not those that it has from another description."""
    bases = [each for each in kind.__mro__[1:] if is_described(each) and not each.__name__.startswith("_")]
    inherited = {one.key for base in bases for one in fields(base)}
    return [one.key for one in fields(kind) if one.key not in known | inherited]


PAGES = [
    *((title, kind, sections().get(title, set())) for title, kinds in SECTIONS.items() for kind in kinds),
    *((page, kind, words((REFERENCE / page).read_text())) for page, kinds in ELSEWHERE.items() for kind in kinds),
]


@pytest.mark.parametrize(("title", "kind", "known"), PAGES)
def test_every_field_is_documented(title: str, kind: type, known: set[str]) -> None:
    assert not undocumented(kind, known), f"{title} does not say what they are"


def test_every_answer_has_its_place_on_the_page() -> None:
    placed = {kind for _, kind, _ in PAGES} | EVERYWHERE
    assert {kind.__name__ for module in MODULES for kind in public(module) - placed} == set()


def test_a_new_field_of_the_status_is_missed() -> None:
    class Status(workspace.Status):
        stale: bool

    assert undocumented(Status, sections()["status"]) == ["stale"]
