"""Detects changes that no step made, by comparing the signatures of steps' results (I8)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.model.errors import IntegrityError
from holdfast.undo.foreign_edits.other_links import KEPT, find_in_log, find_survivors, lost_names
from holdfast.undo.journal.records import Made, Make, PutBack
from holdfast.undo.journal.step_footprint import (
    DirectoryMoves,
    filled_paths,
    footprint_of,
    kept_preimages,
    last_paths,
    objects_by_path,
    renamed_directories,
)
from holdfast.undo.tree.signatures import NOT_OURS, content_at, is_as_left, is_same, place_at, signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.foreign_edits.other_links import Survivor
    from holdfast.undo.journal.records import Mutation, ObjectKey, Signature
    from holdfast.undo.journal.step_file import SealedStep
    from holdfast.undo.log import UndoLog
    from holdfast.undo.tree.rooted_directories import Directories


_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def missing_directories(directories: Directories, records: Sequence[Mutation]) -> Iterator[bytes]:
    """Directories in which the records changed names, and that no longer exist: they would stop a reversal midway, but
    are no path with a step's result. Directories that another process has made inaccessible are left out.
    """
    for path in sorted(renamed_directories(records)):
        try:
            place = place_at(directories, path)
            is_there = stat.S_ISDIR(os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False).st_mode)
        except PermissionError:
            continue
        except OSError:
            is_there = False
        if not is_there:
            yield path


def foreign_entries(
    log: UndoLog, records: Sequence[Mutation], places: Mapping[bytes, Identity | None]
) -> Iterator[bytes]:
    """Entries in directories that the records put there, which the records themselves did not leave there.

    Edits that the policy ``warn`` permits to overwrite are left out. ``places`` are the `objects_by_path`.
    """
    warned = {path for barrier in log.barriers.records if not barrier.blocks for path in barrier.paths}
    if b"" in warned:
        return
    brought = set(new_directories(records))
    for path, object_ in places.items():
        if object_ not in brought:
            continue
        for name in _names(log.directories, path):
            inner = path + b"/" + name
            if places.get(inner) is None and inner not in warned:
                yield inner


def new_directories(records: Sequence[Mutation]) -> Iterator[Identity]:
    """The directories that the records have made or brought back."""
    makes = {record.seq for record in records if isinstance(record, Make) and record.type == "d"}
    for record in records:
        if (isinstance(record, Made) and record.make in makes) or (isinstance(record, PutBack) and record.type == "d"):
            yield record.identity


def _names(directories: Directories, path: bytes) -> list[bytes]:
    """The entries of the directory; none if it cannot be listed, which proves nothing."""
    try:
        place = directories.place(path)
        fd = os.open(place.name, _LIST, dir_fd=place.dir_fd)
    except OSError:
        return []
    try:
        return [os.fsencode(name) for name in os.listdir(fd)]
    finally:
        os.close(fd)


def changed_paths(log: UndoLog, sealed: Iterable[SealedStep]) -> Iterator[tuple[bytes, Identity | None]]:
    """The paths at which the steps left an object that is no longer as any step left it, with that object.

    Changes by others before a step's end stay theirs, whatever later steps left there. An undone step's restored
    content counts as a step's only if no barrier precedes that step.
    """
    sealed = sorted(sealed, key=lambda one: one.head.left_at)
    newest: dict[bytes, Signature | None] = {}
    since: dict[bytes, int] = {}
    objects: dict[ObjectKey, Signature] = {}
    for head in sorted(log.heads.values(), key=lambda head: head.left_at):
        newest.update(head.left)
        since.update(dict.fromkeys((path for path, _ in head.left), head.left_at))
        # A later step may have changed the same object by another of its names.
        objects.update({left.key: left for _, left in head.left if left is not None})
        objects.update({left.key: left for left in head.others})
    # Together, since a later step may have moved an earlier one's result, or a parent directory of it.
    records = sorted((record for one in sealed for record in one.records), key=lambda record: record.seq)
    moves = DirectoryMoves(records)
    # A result from before a move of a parent directory is at another path by now.
    own = {path: left for one in sealed for path, left in one.head.left if one.head.left_at >= moves.above(path)}
    yield from ((one.path, one.object) for one in _edited_elsewhere(log, sealed, objects) if one.is_changed)
    places = objects_by_path(records)
    for path, object_ in _edited_in_the_log(log, sealed, objects):
        # If that path has another object, unchanged since the steps, that one gets the name.
        found = (where for where, held in places.items() if held == object_ and own.get(where) is not None)
        if not any(is_as_left(log.directories, where, own[where]) for where in found):
            yield path, object_
    foreign = {path for one in sealed for path, left in one.head.left if left == NOT_OURS}
    spared = {path: left for one in sealed for path, left in one.head.spared}
    yield from _edited_paths(log, sealed, places)
    yield from ((path, None) for path in missing_directories(log.directories, records))
    yield from ((path, None) for path in foreign_entries(log, records, places))
    # Steps that were redone together recorded their results after the last of them.
    is_first = all(one.head.acted == one.head.last for one in sealed)
    new = filled_paths(records)
    # Paths to which concurrent steps had moved results of these.
    brought = [path for path, left in own.items() if left is not None and path not in places]
    # If a later step brought another directory here, the path's last result was in the former one: then the object in
    # the records decides.
    later = _AllMoves(log)

    def came_back(path: bytes, object_: Identity | None) -> bool:
        if since.get(path, 0) >= later.above(path) or not _holds(log, path, object_):
            return False
        now = signature(log.directories, path)
        return now is not None and is_same(objects.get(now.key), now, partial(place_at, log.directories, path))

    for path, object_ in places.items():
        # If it can be examined: an object that never could be is no edit for that reason alone.
        if path in foreign and signature(log.directories, path) != NOT_OURS:
            if path not in spared or not is_as_left(log.directories, path, spared[path]):
                yield path, object_
            continue
        is_gone = path in own and own[path] is None and newest[path] is None
        is_gone = is_gone and is_first and object_ is not None and path not in new
        if is_gone and not any(_holds(log, other, object_) for other in brought) and not came_back(path, object_):
            yield path, object_  # it was gone before the step's end, and no step has removed it, or brought it back
            continue
        if path in own and is_as_left(log.directories, path, own[path]):
            continue
        now = signature(log.directories, path)
        # A result that came with a parent directory was recorded at another path; others' changes stay theirs.
        if path in newest and (newest[path] == NOT_OURS or since[path] > moves.above(path)):
            left = newest[path]
            left = left and objects[left.key]
        elif now is not None and now.key in objects:
            left = objects[now.key]  # it came here with a directory above it
        else:
            continue
        is_changed = not is_same(left, now, partial(place_at, log.directories, path))
        if is_changed and (left == NOT_OURS or not came_back(path, object_)):
            yield path, object_


class _AllMoves:
    """The directories that any step moved, and when; the records are read when that is first asked for."""

    def __init__(self, log: UndoLog) -> None:
        self._log = log

    def above(self, path: bytes) -> int:
        """See `DirectoryMoves.above`."""
        return self._moves.above(path)

    @cached_property
    def _moves(self) -> DirectoryMoves:
        moving = (
            head.id
            for head in self._log.heads.values()
            if any(left is not None and stat.S_ISDIR(left.mode) for _, left in head.left)
        )
        records: list[Mutation] = []
        for step in moving:
            with suppress(IntegrityError):  # of a step that is damaged nothing is known
                records += self._log.read(step).records
        return DirectoryMoves(sorted(records, key=lambda record: record.seq))


def _holds(log: UndoLog, path: bytes, object_: Identity | None) -> bool:
    try:
        place = log.directories.place(path)
        return object_ is not None and identity(place.dir_fd, place.name) == log.recorder.aliases.now(object_)
    except OSError:
        return False


def _edited_paths(
    log: UndoLog, sealed: Iterable[SealedStep], places: Mapping[bytes, Identity | None]
) -> Iterator[tuple[bytes, Identity | None]]:
    """Objects that others edited during the steps, by any name, at the paths where the steps left or last had them."""
    objects = log.recorder.aliases.all(
        object_ for one in sealed if one.head.state == "done" for object_ in one.head.edited
    )
    if not objects:
        return
    there = {log.recorder.aliases.now(object_): path for path, object_ in places.items() if object_ is not None}
    for one in sealed:
        made = {record.identity for record in one.records if isinstance(record, Made)}
        for object_, path in last_paths(one.records).items():
            now = log.recorder.aliases.now(object_)
            # An object that a step made, and that is gone, cannot be taken from another step.
            if now in objects and (now in there or object_ not in made):
                yield there.get(now, path), object_


def edited_by_other_name(log: UndoLog, sealed: Iterable[SealedStep]) -> Iterator[Survivor]:
    """Objects from which the steps took a name, and which others have changed since by another one."""
    return _edited_elsewhere(log, sealed, _objects(log))


def _objects(log: UndoLog) -> dict[ObjectKey, Signature]:
    """As what the steps left each object last."""
    objects: dict[ObjectKey, Signature] = {}
    for head in sorted(log.heads.values(), key=lambda head: head.left_at):
        objects.update({left.key: left for _, left in head.left if left is not None})
        objects.update({left.key: left for left in head.others})
    return objects


def changed_by_other_name(log: UndoLog, one: SealedStep) -> Iterator[Identity]:
    """Objects that the step changed and took a name from, and that differ from its result under another name. A later
    undone step may have restored them.
    """
    left = {left.key: left for left in one.head.others}
    shared = None if left else ()
    for other in find_survivors(log, log.directories, one.records, shared):
        if other.is_changed and not is_same(left.get(other.now.key, NOT_OURS), other.now, other.place):
            yield log.recorder.aliases.now(other.object)


def _edited_elsewhere(
    log: UndoLog, sealed: Iterable[SealedStep], objects: Mapping[ObjectKey, Signature]
) -> Iterator[Survivor]:
    sealed = list(sealed)
    records = sorted((record for one in sealed for record in one.records), key=lambda record: record.seq)
    shared = None if any(one.head.others for one in sealed) else ()
    written = {key for one in sealed for key in log.unsettled_others.get(one.head.id, ())}
    for one in find_survivors(log, log.directories, records, shared):
        # An object without a step's result was already others' when it was examined. Writes of served processes belong
        # to the step that opened the file.
        if one.now.key not in written and not is_same(objects.get(one.now.key, NOT_OURS), one.now, one.place):
            yield one


def _edited_in_the_log(
    log: UndoLog, sealed: Iterable[SealedStep], objects: Mapping[ObjectKey, Signature]
) -> Iterator[tuple[bytes, Identity]]:
    """Objects in the log from which the steps took a name, if others have edited them by another name that is gone by
    now, or another object's: the edit would return where the step had found none.
    """
    for one in sealed:
        others = {left.key for left in one.head.others}
        for path, keeping, object_ in lost_names(one.records) if others else ():
            there = find_in_log(log, keeping.number) if keeping.how in KEPT else None
            if there is None or there.now.names > 1 or there.now.key not in others:
                continue
            now = there.now
            left = objects[now.key]
            is_alike = (left.mode, left.size, left.mtime) == (now.mode, now.size, now.mtime)
            # The ctime changes with the lost name, too.
            if not is_alike or (left.check and content_at(there.place()) != left.check):
                yield path, object_


def foreign_objects(log: UndoLog, opened: Iterable[SealedStep]) -> frozenset[Identity]:
    """Objects of interrupted steps that other steps have changed after them, or other processes after the keeper was
    killed.
    """
    opened = list(opened)
    chosen = {one.head.id for one in opened}
    going_on = (*log.recorder.open_steps, *log.unsealed.values())
    beside = [step.records for step in going_on if step.id not in chosen and not step.reverses]
    found: set[Identity] = set()
    for one in opened:
        found.update(one.head.edited)
        places = objects_by_path(one.records)
        for path, left in one.head.left:
            if left == NOT_OURS and (object_ := places.get(path)) is not None:
                found.add(object_)
        known = {left.key for left in one.head.others}
        found |= {
            other.object
            for other in find_survivors(log, log.directories, one.records, ())
            if other.now.key not in known
        }
        began: dict[Identity, int] = {}
        for object_, seq in _changes_by_object(one.records):
            began.setdefault(object_, seq)
        later = (
            log.read(head.id).records
            for head in log.heads.values()
            if head.id not in chosen and head.state != "undone" and head.last > one.head.first
        )
        for records in (*later, *beside):
            found.update(object_ for object_, seq in _changes_by_object(records) if began.get(object_, seq) < seq)
    return frozenset(found)


def left_by_steps(log: UndoLog, sealed: Iterable[SealedStep], spared: frozenset[Identity]) -> frozenset[Identity]:
    """Of the objects that a rollback leaves unchanged (`foreign_objects`), those that no outsider changed, but another
    step, and that are as it left or will leave them, where the records of these steps have them.
    """
    sealed = list(sealed)
    aliases = log.recorder.aliases
    edited = aliases.all(object_ for one in sealed for object_ in one.head.edited)
    records = sorted((record for one in sealed for record in one.records), key=lambda record: record.seq)
    waiting = {was.key for each in log.unsettled.values() for was in each.values()}
    numbers = {object_: keeping.number for keeping, object_ in kept_preimages(records) if keeping.how in KEPT}
    found: set[Identity] = set()
    objects = _objects(log) if spared else {}
    places = {object_: path for path, object_ in objects_by_path(records).items() if object_ is not None}
    for object_ in (places.keys() | numbers.keys()) & spared:
        if aliases.now(object_) in edited:
            continue
        path = places.get(object_, b"")
        if path and _holds(log, path, object_):
            now, place = signature(log.directories, path), partial(place_at, log.directories, path)
        else:
            there = find_in_log(log, numbers.get(object_, 0))
            if there is None:
                continue
            now, place = there.now, there.place
            if now.names == 1:
                found.add(object_)  # no outsider knows it any more
                continue
        if now is None:
            continue
        left = log.recorder.last_state.last_signature(now.key) or objects.get(now.key)
        # An object that is still written to is checked later for changes by an outsider.
        if now.key in waiting or (left and is_same(left, now, place)):
            found.add(object_)
    return frozenset(found)


def _changes_by_object(records: Iterable[Mutation]) -> Iterator[tuple[Identity, int]]:
    """Which objects the records are about, and when."""
    for record in records:
        yield from ((object_, record.seq) for object_ in footprint_of((record,)).objects)
