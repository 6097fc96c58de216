"""Time, injected: the engine never asks the operating system itself."""

from __future__ import annotations

import time

from holdfast.model.fast_typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Wall-clock time in microseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        """See `Clock.now`."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()


def isoformat(microseconds: int) -> str:
    """``2026-02-11T15:04:05.123456Z`` for a time in microseconds since 1970-01-01 UTC."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:06d}Z"
