"""The records that a reversal leaves unreversed because the system refuses, with all older ones of the same objects.

An older record describes the state before a newer one. Without the newer reversal, it would find another state, and
restore an intermediate one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.paths import parents
from holdfast.undo.journal.records import Content, Made, Make, Meta, Move, Touch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Mutation
    from holdfast.undo.journal.step_footprint import Aliases


class RefusedRecords:
    """Told of one record after the other, the newest first."""

    def __init__(self, aliases: Aliases, made: Mapping[int, Identity]) -> None:
        """``made`` are the objects by the sequence numbers of the `Make` records."""
        self._aliases = aliases
        self._made = made
        self._paths: dict[bytes, str] = {}
        self._holders: dict[bytes, str] = {}
        """The directories that they lie in."""
        self._above: dict[bytes, str] = {}
        """And all those above."""
        self._objects: dict[Identity, str] = {}
        self.seqs: set[int] = set()

    def reason(self, record: Mutation) -> str | None:
        """Why the record cannot be reversed before one that was refused is; None if it can."""
        if not self._paths:
            return None
        for object_ in self._objects_of(record):
            if object_ in self._objects:
                return self._objects[object_]
        for path in _paths_of(record):
            for each in (path, *parents(path)):
                if each in self._paths:
                    return self._paths[each]
            # A directory's mtime must be restored after its last change of names. Its other metadata does not depend on
            # that.
            if isinstance(record, Touch) and path in self._holders:
                return self._holders[path]
            if not isinstance(record, (Touch, Meta, Content)) and path in self._above:
                return self._above[path]
        return None

    def add(self, record: Mutation, reason: str) -> None:
        """The record is not reversed."""
        self.seqs.add(record.seq)
        if isinstance(record, Touch):
            return  # a directory's mtime alone blocks no other reversal
        for path in _paths_of(record):
            self._paths.setdefault(path, reason)
            self._holders.setdefault(path.rpartition(b"/")[0], reason)
            for above in parents(path):
                self._above.setdefault(above, reason)
        for object_ in self._objects_of(record):
            self._objects.setdefault(object_, reason)

    def _objects_of(self, record: Mutation) -> Iterator[Identity]:
        match record:
            case Make():
                if record.seq in self._made:
                    yield self._aliases.now(self._made[record.seq])
            case Touch():
                pass
            case Move():
                yield self._aliases.now(record.identity)
                if record.replaced is not None:
                    yield self._aliases.now(record.replaced.identity)
            case _:
                yield self._aliases.now(record.identity)


def _paths_of(record: Mutation) -> tuple[bytes, ...]:
    match record:
        case Made():
            return ()
        case Move():
            return record.path, record.target
        case _:
            return (record.path,)
