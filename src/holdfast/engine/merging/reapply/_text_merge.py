"""The rung ``text``: merges three versions of a text by lines, where the hunks of both sides do not touch.

Lines are compared as bytes with their ends, in any encoding. Both sides' hunks are those of
`holdfast.engine.diffs.git_patch`. It declines if two different hunks overlap or are adjacent without an unchanged line
between them. It also declines if both sides wrote the same lines in different places, which would apply one change
twice. It never writes conflict markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.diffs.git_patch import is_binary, split_lines
from holdfast.engine.diffs.line_diff import changed_regions
from holdfast.engine.merging.reapply._strategy import Declined, NewContent
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.engine.merging.reapply._strategy import ReapplyTask, RungName, RungOutcome


_ALIKE = 3
"""This many lines in a row, not counting blank ones, that both sides wrote in different places are one change of
both.
"""


class _Hunk(NamedTuple):
    """Lines ``start:end`` of the base are ``lines`` on one side."""

    start: int
    end: int
    lines: list[bytes]


class TextRung:
    """See the module."""

    name: RungName = "text"
    takes_all = True

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        if task.now is None or task.before is None or task.after is None:
            return Declined("one side has no such file")
        if any(map(is_binary, (task.now, task.before, task.after))):
            return Declined("it is no text")
        merged = merge_text(task.before, task.now, task.after)
        if merged is None:
            return Declined("hunks of both sides touch, or are much alike")
        return NewContent(merged, "by lines")


def merge_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """``ours`` with what ``theirs`` has changed in ``base``; None if hunks touch. Time is bounded as a diff's is."""
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    lines = split_lines(base)
    here, there = _hunks(lines, split_lines(ours)), _hunks(lines, split_lines(theirs))
    if _alike(here, there):
        return None
    out: list[bytes] = []
    at = i = j = 0
    while i < len(here) or j < len(there):
        one = here[i] if i < len(here) else None
        two = there[j] if j < len(there) else None
        if one is not None and one == two:
            i, j, hunk = i + 1, j + 1, one
        elif one is not None and (two is None or one.end < two.start):
            i, hunk = i + 1, one
        elif two is not None and (one is None or two.end < one.start):
            j, hunk = j + 1, two
        else:
            return None
        out += lines[at : hunk.start]
        out += hunk.lines
        at = hunk.end
    return b"".join([*out, *lines[at:]])


def _hunks(base: list[bytes], side: list[bytes]) -> list[_Hunk]:
    """The hunks, with pure insertions and deletions moved down as far as possible: then the same change is the same
    hunk on both sides, wherever the diff found it.
    """
    found: list[_Hunk] = []
    limit = len(base)
    for one in reversed(changed_regions(base, side)):
        start, end, lines = one.before_start, one.before_end, side[one.after_start : one.after_end]
        while end < limit and base[end] == (lines[0] if start == end else base[start]) and not (lines and start < end):
            lines = [*lines[1:], base[end]] if lines else lines
            start, end = start + 1, end + 1
        found.append(_Hunk(start, end, lines))
        limit = start
    found.reverse()
    return found


def _alike(here: list[_Hunk], there: list[_Hunk]) -> bool:
    """Whether both sides wrote some equal consecutive lines in different hunks: that is one change of both, which must
    not be made twice.
    """
    same = [hunk for hunk in here if hunk in there]
    runs = [_runs(hunk for hunk in side if hunk not in same) for side in (here, there)]
    return not runs[0].isdisjoint(runs[1])


def _runs(hunks: Iterable[_Hunk]) -> set[tuple[bytes, ...]]:
    found: set[tuple[bytes, ...]] = set()
    for hunk in hunks:
        lines = [stripped for line in hunk.lines if (stripped := line.strip())]
        found.update(tuple(lines[at : at + _ALIKE]) for at in range(len(lines) - _ALIKE + 1))
    return found
