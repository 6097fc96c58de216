"""Snapshots of a subvolume of btrfs: everything in it at one moment, in a time that does not depend on how much it is.

A snapshot is a read-only subvolume, and so is a view; what is worked in is a writable one. They lie in the state
directory, or in the workspace, below ``.holdfast``, where the home is on another file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.files.subvolume import has_inner, is_subvolume, remove_subvolume, same_btrfs, snapshot_subvolume
from holdfast.snapshot.copies import IN_TREE_NOTE, InCopies
from holdfast.snapshot.port import Capabilities
from holdfast.snapshot.recorded import RecordedProvider

if TYPE_CHECKING:
    from holdfast.snapshot.ledger import Entry, Ledger
    from holdfast.snapshot.place import Place

_SCORE = 90


class _Btrfs(InCopies):
    """See `Technique`."""

    name = "btrfs"

    def __init__(self, place: Place, ledger: Ledger) -> None:
        super().__init__(place, ledger, "has no subvolume there that snapshots can be made of")

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        root = self._place.root
        try:
            reason = self._lacking()
            if reason:
                return Capabilities(self.name, 0, notes=(reason,))
            notes = ["a snapshot takes a moment, however much there is, and no room for what does not change"]
            if has_inner(root):
                notes.append("subvolumes in the workspace are taken with it, each at a moment of its own")
            if not self._copies.beside():
                notes.append(IN_TREE_NOTE)
        except OSError as error:
            return Capabilities(self.name, 0, notes=(f"the file system cannot be tried: {error.strerror}",))
        return Capabilities(self.name, _SCORE, self.modes, carries_ignored=True, notes=tuple(notes))

    def _lacking(self) -> str:
        """Why nothing can be made of the workspace; empty if it can."""
        root = self._place.root
        if not same_btrfs(root, root):
            return "the workspace is not on btrfs"
        if not is_subvolume(root):
            return (
                "the workspace is a plain directory of btrfs, not the root of a subvolume, as `btrfs subvolume create` "
                "makes it; the provider reflink serves it"
            )
        if os.geteuid() not in (0, os.stat(root).st_uid):
            return "the subvolume belongs to another user"
        return ""

    def _fits(self, directory: bytes) -> bool:
        return is_subvolume(self._place.root) and same_btrfs(self._place.root, directory)

    def capture(self, entry: Entry, workspace: Entry, parent: Entry | None) -> Entry:
        """See `Technique.capture`."""
        del parent
        return self._take(workspace.place or self._place.root, entry, read_only=True)

    def remove(self, entry: Entry) -> None:
        """See `Technique.remove`."""
        if entry.place is not None:
            remove_subvolume(entry.place)

    def _copy(self, source: bytes, target: bytes, *, read_only: bool) -> None:
        snapshot_subvolume(source, target, read_only=read_only, without=self._place.without(source))


def btrfs_provider(place: Place) -> RecordedProvider:
    """The provider ``btrfs``. Raises `UsageError` for a session that cannot be called so."""
    ledger = place.ledger()
    return RecordedProvider(_Btrfs(place, ledger), ledger, place.root, place.leading_out)
