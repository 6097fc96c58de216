"""The requests that list directories."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from holdfast.files.metadata import through
from holdfast.model.errors import RefusedError
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.errors import TOO_MANY
from holdfast.wire.fuse.kernel import Opcode
from holdfast.wire.fuse.listing import Listing
from holdfast.wire.fuse.nodes import Handles
from holdfast.wire.fuse.replies import Opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.objects import Objects
    from holdfast.bridge.room import Share
    from holdfast.bridge.server import Operation, Reply
    from holdfast.bridge.shown import Shown
    from holdfast.wire.fuse import bodies
    from holdfast.wire.fuse.bodies import Header

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DOTS: Final = (b".", b"..")


class _Directory:
    """One that is open, and what was in it when its reader began: an offset means the same entry for as long."""

    __slots__ = ("entries", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.entries: list[tuple[bytes, int, int]] = []
        """Name, inode number, type."""


class Listings:
    """See the module."""

    def __init__(self, objects: Objects, shown: Shown, share: Share, *, most: int) -> None:
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
            os.close(directory.fd)
            self._share.give()

    def _opendir(self, header: Header, _: bodies.Open) -> Reply:
        self._handles.check_room()
        with self._share.one_more():
            with self._objects.directory(header.node) as fd:
                opened = os.open(through(fd), _DIRECTORY)
            try:
                number = self._handles.add(header.node, _Directory(opened))
            except BaseException:
                os.close(opened)
                raise
        return replies.opened(header.unique, Opened(number))

    def _releasedir(self, header: Header, body: bodies.Release) -> Reply:
        os.close(self._handles.release(body.handle, header.node).fd)
        self._share.give()
        return replies.done(header.unique)

    def _fsyncdir(self, header: Header, body: bodies.Sync) -> Reply:
        directory = self._handles.get(body.handle, header.node)
        (os.fdatasync if body.data_only else os.fsync)(directory.fd)
        return replies.done(header.unique)

    def _readdir(self, header: Header, body: bodies.Read) -> Reply:
        listing = Listing(body.size)
        entries = self._entries(header, body)
        for at in range(body.offset, len(entries)):
            name, inode, type_ = entries[at]
            if not listing.add(name, inode, type_, at + 1):
                break
        return replies.data(header.unique, listing.data)

    def _readdirplus(self, header: Header, body: bodies.Read) -> Reply:
        listing = Listing(body.size)
        entries = self._entries(header, body)
        with self._objects.directory(header.node) as dir_fd:
            for at in range(body.offset, len(entries)):
                name, inode, type_ = entries[at]
                if not listing.fits(name, plus=True):
                    break
                found = None
                if name not in _DOTS:
                    try:
                        found = self._shown.entry(*self._objects.enter(header.node, dir_fd, name))
                    except OSError as error:
                        if error.errno == errno.ENOENT:
                            continue  # it was removed meanwhile, or is not to be seen
                        # (What it is like is said when somebody asks.)
                    except RefusedError as error:
                        if error.code != TOO_MANY:
                            raise
                listing.add_plus(name, found, inode, type_, at + 1)
        return replies.data(header.unique, listing.data)

    def _entries(self, header: Header, body: bodies.Read) -> list[tuple[bytes, int, int]]:
        directory = self._handles.get(body.handle, header.node)
        if not body.offset:
            with os.scandir(directory.fd) as found:
                inode = os.fstat(directory.fd).st_ino
                directory.entries = [(name, inode, stat.S_IFDIR) for name in _DOTS]
                directory.entries += [(os.fsencode(entry.name), entry.inode(), _type(entry)) for entry in found]
        return directory.entries


def _type(entry: os.DirEntry[str]) -> int:
    """As far as the directory itself says it; else 0."""
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0
