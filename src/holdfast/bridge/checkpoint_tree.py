"""A checkpoint as a read-only file system.

Nothing is kept for the kernel: a node's number says by itself what it is. It is made of the position of an entry in the
sorted list of paths, and of a depth: 0 for that entry itself, and n for the directory that the first n parts of its
path name, of which it is the first entry. So a number stands for one thing as long as the checkpoint is mounted, and
is its inode number as well, whatever the kernel has forgotten meanwhile; nothing has to be counted, and nothing grows.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.negotiation import Wishes
from holdfast.wire.fuse.protocol_constants import FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, ROOT, Init, Opcode
from holdfast.wire.fuse.replies import FOREVER, Attributes, DirectoryListing, NodeEntry, OpenedFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.bridge.checkpoint_appearance import CheckpointAppearance
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.model import entries
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.request_bodies import Header

_DEPTH_BITS: Final = 12
"""A path of 4,095 bytes has fewer parts."""
_DEPTHS: Final = (1 << _DEPTH_BITS) - 1
_BLOCK: Final = 512
_PAGE: Final = 4096
_SECOND: Final = 1_000_000
"""In microseconds, as checkpoints have their time."""
_FIRST: Final = 2
"""Offset in a listing: what comes before are ``.`` and ``..``; from here on it is the position of an entry."""
_NAME_MAX: Final = 255

_WISHED: Final = (
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
"""Attributes come with every listing, and the kernel need not ask when something is opened: nothing can have changed.
There are no file handles: overlayfs would find by one what a file above was copied from, and then fail to look whether
that still has its name (ESTALE).
"""

_CHANGES: Final = (
    Opcode.SETATTR,
    Opcode.SYMLINK,
    Opcode.MKNOD,
    Opcode.MKDIR,
    Opcode.UNLINK,
    Opcode.RMDIR,
    Opcode.RENAME,
    Opcode.RENAME2,
    Opcode.LINK,
    Opcode.WRITE,
    Opcode.SETXATTR,
    Opcode.REMOVEXATTR,
    Opcode.CREATE,
    Opcode.TMPFILE,
    Opcode.FALLOCATE,
    Opcode.COPY_FILE_RANGE,
    Opcode.COPY_FILE_RANGE_64,
)


class Stretch(Protocol):
    """Entries that stand next to each other in the list."""

    @property
    def first(self) -> int:
        """The position of the first one."""
        ...

    @property
    def paths(self) -> Sequence[bytes]:
        """Ascending."""
        ...

    @property
    def entries(self) -> Sequence[entries.Entry]:
        """Those of the paths."""
        ...


class CheckpointContent(Protocol):
    """What a checkpoint holds: a list of entries, sorted by path, and their content. For any number of threads.

    Raises `IntegrityError` for what is damaged or missing.
    """

    @property
    def count(self) -> int:
        """How many entries there are."""
        ...

    @property
    def size(self) -> int:
        """The sum of their sizes."""
        ...

    def find(self, path: bytes, /) -> int:
        """The position of the first entry whose path is not before ``path``; `count` if there is none."""
        ...

    def stretch(self, position: int, /) -> Stretch:
        """Some entries, that at ``position`` (which is one) among them."""
        ...

    def read(self, path: bytes, entry: entries.Entry, offset: int, size: int, /) -> bytes | memoryview:
        """At most ``size`` bytes of the content from ``offset``; fewer only at its end."""
        ...


class _Found(NamedTuple):
    """What a node is."""

    path: bytes
    """Empty for the root."""
    entry: entries.Entry | None
    """None for a directory."""


def number_of_file(position: int) -> int:
    """The number of the node, and the inode, of the file or link whose entry is at ``position``."""
    return position + 1 << _DEPTH_BITS


class CheckpointTree:
    """`FileSystem` of one checkpoint."""

    def __init__(self, content: CheckpointContent, looks: CheckpointAppearance) -> None:
        self._content = content
        self._looks = looks
        seconds, rest = divmod(looks.changed_at, _SECOND)
        self._times = (seconds, seconds, seconds, rest * 1000, rest * 1000, rest * 1000)

    def wishes(self) -> Wishes:
        """See `FileSystem.wishes`."""
        return Wishes(flags=_WISHED)

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        """See `FileSystem.operations`."""
        answered: dict[int, Operation] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READLINK: self._readlink,
            Opcode.READ: self._read,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.STATFS: self._statfs,
            Opcode.LISTXATTR: _no_attributes,
            Opcode.RELEASE: _done,
            Opcode.RELEASEDIR: _done,
        }
        # With these, an open that is not known (ENOSYS) is never asked for again.
        if not terms.flags & Init.NO_OPEN_SUPPORT:
            answered[Opcode.OPEN] = self._open
        if not terms.flags & Init.NO_OPENDIR_SUPPORT:
            answered[Opcode.OPENDIR] = _opendir
        return answered | dict.fromkeys(_CHANGES, _refuse)

    # -- what nodes are -------------------------------------------------------------------------------------------

    def _found(self, node: int) -> _Found:
        if node == ROOT:
            return _Found(b"", None)
        position, depth = (node >> _DEPTH_BITS) - 1, node & _DEPTHS
        if not 0 <= position < self._content.count:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        path, entry = self._at(position)
        if not depth:
            return _Found(path, entry)
        parts = path.split(b"/", depth)
        if len(parts) <= depth:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return _Found(path[: -len(parts[-1]) - 1], None)

    def _at(self, position: int) -> tuple[bytes, entries.Entry]:
        stretch = self._content.stretch(position)
        at = position - stretch.first
        return stretch.paths[at], stretch.entries[at]

    def _directory(self, node: int) -> bytes:
        path, entry = self._found(node)
        if entry is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return path

    def _node(self, path: bytes) -> tuple[int, entries.Entry | None] | None:
        """What stands at ``path``: its number, and its entry unless it is a directory. None if nothing does."""
        content = self._content
        position = content.find(path)
        if position == content.count:
            return None
        found, entry = self._at(position)
        if found == path:
            return number_of_file(position), entry
        below = path + b"/"
        if found.startswith(path) and not found.startswith(below):
            # There are bytes before the slash: what begins with "a-" stands between "a" and "a/b".
            position = content.find(below)
            if position == content.count:
                return None
            found, _ = self._at(position)
        if found.startswith(below):
            return position + 1 << _DEPTH_BITS | below.count(b"/"), None
        return None

    def _attributes(self, node: int, entry: entries.Entry | None) -> Attributes:
        looks = self._looks
        if entry is None:
            # One link: a program that counts directories by it is told that it cannot be done, as by Btrfs.
            permissions = looks.root_permissions if node == ROOT else looks.permissions
            size, mode = 0, stat.S_IFDIR | permissions
        else:
            size, mode = entry.size, stat.S_IFMT(entry.mode) | entry.permissions
        return Attributes(node, size, -(-size // _BLOCK), *self._times, mode, 1, looks.uid, looks.gid, 0, _PAGE, 0)

    def _entry(self, node: int, entry: entries.Entry | None) -> NodeEntry:
        return NodeEntry(node, self._attributes(node, entry), FOREVER, FOREVER, 0)

    # -- operations -----------------------------------------------------------------------------------------------

    def _lookup(self, header: Header, body: request_bodies.Name) -> Reply:
        above = self._directory(header.node)
        found = self._node(above + b"/" + body.name if above else body.name)
        if found is None:
            return replies.negative(header.unique, FOREVER)
        return replies.entry(header.unique, self._entry(*found))

    def _getattr(self, header: Header, _: request_bodies.GetAttr) -> Reply:
        entry = self._found(header.node).entry
        return replies.attr(header.unique, self._attributes(header.node, entry), FOREVER)

    def _readlink(self, header: Header, _: request_bodies.Nothing) -> Reply:
        path, entry = self._found(header.node)
        if entry is None or not entry.is_symlink:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return replies.data(header.unique, self._content.read(path, entry, 0, entry.size))

    def _open(self, header: Header, body: request_bodies.Open) -> Reply:
        if body.flags & os.O_ACCMODE != os.O_RDONLY:
            return _refuse(header, body)
        return replies.opened(header.unique, OpenedFile(0, FOPEN_KEEP_CACHE))

    def _read(self, header: Header, body: request_bodies.Read) -> Reply:
        path, entry = self._found(header.node)
        if entry is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        size = max(min(body.size, entry.size - body.offset), 0)
        return replies.data(header.unique, self._content.read(path, entry, body.offset, size) if size else b"")

    def _readdir(self, header: Header, body: request_bodies.Read) -> Reply:
        return self._list(header, body, plus=False)

    def _readdirplus(self, header: Header, body: request_bodies.Read) -> Reply:
        return self._list(header, body, plus=True)

    def _list(self, header: Header, body: request_bodies.Read, *, plus: bool) -> Reply:
        path = self._directory(header.node)
        listing = DirectoryListing(body.size)
        first = _FIRST + max((header.node >> _DEPTH_BITS) - 1, 0)
        if body.offset < _FIRST:
            dots = ((b".", header.node, 1), (b"..", self._above(path), first))
            for name, node, offset in dots[body.offset :]:
                if plus:
                    listing.add_plus(name, None, node, stat.S_IFDIR, offset)
                else:
                    listing.add(name, node, stat.S_IFDIR, offset)
        self._add(listing, path, max(body.offset, first) - _FIRST, plus=plus)
        return replies.data(header.unique, listing.data)

    def _above(self, path: bytes) -> int:
        found = self._node(os.path.dirname(path)) if b"/" in path else None
        return ROOT if found is None else found[0]

    def _add(self, listing: DirectoryListing, path: bytes, position: int, *, plus: bool) -> None:
        """Add what the directory ``path`` holds from the entry at ``position`` on, as far as there is room."""
        content = self._content
        below = path + b"/" if path else b""
        start, depth = len(below), below.count(b"/") + 1
        while position < content.count:
            first, paths, found = (stretch := content.stretch(position)).first, stretch.paths, stretch.entries
            end = first + len(paths)
            while position < end:
                at = paths[position - first]
                if not at.startswith(below):
                    return
                name, slash, _ = at[start:].partition(b"/")
                following = position + 1
                entry, node = found[position - first], following << _DEPTH_BITS
                if slash:
                    entry, node = None, node | depth
                    past = below + name + b"0"  # the byte after "/"
                    following = first + bisect_left(paths, past, following - first)
                    if following == end:
                        following = content.find(past)
                mode = stat.S_IFDIR if entry is None else entry.mode
                if plus:
                    added = listing.add_plus(name, self._entry(node, entry), node, mode, following + _FIRST)
                else:
                    added = listing.add(name, node, mode, following + _FIRST)
                if not added:
                    return
                position = following

    def _statfs(self, header: Header, _: request_bodies.Nothing) -> Reply:
        blocks = -(-self._content.size // _PAGE)
        status = os.statvfs_result((_PAGE, _PAGE, blocks, 0, 0, self._content.count, 0, 0, os.ST_RDONLY, _NAME_MAX))
        return replies.statfs(header.unique, status)


def _opendir(header: Header, _: request_bodies.Open) -> Reply:
    return replies.opened(header.unique, OpenedFile(0, FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR))


def _no_attributes(header: Header, body: request_bodies.GetXattr) -> Reply:
    # (GETXATTR is not answered, so that the kernel asks once for all: it would for each file that `ls -l` lists.)
    return replies.data(header.unique) if body.size else replies.size(header.unique, 0)


def _done(header: Header, _: request_bodies.Release) -> Reply:
    return replies.done(header.unique)


def _refuse(header: Header, _: object) -> Reply:
    return replies.error(header.unique, errno.EROFS)
