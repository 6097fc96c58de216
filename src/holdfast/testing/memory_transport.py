"""`Transport` in memory: a test takes the part of the kernel."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.bridge.server.transport import ClosedTransportError
from holdfast.wire.fuse.requests import decode_header

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.bridge.server.transport import Reply


class MemoryTransport:
    """See the module. It checks that each request is answered exactly once, with or without content."""

    def __init__(self) -> None:
        self.is_local: Final = False
        self.notifies: Final = False
        self.backing_device: Final = None
        self._frames: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_closed = self._is_woken = False
        self._taken: Counter[int] = Counter()
        """Requests that were received and have no answer yet, by their numbers."""
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    # -- the kernel's side ----------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a request."""
        with self._changed:
            self._frames.append(frame)
            self._changed.notify()

    def answer(self, timeout: float) -> bytes:
        """The next reply; raises `queue.Empty` if none comes."""
        return self._answers.get(timeout=timeout)

    def hang_up(self) -> None:
        """Nothing is mounted any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def unanswered(self) -> int:
        """How many requests were received and not answered."""
        with self._changed:
            return self._taken.total()

    # -- the server's side ----------------------------------------------------------------------------------------

    @contextmanager
    def receiver(self, limit: int) -> Generator[_MemoryReceiver]:
        """See `Transport`."""
        yield _MemoryReceiver(self, limit)

    def wait(self) -> None:
        """See `Receiver`."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._is_closed or self._is_woken)

    def take(self, limit: int) -> memoryview | None:
        """See `Receiver`."""
        with self._changed:
            if not self._frames:
                if self._is_closed:
                    raise ClosedTransportError
                return None
            frame = memoryview(self._frames.popleft())
            assert len(frame) <= limit, "longer than was agreed upon"
            self._taken[decode_header(frame).unique] += 1
            return frame

    def reply(self, unique: int, reply: Reply) -> None:
        """See `Transport`."""
        with self._changed:
            self._taken[unique] -= 1
            assert self._taken[unique] >= 0, "it was answered before"
        if reply is not None:
            self._answers.put(reply if isinstance(reply, bytes) else b"".join(reply))

    def notify(self, notification: bytes) -> None:
        """See `Transport`: there is no way to."""

    def is_quiet(self) -> bool:
        """See `Transport`."""
        with self._changed:
            return not self._frames

    def wake(self) -> None:
        """See `Transport`."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """See `Transport`."""


class _MemoryReceiver:
    """`Receiver`, for one thread."""

    def __init__(self, transport: MemoryTransport, limit: int) -> None:
        self._transport = transport
        self._limit = limit

    def wait(self) -> None:
        """See `Receiver`."""
        self._transport.wait()

    def take(self) -> memoryview | None:
        """See `Receiver`."""
        return self._transport.take(self._limit)
