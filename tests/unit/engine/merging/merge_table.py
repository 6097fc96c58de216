"""What either side can do to one file, and the table of docs/reference/merge.md that says what comes of each pair."""

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
    """One word of the table."""
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


def table() -> str:
    """The table as it has to be."""
    ours, theirs = sides("production"), sides("fork")
    lines = [
        f"| ours ↓ fork → | {' | '.join(theirs)} |",
        f"| --- {'| --- ' * len(theirs)}|",
    ]
    for name, here in ours.items():
        lines.append(f"| **{name}** | {' | '.join(outcome(here, there) for there in theirs.values())} |")
    return "\n".join(lines)


def documented() -> dict[tuple[str, str], str]:
    """What docs/reference/merge.md says: (production's action, fork's action) → outcome."""
    text = DOCUMENT.read_text()
    (head,) = re.findall(r"^\| ours ↓ fork → \| (.*) \|$", text, re.MULTILINE)
    names = head.split(" | ")
    found = {}
    for row, cells in re.findall(r"^\| \*\*([a-z ]+)\*\* \| (.*) \|$", text, re.MULTILINE):
        for name, cell in zip(names, cells.split(" | "), strict=True):
            found[row, name] = cell
    return found
