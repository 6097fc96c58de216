"""The extent of the workspace, and the unreachable paths: decided by the kernel's path of a descriptor."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.linux.long_paths import DELETED, open_below
from holdfast.model.paths import UNDO_LOG_IN_TREE, under
from holdfast.processes.forked_process import open_for_good
from holdfast.supervisor.resolution.mount_table import mounts, mounts_of, other_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.files.linux.mount_table import Mount
    from holdfast.supervisor.resolution.caller_identity import Caller
    from holdfast.supervisor.resolution.handler_context import HandlerContext

SELF_FD = open_for_good("/proc/self/fd")
"""The keeper's descriptors, as links to their objects."""

_FRESH_NS = 20_000_000
"""For so long, the workspace and Holdfast's home are taken to be where they were: only a process outside, which
nothing here holds up, moves them."""
_MOST_VIEWS = 16
_TOP = open_for_good("/")
_ANY_LOG = b"/" + UNDO_LOG_IN_TREE + b"/"
"""An undo log inside a workspace, of any workspace: no tree of another one may change it either. Its name identifies
it, which costs no disk access, and no tree can change that name.
"""
_KEPT_IN, _LOG = os.path.split(b"/" + UNDO_LOG_IN_TREE)


class Location(NamedTuple):
    """Where an object is."""

    absolute: bytes
    """In the keeper's view."""
    path: bytes | None
    """Relative to the workspace's root, empty for the root; None outside."""
    forbidden: bool = False
    """In Holdfast's home, except the workspace itself if it is there, or in an undo log."""
    read_only: bool = False
    """A `ReadOnly` directory, or in one."""


class ReadOnly:
    """A directory that a tree may not change, with its contents: identified by a descriptor, wherever an outside
    process moves it, and whatever replaces it at its path. For several threads at once.
    """

    def __init__(self, fd: int) -> None:
        """Take the descriptor over. Raises `OSError`."""
        self._fd = fd
        self._first = self._last = absolute(fd)
        self._lock = threading.Lock()

    def paths(self) -> tuple[bytes, ...]:
        """Where it is now, and where it was at first; after `close`, as they were last."""
        with self._lock:
            if self._fd >= 0:
                self._last = absolute(self._fd)
            return self._first, self._last

    def close(self) -> None:
        """Release it. A slow call may still run, and must not mistake another directory for it."""
        with self._lock:
            fd, self._fd = self._fd, -1
        os.close(fd)


class Territory:
    """The workspace, the unreachable and the read-only directories, of one `HandlerContext`."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        self._looked = 0
        self._root = b""
        self._forbidden: tuple[tuple[bytes, bool], ...] = ()
        """By every path that a mount shows them at; and whether the workspace lies in there, which stays open."""
        self._shown: dict[tuple[str, int, int], tuple[int, tuple[Mount, ...]]] = {}
        """The mounts of callers with another view than the keeper, by view, with the time of their reading."""
        self._read_only: tuple[bytes, ...] = ()
        """Each ends with a slash."""
        self._borders: frozenset[bytes] = frozenset()
        """All of these."""

    def show(self, caller: Caller) -> None:
        """A caller with another view than the keeper is about to use a path. Raises `OSError`."""
        now = time.monotonic_ns()
        looked, _ = self._shown.get(caller.view, (0, ()))
        if now - looked > _FRESH_NS:
            shown = self._shown | {caller.view: (now, mounts_of(caller.fd))}
            # (Replaced, never changed, for other threads.) Keeping paths that no process sees any more is harmless.
            self._shown = dict(list(shown.items())[-_MOST_VIEWS:])
            self.forget()

    def locate(self, absolute: bytes) -> Location:
        """Where a path is that holds no links."""
        now = time.monotonic_ns()
        if now - self._looked > _FRESH_NS:
            self._look()
            self._looked = now
            borders = (
                *(path for path, is_around in self._forbidden if not is_around),
                *(path[:-1] for path in self._read_only),
            )
            self._context.note_territory(self._root, borders, _FRESH_NS)
        for forbidden, is_around in self._forbidden:
            if (absolute == forbidden or absolute.startswith(forbidden + b"/")) and not (
                is_around and under(absolute, self._root)
            ):
                return Location(absolute, None, forbidden=True)
        below = absolute + b"/"
        if _ANY_LOG in below:
            return Location(absolute, None, forbidden=True)
        if below.startswith(self._read_only):
            return Location(absolute, None, read_only=True)
        root = self._root
        if absolute == root:
            return Location(absolute, b"")
        if absolute.startswith(root) and (absolute[len(root)] == 47 or root == b"/"):
            return Location(absolute, absolute[len(root) :].lstrip(b"/"))
        return Location(absolute, None)

    def child(self, directory: Location, name: bytes) -> Location:
        """Where a name in a directory is that was just found there."""
        path = directory.path
        if path is None or len(directory.absolute) == 1:
            return self.locate(os.path.join(directory.absolute, name))
        absolute = b"%b/%b" % (directory.absolute, name)
        if name == _LOG or absolute in self._borders:
            return self.locate(absolute)
        return Location(absolute, b"%b/%b" % (path, name) if path else name)

    def holds_forbidden(self, absolute: bytes, directory: int) -> bool:
        """Whether an unreachable path is below the path, a name in ``directory``, and would move with it; for others'
        undo logs, whether one would lose its identifying name.
        """
        if absolute.endswith(_KEPT_IN) and os.access(
            os.path.join(_KEPT_IN[1:], _LOG), os.F_OK, dir_fd=directory, follow_symlinks=False
        ):
            return True
        return any(forbidden.startswith(absolute + b"/") for forbidden, _ in self._forbidden)

    def would_be_log(self, name: bytes, source_fd: int, source: bytes) -> bool:
        """Whether the object at ``source`` in a directory would be an undo log's place under another ``name``: it has
        an entry with a log's name, or it is a link, which may lead to such a place at any time.
        """
        if not is_log_name(name):
            return False
        try:
            if stat.S_ISLNK(os.stat(source, dir_fd=source_fd, follow_symlinks=False).st_mode):
                return True
            os.stat(os.path.join(source, _LOG), dir_fd=source_fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def holds_read_only(self, absolute: bytes) -> bool:
        """Whether the path is that of a read-only directory, or one lies beneath it, and would move with it."""
        return any(path.startswith(absolute + b"/") for path in self._read_only)

    def forget(self) -> None:
        """A directory outside was moved: perhaps one of these."""
        self._looked = 0
        self._context.note_territory(self._root, (), 0)

    def _look(self) -> None:
        self._root = root = absolute(self._context.root_fd)
        shown = [*mounts(), *(mount for _, mounted in [*self._shown.values()] for mount in mounted)]
        forbidden = set(_mounted_logs(shown))
        for fd in self._context.forbidden:
            path = absolute(fd)
            # The workspace may be in one of them, as forks are in the home: it is accessible at its own path alone.
            others = {at for at, shows in other_paths(fd, path, shown) if at != shows or not under(at, root)}
            forbidden |= {path, *others}
        self._forbidden = tuple((each, each != root and under(root, each)) for each in forbidden)
        read_only = {path.rstrip(b"/") for each in self._context.read_only for path in each.paths()}
        self._read_only = tuple(path + b"/" for path in read_only)
        self._borders = frozenset((*forbidden, *read_only))


def is_log_name(name: bytes) -> bool:
    """Whether it is what a directory is called that an undo log lies in: no link goes by that name."""
    return name == _KEPT_IN[1:]


def _mounted_logs(shown: Iterable[Mount]) -> Iterator[bytes]:
    """Where mounts show the undo logs of other workspaces without their names."""
    for mount in shown:
        if _ANY_LOG in mount.root + b"/":
            yield mount.point
        elif mount.root.endswith(_KEPT_IN):
            yield os.path.join(mount.point, _LOG)


def absolute(fd: int) -> bytes:
    """The kernel's path of ``fd``; with `` (deleted)`` appended if it has none.

    Raises `OSError`: ENAMETOOLONG if it is longer than the kernel's limit (see
    `holdfast.files.linux.long_paths.path_of`).
    """
    return os.readlink(b"%d" % fd, dir_fd=SELF_FD)


def is_deleted(fd: int, path: bytes) -> bool:
    """Whether the object with this `absolute` path has been deleted, rather than being named so."""
    if not path.endswith(DELETED):
        return False
    try:
        there = open_below(_TOP, path[1:], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0)
        try:
            return not os.path.samestat(os.fstat(there), os.fstat(fd))
        finally:
            os.close(there)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return True
        raise


def reopen(fd: int, flags: int) -> int:
    """Open the descriptor's object again, whatever its name is now."""
    return os.open(b"%d" % fd, flags, dir_fd=SELF_FD)
