"""The requests about what nodes are like: mode, owner, size, times, extended attributes; and the file system."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from holdfast.vfs.file_system import NOW, AttributeChange
from holdfast.wire.fuse import protocol_constants, replies
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.replies import StatX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.fuse._file_requests import FileRequests
    from holdfast.bridge.fuse.kernel_caches import KernelCaches
    from holdfast.bridge.fuse.served_file_system import FuseCallers
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import Attributes
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header

_SECOND: Final = 1_000_000_000
_BASIC: Final = 0x7FF
"""``STATX_BASIC_STATS``"""
_BTIME: Final = 0x800


class AttributeRequests:
    """See the module."""

    def __init__(self, attributes: Attributes, caches: KernelCaches, callers: FuseCallers, files: FileRequests) -> None:
        self._attributes = attributes
        self._caches = caches
        self._callers = callers
        self._files = files

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
        file = None if body.handle is None else self._files.file(header.node, body.handle)
        return self._told(header, self._attributes.status(header.node, file))

    def _told(self, header: Header, status: os.stat_result) -> Reply:
        return replies.attr(header.unique, self._caches.attributes(status), self._caches.validity(header.node))

    def _statx(self, header: Header, body: request_bodies.StatX) -> Reply:
        file = None if body.handle is None else self._files.file(header.node, body.handle)
        found, born = self._attributes.status(header.node, file), self._attributes.birth_ns(header.node, file)
        told = self._caches.attributes(found)
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
        return replies.statx(header.unique, answer, self._caches.validity(header.node))

    def _setattr(self, header: Header, body: request_bodies.SetAttr) -> Reply:
        valid = body.valid
        change = AttributeChange(
            body.permissions if valid & protocol_constants.FATTR_MODE else None,
            body.uid if valid & protocol_constants.FATTR_UID else None,
            body.gid if valid & protocol_constants.FATTR_GID else None,
            body.size if valid & protocol_constants.FATTR_SIZE else None,
            _time(valid, protocol_constants.FATTR_ATIME, protocol_constants.FATTR_ATIME_NOW, body.atime_ns),
            _time(valid, protocol_constants.FATTR_MTIME, protocol_constants.FATTR_MTIME_NOW, body.mtime_ns),
        )
        file = None if body.handle is None else self._files.file(header.node, body.handle)
        strips = bool(valid & protocol_constants.FATTR_KILL_SUIDGID)
        caller = self._callers.of(header)
        return self._told(header, self._attributes.change(caller, header.node, change, file, strips=strips))

    def _getxattr(self, header: Header, body: request_bodies.GetXattr) -> Reply:
        return _sized(header, body, self._attributes.get_xattr(header.node, body.name))

    def _listxattr(self, header: Header, body: request_bodies.GetXattr) -> Reply:
        names = self._attributes.list_xattrs(self._callers.of(header), header.node)
        return _sized(header, body, b"".join(name + b"\0" for name in names))

    def _setxattr(self, header: Header, body: request_bodies.SetXattr) -> Reply:
        self._attributes.set_xattr(
            self._callers.of(header),
            header.node,
            body.name,
            body.value,
            body.flags,
            clears_setgid=bool(body.extended_flags & protocol_constants.SETXATTR_ACL_KILL_SGID),
        )
        return replies.done(header.unique)

    def _removexattr(self, header: Header, body: request_bodies.Name) -> Reply:
        self._attributes.remove_xattr(self._callers.of(header), header.node, body.name)
        return replies.done(header.unique)

    def _statfs(self, header: Header, _: request_bodies.Nothing) -> Reply:
        return replies.statfs(header.unique, self._attributes.usage(header.node))

    def _syncfs(self, header: Header, _: request_bodies.Nothing) -> Reply:
        self._attributes.sync()
        return replies.done(header.unique)


def _time(valid: int, given: int, now: int, nanoseconds: int) -> int | None:
    if valid & now:
        return NOW
    return nanoseconds if valid & given else None


def _sized(header: Header, body: request_bodies.GetXattr, value: bytes) -> Reply:
    if not body.size:
        return replies.size(header.unique, len(value))
    if len(value) > body.size:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    return replies.data(header.unique, value)
