"""Which state came from which, drawn beside the rows of the timeline: lanes of states that wait for their parents.

Rows come newest first. A lane is a line of descent that waits for its next older state; the lanes of several children
meet at their parent's row. A row without a state of its own (an undo by checkpoints, a prompt without changes) is a dot
on the lane of the tree's state then. The last lanes of a page are the first of the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MOST_LANES = 8
"""Beyond that a line of descent is drawn in the last lane: the rows need the room."""

_DIGITS = frozenset("0123456789abcdef")
_MOST_DIGITS = 64


class GraphRow(NamedTuple):
    """The drawing beside one row. Lanes are numbered from 0, on the left."""

    lane: int
    """Where its dot is."""
    is_state: bool
    """False: nothing new was made, and the dot is a small one."""
    passing: Sequence[int]
    """Lanes that go through from top to bottom."""
    above: Sequence[int]
    """Lanes that come from the top and end in the dot."""
    below: bool
    """Whether its own lane goes on to the bottom."""
    has_fork: bool
    """A fork began here, which is drawn as a branch to the right."""
    has_merge: bool
    """The work of a fork was merged here, which comes from the right."""

    @property
    def width(self) -> int:
        """The number of lanes to make room for; at least two, so that few pages differ."""
        return max(2, 1 + max((self.lane + (self.has_fork or self.has_merge), *self.passing, *self.above)))


class Lanes:
    """Draws row after row."""

    def __init__(self, waiting: str = "") -> None:
        """``waiting``: what the page before ended with (`text`). Raises `UsageError`."""
        self._waiting: list[str | None] = [_checked(one) or None for one in waiting.split(",")] if waiting else []
        if len(self._waiting) > MOST_LANES:
            raise UsageError(f"a page begins with {MOST_LANES} lanes at most")
        self._last = 0

    def text(self) -> str:
        """The lanes as text, for the address of the next page."""
        while self._waiting and self._waiting[-1] is None:
            self._waiting.pop()
        return ",".join(one or "" for one in self._waiting)

    def state(self, name: str, parent: str | None, *, has_fork: bool = False, has_merge: bool = False) -> GraphRow:
        """The row of a state that was made then."""
        found = self._lanes_of(name)
        lane = found[0] if found else self._new_lane()
        for one in found:
            self._waiting[one] = None
        passing = self._used()
        self._waiting[lane] = parent
        self._last = lane
        return GraphRow(
            lane, True, [one for one in passing if one != lane], found, parent is not None, has_fork, has_merge
        )

    def move(self, name: str | None, kept: Collection[str]) -> GraphRow:
        """The row of an event without a state of its own; ``name``: the tree's state then, if known."""
        found = self._lanes_of(name) if name is not None else []
        if not found and name is not None and name in kept:
            lane = self._new_lane()
            passing = self._used()
            self._waiting[lane] = name
            self._last = lane
            return GraphRow(lane, False, passing, [], True, False, False)
        lane = found[0] if found else self._last
        is_used = lane in self._used()
        passing = [one for one in self._used() if one != lane]
        return GraphRow(lane, False, passing, [lane] if is_used else [], is_used, False, False)

    def _lanes_of(self, name: str) -> list[int]:
        return [lane for lane, waiting in enumerate(self._waiting) if waiting == name]

    def _used(self) -> list[int]:
        return [lane for lane, waiting in enumerate(self._waiting) if waiting is not None]

    def _new_lane(self) -> int:
        for lane, waiting in enumerate(self._waiting):
            if waiting is None:
                return lane
        if len(self._waiting) == MOST_LANES:
            return MOST_LANES - 1
        self._waiting.append(None)
        return len(self._waiting) - 1


def _checked(name: str) -> str:
    if len(name) > _MOST_DIGITS or not _DIGITS.issuperset(name):
        raise UsageError(f"{name[:80]!r} is no id of a checkpoint")
    return name
