"""The barriers of an undo log: what somebody else has changed, which undo does not cross unless forced (I8).

They live in the journal, which begins anew with those that a step still has to do with. Edits of one party that no step
comes between are one barrier, and one that names very many paths names the root instead: anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.undo.traces import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.undo.records import Outside

_MOST_PATHS = 1000
_TOGETHER = 2_000_000_000
"""Edits of one party within so many nanoseconds are one, whatever happened between them."""
_FEW_PATHS = 50
"""Of so many it is said which of them matter: with each, all of a step is compared."""
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

        A record that follows the last one directly, or shortly after, by the same party, takes its place: its number is
        the later.
        """
        last = self.records[-1] if self.records else None
        follows = last is not None and record.seq == last.seq + 1
        if (
            last is None
            or (last.who, last.blocks) != (record.who, record.blocks)
            or not (follows or record.at - last.at < _TOGETHER)
        ):
            self.records.append(_bounded(record))
            return self.records[-1]
        paths = set(last.paths)
        if follows and (paths.issuperset(record.paths) or b"" in paths):
            return None
        merged = _bounded(msgspec.structs.replace(record, paths=tuple(sorted(paths.union(record.paths)))))
        self.records[-1] = merged
        return merged

    def prune(self, first: int) -> None:
        """Forget the barriers that are older than the sequence number ``first`` of the oldest step."""
        self.records = [record for record in self.records if first and record.seq > first]

    def crossed(
        self, since: int, mine: Reach, is_back: Callable[[bytes], bool] = lambda _path: False
    ) -> Outside | None:
        """The newest barrier after ``since`` that has to do with what a step depends on; None if there is none.

        Paths that ``is_back`` says of that they are again as the step left them do not count.
        """
        for record in reversed(self.records):
            if record.seq < since:
                return None
            if not record.blocks:
                continue
            if b"" in record.paths:
                return record
            lost = tuple(path for path in record.paths if not is_back(path))
            if mine.meets(_reach(lost)) is not None:
                if len(lost) <= _FEW_PATHS:
                    lost = tuple(path for path in lost if mine.meets(_reach((path,))) is not None)
                return msgspec.structs.replace(record, paths=lost)
        return None


def _reach(names: Iterable[bytes]) -> Reach:
    # Any of the paths may have been a directory that was moved or removed.
    paths = frozenset(names)
    return Reach(paths, paths, frozenset())


def _bounded(record: Outside) -> Outside:
    return (
        record
        if len(record.paths) <= _MOST_PATHS and b"" not in record.paths
        else msgspec.structs.replace(record, paths=_EVERYTHING)
    )
