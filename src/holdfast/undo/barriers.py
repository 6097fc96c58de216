"""The barriers of an undo log: what somebody else has changed, which undo does not cross unless forced (I8).

They live in the journal, which begins anew with those that a step still has to do with. Edits of one party that no step
comes between are one barrier, and one that names very many paths names the root instead: anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.undo.records import OURSELVES
from holdfast.undo.traces import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.undo.records import Outside, StepId

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
        the later. What a step comes upon is one barrier, however long that takes it. The journal is told of each piece
        by piece: whoever reads it knows when which path was changed.
        """
        last = self.records[-1] if self.records else None
        if record.finder is not None:
            return self._add_found(last, record)
        follows = last is not None and record.seq == last.seq + 1
        if (
            last is None
            or (last.who, last.blocks, last.finder) != (record.who, record.blocks, None)
            or not (follows or record.at - last.at < _TOGETHER)
        ):
            self.records.append(_bounded(record))
            return self.records[-1]
        if follows and _says(last, record):
            return None
        self.records[-1] = _joined(last, record)
        return _bounded(record)

    def _add_found(self, last: Outside | None, record: Outside) -> Outside | None:
        if last is None or (last.finder, last.who) != (record.finder, record.who):
            self.records.append(_bounded(record))
            return record
        if _says(last, record):
            return None
        self.records[-1] = _joined(last, record)
        return record

    def prune(self, first: int) -> None:
        """Forget the barriers that are older than the sequence number ``first`` of the oldest step."""
        self.records = [record for record in self.records if first and record.seq > first]

    def found(self, step: StepId, since: int) -> frozenset[bytes]:
        """What other steps came upon after ``since`` that others had changed; the root's path: anything."""
        return frozenset(
            path
            for record in self.records
            if record.seq > since and record.finder not in (None, step) and record.who != OURSELVES
            for path in record.paths
        )

    def crossed(
        self,
        step: StepId,
        since: int,
        mine: Reach,
        is_back: Callable[[bytes, bool], bool] = lambda _path, _is_found: False,
    ) -> Outside | None:
        """The newest barrier after ``since`` that has to do with what a step depends on; None if there is none.

        What the step itself came upon was there before it. Paths that ``is_back`` says of that they are again as the
        step left them do not count. It is told whether a step came upon the edit: then the step either has left
        something at that very path, or would take nothing away from there.
        """
        for record in reversed(self.records):
            if record.seq < since:
                return None
            if not record.blocks or record.finder == step:
                continue
            if b"" in record.paths:
                return record
            is_found = record.finder is not None
            lost = tuple(path for path in record.paths if not is_back(path, is_found))
            if lost and (is_found or mine.meets(_reach(lost)) is not None):
                if len(lost) <= _FEW_PATHS and not is_found:
                    lost = tuple(path for path in lost if mine.meets(_reach((path,))) is not None)
                return msgspec.structs.replace(record, paths=lost)
        return None


def _reach(names: Iterable[bytes]) -> Reach:
    # Any of the paths may have been a directory that was moved or removed.
    paths = frozenset(names)
    return Reach(paths, paths, {})


def _says(last: Outside, record: Outside) -> bool:
    """Whether the last barrier says already what the record does."""
    return b"" in last.paths or (
        set(last.paths).issuperset(record.paths) and set(last.objects).issuperset(record.objects)
    )


def _joined(last: Outside, record: Outside) -> Outside:
    """The record, with what the last one says too."""
    paths, objects = {*last.paths, *record.paths}, {*last.objects, *record.objects}
    return _bounded(msgspec.structs.replace(record, paths=tuple(sorted(paths)), objects=tuple(sorted(objects))))


def _bounded(record: Outside) -> Outside:
    if b"" not in record.paths and max(len(record.paths), len(record.objects)) <= _MOST_PATHS:
        return record
    return msgspec.structs.replace(record, paths=_EVERYTHING, objects=())
