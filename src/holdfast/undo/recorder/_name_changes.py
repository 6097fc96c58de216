"""Changes of names in the tree: creation, removal and renaming, journalled before they happen, with preimages."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast.files.linux.exclusive_rename import LACKS_FLAGS
from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.metadata import Metadata, mtime_of, proc_path, read_metadata
from holdfast.files.linux.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from holdfast.model.errors import StorageError
from holdfast.model.log import Log
from holdfast.model.paths import under
from holdfast.undo.interceptor import Place, no_check
from holdfast.undo.journal.records import (
    NOT_KEPT,
    FileType,
    Keeping,
    KeepMethod,
    Link,
    Made,
    Make,
    Move,
    PutBack,
    Remove,
    Replaced,
    StepId,
    file_type,
)
from holdfast.undo.recorder._content_changes import copy_preimage
from holdfast.undo.safeguards.guard import Danger, count_nothing
from holdfast.undo.tree.rooted_directories import exists, is_empty_at, lstat, lstat_or_none, may_replace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.files.linux.file_handle import Identity
    from holdfast.model.clock import Clock
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.recorder.recorder import Recorder
    from holdfast.undo.safeguards.open_step import OpenStep

T = TypeVar("T")

_log = Log(__name__)

_DELETED = b" (deleted)"
"""The kernel's suffix of a deleted name."""
_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CANNOT_RENAME = LACKS_FLAGS | {errno.EXDEV, errno.EACCES}
_CANNOT_LINK = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP})


class NameChanges:
    """The part of a `Recorder` that has to do with directory entries."""

    def __init__(self, recorder: Recorder, preimages: Preimages, clock: Clock) -> None:
        self._recorder = recorder
        self._preimages = preimages
        self._clock = clock

    def create(self, step: StepId, place: Place, type_: FileType, perform: Callable[[], T]) -> T:
        """See `Interceptor.create`."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            self._recorder.touch_parent(opened, place)
            make = Make(self._recorder.take_number(), step, place.path, type_, self._clock.now() * 1000)
            if exists(place):
                # No record may say that this is going to be created: killed now, it would be taken for the step's.
                result = perform()  # which is an error, unless another process has just removed it
                self._recorder.append(opened, make)
            else:
                self._recorder.record_contact(opened, place, None)
                result = self._recorder.perform(opened, make, perform)
            self.note_made(step, make, place)
            return result

    def note_made(self, step: StepId, make: Make, place: Place) -> None:
        """The object at the place is the one that the step was about to make."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            made = identity(place.dir_fd, place.name)
            opened.created.add(made)
            if (guard := self._recorder.guard(opened)) is not None:
                guard.note_made(opened, place.path, made)
            record = Made(self._recorder.take_number(), step, make.seq, made)
            opened.records.append(record)
            try:
                self._recorder.note(record)
            except StorageError as error:
                # It exists by now. Only after a kill of this process its maker is unknown.
                _log.warning("%s", error.message)

    def link(self, step: StepId, source_fd: int, place: Place, perform: Callable[[], T]) -> T:
        """See `Interceptor.link`."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            self._recorder.touch_parent(opened, place)
            found = os.fstat(source_fd)
            kind = file_type(found.st_mode)
            object_, source = identity(source_fd, b""), _path_of(source_fd, place)
            if exists(place):
                record = Link(self._recorder.take_number(), step, place.path, kind, object_, source)
                result = perform()  # as in `create`
                self._recorder.append(opened, record)
                return result
            # The object itself is compared: a step's result at this place is another object.
            is_known = self._recorder.last_state.last_signature(self._recorder.last_state.key(found)) is not None
            if source or (is_known and not self._is_gone(source_fd, found)):
                with _opened_place(source_fd, source or place.path) as met:
                    self._recorder.record_contact(opened, met, found, source_fd)
            self._recorder.record_contact(opened, place, None)
            record = Link(self._recorder.take_number(), step, place.path, kind, object_, source)
            return self._recorder.perform(opened, record, perform)

    def unlink(
        self,
        step: StepId,
        place: Place,
        perform: Callable[[], None],
        *,
        own: Callable[[], None] | None = no_check,
        other: bytes = b"",
    ) -> None:
        """See `Interceptor.unlink`. ``other`` is another name of the same object, by which the name can be made again:
        for a reversal of a link, which must not leave a new name in the log.
        """
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            found = lstat(place)
            if stat.S_ISDIR(found.st_mode):
                perform()  # which is an error, and the system knows which
                return
            if other:
                self._recorder.touch_parent(opened, place)
                keeping = Keeping(KeepMethod.RELATED, 0, other)
                object_ = identity(place.dir_fd, place.name)
                self._recorder.perform(
                    opened, _removal(self._recorder.take_number(), step, place, found, object_, keeping), perform
                )
                return
            count = self._recorder.ask(opened, Danger.DELETE, place, found)
            self._remove(opened, place, found, perform, own=own)
            count()

    def rmdir(
        self, step: StepId, place: Place, perform: Callable[[], None], *, own: Callable[[], None] | None = no_check
    ) -> None:
        """See `Interceptor.rmdir`."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            found = lstat(place)
            # A rename would remove a directory with entries as well.
            empty = stat.S_ISDIR(found.st_mode) and is_empty_at(place)
            if empty is False:
                perform()  # which is an error, and the system knows which
            else:
                self._remove(opened, place, found, perform, own=None if empty is None else own)
            self._recorder.note_arrangement()

    def rename(
        self,
        step: StepId,
        source: Place,
        target: Place,
        flags: int,
        perform: Callable[[], None],
        *,
        own: Callable[[], None] | None = no_check,
    ) -> None:
        """See `Interceptor.rename`."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            found = lstat(source)
            victim = lstat_or_none(target)
            count = count_nothing
            if flags & ~(RENAME_EXCHANGE | RENAME_NOREPLACE):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if victim is not None and os.path.samestat(found, victim):
                perform()  # two names of one object: nothing happens
                return
            if victim is not None and not flags & RENAME_EXCHANGE:
                if flags & RENAME_NOREPLACE or not may_replace(found, victim, target):
                    perform()  # which is an error, and the system knows which
                    return
                count = self._recorder.ask(opened, Danger.RENAME_OVER, target, victim)
            self._recorder.record_contact(opened, source, found)
            self._recorder.record_contact(opened, target, victim)
            self._move(opened, source, target, found, victim, flags, perform, own=own)
            count()
            self._recorder.note_moved(
                source,
                target,
                is_directory=stat.S_ISDIR(found.st_mode),
                is_exchanged=bool(flags & RENAME_EXCHANGE),
            )

    def put(self, step: StepId, place: Place, type_: FileType, object_: Identity, number: int) -> None:
        """Rename a preimage back to its place in the tree, which must be free (else `FileExistsError`)."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            self._recorder.touch_parent(opened, place)
            put = PutBack(self._recorder.take_number(), step, place.path, type_, object_, number)
            self._recorder.perform(opened, put, lambda: self._preimages.put_back(number, place.dir_fd, place.name))
            self._recorder.note_arrangement()

    # The rest ---------------------------------------------------------------------------------------------------

    def _share(self, opened: OpenStep, object_: Identity, seq: int) -> None:
        """The object with the preimage ``seq`` lives on by another name, also for other steps that have recorded it:
        their later changes by that name are in no record of theirs.
        """
        for step in self._recorder.open_steps:
            if step is opened or object_ in step.created or object_ in step.captured or object_ in step.described:
                step.shared.append(seq)

    def _is_gone(self, fd: int, found: os.stat_result) -> bool:
        """Whether its only names are in the log. The ctime shows names that came or went there."""
        return not found.st_nlink or (found.st_nlink == 1 and self._preimages.number_of(fd) is not None)

    def _remove(
        self,
        opened: OpenStep,
        place: Place,
        found: os.stat_result,
        perform: Callable[[], None],
        *,
        own: Callable[[], None] | None,
    ) -> None:
        object_ = identity(place.dir_fd, place.name)
        if object_ not in opened.created:
            self._recorder.record_contact(opened, place, found)
        else:
            self._recorder.record_own_removal(opened, place, found)
        self._recorder.touch_parent(opened, place)
        seq = self._recorder.take_number()
        # A directory is always kept: objects may have been moved through it. Other names of a file that the step made
        # are in its records, and are removed with them.
        if object_ in opened.created and not stat.S_ISDIR(found.st_mode):
            self._recorder.perform(opened, _removal(seq, opened.id, place, found, object_, NOT_KEPT), perform)
            return
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            self._share(opened, object_, seq)
        if own is not None:
            removal = _removal(seq, opened.id, place, found, object_, Keeping(KeepMethod.MOVED, seq))
            try:
                take = self._take_directory if stat.S_ISDIR(found.st_mode) else self._take
                self._recorder.perform(opened, removal, lambda: take(place, seq, own))
                return
            except OSError as error:
                if error.errno not in _CANNOT_RENAME:
                    raise
            seq = self._recorder.take_number()
            if found.st_nlink > 1:
                self._share(opened, object_, seq)
        keeping, metadata = self._keep(opened, place, found, seq)
        record = Remove(seq, opened.id, place.path, file_type(found.st_mode), object_, keeping, metadata)
        with self._discarding(keeping):
            self._recorder.perform(opened, record, perform)

    def _move(
        self,
        opened: OpenStep,
        source: Place,
        target: Place,
        found: os.stat_result,
        victim: os.stat_result | None,
        flags: int,
        perform: Callable[[], None],
        *,
        own: Callable[[], None] | None,
    ) -> None:
        self._recorder.touch_parent(opened, source)
        self._recorder.touch_parent(opened, target)
        kind = file_type(found.st_mode)
        seq = self._recorder.take_number()
        replaced = None if victim is None else self._replaced(opened, target, victim, flags, seq, own=own)
        exchange = bool(flags & RENAME_EXCHANGE)
        record = Move(
            seq, opened.id, source.path, target.path, kind, identity(source.dir_fd, source.name), replaced, exchange
        )
        keeping = NOT_KEPT if replaced is None else replaced.keeping
        if keeping.how is KeepMethod.MOVED and own is not None:
            try:
                self._recorder.perform(opened, record, lambda: self._swap_and_take(source, target, seq, own))
            except OSError as error:
                if error.errno not in _CANNOT_RENAME:
                    raise
                self._move(opened, source, target, found, victim, flags, perform, own=None)
                return
        elif keeping.number:
            with self._discarding(keeping):
                self._recorder.perform(opened, record, perform)
        else:
            self._recorder.perform(opened, record, perform)
        if kind == "d" or (victim is not None and stat.S_ISDIR(victim.st_mode)):
            self._recorder.note_arrangement()
            for step in self._recorder.open_steps:  # each of them finds another directory at the path from here on
                for path in [*step.touched]:
                    if under(path, source.path) or under(path, target.path):
                        step.touched.discard(path)

    def _replaced(
        self,
        opened: OpenStep,
        target: Place,
        victim: os.stat_result,
        flags: int,
        seq: int,
        *,
        own: Callable[[], None] | None,
    ) -> Replaced:
        object_ = identity(target.dir_fd, target.name)
        kind = file_type(victim.st_mode)
        keeping, metadata = NOT_KEPT, _metadata(victim)
        if flags & RENAME_EXCHANGE or (object_ in opened.created and kind != "d"):
            pass
        elif kind == "d" and own is not None:
            keeping = Keeping(KeepMethod.MOVED, seq)
        else:
            keeping, metadata = self._keep(opened, target, victim, seq)
            if victim.st_nlink > 1 and kind != "d":
                self._share(opened, object_, seq)
        return Replaced(kind, object_, keeping, metadata)

    def _swap_and_take(self, source: Place, target: Place, seq: int, own: Callable[[], None]) -> None:
        """Rename over a directory that goes into the log; the place that the rename leads to is never empty."""
        own()
        renameat2(source.dir_fd, source.name, target.dir_fd, target.name, RENAME_EXCHANGE)
        try:
            self._take_directory(source, seq, no_check)
        except OSError:
            renameat2(source.dir_fd, source.name, target.dir_fd, target.name, RENAME_EXCHANGE)
            raise

    def _take(self, place: Place, seq: int, own: Callable[[], None]) -> None:
        own()
        self._preimages.move_in(place.dir_fd, place.name, seq)

    def _take_directory(self, place: Place, seq: int, own: Callable[[], None]) -> None:
        own()
        self._preimages.move_in(place.dir_fd, place.name, seq)
        if not self._preimages.is_empty(seq):
            # Another process was quicker: its new entry must not end in the log.
            self._preimages.put_back(seq, place.dir_fd, place.name)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    @contextmanager
    def _discarding(self, keeping: Keeping) -> Generator[None]:
        """If the block fails, the preimage taken for it is not needed."""
        try:
            yield
        except OSError:
            if keeping.how in (KeepMethod.LINKED, KeepMethod.COPIED):
                self._preimages.discard(keeping.number)
            raise

    def _keep(self, opened: OpenStep, place: Place, found: os.stat_result, seq: int) -> tuple[Keeping, Metadata]:
        """Take the preimage of an object that is about to lose its name, without moving it."""
        fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
        try:
            if stat.S_ISDIR(found.st_mode):
                return Keeping(KeepMethod.INLINE), read_metadata(fd)
            try:
                self._preimages.link_in(place.dir_fd, place.name, seq)
                return Keeping(KeepMethod.LINKED, seq), _metadata(found)
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
            metadata = read_metadata(fd)
            shared = found.st_nlink > 1
            if shared:
                opened.detached.add(self._recorder.last_state.key(found))
            if stat.S_ISLNK(found.st_mode):
                return Keeping(KeepMethod.INLINE, 0, os.readlink(place.name, dir_fd=place.dir_fd), shared), metadata
            if not stat.S_ISREG(found.st_mode):
                return Keeping(KeepMethod.INLINE, 0, found.st_rdev.to_bytes(8, "little"), shared), metadata
            source = self._recorder.open_source(opened, place, fd, found.st_size)
            if source < 0:
                return Keeping(KeepMethod.NOT, shared=shared), metadata
            opened.note_copied(copy_preimage(self._preimages, source, seq))
            return Keeping(KeepMethod.COPIED, seq, shared=shared), metadata
        finally:
            os.close(fd)


def _removal(
    seq: int, step: StepId, place: Place, found: os.stat_result, object_: Identity, keeping: Keeping
) -> Remove:
    # The object itself is kept or was never needed, so its other metadata is not recorded.
    return Remove(seq, step, place.path, file_type(found.st_mode), object_, keeping, _metadata(found))


@contextmanager
def _opened_place(fd: int, path: bytes) -> Generator[Place]:
    """The place of the object that ``fd`` was opened as, known as ``path``; without a directory if that cannot be
    opened.

    The directory decides whether a step's result was here or in another directory that had its path then.
    """
    try:
        above, _, name = os.fsencode(os.readlink(proc_path(fd))).rpartition(b"/")
        directory = os.open(above or b"/", _OBJECT | os.O_DIRECTORY)
    except OSError:
        yield Place(-1, b"", path)
        return
    try:
        yield Place(directory, name, path)
    finally:
        os.close(directory)


def _path_of(fd: int, place: Place) -> bytes:
    """The path of what ``fd`` was opened as, in the tree that the place is in; empty if it is not there, or long."""
    try:
        return _read_path_of(fd, place)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return b""


def _read_path_of(fd: int, place: Place) -> bytes:
    above = os.fsencode(os.readlink(proc_path(place.dir_fd)))
    root = above.removesuffix(b"/" + place.parent) if place.parent else above
    path = os.fsencode(os.readlink(proc_path(fd)))
    if not path.startswith(root + b"/") or path.endswith(_DELETED):
        return b""
    return path.removeprefix(root + b"/")


def _metadata(found: os.stat_result) -> Metadata:
    return Metadata(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, mtime_of(found), ())
