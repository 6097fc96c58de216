"""The objects of a recorded directory: the object of each number, and its path.

Each may be known for hours, so it has no descriptor (they would run out), but a unique identity: its file handle.
`holdfast.vfs.recorded._node_access` opens it by that, or by its name.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from holdfast.files.linux.file_handle import identity, identity_and_mount
from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.files.linux.metadata import proc_path
from holdfast.undo.interceptor import Place
from holdfast.undo.whole_writes import AT_ONCE
from holdfast.vfs.file_system import ROOT, Found, TooManyError
from holdfast.vfs.node_table import Nodes
from holdfast.vfs.recorded._node_access import Held, NodeAccess, NodePaths
from holdfast.vfs.recorded.node import OBJECT, LocatedNode, Node, stale_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from holdfast.files.linux.file_handle import Identity

# (A constructor in Python would cost half a system call, for each name.)
_new_found: Final = cast(
    "Callable[[type[Found], tuple[int, os.stat_result]], Found]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)
MOST_NODES: Final = 1 << 20
_MOST_NAMES: Final = 8
"""Of one object that are remembered. By any other it has to be looked up again, as ESTALE says."""


class BorrowedObject:
    """A descriptor of any object, for the length of a block. (A generator would cost as much as two system calls.)"""

    __slots__ = ("_handle", "_held", "_node", "_objects", "_opened", "is_open")

    def __init__(self, objects: NodeRegistry, node: int, handle: int | None = None) -> None:
        self._objects = objects
        self._node = node
        self._handle = handle
        self._held: Held | None = None
        self._opened = -1
        self.is_open = handle is not None
        """It belongs to an open file, and is not ``O_PATH``; known in the block."""

    def __enter__(self) -> int:
        """Raises `OSError`."""
        if self._handle is not None:
            return self._handle
        fd, self._held, self.is_open = self._objects.borrow(self._node)
        if self._held is None:
            self._opened = fd
        return fd

    def __exit__(self, *_: object) -> None:
        """The descriptor is not used any more."""
        if self._held is not None:
            self._objects.give(self._held)
        elif self._opened >= 0:
            os.close(self._opened)


class NodeRegistry:
    """See the module. Safe for several threads. Raises `OSError`, ESTALE for nodes that are not known."""

    def __init__(
        self,
        root_fd: int,
        hidden: tuple[int, ...] = (),
        *,
        most: int = MOST_NODES,
        node_type: type[Node] = Node,
    ) -> None:
        """``root_fd`` is borrowed; ``hidden`` are descriptors of directories that the tree does not show."""
        self.root = root_fd
        self._node_type = node_type
        self._device = os.fstat(root_fd).st_dev
        own, self._mount = identity_and_mount(root_fd)
        self.paths = NodePaths(root_fd, hidden)
        self._hidden = frozenset(self._key(os.fstat(fd), identity(fd, b"")) for fd in hidden)
        self.hidden_inodes = frozenset(os.fstat(fd).st_ino for fd in hidden)
        """Only an entry of such an inode may have to be hidden: see `hides`."""
        root = node_type(own, ROOT, b"", os.fstat(root_fd).st_ino, is_directory=True, is_local=True)
        self._nodes: Nodes[Node] = Nodes(own, root, most)
        self._most = most
        self._enough = most // 2
        self.crowded: Callable[[], object] = lambda: None
        """Called, at any time and from any thread, when the other side should forget nodes: see `unused_names`."""
        self._reach = NodeAccess(root_fd, own, self._nodes, self.paths)
        self._written: Counter[int] = Counter()
        self._mapped: dict[int, os.stat_result] = {}
        """Files that may be written to through mappings that have outlived their handles, by node."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the open descriptors."""
        self._reach.close()
        self._mapped.clear()

    @property
    def opens_handles(self) -> bool:
        """Whether an object can be opened even if all its names have changed."""
        return self._reach.opens_handles

    def __getitem__(self, node: int) -> Node:
        """The record of a node."""
        return self._nodes[node]

    def get(self, node: int) -> Node | None:
        """The record of a node, if it is known."""
        return self._nodes.get(node)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def enter_from(self, parent: int, name: bytes) -> Found:
        """`enter`, in the directory of a node."""
        held = self._reach.take(parent)
        try:
            return self._enter_known(parent, held.fd, name) or self.enter(parent, held.fd, name)
        finally:
            self._reach.give(held)

    def _enter_known(self, parent: int, dir_fd: int, name: bytes) -> Found | None:
        """`enter` without opening a known object; None if it is unknown, or is being replaced."""
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        key = self._key(found, identity(dir_fd, name))
        node = self._nodes.find(key)
        if node is None or node == ROOT or key in self._hidden:
            return None
        kept = self._nodes.get(node)
        if kept is None or kept.inode != found.st_ino or self._nodes.enter_known(key) != node:
            return None
        self._name(kept, parent, name)
        return _new_found(Found, (node, found))

    def enter(self, parent: int, dir_fd: int, name: bytes) -> Found:
        """Look up a name in a directory, once more: its node and its attributes. Raises `OSError`."""
        fd = os.open(name, OBJECT, dir_fd=dir_fd)
        try:
            return self.enter_opened(fd, parent, name)
        finally:
            os.close(fd)

    def enter_opened(self, fd: int, parent: int, name: bytes) -> Found:
        """`enter` an object that is open already. An empty name means that it has none."""
        found, (object_, mount) = os.fstat(fd), identity_and_mount(fd)
        key = self._key(found, object_)
        if key in self._hidden:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        node = self._nodes.enter_known(key)
        if node is None:
            # (A handle would open an object of another mount under its other path.)
            is_local = found.st_dev == self._device and mount == self._mount
            node = self._enter_new(parent, name, key, found, object_, is_local=is_local)
        if node != ROOT:
            self._name(self._nodes[node], parent, name)
        return _new_found(Found, (node, found))

    def _enter_new(
        self, parent: int, name: bytes, key: bytes, found: os.stat_result, object_: Identity, *, is_local: bool
    ) -> int:
        is_directory = stat.S_ISDIR(found.st_mode)

        def make() -> Node:
            return self._node_type(object_, parent, name, found.st_ino, is_directory=is_directory, is_local=is_local)

        try:
            node = self._nodes.enter(key, make)
        except TooManyError:
            self.crowded()
            raise
        if len(self._nodes) > self._enough:
            self.crowded()
        return node

    def _name(self, kept: Node, parent: int, name: bytes) -> None:
        if kept.name == name and kept.parent == parent:
            return
        others = [one for one in ((kept.parent, kept.name), *kept.others) if one != (parent, name)]
        kept.parent, kept.name, kept.others = parent, name, tuple(others[:_MOST_NAMES])

    def known_node(self, dir_fd: int, name: bytes = b"") -> int | None:
        """The node of a name in a directory (or of the directory), if it is known. Raises `OSError`."""
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False) if name else os.fstat(dir_fd)
        return self._nodes.find(self._key(found, identity(dir_fd, name)))

    def known_nodes(self) -> list[tuple[int, int, bytes]]:
        """All nodes, each with where it was last found."""
        return [(node, kept.parent, kept.name) for node, kept in self._nodes.items()]

    def unused_names(self) -> list[tuple[int, bytes]]:
        """The names, each with its directory's node, of files that have been known for long and no process has
        open. There are enough others for a while.
        """
        known = self._nodes.items()
        names = [
            (kept.parent, kept.name)
            for _, kept in known[: len(known) // 2]
            if kept.name and not kept.is_directory and not kept.open
        ]
        self._enough = max(self._most // 2, len(known) - len(names) + self._most // 8)
        return names

    def hides(self, dir_fd: int, name: bytes) -> bool:
        """Whether an entry of a directory is not shown."""
        try:
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            return self._key(found, identity(dir_fd, name)) in self._hidden
        except FileNotFoundError:
            return True  # it was just removed

    def note_moved(self, parent: int, dir_fd: int, name: bytes) -> None:
        """Report that the object now at the name was moved there."""
        try:
            node = self.known_node(dir_fd, name)
        except OSError:
            return  # moved elsewhere since, and found there next time
        if node is not None and node != ROOT:
            self._name(self._nodes[node], parent, name)

    def known_directory(self, dir_fd: int, name: bytes) -> int | None:
        """The node of the directory at the name, if it is one, and known."""
        try:
            node = self.known_node(dir_fd, name)
        except OSError:
            return None
        kept = None if node is None else self._nodes.get(node)
        return node if kept is not None and kept.is_directory else None

    def note_removed(self, directory: int | None) -> None:
        """Report that a directory was removed, if one is given. A kernel that has seen that never finds anything in it
        again, and keeps it while a process uses it; if undo restores it, it must be another node.
        """
        if directory is not None:
            self._nodes.renew(directory)

    def forget(self, node: int, lookups: int) -> None:
        """Lookups are given back."""
        if self._nodes.forget(node, lookups).gone is not None:
            self._reach.forget(node)
            self._mapped.pop(node, None)

    def _key(self, found: os.stat_result, object_: Identity) -> bytes:
        return object_ if found.st_dev == self._device else b"%d:%b" % (found.st_dev, object_)

    # -- reaching them --------------------------------------------------------------------------------------------

    def directory(self, node: int) -> AbstractContextManager[int]:
        """A descriptor of a directory, borrowed. Raises `OSError`: ENOTDIR for other objects."""
        return self._reach.directory(node)

    def check_served(self, node: int, fd: int) -> None:
        """Raises `OSError` (ESTALE) if a directory that was opened as ``fd`` was moved out of the tree since."""
        if not self.paths.serves(fd):
            with self._reach.directory(node):
                pass

    def status(self, node: int) -> os.stat_result:
        """The attributes of an object."""
        kept = self._nodes[node]
        if kept.is_directory:
            held = self._reach.take(node)
            try:
                return os.fstat(held.fd)
            finally:
                self._reach.give(held)
        if not kept.open and (found := self._status_by_name(kept)) is not None:
            return found
        with self.descriptor(node) as fd:
            return os.fstat(fd)

    def _status_by_name(self, kept: Node) -> os.stat_result | None:
        """`status` without opening it; None if it is not called as it was last."""
        if not kept.name:
            return None
        try:
            with self._reach.directory(kept.parent) as dir_fd:
                found = os.stat(kept.name, dir_fd=dir_fd, follow_symlinks=False)
                # (The `stat` before this is of the object: it had its number then, as it was already known.)
                is_it = found.st_ino == kept.inode and identity(dir_fd, kept.name) == kept.identity
        except OSError:
            return None
        return found if is_it else None

    def descriptor(self, node: int, handle: int | None = None) -> BorrowedObject:
        """A descriptor of any object, borrowed: ``handle`` if there is one."""
        return BorrowedObject(self, node, handle)

    def borrow(self, node: int) -> tuple[int, Held | None, bool]:
        """For `BorrowedObject`: a descriptor; the object to give back, or None to close the descriptor; and whether it
        belongs to an open file.
        """
        kept = self._nodes[node]
        if kept.is_directory:
            held = self._reach.take(node)
            return held.fd, held, False
        fd = self._dup(kept)
        return (fd, None, True) if fd >= 0 else (self._open_file(kept), None, False)

    def give(self, held: Held) -> None:
        """For `BorrowedObject`: it may be closed."""
        self._reach.give(held)

    @contextmanager
    def located(self, node: int, handle: int | None = None, *, moves: int = -1) -> Generator[LocatedNode]:
        """As `descriptor`, with its path. ``moves`` is the value of `Interceptor.moves` before the path is read."""
        with self.descriptor(node, handle) as fd:
            path = self._path(node, fd)
            kept = self._nodes[node]
            if path is not None or kept.is_directory or (other := self._reach.directory_by_name(kept)) < 0:
                yield LocatedNode(fd, path, moves)
                return
            # The name that it was opened by is gone, and it has another one.
            try:
                yield LocatedNode(other, self._path(node, other), moves)
            finally:
                os.close(other)

    def place(self, parent: int, dir_fd: int, name: bytes) -> Place:
        """For the interceptor: a name in the directory ``parent``, open as ``dir_fd``.

        Raises `OSError`: ENOENT if that is not in the tree any more, and EACCES if the object there is hidden.
        """
        path = self._path(parent, dir_fd)
        if path is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        path = b"%b/%b" % (path, name) if path else name
        self._check_shown(path)
        return Place(dir_fd, name, path)

    def beside(self, place: Place, name: bytes) -> Place:
        """`place` of another name in the same directory, which was found just now."""
        above = place.parent
        path = b"%b/%b" % (above, name) if above else name
        self._check_shown(path)
        return Place(place.dir_fd, name, path)

    def _check_shown(self, path: bytes) -> None:
        if any(hidden == path or hidden.startswith(path + b"/") for hidden in self.paths.hidden()):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _path(self, node: int, fd: int) -> bytes | None:
        """Where an object is that is open as ``fd``, also if that is longer than the system says paths."""
        below: list[bytes] = []
        while True:
            try:
                path = self.paths.path(fd) if not below else self._known_path(node)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
            else:
                return path if path is None or not below else b"/".join((path, *reversed(below)))
            # (The name of its last lookup may be gone, while another one exists.)
            other, node, name = self._reach.last_name(self._nodes[node])
            if other < 0:
                raise stale_error()
            os.close(other)
            below.append(name)

    def _known_path(self, node: int) -> bytes | None:
        with self.directory(node) as fd:
            return self.paths.path(fd)

    def _open_file(self, kept: Node) -> int:
        # By a name first: then the system knows where it is.
        if (fd := self._reach.directory_by_name(kept)) >= 0:
            return fd
        if (fd := self._dup(kept)) >= 0 or (fd := self._reach.by_handle(kept)) >= 0:
            return fd
        raise stale_error()

    def _dup(self, kept: Node) -> int:
        """-1 if it is not open."""
        if not kept.open:
            return -1
        with self._lock:
            return os.dup(next(iter(kept.open))) if kept.open else -1

    # -- open files -----------------------------------------------------------------------------------------------

    def note_opened(self, kept: Node, fd: int, *, writes: bool) -> None:
        """The object has one more open handle, with this descriptor."""
        with self._lock:
            kept.open.add(fd)
            kept.writers += writes
            if writes:
                self._written[kept.inode] += 1

    def close_opened(self, kept: Node, fd: int, *, writes: bool) -> None:
        """Close the descriptor of a handle."""
        with self._lock:
            kept.open.discard(fd)
            kept.writers -= writes
            if writes:
                self._written[kept.inode] -= 1
                if not self._written[kept.inode]:
                    del self._written[kept.inode]
            os.close(fd)

    def note_mapped(self, node: int, fd: int) -> None:
        """A process that had the file open as ``fd`` may go on writing to it through a mapping, once that is closed."""
        self._mapped[node] = os.fstat(fd)

    def is_written(self, node: int) -> bool:
        """Whether a process can write to it now, even through a mapping. (True if that is unknown.)"""
        if self._nodes[node].writers:
            return True
        return node in self._mapped and self._by_mapping(node) is not WriterStatus.NONE

    def _by_mapping(self, node: int) -> WriterStatus:
        noted = self._mapped.get(node)
        if noted is None:
            return WriterStatus.NONE
        try:
            with self.descriptor(node) as fd:
                file = os.open(proc_path(fd), os.O_RDONLY | AT_ONCE)
        except OSError:
            return WriterStatus.UNSUPPORTED  # it is forgotten, has no name, or a process has a lease on it
        try:
            writer = writer_of(file)
        finally:
            os.close(file)
        if writer is WriterStatus.NONE and self._mapped.get(node) is noted:
            self._mapped.pop(node, None)
        return writer

    def held_for_writing(self, _thorough: bool) -> frozenset[int]:
        """See `UndoLog.writers`: here that takes hardly any time."""
        # In this order: files closed meanwhile are noted as mapped before.
        with self._lock:
            opened = frozenset(self._written)
        noted = tuple(self._mapped.items())
        return opened.union(found.st_ino for node, found in noted if self._by_mapping(node) is WriterStatus.SOME)
