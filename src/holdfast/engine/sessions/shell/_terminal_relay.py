"""An interactive shell's own terminal, with this process between it and the user's terminal.

Typed text goes to the shell, the shell's output to the user, and the output of commands also to the journal. The
shell's hooks mark its beginning and end with escape sequences that hold a secret; these are not passed on. The user's
terminal is raw meanwhile, so that job control belongs to the shell's terminal.
"""

from __future__ import annotations

import fcntl
import os
import queue
import select
import signal
import struct
import sys
import termios
import threading
import tty
from typing import TYPE_CHECKING, Self

from holdfast.engine.sessions.shell.execution import OutputExcerpt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PIECE = 1 << 16
_TYPED_AHEAD = 1 << 16
"""With this much unread input for the shell, no more is read from the user."""
_NO_SIZE = struct.pack("HHHH", 0, 0, 0, 0)


class PromptMarks:
    """Finds the marks in a shell's output, and keeps the text between them."""

    def __init__(self, secret: str, most: int) -> None:
        """``secret`` is known only to the hooks; ``most`` bytes are kept of a command."""
        self.begin = f"\x1b]7717;{secret};B\x07".encode()
        self.end = f"\x1b]7717;{secret};E\x07".encode()
        self._most = most
        self._held = b""
        self._kept: OutputExcerpt | None = None
        self._done = OutputExcerpt(most)

    def feed(self, data: bytes) -> tuple[bytes, list[OutputExcerpt]]:
        """The part of ``data`` to show, and an excerpt of each output that ends in it."""
        data = self._held + data
        shown = bytearray()
        ended: list[OutputExcerpt] = []
        while True:
            at = min((found for mark in (self.begin, self.end) if (found := data.find(mark)) >= 0), default=-1)
            if at < 0:
                break
            self._keep(data[:at])
            shown += data[:at]
            if data.startswith(self.begin, at):
                self._kept = OutputExcerpt(self._most)
                data = data[at + len(self.begin) :]
            else:
                ended.append(self._kept or OutputExcerpt(self._most))
                self._kept = None
                data = data[at + len(self.end) :]
        cut = len(data) - _beginning(data, self.begin, self.end)
        self._held = data[cut:]
        self._keep(data[:cut])
        return bytes(shown + data[:cut]), ended

    def close(self) -> OutputExcerpt:
        """The end of the output: the excerpt of a command's output without an end mark."""
        kept, self._kept = self._kept or OutputExcerpt(self._most), None
        return kept

    def _keep(self, data: bytes) -> None:
        if self._kept is not None:
            self._kept.add(data)


def _beginning(data: bytes, *marks: bytes) -> int:
    """How many bytes at the end of ``data`` may be the beginning of a mark."""
    at = data.rfind(b"\x1b", max(0, len(data) - max(map(len, marks))))
    return len(data) - at if at >= 0 and any(mark.startswith(data[at:]) for mark in marks) else 0


class TerminalRelay:
    """Copies input and output, on a thread of its own, while it is entered. Enter it on the main thread."""

    def __init__(
        self, master: int, marks: PromptMarks, gone: Callable[[], object], *, source: int = 0, sink: int = 1
    ) -> None:
        """``master`` is our end of the shell's terminal; ``source`` and ``sink`` are the user's. ``gone`` is called, on
        the other thread, when one of them is closed.
        """
        self._master = master
        self._marks = marks
        self._source = source
        self._sink = sink
        self._gone = gone
        self._outputs: queue.SimpleQueue[OutputExcerpt] = queue.SimpleQueue()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._typed = bytearray()

    def __enter__(self) -> Self:
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._master, False)
        self._attributes = termios.tcgetattr(self._source)
        self._wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handler = signal.signal(signal.SIGWINCH, _nothing)
        tty.setraw(self._source)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """First copy the shell's remaining output."""
        self._over = True
        os.write(self._waker, b"\0")
        self._thread.join()
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGWINCH, self._handler or signal.SIG_DFL)
        termios.tcsetattr(self._source, termios.TCSADRAIN, self._attributes)
        os.close(self._wake)
        os.close(self._waker)

    def output(self, seconds: float) -> OutputExcerpt | None:
        """The next output that has come to its end, one for each prompt; it is waited for so long, and then None."""
        try:
            return self._outputs.get(timeout=seconds)
        except queue.Empty:
            return None

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except OSError:  # one of the terminals is gone
            pass
        if not self._over:
            self._gone()
        self._outputs.put(self._marks.close())

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._master, select.POLLIN | (select.POLLOUT if self._typed else 0))
        if len(self._typed) < _TYPED_AHEAD and not self._over:
            poll.register(self._source, select.POLLIN)
        ready = dict(poll.poll(0 if self._over else None))
        if self._wake in ready and signal.SIGWINCH in os.read(self._wake, 512):
            self.resize()
        shown = ready.get(self._master, 0) & (select.POLLIN | select.POLLHUP)
        if shown and not self._show():
            return False
        if ready.get(self._master, 0) & select.POLLOUT:
            del self._typed[: os.write(self._master, self._typed)]
        if self._source in ready:
            data = os.read(self._source, _PIECE)
            if not data:
                return False
            self._typed += data
        return bool(shown) or not self._over

    def _show(self) -> bool:
        try:
            data = os.read(self._master, _PIECE)
        except BlockingIOError:
            return True
        except OSError:  # EIO: no process has the shell's terminal open any more
            return False
        shown, ended = self._marks.feed(data)
        rest = memoryview(shown)
        while rest:
            rest = rest[os.write(self._sink, rest) :]
        for kept in ended:
            self._outputs.put(kept)
        return bool(data)

    def resize(self) -> None:
        """Give the shell's terminal the size of the user's."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, fcntl.ioctl(self._source, termios.TIOCGWINSZ, _NO_SIZE))


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def shown_text(kept: OutputExcerpt) -> str:
    """The output of a command, with the line breaks of files."""
    return kept.text().replace("\r\n", "\n")


def take_terminal() -> None:
    """In a new process that leads a session: have standard input as the controlling terminal."""
    fcntl.ioctl(sys.stdin.fileno() if sys.stdin else 0, termios.TIOCSCTTY, 0)
