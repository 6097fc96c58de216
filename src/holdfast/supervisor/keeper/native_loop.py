"""The data for the native part of the keeper: the threads whose calls it may carry out, their steps, and the paths at
which it may.

It carries out the common case of common calls (`holdfast._hot`, docs/internals/native-loop.md). Calls for which
it has no data go to the handlers, which then provide the data.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.files.linux.native import native
from holdfast.model.log import Log
from holdfast.supervisor.confinement.seccomp_notify import NOTIFICATION
from holdfast.supervisor.resolution.caller_identity import CALLERS

_log = Log(__name__)

if TYPE_CHECKING:
    from holdfast._hot import Gate, Tree
    from holdfast._hot import Log as UndoLog
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.recorder.recorder import Recorder


class NativeLoop:
    """The native part, of one keeper."""

    def __init__(self, log: UndoLog, turn: Gate, recorder: Recorder, new_tree: type[Tree]) -> None:
        """``turn`` is the right to carry calls out."""
        self._new_tree = new_tree
        self.log = log
        self.turn = turn
        self.recorder = recorder
        CALLERS.on_forget = log.forget_callers

    def serve(self, listener: int, selector: int, root: int) -> NativeTree:
        """Serve the tree under this listener too. The descriptors are borrowed; see `holdfast._hot.Tree`."""
        return NativeTree(self, self._new_tree(self.log, self.turn, listener, selector, root))


def native_loop(recorder: Recorder) -> NativeLoop | None:
    """None where all calls are Python's."""
    hot = native().module
    if hot is None or recorder.native is None:
        return None
    return NativeLoop(recorder.native.log, hot.Gate(), recorder, hot.Tree)


class NativeTree:
    """One supervised tree, as the native part serves it."""

    def __init__(self, loop: NativeLoop, tree: Tree) -> None:
        self._loop = loop
        self._tree = tree

    def receive(self) -> tuple[int, ...] | None:
        """As `Listener.receive`: the next call that is not carried out natively."""
        found = self._tree.receive()
        return None if found is None else NOTIFICATION.unpack(found)

    @property
    def epoch(self) -> int:
        """Read it before finding out the facts for `teach`."""
        return self._loop.log.epoch

    def teach(self, tid: int, step: StepId, epoch: int) -> None:
        """The thread's later changes belong to the step, as far as known."""
        caller = CALLERS.find_usual(tid)
        opened = self._loop.recorder.find_open(step)
        if caller is not None and opened is not None and opened.native is not None:
            self._tree.learn(tid, caller.fd, caller.umask, opened.native, epoch)

    def set_territory(self, root: bytes, borders: tuple[bytes, ...], fresh_ns: int) -> None:
        """Where the workspace is, and what may not be changed, for so long from now on."""
        self._tree.set_territory(root, borders, time.monotonic_ns() + fresh_ns)

    def release(self) -> None:
        """Close the directories that callers were led to."""
        self._tree.release()

    def close(self) -> None:
        """Carry out nothing more."""
        self._tree.close()
        native_calls, python_calls = self._tree.counts
        _log.info("calls carried out", natively=native_calls, by_python=python_calls)
