"""What others edit while a step goes on, as it is told of; kept until the step ends, and then laid against its records.

Which of that the step had had to do with by then is known only at its end: what it recorded may be taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.files.handle import Identity
    from holdfast.undo.records import Outside

MOST_EDITS = 10_000
"""With more of them, all that the step has touched by then counts as edited."""
_ANYTHING = b""

T = TypeVar("T", bytes, "Identity")


class EditsInStep:
    """See the module. Sequence numbers say when an edit was known. For one thread at a time."""

    __slots__ = ("_objects", "_paths", "is_bounded")

    def __init__(self) -> None:
        self._paths: dict[bytes, list[int]] = {}
        self._objects: dict[Identity, list[int]] = {}
        self.is_bounded = False
        """There were more than are kept: then the root's path stands for anything."""

    def add(self, edit: Outside, acted: int) -> None:
        """One more edit; the step has recorded nothing after the sequence number ``acted`` yet."""
        if self.is_bounded or _ANYTHING in edit.paths:
            self._bound(edit.seq)
            return
        _note(self._paths, edit.paths, edit.seq, acted)
        _note(self._objects, edit.objects, edit.seq, acted)
        # (What is noted anew for the same is no more than the step itself has recorded.)
        if len(self._paths) + len(self._objects) > MOST_EDITS:
            self.is_bounded = True
            self._bound(edit.seq)

    def _bound(self, seq: int) -> None:
        # (The last such edit says as much as all before it.)
        if self.is_bounded:
            self._paths.clear()
            self._objects.clear()
        self._paths[_ANYTHING] = [seq]

    def paths(self) -> Iterator[tuple[int, bytes]]:
        """What was edited by its path, the root's: anything; with the sequence numbers."""
        return _numbered(self._paths)

    def objects(self) -> Iterator[tuple[int, Identity]]:
        """What was edited by whatever name, as `paths`."""
        return _numbered(self._objects)


def _note(known: dict[T, list[int]], found: Iterable[T], seq: int, acted: int) -> None:
    for one in found:
        numbers = known.setdefault(one, [])
        # (Between two edits the step may have come to it, or moved it; else one says as much as both.)
        if not numbers or numbers[-1] <= acted:
            numbers.append(seq)


def _numbered(known: Mapping[T, Iterable[int]]) -> Iterator[tuple[int, T]]:
    return ((seq, one) for one, numbers in known.items() for seq in numbers)
