"""Finding the first bad one of a row of states by asking about few of them. Pure: who asks tells what was found.

Between the last that is known to be good and the first that is known to be bad, the middle one is asked about, and one
near it where that cannot be told. The answer is one state, or, where those right before it could not be told, several
of which one is it.
"""

from __future__ import annotations

from typing import Literal

from holdfast.model.errors import UsageError
from holdfast.model.named import NamedTuple

Verdict = Literal["good", "bad", "skip"]


class Found(NamedTuple):
    """Where it went wrong."""

    candidates: range
    """One of these, and none before, is the first bad one; the last of them is known to be bad."""

    @property
    def certain(self) -> bool:
        """True if there is only one."""
        return len(self.candidates) == 1


class Bisection:
    """A search among ``count`` states, oldest first, of which the first is good and the last is bad."""

    def __init__(self, count: int) -> None:
        if count < 2:
            raise UsageError(
                "there is nothing between what is good and what is bad",
                hint="name a good state that is older than the bad one",
            )
        self._good = 0
        self._bad = count - 1
        self._skipped: set[int] = set()

    def next(self) -> int | None:
        """Which state to ask about; None if nothing is left to ask."""
        middle = (self._good + self._bad) // 2
        open_ones = [at for at in range(self._good + 1, self._bad) if at not in self._skipped]
        return min(open_ones, key=lambda at: (abs(at - middle), at), default=None)

    def tell(self, at: int, verdict: Verdict) -> None:
        """Say what was found of the state ``at``, which `next` has named."""
        if verdict == "skip":
            self._skipped.add(at)
        elif verdict == "good":
            self._good = at
        else:
            self._bad = at

    @property
    def left(self) -> int:
        """About how many questions are left, if all of them are answered."""
        untold = sum(1 for at in range(self._good + 1, self._bad) if at not in self._skipped)
        return untold.bit_length()

    def found(self) -> Found:
        """What is known so far; the answer, once `next` is None."""
        return Found(range(self._good + 1, self._bad + 1))


def verdict_of(exit_code: int) -> Verdict | None:
    """What the exit code of a command that looks at a state says of it: 0 good, 125 cannot be told, others bad.

    None for one that says nothing: of a command that could not be run (126, 127), or was killed (from 128 on).
    """
    if exit_code in (0, 125):
        return "skip" if exit_code else "good"
    return "bad" if 0 < exit_code < 126 else None
