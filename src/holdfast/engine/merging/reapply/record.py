"""What became of one file that overlaps, and what each rung did about it: kept with the merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.model.named import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.merging.classification import Overlap
    from holdfast.engine.merging.reapply.port import RungName
    from holdfast.engine.merging.threeway import Settled, Why

Result = Literal["answered", "declined", "pending", "refused"]


class Tried(NamedTuple):
    """What one rung did about one change."""

    rung: RungName
    numbers: Sequence[int]
    """The changesets that the change is from."""
    result: Result
    """``refused``: it gave an answer that was not taken."""
    said: str
    """Why not, or how; empty for nothing to say."""
    id: str = ""
    """What a question that is pending is called."""

    def to_json(self) -> dict[str, Any]:
        """See docs/guide/merge.md."""
        found: dict[str, Any] = {"rung": self.rung, "changesets": list(self.numbers), "result": self.result}
        if self.said:
            found["said"] = self.said
        if self.id:
            found["id"] = self.id
        return found


class FileRecord(NamedTuple):
    """What became of one file."""

    path: bytes
    why: Why
    version: str
    """As `Overlap.version`."""
    outcome: Literal["reapplied", "decided", "pending", "open"]
    """Applied anew by rungs; decided by a person; somebody is asked; nobody could."""
    tried: Sequence[Tried]

    def to_json(self) -> dict[str, Any]:
        """See docs/guide/merge.md."""
        return {
            "path": display(self.path),
            "why": self.why,
            "version": self.version,
            "outcome": self.outcome,
            "tried": [one.to_json() for one in self.tried],
        }


def decided(one: Overlap, settled: Settled) -> FileRecord:
    """That a person has decided."""
    said = {"ours": "production's version", "theirs": "the fork's version", None: "a resolution"}[settled.prefer]
    tried = Tried("person", one.numbers, "answered", said)
    return FileRecord(one.path, one.why, one.version, "decided", [tried])
