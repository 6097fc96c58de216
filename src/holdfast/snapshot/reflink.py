"""Whole copies that share their blocks with the workspace (btrfs, XFS): they carry everything, ignored files too.

A snapshot is a directory with a copy of everything, and so is what is made from it. They lie in the state directory, or
in the workspace, below ``.holdfast``, where the home is on another file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.own import find_own
from holdfast.files.reflink import can_share
from holdfast.files.replicate import make_read_only, remove_whole, replicate
from holdfast.model.paths import display
from holdfast.snapshot.copies import IN_TREE_NOTE, Copies
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.recorded import RecordedProvider

if TYPE_CHECKING:
    from holdfast.snapshot.ledger import Entry, Ledger
    from holdfast.snapshot.place import Place

_SCORE = 45


class _Reflink:
    """See `Technique`."""

    name = "reflink"
    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, place: Place, ledger: Ledger) -> None:
        self._place = place
        self._copies = Copies(place, ledger, self._fits, "cannot share blocks between files")

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
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
        return Capabilities(self.name, _SCORE, self.modes, carries_ignored=True, notes=tuple(notes))

    def plan(self, entry: Entry, origin: Entry | None) -> Entry:
        """See `Technique.plan`."""
        del origin
        return msgspec.structs.replace(entry, path=display(self._copies.path_for(entry)))

    def workspace(self, entry: Entry, base: Entry | None) -> Entry:
        """See `Technique.workspace`."""
        self._copy(self._place.root if base is None else _of(base), entry)
        return entry

    def view(self, entry: Entry, snapshot: Entry) -> Entry:
        """See `Technique.view`."""
        self._copy(_of(snapshot), entry)
        make_read_only(_of(entry))
        return entry

    def capture(self, entry: Entry, workspace: Entry, parent: Entry | None) -> Entry:
        """See `Technique.capture`."""
        del parent
        self._copy(workspace.place or self._place.root, entry)
        return entry

    def where_to_work(self, entry: Entry) -> bytes:
        """See `Technique.where_to_work`."""
        return _of(entry)

    def enter(self, entry: Entry) -> tuple[bytes, ...]:
        """See `Technique.enter`."""
        del entry
        return ()

    def resume(self, entry: Entry) -> None:
        """See `Technique.resume`: a directory stays."""

    def remove(self, entry: Entry) -> None:
        """See `Technique.remove`."""
        if entry.place is not None:
            remove_whole(entry.place)

    def tidy(self) -> None:
        """See `Technique.tidy`."""
        self._copies.tidy()

    def _copy(self, source: bytes, entry: Entry) -> None:
        target = _of(entry)
        self._copies.make_room(target)
        own = find_own(os.path.join(source, path) for path in self._place.without(source))
        replicate(source, target, without=own)

    def _fits(self, directory: bytes) -> bool:
        return can_share(self._place.root, directory)


def _of(entry: Entry) -> bytes:
    place = entry.place
    assert place is not None, "only in place there is none"
    return place


def reflink_provider(place: Place) -> RecordedProvider:
    """The provider ``reflink``. Raises `UsageError` for a session that cannot be called so."""
    ledger = place.ledger()
    return RecordedProvider(_Reflink(place, ledger), ledger, place.root, place.leading_out)
