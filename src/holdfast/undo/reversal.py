"""Reversing what a step recorded, newest record first; each reversal is itself recorded, and so can be reversed.

Every record says what was about to happen. So a reversal looks first what is there: a place that does not hold the
object of the record was not filled by it, a preimage that is not in the log was not taken or was given back already.
That makes reversing idempotent: one that was cut short is continued from the record at which it stopped, and a record
that is reversed twice does nothing the second time. What is there and is not what the step left is somebody else's: it
is not touched, and the conflict is reported.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.duplicate import duplicate
from holdfast.files.handle import Identity, identity
from holdfast.files.kernel import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from holdfast.files.metadata import Metadata, apply_metadata, through
from holdfast.undo.interceptor import Place
from holdfast.undo.records import (
    Content,
    FileType,
    How,
    Keeping,
    Link,
    Made,
    Make,
    Meta,
    Move,
    Mutation,
    Put,
    Remove,
    Touch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.undo.directories import Directories
    from holdfast.undo.preimages import Preimages
    from holdfast.undo.recorder import Recorder
    from holdfast.undo.records import StepId

_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Conflict(NamedTuple):
    """Something that could not be brought back, because it is not what the step left."""

    path: bytes
    reason: str


class Reversal:
    """Reverses records of one or more steps; what reverses that again goes into the open steps of the same ids."""

    def __init__(
        self,
        recorder: Recorder,
        preimages: Preimages,
        directories: Directories,
        theirs: frozenset[Identity] = frozenset(),
    ) -> None:
        """``theirs`` are the objects that somebody else has changed since: they are left as they are."""
        self._recorder = recorder
        self._preimages = preimages
        self._directories = directories
        self._theirs = theirs
        self._step: StepId = 0
        self.conflicts: list[Conflict] = []
        self._made: dict[int, Identity] = {}
        self.paths = 0
        """How many records were reversed."""

    def run(self, records: Sequence[Mutation], start: int, before: Callable[[int], None]) -> None:
        """Reverse ``records`` from position ``start`` down to 0; ``before`` is told each position first.

        Holds the gate of the recorder throughout: mutations of others wait. Raises `OSError` where the system fails:
        call again with the last position.
        """
        self._made = {record.make: record.identity for record in records if isinstance(record, Made)}
        with self._recorder.gate:
            for position in range(start, -1, -1):
                record = records[position]
                if isinstance(record, Made):
                    continue
                before(position)
                self._step = record.step
                try:
                    self._reverse(record)
                except OSError as error:
                    if error.errno in _GONE:
                        self._conflict(record.path, "its directory is not there any more")
                    elif error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                        self._conflict(record.path, "something else is there now")
                    else:
                        raise

    def _reverse(self, record: Mutation) -> None:
        match record:
            case Make():
                self._unmake(record.path, record.type, self._made.get(record.seq))
            case Link():
                self._unmake(record.path, record.type, record.identity)
            case Put():
                self._unmake(record.path, record.type, record.identity)
            case Remove():
                self._bring_back(record.path, record.type, record.identity, record.keeping, record.metadata)
            case Move():
                self._move_back(record)
            case Content():
                self._rewrite(record)
            case Meta():
                self._describe(record.path, record.identity, record.metadata)
            case Touch():
                self._untouch(record)
            case Made():
                pass

    def _unmake(self, path: bytes, type_: FileType, object_: Identity | None) -> None:
        place = self._directories.place(path)
        found = _lstat(place)
        if found is None:
            return  # it never was, or is gone already
        if object_ is None:
            # The step was cut off between the creation and the note of what was created: nobody can have written to it.
            if not _is_pristine(place, found, type_):
                self._conflict(path, "it is not known who made it")
                return
        elif identity(place.dir_fd, place.name) != object_:
            return
        elif object_ in self._theirs:
            self._conflict(path, "somebody else has changed it since")
            return
        if type_ == "d":
            self._recorder.rmdir(self._step, place, lambda: os.rmdir(place.name, dir_fd=place.dir_fd))
            self._directories.forget(path)
        else:
            self._recorder.unlink(self._step, place, lambda: os.unlink(place.name, dir_fd=place.dir_fd))
        self.paths += 1

    def _bring_back(
        self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata
    ) -> None:
        match keeping.how:
            case How.NOT:
                return
            case How.MOVED | How.LINKED:
                if self._preimages.look(keeping.number) is None:
                    return  # it was not taken, or given back already
                place = self._directories.place(path)
                if keeping.how is How.LINKED and _holds(place, object_):
                    self._preimages.discard(keeping.number)  # the name was never removed
                    return
                self._recorder.put(self._step, place, type_, object_, keeping.number)
                self._set_mtime(place, metadata)
            case How.COPIED | How.INLINE:
                place = self._directories.place(path)
                if _lstat(place) is not None:
                    if not _holds(place, object_):
                        self._conflict(path, "something else is there now")
                    return
                self._recreate(place, type_, keeping, metadata)
        self.paths += 1

    def _recreate(self, place: Place, type_: FileType, keeping: Keeping, metadata: Metadata) -> None:
        mode = {"f": stat.S_IFREG, "p": stat.S_IFIFO, "s": stat.S_IFSOCK, "c": stat.S_IFCHR, "b": stat.S_IFBLK}
        name, dir_fd = place.name, place.dir_fd
        match type_:
            case "d":
                self._recorder.create(self._step, place, "d", lambda: os.mkdir(name, 0o700, dir_fd=dir_fd))
            case "l":
                self._recorder.create(self._step, place, "l", lambda: os.symlink(keeping.content, name, dir_fd=dir_fd))
            case _:
                device = int.from_bytes(keeping.content, "little") if type_ in ("c", "b") else 0
                self._recorder.create(
                    self._step, place, type_, lambda: os.mknod(name, mode[type_] | 0o600, device, dir_fd=dir_fd)
                )
        fd = os.open(name, _OBJECT, dir_fd=dir_fd)
        try:
            if type_ == "f":
                self._fill(fd, keeping)
            apply_metadata(fd, metadata)
        finally:
            os.close(fd)

    def _move_back(self, record: Move) -> None:
        source, target = self._directories.place(record.path), self._directories.place(record.target)
        lost = record.replaced
        there = _holds(target, record.identity)
        swapped = lost is not None and _holds(source, lost.identity)
        if there and swapped:
            self._rename(target, source, RENAME_EXCHANGE, record)
        elif there:
            self._rename(target, source, RENAME_NOREPLACE, record)
        elif swapped and record.exchanged:
            self._rename(source, target, RENAME_NOREPLACE, record)
        elif not _holds(source, record.identity) and record.identity not in self._made.values():
            # (What the step itself had made and removed again is nowhere by now.)
            self._conflict(record.target, "what was moved here is not here any more")
        if lost is not None and not record.exchanged and not _holds(target, record.identity):
            self._bring_back(record.target, lost.type, lost.identity, lost.keeping, lost.metadata)

    def _rename(self, source: Place, target: Place, flags: int, record: Move) -> None:
        self._recorder.rename(
            self._step,
            source,
            target,
            flags,
            lambda: renameat2(source.dir_fd, source.name, target.dir_fd, target.name, flags),
        )
        if record.type == "d" or flags & RENAME_EXCHANGE:
            self._directories.forget(record.path)
            self._directories.forget(record.target)
        self.paths += 1

    def _rewrite(self, record: Content) -> None:
        place = self._directories.place(record.path)
        fd = self._open_object(place, record.identity)
        if fd is None:
            return
        try:
            if record.identity in self._theirs:
                self._conflict(record.path, "somebody else has changed it since")
                return
            self._recorder.opening(self._step, place, fd)
            self._fill(fd, record.keeping)
            apply_metadata(fd, record.metadata)
        finally:
            os.close(fd)
        self.paths += 1

    def _describe(self, path: bytes, object_: Identity, metadata: Metadata) -> None:
        if not path:
            fd: int | None = os.open(b".", _OBJECT, dir_fd=self._directories.directory(b""))
            place = Place(self._directories.directory(b""), b".", b"")
        else:
            place = self._directories.place(path)
            fd = self._open_object(place, object_)
        if fd is None:
            return
        try:
            self._recorder.changing(self._step, place, fd)
            apply_metadata(fd, metadata)
        finally:
            os.close(fd)
        self.paths += 1

    def _untouch(self, record: Touch) -> None:
        fd = self._directories.directory(record.path)
        if identity(fd, b"") != record.identity:
            return
        found = os.fstat(fd)
        if found.st_mtime_ns != record.mtime:
            self._recorder.touch(self._step, record.path, fd)
            os.utime(through(fd), ns=(found.st_atime_ns, record.mtime))

    def _set_mtime(self, place: Place, metadata: Metadata) -> None:
        """Some file systems change the mtime of a directory that gets another parent."""
        found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_mtime_ns != metadata.mtime and metadata.mtime:
            os.utime(place.name, ns=(found.st_atime_ns, metadata.mtime), dir_fd=place.dir_fd, follow_symlinks=False)

    def _open_object(self, place: Place, object_: Identity) -> int | None:
        try:
            fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
        except FileNotFoundError:
            self._conflict(place.path, "it is not there any more")
            return None
        if identity(fd, b"") != object_:
            os.close(fd)
            self._conflict(place.path, "something else is there now")
            return None
        return fd

    def _fill(self, fd: int, keeping: Keeping) -> None:
        target = os.open(through(fd), os.O_RDWR | os.O_CLOEXEC)
        try:
            if keeping.how is How.INLINE:
                os.ftruncate(target, 0)
                os.pwrite(target, keeping.content, 0)
                return
            source = self._preimages.open(keeping.number)
            try:
                duplicate(source, target)
            finally:
                os.close(source)
        finally:
            os.close(target)

    def _conflict(self, path: bytes, reason: str) -> None:
        self.conflicts.append(Conflict(path, reason))


def _lstat(place: Place) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _holds(place: Place, object_: Identity) -> bool:
    try:
        return identity(place.dir_fd, place.name) == object_
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def _is_pristine(place: Place, found: os.stat_result, type_: FileType) -> bool:
    """Whether what is there can be what a creation has just left: empty, and of the right type."""
    from holdfast.undo.preimages import is_empty
    from holdfast.undo.records import file_type

    if file_type(found.st_mode) != type_:
        return False
    if type_ == "d":
        return is_empty(place.dir_fd, place.name)
    return type_ != "f" or found.st_size == 0
