"""What changes to paths come to, one after the other: which are written by them, and which are deleted.

What is written is named as it is called at the end, what is deleted as it was called before: a path lies where the
directories above it have been moved to by then.
"""

from __future__ import annotations

from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from holdfast.undo.service import PathChange

Effect: TypeAlias = tuple[list[bytes], list[bytes]]
"""What is written, and what is deleted."""


def effect(steps: Iterable[Sequence[PathChange]], *, backward: bool) -> Effect:
    """What is written and what is deleted where the changes, step by step, are made or (``backward``) taken back.

    What only comes and goes meanwhile is neither. What lies in a directory that is moved is not listed for that.
    """
    outcome = _Outcome()
    for changes in steps:
        outcome.add(changes, backward=backward)
    return outcome.effect()


def summed(effects: Iterable[Effect]) -> Effect:
    """What several effects come to, one after the other, as far as that can be told by paths alone: something that was
    written first and deleted then is listed as deleted, whether it was there before or not.
    """
    there: dict[bytes, bool] = {}
    for written, deleted in effects:
        gone = frozenset(deleted)
        lost = [path for path, is_there in there.items() if is_there and not gone.isdisjoint(_above(path))]
        for path in lost:
            del there[path]
        there |= dict.fromkeys(written, True) | dict.fromkeys(deleted, False)
    return (
        sorted(path for path, is_there in there.items() if is_there),
        sorted(path for path, is_there in there.items() if not is_there),
    )


class _Outcome:
    """What some steps have come to so far."""

    def __init__(self) -> None:
        self._there: dict[bytes, bool] = {}
        """What is written, by the name that it has now, and (False) what has lost its name."""
        self._before: dict[bytes, bool] = {}
        """Whether there was anything of that name before all of them."""
        self._ways: set[bytes] = set()
        """The directories that any of these names lies in, or has."""

    def add(self, changes: Sequence[PathChange], *, backward: bool) -> None:
        """Make the changes of one step, or take them back."""
        moves = [(one.path, one.source) for one in changes if one.source is not None]
        moved = dict(moves if backward else [(source, path) for path, source in moves])
        lost, gained = ("added", "deleted") if backward else ("deleted", "added")
        self._move(moved)
        # (Names that are exchanged lose what they named, and name something then.)
        for path in (*(one.path for one in changes if one.change == lost), *moved):
            self._before.setdefault(path, self._was_there(path))
            self._put(path, is_there=False)
        for path in (*(one.path for one in changes if one.change == gained), *moved.values()):
            self._before.setdefault(path, False)
            self._put(path, is_there=True)
        for change in changes:
            if change.change in ("modified", "metadata"):
                # A change is told by the name that the step has left it with.
                path = _moved(change.path, moved) if backward else change.path
                self._before.setdefault(path, self._was_there(path))
                self._put(path, is_there=True)

    def _move(self, moved: Mapping[bytes, bytes]) -> None:
        """What is there goes where it, or what it lies in, is moved."""
        if any(path in self._ways for path in moved):  # (only a directory has anything below it)
            going = [path for path, is_there in self._there.items() if is_there]
        else:
            going = [path for path in moved if self._there.get(path)]
        there = {_moved(path, moved): True for path in going}
        for path in going:
            del self._there[path]
        for path in there:
            self._put(path, is_there=True)

    def _put(self, path: bytes, *, is_there: bool) -> None:
        self._there[path] = is_there
        for above in _above(path):
            if above in self._ways:
                break
            self._ways.add(above)

    def effect(self) -> Effect:
        """What that is."""
        written = sorted(path for path, is_there in self._there.items() if is_there)
        gone = (path for path, is_there in self._there.items() if not is_there)
        return written, sorted(path for path in gone if self._before[path])

    def _was_there(self, path: bytes) -> bool:
        """Whether what has that name now had it before: it is not in what was made or moved here."""
        return all(self._before.get(above, True) for above in _above(path))


def _moved(path: bytes, moved: Mapping[bytes, bytes]) -> bytes:
    """Where ``path`` is once the moves are made: it goes with the nearest of what is moved that it lies in."""
    for above in (path, *_above(path)):
        if above in moved:
            return moved[above] + path[len(above) :]
    return path


def _above(path: bytes) -> Iterator[bytes]:
    """The directories that a path lies in, the nearest first; without the root."""
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)
