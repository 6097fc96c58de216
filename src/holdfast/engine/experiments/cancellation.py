"""Cancelling what runs on other threads by a signal to this process."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.processes.stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from collections.abc import Generator


class Cancellation:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self.event = threading.Event()
        """Set when one has."""
        self.signal = 0
        """Its number."""


@contextmanager
def cancelled_by_signals() -> Generator[Cancellation]:
    """Let SIGTERM, SIGINT and SIGHUP set an event during the block, and nothing else. For the main thread.

    A thread waits for them, as a signal's handler may not set an event: the main thread may be about to.
    """
    found = Cancellation()
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reading, True)

    def wait() -> None:
        while number := os.read(reading, 1):
            found.signal = found.signal or number[0]
            found.event.set()

    waiting = threading.Thread(target=wait, name="cancelling", daemon=True)
    waiting.start()
    try:
        with stopped_by_signals(lambda: None, writing):
            yield found
    finally:
        os.close(writing)
        waiting.join()
        os.close(reading)
