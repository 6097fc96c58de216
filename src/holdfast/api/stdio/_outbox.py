"""Lines for the client: in one order, and in bounded memory however slowly the client reads.

There are three kinds of lines. *Owed* lines (answers, the begin and end of steps) are always accepted; their producers
check `has_room` before they start. *Streamed* lines, the output of commands, wait for room, so a slow client slows the
command. *Offered* lines, all other events, are dropped while too many wait; a later line tells how many.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from holdfast.api._log_redaction import without_contents
from holdfast.model.clock import SystemClock
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.clock import Clock

_log = Log(__name__)

MAX_STREAMED_BYTES: Final = 1 << 20
MAX_OWED_BYTES: Final = 1 << 20
MAX_OFFERED: Final = 1000

Kind = Literal["owed", "streamed", "offered"]


class Outbox:
    """See the module. Any thread may call."""

    def __init__(
        self,
        fd: int,
        *,
        lost: Callable[[int], bytes],
        changed: Callable[[], object],
        clock: Clock | None = None,
    ) -> None:
        """Lines go to the descriptor ``fd``. ``lost`` makes the line that tells how many events were dropped;
        ``changed`` is called on its own thread when there is room again, and when the client reads no more.
        """
        self._fd = fd
        self._lost_line = lost
        self._changed = changed
        self._lines: deque[tuple[Kind, bytes]] = deque()
        self._turn = threading.Condition()
        """Of all that follows."""
        self._bytes: dict[Kind, int] = {"owed": 0, "streamed": 0, "offered": 0}
        self._offered = 0
        self._lost = 0
        self._clock = SystemClock() if clock is None else clock
        self._moved = 0.0
        """The time of the last write, or when the present line began to wait."""
        self._is_over = False
        self.is_broken = False
        """The client reads no more; later lines are dropped."""
        self._thread = threading.Thread(target=self._work, name="outbox", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether more may be caused to be owed."""
        return self._bytes["owed"] < MAX_OWED_BYTES

    def owe(self, line: bytes) -> None:
        """Take ``line``, in any case."""
        with self._turn:
            self._put("owed", line)

    def offer(self, line: bytes) -> None:
        """Take ``line``, or count it as lost."""
        with self._turn:
            if self._offered >= MAX_OFFERED:
                self._lost += 1
            else:
                self._put("offered", line)

    def stream(self, line: bytes, given_up: Callable[[], bool]) -> bool:
        """Take ``line`` when there is room for it; False, if the client reads no more, or ``given_up`` says so (`nudge`
        has it asked again).
        """
        if self._bytes["streamed"] >= MAX_STREAMED_BYTES:
            _log.debug("a command waits for the client to read")
        with self._turn:
            while self._bytes["streamed"] >= MAX_STREAMED_BYTES and not self.is_broken and not given_up():
                self._turn.wait()
            if self.is_broken or given_up():
                return False
            self._put("streamed", line)
            return True

    def nudge(self) -> None:
        """Wake waiting threads, so that they check whether to give up."""
        with self._turn:
            self._turn.notify_all()

    def finish(self, seconds: float, since: float) -> None:
        """Wait until all is written, or nothing was for so long, counted from ``since`` (monotonic) at the earliest."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()
            while self._thread.is_alive() and not self.is_broken and any(self._bytes.values()):
                left = max(self._moved, since) + seconds - self._clock.monotonic()
                if left <= 0:
                    _log.warning("the client does not read the last answers")
                    return
                self._turn.wait(left)

    def _put(self, kind: Kind, line: bytes) -> None:
        if self.is_broken:
            return
        if not any(self._bytes.values()):
            self._moved = self._clock.monotonic()
        self._lines.append((kind, line))
        self._bytes[kind] += len(line)
        self._offered += kind == "offered"
        self._turn.notify_all()

    def _work(self) -> None:
        while True:
            with self._turn:
                while not self._lines and not self._is_over:
                    self._turn.wait()
                if not self._lines:
                    return
                kind, line = self._lines.popleft()
            if _log.wants("trace"):
                from holdfast.api.stdio.schema import known

                _log.trace("sent", line=without_contents(line, known(), ours=True))
            try:
                self._write(line)
            except OSError as error:
                _log.info("the client reads no more: %s", error.strerror)
                self._break()
                return
            with self._turn:
                had_room = self.has_room
                self._bytes[kind] -= len(line)
                self._offered -= kind == "offered"
                if self._lost and self._offered < MAX_OFFERED:
                    lost, self._lost = self._lost, 0
                    self._put("offered", self._lost_line(lost))
                self._turn.notify_all()
            if not had_room and self.has_room:
                self._changed()

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # the process that started us has made it so
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            with self._turn:
                self._moved = self._clock.monotonic()

    def _break(self) -> None:
        with self._turn:
            self.is_broken = True
            self._lines.clear()
            self._turn.notify_all()
        self._changed()
