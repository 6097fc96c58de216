"""Holdfast's own checkpoints as snapshots, with forks as working copies: available wherever Holdfast is.

A snapshot is a checkpoint that is kept for the snapshot's lifetime. The engine takes, forks and mounts checkpoints:
`Checkpoints` is its port.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.recorded_provider import RecordedProvider

if TYPE_CHECKING:
    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

KEEPER = re.compile(r"(?:workspace|view|snapshot) [0-9a-f]{16} of the session \S+\Z")

_MOUNTED_SCORE = 40
_WRITTEN_SCORE = 30


class CheckpointSupport(NamedTuple):
    """The features that are available here."""

    refusal: str = ""
    """Why none is available; empty: some are."""
    mounts: bool = False
    """Whether forks are mounted, and not written out."""
    why_not: str = ""
    """Why they are not mounted: a clause."""


class Checkpoints(Protocol):
    """The provider's port to the engine. A checkpoint is identified by its id, a fork and a view by their path.

    ``keeper`` is the reason for keeping a checkpoint, for people; it is unique for each snapshot. All methods raise
    `HoldfastError` and `OSError`.
    """

    def detect(self) -> CheckpointSupport:
        """The available features, found without changing anything."""
        ...

    def directory(self) -> bytes:
        """The directory for forks and views of the workspace, each in a directory of its own: a real path. It may be
        missing.
        """
        ...

    def where_to_work(self, place: bytes) -> bytes:
        """Of a fork or a view that was made at ``place``: the path that corresponds to the workspace's root."""
        ...

    def take(self, place: bytes | None, keeper: str, message: str) -> str:
        """Save the present state of the fork at ``place``, or (None) of the workspace; the checkpoint's id. It is kept
        until `release`. An unmounted fork is mounted again.
        """
        ...

    def fork(self, checkpoint: str, place: bytes) -> None:
        """Make a fork at ``place``, which keeps its checkpoint for as long as it is there."""
        ...

    def make_view(self, checkpoint: str, place: bytes) -> None:
        """Make a view at ``place``, which keeps its contents for its lifetime."""
        ...

    def resume(self, place: bytes) -> None:
        """Mount the fork at ``place`` again if it takes that: a restart of the machine ends every mount."""
        ...

    def remove(self, place: bytes) -> None:
        """Unmount and remove the fork or view at ``place``, complete or not, with its records, except those that
        snapshots keep. A process that still works in it loses its files. Idempotent.
        """
        ...

    def release(self, keeper: str) -> None:
        """Release the checkpoint that is kept for ``keeper``. One in the workspace's own history stays there, like any
        checkpoint that was not requested by name. Idempotent.
        """
        ...

    def release_all(self) -> None:
        """`release` for every keeper: no session of the workspace has snapshots. Idempotent."""
        ...


class _OwnCheckpoints:
    """See `Technique`."""

    name = "holdfast"
    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, context: ProviderContext, ledger: Ledger, checkpoints: Checkpoints) -> None:
        self._context = context
        self._ledger = ledger
        self._checkpoints = checkpoints

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        try:
            means = self._checkpoints.detect()
        except (HoldfastError, OSError) as error:
            return Capabilities(self.name, 0, notes=(f"the home cannot be read: {error}",))
        if means.refusal:
            return Capabilities(self.name, 0, notes=(means.refusal,))
        notes = [
            "a snapshot is a checkpoint: it holds no ignored files and no .git",
            f"forks lie in {display(self._checkpoints.directory())}",
        ]
        if means.mounts:
            return Capabilities(self.name, _MOUNTED_SCORE, self.modes, notes=("forks are mounted", *notes))
        written = f"forks are written out, file by file: {means.why_not}"
        return Capabilities(self.name, _WRITTEN_SCORE, self.modes, notes=(written, *notes))

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.plan`."""
        del origin
        if entry.kind == "snapshot":
            return entry
        place = os.path.join(self._checkpoints.directory(), entry.token.encode())
        return msgspec.structs.replace(entry, path=display(place))

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.workspace`."""
        if base is None:
            checkpoint = self._checkpoints.take(None, self._keeper(entry), "")
        else:
            checkpoint = base.facts["checkpoint"]
        self._checkpoints.fork(checkpoint, _of(entry))
        self._checkpoints.release(self._keeper(entry))  # the fork keeps it
        return _with_checkpoint(entry, checkpoint)

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """See `Technique.view`."""
        checkpoint = snapshot.facts["checkpoint"]
        self._checkpoints.make_view(checkpoint, _of(entry))
        return _with_checkpoint(entry, checkpoint)

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.capture`."""
        del parent
        return _with_checkpoint(entry, self._checkpoints.take(workspace.place, self._keeper(entry), entry.label))

    def where_to_work(self, entry: LedgerEntry) -> bytes:
        """See `Technique.where_to_work`."""
        return self._checkpoints.where_to_work(_of(entry))

    def enter(self, entry: LedgerEntry) -> tuple[bytes, ...]:
        """The prefix of a command in a fork: none, as every process sees it."""
        del entry
        return ()

    def resume(self, entry: LedgerEntry) -> None:
        """Mount a fork again, after a restart of the machine."""
        self._checkpoints.resume(_of(entry))

    def remove(self, entry: LedgerEntry) -> None:
        """See `Technique.remove`."""
        if entry.place is not None:
            self._checkpoints.remove(entry.place)
        self._checkpoints.release(self._keeper(entry))

    def remove_shared(self) -> None:
        """See `Technique.remove_shared`. It also releases checkpoints of damaged or missing entries."""
        self._checkpoints.release_all()

    def _keeper(self, entry: LedgerEntry) -> str:
        return keeper_of(entry.kind, entry.token, self._context.session)


def keeper_of(kind: str, token: str, session: str) -> str:
    """For what a checkpoint is kept; `KEEPER` matches it."""
    return f"{kind} {token} of the session {session}"


def _of(entry: LedgerEntry) -> bytes:
    place = entry.place
    assert place is not None, "only in place, and of a snapshot, there is none"
    return place


def _with_checkpoint(entry: LedgerEntry, checkpoint: str) -> LedgerEntry:
    return msgspec.structs.replace(entry, facts={"checkpoint": checkpoint})


def own_provider(context: ProviderContext, checkpoints: Checkpoints) -> RecordedProvider:
    """The provider ``holdfast``. Raises `UsageError` for a session that cannot be called so."""
    ledger = context.ledger()
    return RecordedProvider(_OwnCheckpoints(context, ledger, checkpoints), ledger, context.root)
