"""The attributes of objects of a recorded directory: mode, owner, size, times, extended attributes."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.metadata import DERIVED, proc_path
from holdfast.files.linux.syscalls import birth_time_at, syncfs
from holdfast.undo.safeguards.guard import Risk
from holdfast.vfs.file_system import NOW
from holdfast.vfs.recorded.files import RecordedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.vfs.file_system import AttributeChange, Caller, OpenedFile
    from holdfast.vfs.recorded.callers import LogNames, RecordingHost
    from holdfast.vfs.recorded.files import RecordedFiles
    from holdfast.vfs.recorded.node import LocatedNode
    from holdfast.vfs.recorded.node_registry import NodeRegistry

_SECOND: Final = 1_000_000_000
_UTIME_NOW: Final = (1 << 30) - 1
_UTIME_OMIT: Final = (1 << 30) - 2
_TIMES: Final = struct.Struct("=qqqq")
_AT_EMPTY_PATH: Final = 0x1000
_NO_ID: Final = (1 << 32) - 1
_TRUSTED: Final = "trusted."
_libc = ctypes.CDLL(None, use_errno=True)


class RecordedAttributes:
    """`Attributes` of a recorded directory."""

    def __init__(self, host: RecordingHost, objects: NodeRegistry, files: RecordedFiles, kept: LogNames) -> None:
        self._host = host
        self._objects = objects
        self._files = files
        self._kept = kept

    def status(self, node: int, file: OpenedFile | None = None) -> os.stat_result:
        """See `Attributes`."""
        if not isinstance(file, RecordedFile):
            return self._objects.status(node)
        with file:
            return os.fstat(file.fd)

    def links(self, status: os.stat_result) -> int:
        """See `Attributes`. Names that it has in the undo log are not counted."""
        hidden = self._kept.names_of(status) if status.st_nlink else 0
        if not hidden:
            return status.st_nlink
        # (Further links of a directory are not its names.)
        return 0 if stat.S_ISDIR(status.st_mode) else max(status.st_nlink - hidden, 0)

    def birth_ns(self, node: int, file: OpenedFile | None = None) -> int | None:
        """See `Attributes`."""
        with _used(file) as handle, self._objects.descriptor(node, handle) as fd:
            return birth_time_at(fd, b"")

    # -- changes --------------------------------------------------------------------------------------------------

    def change(
        self, caller: Caller, node: int, change: AttributeChange, file: OpenedFile | None = None, *, strips: bool
    ) -> os.stat_result:
        """See `Attributes`."""
        opened = file if isinstance(file, RecordedFile) else None
        permissions, uid, gid, size, *times = change
        moves = self._host.interceptor.moves
        with _used(file) as handle, self._objects.located(node, handle, moves=moves) as thing:
            if size is not None:
                self._resize(caller, size, thing, opened, strips=strips)
            if (permissions, uid, gid, *times) != (None,) * 5:
                self._describe(caller, change, thing)
            return os.fstat(thing.fd)

    def _resize(
        self, caller: Caller, size: int, thing: LocatedNode, file: RecordedFile | None, *, strips: bool
    ) -> None:
        if file is None:
            found = os.fstat(thing.fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            fd = self._files.reopened(thing.fd, os.O_WRONLY)
            try:
                self._files.capture(caller, thing, found, Risk(cut=size))
            except BaseException:
                os.close(fd)
                raise
        else:
            fd = file.fd
            file.keep(caller)
            self._files.before_loss(caller, file, os.fstat(fd).st_size - size)
        try:
            with self._files.credited.stripping(caller, strips):
                os.ftruncate(fd, size)
        finally:
            if file is None:
                os.close(fd)

    def _describe(self, caller: Caller, change: AttributeChange, thing: LocatedNode) -> None:
        self._note(caller, thing)
        if change.uid is not None or change.gid is not None:
            uid = _NO_ID if change.uid is None else change.uid
            gid = _NO_ID if change.gid is None else change.gid
            _check(_libc.fchownat(thing.fd, b"", ctypes.c_uint(uid), ctypes.c_uint(gid), _AT_EMPTY_PATH))
        if change.permissions is not None:
            os.chmod(proc_path(thing.fd), change.permissions)
        accessed, modified = _time(change.accessed_ns), _time(change.modified_ns)
        if (accessed[1], modified[1]) != (_UTIME_OMIT, _UTIME_OMIT):
            _check(_libc.utimensat(thing.fd, b"", _TIMES.pack(*accessed, *modified), _AT_EMPTY_PATH))

    def _note(self, caller: Caller, thing: LocatedNode) -> None:
        """Keep what an object is like, before that changes. Raises `OSError`."""
        interceptor, step = self._host.interceptor, self._host.step(caller.thread)
        if thing.path is not None:
            interceptor.before_metadata_change(step, thing.place, thing.fd)
        elif not interceptor.release_removed(step, thing.fd):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # who asks looks it up again

    # -- extended attributes --------------------------------------------------------------------------------------

    def get_xattr(self, node: int, name: bytes) -> bytes:
        """See `Attributes`."""
        borrowed = self._objects.descriptor(node)
        with borrowed as fd:
            return os.getxattr(fd if borrowed.is_open else proc_path(fd), name)

    def list_xattrs(self, caller: Caller, node: int) -> list[bytes]:
        """See `Attributes`."""
        with self._objects.descriptor(node) as fd:
            names = os.listxattr(proc_path(fd))
        return [os.fsencode(name) for name in names if caller.uid == 0 or not name.startswith(_TRUSTED)]

    def set_xattr(
        self, caller: Caller, node: int, name: bytes, value: memoryview, flags: int, *, clears_setgid: bool
    ) -> None:
        """See `Attributes`."""

        def perform(path: str) -> None:
            os.setxattr(path, name, value, flags)
            if clears_setgid:
                os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~stat.S_ISGID)

        self._change_xattr(caller, node, name, perform)

    def remove_xattr(self, caller: Caller, node: int, name: bytes) -> None:
        """See `Attributes`."""
        self._change_xattr(caller, node, name, lambda path: os.removexattr(path, name))

    def _change_xattr(self, caller: Caller, node: int, name: bytes, perform: Callable[[str], None]) -> None:
        if os.fsdecode(name) in DERIVED:
            # (Nothing could restore the old value.)
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        with self._objects.located(node, moves=self._host.interceptor.moves) as thing:
            self._note(caller, thing)
            perform(proc_path(thing.fd))

    # -- the file system ------------------------------------------------------------------------------------------

    def usage(self, node: int) -> os.statvfs_result:
        """See `Attributes`."""
        with self._objects.descriptor(node) as fd:
            return os.statvfs(proc_path(fd))

    def sync(self) -> None:
        """See `Attributes`."""
        syncfs(self._host.root_fd)


@contextmanager
def _used(file: OpenedFile | None) -> Generator[int | None]:
    """The descriptor of an open file, if it is one, which is not closed meanwhile."""
    if not isinstance(file, RecordedFile):
        yield None
        return
    with file:
        yield file.fd


def _time(nanoseconds: int | None) -> tuple[int, int]:
    """Seconds and nanoseconds, as utimensat(2) takes them."""
    if nanoseconds is None:
        return 0, _UTIME_OMIT
    return (0, _UTIME_NOW) if nanoseconds == NOW else divmod(nanoseconds, _SECOND)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
