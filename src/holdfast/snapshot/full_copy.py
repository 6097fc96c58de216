"""Whole copies of the workspace, file by file: they carry everything, ignored files too.

``reflink`` makes them only where they share their blocks with the workspace (btrfs, XFS). ``copy`` makes them anywhere,
at the full size: for file systems where no other provider includes ignored files. A snapshot is a directory with a copy
of everything, and so is a working copy of it. They are in the state directory, or those of ``reflink`` in the
workspace, below ``.holdfast``, if the home is on another file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.directories.directory_size import size_of
from holdfast.files.directories.replication import make_read_only, remove_whole, replicate
from holdfast.files.linux.reflink import can_share
from holdfast.files.protected_directories import find_protected
from holdfast.model.errors import RefusedError
from holdfast.model.message_text import plural, size
from holdfast.model.paths import display
from holdfast.snapshot._copy_location import IN_TREE_NOTE, CopyLocation
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.recorded_provider import RecordedProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.files.directories.directory_size import DirectorySize
    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

_SHARING_SCORE, _COPYING_SCORE = 45, 20
_SHARES = "a copy takes time for each file, and no room for what does not change"
_COPIES = "a copy takes the time and the room of all that is in the workspace, ignored files and .git included"
MOST_BYTES = "snapshot.max_copy_bytes"
"""The key that says how much is copied at most."""


class _FullCopy:
    """See `Technique`."""

    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, context: ProviderContext, ledger: Ledger, *, sharing: bool) -> None:
        """``sharing``: only where the copies share blocks with the workspace."""
        self.name = "reflink" if sharing else "copy"
        self._context = context
        self._sharing = sharing
        self._copies = CopyLocation(context, ledger, self._fits, "cannot share blocks between files")

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        if not self._sharing:
            return Capabilities(self.name, _COPYING_SCORE, self.modes, carries_ignored=True, notes=(_COPIES,))
        try:
            beside, inside = self._copies.beside(), self._copies.inside()
        except OSError as error:
            reason = f"the file system cannot be tried: {error.strerror}"
            return Capabilities(self.name, 0, notes=(reason,))
        if not beside and not inside:
            reason = "the file system of the workspace cannot share blocks between files (btrfs can, and XFS)"
            return Capabilities(self.name, 0, notes=(reason,))
        notes = [_SHARES]
        if not beside:
            notes.append(IN_TREE_NOTE)
        return Capabilities(self.name, _SHARING_SCORE, self.modes, carries_ignored=True, notes=tuple(notes))

    def detect_beside(self, directory: bytes) -> Capabilities:
        """See `CopyMaker.detect_beside`."""
        if self._sharing and not can_share(self._context.root, directory):
            reason = "the file system of the workspace cannot share blocks between files (btrfs can, and XFS)"
            return Capabilities(self.name, 0, notes=(reason,))
        score, note = (_SHARING_SCORE, _SHARES) if self._sharing else (_COPYING_SCORE, _COPIES)
        return Capabilities(self.name, score, carries_ignored=True, notes=(note,))

    def copy_to(self, target: bytes, without: Sequence[bytes]) -> None:
        """See `CopyMaker.copy_to`."""
        replicate(self._context.root, target, without=find_protected(without))

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.plan`."""
        if not self._sharing:
            source = self._context.root if origin is None or origin.place is None else origin.place
            refuse_huge(self._context, source)
        return msgspec.structs.replace(entry, path=display(self._copies.path_for(entry)))

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.workspace`."""
        self._copy(self._context.root if base is None else _of(base), entry)
        return entry

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """See `Technique.view`."""
        self._copy(_of(snapshot), entry)
        make_read_only(_of(entry))
        return entry

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.capture`."""
        del parent
        self._copy(workspace.place or self._context.root, entry)
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
            remove_whole(entry.place)

    def remove_shared(self) -> None:
        """See `Technique.remove_shared`."""
        self._copies.remove_empty()

    def _copy(self, source: bytes, entry: LedgerEntry) -> None:
        target = _of(entry)
        self._copies.make_room(target)
        replicate(source, target, without=self._context.own_in(source))

    def _fits(self, directory: bytes) -> bool:
        return not self._sharing or can_share(self._context.root, directory)


def size_of_copy(context: ProviderContext, source: bytes) -> DirectorySize:
    """The contents and the size of a complete copy of the directory ``source``. Raises `OSError`."""
    return size_of(source, without=context.own_in(source))


def refuse_huge(context: ProviderContext, source: bytes) -> None:
    """Refuse to copy the directory ``source`` to the provider's place if it is larger than permitted, or than the free
    space. Raises `RefusedError` (``copy_too_large``, ``no_room``), `OSError`.
    """
    found = size_of_copy(context, source)
    what = f"a copy of {display(source)} would hold {plural(found.files, 'file')} of {size(found.bytes)}"
    if context.most_bytes and found.bytes > context.most_bytes:
        raise RefusedError(
            f"{what}, more than the {size(context.most_bytes)} of {MOST_BYTES}",
            hint=f"set {MOST_BYTES} higher (0: no limit), or do without ignored files",
            code="copy_too_large",
        )
    there = os.statvfs(context.nearest())
    free = there.f_bavail * there.f_frsize
    if found.bytes > free:
        raise RefusedError(
            f"{what}, and {display(context.nearest())} has {size(free)} left",
            hint="free some space, or do without ignored files",
            code="no_room",
        )


def _of(entry: LedgerEntry) -> bytes:
    place = entry.place
    assert place is not None, "only in place there is none"
    return place


def reflink_provider(context: ProviderContext) -> RecordedProvider:
    """The provider ``reflink``. Raises `UsageError` for a session that cannot be called so."""
    return _provider(context, sharing=True)


def copy_provider(context: ProviderContext) -> RecordedProvider:
    """The provider ``copy``. Raises `UsageError` for a session that cannot be called so."""
    return _provider(context, sharing=False)


def _provider(context: ProviderContext, *, sharing: bool) -> RecordedProvider:
    ledger = context.ledger()
    technique = _FullCopy(context, ledger, sharing=sharing)
    return RecordedProvider(technique, ledger, context.root, context.git_links, copy_maker=technique)
