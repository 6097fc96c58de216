"""Changes that the undo log explains: paths and objects that supervised processes have touched, and may still write to.

A file system's event arrives after its change, and a descriptor outlives the step in which it was opened. So a step's
records explain events for a moment after its end, and as long as its processes live.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from holdfast.undo.journal.records import Content, Link, Made, Make, Meta, Move, PutBack, Remove

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Mutation, StepId
    from holdfast.undo.recorder.recorder import Recorder
    from holdfast.undo.safeguards.open_step import OpenStep

LINGER_SECONDS = 2.0
"""How late an event may come."""
_AGAIN = 8


class _Recorded:
    """The paths and objects of one step."""

    __slots__ = ("ended", "lives", "makes", "objects", "paths", "records", "seen", "trees")

    def __init__(self, records: Sequence[Mutation]) -> None:
        self.records = records
        self.seen = 0
        """How many of the records are taken over already."""
        self.paths: set[bytes] = set()
        self.trees: set[bytes] = set()
        """Directories that were moved: paths below them have changed."""
        self.objects: dict[Identity, bytes] = {}
        """With a path of each."""
        self.makes: dict[int, bytes] = {}
        """The paths of creations, by the numbers of their first records."""
        self.lives: Callable[[], bool] = lambda: True
        self.ended: float | None = None
        """When it was first seen that no process is left that could write; None while one is."""

    def take(self) -> None:
        """Read the newer records."""
        # Records of failed operations are removed: then some records are read again.
        for record in self.records[max(min(self.seen, len(self.records)) - _AGAIN, 0) :]:
            if isinstance(record, Made):
                self.objects[record.identity] = self.makes.get(record.make, b"")
                continue
            self.paths.add(record.path)
            if isinstance(record, Make):
                self.makes[record.seq] = record.path
            if isinstance(record, Move):
                self.paths.add(record.target)
                if record.type == "d" or record.exchanged:
                    self.trees |= {record.path, record.target}
            if isinstance(record, Content | Meta | Link | PutBack | Move | Remove):
                self.objects[record.identity] = record.target if isinstance(record, Move) else record.path
        self.seen = len(self.records)

    def is_over(self, now: float) -> bool:
        """Whether it explains nothing any more."""
        if self.lives():
            self.ended = None
        elif self.ended is None:
            self.ended = now
        return self.ended is not None and now - self.ended > LINGER_SECONDS


class RecordedPaths:
    """See the module. Safe for several threads: all is done under the recorder's gate."""

    def __init__(self, recorder: Recorder, root_fd: int, lives: Callable[[OpenStep], Callable[[], bool]]) -> None:
        """``lives(step)`` is called at the end of a step; its result tells whether a process of the step lives."""
        self._recorder = recorder
        self._root = root_fd
        self._lives = lives
        self._steps: dict[StepId, _Recorded] = {}
        recorder.on_drop = self._dropped
        self.gate = recorder.gate

    def refresh(self) -> None:
        """Read the newer records, and forget those that explain nothing any more."""
        with self._recorder.gate:
            for opened in self._recorder.open_steps:
                recorded = self._steps.setdefault(opened.id, _Recorded(()))
                recorded.records = opened.records
            self._prune()
            for recorded in self._steps.values():
                recorded.take()

    def note_read(self, at: int) -> None:
        """All that others had changed by then (ns, as file systems count) was taken notice of."""
        if self._recorder.native is not None:
            self._recorder.native.log.read_at = at

    def explains(self, path: bytes) -> bool:
        """Whether a supervised process may have made a change by this path, or to the object that has it now."""
        with self._recorder.gate:
            known = list(self._steps.values())
            if any(path in recorded.paths for recorded in known):
                return True
            if any(recorded.trees and _is_below(path, recorded.trees) for recorded in known):
                return True
            object_ = self._object(path)
            return object_ is not None and any(object_ in recorded.objects for recorded in known)

    def is_gone(self, path: bytes) -> bool:
        """Whether nothing can be found at the path."""
        return self._object(path) is None

    def path_of(self, object_: Identity) -> bytes | None:
        """A path by which a supervised process has come to the object; None if none has."""
        with self._recorder.gate:
            found = (recorded.objects.get(object_) for recorded in self._steps.values())
            return next((path for path in found if path), None)

    def _dropped(self, opened: OpenStep) -> None:
        recorded = self._steps.setdefault(opened.id, _Recorded(()))
        recorded.records = tuple(opened.records)  # which are now looked through for what need not be kept
        recorded.lives = self._lives(opened)
        self._prune()

    def _prune(self) -> None:
        now = monotonic()
        for step in [step for step, recorded in self._steps.items() if recorded.is_over(now)]:
            del self._steps[step]

    def _object(self, path: bytes) -> Identity | None:
        try:
            fd = openat2(self._root, path, os.O_PATH | os.O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
        except OSError:
            return None  # it is gone
        try:
            return identity(fd, b"")
        finally:
            os.close(fd)


def _is_below(path: bytes, trees: set[bytes]) -> bool:
    while path:
        if path in trees:
            return True
        path = path.rpartition(b"/")[0]
    return False
