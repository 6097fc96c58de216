"""Whole copies of the workspace, file by file: they carry everything, ignored files too.

``reflink`` makes them where they share their blocks with the workspace (btrfs, XFS), and nowhere else. ``copy`` makes
them anywhere, and they take the room of all that is in there: it is for where nothing else carries ignored files. A
snapshot is a directory with a copy of everything, and so is what is made from it. They lie in the state directory, or
those of ``reflink`` in the workspace, below ``.holdfast``, where the home is on another file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.files.reflink import can_share
from holdfast.files.replicate import make_read_only, remove_whole, replicate
from holdfast.files.sizing import size_of
from holdfast.model.errors import RefusedError
from holdfast.model.paths import display
from holdfast.model.wording import size
from holdfast.snapshot.copies import IN_TREE_NOTE, InCopies
from holdfast.snapshot.port import Capabilities
from holdfast.snapshot.recorded import RecordedProvider

if TYPE_CHECKING:
    from holdfast.files.sizing import Size
    from holdfast.snapshot.ledger import Entry, Ledger
    from holdfast.snapshot.place import Place

_SHARING_SCORE, _COPYING_SCORE = 45, 20
MOST_BYTES = "snapshot.max_copy_bytes"
"""The key that says how much is copied at most."""


class _Whole(InCopies):
    """See `Technique`."""

    def __init__(self, place: Place, ledger: Ledger, *, sharing: bool) -> None:
        """``sharing``: only where the copies share blocks with the workspace."""
        self.name = "reflink" if sharing else "copy"
        super().__init__(place, ledger, "cannot share blocks between files")
        self._sharing = sharing

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        if not self._sharing:
            note = "a copy takes the time and the room of all that is in the workspace, ignored files and .git included"
            return Capabilities(self.name, _COPYING_SCORE, self.modes, carries_ignored=True, notes=(note,))
        try:
            beside, inside = self._copies.beside(), self._copies.inside()
        except OSError as error:
            reason = f"the file system cannot be tried: {error.strerror}"
            return Capabilities(self.name, 0, notes=(reason,))
        if not beside and not inside:
            reason = "the file system of the workspace cannot share blocks between files (btrfs can, and XFS)"
            return Capabilities(self.name, 0, notes=(reason,))
        notes = ["a copy takes time for each file, and no room for what does not change"]
        if not beside:
            notes.append(IN_TREE_NOTE)
        return Capabilities(self.name, _SHARING_SCORE, self.modes, carries_ignored=True, notes=tuple(notes))

    def plan(self, entry: Entry, origin: Entry | None) -> Entry:
        """See `Technique.plan`."""
        if not self._sharing:
            source = self._place.root if origin is None or origin.place is None else origin.place
            refuse_huge(self._place, source)
        return super().plan(entry, origin)

    def capture(self, entry: Entry, workspace: Entry, parent: Entry | None) -> Entry:
        """See `Technique.capture`."""
        del parent
        return self._take(workspace.place or self._place.root, entry, read_only=False)

    def remove(self, entry: Entry) -> None:
        """See `Technique.remove`."""
        if entry.place is not None:
            remove_whole(entry.place)

    def _copy(self, source: bytes, target: bytes, *, read_only: bool) -> None:
        replicate(source, target, without=self._place.own_in(source))
        if read_only:
            make_read_only(target)

    def _fits(self, directory: bytes) -> bool:
        return not self._sharing or can_share(self._place.root, directory)


def size_of_copy(place: Place, source: bytes) -> Size:
    """What a whole copy of the directory ``source`` would hold, and the room that it takes. Raises `OSError`."""
    return size_of(source, without=place.own_in(source))


def refuse_huge(place: Place, source: bytes) -> None:
    """Refuse to copy the directory ``source`` to where ``place`` keeps what it makes, if that is more than is allowed,
    or than there is room for. Raises `RefusedError` (``copy_too_large``, ``no_room``), `OSError`.
    """
    found = size_of_copy(place, source)
    what = f"a copy of {display(source)} would hold {found.files:,} files of {size(found.bytes)}"
    if place.most_bytes and found.bytes > place.most_bytes:
        raise RefusedError(
            f"{what}, more than the {size(place.most_bytes)} of {MOST_BYTES}",
            hint=f"set {MOST_BYTES} higher (0: no limit), or do without ignored files",
            code="copy_too_large",
        )
    there = os.statvfs(place.nearest())
    free = there.f_bavail * there.f_frsize
    if found.bytes > free:
        raise RefusedError(
            f"{what}, and {display(place.nearest())} has {size(free)} left",
            hint="free some space, or do without ignored files",
            code="no_room",
        )


def reflink_provider(place: Place) -> RecordedProvider:
    """The provider ``reflink``. Raises `UsageError` for a session that cannot be called so."""
    return _provider(place, sharing=True)


def copy_provider(place: Place) -> RecordedProvider:
    """The provider ``copy``. Raises `UsageError` for a session that cannot be called so."""
    return _provider(place, sharing=False)


def _provider(place: Place, *, sharing: bool) -> RecordedProvider:
    ledger = place.ledger()
    return RecordedProvider(_Whole(place, ledger, sharing=sharing), ledger, place.root, place.leading_out)
