"""What a step loses: the rule by which safeguards count, and what they have to know of each run for it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.ignore import CHECKPOINTIGNORE, GITIGNORE
from holdfast.files.metadata import through
from holdfast.model.paths import under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.files.handle import Identity
    from holdfast.undo.safeguard import Loss
    from holdfast.undo.steps import OpenStep

_MOST_MADE = 1_000_000
"""So much that a run has made is known as its own; what it makes beyond counts as if it had been there before."""
_MOST_MOVES = 256
_NOWHERE = b"\0"
_RULES = (GITIGNORE, CHECKPOINTIGNORE)
_DATABASES = (b"SQLite format 3\0", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""How an SQLite database, its journal and its write-ahead log begin (https://sqlite.org/fileformat2.html)."""


class Weight(NamedTuple):
    """What a loss adds to what its step has lost."""

    files: int
    bytes: int


class _Run:
    def __init__(self) -> None:
        self.made: set[Identity] = set()
        self.opened: set[Identity] = set()
        """What was opened for writing, and counted."""


class Losses:
    """See the module. For one thread at a time."""

    def __init__(self, ask_rules: Callable[[], Callable[[bytes], bool]] = lambda: lambda _path: False) -> None:
        """``ask_rules`` is called when the first run begins to be guarded. What it returns says of a path whether
        checkpoints leave it out; that is asked of one before a run changes a rule file beside it, and is to remember
        what those say.
        """
        self._ask_rules = ask_rules
        self._rules: Callable[[bytes], bool] | None = None
        self._runs: dict[str, _Run] = {}
        self._moves: list[tuple[bytes, bytes]] = []
        """Where what was moved lay before, and since; in order."""

    def weigh(self, step: OpenStep, loss: Loss) -> Weight | None:
        """What a loss counts; None if it does not. This is the whole rule.

        A file counts, with the bytes that a call is about to take from it, if all of this holds:

        - It was there before the run: neither the step nor an earlier one of the run has made it.
        - It was captured then: neither ignored, by the rules of that time, nor below ``.git``.
        - The call removes it, empties it or cuts it short, punches a hole into it, replaces it by a rename, or opens it
          for writing otherwise than appending. What is written later passes by: so opening counts with all bytes of the
          file, but once in a run; and not where an SQLite database, known by its header, is opened for reading and
          writing, as its library changes single pages, each of which it keeps until the change is complete.

        In a step, a file counts once, and no more of its bytes than it had when it first counted.
        """
        run = self._runs.get(step.begin.run)
        if loss.object in step.created or (run is not None and loss.object in run.made):
            return None
        if loss.opens and ((run is not None and loss.object in run.opened) or (loss.reads and _is_database(loss.fd))):
            return None
        if self._was_left_out(loss.path):
            return None
        left = step.losing.get(loss.object)
        return Weight(left is None, min(loss.lost, loss.size if left is None else left))

    def count(self, step: OpenStep, loss: Loss, weight: Weight) -> None:
        """It has happened, or is about to."""
        step.losing[loss.object] = step.losing.get(loss.object, loss.size) - weight.bytes
        step.lost_files += weight.files
        step.lost_bytes += weight.bytes
        if loss.opens and loss.object not in (known := self._of(step).opened):
            known.add(loss.object)
            step.exposed.add(loss.object)

    def denied(self, step: OpenStep) -> None:
        """The step is taken back: whoever tries again what it has opened is asked as it was."""
        self._of(step).opened -= step.exposed

    def begin(self, run: str) -> None:
        """What the run has made and opened until now was there before: for a session, of which each command counts as a
        run of its own.
        """
        self._runs.pop(run, None)

    def made(self, step: OpenStep, object_: Identity) -> None:
        """The step has made something."""
        known = self._of(step).made
        if len(known) < _MOST_MADE:
            known.add(object_)

    def touches(self, path: bytes) -> None:
        """A name is about to come, to go, or to be written to: rules are remembered before they change."""
        if path.rpartition(b"/")[2] in _RULES:
            self._was_left_out(path)

    def moved(self, source: bytes, target: bytes, *, is_directory: bool, is_exchanged: bool) -> None:
        """What lay at ``source`` lies at ``target`` (``is_exchanged``: and vice versa), and counts as before."""
        if is_exchanged:
            self._moves += [(source, _NOWHERE), (target, source), (_NOWHERE, target)]
        else:
            was_out = self._was_left_out(source)
            if was_out != self._left_out(target) or (is_directory and not was_out):
                self._moves.append((source, target))
        del self._moves[:-_MOST_MOVES]

    def keep(self, runs: Iterable[str]) -> None:
        """These runs are guarded now: forget all others, and what is known of no run if there are none. Raises
        `StorageError`.
        """
        present = set(runs)
        if not present:
            self._rules = None
        elif self._rules is None:
            self._rules = self._ask_rules()
        self._runs = {run: known for run, known in self._runs.items() if run in present or (present and not run)}
        if not present:
            self._moves.clear()

    def _of(self, step: OpenStep) -> _Run:
        return self._runs.setdefault(step.begin.run, _Run())

    def _was_left_out(self, path: bytes) -> bool:
        for source, target in reversed(self._moves):
            if under(path, target):
                path = source + path[len(target) :]
        return self._left_out(path)

    def _left_out(self, path: bytes) -> bool:
        if self._rules is None:
            self._rules = self._ask_rules()
        return self._rules(path)


def _is_database(fd: int) -> bool:
    with suppress(OSError):  # (who may not read it has not opened it for reading either)
        opened = os.open(through(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(opened, max(map(len, _DATABASES)), 0).startswith(_DATABASES)
        finally:
            os.close(opened)
    return False
