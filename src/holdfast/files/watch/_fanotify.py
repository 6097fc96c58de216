"""Watching by fanotify: one mark on the file system, whatever the size of the tree.

An event names a directory by its file handle and an entry in it by name (``FAN_REPORT_DFID_NAME``), and the object by a
handle of its own (``FAN_REPORT_TARGET_FID``). The directory's handle is turned into a path by opening it, and that is
remembered until a directory is renamed inside the tree, into it or out of it. The kernel merges waiting events of one
name, so nothing here depends on their order, except that the event of a rename is read after it. Sources: fanotify(7),
fanotify_mark(2).
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from holdfast.files.watch import event_syscalls
from holdfast.files.watch._drain_result import DrainResult, vanished_or_shared
from holdfast.files.watch._fanotify_events import ONDIR, decode, object_of, without
from holdfast.files.watch._fanotify_mounts import Mounts
from holdfast.files.watch.event_masks import (
    CLOSE_WRITE,
    DELETE,
    MODIFY,
    MOVED_FROM,
    MOVED_TO,
    NAMES,
    Q_OVERFLOW,
    WRITTEN,
)
from holdfast.model.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from holdfast.files.tree import DirtyPaths
    from holdfast.files.watch._fanotify_events import Event, Handle
    from holdfast.files.watch.event_masks import Notice, Wanted
    from holdfast.files.watch.watched_root import WatchedRoot

# Events on an object itself (DELETE_SELF, MOVE_SELF) would only repeat, for every file, those on its name; each drain
# checks whether the root is still the root.
MASK = WRITTEN | NAMES | ONDIR

_CLOEXEC, _NONBLOCK, _UNLIMITED_QUEUE, _UNLIMITED_MARKS = 0x1, 0x2, 0x10, 0x20
_REPORT_TID = 0x100
_REPORT_FID, _REPORT_DIR_FID, _REPORT_NAME, _REPORT_TARGET_FID = 0x200, 0x400, 0x800, 0x1000
_INIT = (
    _CLOEXEC | _NONBLOCK | _UNLIMITED_QUEUE | _UNLIMITED_MARKS
    | _REPORT_FID | _REPORT_DIR_FID | _REPORT_NAME | _REPORT_TARGET_FID
)  # fmt: skip
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100

_MAX_READS = 1024
"""A tree that changes faster than this is read gets the answer that is always right: everything."""
_MAX_REMEMBERED = 1 << 16


class FanotifyWatcher:
    """See `holdfast.files.watch.Watcher`. Needs CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH, and Linux 5.17.

    Raises `OSError` or `UnsupportedError` where it cannot work.
    """

    backend = "fanotify"

    def __init__(
        self,
        root: WatchedRoot,
        excluded: Callable[[bytes], bool],
        notice: Notice | None = None,
        passed: Container[int] | None = None,
        wanted: Wanted | None = None,
        *,
        by_thread: bool = False,
    ) -> None:
        self._notice = notice
        self._passed = passed
        self._wanted = wanted
        self._root = root
        self._excluded = excluded
        self.limits: str | None = (
            "a program that writes through a memory mapping is noticed when it closes the mapping, and a file with"
            " another name outside of the workspace is not when it is written by that name; full walks find both"
        )
        self._inside: dict[Handle, bytes] = {}
        self._outside: set[Handle] = set()
        self._gone: set[Handle] = set()
        """Deleted directories. Handles are never reused; events in them belong to no tree."""
        self._hidden: dict[bytes, bool] = {b"": False}
        self._mounts = Mounts()
        self._buffer = bytearray(event_syscalls.READ_BYTES)
        self._reading = threading.Lock()
        """Protects the two: `skim` is for another thread than `drain`."""
        self._skimmed = b""
        """Events that were read by `skim`, which `drain` is to take."""
        self._first = True
        self._blind = False
        self._fd = event_syscalls.fanotify_init(_INIT | (_REPORT_TID if by_thread else 0), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._mark_all()
            self._prove()
        except BaseException:
            self._release()
            raise
        self._mounts.rest()

    def fileno(self) -> int:
        """See `Watcher.fileno`."""
        return self._fd

    def close(self) -> None:
        """See `Watcher.close`."""
        self._release()
        self._root.close()

    def _release(self) -> None:
        self._mounts.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def refresh(self) -> bool:
        """See `Watcher.refresh`."""
        self._forget()
        return True

    def drain(self) -> DirtyPaths:
        """See `DirtySource.drain`."""
        try:
            return self._drain()
        finally:
            self._mounts.rest()

    def skim(self) -> None:
        """See `Watcher.skim`."""
        for _ in range(_MAX_READS):
            with self._reading:
                size, events = self._receive()
                self._skimmed += events
            if size < event_syscalls.FULL_READ:
                return

    def _drain(self) -> DirtyPaths:
        findings = DrainResult()
        if self._first:
            self._first = False
            findings.mark_uncertain("nothing is known yet")
        self._inspect(findings)
        batch = _Batch(findings)
        self._read(batch)
        if batch.stale - self._gone:
            # A directory being deleted at this moment is gone before its event has arrived.
            self._read(batch)
            unknown = batch.stale - self._gone
            if unknown:
                findings.mark_uncertain("something happened in a directory that is gone, and nothing said that it went")
                self._gone |= unknown
        self._check_shared(batch)
        if batch.has_events:
            # The handles were turned into paths on the belief that the root was where it should be.
            self._inspect(findings)
        if self._blind:
            findings.mark_uncertain("a mount below the root cannot be watched")
        if findings.rules_changed:
            self._forget()
        if len(self._gone) > _MAX_REMEMBERED:
            self._gone.clear()
        if max(len(self._outside), len(self._inside), len(self._hidden)) > _MAX_REMEMBERED:
            self._forget()
        return findings.dirty()

    # -- the root and the mounts below it -----------------------------------------------------------------------

    def _inspect(self, findings: DrainResult) -> None:
        if not self._root.same():
            findings.mark_uncertain("the root was moved, deleted or made again")
            self._forget()
            if not self._root.reopen():
                return
            self._mark_again(findings)
        elif self._root.mounts_changed():
            findings.mark_uncertain("something was mounted or unmounted in the tree")
            self._forget()
            self._mark_again(findings)

    def _mark_again(self, findings: DrainResult) -> None:
        self._mounts.close()
        try:
            self._mark_all()
            self._blind = False
        except (OSError, UnsupportedError) as error:
            findings.mark_uncertain(f"cannot watch: {error}")
            self._blind = True
            self.limits = (
                f"changes below a mount point in the tree are not noticed ({error}): every look is a full walk"
            )

    def _mark_all(self) -> None:
        self._mark(self._root.path)
        for mount in self._root.mounts_below:
            self._mark(mount.point)

    def _mark(self, path: bytes) -> None:
        fd = self._mounts.add(path)
        event_syscalls.fanotify_mark(self._fd, _MARK_ADD | _MARK_FILESYSTEM, MASK, fd, None)

    def _prove(self) -> None:
        """Raise if handles do not lead to paths here: the root's own must lead to the root."""
        handle = event_syscalls.filesystem_id(self._root.fd) + event_syscalls.file_handle(self._root.fd)
        if self._locate(handle) != b"":
            raise UnsupportedError("file handles do not lead back to paths on this file system")

    # -- events -------------------------------------------------------------------------------------------------

    def _read(self, batch: _Batch) -> None:
        for _ in range(_MAX_READS):
            batch.has_looked_up = False
            with self._reading:
                # (At once: events that `skim` reads in between precede this check too, which would miss them.)
                size, events = self._receive()
                events, self._skimmed = self._skimmed + events, b""
            self._take_all(events, batch)
            # (Events of changes found above may have been on their way: then they are here now.)
            if size < event_syscalls.FULL_READ and not batch.has_looked_up:
                return
        batch.findings.mark_uncertain("events arrive faster than they are read")

    def _receive(self) -> tuple[int, bytes]:
        """The number of bytes of events, and the events that are not passed over."""
        try:
            # (`os.read` would map and unmap memory of that size each time.)
            size = os.readv(self._fd, [self._buffer])
        except BlockingIOError:
            return 0, b""
        events = bytes(memoryview(self._buffer)[:size])
        return size, events if self._passed is None else without(events, self._passed)

    def _take_all(self, events: bytes, batch: _Batch) -> None:
        try:
            for event in decode(events, self._outside, self._is_wanted if self._wanted else None):
                batch.has_events = True
                self._take(event, batch)
        except ValueError as error:
            batch.findings.mark_uncertain(str(error))

    def _take(self, event: Event, batch: _Batch) -> None:
        mask, directory, name, target, pid = event
        if mask & Q_OVERFLOW:
            batch.findings.overflow()
            self._forget()
            return
        if directory is None:
            self._take_object(mask, target, pid, batch)
            return
        path = self._inside.get(directory)
        if path is None and directory not in self._outside:
            path = self._resolve(directory, name, batch)
        if mask & ONDIR and mask & (MOVED_FROM | MOVED_TO | DELETE):
            self._took_directory(event, directory, batch)
        if path is None:
            self._take_from_outside(mask, target, pid)
            return
        if name not in (b"", b"."):
            path = path + b"/" + name if path else name
            if target is not None:
                if mask & (MOVED_FROM | MOVED_TO):
                    batch.moved.add(target)
                if mask & WRITTEN and not mask & ONDIR:
                    batch.written[path] = target
        batch.findings.add(path)
        if self._notice is not None and not self._is_passed(pid):
            self._notice(path, mask, pid, None if target is None else object_of(target))

    def _take_object(self, mask: int, target: Handle | None, pid: int, batch: _Batch) -> None:
        """Take an event without a name.

        It reports a change of the link count (and each name has its own event), or an object reached without a path, as
        by a file server.
        """
        if not mask & (MODIFY | CLOSE_WRITE) or target is None:
            return
        batch.has_looked_up = True
        try:
            path = self._locate(target)
        except OSError as error:
            if error.errno != errno.ESTALE:
                batch.findings.mark_uncertain(f"cannot find a changed file: {error.strerror}")
            return
        if path is None:
            self._take_from_outside(mask, target, pid)
            return
        batch.written[path] = target
        batch.findings.add(path)
        if self._notice is not None:
            self._notice(path, mask, pid, object_of(target))

    def _take_from_outside(self, mask: int, target: Handle | None, pid: int) -> None:
        """An object was changed by a name that is not in the tree, or in a directory that is excluded."""
        if self._notice is None or self._is_passed(pid) or not mask & WRITTEN or mask & ONDIR or target is None:
            return
        if self._is_wanted(target):
            self._notice(None, mask, pid, object_of(target))

    def _is_passed(self, pid: int) -> bool:
        return self._passed is not None and pid in self._passed

    def _is_wanted(self, target: Handle) -> bool:
        return self._wanted is not None and self._wanted(object_of(target))

    def _took_directory(self, event: Event, directory: Handle, batch: _Batch) -> None:
        """A directory was renamed or deleted: the remembered paths may be wrong from here on."""
        if event.mask & DELETE and event.target is not None:
            self._gone.add(event.target)
            self._inside.pop(event.target, None)
        if not event.mask & (MOVED_FROM | MOVED_TO):
            return
        try:
            parent = self._mounts.where(directory)
        except OSError:
            self._forget()
            return
        moved = parent.rstrip(b"/") + b"/" + event.name
        if (self._root.real + b"/").startswith(moved + b"/"):
            batch.findings.mark_uncertain("the root, or a directory above it, was moved")
            self._forget()
        elif self._below_root(moved) is not None:
            # (Each directory that comes into the tree or leaves it has an event in there; other moves stay outside.)
            self._forget()

    def _forget(self) -> None:
        self._inside.clear()
        self._outside.clear()
        self._hidden = {b"": False}

    # -- paths --------------------------------------------------------------------------------------------------

    def _resolve(self, directory: Handle, name: bytes, batch: _Batch) -> bytes | None:
        """The path of a directory, None if its events are of no interest; remembered either way."""
        if directory in self._gone or (directory in batch.stale and name != b"."):
            return None
        batch.has_looked_up = True
        try:
            path = self._locate(directory)
        except OSError as error:
            if error.errno == errno.ESTALE:
                # A directory replaced by a rename reports only itself, and the rename has its own event.
                if name != b".":
                    batch.stale.add(directory)
            else:
                batch.findings.mark_uncertain(f"cannot find a directory by its handle: {error.strerror}")
            return None
        if path is None or self._is_hidden(path):
            self._outside.add(directory)
            return None
        self._inside[directory] = path
        return path

    def _is_hidden(self, path: bytes) -> bool:
        """True if the directory, or one above it, is excluded."""
        unknown: list[bytes] = []
        at = path
        while (hidden := self._hidden.get(at)) is None:
            unknown.append(at)
            at = at.rpartition(b"/")[0]
        for at in reversed(unknown):
            hidden = self._hidden[at] = hidden or self._excluded(at)
        return hidden

    def _locate(self, handle: Handle) -> bytes | None:
        """The path of a handle relative to the root, None if it is not below it. Raises ESTALE if it is gone."""
        return self._below_root(self._mounts.where(handle))

    def _below_root(self, real: bytes) -> bytes | None:
        if real == self._root.real:
            return b""
        above = self._root.real.rstrip(b"/") + b"/"
        return real[len(above) :] if real.startswith(above) else None

    # -- files with several names -------------------------------------------------------------------------------

    def _check_shared(self, batch: _Batch) -> None:
        if self._root.fd < 0:
            return
        for path in vanished_or_shared(self._root.fd, batch.written, batch.findings):
            names = self._mounts.names_left(batch.written[path])
            # One that was only moved has its new name reported by the move itself.
            if names > 1 or (names == 1 and batch.written[path] not in batch.moved):
                batch.findings.mark_uncertain("a file was written by a name that it has lost, and has others")
                return


class _Batch:
    """The findings of one drain."""

    __slots__ = ("findings", "has_events", "has_looked_up", "moved", "stale", "written")

    def __init__(self, findings: DrainResult) -> None:
        self.findings = findings
        self.written: dict[bytes, Handle] = {}
        self.moved: set[Handle] = set()
        self.stale: set[Handle] = set()
        """Directories with changes that are gone."""
        self.has_events = False
        self.has_looked_up = False
        """A directory was found by its handle since the last read."""
