"""When to save automatically: a pure state machine over an injected clock.

A checkpoint is due after some time without changes (``debounce``), or when the first unsaved change is old enough
(``latest``). The hourly budget may delay it, and so may the wait after failures, which doubles with each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from holdfast.model.clock import Clock

_HOUR = 3600.0


class Pace(NamedTuple):
    """How often to save; all times in seconds."""

    debounce: float = 5.0
    """How long nothing must have changed."""
    latest: float = 300.0
    """How long an unsaved change may wait while others go on."""
    per_hour: int = 60
    """How many checkpoints any stretch of an hour may see."""
    first_retry: float = 5.0
    """How long to wait after a failure; twice as long after each further one."""
    last_retry: float = 300.0
    """The longest such wait."""


class Scheduler:
    """Told what happens, says when the next checkpoint is due. No I/O, no threads; time is ``clock.monotonic()``."""

    def __init__(self, pace: Pace, clock: Clock) -> None:
        """Raise `UsageError` for a pace that could never save or has a negative time."""
        if pace.per_hour < 1:
            raise UsageError(f"at least one checkpoint an hour must be allowed, not {pace.per_hour}")
        for name in ("debounce", "latest", "first_retry", "last_retry"):
            value: float = getattr(pace, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name} must be a number of seconds from 0 on, not {value:g}")
        self._pace = pace
        self._clock = clock
        self._first: float | None = None
        """When the first unsaved change was noticed; None if all is saved."""
        self._last = 0.0
        self._saves: deque[float] = deque(maxlen=pace.per_hour)
        self._failures = 0
        self._not_before = 0.0
        self._pauses = 0

    @property
    def unsaved(self) -> bool:
        """True if there were changes since the last save."""
        return self._first is not None

    @property
    def paused(self) -> bool:
        """True while a client holds a pause."""
        return self._pauses > 0

    @property
    def failures(self) -> int:
        """How many attempts have failed since the last one that did not."""
        return self._failures

    def changed(self) -> None:
        """Note a change in the tree."""
        self._last = self._clock.monotonic()
        if self._first is None:
            self._first = self._last

    def doubted(self) -> None:
        """Note a possible change: it is unsaved, but does not postpone a due save."""
        if self._first is None:
            self.changed()

    def saved(self, *, counted: bool = True) -> None:
        """All that was changed so far is saved; ``counted``: by a checkpoint that counts towards the hourly limit."""
        self._first = None
        self._failures = 0
        self._not_before = 0.0
        if counted:
            self._saves.append(self._clock.monotonic())

    def failed(self) -> None:
        """Note a failed attempt to save; the changes stay unsaved, and the next attempt comes later."""
        # The exponent is bounded, since 2.0 ** 1024 is an error.
        wait = min(self._pace.first_retry * 2.0 ** min(self._failures, 64), self._pace.last_retry)
        self._failures += 1
        self._not_before = self._clock.monotonic() + wait

    def pause(self) -> None:
        """Nothing is due until `resume` has been called as often as this."""
        self._pauses += 1

    def resume(self) -> None:
        """End one pause; one too many is ignored."""
        self._pauses = max(0, self._pauses - 1)

    def due_in(self) -> float | None:
        """Seconds until the next checkpoint is due (0.0: now); None if nothing is unsaved or while paused."""
        if self._first is None or self._pauses:
            return None
        now = self._clock.monotonic()
        due = min(self._last + self._pace.debounce, self._first + self._pace.latest)
        return max(0.0, self._allowed(due) - now)

    def due_within(self) -> float | None:
        """As `due_in`, if changes continue until then."""
        if self._first is None or self._pauses:
            return None
        return max(0.0, self._allowed(self._first + self._pace.latest) - self._clock.monotonic())

    def _allowed(self, due: float) -> float:
        """The earliest allowed time for a save that is ``due``, by the hourly budget and the wait after failures."""
        return max(due, self._within_budget(), self._not_before)

    def _within_budget(self) -> float:
        """The earliest time that the hourly budget allows.

        The interval grows in proportion to the saves of the last hour, up to twice the average. So the first saves
        follow each other quickly, and none is followed by a long wait: the intervals 2h/N² · (1 + 2 + … + (N-1)) of a
        whole budget are one average interval short of the hour h.
        """
        now = self._clock.monotonic()
        while self._saves and now - self._saves[0] >= _HOUR:
            self._saves.popleft()
        if not self._saves:
            return 0.0
        used, budget = len(self._saves), self._pace.per_hour
        if used >= budget:
            return self._saves[0] + _HOUR
        return self._saves[-1] + 2 * _HOUR * used / budget**2
