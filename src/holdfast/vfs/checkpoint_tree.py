"""A checkpoint as a file system that cannot be changed.

No state is kept for the other side: a node's number is enough to identify it. It consists of the position of an entry
in the sorted list of paths, and of a depth: 0 for that entry itself, and n for the directory named by the first n parts
of its path, of which it is the first entry. So a number is unique while the checkpoint is served, and serves as inode
number too, whatever the kernel has forgotten; nothing is counted, and nothing grows.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from holdfast.files.linux.directory_entries import Dirent
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.vfs.file_system import ROOT, Found

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from holdfast.model import entries
    from holdfast.vfs.checkpoint_appearance import CheckpointAppearance
    from holdfast.vfs.file_system import Caller

_DEPTH_BITS: Final = 12
"""A path of 4,095 bytes has fewer parts."""
_DEPTHS: Final = (1 << _DEPTH_BITS) - 1
_BLOCK: Final = 512
_PAGE: Final = 4096
_SECOND: Final = 1_000_000
"""In microseconds, as checkpoints have their time."""
_FIRST: Final = 2
"""Offset in a listing: before it are ``.`` and ``..``; from here on it is the position of an entry."""
_NAME_MAX: Final = 255
_TYPE_SHIFT: Final = 12
"""From a mode to ``DT_*``."""
_TYPES: Final = 15
_DIRECTORY: Final = 4
"""``DT_DIR``"""


class Stretch(Protocol):
    """Entries that are adjacent in the list."""

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
        """The entries of the paths."""
        ...


class CheckpointContent(Protocol):
    """The content of a checkpoint: a list of entries, sorted by path, and their files. For any number of threads.

    Raises `IntegrityError` for damaged or missing content.
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
        """The position of the first entry whose path is ``path`` or follows it; `count` if there is none."""
        ...

    def stretch(self, position: int, /) -> Stretch:
        """Some entries, that at ``position`` (which is one) among them."""
        ...

    def read(self, path: bytes, entry: entries.Entry, offset: int, size: int, /) -> bytes | memoryview:
        """At most ``size`` bytes of the content from ``offset``; fewer only at its end."""
        ...


class _Known(NamedTuple):
    """The meaning of a node's number."""

    path: bytes
    """Empty for the root."""
    entry: entries.Entry | None
    """None for a directory."""


def number_of_file(position: int) -> int:
    """The number of the node, and the inode, of the file or link whose entry is at ``position``."""
    return position + 1 << _DEPTH_BITS


def _refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class CheckpointTree:
    """`FileSystem` of one checkpoint. A node may be used without having been looked up."""

    def __init__(self, content: CheckpointContent, looks: CheckpointAppearance) -> None:
        self.is_read_only: Final = True
        self.content = content
        self._looks = looks
        seconds, rest = divmod(looks.changed_at, _SECOND)
        self._times = (*(seconds,) * 3, *(looks.changed_at / _SECOND,) * 3, *(seconds * 10**9 + rest * 1000,) * 3)
        self.names = _Names(self)
        self.files = _Files(self)
        self.attributes = _Attributes(self)
        self.directories = _Directories(self)

    # -- what nodes are -------------------------------------------------------------------------------------------

    def known(self, node: int) -> _Known:
        """Decode a node's number. Raises `OSError`: ESTALE if there is no such node."""
        if node == ROOT:
            return _Known(b"", None)
        position, depth = (node >> _DEPTH_BITS) - 1, node & _DEPTHS
        if not 0 <= position < self.content.count:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        path, entry = self._at(position)
        if not depth:
            return _Known(path, entry)
        parts = path.split(b"/", depth)
        if len(parts) <= depth:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return _Known(path[: -len(parts[-1]) - 1], None)

    def _at(self, position: int) -> tuple[bytes, entries.Entry]:
        stretch = self.content.stretch(position)
        at = position - stretch.first
        return stretch.paths[at], stretch.entries[at]

    def directory(self, node: int) -> bytes:
        """The path of a directory. Raises `OSError`: ENOTDIR if the node is a file."""
        path, entry = self.known(node)
        if entry is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return path

    def find(self, path: bytes) -> tuple[int, entries.Entry | None] | None:
        """The node at ``path``: its number, and its entry unless it is a directory. None if there is none."""
        content = self.content
        position = content.find(path)
        if position == content.count:
            return None
        found, entry = self._at(position)
        if found == path:
            return number_of_file(position), entry
        below = path + b"/"
        if found.startswith(path) and not found.startswith(below):
            # Some bytes sort before the slash: paths that begin with "a-" are between "a" and "a/b".
            position = content.find(below)
            if position == content.count:
                return None
            found, _ = self._at(position)
        if found.startswith(below):
            return position + 1 << _DEPTH_BITS | below.count(b"/"), None
        return None

    def status(self, node: int, entry: entries.Entry | None) -> os.stat_result:
        """The attributes of a node; ``entry`` is None for a directory."""
        looks = self._looks
        if entry is None:
            # One link: this tells programs that count directories by links that they cannot, as on Btrfs.
            permissions = looks.root_permissions if node == ROOT else looks.permissions
            size, mode = 0, stat.S_IFDIR | permissions
        else:
            size, mode = entry.size, stat.S_IFMT(entry.mode) | entry.permissions
        blocks = -(-size // _BLOCK)
        return os.stat_result((mode, node, 0, 1, looks.uid, looks.gid, size, *self._times, _PAGE, blocks, 0))


class _Names:
    """`Names` of a checkpoint."""

    make_directory = make_node = make_symlink = link = unlink = rmdir = rename = staticmethod(_refuse)

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree

    def lookup(self, parent: int, name: bytes) -> Found:
        """See `Names`."""
        above = self._tree.directory(parent)
        found = self._tree.find(above + b"/" + name if above else name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return Found(found[0], self._tree.status(*found))

    def forget(self, node: int, lookups: int) -> None:
        """See `Names`: nothing is counted."""

    def read_link(self, node: int) -> bytes | memoryview:
        """See `Names`."""
        path, entry = self._tree.known(node)
        if entry is None or not entry.is_symlink:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._tree.content.read(path, entry, 0, entry.size)


class _OpenFile:
    """`OpenedFile` of a checkpoint."""

    __slots__ = ("_content", "_entry", "_path")

    write = allocate = copy_to = staticmethod(_refuse)

    def __init__(self, content: CheckpointContent, path: bytes, entry: entries.Entry) -> None:
        self._content = content
        self._path = path
        self._entry = entry

    @property
    def flags(self) -> int:
        """See `OpenedFile`."""
        return os.O_RDONLY

    def read(self, size: int, offset: int) -> bytes | memoryview:
        """See `OpenedFile`."""
        size = max(min(size, self._entry.size - offset), 0)
        return self._content.read(self._path, self._entry, offset, size) if size else b""

    def seek(self, offset: int, whence: int) -> int:
        """See `OpenedFile`: there are no holes."""
        end = self._entry.size
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not 0 <= offset < end:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return offset if whence == os.SEEK_DATA else end

    def sync(self, *, data_only: bool) -> None:
        """See `OpenedFile`."""

    def close(self) -> None:
        """See `OpenedFile`."""


class _Files:
    """`Files` of a checkpoint."""

    create = create_unnamed = staticmethod(_refuse)

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree

    def open(self, caller: Caller, node: int, flags: int, *, strips: bool) -> _OpenFile:
        """See `Files`."""
        del caller, strips
        if flags & (os.O_ACCMODE | os.O_TRUNC) != os.O_RDONLY:
            _refuse()
        path, entry = self._tree.known(node)
        if entry is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return _OpenFile(self._tree.content, path, entry)


class _Attributes:
    """`Attributes` of a checkpoint."""

    change = set_xattr = remove_xattr = staticmethod(_refuse)

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree

    def status(self, node: int, file: object = None) -> os.stat_result:
        """See `Attributes`."""
        del file
        return self._tree.status(node, self._tree.known(node).entry)

    def links(self, status: os.stat_result) -> int:
        """See `Attributes`."""
        return status.st_nlink

    def birth_ns(self, node: int, file: object = None) -> None:
        """See `Attributes`."""
        del node, file

    def get_xattr(self, node: int, name: bytes) -> NoReturn:
        """See `Attributes`: there are none."""
        del node, name
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))

    def list_xattrs(self, caller: Caller, node: int) -> Sequence[bytes]:
        """See `Attributes`."""
        del caller, node
        return ()

    def usage(self, node: int) -> os.statvfs_result:
        """See `Attributes`."""
        del node
        content = self._tree.content
        blocks = -(-content.size // _PAGE)
        return os.statvfs_result((_PAGE, _PAGE, blocks, 0, 0, content.count, 0, 0, os.ST_RDONLY, _NAME_MAX))

    def sync(self) -> None:
        """See `Attributes`."""


class _Listing:
    """`OpenedDirectory` of a checkpoint."""

    __slots__ = ("_entry", "_node", "_path", "_tree")

    def __init__(self, tree: CheckpointTree, node: int, path: bytes) -> None:
        self._tree = tree
        self._node = node
        self._path = path
        self._entry: tuple[int, entries.Entry | None] = node, None
        """The node and entry of the entry listed last."""

    @contextmanager
    def entries(self, offset: int) -> Generator[Iterator[Dirent]]:
        """See `OpenedDirectory`. An offset is the position of an entry in the checkpoint, and 2."""
        yield self._read(offset)

    def _read(self, offset: int) -> Iterator[Dirent]:
        node, path = self._node, self._path
        first = _FIRST + max((node >> _DEPTH_BITS) - 1, 0)
        if offset < _FIRST:
            found = self._tree.find(os.path.dirname(path)) if b"/" in path else None
            above = ROOT if found is None else found[0]
            yield from (Dirent(b".", node, _DIRECTORY, 1), Dirent(b"..", above, _DIRECTORY, first))[offset:]
        yield from self._entries(max(offset, first) - _FIRST)

    def _entries(self, position: int) -> Iterator[Dirent]:
        """The entries of the directory from the entry at ``position`` on."""
        content, path = self._tree.content, self._path
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
                self._entry = node, entry
                mode = stat.S_IFDIR if entry is None else entry.mode
                yield Dirent(name, node, mode >> _TYPE_SHIFT & _TYPES, following + _FIRST)
                position = following

    def lookup(self, entry: Dirent) -> Found:
        """See `OpenedDirectory`."""
        if entry.inode != self._entry[0]:
            return self._tree.names.lookup(self._node, entry.name)
        return Found(entry.inode, self._tree.status(*self._entry))

    def sync(self, *, data_only: bool) -> None:
        """See `OpenedDirectory`."""

    def close(self) -> None:
        """See `OpenedDirectory`."""


class _Directories:
    """`Directories` of a checkpoint."""

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree

    def open(self, node: int) -> _Listing:
        """See `Directories`."""
        return _Listing(self._tree, node, self._tree.directory(node))
