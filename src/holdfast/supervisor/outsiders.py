"""Sees who else changes the workspace while a keeper runs, and makes barriers of it.

fanotify tells whose change it was. All names in the tree are changed by the keeper, in the place of those that it
serves: by anybody else, they are an outsider's. What is written to a file is the writer's, who is known by its
ancestors; of one that is gone already, or has no program (a kernel thread), what the undo log explains is not an
outsider's. inotify tells nobody: there an outsider's is what the log does not explain.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.watch import open_watcher
from holdfast.files.watch.masks import NAMES, Q_OVERFLOW
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.paths import under

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from holdfast.files.watch import Backend, Watcher
    from holdfast.supervisor.explained import Explained
    from holdfast.undo.desk import Desk

_log = Log(__name__)

_READY_SECONDS = 1.0
"""A tree that takes longer to be watched is watched a little later than the first program starts."""
_KNOWN_SECONDS = 5.0
"""For so long after its last event, a process is who it was: its number is used anew after all others."""
_MOST_KNOWN = 1 << 14
_PAUSE_MILLISECONDS = 50
"""After edits by others, until the next look: they come in numbers, and are noted together."""
_BREATH_MILLISECONDS = 5
"""After a look that found nothing but our own. The keeper's every change makes an event: to look at each as it comes
would take the interpreter from the thread that serves calls, twice for each. Not longer: of who writes and ends
meanwhile it cannot be told any more who it was.
"""


class Outsiders:
    """See the module. Its thread reads events; `settle` and `pause` are for any other."""

    def __init__(
        self,
        desk: Desk,
        explained: Explained,
        root: bytes,
        hidden: Iterable[bytes],
        is_inside: Callable[[int], bool],
        *,
        blocks: bool = True,
        backend: Backend = "auto",
    ) -> None:
        """``hidden`` are absolute paths of Holdfast's own; ``is_inside(pid)`` says whether a process that lives, or one
        above it, belongs to a supervised tree. ``blocks`` is false with the policy ``warn``.
        """
        self._desk = desk
        self._explained = explained
        self._root = root
        above = root.rstrip(b"/") + b"/"
        self._hidden = tuple(path[len(above) :] for path in hidden if path.startswith(above))
        self._is_inside = is_inside
        self._blocks = blocks
        self._backend: Backend = backend
        self._turn = threading.Lock()
        self._watcher: Watcher | None = None
        self._pauses = 0
        self._found: dict[str, dict[bytes, None]] = {}
        self._unsure: dict[int, dict[bytes, bool]] = {}
        """By process, what may have been done by one of ours, and whether the undo log explains it."""
        self._known: dict[int, tuple[_Party, float]] = {}
        """Who a process is, and until when that is believed."""
        self._fresh = False
        """What is explained was asked for since the last look."""
        self._failed = False
        """It could be watched, and cannot be any more."""
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
        """Take notice of what has happened up to now, and watch no longer."""
        self.settle()
        os.eventfd_write(self._over, 1)
        self._thread.join()
        os.close(self._over)

    def settle(self) -> None:
        """Take notice of what has happened up to now."""
        with self._turn:
            self._drain()

    @contextmanager
    def pause(self) -> Generator[None]:
        """While it is entered, the keeper itself changes the tree: where nobody tells who it was, all is its."""
        with self._turn:
            self._drain()
            self._pauses += 1
        try:
            yield
        finally:
            with self._turn:
                self._drain()
                self._pauses -= 1

    # The thread -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            with self._turn:
                self._watcher = self._watching()
        except HoldfastError as error:
            _log.warning("edits by others are noticed only when undo meets them: %s", error.message)
            return
        finally:
            self._ready.set()
        over, wakers = select.poll(), select.poll()
        over.register(self._over, select.POLLIN)
        wakers.register(self._over, select.POLLIN)
        wakers.register(self._watcher.fileno(), select.POLLIN)
        try:
            while not over.poll(_PAUSE_MILLISECONDS if self._made else _BREATH_MILLISECONDS):
                wakers.poll()
                self.settle()
                if self._failed:
                    return
        finally:
            with self._turn:
                self._watcher.close()
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
        own = frozenset((os.getpid(),))
        watcher = open_watcher(self._root, backend, self._is_hidden, notice=self._notice, passed=own)
        watcher.drain()
        self._found.clear()
        self._unsure.clear()
        return watcher

    def _is_hidden(self, path: bytes) -> bool:
        return any(under(path, hidden) for hidden in self._hidden)

    def _drain(self) -> None:
        if self._watcher is None or self._failed:
            return
        self._fresh = False
        try:
            self._watcher.drain()
        except OSError as error:
            _log.warning("edits by others are noticed only when undo meets them from here on: %s", error.strerror)
            self._failed = True
        self._decide()
        found, self._found = self._found, {}
        self._made = bool(found)
        for who, paths in found.items():
            _log.info("external modification", who=who, paths=list(paths))
            try:
                self._desk.outside(tuple(paths), who, blocks=self._blocks)
            except HoldfastError as error:
                _log.warning("an edit by %s cannot be noted: %s", who or "somebody else", error.message)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()

    # Events -----------------------------------------------------------------------------------------------------

    def _notice(self, path: bytes, mask: int, pid: int | None) -> None:
        if not path or mask & Q_OVERFLOW or self._is_hidden(path):
            return
        if pid is None:
            if not self._pauses and not self._is_explained(path):
                self._found.setdefault("", {})[path] = None
            return
        party = self._who(pid)
        if party.is_ours:
            return
        if party.is_sure:
            self._found.setdefault(party.name, {})[path] = None
        else:
            self._unsure.setdefault(pid, {})[path] = not mask & NAMES and self._is_explained(path)

    def _decide(self) -> None:
        """Of those who may be ours, one who did a single thing that nothing explains is not."""
        for pid, paths in self._unsure.items():
            if not all(paths.values()):
                party, until = self._known[pid]
                self._known[pid] = party._replace(is_sure=True), until
                self._found.setdefault(party.name, {}).update(dict.fromkeys(paths))
        self._unsure.clear()

    def _is_explained(self, path: bytes) -> bool:
        if self._fresh and self._explained.explains(path):
            return True
        self._explained.refresh()  # it may have been recorded since
        self._fresh = True
        return self._explained.explains(path)

    def _who(self, pid: int) -> _Party:
        now = monotonic()
        party, until = self._known.get(pid, (_NOBODY, 0.0))
        if until < now:
            found = self._identify(pid)
            if found.is_sure or party is _NOBODY:
                party = found  # (else it was there when it was last seen)
        self._known[pid] = party, now + _KNOWN_SECONDS
        return party

    def _identify(self, pid: int) -> _Party:
        if self._is_inside(pid):
            return _Party("", is_ours=True)
        try:
            with open(b"/proc/%d/stat" % pid, "rb") as file:
                head, _, rest = file.read().rpartition(b") ")
            parent = int(rest.split(b" ", 2)[1])
        except (OSError, ValueError):
            return _Party(f"a process that is gone ({pid})" if pid else "", is_sure=False)
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return _Party(f"{name} ({pid})", is_sure=parent != _KERNEL_THREADS)


class _Party(NamedTuple):
    """Who changed something."""

    name: str
    is_ours: bool = False
    """It is of a supervised tree."""
    is_sure: bool = True
    """Else it may be of a supervised tree, or do its work."""


_NOBODY = _Party("")
_KERNEL_THREADS = 2
"""The parent of all kernel threads, one of which may be the last to close a file."""
