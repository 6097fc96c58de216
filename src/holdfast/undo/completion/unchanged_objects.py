"""Superfluous records of a step: of files that it opened for writing, or was going to change, and left unchanged; and
of objects that it made and removed again.

A file is unchanged if its size, mtime and ctime are: every change of content or metadata sets the ctime. This is valid
only for files whose ctime was older than the file system's clock granularity. A file that a process still has open for
writing may yet change.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.files.linux.metadata import mtime_of
from holdfast.undo.journal.records import Content, KeepMethod, Link, Made, Make, Meta, Move, Remove, Touch
from holdfast.undo.journal.step_footprint import objects_by_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Mutation
    from holdfast.undo.log import UndoLog
    from holdfast.undo.safeguards.open_step import OpenStep
    from holdfast.undo.tree.rooted_directories import Directories

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def drop_unchanged(log: UndoLog, step: OpenStep) -> bool:
    """Remove superfluous records, with their preimages, from a step, which is closed.

    False if no change of the step remains.
    """
    if step.stats_before:
        places = {object_: path for path, object_ in objects_by_path(step.records).items() if object_ is not None}
        with log.open_directories() as directories:
            same = {
                object_
                for object_, before in step.stats_before.items()
                if before and object_ in places and _is_as_before(directories, places[object_], object_, before)
            }
        for record in step.records:
            if isinstance(record, Content) and record.identity in same and record.keeping.number:
                log.preimages.discard(record.keeping.number)
        step.records[:] = [
            record for record in step.records if not (isinstance(record, (Content, Meta)) and record.identity in same)
        ]
    return any(not isinstance(record, Touch) for record in step.records)


def drop_transient(log: UndoLog, step: OpenStep) -> frozenset[int]:
    """Remove from a step, which is closed, objects that it made and removed again at the same path and did nothing else
    with. The records of directories' mtimes stay. The gate is held.

    Returns the numbers of the preimages that are unused once the step is written. Objects that another step touched
    stay, since they show that the two steps are connected.
    """
    records = step.records
    if not records or _is_known_to_others(log, step):
        return frozenset()
    went = _transient_records(records, frozenset(_contacts_of_others(log, step)))
    if not went:
        return frozenset()
    removals = [record for record in records if isinstance(record, Remove) and record.identity in went]
    step.span, step.transient = (records[0].seq, records[-1].seq), frozenset(record.path for record in removals)
    makes = {record.make for record in records if isinstance(record, Made) and record.identity in went}
    step.records = [
        record
        for record in records
        if not (record.seq in makes if isinstance(record, Make) else record.identity in went)
    ]
    return frozenset(record.keeping.number for record in removals if record.keeping.number)


def _is_known_to_others(log: UndoLog, step: OpenStep) -> bool:
    """Whether another step was examined since this one began: it may have found objects that are gone by now."""
    first = step.records[0].seq
    return (
        bool(log.recorder.renames_by_others(step))
        or any(max(head.last, head.looked_at, head.acted) > first for head in log.heads.values())
        or any(other.looked_at > first for other in tuple(log.unsealed.values()) if other is not step)
    )


def _contacts_of_others(log: UndoLog, step: OpenStep) -> Iterator[Identity]:
    """The objects that other steps had to do with since this one began."""
    first = step.records[0].seq
    for other in (*log.recorder.open_steps, *log.unsealed.values()):
        for record in reversed(other.records if other is not step else ()):
            if record.seq < first:
                break
            yield from _objects(record)


def _objects(record: Mutation) -> Iterator[Identity]:
    if not isinstance(record, Make):
        yield record.identity
    if isinstance(record, Move) and record.replaced is not None:
        yield record.replaced.identity


def _transient_records(records: Iterable[Mutation], met: frozenset[Identity]) -> frozenset[Identity]:
    """Objects that only these records made and removed again; directories only if nothing else was done in them."""
    paths: dict[int, bytes] = {}
    made: dict[Identity, bytes] = {}
    gone: dict[Identity, Remove] = {}
    other: set[Identity] = set(met)
    is_rearranged = False
    for record in records:
        match record:
            case Touch():
                pass
            case Make():
                paths[record.seq] = record.path
            case Made() if record.identity not in made:
                made[record.identity] = paths.get(record.make, b"")
            case Remove() if made.get(record.identity) == record.path and record.identity not in gone:
                gone[record.identity] = record
            case _:
                other.update(_objects(record))
                # Then a path does not show, for the whole step, which directory an object is in.
                is_rearranged |= isinstance(record, Move) and (record.type == "d" or record.exchanged)
    went = {object_ for object_, removed in gone.items() if object_ not in other and _leaves_nothing(removed)}
    directories = [gone[object_] for object_ in went if gone[object_].type == "d"]
    if directories and is_rearranged:
        return frozenset(went.difference(removed.identity for removed in directories))
    needed: set[bytes] = set()
    """Directories with lasting changes in or below them."""
    for record in records if directories else ():
        if isinstance(record, Make):
            continue  # its `Made` follows, or nothing
        if record.identity not in went:
            _need(needed, paths.get(record.make, b"") if isinstance(record, Made) else record.path)
            _need(needed, record.target if isinstance(record, Move) else b"")
            _need(needed, record.source if isinstance(record, Link) else b"")
    for removed in sorted(directories, key=lambda removed: len(removed.path), reverse=True):
        if removed.path in needed:
            went.discard(removed.identity)
            _need(needed, removed.path)
    return frozenset(went)


def _leaves_nothing(removed: Remove) -> bool:
    return removed.keeping.how is (KeepMethod.MOVED if removed.type == "d" else KeepMethod.NOT)


def _need(needed: set[bytes], path: bytes) -> None:
    while (path := path.rpartition(b"/")[0]) and path not in needed:
        needed.add(path)


def _is_as_before(directories: Directories, path: bytes, object_: Identity, before: tuple[int, int, int]) -> bool:
    if not path:
        return False
    try:
        place = directories.place(path)
        found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
        if (found.st_size, mtime_of(found), found.st_ctime_ns) != before:
            return False
        if stat.S_ISFIFO(found.st_mode):
            return False  # a process may have it open, and no lease tells
        if not stat.S_ISREG(found.st_mode):
            return identity(place.dir_fd, place.name) == object_
        fd = os.open(place.name, _READ, dir_fd=place.dir_fd)
        try:
            return identity(fd, b"") == object_ and writer_of(fd) is WriterStatus.NONE
        finally:
            os.close(fd)
    except OSError:
        return False
