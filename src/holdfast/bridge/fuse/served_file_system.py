"""A file system, served to a kernel: requests become calls, and what these return or raise becomes replies."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from holdfast.bridge.fuse._attribute_requests import AttributeRequests
from holdfast.bridge.fuse._directory_requests import DirectoryRequests
from holdfast.bridge.fuse._file_requests import FileRequests
from holdfast.bridge.fuse._name_requests import NameRequests
from holdfast.vfs.file_system import Caller
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.negotiation import Wishes
from holdfast.wire.fuse.protocol_constants import Init, Opcode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.fuse.kernel_caches import KernelCaches
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import FileSystem
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.request_bodies import Header

MOST_HANDLES: Final = 1 << 16
_READS: Final = frozenset(
    (
        *(Opcode.LOOKUP, Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.READLINK),
        *(Opcode.GETATTR, Opcode.STATX, Opcode.GETXATTR, Opcode.LISTXATTR, Opcode.STATFS),
        *(Opcode.OPEN, Opcode.READ, Opcode.LSEEK, Opcode.RELEASE, Opcode.FSYNC, Opcode.SYNCFS),
        *(Opcode.OPENDIR, Opcode.READDIR, Opcode.READDIRPLUS, Opcode.RELEASEDIR, Opcode.FSYNCDIR),
        *(Opcode.INTERRUPT, Opcode.IOCTL),
    )
)
"""Requests that change nothing; OPEN only without `_WRITING`."""
_WRITING: Final = os.O_ACCMODE | os.O_TRUNC


class FuseCallers:
    """The caller, as in requests."""

    def __init__(self, *, masks: bool) -> None:
        """``masks``: their umask is left to us (`Init.DONT_MASK`)."""
        self._masks = masks

    @staticmethod
    def of(header: Header) -> Caller:
        """The caller of a request that makes nothing."""
        return Caller(header.pid, header.uid, header.gid, (), 0)

    def making(self, header: Header, umask: int, extras: request_bodies.Extras) -> Caller:
        """The caller of one that does."""
        return Caller(header.pid, header.uid, header.gid, extras.groups, umask if self._masks else 0)


class ServedFileSystem:
    """`FuseOperations` of a file system."""

    def __init__(self, file_system: FileSystem, caches: KernelCaches) -> None:
        self._file_system = file_system
        self._caches = caches
        self._files: FileRequests | None = None
        self._directories = DirectoryRequests(file_system.directories, caches, most=MOST_HANDLES)

    def wishes(self) -> Wishes:
        """See `FuseOperations.wishes`."""
        return Wishes(flags=self._caches.wished)

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        """See `FuseOperations.operations`."""
        served, caches = self._file_system, self._caches
        callers = FuseCallers(masks=bool(terms.flags & Init.DONT_MASK))
        omitted = caches.begin(terms)
        self._files = files = FileRequests(served.files, caches, callers, most=MOST_HANDLES)
        answered: dict[int, Operation] = {
            **NameRequests(served.names, caches, callers).operations(),
            **AttributeRequests(served.attributes, caches, callers, files).operations(),
            **files.operations(),
            **self._directories.operations(),
            Opcode.INTERRUPT: _go_on,
            Opcode.IOCTL: _no_ioctl,
        }
        if served.is_read_only:
            opens = answered[Opcode.OPEN]
            answered |= {opcode: _refuse for opcode in answered if opcode not in _READS}
            answered[Opcode.OPEN] = lambda header, body: (_refuse if body.flags & _WRITING else opens)(header, body)
        return {opcode: operation for opcode, operation in answered.items() if opcode not in omitted}

    def close(self) -> None:
        """Close all that is open; the transport must be closed, or served no more."""
        if self._files is not None:
            self._files.close()
        self._directories.close()


def _go_on(_: Header, _body: request_bodies.Interrupt) -> Reply:
    """A caller that gives up still waits, for a moment: work that has begun is finished."""


def _no_ioctl(header: Header, _: request_bodies.Ioctl) -> Reply:
    return replies.no_ioctl(header.unique)


def _refuse(header: Header, _: object) -> Reply:
    return replies.error(header.unique, errno.EROFS)
