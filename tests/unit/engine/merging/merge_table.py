"""What either side can do to one file, and the rules of docs/reference/merge.md that say what comes of each pair."""

from __future__ import annotations

import re
from pathlib import Path

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
    """What comes of both, in a word."""
    changes = sorted([*fork.changes, *(Change(one.before_path, one.before, None) for one in fork.renamed)])
    changes = sorted([*changes, *(Change(one.path, None, one.after) for one in fork.renamed)])
    found = stacked_plan.classify(production, fork, [changes] if changes else [])
    if found.overlaps:
        return ", ".join(sorted({f"`{one.why}`" for one in found.overlaps}))
    kinds = {one.kind for one in found.files}
    if not kinds:
        return "–"
    if kinds == {"identical"}:
        return "identical"
    if kinds == {"one_sided"}:
        by = {one.by for one in found.files}
        return {"production": "ours", "fork": "fork's"}.get(by.pop(), "both") if len(by) == 1 else "both"
    return "both"


def _removes(action: str) -> bool:
    return action in ("deletes", "makes a directory")


def _renames(action: str) -> bool:
    return action.startswith("renames")


def _edits(action: str) -> bool:
    return "edits" in action


def expected(ours: str, fork: str) -> str:
    """What the page's rules say of a pair of actions, in their order."""
    if "nothing" in (ours, fork):
        return "–" if ours == fork else "ours" if fork == "nothing" else "fork's"
    if _removes(ours) and _removes(fork):
        return "identical" if ours == fork == "deletes" else "both"
    if _removes(ours):
        return "`deleted_here`"
    if _removes(fork):
        in_the_way = fork == "makes a directory" and not _renames(ours)
        return "`deleted_there`, `in_the_way`" if in_the_way else "`deleted_there`"
    if _renames(ours) and _renames(fork):
        return "`renamed_apart`"
    if "makes a link" in (ours, fork) and "renames" not in (ours, fork):
        return "`type`"
    if _edits(ours) and _edits(fork):
        return "`content`"
    if "chmods" in ours and "chmods" in fork:
        return "`mode`"
    return "both"


def documented() -> list[str]:
    """The reasons that the rules of docs/reference/merge.md name, in their order."""
    rules = re.search(r"^### Every combination\n(.*?)^### ", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert rules is not None
    return re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\d\. .*$", rules[1], re.MULTILINE)))
