"""The barriers of an undo log: changes by other processes, which undo does not cross unless forced (I8).

They are in the journal; a restarted journal keeps those that still matter to a step. Consecutive edits of one party
without a step between are one barrier. A barrier with very many paths names the root instead, for any path. The time of
each path's change is kept: a step that touched the path only later is not before the barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.undo.journal.records import OURSELVES
from holdfast.undo.journal.step_footprint import Footprint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import ForeignEdit, StepId

_MOST_PATHS = 1000
_TOGETHER = 2_000_000_000
"""Edits of one party within this time (ns) are one barrier, whatever happened in between."""
_FEW_PATHS = 50
"""With at most so many paths, a barrier names only those that matter to a step: each is compared with a whole step."""
_EVERYTHING = (b"",)


class _Barrier:
    """A barrier, and when what of it was changed."""

    __slots__ = ("at", "objects", "paths", "record", "since")

    def __init__(self, record: ForeignEdit) -> None:
        self.record = _bounded(record)
        """All of it, with the number and the time of the newest."""
        self.paths: dict[bytes, int] = {}
        """The newest number under which each was named."""
        self.objects: dict[Identity, int] = {}
        self.at: dict[int, int] = {}
        """When that was, by these numbers."""
        self.since = record.seq
        """From this number on nothing has come between the edits."""
        self._date(self.record)

    def says(self, record: ForeignEdit) -> bool:
        """Whether the barrier has all of that already, and nothing has come between."""
        last = self.since - 1
        return b"" in self.paths or (
            all(self.paths.get(path, last) > last for path in record.paths)
            and all(self.objects.get(object_, last) > last for object_ in record.objects)
        )

    def join(self, record: ForeignEdit) -> None:
        """Add another edit of the same party."""
        if record.seq != self.record.seq + 1:
            self.since = record.seq
        self.record = _joined(self.record, record)
        if b"" in self.record.paths:
            self.paths, self.objects, self.at = {}, {}, {}
            record = self.record
        self._date(record)

    def after(self, since: int, each: Mapping[bytes, int] | None = None) -> tuple[bytes, ...]:
        """The paths that were changed after that number, or after what there is for ``each``."""
        own = each or {}
        return tuple(sorted(path for path, seq in self.paths.items() if seq > own.get(path, since)))

    def pieces(self) -> Iterator[ForeignEdit]:
        """The records to read it from, oldest first."""
        for seq, at in sorted(self.at.items()):
            paths = tuple(sorted(path for path, when in self.paths.items() if when == seq))
            objects = tuple(sorted(each for each, when in self.objects.items() if when == seq))
            if paths or objects:
                yield msgspec.structs.replace(self.record, seq=seq, at=at, paths=paths, objects=objects)

    def _date(self, record: ForeignEdit) -> None:
        self.paths |= dict.fromkeys(record.paths, record.seq)
        self.objects |= dict.fromkeys(record.objects, record.seq)
        self.at[record.seq] = record.at
        if len(self.at) > 2 * (len(self.paths) + len(self.objects)):
            used = {*self.paths.values(), *self.objects.values()}
            self.at = {seq: at for seq, at in self.at.items() if seq in used}


class Barriers:
    """The barriers, oldest first. For one thread at a time."""

    def __init__(self, records: Iterable[ForeignEdit]) -> None:
        """The barriers of a journal, in its order."""
        self._all: list[_Barrier] = []
        for record in records:
            self.add(record)

    @property
    def records(self) -> list[ForeignEdit]:
        """All of them, each with the number and the time of its newest edit."""
        return [barrier.record for barrier in self._all]

    def pieces(self) -> list[ForeignEdit]:
        """The records of a restarted journal that give the same barriers with the same dates."""
        return [piece for barrier in self._all for piece in barrier.pieces()]

    def edited_paths(self, since: int) -> frozenset[bytes]:
        """All paths that others have changed after ``since``."""
        return frozenset(path for barrier in self._all for path in barrier.after(since))

    def edited_objects(self, since: int) -> frozenset[Identity]:
        """All objects, as far as they are known, that others have changed after ``since``."""
        return frozenset(each for barrier in self._all for each, seq in barrier.objects.items() if seq > since)

    def add(self, record: ForeignEdit) -> ForeignEdit | None:
        """Add a barrier; returns the record for the journal, None if it is there already.

        A record of the same party directly or shortly after the last one joins its barrier, which gets the later
        number. All edits that one step finds are one barrier, however long that takes. The journal gets each piece
        separately, so a reader knows when each path was changed.
        """
        barrier = self._all[-1] if self._all else None
        last = None if barrier is None else barrier.record
        if record.finder is not None:
            return self._add_found(barrier, record)
        follows = last is not None and record.seq == last.seq + 1
        if (
            barrier is None
            or last is None
            or (last.who, last.blocks, last.finder) != (record.who, record.blocks, None)
            or not (follows or abs(record.at - last.at) < _TOGETHER)
        ):
            self._all.append(_Barrier(record))
            return self._all[-1].record
        if follows and barrier.says(record):
            return None
        barrier.join(record)
        return _bounded(record)

    def _add_found(self, barrier: _Barrier | None, record: ForeignEdit) -> ForeignEdit | None:
        if barrier is None or (barrier.record.finder, barrier.record.who) != (record.finder, record.who):
            self._all.append(_Barrier(record))
            return record
        if _says(barrier.record, record):
            return None
        barrier.join(record)
        return record

    def prune(self, first: int) -> None:
        """Forget the barriers that are older than the sequence number ``first`` of the oldest step."""
        self._all = [barrier for barrier in self._all if first and barrier.record.seq > first]

    def found_by_steps(self, step: StepId, since: int) -> frozenset[bytes]:
        """Paths that others had changed, as other steps found after ``since``; the root's path: any path."""
        return frozenset(
            path
            for barrier in self._all
            if barrier.record.finder not in (None, step) and barrier.record.who != OURSELVES
            for path in barrier.after(since)
        )

    def newest_crossed(
        self,
        step: StepId,
        since: int,
        mine: Footprint,
        is_back: Callable[[bytes, bool], bool] = lambda _path, _is_found: False,
        came: Mapping[bytes, int] | None = None,
        elsewhere: Collection[Identity] = frozenset(),
    ) -> ForeignEdit | None:
        """The newest barrier after ``since`` that concerns a step's dependencies; None if there is none.

        Edits that the step itself found do not count: they were there before it. ``came`` is the step's first contact
        with paths (`first_contacts`), where later than ``since``: its undo restores earlier changes by others. Paths
        for which ``is_back`` is true, since they are again as the step left them, do not count. Its second argument
        tells whether a step found the edit: then the step has a result at that very path, or would remove nothing
        there. ``elsewhere`` are objects that the step would write to by names that it does not know, and that are not
        as it left them.
        """
        for barrier in reversed(self._all):
            record = barrier.record
            if record.seq < since:
                return None
            if not record.blocks or record.finder == step:
                continue
            if b"" in record.paths or any(barrier.objects.get(object_, 0) > since for object_ in elsewhere):
                return record
            is_found = record.finder is not None
            lost = tuple(path for path in barrier.after(since, came or {}) if not is_back(path, is_found))
            if lost and (is_found or mine.meets(_reach(lost)) is not None):
                if len(lost) <= _FEW_PATHS and not is_found:
                    lost = tuple(path for path in lost if mine.meets(_reach((path,))) is not None)
                return msgspec.structs.replace(record, paths=lost)
        return None


def _reach(names: Iterable[bytes]) -> Footprint:
    # Any of the paths may have been a directory that was moved or removed.
    paths = frozenset(names)
    return Footprint(paths, paths, {})


def _says(last: ForeignEdit, record: ForeignEdit) -> bool:
    """Whether the last barrier says already what the record does."""
    return b"" in last.paths or (
        set(last.paths).issuperset(record.paths) and set(last.objects).issuperset(record.objects)
    )


def _joined(last: ForeignEdit, record: ForeignEdit) -> ForeignEdit:
    """The record, with what the last one says too."""
    paths, objects = {*last.paths, *record.paths}, {*last.objects, *record.objects}
    return _bounded(msgspec.structs.replace(record, paths=tuple(sorted(paths)), objects=tuple(sorted(objects))))


def _bounded(record: ForeignEdit) -> ForeignEdit:
    if b"" not in record.paths and max(len(record.paths), len(record.objects)) <= _MOST_PATHS:
        return record
    return msgspec.structs.replace(record, paths=_EVERYTHING, objects=())
