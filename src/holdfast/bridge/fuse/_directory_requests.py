"""The requests that list directories. The kernel caches the replies where its caches allow that."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.vfs.node_table import Handles
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.protocol_constants import OFFSET_MAX, Opcode
from holdfast.wire.fuse.replies import DirectoryListing, OpenedFile

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from holdfast.bridge.fuse.kernel_caches import KernelCaches, ListingReader
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import Directories, OpenedDirectory
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header

_DOTS: Final = (b".", b"..")
_TYPE_SHIFT: Final = 12
"""From ``DT_*`` to a mode."""


class _Handle(NamedTuple):
    directory: OpenedDirectory
    reader: ListingReader | None
    """None if the kernel caches nothing of the directory."""

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.directory.close()


class DirectoryRequests:
    """See the module."""

    def __init__(self, directories: Directories, caches: KernelCaches, *, most: int) -> None:
        """At most ``most`` directories may be open at a time."""
        self._directories = directories
        self._caches = caches
        self._handles: Handles[_Handle] = Handles(most)

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
        for handle in self._handles.clear():
            handle.close()

    def _opendir(self, header: Header, _: request_bodies.Open) -> Reply:
        self._handles.check_room()
        directory = self._directories.open(header.node)
        try:
            flags, reader = self._caches.open_directory(header.node, directory)
        except BaseException:
            directory.close()
            raise
        handle = _Handle(directory, reader)
        try:
            number = self._handles.add(header.node, handle)
        except BaseException:
            handle.close()
            raise
        return replies.opened(header.unique, OpenedFile(number, flags))

    def _releasedir(self, header: Header, body: request_bodies.Release) -> Reply:
        if not (self._caches.needs_no_open and not body.handle):
            self._handles.release(body.handle, header.node).close()
        return replies.done(header.unique)

    def _fsyncdir(self, header: Header, body: request_bodies.Sync) -> Reply:
        self._handles.get(body.handle, header.node).directory.sync(data_only=body.data_only)
        return replies.done(header.unique)

    def _readdir(self, header: Header, body: request_bodies.Read) -> Reply:
        listing, count = DirectoryListing(body.size), 0
        with self._begun(header, body) as handle, handle.directory.entries(body.offset) as entries:
            for name, inode, type_, offset in entries:
                if not listing.add(name, inode, type_ << _TYPE_SHIFT, offset):
                    break
                count += 1
            if handle.reader is not None:
                handle.reader.note_told(count)
        return replies.data(header.unique, listing.data)

    def _readdirplus(self, header: Header, body: request_bodies.Read) -> Reply:
        listing, count = DirectoryListing(body.size), 0
        with self._begun(header, body) as handle, handle.directory.entries(body.offset) as entries:
            lookup, shown = handle.directory.lookup, self._caches.entry
            for entry in entries:
                name, inode, type_, offset = entry
                if not listing.fits(name, plus=True):
                    break
                found = None
                if name not in _DOTS:
                    try:
                        found = shown(lookup(entry))
                    except FileNotFoundError:
                        continue  # it was removed meanwhile, or is not to be seen
                    except OSError:
                        pass  # its attributes are told when a process asks
                listing.add_plus(name, found, inode, type_ << _TYPE_SHIFT, offset)
                count += 1
            if handle.reader is not None:
                handle.reader.note_told(count)
        return replies.data(header.unique, listing.data)

    @contextmanager
    def _begun(self, header: Header, body: request_bodies.Read) -> Generator[_Handle]:
        """The directory to read. Its stamp is taken before any of its entries is read."""
        if self._caches.needs_no_open and not body.handle:
            directory = self._directories.open(header.node)
            try:
                yield _Handle(directory, None)
            finally:
                directory.close()
            return
        handle = self._handles.get(body.handle, header.node)
        if body.offset > OFFSET_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not body.offset and handle.reader is not None:
            handle.reader.begin()
        yield handle
