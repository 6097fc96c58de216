"""The barriers of an undo log: what somebody else has changed, which undo does not cross unless forced (I8).

They live in the journal, which begins anew with those that a step still has to do with. Edits of one party that no step
comes between are one barrier, and one that names very many paths names the root instead: anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.undo.traces import Reach

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.undo.records import Outside

_MOST_PATHS = 1000
_EVERYTHING = (b"",)


class Barriers:
    """The barriers, oldest first. For one thread at a time."""

    def __init__(self, records: Iterable[Outside]) -> None:
        """Those of a journal, in its order."""
        self.records: list[Outside] = []
        for record in records:
            self.add(record)

    def add(self, record: Outside) -> Outside | None:
        """Add a barrier; returns what the journal has to say, None if that says it already.

        A record that directly follows the last one, by the same party, takes its place: its number is the later.
        """
        last = self.records[-1] if self.records else None
        if last is None or (last.who, last.blocks) != (record.who, record.blocks) or record.seq != last.seq + 1:
            self.records.append(_bounded(record))
            return self.records[-1]
        paths = set(last.paths)
        if paths.issuperset(record.paths) or b"" in paths:
            return None
        merged = _bounded(msgspec.structs.replace(record, paths=tuple(sorted(paths.union(record.paths)))))
        self.records[-1] = merged
        return merged

    def prune(self, first: int) -> None:
        """Forget the barriers that are older than the sequence number ``first`` of the oldest step."""
        self.records = [record for record in self.records if first and record.seq > first]

    def crossed(self, since: int, mine: Reach) -> Outside | None:
        """The newest barrier after ``since`` that has to do with what a step depends on; None if there is none."""
        for record in reversed(self.records):
            if record.seq < since:
                return None
            if record.blocks and (b"" in record.paths or mine.meets(_reach(record)) is not None):
                return record
        return None


def _reach(record: Outside) -> Reach:
    # Any of the paths may have been a directory that was moved or removed.
    paths = frozenset(record.paths)
    return Reach(paths, paths, frozenset())


def _bounded(record: Outside) -> Outside:
    return record if len(record.paths) <= _MOST_PATHS else msgspec.structs.replace(record, paths=_EVERYTHING)
