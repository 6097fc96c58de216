"""Watches other processes' changes in the workspace while a keeper runs, and makes barriers of them.

fanotify reports the process of a change. The keeper changes names for the processes that it serves, so a name that
another process changes is an outside change. A write belongs to its process, which is identified by its ancestors. If
the process has ended, or is a kernel thread, the write is an outside change unless the undo log explains it. Even then
it is one if the process was none of the supervised ones that have ended, and was the last to close the file: it has
opened it itself, and did not inherit it. A close without a write is an outside change unless the log explains it: the
last process to close a file may have inspected the writer's descriptor in ``/proc`` (as lsof does), or have written by
a memory map. inotify reports no process: every change that the log does not explain is an outside change.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.files.watch import open_watcher
from holdfast.files.watch.event_masks import CLOSE_WRITE, MODIFY, NAMES, Q_OVERFLOW, WRITTEN
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import under

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.files.watch import Backend, Watcher
    from holdfast.supervisor.outsiders.recorded_paths import RecordedPaths
    from holdfast.undo.local_service.undo_service import LocalUndoService

_log = Log(__name__)

_READY_SECONDS = 1.0
"""A tree that takes longer to be watched is watched a little later than the first program starts."""
_KNOWN_SECONDS = 5.0
"""For so long after its last event, a process is who it was: its number is used anew after all others."""
_MOST_KNOWN = 1 << 14
_PAUSE_MILLISECONDS = 50
"""After edits by others, until the next look: they come in numbers, and are noted together."""
_BREATH_MILLISECONDS = 5
"""The pause after a read with only our own changes. Each of the keeper's changes makes an event: reading them one by
one would take the interpreter from the serving thread twice for each. No longer pause: of a writer that ends meanwhile
less is known.
"""
_NUMBER = re.compile(rb"#[0-9]+\Z")
"""``d_mark_tmpfile`` in ``fs/dcache.c`` of Linux."""
_CLOCK_REALTIME_COARSE = 5
"""From ``<linux/time.h>``: the clock of file times, or one that is never behind it."""
_ENDED = (b"Z", b"X")
_KERNEL_THREADS = 2
"""The parent of all kernel threads, one of which may be the last to close a file."""


class OutsideWatcher:
    """See the module. Its thread reads events; `settle` and `pause` are for any other."""

    def __init__(
        self,
        service: LocalUndoService,
        explained: RecordedPaths,
        root: bytes,
        hidden: Iterable[bytes],
        is_inside: Callable[[int], bool],
        may_have_been_inside: Callable[[int], bool],
        *,
        blocks: bool = True,
        backend: Backend = "auto",
    ) -> None:
        """``hidden`` are absolute paths of Holdfast's own; ``is_inside(pid)`` says whether a process that lives, or one
        above it, belongs to a supervised tree; ``may_have_been_inside(pid)``, whether one that has ended may have
        belonged to one. ``blocks`` is false with the policy ``warn``.
        """
        self._service = service
        self._explained = explained
        self._root = root
        above = root.rstrip(b"/") + b"/"
        self._hidden = tuple(path[len(above) :] for path in hidden if path.startswith(above))
        self._is_inside = is_inside
        self._may_have_been_inside = may_have_been_inside
        self._blocks = blocks
        self._backend: Backend = backend
        self._gate = explained.gate
        """Held while events are looked at: nothing is recorded meanwhile. The recorder may hold it and look."""
        self._watcher: Watcher | None = None
        self._pauses = 0
        self._news: list[_News] = []
        """Events that were read, and not reported yet."""
        self._read_at = 1 << 63
        self._known: dict[int, tuple[_Editor, float]] = {}
        """Who a process is, and until when that is believed."""
        self._fresh = False
        """`_explained` was refreshed since the last read."""
        self._failed = False
        """Watching worked, and has failed since."""
        self._made = False
        """The last look made a barrier."""
        self._ready = threading.Event()
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()
        self._ready.wait(_READY_SECONDS)

    def end(self) -> None:
        """Handle the events until now, and stop watching."""
        self.settle()
        os.eventfd_write(self._over, 1)
        self._thread.join()
        os.close(self._over)

    def settle(self) -> None:
        """Handle the events until now."""
        with self._gate:
            self._read()
            self._tell()

    def settle_before(self, changed: int, is_own: Callable[[], bool]) -> None:
        """`settle` before a step touches an object with the ctime ``changed``, if that may be a new change by others;
        not if the object ``is_own``, made by the step.
        """
        if changed >= self._read_at and not is_own():
            self.settle()

    @contextmanager
    def pause(self) -> Generator[None]:
        """For the length of the block the keeper itself changes the tree: changes that name no process are its own."""
        with self._gate:
            self.settle()
            self._pauses += 1
        try:
            yield
        finally:
            with self._gate:
                self.settle()
                self._pauses -= 1

    # The thread -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            watcher = self._watching()
            with self._gate:
                self._watcher = watcher
        except HoldfastError as error:
            _log.warning("edits by others are noticed only when undo meets them: %s", error.message)
            return
        finally:
            self._ready.set()
        over, wakers = select.poll(), select.poll()
        over.register(self._over, select.POLLIN)
        wakers.register(self._over, select.POLLIN)
        wakers.register(watcher.fileno(), select.POLLIN)
        try:
            while not over.poll(_PAUSE_MILLISECONDS if self._made else _BREATH_MILLISECONDS):
                wakers.poll()
                with suppress(OSError):  # `settle` fails as well, and reports it
                    watcher.skim()  # without the gate: calls go on meanwhile
                self.settle()
                if self._failed:
                    return
        finally:
            with self._gate:
                watcher.close()
                self._watcher = None

    def _watching(self) -> Watcher:
        backends: tuple[Backend, ...] = ("fanotify", "inotify") if self._backend == "auto" else (self._backend,)
        for backend in backends[:-1]:
            try:
                return self._open(backend)
            except UnsupportedError as error:
                _log.info("%s", error.message)
        return self._open(backends[-1])

    def _open(self, backend: Backend) -> Watcher:
        watcher = open_watcher(
            self._root, backend, self._is_hidden, notice=self._notice, passed=_Served(self), wanted=self._is_recorded
        )
        self._note_read(_now())
        watcher.drain()
        self._news.clear()
        return watcher

    def _is_hidden(self, path: bytes) -> bool:
        return any(under(path, hidden) for hidden in self._hidden)

    def _note_read(self, at: int) -> None:
        """All events until then, by the clock of file systems, were read: older changes are known."""
        self._read_at = at
        self._explained.note_read(at)

    def _read(self) -> None:
        """Read events, and identify their processes while they live."""
        if self._watcher is None or self._failed:
            return
        now = _now()
        self._fresh = False
        try:
            self._watcher.drain()
            self._note_read(now)
        except OSError as error:
            _log.warning("edits by others are noticed only when undo meets them from here on: %s", error.strerror)
            self._failed = True
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()

    def _tell(self) -> None:
        """Make barriers of the events."""
        if not self._news:
            self._made = False
            return
        news, self._news = self._news, []
        found = self._decide(news)
        self._made = bool(found)
        for who, edits in found.items():
            _log.info("external modification", who=who, paths=list(edits.paths))
            try:
                self._service.record_foreign_edit(
                    tuple(edits.paths), who, blocks=self._blocks, objects=tuple(edits.objects)
                )
            except HoldfastError as error:
                _log.warning("an edit by %s cannot be noted: %s", who or "another process", error.message)

    # Events -----------------------------------------------------------------------------------------------------

    def _notice(self, path: bytes | None, mask: int, pid: int | None, object_: Identity | None) -> None:
        if path is None and object_ is not None:
            path = self._explained.path_of(object_)  # an object that a step has touched
        if not path or mask & Q_OVERFLOW or self._is_hidden(path):
            return
        if not mask & WRITTEN:
            object_ = None  # only one of its names changed
        if pid is None:
            if not self._pauses:
                # inotify reports a file by its number if it never gets a name, or has none yet.
                is_nameless = not mask & NAMES and _NUMBER.match(path.rpartition(b"/")[2]) is not None
                self._news.append(_News(path, None, False, None, _UNKNOWN_EDITOR, is_nameless=is_nameless))
        elif not (party := self._who(pid)).is_ours:
            kinds = mask & (WRITTEN | NAMES)
            self._news.append(_News(path, object_, bool(mask & NAMES), pid, party, kinds))

    def _decide(self, news: Iterable[_News]) -> dict[str, _Edits]:
        """Others' changes, by their authors. A process that may be ours is not if the log leaves even one of its
        changes unexplained, nor a stranger that wrote to a file and was the last to close it: it has opened it itself.
        """
        found: dict[str, _Edits] = {}
        unsure: dict[int, list[_News]] = {}
        for each in news:
            if each.pid is None:
                if not self._is_explained(each.path) and not (each.is_nameless and self._explained.is_gone(each.path)):
                    _add(found, "", each)
            elif not each.party.is_sure:
                is_explained = not each.is_name and self._is_explained(each.path)
                unsure.setdefault(each.pid, []).append(each._replace(is_explained=is_explained))
            elif each.kinds != CLOSE_WRITE or not self._is_explained(each.path):  # else it may only have looked at it
                _add(found, each.party.name, each)
        for pid, edits in unsure.items():
            if all(each.is_explained for each in edits) and not _opened_by_a_stranger(edits):
                continue
            party, until = self._known.get(pid, (_UNKNOWN_EDITOR, 0.0))
            self._known[pid] = party._replace(is_sure=True), until
            for each in edits:
                if not (each.is_explained and each.kinds == CLOSE_WRITE):
                    _add(found, party.name, each)
        return found

    def _is_explained(self, path: bytes) -> bool:
        self._refresh()
        return self._explained.explains(path)

    def _is_recorded(self, object_: Identity) -> bool:
        """Whether a step has touched the object: then a change of it counts under any name."""
        self._refresh()
        return self._explained.path_of(object_) is not None

    def _refresh(self) -> None:
        if not self._fresh:
            self._explained.refresh()  # it may have been recorded since
            self._fresh = True

    def serves(self, pid: int) -> bool:
        """Whether a process belongs to a supervised tree, as far as known."""
        return self._who(pid).is_ours

    def _who(self, pid: int) -> _Editor:
        now = time.monotonic()
        party, until = self._known.get(pid, (_UNKNOWN_EDITOR, 0.0))
        if until < now:
            party = self._identify(pid, party)
        self._known[pid] = party, now + _KNOWN_SECONDS
        return party

    def _identify(self, pid: int, last: _Editor) -> _Editor:
        """Who a process is, or was: the ``last`` one that was seen with its number, if it has ended since."""
        if self._is_inside(pid):
            return _Editor("", is_ours=True)
        try:
            with open(b"/proc/%d/stat" % pid, "rb") as file:
                head, _, rest = file.read().rpartition(b") ")
            state, parent, _ = rest.split(b" ", 2)
        except (OSError, ValueError):
            name, has_ended = last.name or (f"a process that is gone ({pid})" if pid else ""), True
        else:
            name = f"{head.partition(b'(')[2].decode('utf-8', 'replace')} ({pid})"
            if int(parent) == _KERNEL_THREADS:
                return _Editor(name, is_sure=False)
            # A killed process is in no tree as soon as it ends, and stays visible until its parent has waited for it.
            has_ended = state in _ENDED
        if not has_ended:
            return _Editor(name)
        # (0: it is of another namespace of processes, and its number is unknown.)
        is_stranger = pid > 0 and not self._may_have_been_inside(pid)
        return last if last.is_ours else _Editor(name, is_sure=False, is_stranger=is_stranger)


class _Served:
    """The processes whose changes are no news: the keeper's own, and those of the trees. Nearly all events are theirs,
    and the gate is held while they are read: each is passed over as soon as its process is read.
    """

    def __init__(self, watcher: OutsideWatcher) -> None:
        self._watcher = watcher
        self._own = os.getpid()

    def __contains__(self, pid: object) -> bool:
        return pid == self._own or (isinstance(pid, int) and pid > 0 and self._watcher.serves(pid))


class _Editor(NamedTuple):
    """The process that made a change."""

    name: str
    is_ours: bool = False
    """It belongs to a supervised tree."""
    is_sure: bool = True
    """Otherwise it may belong to a supervised tree, or work for one."""
    is_stranger: bool = False
    """It has ended, and was in no supervised tree, unless it made no call there before a signal ended it."""


class _Edits(NamedTuple):
    """The changes of one party: paths, and objects that were written to, which may have other names."""

    paths: dict[bytes, None]
    objects: dict[Identity, None]


class _News(NamedTuple):
    """A change that no supervised process is known to have made."""

    path: bytes
    object: Identity | None
    """The object that was written to, if reported."""
    is_name: bool
    """A name has come or gone; else it was written to."""
    pid: int | None
    """None if the event does not say."""
    party: _Editor
    kinds: int = 0
    """What happened to the object or its name, in the bits of an event."""
    is_explained: bool = False
    """The log explains it."""
    is_nameless: bool = False
    """It may be a file without a name, as from ``O_TMPFILE``: it is one if no file of this name exists."""


def _add(found: dict[str, _Edits], who: str, news: _News) -> None:
    edits = found.setdefault(who, _Edits({}, {}))
    edits.paths[news.path] = None
    if news.object is not None:
        edits.objects[news.object] = None


def _opened_by_a_stranger(news: Sequence[_News]) -> bool:
    """Whether a process that was in no supervised tree wrote to a file, and closed it as the last that had it open."""
    written = {each.path for each in news if each.party.is_stranger and each.kinds & MODIFY}
    return any(each.kinds & CLOSE_WRITE and each.path in written for each in news)


def _now() -> int:
    """The time that file systems note for a change, or some that came before (nanoseconds)."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


_UNKNOWN_EDITOR = _Editor("")
