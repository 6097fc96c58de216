"""The kernel's caches for a file system that never changes: everything may be cached for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.bridge.fuse.kernel_caches import OpenedByKernel
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.protocol_constants import FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, Init, Opcode
from holdfast.wire.fuse.replies import FOREVER, Attributes, NodeEntry, Validity

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import Caller, Found, OpenedDirectory, OpenedFile
    from holdfast.wire.fuse.negotiation import Terms

_OPENED: Final = OpenedByKernel(FOPEN_KEEP_CACHE)


class FrozenCaches:
    """`KernelCaches` of a file system whose nodes can be used without a lookup or an open.

    There are no file handles: overlayfs would use one to find the origin of a copied file, and then fail to check
    whether that still has its name (ESTALE).
    """

    def __init__(self) -> None:
        self.wished: Final = (
            Init.ASYNC_READ
            | Init.BIG_WRITES
            | Init.DO_READDIRPLUS
            | Init.PARALLEL_DIROPS
            | Init.MAX_PAGES
            | Init.CACHE_SYMLINKS
            | Init.NO_OPEN_SUPPORT
            | Init.NO_OPENDIR_SUPPORT
            | Init.NO_EXPORT_SUPPORT
        )
        self.needs_no_open: Final = True
        self.forgets: Final = False

    def begin(self, terms: Terms) -> Collection[int]:
        """See `KernelCaches`. GETXATTR is refused, so that the kernel asks only once: it would ask for each file that
        `ls -l` lists. The same goes for opening, where the kernel accepts that.
        """
        omitted = [Opcode.GETXATTR]
        if terms.flags & Init.NO_OPEN_SUPPORT:
            omitted.append(Opcode.OPEN)
        if terms.flags & Init.NO_OPENDIR_SUPPORT:
            omitted.append(Opcode.OPENDIR)
        return omitted

    def missing(self, unique: int) -> Reply:
        """See `KernelCaches`."""
        return replies.negative(unique, FOREVER)

    def attributes(self, status: os.stat_result) -> Attributes:
        """See `KernelCaches`."""
        return replies.attributes(status)

    def validity(self, node: int) -> Validity:
        """See `KernelCaches`."""
        del node
        return FOREVER

    def entry(self, found: Found) -> NodeEntry:
        """See `KernelCaches`."""
        return NodeEntry(found.node, replies.attributes(found.status), FOREVER, FOREVER)

    created = entry

    def open_file(self, caller: Caller, node: int, file: OpenedFile) -> OpenedByKernel:
        """See `KernelCaches`."""
        del caller, node, file
        return _OPENED

    def close_file(self, node: int, file: OpenedFile, opened: OpenedByKernel) -> None:
        """See `KernelCaches`."""

    def open_directory(self, node: int, directory: OpenedDirectory) -> tuple[int, None]:
        """See `KernelCaches`."""
        del node, directory
        return FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR, None
