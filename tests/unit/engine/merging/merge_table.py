"""What either side can do to one file, and the rules of docs/reference/merge.md that say what comes of each pair."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from holdfast.engine.merging import stacked_plan
from holdfast.engine.merging.three_way import SideChanges
from holdfast.model.command_results import Renamed
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference/merge.md"
F = b"f"


def entry(text: str, permissions: int = 0o644) -> Entry:
    return file_entry(hash_bytes(text.encode()), len(text), permissions)


BASE = entry("base\n")
LINK = symlink_entry(hash_bytes(b"target"), 6)


def sides(who: str) -> dict[str, SideChanges]:
    """By action: what it changes on the side of ``who``; what two different people would do is not the same."""
    edited = entry(f"{who}\n")
    permissions = {"production": 0o755, "fork": 0o600}[who]
    name = who.encode()
    return {
        "nothing": SideChanges([]),
        "edits": SideChanges([Change(F, BASE, edited)]),
        "chmods": SideChanges([Change(F, BASE, entry("base\n", permissions))]),
        "edits and chmods": SideChanges([Change(F, BASE, entry(f"{who}\n", permissions))]),
        "makes a link": SideChanges([Change(F, BASE, LINK._replace(hash=hash_bytes(name)))]),
        "deletes": SideChanges([Change(F, BASE, None)]),
        "renames": SideChanges([], [Renamed(F, b"f." + name, BASE, BASE, 100)]),
        "renames and edits": SideChanges([], [Renamed(F, b"f." + name, BASE, edited, 60)]),
        "makes a directory": SideChanges([Change(F, BASE, None), Change(b"f/" + name, None, edited)]),
    }


def outcome(production: SideChanges, fork: SideChanges) -> str:
    """What comes of both, in the page's words."""
    changes = sorted([*fork.changes, *(Change(one.before_path, one.before, None) for one in fork.renamed)])
    changes = sorted([*changes, *(Change(one.path, None, one.after) for one in fork.renamed)])
    found = stacked_plan.classify(production, fork, [changes] if changes else [])
    if found.overlaps:
        return ", ".join(sorted({f"`{one.why}`" for one in found.overlaps}))
    kinds = {one.kind for one in found.files}
    if kinds == {"identical"}:
        return "identical"
    if kinds == {"one_sided"}:
        by = {one.by for one in found.files}
        return {"production": "ours", "fork": "the fork's"}.get(by.pop(), "both") if len(by) == 1 else "both"
    return "both"


class Rule(NamedTuple):
    """A rule of the page: what each side may have done, and what comes of it."""

    here: list[str]
    there: list[str]
    result: str

    def fits(self, production: str, fork: str) -> bool:
        """Whether it says what comes of these actions."""
        # An action that does two things has two of the page's words: a rule of either fits it.
        ours, theirs = {"anything", *production.split(" and ")}, {"anything", *fork.split(" and ")}
        return not ours.isdisjoint(self.here) and not theirs.isdisjoint(self.there)


def documented() -> list[Rule]:
    """The rules of docs/reference/merge.md, in their order."""
    section = re.search(r"^### Every combination\n(.*?)^### ", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    rules = re.findall(r"^(\d+)\. (.+) / (.+): (.+)$", section[1], re.MULTILINE)
    assert [number for number, *_ in rules] == [str(number) for number in range(1, len(rules) + 1)]
    return [Rule(here.split(", "), there.split(", "), result) for _, here, there, result in rules]


def deciding(production: str, fork: str) -> Rule:
    """The first rule of the page that fits these actions."""
    return next(rule for rule in documented() if rule.fits(production, fork))
