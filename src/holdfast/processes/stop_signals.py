"""Ending a long-running command by a signal: cleanly, however often it comes."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@contextmanager
def stopped_by_signals(stop: Callable[[], object], wakeup_fd: int) -> Generator[None]:
    """Let SIGTERM, SIGINT and SIGHUP call ``stop`` during the block, and write to the descriptor ``wakeup_fd``.

    Some senders signal a process and then its group, so a second signal is no sign of impatience; SIGQUIT ends it at
    once, which costs only the index. Does nothing outside the main thread, as only that may handle signals. An ignored
    SIGHUP (``nohup``) stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }

    def handle(*_: object) -> None:
        stop()

    wakeup = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    for number, handler in before.items():
        if number != signal.SIGHUP or handler != signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
