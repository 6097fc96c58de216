"""The requests about what objects are like: mode, owner, size, times, extended attributes; and the file system."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.syscalls import birth_time_at, syncfs
from holdfast.undo.safeguards.guard import Risk
from holdfast.wire.fuse import protocol_constants, replies
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.replies import StatX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bridge.passthrough._cache_validity import CacheValidity
    from holdfast.bridge.passthrough._file_requests import OpenRequests
    from holdfast.bridge.passthrough._host_interface import BridgeHost, Callers
    from holdfast.bridge.passthrough._node import LocatedNode
    from holdfast.bridge.passthrough._node_registry import NodeRegistry
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header

_SECOND: Final = 1_000_000_000
_UTIME_NOW: Final = (1 << 30) - 1
_UTIME_OMIT: Final = (1 << 30) - 2
_TIMES: Final = struct.Struct("=qqqq")
_AT_EMPTY_PATH: Final = 0x1000
_BASIC: Final = 0x7FF
"""``STATX_BASIC_STATS``"""
_BTIME: Final = 0x800
_TRUSTED: Final = "trusted."
_OWNER: Final = protocol_constants.FATTR_UID | protocol_constants.FATTR_GID
_DESCRIBED: Final = (
    _OWNER
    | protocol_constants.FATTR_MODE
    | protocol_constants.FATTR_ATIME
    | protocol_constants.FATTR_MTIME
    | protocol_constants.FATTR_ATIME_NOW
    | protocol_constants.FATTR_MTIME_NOW
)
_libc = ctypes.CDLL(None, use_errno=True)


class AttributeRequests:
    """See the module."""

    def __init__(
        self, host: BridgeHost, objects: NodeRegistry, shown: CacheValidity, callers: Callers, opening: OpenRequests
    ) -> None:
        self._host = host
        self._objects = objects
        self._shown = shown
        self._callers = callers
        self._opening = opening

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.GETATTR: self._getattr,
            Opcode.STATX: self._statx,
            Opcode.SETATTR: self._setattr,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.SETXATTR: self._setxattr,
            Opcode.REMOVEXATTR: self._removexattr,
            Opcode.STATFS: self._statfs,
            Opcode.SYNCFS: self._syncfs,
        }

    def _getattr(self, header: Header, body: request_bodies.GetAttr) -> Reply:
        if self._objects[header.node].is_directory:
            # (Asked for after each change of what is in it.)
            with self._objects.directory(header.node) as fd:
                return self._told(header, fd)
        with self._objects.descriptor(header.node, self._opening.descriptor(header, body.handle)) as fd:
            return self._told(header, fd)

    def _told(self, header: Header, fd: int) -> Reply:
        found = os.fstat(fd)
        return replies.attr(header.unique, self._shown.attributes(found), self._shown.valid(header.node))

    def _statx(self, header: Header, body: request_bodies.StatX) -> Reply:
        with self._objects.descriptor(header.node, self._opening.descriptor(header, body.handle)) as fd:
            found, born = os.fstat(fd), birth_time_at(fd, b"")
        told = self._shown.attributes(found)
        mask = _BASIC if born is None else _BASIC | _BTIME
        answer = StatX(
            mask,
            told.block_bytes,
            0,
            told.links,
            told.uid,
            told.gid,
            told.mode,
            told.inode,
            told.size,
            told.blocks,
            0,
            divmod(found.st_atime_ns, _SECOND),
            divmod(born or 0, _SECOND),
            divmod(found.st_ctime_ns, _SECOND),
            divmod(found.st_mtime_ns, _SECOND),
            (os.major(found.st_rdev), os.minor(found.st_rdev)),
            (os.major(found.st_dev), os.minor(found.st_dev)),
        )
        return replies.statx(header.unique, answer, self._shown.valid(header.node))

    # -- changes --------------------------------------------------------------------------------------------------

    def _setattr(self, header: Header, body: request_bodies.SetAttr) -> Reply:
        handle = self._opening.descriptor(header, body.handle)
        with self._objects.located(header.node, handle) as thing:
            if body.valid & protocol_constants.FATTR_SIZE:
                self._resize(header, body, thing, handle)
            if body.valid & _DESCRIBED:
                self._describe(header, body, thing)
            return self._told(header, thing.fd)

    def _resize(self, header: Header, body: request_bodies.SetAttr, thing: LocatedNode, handle: int | None) -> None:
        fd = handle
        if fd is None:
            found = os.fstat(thing.fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            fd = self._opening.reopened(thing.fd, os.O_WRONLY)
            try:
                self._opening.capture(header, thing, found, Risk(cut=body.size))
            except BaseException:
                os.close(fd)
                raise
        else:
            self._opening.before_loss(header, header.node, fd, os.fstat(fd).st_size - body.size)
        try:
            with self._callers.stripping(header, body.valid & protocol_constants.FATTR_KILL_SUIDGID):
                os.ftruncate(fd, body.size)
        finally:
            if handle is None:
                os.close(fd)

    def _describe(self, header: Header, body: request_bodies.SetAttr, thing: LocatedNode) -> None:
        self.note(header, thing)
        if body.valid & _OWNER:
            uid = body.uid if body.valid & protocol_constants.FATTR_UID else protocol_constants.NO_ID
            gid = body.gid if body.valid & protocol_constants.FATTR_GID else protocol_constants.NO_ID
            _check(_libc.fchownat(thing.fd, b"", ctypes.c_uint(uid), ctypes.c_uint(gid), _AT_EMPTY_PATH))
        if body.valid & protocol_constants.FATTR_MODE:
            os.chmod(proc_path(thing.fd), body.permissions)
        accessed = _time(body.valid, protocol_constants.FATTR_ATIME, protocol_constants.FATTR_ATIME_NOW, body.atime_ns)
        modified = _time(body.valid, protocol_constants.FATTR_MTIME, protocol_constants.FATTR_MTIME_NOW, body.mtime_ns)
        if (accessed[1], modified[1]) != (_UTIME_OMIT, _UTIME_OMIT):
            _check(_libc.utimensat(thing.fd, b"", _TIMES.pack(*accessed, *modified), _AT_EMPTY_PATH))

    def note(self, header: Header, thing: LocatedNode) -> None:
        """Keep what an object is like, before that changes. Raises `OSError`."""
        interceptor, step = self._host.interceptor, self._host.step(header.pid)
        if thing.path is not None:
            interceptor.before_metadata_change(step, thing.place, thing.fd)
        elif not interceptor.release_removed(step, thing.fd):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # the kernel looks it up again

    # -- extended attributes --------------------------------------------------------------------------------------

    def _getxattr(self, header: Header, body: request_bodies.GetXattr) -> Reply:
        with self._objects.descriptor(header.node) as fd:
            return _sized(header, body, os.getxattr(proc_path(fd), body.name))

    def _listxattr(self, header: Header, body: request_bodies.GetXattr) -> Reply:
        with self._objects.descriptor(header.node) as fd:
            names = os.listxattr(proc_path(fd))
        shown = [os.fsencode(name) + b"\0" for name in names if header.uid == 0 or not name.startswith(_TRUSTED)]
        return _sized(header, body, b"".join(shown))

    def _setxattr(self, header: Header, body: request_bodies.SetXattr) -> Reply:
        def perform(fd: int) -> None:
            os.setxattr(proc_path(fd), body.name, body.value, body.flags)
            if body.extended_flags & protocol_constants.SETXATTR_ACL_KILL_SGID:
                os.chmod(proc_path(fd), stat.S_IMODE(os.fstat(fd).st_mode) & ~stat.S_ISGID)

        return self._change(header, perform)

    def _removexattr(self, header: Header, body: request_bodies.Name) -> Reply:
        return self._change(header, lambda fd: os.removexattr(proc_path(fd), body.name))

    def _change(self, header: Header, perform: Callable[[int], None]) -> Reply:
        with self._objects.located(header.node) as thing:
            self.note(header, thing)
            perform(thing.fd)
        return replies.done(header.unique)

    # -- the file system ------------------------------------------------------------------------------------------

    def _statfs(self, header: Header, _: request_bodies.Nothing) -> Reply:
        with self._objects.descriptor(header.node) as fd:
            return replies.statfs(header.unique, os.statvfs(proc_path(fd)))

    def _syncfs(self, header: Header, _: request_bodies.Nothing) -> Reply:
        syncfs(self._host.root_fd)
        return replies.done(header.unique)


def _time(valid: int, given: int, now: int, nanoseconds: int) -> tuple[int, int]:
    """Seconds and nanoseconds, as utimensat(2) takes them."""
    if valid & now:
        return 0, _UTIME_NOW
    return divmod(nanoseconds, _SECOND) if valid & given else (0, _UTIME_OMIT)


def _sized(header: Header, body: request_bodies.GetXattr, value: bytes) -> Reply:
    if not body.size:
        return replies.size(header.unique, len(value))
    if len(value) > body.size:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    return replies.data(header.unique, value)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
