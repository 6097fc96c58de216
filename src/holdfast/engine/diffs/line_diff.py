"""The differing lines of two texts, in bounded time for every input.

Common lines at both ends are removed first. Between them, lines that are unique on both sides are anchors: the longest
run of them in the same order cuts the texts into smaller pieces (Bram Cohen's patience diff), and so on inside each
piece. Pieces without anchors are solved by Myers' algorithm ("An O(ND) Difference Algorithm and Its Variations", 1986)
over the lines that occur on both sides. One budget of steps limits all of it; after that, the rest counts as replaced.
The answer is then coarser, never wrong.
"""

from __future__ import annotations

from bisect import bisect_left

from holdfast.model.fast_namedtuple import NamedTuple

MAX_STEPS = 4_000_000
"""Steps of the inner loops for one pair of texts, about a second and a half on one core."""

_MAX_EDITS = 256
_NOWHERE = -2


class Region(NamedTuple):
    """Lines ``before_start:before_end`` of one text correspond to ``after_start:after_end`` of the other."""

    before_start: int
    before_end: int
    after_start: int
    after_end: int


def changed_regions(before: list[bytes], after: list[bytes], *, max_steps: int = MAX_STEPS) -> list[Region]:
    """The regions that differ, in order, none touching the next; outside of them the texts are equal line by line.

    At least one side of a region is not empty. Time is bounded by the number of lines plus ``max_steps``.
    """
    numbers: dict[bytes, int] = {}
    one = [numbers.setdefault(line, len(numbers)) for line in before]
    other = [numbers.setdefault(line, len(numbers)) for line in after]
    return _Matcher(one, other, max_steps).regions()


class _Matcher:
    """One run of the algorithm; lines are numbers."""

    def __init__(self, one: list[int], other: list[int], steps: int) -> None:
        self._one = one
        self._other = other
        self._steps = steps
        self._found: list[Region] = []

    def regions(self) -> list[Region]:
        pieces = [Region(0, len(self._one), 0, len(self._other))]
        while pieces:
            piece = self._trimmed(pieces.pop())
            if piece.before_start == piece.before_end or piece.after_start == piece.after_end:
                self._add(piece)
                continue
            # The stack is worked off from its end, so the pieces go on it in reverse.
            pieces += reversed(self._between_anchors(piece) or ())
        return self._found

    def _add(self, region: Region) -> None:
        if region.before_start == region.before_end and region.after_start == region.after_end:
            return
        if self._found:
            last = self._found[-1]
            if last.before_end == region.before_start and last.after_end == region.after_start:
                self._found[-1] = Region(last.before_start, region.before_end, last.after_start, region.after_end)
                return
        self._found.append(region)

    def _trimmed(self, piece: Region) -> Region:
        one, other = self._one, self._other
        a, a_end, b, b_end = piece
        while a < a_end and b < b_end and one[a] == other[b]:
            a += 1
            b += 1
        while a < a_end and b < b_end and one[a_end - 1] == other[b_end - 1]:
            a_end -= 1
            b_end -= 1
        return Region(a, a_end, b, b_end)

    def _between_anchors(self, piece: Region) -> list[Region] | None:
        """The pieces before, between and after the matches inside ``piece``; None if it is solved."""
        a, a_end, b, b_end = piece
        self._steps -= (a_end - a) + (b_end - b)
        if self._steps < 0:
            self._add(piece)
            return None
        matches = self._unique_lines(piece) or self._shortest_edit(piece)
        if not matches:
            self._add(piece)
            return None
        pieces: list[Region] = []
        for x, y, length in matches:
            if a < x or b < y:
                pieces.append(Region(a, x, b, y))
            a, b = x + length, y + length
        if a < a_end or b < b_end:
            pieces.append(Region(a, a_end, b, b_end))
        return pieces

    def _unique_lines(self, piece: Region) -> list[tuple[int, int, int]]:
        """The longest run, in order on both sides, of lines that occur once in each side of ``piece``."""
        a, a_end, b, b_end = piece
        here = _unique_positions(self._one, a, a_end)
        there = _unique_positions(self._other, b, b_end)
        pairs = [(x, there[line]) for line, x in here.items() if line in there]
        # Longest increasing subsequence by patience sorting: tops[i] is the smallest end of a run of i + 1 pairs.
        tops: list[int] = []
        top_pairs: list[int] = []
        previous: list[int] = []
        for index, (_, y) in enumerate(pairs):
            at = bisect_left(tops, y)
            previous.append(top_pairs[at - 1] if at else -1)
            if at == len(tops):
                tops.append(y)
                top_pairs.append(index)
            else:
                tops[at] = y
                top_pairs[at] = index
        run: list[tuple[int, int, int]] = []
        at = top_pairs[-1] if top_pairs else -1
        while at >= 0:
            run.append((*pairs[at], 1))
            at = previous[at]
        run.reverse()
        return run

    def _shortest_edit(self, piece: Region) -> list[tuple[int, int, int]]:
        """Matches inside ``piece`` by Myers' greedy search, or as far as it came within its bounds."""
        a, a_end, b, b_end = piece
        shared = set(self._one[a:a_end]) & set(self._other[b:b_end])
        xs = [x for x in range(a, a_end) if self._one[x] in shared]
        ys = [y for y in range(b, b_end) if self._other[y] in shared]
        one, other = [self._one[x] for x in xs], [self._other[y] for y in ys]
        matches: list[tuple[int, int, int]] = []
        x = y = 0
        while x < len(xs) and y < len(ys) and self._steps > 0:
            path, x_next, y_next = self._search(one, other, x, y)
            matches += [(xs[i], ys[j], 1) for i, j in path]
            x, y = x_next, y_next
        return matches

    def _search(
        self, one: list[int], other: list[int], x_start: int, y_start: int
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Matches on the shortest edit from a start, and where it ended: at both ends, or as far as the search got."""
        n, m = len(one), len(other)
        reach: dict[int, int] = {1: x_start}
        base = x_start - y_start
        rounds: list[dict[int, int]] = []
        best = (-1, 0, 0)
        for edits in range(_MAX_EDITS + 1):
            now: dict[int, int] = {}
            for k in range(-edits, edits + 1, 2):
                down, right = reach.get(k + 1, _NOWHERE), reach.get(k - 1, _NOWHERE) + 1
                x = down if k == -edits or (k != edits and down >= right) else right
                y = x - base - k
                if x > n or y > m or x < x_start or y < y_start:
                    continue
                begin = x
                while x < n and y < m and one[x] == other[y]:
                    x += 1
                    y += 1
                now[k] = x
                self._steps -= 1 + x - begin
                if x + y > best[0]:
                    best = (x + y, edits, k)
                if x == n and y == m:
                    break
            rounds.append(now)
            reach = now
            if best[0] == n + m or self._steps < 0:
                break
        _, edits, k = best
        return self._walk_back(rounds, edits, k, x_start, y_start)

    @staticmethod
    def _walk_back(
        rounds: list[dict[int, int]], edits: int, k: int, x_start: int, y_start: int
    ) -> tuple[list[tuple[int, int]], int, int]:
        base = x_start - y_start
        x = rounds[edits][k]
        y = x - base - k
        end = (x, y)
        path: list[tuple[int, int]] = []
        while edits:
            reach = rounds[edits - 1]
            down, right = reach.get(k + 1, _NOWHERE), reach.get(k - 1, _NOWHERE) + 1
            went_down = k == -edits or (k != edits and down >= right)
            begin = down if went_down else right
            path += [(i, i - base - k) for i in range(x - 1, begin - 1, -1)]
            k = k + 1 if went_down else k - 1
            x = reach[k]
            edits -= 1
        path += [(i, i - base) for i in range(x - 1, x_start - 1, -1)]
        path.reverse()
        return path, *end


def _unique_positions(lines: list[int], start: int, end: int) -> dict[int, int]:
    """Line → position, in order, for the lines that occur once between ``start`` and ``end``."""
    places: dict[int, int] = {}
    repeated: set[int] = set()
    for at in range(start, end):
        line = lines[at]
        if line in places:
            repeated.add(line)
        else:
            places[line] = at
    for line in repeated:
        del places[line]
    return places
