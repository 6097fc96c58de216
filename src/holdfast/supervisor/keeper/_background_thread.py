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
        """Readable when `settle` has work."""
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # A daemon: if the serving thread fails, no other thread may keep the process, and the log, alive.
        self._thread = threading.Thread(target=self._do_work, daemon=True)

    def start(self) -> None:
        """Begin with the queued jobs."""
        self._thread.start()

    def end(self) -> None:
        """Wait until all is done."""
        self._work.put(None)
        self._thread.join()

    def do(self, job: Callable[[], object]) -> None:
        """Queue ``job`` after all earlier ones. From any thread."""
        self._work.put(job)

    def post(self, result: Callable[[], object]) -> None:
        """Have ``result`` called by the serving thread, in `settle`. From any thread."""
        self._done.put(result)
        self.wake()

    def wake(self) -> None:
        """Wake the serving thread up. From any thread, or a signal's handler."""
        os.eventfd_write(self.wake_fd, 1)

    def settle(self) -> None:
        """Call the posted functions. Those posted meanwhile come after the serving thread's other work."""
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
