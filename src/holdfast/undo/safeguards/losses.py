"""The losses of a step: the rule by which safeguards count them, and the facts about each run that it needs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE
from holdfast.files.linux.metadata import proc_path
from holdfast.undo.journal.path_tree import PathTree
from holdfast.undo.safeguards.guard import Danger
from holdfast.undo.safeguards.open_step import Rule, Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.safeguards.guard import Loss
    from holdfast.undo.safeguards.open_step import OpenStep

    Rules: TypeAlias = Callable[[bytes, tuple[bytes, bytes]], bool]
    """Whether checkpoints leave a path out; with where it, or a directory above it, lay before, and lies now."""

_MOST_MADE = 1_000_000
"""The most objects that are known as made by a run; later ones count as older than the run."""
_MOST_MOVED = 1_000_000
"""So much that was moved is known by where it lay before; beyond, everything counts."""
_RULES = (GITIGNORE, CHECKPOINTIGNORE)
_DATABASES = (b"SQLite format 3\0", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""How an SQLite database, its journal and its write-ahead log begin (https://sqlite.org/fileformat2.html)."""


class _Run:
    def __init__(self) -> None:
        self.made: set[Identity] = set()
        self.opened: set[Identity] = set()
        """Files that were opened for writing, and counted."""


class Losses:
    """See the module. For one thread at a time."""

    def __init__(
        self,
        ask_rules: Callable[[], Rules] = lambda: _leaves_nothing_out,
        is_kept: Callable[[bytes], bool] = lambda _path: False,
    ) -> None:
        """``ask_rules`` is called when the first run begins to be guarded. Its result tells whether checkpoints leave a
        path out (`ExcludedDirectories.leaves_out`); it is asked about a path before a run changes a rule file beside
        it, and must remember the former rules. ``is_kept`` tells whether Git has a file's content.
        """
        self._ask_rules = ask_rules
        self._is_kept = is_kept
        self._rules: Rules | None = None
        self._runs: dict[str, _Run] = {}
        self._origins = PathTree[bytes]()
        """Present path → the path before a move. It includes everything below it."""

    def weigh(self, step: OpenStep, loss: Loss) -> Weight | None:
        """The weight of a loss; None if it does not count. This is the complete rule.

        A file counts, with the bytes that a call will remove from it, if all of these are true:

        - It existed before the run: neither the step nor an earlier one of the run has made it.
        - It was captured then: neither ignored, by the rules of that time, nor below ``.git``.
        - The call removes, empties or truncates it, punches a hole into it, replaces it by a rename, or opens it for
          writing without appending. Later writes are not seen: so opening counts with all bytes of the file, but only
          once in a run. An SQLite database, known by its header, does not count when it is opened for reading and
          writing, as its library changes single pages, and keeps each until the change is complete.

        If a Git repository has its content, a deleted file counts only until the step makes one at its path: Git
        changes files in this way.

        In a step, a file counts once, and no more of its bytes than it had when it first counted.
        """
        run = self._runs.get(step.begin.run)
        if loss.object in step.created or (run is not None and loss.object in run.made):
            return None
        if loss.opens and ((run is not None and loss.object in run.opened) or (loss.reads and _is_database(loss.fd))):
            return None
        if self._was_left_out(loss.path):
            return None
        left = step.partly_lost.get(loss.object)
        is_kept = loss.danger is Danger.DELETE and Rule.LOSS not in step.allowed and self._is_kept(loss.path)
        return Weight(left is None, min(loss.lost, loss.size if left is None else left), is_kept)

    def count(self, step: OpenStep, loss: Loss, weight: Weight) -> None:
        """The loss has happened, or is about to."""
        step.partly_lost[loss.object] = step.partly_lost.get(loss.object, loss.size) - weight.bytes
        step.lost_files += weight.files
        step.lost_bytes += weight.bytes
        if weight.is_kept:
            step.replaceable[loss.path] = weight
        if loss.opens and loss.object not in (known := self._of(step).opened):
            known.add(loss.object)
            step.opened_first.add(loss.object)

    def note_denied(self, step: OpenStep) -> None:
        """The step is rolled back: a new attempt at its opened files is asked about again."""
        self._of(step).opened -= step.opened_first

    def begin(self, run: str) -> None:
        """The run's objects and opened files count as older than the run from now on: for a session, in which each
        command counts as a run of its own.
        """
        self._runs.pop(run, None)

    def note_made(self, step: OpenStep, path: bytes, object_: Identity) -> None:
        """The step has made an object."""
        if (weight := step.replaceable.pop(path, None)) is not None:
            step.lost_files -= weight.files
            step.lost_bytes -= weight.bytes
        if self._origins:
            self._origins.take(path)
            self._enter({path: path})
        known = self._of(step).made
        if len(known) < _MOST_MADE:
            known.add(object_)

    def note_touch(self, path: bytes) -> None:
        """A name is about to come, to go, or to be written to: rules are remembered before they change."""
        if path.rpartition(b"/")[2] in _RULES:
            self._was_left_out(path)

    def note_moved(self, source: bytes, target: bytes, *, is_directory: bool, is_exchanged: bool) -> None:
        """The object at ``source`` is now at ``target`` (``is_exchanged``: and vice versa), and counts as before."""
        was_out = self._was_left_out(source)
        moved, replaced = self._taken(source, target), self._taken(target, source)
        if is_exchanged:
            self._enter(replaced)
        elif not is_directory and self._was_left_out(target) == was_out:
            del moved[target]  # rules treat the two paths alike
        self._enter(moved)

    def keep(self, runs: Iterable[str]) -> None:
        """These runs are guarded now: forget all other runs, and without any, also the facts that belong to none.
        Raises `StorageError`.
        """
        present = set(runs)
        if not present:
            self._rules = None
        elif self._rules is None:
            self._rules = self._ask_rules()
        self._runs = {run: known for run, known in self._runs.items() if run in present or (present and not run)}
        if not present:
            self._origins = PathTree[bytes]()

    def _of(self, step: OpenStep) -> _Run:
        return self._runs.setdefault(step.begin.run, _Run())

    def _origin(self, path: bytes) -> tuple[bytes, bytes]:
        """The place of a moved object, ``path`` or its nearest moved parent, before and after the move."""
        now = path
        while now and now not in self._origins:
            now = now.rpartition(b"/")[0]
        return self._origins.get(now, b""), now

    def _before(self, path: bytes) -> bytes:
        origin, now = self._origin(path)
        return origin + path[len(now) :]

    def _taken(self, source: bytes, target: bytes) -> dict[bytes, bytes]:
        """The former places of the object at ``source`` and of moved objects below it, by their paths at ``target``.
        Removes the entries at ``source``.
        """
        taken = {target: self._before(source)}
        for path, before in self._origins.take(source).items():
            taken[target + path[len(source) :]] = before
        return taken

    def _enter(self, origins: dict[bytes, bytes]) -> None:
        """``origins`` has directories before the paths below them."""
        for path, before in origins.items():
            if self._before(path) != before:
                self._origins[path] = before
        if len(self._origins) > _MOST_MOVED:
            self._origins, self._rules = PathTree[bytes](), _leaves_nothing_out

    def _was_left_out(self, path: bytes) -> bool:
        if self._rules is None:
            self._rules = self._ask_rules()
        origin, now = moved = self._origin(path)
        return self._rules(origin + path[len(now) :], moved)


def _leaves_nothing_out(_path: bytes, _moved: tuple[bytes, bytes]) -> bool:
    return False


def _is_database(fd: int) -> bool:
    with suppress(OSError):  # a process that may not read it has not opened it for reading either
        opened = os.open(proc_path(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(opened, max(map(len, _DATABASES)), 0).startswith(_DATABASES)
        finally:
            os.close(opened)
    return False
