"""Access to the objects of a recorded directory without ever leaving the root, and the paths of open ones.

Root can open an object by its file handle, even if its names have changed. Without that privilege, or where the file
system opens no handles, it is opened by its last known name, in a directory opened in the same way, and accepted only
if it is the same object. Some directories stay open. No symbolic link and no ``..`` is ever followed.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.file_handle import handle_of, identity
from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2
from holdfast.files.watch.event_syscalls import open_by_handle
from holdfast.vfs.file_system import ROOT
from holdfast.vfs.recorded.node import OBJECT, stale_error

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.files.linux.file_handle import Identity
    from holdfast.vfs.node_table import Nodes
    from holdfast.vfs.recorded.node import Node

_MOST_OPEN: Final = 256
"""Directories that stay open."""
_FRESH_NS: Final = 20_000_000
"""Time for which the paths of the root and its hidden directories are cached: only outside processes move them."""
_DELETED: Final = b" (deleted)"
_RULES: Final = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_OBJECT: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Held:
    """A directory that is open."""

    __slots__ = ("checked_ns", "fd", "users")

    def __init__(self, fd: int, checked_ns: int = 0) -> None:
        self.fd = fd
        self.users = 1
        self.checked_ns = checked_ns
        """When it was last seen to be in the tree."""


class BorrowedDirectory:
    """The descriptor of a directory, for the length of a block. (Each request has several.)"""

    __slots__ = ("_held", "_node", "_reach")

    def __init__(self, reach: NodeAccess, node: int) -> None:
        self._reach = reach
        self._node = node
        self._held: Held | None = None

    def __enter__(self) -> int:
        """Raises what `NodeAccess.directory` does."""
        self._held = held = self._reach.take(self._node)
        return held.fd

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The descriptor is not used any more."""
        if self._held is not None:
            self._reach.give(self._held)
            self._held = None


class NodeAccess:
    """Opens objects. Safe for several threads. Raises `OSError`, ESTALE for nodes that are not known."""

    def __init__(self, root_fd: int, root: Identity, nodes: Nodes[Node], paths: NodePaths) -> None:
        """``root_fd``, of which ``root`` is the identity, is borrowed."""
        self._root = root_fd
        self._paths = paths
        self._root_held = Held(root_fd)
        self._nodes = nodes
        self.opens_handles = _opens(root_fd, root)
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the open descriptors."""
        with self._lock:
            for held in self._held.values():
                os.close(held.fd)
            self._held.clear()

    def forget(self, node: int) -> None:
        """The other side does not know it any more."""
        with self._lock:
            held = self._held.pop(node, None)
            if held is not None:
                _let_go(held)

    def directory(self, node: int) -> BorrowedDirectory:
        """A descriptor of a directory, borrowed. Raises `OSError`: ENOTDIR for other objects."""
        return BorrowedDirectory(self, node)

    def directory_by_name(self, kept: Node) -> int:
        """-1 if it has no name that it was found under."""
        return self.last_name(kept)[0]

    def last_name(self, kept: Node) -> tuple[int, int, bytes]:
        """`directory_by_name`, and the name that it has now: the node of the directory, and the name in that."""
        for parent, name in ((kept.parent, kept.name), *kept.others):
            if not name:
                continue
            try:
                with self.directory(parent) as dir_fd:
                    fd = os.open(name, OBJECT, dir_fd=dir_fd)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                continue
            if identity(fd, b"") == kept.identity:
                return fd, parent, name
            os.close(fd)
        return -1, 0, b""

    def by_handle(self, kept: Node) -> int:
        """-1 if that is impossible or not allowed: a handle opens an object wherever it was moved."""
        if not (self.opens_handles and kept.is_local):
            return -1
        handle = handle_of(kept.identity)
        if handle is None:
            return -1
        fd = open_by_handle(self._root, handle)
        if self._paths.serves(fd):
            return fd
        os.close(fd)
        return -1

    def take(self, node: int) -> Held:
        """For `BorrowedDirectory`: the directory of a node, which is no longer closed; see `give`."""
        if node == ROOT:
            return self._root_held
        return self._hold(node)

    def give(self, held: Held) -> None:
        """``held`` may be closed."""
        if held is not self._root_held:
            with self._lock:
                _let_go(held)

    def _hold(self, node: int) -> Held:
        kept = self._nodes[node]
        if not kept.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        now = time.monotonic_ns()
        with self._lock:
            held = self._held.get(node)
            if held is not None:
                held.users += 1
                self._held.move_to_end(node)
        if held is not None:
            if now - held.checked_ns <= _FRESH_NS:
                return held
            if self._paths.serves(held.fd):
                held.checked_ns = now
                return held
            # (It was moved out of the tree, or its path is too long for the system to tell.)
            self._drop(node, held)
        fd = self._open_directory(node, kept)
        with self._lock:
            known = self._held.get(node)
            if known is not None:
                os.close(fd)
                known.users += 1
                return known
            held = Held(fd, now)
            if node in self._nodes:
                held.users += 1
                self._held[node] = held
                if len(self._held) > _MOST_OPEN:
                    _, oldest = self._held.popitem(last=False)
                    _let_go(oldest)
            return held

    def _drop(self, node: int, held: Held) -> None:
        """The borrower uses it no more, and it does not stay open."""
        with self._lock:
            if self._held.get(node) is held:
                del self._held[node]
                _let_go(held)
            _let_go(held)

    def _open_directory(self, node: int, kept: Node) -> int:
        if (fd := self.by_handle(kept)) >= 0:
            return fd
        way: list[Node] = []
        seen: set[int] = set()
        while node != ROOT:
            if node in seen:
                raise stale_error()  # the known names of some of them are long outdated
            seen.add(node)
            way.append(kept)
            node, kept = kept.parent, self._nodes[kept.parent]
        fd = os.dup(self._root)
        for each in reversed(way):
            try:
                inner = os.open(each.name, OBJECT | os.O_DIRECTORY, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):
                raise stale_error() from None
            finally:
                os.close(fd)
            fd = inner
            if identity(fd, b"") != each.identity:
                os.close(fd)
                raise stale_error()
        return fd


def _let_go(held: Held) -> None:
    """One user less. Needs the lock."""
    held.users -= 1
    if not held.users:
        os.close(held.fd)


def _opens(root_fd: int, object_: Identity) -> bool:
    handle = handle_of(object_)
    if handle is None:
        return False
    try:
        os.close(open_by_handle(root_fd, handle))
    except OSError:
        return False
    return True


class NodePaths:
    """Where in the tree an open object is, relative to the root: the kernel says so, and knows of every rename. For any
    number of threads.
    """

    def __init__(self, root_fd: int, hidden: tuple[int, ...] = ()) -> None:
        """The descriptors are borrowed; ``hidden`` are those of directories that are no part of the tree."""
        self._root = root_fd
        self._hidden = hidden
        self._known: tuple[int, bytes, tuple[bytes, ...]] = 0, b"", ()

    def path(self, fd: int) -> bytes | None:
        """The path of the object of ``fd``, empty for the root; None if it is not below the root, or in a hidden
        directory there, as removed objects are.

        Raises `OSError`: ENAMETOOLONG if it is too deep for a path.
        """
        root, hidden = self._places()
        path = _absolute(fd)
        if path == root:
            return b""
        path = _below(root, path)
        # (The undo log may be in the tree, and keeps removed objects: that is not their place.)
        if path is None or any(path == each or path.startswith(each + b"/") for each in hidden):
            return None
        return None if path.endswith(_DELETED) and not self._is_there(path, fd) else path

    def serves(self, fd: int) -> bool:
        """Whether the object of ``fd`` is in the tree, or was removed: then it has no name, or is in the undo log.
        False for an object moved elsewhere, and where the system cannot tell (a path that is too long, a file without a
        known name).
        """
        try:
            path = _absolute(fd)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return False
        if self._is_below(path, self._places()[0]):
            return True
        if not os.fstat(fd).st_nlink or any(self._is_below(path, _absolute(each)) for each in self._hidden):
            return True
        return self._is_below(path, _absolute(self._root))  # (the root may have been moved just now)

    @staticmethod
    def _is_below(path: bytes, directory: bytes) -> bool:
        return path == directory or _below(directory, path) is not None

    def hidden(self) -> tuple[bytes, ...]:
        """The paths of the hidden directories below the root."""
        return self._places()[1]

    def _places(self) -> tuple[bytes, tuple[bytes, ...]]:
        """The path of the root, and the paths of its hidden directories."""
        at, root, hidden = self._known
        now = time.monotonic_ns()
        if now - at > _FRESH_NS:
            root = _absolute(self._root)
            paths = (_below(root, _absolute(fd)) for fd in self._hidden)
            hidden = tuple(path for path in paths if path is not None)
            self._known = now, root, hidden
        return root, hidden

    def _is_there(self, path: bytes, fd: int) -> bool:
        """Whether it is really called so."""
        try:
            found = openat2(self._root, path, _OBJECT, _RULES)
        except OSError:
            return False
        try:
            return os.path.samestat(os.fstat(found), os.fstat(fd))
        finally:
            os.close(found)


def _below(root: bytes, path: bytes) -> bytes | None:
    """An absolute path relative to the root; None if it is not below it."""
    above = root if root.endswith(b"/") else root + b"/"
    return path[len(above) :] if path.startswith(above) else None


def _absolute(fd: int) -> bytes:
    return os.fsencode(os.readlink(proc_path(fd)))
