"""The requests that list directories. The kernel keeps what it was told, where it is told of what others change."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from holdfast.bridge.passthrough._listing_cache import is_settled, stamp
from holdfast.files.linux.directory_entries import dirents
from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import RefusedError
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.node_table import Handles
from holdfast.wire.fuse.protocol_constants import FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, OFFSET_MAX, ROOT, Opcode
from holdfast.wire.fuse.replies import DirectoryListing, OpenedFile
from holdfast.wire.fuse.request_errors import TOO_MANY

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from holdfast.bridge.passthrough._cache_validity import CacheValidity
    from holdfast.bridge.passthrough._fd_budget import MountFdBudget
    from holdfast.bridge.passthrough._listing_cache import CachedListing
    from holdfast.bridge.passthrough._node_registry import NodeRegistry
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.files.linux.directory_entries import Dirent
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DOTS: Final = (b".", b"..")
_TYPE_SHIFT: Final = 12
"""From ``DT_*`` to a mode."""


class _Directory:
    """One that is open, and the entries that were read last: what was not told of them comes next."""

    __slots__ = ("_entries", "_start", "fd", "listed", "lock")

    def __init__(self, fd: int, listed: CachedListing | None) -> None:
        self.fd = fd
        self.listed = listed
        """None if the kernel keeps nothing of it."""
        self.lock = threading.Lock()
        self._start = 0
        self._entries: Sequence[Dirent] = ()

    def entries(self, offset: int) -> Generator[Dirent]:
        """Those from an offset on: 0, or that of an entry told before. Needs the lock."""
        at = self._place(offset)
        while True:
            for number in range(at, len(self._entries)):
                yield self._entries[number]
            if self._entries:
                self._start = self._entries[-1].offset
            self._entries, at = dirents(self.fd), 0
            if not self._entries:
                return

    def _place(self, offset: int) -> int:
        """Where to go on, in the entries that are at hand."""
        if offset and offset == self._start:
            return 0
        if offset:
            for number, entry in enumerate(self._entries):
                if entry.offset == offset:
                    return number + 1
        # (A handle may be asked for the rest of what was told to another one, and kept.)
        os.lseek(self.fd, offset, os.SEEK_SET)
        self._start, self._entries = offset, ()
        return 0


class ListingRequests:
    """See the module."""

    def __init__(self, objects: NodeRegistry, shown: CacheValidity, share: MountFdBudget, *, most: int) -> None:
        """At most ``most`` directories may be open at a time, and as many as the mount's ``share`` has room for."""
        self._objects = objects
        self._shown = shown
        self._share = share
        self._handles: Handles[_Directory] = Handles(most)

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.FSYNCDIR: self._fsyncdir,
        }

    def close(self) -> None:
        """Close all directories."""
        for directory in self._handles.clear():
            self._close(directory)

    def _opendir(self, header: Header, _: request_bodies.Open) -> Reply:
        self._handles.check_room()
        with self._share.one_more():
            with self._objects.directory(header.node) as fd:
                opened = os.open(proc_path(fd), _DIRECTORY)
            try:
                kept = self._objects.listing(header.node) if self._shown.is_told else None
                directory = _Directory(opened, kept)
                number = self._handles.add(header.node, directory)
            except BaseException:
                os.close(opened)
                raise
        flags = 0
        if kept is not None:
            flags = FOPEN_CACHE_DIR
            if kept.note_opened(stamp(os.fstat(opened)), time.monotonic()):
                flags |= FOPEN_KEEP_CACHE
        return replies.opened(header.unique, OpenedFile(number, flags))

    def _releasedir(self, header: Header, body: request_bodies.Release) -> Reply:
        self._close(self._handles.release(body.handle, header.node))
        return replies.done(header.unique)

    def _close(self, directory: _Directory) -> None:
        if directory.listed is not None:
            directory.listed.note_closed()
        os.close(directory.fd)
        self._share.give()

    def _fsyncdir(self, header: Header, body: request_bodies.Sync) -> Reply:
        directory = self._handles.get(body.handle, header.node)
        (os.fdatasync if body.data_only else os.fsync)(directory.fd)
        return replies.done(header.unique)

    def _readdir(self, header: Header, body: request_bodies.Read) -> Reply:
        listing, count = DirectoryListing(body.size), 0
        directory = self._begun(header, body)
        with directory.lock:
            for name, inode, type_, offset in directory.entries(body.offset):
                if self._objects.hides(directory.fd, name, inode):
                    continue
                if not listing.add(name, self._inode(header, name, inode), type_ << _TYPE_SHIFT, offset):
                    break
                count += 1
        self._told(directory, count)
        return replies.data(header.unique, listing.data)

    def _readdirplus(self, header: Header, body: request_bodies.Read) -> Reply:
        listing, count = DirectoryListing(body.size), 0
        directory = self._begun(header, body)
        with directory.lock:
            for name, inode, type_, offset in directory.entries(body.offset):
                if not listing.fits(name, plus=True):
                    break
                found = None
                if name not in _DOTS:
                    try:
                        found = self._shown.entry(*self._objects.enter(header.node, directory.fd, name))
                    except OSError as error:
                        if error.errno == errno.ENOENT:
                            continue  # it was removed meanwhile, or is not to be seen
                        # (What it is like is said when a process asks.)
                    except RefusedError as error:
                        if error.code != TOO_MANY:
                            raise
                listing.add_plus(name, found, self._inode(header, name, inode), type_ << _TYPE_SHIFT, offset)
                count += 1
        self._told(directory, count)
        return replies.data(header.unique, listing.data)

    def _begun(self, header: Header, body: request_bodies.Read) -> _Directory:
        """The directory that is to be read. Its stamp is taken before any entry of it is."""
        directory = self._handles.get(body.handle, header.node)
        if body.offset > OFFSET_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not body.offset and directory.listed is not None:
            found = stamp(os.fstat(directory.fd))
            until = time.monotonic() + self._shown.good_for
            directory.listed.note_reading(found, until, is_settled=is_settled(found, time.time_ns()))
        return directory

    @staticmethod
    def _told(directory: _Directory, count: int) -> None:
        if directory.listed is not None:
            directory.listed.told += count

    def _inode(self, header: Header, name: bytes, inode: int) -> int:
        """What is above the root is not told."""
        return os.fstat(self._objects.root).st_ino if name == b".." and header.node == ROOT else inode
