"""A root file system from layered archives: nothing is unpacked, so no path can lead out.

The layers of a container image are archives, in which some names mark a lower layer's file as deleted. Source: OCI
image specification, layer.md.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Final

from holdfast.model.errors import EscapeError, FormatError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import MAX_NAME_BYTES, display
from holdfast.sandbox.images.tar_format import BLOCK, MAX_NAME, TarMember, header_of, read_members

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_ENTRIES: Final = 2_000_000
"""Of all layers together, and of the directories that they imply."""
MAX_HELD_BYTES: Final = 256 << 20
"""Of the names, targets and attributes in all layers together, and of the names that hard links have: so much of them
is in memory.
"""
_MAX_STEPS: Final = 200_000_000
"""From one name to the next, on the way to all that the layers name."""
PYTHON_DIRECTORIES: Final = (b"usr/local/bin", b"usr/bin", b"bin")
"""Where the initrd looks for ``python3``, in this order (``init.sh``)."""
LEAST_PYTHON: Final = (3, 8)

_WHITEOUT: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"
_MAX_LINKS: Final = 40
_MAX_DEPTH: Final = 400
_MAX_TIME: Final = (1 << 32) - 1
_KEPT_XATTRS: Final = (b"user.", b"security.capability")
"""All others have a meaning only for a file system, or a policy, that is missing in the image."""
_PIECE: Final = 1 << 20


class _Inode(NamedTuple):
    """A file of any type, with any number of names."""

    member: TarMember
    layer: int


class _Node:
    """A name, and the entries below it."""

    __slots__ = ("children", "inode")

    def __init__(self, inode: _Inode | None) -> None:
        """None: a directory that no archive has described."""
        self.inode = inode
        self.children: dict[bytes, _Node] = {}

    @property
    def is_directory(self) -> bool:
        return self.inode is None or self.inode.member.kind == "directory"


class RootTree:
    """The tree that layers make, the lowest first. Their files have to stay open as long as it is used."""

    def __init__(self) -> None:
        self._root = _Node(None)
        self._layers: list[IO[bytes]] = []
        self._entries = 0
        self._held = 0
        self._steps = 0
        self._linked: set[int] = set()
        """Which inodes have more than one name."""

    @classmethod
    def of(cls, layers: Sequence[IO[bytes]], what: str) -> RootTree:
        """The tree of ``layers``, archives (tar) that can be sought in; ``what`` they are called in messages.

        Raises `FormatError` for one that is damaged, and `EscapeError` for a name that leads out of it.
        """
        tree = cls()
        for number, layer in enumerate(layers, 1):
            tree.add(layer, what if len(layers) == 1 else f"{what}, layer {number},")
        return tree

    def add(self, layer: IO[bytes], what: str) -> None:
        """Lay one more layer over it. Raises as `of`; then the tree is of no more use."""
        members: list[tuple[tuple[bytes, ...], TarMember]] = []
        gone: list[tuple[tuple[bytes, ...], bytes]] = []
        for member in read_members(layer, what):
            self._count_entry()
            attributes = sum(len(name) + len(value) for name, value in member.xattrs.items())
            self._count_held(len(member.name) + len(member.target) + attributes)
            parts = _parts(member.name, what)
            if parts and parts[-1].startswith(_WHITEOUT):
                gone.append((parts[:-1], parts[-1]))
            else:
                members.append((parts, member))
        # Marks of deletion concern lower layers only, at every place in the archive.
        for parts, name in gone:
            self._hide(parts, name)
        index = len(self._layers)
        self._layers.append(layer)
        for parts, member in members:
            self._put(parts, member, index, what)

    def _count_entry(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise FormatError(f"it has more than {MAX_ENTRIES} files: it is no container's image")

    def _count_held(self, number: int) -> None:
        self._held += number
        if self._held > MAX_HELD_BYTES:
            raise FormatError(f"its names and attributes have more than {MAX_HELD_BYTES} bytes")

    def _hide(self, parts: tuple[bytes, ...], name: bytes) -> None:
        directory = self._walk(parts)
        if directory is None:
            return
        if name == _OPAQUE:
            directory.children.clear()
        else:
            directory.children.pop(name.removeprefix(_WHITEOUT), None)

    def _put(self, parts: tuple[bytes, ...], member: TarMember, layer: int, what: str) -> None:
        if member.kind == "hard link":
            parts_of_target = _parts(member.target, what)
            linked = self._walk(parts_of_target[:-1]) if parts_of_target else None
            found = linked.children.get(parts_of_target[-1]) if linked is not None else None
            if found is None or found.is_directory:
                raise FormatError(
                    f"{what} has a hard link {display(member.name)} to {display(member.target)}, which is no file there"
                )
            inode = found.inode
            self._linked.add(id(inode))
        else:
            inode = _Inode(member, layer)
        if not parts:
            if member.kind != "directory":
                raise FormatError(f"{what} has a root that is no directory")
            self._root.inode = inode
            return
        directory = self._walk(parts[:-1], create=True)
        if directory is None:
            raise FormatError(f"{what} has a file {display(member.name)} below a file that is no directory")
        existing = directory.children.get(parts[-1])
        if existing is not None and existing.is_directory and member.kind == "directory":
            existing.inode = inode
        else:
            directory.children[parts[-1]] = _Node(inode)

    def _walk(self, parts: Sequence[bytes], *, create: bool = False) -> _Node | None:
        """The directory at ``parts``, through links, which cannot lead outside; None without one."""
        path = self._resolve(parts, create=create)
        return path[-1] if path is not None and path[-1].is_directory else None

    def _resolve(self, parts: Sequence[bytes], *, create: bool = False) -> list[_Node] | None:
        """The nodes from the root down to what ``parts`` lead to; None if that is not there."""
        path = [self._root]
        waiting = list(reversed(parts))
        links = 0
        while waiting:
            part = waiting.pop()
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise FormatError("its links lead to and fro without end")
            if part == b"..":
                del path[max(1, len(path) - 1) :]
                continue
            at = path[-1]
            child = at.children.get(part)
            if child is None:
                if not create or not at.is_directory or len(path) > _MAX_DEPTH:
                    return None
                self._count_entry()
                child = at.children[part] = _Node(None)
            if child.inode is not None and child.inode.member.kind == "link":
                links += 1
                if links > _MAX_LINKS:
                    return None
                target = child.inode.member.target
                if target.startswith(b"/"):
                    path = path[:1]
                waiting += [part for part in reversed(target.split(b"/")) if part not in (b"", b".")]
                continue
            path.append(child)
        return path

    # -- contents -------------------------------------------------------------------------------------------------

    def python(self) -> str:
        """The path of the Python that a machine starts with. Raises `UnsupportedError` if it is missing or too old."""
        for directory in PYTHON_DIRECTORIES:
            name, found = self._final(directory + b"/python3")
            if found is None or found.inode is None or found.inode.member.kind != "file":
                continue
            version = self._python_version(name, directory)
            if version is None or version >= LEAST_PYTHON:
                return "/" + (directory + b"/python3").decode()
            raise UnsupportedError(
                f"its python3 is {version[0]}.{version[1]}, and a machine needs "
                f"{LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or later",
                code="image_without_python",
            )
        raise UnsupportedError(
            "there is no python3 in its /usr/local/bin, /usr/bin or /bin, which a machine is started with",
            hint=f"install Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or later in it",
            code="image_without_python",
        )

    def _final(self, path: bytes) -> tuple[bytes, _Node | None]:
        """The target of a path, including a last link, and its name."""
        nodes = self._resolve(path.split(b"/"))
        if nodes is None or len(nodes) < 2:
            return b"", None
        name = next((name for name, node in nodes[-2].children.items() if node is nodes[-1]), b"")
        return name, nodes[-1]

    def _python_version(self, name: bytes, directory: bytes) -> tuple[int, int] | None:
        """From its own name, or from those of its libraries; None if neither contains it."""
        found = re.match(rb"python3\.(\d{1,3})", name)
        if found:
            return 3, int(found[1])
        libraries = self._walk((directory.removesuffix(b"bin") + b"lib").strip(b"/").split(b"/"))
        names = libraries.children if libraries is not None else ()
        versions = [int(found[1]) for one in names if (found := re.fullmatch(rb"python3\.(\d{1,3})", one))]
        return (3, max(versions)) if versions else None

    # -- as one archive -------------------------------------------------------------------------------------------

    def write(self, archive: IO[bytes]) -> None:
        """Write all of it as one archive (tar), except the root itself: squashfs-tools take that from no archive."""
        first: dict[int, bytes] = {}
        waiting = [(b"", iter(sorted(self._root.children.items())))]
        while waiting:
            prefix, rest = waiting[-1]
            name, node = next(rest, (b"", None))
            if node is None:
                waiting.pop()
                continue
            path = prefix + name
            self._write_node(archive, path, node, first)
            if node.children:
                waiting.append((path + b"/", iter(sorted(node.children.items()))))
        archive.write(bytes(2 * BLOCK))

    def _write_node(self, archive: IO[bytes], path: bytes, node: _Node, first: dict[int, bytes]) -> None:
        if len(path) > MAX_NAME:
            raise FormatError(f"a path in it has more than {MAX_NAME} bytes: {display(path[:80])}…")
        if node.inode is None:
            archive.write(header_of(TarMember(path, "directory", 0o755, 0, 0, 0, 0, 0, b"", (0, 0), {})))
            return
        member = _sane(node.inode.member)._replace(name=path)
        if id(node.inode) in self._linked:
            if id(node.inode) not in first:
                self._count_held(len(path))
            before = first.setdefault(id(node.inode), path)
            if before != path:
                archive.write(header_of(member._replace(kind="hard link", size=0, target=before, xattrs={})))
                return
        archive.write(header_of(member))
        if member.size:
            for piece in _content(self._layers[node.inode.layer], member):
                archive.write(piece)
            archive.write(bytes(-member.size % BLOCK))


def _parts(name: bytes, what: str) -> tuple[bytes, ...]:
    """The components of a member's name, from the root. Raises `EscapeError` for a name that leads out."""
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts or b"\0" in name:
        raise EscapeError(f"{what} has a file whose name leads elsewhere: {display(name)}")
    if len(parts) > _MAX_DEPTH or any(len(part) > MAX_NAME_BYTES for part in parts):
        raise FormatError(f"{what} has a name that is too long: {display(name[:80])}…")
    return parts


def _sane(member: TarMember) -> TarMember:
    """The member with values that every file system accepts."""
    return member._replace(
        uid=min(member.uid, _MAX_TIME),
        gid=min(member.gid, _MAX_TIME),
        mtime=min(member.mtime, _MAX_TIME),
        xattrs={name: value for name, value in member.xattrs.items() if name.startswith(_KEPT_XATTRS)},
    )


def _content(layer: IO[bytes], member: TarMember) -> Iterator[bytes]:
    layer.seek(member.offset)
    left = member.size
    while left:
        piece = layer.read(min(left, _PIECE))
        if not piece:
            raise FormatError(f"the content of {display(member.name)} is cut short")
        left -= len(piece)
        yield piece
