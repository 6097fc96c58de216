"""What is said of a command: a level, whether it comes back, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.named import NamedTuple
from holdfast.model.session import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.model.session import Level

RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}


class Reason(NamedTuple):
    """One thing that a command does."""

    text: str
    """For a person, such as ``removes src with all that is in it``."""
    program: str
    """Which program does it; empty where none does (a redirection, a syntax error)."""
    start: int
    """Where in the command it stands: the first character of it, counted from 0."""
    end: int
    """The first character after it."""
    level: Level
    reversible: bool


class Safety(NamedTuple):
    """What a command may do."""

    level: Level
    reversible: bool
    """Whether going back to a checkpoint taken before brings back all that it changes."""
    reasons: tuple[Reason, ...]
    """In the order in which they stand in the command; none for one that only reads."""


def combine(reasons: Iterable[Reason]) -> Safety:
    """The whole of ``reasons``: as high as the highest of them, and reversible if all of them are."""
    distinct = sorted(set(reasons), key=lambda reason: (reason.start, reason.end, -RANK[reason.level], reason))
    level = max((RANK[reason.level] for reason in distinct), default=0)
    return Safety(LEVELS[level], all(reason.reversible for reason in distinct), tuple(distinct))


def levels_of(programs: Iterable[str]) -> dict[str, Level]:
    """The levels of programs by their names, from entries such as ``terraform=risky`` (the key `safety.programs`).

    A later entry for a program counts. Raises `UsageError` for an entry that is none.
    """
    found: dict[str, Level] = {}
    for entry in programs:
        name, _, level = entry.rpartition("=")
        if not name or level not in RANK:
            raise UsageError(
                f"{entry!r} says of no program what it may do",
                hint=f"write name=level, where the level is one of {', '.join(LEVELS)}",
            )
        found[name] = LEVELS[RANK[level]]
    return found
