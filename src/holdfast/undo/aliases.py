"""Objects that had to be made anew when they were brought back: what the records call by the old identity is the new
object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.handle import Identity


class Aliases:
    """Which object stands for which. For one thread at a time."""

    def __init__(self) -> None:
        self._new: dict[Identity, Identity] = {}

    def add(self, old: Identity, new: Identity) -> None:
        """``new`` stands for ``old`` from now on, and for all that ``old`` stood for. Where both are the same
        object, it stands for itself again.
        """
        self._new.pop(new, None)  # it is there again
        if old != new:
            self._new[old] = new

    def now(self, object_: Identity) -> Identity:
        """What stands for the object; itself if it was never made anew."""
        while (new := self._new.get(object_)) is not None:
            object_ = new
        return object_

    def all(self, objects: Iterable[Identity]) -> frozenset[Identity]:
        """What stands for them."""
        return frozenset(map(self.now, objects)) if self._new else frozenset(objects)
