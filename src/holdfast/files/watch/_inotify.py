"""Watching by inotify: one watch on every directory that is not excluded. Needs no privilege.

A watch belongs to the inode and follows it through renames; its path is kept in a tree of nodes that the events
rewrite. Whenever a directory appears, by creation or by a rename, its *present* content is watched and listed, at all
depths, so that an answer is right once the queue is read empty, however late that is. Source: inotify(7).
"""

from __future__ import annotations

import errno
import os
import select
import struct
from typing import TYPE_CHECKING

from holdfast.files.tree import DirtyPaths
from holdfast.files.watch import event_syscalls
from holdfast.files.watch._drain_result import DrainResult, vanished_or_shared
from holdfast.files.watch._inotify_nodes import Nodes
from holdfast.files.watch._polling import DEFAULT_INTERVAL, TreeComparison, clear_timer
from holdfast.files.watch.event_masks import ATTRIB, CREATE, DELETE, MOVED_FROM, MOVED_TO, NAMES, Q_OVERFLOW, WRITTEN
from holdfast.files.watch.event_syscalls import why
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import MAX_PATH_BYTES, display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.files.watch._inotify_nodes import Node
    from holdfast.files.watch.event_masks import Notice
    from holdfast.files.watch.watched_root import WatchedRoot


# Decodes the events of inotify; pure: bytes in, events out. Source: inotify(7), "Reading events".

UNMOUNT = 0x2000
IGNORED = 0x8000
ISDIR = 0x40000000

_EVENT = struct.Struct("=iIII")


class Event(NamedTuple):
    """One event as the kernel gave it."""

    wd: int
    mask: int
    cookie: int
    name: bytes


def decode(buffer: bytes) -> Iterator[Event]:
    """The events in the result of one read (inotify(7), "Reading events"); raises `ValueError` if one is truncated."""
    at, end = 0, len(buffer)
    while at < end:
        if end - at < _EVENT.size:
            raise ValueError("an event is cut short")
        wd, mask, cookie, length = _EVENT.unpack_from(buffer, at)
        at += _EVENT.size
        if length > end - at:
            raise ValueError("the name of an event is cut short")
        yield Event(wd, mask, cookie, buffer[at : at + length].rstrip(b"\0") if length else b"")
        at += length


_ONLYDIR = 0x1000000
_MASK = WRITTEN | NAMES | _ONLYDIR
_MASK_ABOVE = NAMES | _ONLYDIR

_MAX_READS = 1024
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_log = Log(__name__)


class InotifyWatcher:
    """See `holdfast.files.watch.Watcher`. Raises `OSError` where it cannot work (ENOSPC, EMFILE at a limit).

    When the limit of watches is reached later on, it goes on as polling does, and tries again at every `refresh`.
    """

    backend = "inotify"

    def __init__(
        self,
        root: WatchedRoot,
        excluded: Callable[[bytes], bool],
        notice: Notice | None = None,
        *,
        poll_interval: float = DEFAULT_INTERVAL,
    ) -> None:
        self._notice = notice
        self._root = root
        self._excluded = excluded
        self._interval = poll_interval
        self._usual = (
            "a program that writes through a memory mapping is noticed when it closes the mapping, and a file with"
            " several names only when it is written by one that is in the workspace; full walks find both"
        )
        self._nodes = Nodes()
        self._above = -1
        self._first = True
        self._sweep_due = False
        self._timer = -1
        self._look = TreeComparison(root.path, excluded)
        self._epoll = select.epoll()
        self._fd = -1
        try:
            self._fd = event_syscalls.inotify_init()
            self._epoll.register(self._fd, select.EPOLLIN)
            self._sweep(DrainResult())
        except BaseException:
            self._release()
            raise

    @property
    def limits(self) -> str | None:
        """See `Watcher.limits`."""
        if self._timer < 0:
            return self._usual
        return (
            "the tree has more directories than fs.inotify.max_user_watches allows: Holdfast scans "
            f"the whole tree every {self._interval:g} s"
        )

    def fileno(self) -> int:
        """See `Watcher.fileno`."""
        return self._epoll.fileno()

    def close(self) -> None:
        """See `Watcher.close`."""
        self._release()
        self._root.close()

    def _release(self) -> None:
        self._epoll.close()
        for fd in (self._fd, self._timer):
            if fd >= 0:
                os.close(fd)
        self._fd = self._timer = -1

    def skim(self) -> None:
        """See `Watcher.skim`. No event says here which process it was."""

    def refresh(self) -> bool:
        """See `Watcher.refresh`."""
        self._sweep_due = True
        return self._timer < 0  # else the next look at the whole tree is soon enough

    def drain(self) -> DirtyPaths:
        """See `DirtySource.drain`."""
        findings = DrainResult()
        if self._first:
            self._first = False
            findings.mark_uncertain("nothing is known yet")
        try:
            self._inspect(findings)
            batch = _Batch(findings)
            self._read(batch)
            if self._sweep_due:
                self._sweep(findings)
            # Nodes without a path when the queue is empty are no longer watched.
            for wd in self._nodes.drop_loose():
                self._unwatch(wd)
            self._check_shared(batch)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._go_blind(error)
        found = findings.dirty()
        if self._timer < 0:
            return found
        news = bool(found.everything or found.paths)
        if clear_timer(self._timer):
            news = self._look.changed() or news
        return DirtyPaths(everything=True, paths=frozenset(), news=news)  # not every directory is watched

    def _inspect(self, findings: DrainResult) -> None:
        if not self._root.same():
            findings.mark_uncertain("the root was moved, deleted or made again")
            if not self._root.reopen():
                return
            self._sweep_due = True
        elif self._root.mounts_changed():
            findings.mark_uncertain("something was mounted or unmounted in the tree")
            self._sweep_due = True

    def _go_blind(self, error: OSError) -> None:
        self._sweep_due = False
        if self._timer < 0:
            self._timer = event_syscalls.timer(self._interval)
            self._epoll.register(self._timer, select.EPOLLIN)
            _log.warning(
                "cannot watch all of %s: %s; scanning the whole tree every %g s",
                display(self._root.path),
                why("inotify", error),
                self._interval,
            )

    # -- events -------------------------------------------------------------------------------------------------

    def _read(self, batch: _Batch) -> None:
        full: OSError | None = None
        for _ in range(_MAX_READS):
            try:
                buffer = os.read(self._fd, event_syscalls.READ_BYTES)
            except BlockingIOError:
                break
            try:
                for event in decode(buffer):
                    try:
                        self._take(event, batch)
                    except OSError as error:  # the queue is read empty first
                        if error.errno != errno.ENOSPC:
                            raise
                        full = error
            except ValueError as error:
                batch.findings.mark_uncertain(str(error))
                self._sweep_due = True
            if len(buffer) < event_syscalls.FULL_READ:
                break
        else:
            batch.findings.mark_uncertain("events arrive faster than they are read")
        if full is not None:
            raise full

    def _take(self, event: Event, batch: _Batch) -> None:
        wd, mask, _, name = event
        if mask & Q_OVERFLOW:
            batch.findings.overflow(" (fs.inotify.max_queued_events)")
            self._sweep_due = True
            return
        if mask & UNMOUNT:
            batch.findings.mark_uncertain("a file system in the tree was unmounted")
            self._sweep_due = True
        if wd == self._above:
            return  # only wakes the waiting thread: the root was checked already
        node = self._nodes.get(wd)
        if node is None:
            return
        if mask & IGNORED:
            self._nodes.remove(node)
            return
        directory = self._nodes.path(node)
        if directory is None:
            return  # it is on its way; where it arrives, all of it counts as changed
        path = directory + b"/" + name if directory and name else directory or name
        batch.findings.add(path)
        if self._notice is not None:
            self._notice(path, mask, None, None)
        if not name:
            return
        if mask & ISDIR:
            self._take_directory(node, name, path, mask)
            return
        if mask & (CREATE | MOVED_TO):
            batch.arrived.add(path)
        if mask & MOVED_FROM:
            batch.arrived.add(path)  # its further names, if any, are checked with its new name
        if mask & (WRITTEN | MOVED_TO):
            batch.written.add(path)

    def _take_directory(self, node: Node, name: bytes, path: bytes, mask: int) -> None:
        if mask & (MOVED_FROM | DELETE):
            child = node.children.get(name)
            if child is not None:
                self._nodes.detach(child)
        # A change of permissions can make a directory readable that was not.
        if (mask & (CREATE | MOVED_TO) or (mask & ATTRIB and name not in node.children)) and self._timer < 0:
            self._cover(path)

    def _unwatch(self, wd: int) -> None:
        try:
            event_syscalls.inotify_rm_watch(self._fd, wd)
        except OSError:
            pass  # the directory was gone before

    # -- putting watches in place -------------------------------------------------------------------------------

    def _cover(self, start: bytes) -> None:
        """Watch the directory ``start`` and all directories now below it, except those that are excluded or too deep
        for captured files.

        Each is watched first and listed afterwards, so that no entry made in between is missed. Raises ENOSPC.
        """
        todo = [start]
        last, last_fd = b"", -1
        try:
            while todo:
                path = todo.pop()
                if path and (len(path) >= MAX_PATH_BYTES - 1 or self._excluded(path)):
                    continue
                parent, _, name = path.rpartition(b"/")
                # Usually a direct child: then a deep tree is not walked from its root again for every level.
                fd = self._open(name, last_fd) if last_fd >= 0 and path and parent == last else self._open(path)
                if fd is None:
                    continue
                if last_fd >= 0:
                    os.close(last_fd)
                last, last_fd = path, fd
                self._cover_one(path, fd, todo)
        finally:
            if last_fd >= 0:
                os.close(last_fd)

    def _cover_one(self, path: bytes, fd: int, todo: list[bytes]) -> None:
        """Watch the directory ``path``, open as ``fd``, and add those in it to ``todo``."""
        try:
            wd = event_syscalls.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _MASK)
            if not self._nodes.attach(wd, path):
                self._sweep_due = True  # when the queue is empty, the whole tree is learnt anew
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        name = os.fsencode(entry.name)
                        todo.append(path + b"/" + name if path else name)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            # Deleted meanwhile, or unreadable: then nothing in it can be captured either.

    def _open(self, path: bytes, start: int | None = None) -> int | None:
        """Open a directory below the root, or below ``start``, without following a link on the way (I7); None if it
        cannot be.
        """
        start = self._root.fd if start is None else start
        at = start
        try:
            for part in path.split(b"/") if path else (b".",):
                inner = os.open(part, _OPEN, dir_fd=at)
                if at != start:
                    os.close(at)
                at = inner
        except OSError:
            if at != start:
                os.close(at)
            return None
        return at

    def _sweep(self, findings: DrainResult) -> None:
        """Learn the whole tree anew; directories that were not watched before count as changed."""
        self._sweep_due = False
        before, self._nodes = self._nodes.descriptors(), Nodes()
        try:
            if self._root.fd >= 0:
                self._cover(b"")
                self._watch_above()
        finally:
            now = self._nodes.descriptors()
            for wd in before - now:
                self._unwatch(wd)
        for wd in now - before:
            node = self._nodes.get(wd)
            path = None if node is None else self._nodes.path(node)
            if path is None:
                findings.mark_uncertain("a directory moved while the tree was learnt anew")
                self._sweep_due = True
            else:
                findings.add(path)
        if self._timer >= 0:
            self._epoll.unregister(self._timer)
            os.close(self._timer)
            self._timer = -1
            findings.mark_uncertain("every directory is watched again")

    def _watch_above(self) -> None:
        """Wake up when the root is deleted, moved or made again; the next drain sees all that this cannot see."""
        if self._above >= 0 and self._above not in self._nodes:
            self._unwatch(self._above)
        try:
            self._above = event_syscalls.inotify_add_watch(self._fd, os.path.dirname(self._root.real), _MASK_ABOVE)
        except OSError as error:
            self._above = -1
            if error.errno == errno.ENOSPC:
                raise

    # -- files with several names -------------------------------------------------------------------------------

    def _check_shared(self, batch: _Batch) -> None:
        if self._root.fd < 0:
            return
        gone = vanished_or_shared(self._root.fd, batch.written, batch.findings)
        if not batch.arrived.issuperset(gone):
            batch.findings.mark_uncertain("a file was written and is gone: it may have had further names")


class _Batch:
    """The findings of one drain."""

    __slots__ = ("arrived", "findings", "written")

    def __init__(self, findings: DrainResult) -> None:
        self.findings = findings
        self.written: set[bytes] = set()
        self.arrived: set[bytes] = set()
        """Names that came into being in this drain, or were moved away in it."""
