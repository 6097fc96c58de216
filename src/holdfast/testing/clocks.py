"""A clock that goes only where a test moves it."""

from __future__ import annotations


class ManualClock:
    """A `Clock` that advances only by calls of `advance`."""

    def __init__(self, now: int = 1_767_225_600_000_000) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> int:
        """See `Clock.now`."""
        return self._now

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass; negative sets the wall clock back, as an administrator may."""
        self._now += int(seconds * 1_000_000)
        self._monotonic += max(0.0, seconds)
