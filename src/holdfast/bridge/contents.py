"""The requests for what open files hold, as far as the kernel does not read and write it itself.

What would be lost was kept when the file was opened (`holdfast.bridge.opening`).
"""

from __future__ import annotations

import ctypes
import os
import stat
from typing import TYPE_CHECKING, Final

from holdfast.undo.safeguard import LOSING_MODES
from holdfast.wire.fuse import kernel, replies
from holdfast.wire.fuse.kernel import Opcode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.host import Callers
    from holdfast.bridge.opening import Opening
    from holdfast.bridge.server import Operation, Reply
    from holdfast.wire.fuse import bodies
    from holdfast.wire.fuse.bodies import Header

_SET_IDS: Final = stat.S_ISUID | stat.S_ISGID
_libc = ctypes.CDLL(None, use_errno=True)


class ContentOf:
    """See the module."""

    def __init__(self, opening: Opening, callers: Callers) -> None:
        self._opening = opening
        self._callers = callers

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.LSEEK: self._lseek,
            Opcode.FSYNC: self._fsync,
            Opcode.FALLOCATE: self._fallocate,
            Opcode.COPY_FILE_RANGE: self._copy,
            Opcode.COPY_FILE_RANGE_64: self._copy,
        }

    def _read(self, header: Header, body: bodies.Read) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        return replies.data(header.unique, os.pread(handle.fd, body.size, body.offset))

    def _write(self, header: Header, body: bodies.Write) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        appends = body.flags & os.O_APPEND and not body.write_flags & kernel.WRITE_CACHE
        strips = body.write_flags & kernel.WRITE_KILL_SUIDGID and os.fstat(handle.fd).st_mode & _SET_IDS
        with self._callers.stripping(header, strips):
            count = os.pwritev(handle.fd, (body.data,), body.offset, os.RWF_APPEND if appends else 0)
        return replies.written(header.unique, count)

    def _lseek(self, header: Header, body: bodies.Seek) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        return replies.position(header.unique, os.lseek(handle.fd, body.offset, body.whence))

    def _fsync(self, header: Header, body: bodies.Sync) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        (os.fdatasync if body.data_only else os.fsync)(handle.fd)
        return replies.done(header.unique)

    def _fallocate(self, header: Header, body: bodies.Allocate) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        if body.mode & LOSING_MODES:
            size = os.fstat(handle.fd).st_size
            self._opening.losing(header, header.node, handle.fd, min(body.length, size - body.offset))
        offset, length = ctypes.c_int64(body.offset), ctypes.c_int64(body.length)
        with self._callers.stripping(header, header.uid):
            failed = _libc.fallocate(handle.fd, body.mode, offset, length)
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return replies.done(header.unique)

    def _copy(self, header: Header, body: bodies.CopyRange) -> Reply:
        source = self._opening.handle(header.node, body.handle)
        target = self._opening.handle(body.to_node, body.to_handle)
        with self._callers.stripping(header, header.uid):
            count = os.copy_file_range(source.fd, target.fd, body.length, body.offset, body.to_offset)
        told = replies.written if header.opcode == Opcode.COPY_FILE_RANGE else replies.copied
        return told(header.unique, count)
