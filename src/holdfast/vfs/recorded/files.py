"""Files of a recorded directory, opened or created, and their content.

The content of a file is preserved when it is opened for writing. Later writes, mappings or truncations through that
handle do not preserve it again, unless the step that preserved it was reverted since.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.unreadable_file import takes_long
from holdfast.undo.safeguards.guard import LOSING_MODES, risk_of
from holdfast.vfs.fd_budget import FD_BUDGET
from holdfast.vfs.file_system import TooManyError
from holdfast.vfs.patience import LaterError, is_patient
from holdfast.vfs.recorded._open_descriptor import OpenDescriptor
from holdfast.vfs.recorded.node import LocatedNode

if TYPE_CHECKING:
    from holdfast.undo.safeguards.guard import Risk
    from holdfast.vfs.fd_budget import FdShare
    from holdfast.vfs.file_system import Caller, Found, OpenedFile
    from holdfast.vfs.recorded.callers import Credited, RecordingHost
    from holdfast.vfs.recorded.node import Node
    from holdfast.vfs.recorded.node_registry import NodeRegistry

MOST_FILES: Final = 1 << 16
SLOW_BYTES: Final = 1 << 20
"""Keeping a copy of more takes longer than others should have to wait."""
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_CHANGING: Final = _WRITING | os.O_TRUNC
_CAN_WRITE: Final = (os.O_WRONLY, os.O_RDWR)
"""By a descriptor of the fourth access nothing can be written, though it takes the permission."""
_PASSED: Final = os.O_ACCMODE | os.O_SYNC | os.O_DSYNC | os.O_NOATIME
"""Flags that apply to our own open too. Not O_APPEND: the page cache writes back at given offsets; nor O_DIRECT, which
would require aligned memory.
"""
_MOST_COPIED: Final = 1 << 25
"""Of one request: who serves it is kept by that, and cannot be stopped before it has ended. Who asks copies on."""
_TRIES: Final = 100
_SET_IDS: Final = stat.S_ISUID | stat.S_ISGID
_libc = ctypes.CDLL(None, use_errno=True)


class RecordedFile(OpenDescriptor):
    """`OpenedFile` of a recorded directory."""

    __slots__ = ("_files", "_kept_at", "flags", "kept", "node")

    def __init__(self, files: RecordedFiles, node: int, kept: Node, fd: int, flags: int, kept_at: int) -> None:
        """``kept_at``: what `Interceptor.reversals` was before what the file holds was kept."""
        super().__init__(fd, files.close_file)
        self._kept_at = kept_at
        self._files = files
        self.node = node
        self.kept = kept
        self.flags = flags

    @property
    def writes(self) -> bool:
        """Whether its content can be changed by it."""
        return bool(self.flags & _WRITING)

    def read(self, size: int, offset: int) -> bytes:
        """See `OpenedFile`."""
        with self:
            return os.pread(self.fd, size, offset)

    def write(self, caller: Caller, data: memoryview, offset: int, *, appends: bool, strips: bool) -> int:
        """See `OpenedFile`."""
        flags = os.RWF_APPEND if appends else 0
        with self:
            self.keep(caller)
            if not (strips and os.fstat(self.fd).st_mode & _SET_IDS):
                return os.pwritev(self.fd, (data,), offset, flags)
            with self._files.credited.stripping(caller, strips):
                return os.pwritev(self.fd, (data,), offset, flags)

    def seek(self, offset: int, whence: int) -> int:
        """See `OpenedFile`."""
        with self:
            return os.lseek(self.fd, offset, whence)

    def sync(self, *, data_only: bool) -> None:
        """See `OpenedFile`."""
        with self:
            (os.fdatasync if data_only else os.fsync)(self.fd)

    def allocate(self, caller: Caller, mode: int, offset: int, length: int, *, strips: bool) -> None:
        """See `OpenedFile`."""
        with self:
            self.keep(caller)
            if mode & LOSING_MODES:
                size = os.fstat(self.fd).st_size
                self._files.before_loss(caller, self, min(length, size - offset))
            with self._files.credited.stripping(caller, strips):
                failed = _libc.fallocate(self.fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def copy_to(
        self, caller: Caller, offset: int, target: OpenedFile, target_offset: int, length: int, *, strips: bool
    ) -> int:
        """See `OpenedFile`."""
        if not isinstance(target, RecordedFile):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        with self, target:
            target.keep(caller)
            with self._files.credited.stripping(caller, strips):
                return os.copy_file_range(self.fd, target.fd, min(length, _MOST_COPIED), offset, target_offset)

    def keep(self, caller: Caller) -> None:
        """Before its content changes: preserve it anew, if the step that did was reverted. Raises as `Files.open`."""
        # (The file is in use: this may have to wait.)
        if self.writes and self._kept_at != (now := self._files.reversals):
            self._files.keep_again(caller, self, self._kept_at)
            self._kept_at = now


class RecordedFiles:
    """`Files` of a recorded directory."""

    def __init__(
        self, host: RecordingHost, objects: NodeRegistry, credited: Credited, *, most: int = MOST_FILES
    ) -> None:
        """At most ``most`` files may be open at a time, and as many as there is room for (`fd_budget`)."""
        self._host = host
        self._objects = objects
        self.credited = credited
        self._most = most
        self._opened: set[RecordedFile] = set()
        self.share: FdShare = FD_BUDGET.share()

    def close(self) -> None:
        """Close all that is open."""
        for file in tuple(self._opened):
            file.close()

    # -- opening --------------------------------------------------------------------------------------------------

    def open(self, caller: Caller, node: int, flags: int, *, strips: bool) -> RecordedFile:
        """See `Files`."""
        self._check_room()
        with self.share.one_more():
            if flags & _CHANGING:
                now = self.reversals
                with self._objects.located(node, moves=self._host.interceptor.moves) as thing:
                    return self._added(node, self._open(caller, thing, flags, strips=strips), flags, now)
            # (The path is asked for only if the file may be changed.)
            with self._objects.descriptor(node) as fd:
                return self._added(node, self._open(caller, LocatedNode(fd, None), flags, strips=strips), flags)

    def _open(self, caller: Caller, thing: LocatedNode, flags: int, *, strips: bool) -> int:
        found = os.fstat(thing.fd)
        if not stat.S_ISREG(found.st_mode):
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.ENXIO
            raise OSError(number, os.strerror(number))
        fd = self.reopened(thing.fd, flags & _PASSED)
        try:
            if flags & _CHANGING:
                self.capture(caller, thing, found, risk_of(flags))
                if flags & os.O_TRUNC:
                    with self.credited.stripping(caller, strips):
                        os.truncate(fd if flags & os.O_ACCMODE in _CAN_WRITE else proc_path(fd), 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def create(
        self, caller: Caller, parent: int, name: bytes, flags: int, permissions: int, *, strips: bool
    ) -> tuple[Found, RecordedFile, bool]:
        """See `Files`."""
        self._check_room()
        made = flags & _PASSED | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        objects = self._objects
        interceptor, now = self._host.interceptor, self.reversals
        with self.share.one_more(), objects.directory(parent) as dir_fd:
            perform = self.credited.creating(caller, lambda: os.open(name, made, permissions, dir_fd=dir_fd))
            for _ in range(_TRIES):
                step = self._host.step(caller.thread)
                try:
                    with interceptor.gate:
                        fd = interceptor.create(step, objects.place(parent, dir_fd, name), "f", perform)
                except FileExistsError:
                    # Another process was quicker, and it is not to be created at any price.
                    if flags & os.O_EXCL:
                        raise
                else:
                    return *self._entered(fd, parent, name, flags, now), True
                try:
                    found = objects.enter(parent, dir_fd, name)
                except FileNotFoundError:
                    continue
                try:
                    with objects.located(found.node, moves=interceptor.moves) as thing:
                        fd = self._open(caller, thing, flags, strips=strips)
                        found = found._replace(status=os.fstat(fd))
                    return found, self._added(found.node, fd, flags, now), False
                except BaseException:
                    objects.forget(found.node, 1)
                    raise
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def create_unnamed(self, caller: Caller, parent: int, flags: int, permissions: int) -> tuple[Found, RecordedFile]:
        """See `Files`. It has no name, so nothing changes: the link that gives it one is recorded."""
        self._check_room()
        made = flags & (_PASSED | os.O_EXCL) | os.O_TMPFILE | os.O_CLOEXEC
        with self.share.one_more(), self._objects.directory(parent) as dir_fd:
            create = self.credited.creating(caller, lambda: os.open(b".", made, permissions, dir_fd=dir_fd))
            return self._entered(create(), parent, b"", flags, self.reversals)

    def _entered(self, fd: int, parent: int, name: bytes, flags: int, now: int) -> tuple[Found, RecordedFile]:
        """The node and file of the file created as ``fd``."""
        try:
            found = self._objects.enter_opened(fd, parent, name)
        except BaseException:
            os.close(fd)
            raise
        return found, self._added(found.node, fd, flags, now)

    def _check_room(self) -> None:
        if len(self._opened) >= self._most:
            raise TooManyError

    def _added(self, node: int, fd: int, flags: int, now: int = 0) -> RecordedFile:
        try:
            kept = self._objects[node]
        except OSError:
            os.close(fd)  # (its last lookup was given back meanwhile)
            raise
        file = RecordedFile(self, node, kept, fd, flags, now)
        self._objects.note_opened(kept, fd, writes=file.writes)
        self._opened.add(file)
        return file

    def close_file(self, file: RecordedFile) -> None:
        """For `RecordedFile.close`."""
        self._opened.discard(file)
        self._objects.close_opened(file.kept, file.fd, writes=file.writes)
        self.share.give()

    # -- files that were open during a revert ---------------------------------------------------------------------

    @property
    def reversals(self) -> int:
        """See `Interceptor.reversals`."""
        return self._host.interceptor.reversals

    def keep_again(self, caller: Caller, file: RecordedFile, since: int) -> None:
        """For `RecordedFile.keep`."""
        if self._host.interceptor.was_reversed(file.fd, since):
            with self._objects.located(file.node, file.fd, moves=self._host.interceptor.moves) as thing:
                self.capture(caller, thing, os.fstat(thing.fd), risk_of(file.flags & ~os.O_TRUNC))

    # -- for attributes -------------------------------------------------------------------------------------------

    def reopened(self, fd: int, flags: int) -> int:
        """Open a regular file again. Raises `OSError`, and `LaterError` while a process has a lease on it."""
        try:
            opened = os.open(proc_path(fd), flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError as error:
            raise LaterError from error
        os.set_blocking(opened, True)
        return opened

    def before_loss(self, caller: Caller, file: RecordedFile, lost: int) -> None:
        """Called before an open file loses ``lost`` bytes. Raises `OSError` and `HeldError`."""
        if self._host.interceptor.is_guarded and lost > 0:
            with self._objects.located(file.node, file.fd) as thing:
                if thing.path is not None:
                    self._host.interceptor.before_loss(self._host.step(caller.thread), thing.place, thing.fd, lost)

    def capture(self, caller: Caller, thing: LocatedNode, found: os.stat_result, risk: Risk) -> None:
        """Keep what a file holds before that may change. Raises `OSError`, `LaterError` and `HeldError`."""
        interceptor, step = self._host.interceptor, self._host.step(caller.thread)
        if thing.path is None:
            if not interceptor.release_removed(step, thing.fd):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # who asks looks it up again
            return
        if not is_patient() and (found.st_size > SLOW_BYTES or takes_long(found)):
            raise LaterError
        interceptor.before_open(step, thing.place, thing.fd, risk)
