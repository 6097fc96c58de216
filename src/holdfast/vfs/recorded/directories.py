"""Directories of a recorded directory, listed."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.directory_entries import dirents
from holdfast.files.linux.metadata import proc_path
from holdfast.vfs.file_system import ROOT, TooManyError
from holdfast.vfs.recorded._open_descriptor import OpenDescriptor

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from holdfast.files.linux.directory_entries import Dirent
    from holdfast.vfs.fd_budget import FdShare
    from holdfast.vfs.file_system import Found
    from holdfast.vfs.recorded.node_registry import NodeRegistry

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class RecordedListing(OpenDescriptor):
    """`OpenedDirectory` of a recorded directory: the entries that were read last are kept, as those not told yet come
    next.
    """

    __slots__ = ("_entries", "_objects", "_reading", "_start", "node")

    def __init__(self, owner: RecordedDirectories, objects: NodeRegistry, node: int, fd: int) -> None:
        super().__init__(fd, owner.close_listing)
        self._objects = objects
        self.node = node
        self._reading = threading.Lock()
        self._start = 0
        self._entries: Sequence[Dirent] = ()

    @contextmanager
    def entries(self, offset: int) -> Generator[Iterator[Dirent]]:
        """See `OpenedDirectory`. One thread at a time reads them."""
        with self, self._reading:
            self._objects.check_served(self.node, self.fd)
            yield self._read(offset)

    def lookup(self, entry: Dirent) -> Found:
        """See `OpenedDirectory`."""
        return self._objects.enter(self.node, self.fd, entry.name)

    def sync(self, *, data_only: bool) -> None:
        """See `OpenedDirectory`."""
        with self:
            (os.fdatasync if data_only else os.fsync)(self.fd)

    def _read(self, offset: int) -> Generator[Dirent]:
        objects, fd, is_root = self._objects, self.fd, self.node == ROOT
        hidden = objects.hidden_inodes
        at = self._place(offset)
        while True:
            for number in range(at, len(self._entries)):
                entry = self._entries[number]
                if entry.inode in hidden and objects.hides(fd, entry.name):
                    continue
                if is_root and entry.name == b"..":
                    # Nothing above the root is revealed.
                    entry = entry._replace(inode=os.fstat(objects.root).st_ino)
                yield entry
            if self._entries:
                self._start = self._entries[-1].offset
            self._entries, at = dirents(fd), 0
            if not self._entries:
                return

    def _place(self, offset: int) -> int:
        """The place to continue at, in the kept entries."""
        if offset and offset == self._start:
            return 0
        if offset:
            for number, entry in enumerate(self._entries):
                if entry.offset == offset:
                    return number + 1
        # (A handle may be asked for the rest of a listing that another handle began, and that was cached.)
        os.lseek(self.fd, offset, os.SEEK_SET)
        self._start, self._entries = offset, ()
        return 0


class RecordedDirectories:
    """`Directories` of a recorded directory."""

    def __init__(self, objects: NodeRegistry, share: FdShare, *, most: int) -> None:
        """At most ``most`` directories may be open at a time, and as many as the ``share`` has room for."""
        self._objects = objects
        self._share = share
        self._most = most
        self._opened: set[RecordedListing] = set()

    def open(self, node: int) -> RecordedListing:
        """See `Directories`."""
        if len(self._opened) >= self._most:
            raise TooManyError
        with self._share.one_more(), self._objects.directory(node) as fd:
            listing = RecordedListing(self, self._objects, node, os.open(proc_path(fd), _DIRECTORY))
        self._opened.add(listing)
        return listing

    def close(self) -> None:
        """Close all directories."""
        for listing in tuple(self._opened):
            listing.close()

    def close_listing(self, listing: RecordedListing) -> None:
        """For `RecordedListing.close`."""
        self._opened.discard(listing)
        os.close(listing.fd)
        self._share.give()
