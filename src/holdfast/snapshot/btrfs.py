"""Snapshots of a btrfs subvolume: all its files at one moment, in a time that does not depend on their number.

A snapshot is a read-only subvolume, and so is a view; a working copy is a writable one. They are in the state
directory, or in the workspace, below ``.holdfast``, if the home is on another file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.directories.btrfs_subvolume import (
    has_inner,
    is_subvolume,
    remove_subvolume,
    same_btrfs,
    snapshot_subvolume,
)
from holdfast.model.paths import display
from holdfast.snapshot._copy_location import IN_TREE_NOTE, CopyLocation
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.recorded_provider import RecordedProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

_SCORE = 90
_MOMENT = "a snapshot takes a moment, however much there is, and no room for what does not change"


class _Btrfs:
    """See `Technique`."""

    name = "btrfs"
    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, context: ProviderContext, ledger: Ledger) -> None:
        self._context = context
        self._copies = CopyLocation(context, ledger, self._fits, "has no subvolume there that snapshots can be made of")

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        root = self._context.root
        try:
            reason = self._lacking()
            if reason:
                return Capabilities(self.name, 0, notes=(reason,))
            notes = [_MOMENT]
            if has_inner(root):
                notes.append("subvolumes in the workspace are taken with it, each at a moment of its own")
            if not self._copies.beside():
                notes.append(IN_TREE_NOTE)
        except OSError as error:
            return Capabilities(self.name, 0, notes=(f"the file system cannot be tried: {error.strerror}",))
        return Capabilities(self.name, _SCORE, self.modes, carries_ignored=True, notes=tuple(notes))

    def detect_beside(self, directory: bytes) -> Capabilities:
        """See `CopyMaker.detect_beside`."""
        root = self._context.root
        reason = self._lacking()
        if not reason and not same_btrfs(root, directory):
            reason = "the copy would lie in another file system than the workspace"
        if not reason and has_inner(root):
            reason = "other subvolumes lie in the workspace; the provider reflink serves it"
        if reason:
            return Capabilities(self.name, 0, notes=(reason,))
        return Capabilities(self.name, _SCORE, carries_ignored=True, notes=(_MOMENT,))

    def copy_to(self, target: bytes, without: Sequence[bytes]) -> None:
        """See `CopyMaker.copy_to`."""
        inside = self._context.root.rstrip(b"/") + b"/"
        paths = [path.removeprefix(inside) for path in without if path.startswith(inside)]
        snapshot_subvolume(self._context.root, target, read_only=False, without=paths)

    def _lacking(self) -> str:
        """Why nothing can be made of the workspace; empty if it can."""
        root = self._context.root
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
        return is_subvolume(self._context.root) and same_btrfs(self._context.root, directory)

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.plan`."""
        del origin
        return msgspec.structs.replace(entry, path=display(self._copies.path_for(entry)))

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.workspace`."""
        self._take(self._context.root if base is None else _of(base), entry, read_only=False)
        return entry

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """See `Technique.view`."""
        self._take(_of(snapshot), entry, read_only=True)
        return entry

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.capture`."""
        del parent
        self._take(workspace.place or self._context.root, entry, read_only=True)
        return entry

    def where_to_work(self, entry: LedgerEntry) -> bytes:
        """See `Technique.where_to_work`."""
        return _of(entry)

    def enter(self, entry: LedgerEntry) -> tuple[bytes, ...]:
        """See `Technique.enter`."""
        del entry
        return ()

    def resume(self, entry: LedgerEntry) -> None:
        """See `Technique.resume`: a directory stays."""

    def remove(self, entry: LedgerEntry) -> None:
        """See `Technique.remove`."""
        if entry.place is not None:
            remove_subvolume(entry.place)

    def remove_shared(self) -> None:
        """See `Technique.remove_shared`."""
        self._copies.remove_empty()

    def _take(self, source: bytes, entry: LedgerEntry, *, read_only: bool) -> None:
        target = _of(entry)
        self._copies.make_room(target)
        snapshot_subvolume(source, target, read_only=read_only, without=self._context.without(source))


def _of(entry: LedgerEntry) -> bytes:
    place = entry.place
    assert place is not None, "only in place there is none"
    return place


def btrfs_provider(context: ProviderContext) -> RecordedProvider:
    """The provider ``btrfs``. Raises `UsageError` for a session that cannot be called so."""
    ledger = context.ledger()
    technique = _Btrfs(context, ledger)
    return RecordedProvider(technique, ledger, context.root, context.git_links, copy_maker=technique)
