"""Every description of an answer has its place in docs/reference/json.md."""

from __future__ import annotations

from types import ModuleType

from holdfast.model.answers import commands, experiments, files, merges, sessions, steps, upkeep, workspace
from holdfast.model.json_encoder import is_described

from ....answers import SECTIONS

MODULES = (commands, experiments, files, merges, sessions, steps, upkeep, workspace)
ELSEWHERE = {workspace.Counts, workspace.NotCaptured, workspace.Paths, files.Entry, files.Part}
"""The beginning of the page has the first three, docs/reference/stdio.md what no command prints."""


def public(module: ModuleType) -> set[type]:
    """The descriptions of a module."""
    found = {each for each in vars(module).values() if is_described(each) and each.__module__ == module.__name__}
    return {each for each in found if not each.__name__.startswith("_")}


def test_every_answer_has_its_place_on_the_page() -> None:
    placed = {kind for kinds in SECTIONS.values() for kind in kinds} | ELSEWHERE
    assert {kind.__name__ for module in MODULES for kind in public(module) - placed} == set()
