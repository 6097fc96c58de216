"""The kernel's caches for a recorded directory, whose files it may read and write itself."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from holdfast.bridge.fuse._backing_files import BackingFiles
from holdfast.bridge.fuse._cache_invalidation import CacheInvalidator
from holdfast.bridge.fuse._kernel_node import KernelNode
from holdfast.bridge.fuse._listing_cache import CachedListing, LiveListing, drops_when_opened, is_exact
from holdfast.bridge.fuse.kernel_caches import OpenedByKernel
from holdfast.vfs.recorded.directories import RecordedListing
from holdfast.vfs.recorded.files import RecordedFile
from holdfast.vfs.recorded.recorded_directory import RecordedDirectory
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.negotiation import WANTED
from holdfast.wire.fuse.protocol_constants import FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, FOPEN_PASSTHROUGH, Init
from holdfast.wire.fuse.replies import NEVER, Attributes, NodeEntry, Validity, new_entry

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.bridge.server.transport import Reply, Transport
    from holdfast.vfs.file_system import Caller, Found, OpenedDirectory, OpenedFile
    from holdfast.vfs.recorded.callers import LogNames, RecordingHost
    from holdfast.wire.fuse.negotiation import Terms

_LOCAL_LOCKS: Final = Init.POSIX_LOCKS | Init.FLOCK_LOCKS
_LONG: Final = Validity(60)
BRIEFLY: Final = Validity(1)
"""Validity for a kernel that is not told of changes."""
_PART: Final = 0.75
_PASSED_THROUGH: Final = FOPEN_PASSTHROUGH
_PLAIN: Final = OpenedByKernel()


class LiveCaches:
    """`KernelCaches` of a recorded directory."""

    def __init__(
        self,
        host: RecordingHost,
        kept: LogNames,
        transport: Transport,
        *,
        passes: bool = True,
        is_told: bool = False,
        is_read_only: bool = False,
    ) -> None:
        """``transport`` is that of its server; if it ``passes``, the kernel reads and writes itself where it can.
        ``is_told``: the owner reports all changes by others to `invalidator` at once. Then the kernel may cache names,
        and attributes of files that are not written to, for long (but not for ever, as a change may just have preceded
        the request). ``is_read_only``: see `RecordedDirectory`.
        """
        self.needs_no_open: Final = False
        self.forgets: Final = transport.notifies
        self.wished: Final = WANTED & ~_LOCAL_LOCKS | (
            Init.POSIX_ACL | Init.PASSTHROUGH if os.geteuid() == 0 else Init(0)
        )
        # (The root of a guest is not a root of this system, for which a device would be the hardware.)
        self.directory = RecordedDirectory(
            host, kept, node_type=KernelNode, makes_devices=transport.is_local, is_read_only=is_read_only
        )
        self._links = self.directory.attributes.links
        self._objects = objects = self.directory.objects
        self._device = transport.backing_device if passes else None
        self._backings = BackingFiles(None)
        self.invalidator = CacheInvalidator(transport.notify, host.root_fd, objects)
        objects.crowded = self.invalidator.thin_out
        self._is_told = is_told
        self._valid = _LONG if is_told else BRIEFLY
        self._lists = is_told and is_exact(host.root_fd) and drops_when_opened(os.uname().release)

    def begin(self, terms: Terms) -> Collection[int]:
        """See `KernelCaches`."""
        self.invalidator.expires = bool(terms.flags & Init.HAS_EXPIRE_ONLY)
        self._backings = BackingFiles(self._device if terms.flags & Init.PASSTHROUGH else None)
        return ()

    # -- names and attributes -------------------------------------------------------------------------------------

    def missing(self, unique: int) -> Reply:
        """See `KernelCaches`. Unless changes by others are reported, the name may exist at any moment."""
        if self._is_told:
            return replies.negative(unique, self._valid)
        return replies.error(unique, errno.ENOENT)

    def attributes(self, status: os.stat_result) -> Attributes:
        """See `KernelCaches`."""
        return replies.attributes(status, links=self._links(status))

    def validity(self, node: int) -> Validity:
        """See `KernelCaches`: not while a process may write, as no event reports writes through a mapping."""
        return NEVER if self._objects.is_written(node) else self._valid

    def entry(self, found: Found) -> NodeEntry:
        """See `KernelCaches`."""
        node, status = found
        # (An object found by its only name has no name in the log.)
        links = 1 if status.st_nlink == 1 else self._links(status)
        attributes = replies.attributes(status, links=links)
        return new_entry(NodeEntry, (node, attributes, self._valid, self.validity(node), 0))

    def created(self, found: Found) -> NodeEntry:
        """See `KernelCaches`: it may be cached (the kernel looks at it at once), as nothing can be written through a
        mapping before the file has grown, which the kernel sees.
        """
        node, status = found
        valid = self.validity(node) if status.st_size else self._valid
        return NodeEntry(node, self.attributes(status), self._valid, valid, 0)

    # -- files ----------------------------------------------------------------------------------------------------

    def open_file(self, caller: Caller, node: int, file: OpenedFile) -> OpenedByKernel:
        """See `KernelCaches`."""
        assert isinstance(file, RecordedFile)
        kept = self._kept(node)
        above = self._objects.get(kept.parent)
        if isinstance(above, KernelNode) and above.listed is not None:
            above.listed.read += 1
        stripping = self.directory.credited.stripping(caller, caller.uid)
        backing = self._backings.take(kept, file.fd, stripping, strips=bool(caller.uid))
        if not backing:
            return _PLAIN
        try:
            if file.writes and caller.uid and not kept.strips:
                # Root opened it, whose writes do not clear set-id bits; so these writes would not either.
                _strip(file.fd)
            if _may_map(file.flags):
                self.invalidator.note_mappable(node)
        except BaseException:
            self._backings.give(kept, backing)
            raise
        return OpenedByKernel(_PASSED_THROUGH, backing)

    def close_file(self, node: int, file: OpenedFile, opened: OpenedByKernel) -> None:
        """See `KernelCaches`."""
        assert isinstance(file, RecordedFile)
        kept = file.kept
        assert isinstance(kept, KernelNode)
        self._backings.give(kept, opened.backing)
        if opened.backing and _may_map(file.flags):
            self._objects.note_mapped(node, file.fd)

    # -- directories ----------------------------------------------------------------------------------------------

    def open_directory(self, node: int, directory: OpenedDirectory) -> tuple[int, LiveListing | None]:
        """See `KernelCaches`."""
        assert isinstance(directory, RecordedListing)
        kept = self._kept(node)
        if not (self._lists and kept.is_local):
            # (There would be no way to report that the cache is out of date.)
            return 0, None
        reader = LiveListing(CachedListing.of(kept), directory.fd, self._valid.seconds * _PART)
        return FOPEN_CACHE_DIR | (FOPEN_KEEP_CACHE if reader.may_be_kept else 0), reader

    def close(self) -> None:
        """Close all that is open; the transport must be closed, or served no more."""
        self.directory.close()

    def _kept(self, node: int) -> KernelNode:
        kept = self._objects[node]
        assert isinstance(kept, KernelNode)
        return kept


def _may_map(flags: int) -> bool:
    """Whether a file opened so can be written to through a mapping, unreported by the kernel with passthrough."""
    return flags & os.O_ACCMODE == os.O_RDWR


def _strip(fd: int) -> None:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & (stat.S_ISUID | stat.S_ISGID):
        os.fchmod(fd, mode & ~(stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0)))
