"""The keeper's second thread: what takes its time is done there, one after the other, while calls are served."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

_log = Log(__name__)


class BackgroundThread:
    """See the module. Its methods are for the serving thread, unless they say otherwise."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when `settle` has something to do."""
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # (Should the serving thread fail, nothing keeps the process, nor with it the log.)
        self._thread = threading.Thread(target=self._do_work, daemon=True)

    def start(self) -> None:
        """Begin with what there is to do."""
        self._thread.start()

    def end(self) -> None:
        """Wait until all is done."""
        self._work.put(None)
        self._thread.join()

    def do(self, job: Callable[[], object]) -> None:
        """Have ``job`` done, after all that was asked for before. From any thread."""
        self._work.put(job)

    def post(self, result: Callable[[], object]) -> None:
        """Have ``result`` called by the serving thread, in `settle`. From any thread."""
        self._done.put(result)
        self.wake()

    def wake(self) -> None:
        """Wake the serving thread up. From any thread, or a signal's handler."""
        os.eventfd_write(self.wake_fd, 1)

    def settle(self) -> None:
        """Call what was posted. (What is posted meanwhile comes after all else that the serving thread has to do.)"""
        os.eventfd_read(self.wake_fd)
        for _ in range(self._done.qsize()):
            self._done.get()()

    def _do_work(self) -> None:
        while (job := self._work.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - what follows has to be done all the same
                _log.warning("work on the undo log failed by a mistake of Holdfast's own: %r", error)
            self.wake()
