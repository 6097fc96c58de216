"""Files that can still be written to, through older descriptors, when a step ends: they are examined again later.

A descriptor that was opened for writing belongs, with all its later writes and mappings, to the step that opened it.
While a served process has it, the step's result is not known: the finished step records this as unknown until the
descriptor and its mappings are gone. If the keeper is killed before that, it stays unknown.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import msgspec

from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.model.errors import IntegrityError
from holdfast.undo.foreign_edits.other_links import KEPT, find_in_log, find_survivors, lost_names
from holdfast.undo.journal.step_footprint import last_paths, objects_by_path
from holdfast.undo.tree.signatures import (
    CHECKED_BYTES,
    content_at,
    is_as_left,
    is_same,
    is_unknown,
    signature,
    unknown_signature,
    with_hash,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.records import Mutation, ObjectKey, Signature, StepId
    from holdfast.undo.journal.step_file import SealedStep, StepHead
    from holdfast.undo.log import UndoLog
    from holdfast.undo.tree.rooted_directories import Directories

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def filter_writable(log: UndoLog, left: Mapping[bytes, Signature | None]) -> dict[bytes, Signature]:
    """Those of the results that served processes may still write to."""
    files = {path: found for path, found in left.items() if found is not None and stat.S_ISREG(found.mode)}
    if not files:
        return {}
    written = log.writers(False)
    if written is not None:
        return {path: found for path, found in files.items() if found.inode in written}
    # Others would wait while all that is open was looked at. The kernel says which of these have no writer at all.
    with log.open_directories() as directories:
        return {
            path: found for path, found in files.items() if _writer(directories, path, found) is not WriterStatus.NONE
        }


def settle_late_writes(log: UndoLog, *, eagerly: bool = True) -> None:
    """Examine again the files that could still be written to when their step ended, and no longer can.

    If not ``eagerly``, files that any process writes to, and expensive checks, are left for later. The gate is held
    meanwhile. Files that another process is known to have changed stay unknown. Raises `StorageError`.
    """
    if not (log.unsettled or log.unsettled_others):
        return
    with log.recorder.gate, log.open_directories() as directories:
        writers = _Writers(log, directories, eagerly=eagerly)
        settled: dict[bytes, tuple[int, Signature]] = {}
        for step, waiting in list(log.unsettled.items()):
            if step in log.unsealed or step not in log.heads:
                continue
            ready = {path: was for path, was in waiting.items() if not writers.has(path, was)}
            if ready:
                at = log.heads[step].left_at
                settled |= {path: (at, found) for path, found in _settle(log, directories, step, ready).items()}
                for path in ready:
                    del waiting[path]
            if not waiting:
                del log.unsettled[step]
        if eagerly:
            _settle_others(log, directories, writers)
        # Last, so that one step's result does not count as a later step's for the others.
        last = _last_changes(log, min((at for at, _ in settled.values()), default=0)) if settled else {}
        log.recorder.last_state.note(
            (path, found)
            for path, (at, found) in settled.items()
            if last.get(path, 0) <= at and _is_last(log, directories, path)
        )


def written_late(log: UndoLog) -> list[tuple[StepId, bytes]]:
    """See `UndoService.written_late`. The gate is held."""
    with log.open_directories() as directories:
        done = [head for head in log.heads.values() if head.state == "done"]
        return [(head.id, path) for head in done for path in _written_late(log, directories, head)]


def mixed_since(log: UndoLog, at: int, seq: int | None) -> list[tuple[StepId, bytes]]:
    """See `UndoService.mixed_since`. The gate is held."""
    with log.open_directories() as directories:
        found = (
            (head.id, path) for head in log.heads.values() for path in _mixed_writes(log, directories, head, at, seq)
        )
        return list(found)


def _mixed_writes(log: UndoLog, directories: Directories, head: StepHead, at: int, seq: int | None) -> Iterator[bytes]:
    # If the history has no number (``seq``), every number is after it.
    open_since = [path for path, over in head.open_until if not 0 < over <= (seq or 0)]
    open_since += [path for path, over in head.kept_open if not 0 < over <= at]
    if head.state != "done" or not open_since:
        return
    left, late, edited, brought = dict(head.left), dict(head.late), edited_since(log, head), dict(head.brought)
    waiting = awaited_writes(log, head.id)
    for path in open_since:
        if path in brought and is_as_left(directories, path, brought[path]):
            continue
        was = left.get(path)
        if path in waiting:
            if not is_unchanged(signature(directories, path), waiting[path], path, edited):
                yield path
        elif is_unknown(was) or (path in late and not is_as_left(directories, path, was)):
            yield path


def abandon_writers(log: UndoLog) -> None:
    """Files that steps had open when their keeper was killed are no longer written to: the keeper's trees have ended
    with it. Raises `StorageError`.
    """
    for step, head in list(log.heads.items()):
        if any(not over for _, over in (*head.kept_open, *head.open_until)):
            kept_open, open_until = close_open_files(log, head)
            with suppress(IntegrityError):  # of a step that is damaged nothing is known
                sealed = log.read(step)
                head = msgspec.structs.replace(sealed.head, kept_open=kept_open, open_until=open_until)
                log.write(msgspec.structs.replace(sealed, head=head))


_Open: TypeAlias = "tuple[tuple[bytes, int], ...]"


def close_open_files(log: UndoLog, head: StepHead, paths: Collection[bytes] | None = None) -> tuple[_Open, _Open]:
    """`StepHead.kept_open` and `StepHead.open_until` after writing to these paths, or (None) to all, has ended now."""
    now = log.take_moment()
    ready = [
        path for path, over in (*head.kept_open, *head.open_until) if not over and (paths is None or path in paths)
    ]
    kept_open = tuple(one for one in head.kept_open if one[0] not in ready)
    return kept_open, (*(one for one in head.open_until if one[0] not in ready), *((path, now) for path in ready))


def _written_late(log: UndoLog, directories: Directories, head: StepHead) -> Iterator[bytes]:
    left = dict(head.left) if head.late else {}
    for path in dict(head.late):
        if left.get(path) is not None and is_as_left(directories, path, left[path]):
            yield path
    if waiting := awaited_writes(log, head.id):
        edited = edited_since(log, head)
        for path, was in waiting.items():
            if is_unchanged(signature(directories, path), was, path, edited) and not is_as_left(directories, path, was):
                yield path


def awaited_writes(log: UndoLog, step: StepId) -> Mapping[bytes, Signature]:
    """The files of a finished step that may still be written to, with their signatures at its end."""
    return {} if step in log.unsealed else log.unsettled.get(step, {})


def edited_since(log: UndoLog, head: StepHead) -> frozenset[bytes]:
    """Paths that others are known to have changed since the step began, also by other names of its results."""
    edited, objects = log.barriers.edited_paths(head.first), log.barriers.edited_objects(head.first)
    if not objects:
        return edited
    with suppress(IntegrityError):  # of a step that is damaged nothing is known
        for path, object_ in objects_by_path(log.read(head.id).records).items():
            if object_ is not None and log.recorder.aliases.now(object_) in objects:
                edited |= {path}
    return edited


def is_unchanged(now: Signature | None, was: Signature, path: bytes, edited: frozenset[bytes]) -> TypeGuard[Signature]:
    """Whether the step's result is still at the path, and only its own writers are known to have changed it."""
    return now is not None and now.key == was.key and edited.isdisjoint((path, b""))


class _Writers:
    """The objects that are still written to. Each is checked once, and an object that an unfinished step waits for
    counts as written to: all steps that have left it must examine it at the same time, or they would record different
    results.
    """

    def __init__(self, log: UndoLog, directories: Directories, *, eagerly: bool) -> None:
        self._find = partial(log.writers, eagerly)
        self._directories = directories
        self._eagerly = eagerly
        self._known: dict[ObjectKey, bool] = {}
        for step in log.unsealed:
            waiting = {was.key for was in log.unsettled.get(step, {}).values()}
            self._known |= dict.fromkeys(waiting | log.unsettled_others.get(step, frozenset()), True)

    @cached_property
    def _found(self) -> frozenset[int] | None:
        return self._find()

    def has(self, path: bytes, was: Signature) -> bool:
        """Whether the result at the path may still be written to."""
        if was.key not in self._known:
            writer = _writer(self._directories, path, was)
            if writer is WriterStatus.NONE or (writer is WriterStatus.SOME and not self._eagerly):
                self._known[was.key] = writer is WriterStatus.SOME
        return self.has_object(was.key)

    def has_object(self, key: ObjectKey) -> bool:
        """The same for an object that lives on under other names."""
        if key not in self._known:
            self._known[key] = self._found is None or key[1] in self._found
        return self._known[key]


def _settle_others(log: UndoLog, directories: Directories, writers: _Writers) -> None:
    """Examine again objects that had lost a name, live on by others or in the log, and could still be written to when
    their step ended. If others have changed anything since, the author of their content is unknown.
    """
    waiting = {step: keys for step, keys in log.unsettled_others.items() if step in log.heads}
    ready = {key for keys in waiting.values() for key in keys if not writers.has_object(key)}
    found: dict[ObjectKey, tuple[Signature, Callable[[], Place]]] = {}
    # Another step may have put the awaited object into the log.
    for head in list(log.heads.values()) if ready else ():
        if not ready.isdisjoint(one.key for one in head.others):
            with suppress(IntegrityError):  # of a step that is damaged nothing is known
                found.update(_lost_objects(log, directories, log.read(head.id).records))
    for step, keys in waiting.items():
        if step in log.unsealed:
            continue
        over = keys & ready
        if over and not edited_since(log, log.heads[step]):
            sealed = log.read(step)
            now = {key: with_hash(found[key][1], found[key][0]) for key in over & found.keys()}
            others = tuple(now.get(one.key, one) for one in sealed.head.others)
            log.write(msgspec.structs.replace(sealed, head=msgspec.structs.replace(sealed.head, others=others)))
            # Only these: a later step may have left the others anew.
            log.recorder.last_state.note((), now.values())
        if left := keys - over:
            log.unsettled_others[step] = left
        else:
            del log.unsettled_others[step]


def _lost_objects(
    log: UndoLog, directories: Directories, records: Sequence[Mutation]
) -> Iterator[tuple[ObjectKey, tuple[Signature, Callable[[], Place]]]]:
    """How each object looks now that lost a name by the records and is in the log, or lives on; and where it is."""
    for one in find_survivors(log, directories, records):
        yield one.now.key, (one.now, one.place)
    for _, keeping, _ in lost_names(records):
        there = find_in_log(log, keeping.number) if keeping.how in KEPT else None
        if there is not None:
            yield there.now.key, (there.now, there.place)


def _last_changes(log: UndoLog, since: int) -> dict[bytes, int]:
    """For each path, the sequence number at which a step last left an object or nothing there, if after ``since``.
    Includes steps whose results are not known yet.
    """
    later = sorted((head for head in log.heads.values() if head.left_at > since), key=lambda head: head.left_at)
    found = {path: head.left_at for head in later for path, _ in head.left}
    return found | {
        path: log.recorder.seq for step in tuple(log.unsealed.values()) for path in objects_by_path(step.records)
    }


def _is_last(log: UndoLog, directories: Directories, path: bytes) -> bool:
    """Whether no other step is known to have taken the step's result from the path, or to have replaced it."""
    if log.recorder.last_state.signature_at(path) is not None:
        return False
    try:
        place = directories.place(path)
        return not log.recorder.is_of_open_step(path, identity(place.dir_fd, place.name))
    except OSError:
        return False


def _settle(
    log: UndoLog, directories: Directories, step: StepId, ready: Mapping[bytes, Signature]
) -> dict[bytes, Signature]:
    sealed = log.read(step)
    head = sealed.head
    edited = edited_since(log, head)
    found: dict[bytes, Signature] = {}
    late: list[tuple[bytes, int]] = []
    hashed = list(head.contents)
    for path, was in ready.items():
        if log.recorder.last_state.last_signature(was.key) is not None:
            # A later step has recorded the content since, but the last writer is unknown.
            late.append((path, log.recorder.seq))
            continue
        at = path
        now = signature(directories, at)
        if (now is None or now.key != was.key) and (moved := moved_to(log, directories, sealed, path, was)) is not None:
            at = moved
            now = signature(directories, at)
        if not is_unchanged(now, was, path, edited):
            found[path] = unknown_signature(was)
            continue
        if not is_same(was, now, partial(directories.place, at)):
            late.append((path, log.recorder.seq))
        found[path] = with_hash(partial(directories.place, at), now)
        if (hash_ := _hash(directories, at, now)) is not None:
            hashed.append((path, hash_))
    kept_open, open_until = close_open_files(log, head, ready)
    head = msgspec.structs.replace(
        head,
        left=tuple((path, found.get(path, one)) for path, one in head.left),
        late=(*head.late, *late),
        contents=tuple(dict.fromkeys(hashed)),
        noted=head.noted and not (found or late),
        kept_open=kept_open,
        open_until=open_until,
    )
    if head != sealed.head:
        log.write(msgspec.structs.replace(sealed, head=head))
    return found


def moved_to(log: UndoLog, directories: Directories, sealed: SealedStep, path: bytes, was: Signature) -> bytes | None:
    """The path to which other steps have moved the step's result, since the step's beginning (they may have moved it
    during the step); None if they have not, or it does not exist.
    """
    mine = {object_ for object_ in objects_by_path(sealed.records).values() if object_ is not None}
    mine |= last_paths(sealed.records).keys()  # its old path may have another object of the step's now
    since = sealed.head.begun or sealed.head.looked_at
    later = [head.id for head in log.heads.values() if head.state == "done" and max(head.last, head.acted) > since]
    records = [record for step in later if step != sealed.head.id for record in log.read(step).records]
    records += [record for step in (*log.recorder.open_steps, *log.unsealed.values()) for record in step.records]
    records = sorted([*sealed.records, *(one for one in records if one.seq > since)], key=lambda record: record.seq)
    # The object that was seen there then may be one that another step put there.
    seen = objects_by_path([one for one in records if one.seq <= sealed.head.left_at]).get(path)
    for where, there in objects_by_path(records).items():
        if (
            there is not None
            and (there in mine or there == seen)
            and (now := signature(directories, where)) is not None
            and now.key == was.key
        ):
            return where
    return None


def _hash(directories: Directories, path: bytes, now: Signature) -> bytes | None:
    """The hash of a small file's last content, so that it is recognised when a checkpoint restores it."""
    if now.size > CHECKED_BYTES:
        return None
    try:
        found = content_at(directories.place(path))
        return found if found and signature(directories, path) == now else None
    except OSError:
        return None


def _writer(directories: Directories, path: bytes, was: Signature) -> WriterStatus:
    try:
        place = directories.place(path)
        fd = os.open(place.name, _READ, dir_fd=place.dir_fd)
    except OSError:
        return WriterStatus.FORBIDDEN
    try:
        found = os.fstat(fd)
        if found.st_ino != was.inode or not stat.S_ISREG(found.st_mode):
            return WriterStatus.FORBIDDEN
        return writer_of(fd)
    finally:
        os.close(fd)
