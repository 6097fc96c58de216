"""The port to the undo log of a workspace, for all code that does not feed the interceptor.

There is one keeper at a time, which implements the port on its log (`holdfast.undo.local_service.undo_service`). Other
processes use the keeper's private socket. Without a keeper, a process opens the log itself and is the keeper meanwhile.
The values are plain, so that they can be sent over a socket unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - the port's signatures are read at run time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from holdfast.model.paths import display
from holdfast.undo.journal.records import StepId, StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager


class Thresholds(NamedTuple):
    """The limits at which a person is asked. Zero and False: never."""

    deletes: int = 0
    """When a step would have lost this many files; `holdfast.undo.safeguards.losses` has the rule."""
    overwrite_bytes: int = 0
    """When it would have lost this many bytes of them."""
    rename_over: bool = False
    """When a rename replaces a file that counts."""
    limit: bool = False
    """When a step would go on without protection."""
    timeout: float = 30.0
    """Seconds until a ticket is denied."""

    @property
    def asks(self) -> bool:
        """Whether a person is ever asked."""
        return bool(self.deletes or self.overwrite_bytes or self.rename_over or self.limit)


OFF = Thresholds()


PRESET = Thresholds(deletes=50, overwrite_bytes=10_000_000, limit=True)


def strictest(asked_for: Iterable[Thresholds]) -> Thresholds:
    """The strictest value of each limit, if several clients ask for some. A client without limits changes nothing.

    The shortest time to answer is the strictest: after it, nothing happens.
    """
    wanted = [each for each in asked_for if each.asks]
    return Thresholds(
        deletes=min((each.deletes for each in wanted if each.deletes), default=0),
        overwrite_bytes=min((each.overwrite_bytes for each in wanted if each.overwrite_bytes), default=0),
        rename_over=any(each.rename_over for each in wanted),
        limit=any(each.limit for each in wanted),
        timeout=min((each.timeout for each in wanted), default=OFF.timeout),
    )


StepState = Literal["open", "done", "undone", "partly"]
"""``partly``: an undo or a recovery left objects unchanged, and kept their preimages."""


class LogLimits(NamedTuple):
    """The limits of the log; the oldest steps beyond them are evicted (`holdfast.undo.log.UndoLog.evict`)."""

    max_bytes: int = 1 << 30
    """Of preimages, and of the files of steps, which hold small contents."""
    max_steps: int = 1_000
    """All steps of a run count as one."""
    max_step_bytes: int = 200 << 20
    """Copied bytes in one step; with more it is not protected."""


ABANDONED: Final = b"[committed: its client ended]"
"""Appended to the label of an explicit step that was closed because the process that had begun it was gone."""


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One step. Times are nanoseconds since 1970-01-01 UTC."""

    id: StepId
    kind: StepKind
    state: StepState
    command: tuple[bytes, ...]
    """Its argument list; empty if it has no command."""
    directory: bytes
    """The absolute path where its command ran; empty if there is none."""
    run: str
    """The run it belongs to; empty outside of one."""
    parent: StepId | None
    """The explicit step that it is a part of."""
    started_at: int
    ended_at: int | None
    """None while it is open."""
    acted: int
    """Orders the steps by their latest change to the tree, undo and redo included."""
    begun: int = 0
    """The sequence number with which it began, when it was first done."""
    ended: int | None = None
    """The sequence number by which it had ended when it was first done; None while it is open."""
    paths: int
    """How many paths it changed."""
    copied: int
    """Bytes of preimages that were copied, not renamed or linked."""
    unprotected: str
    """Why undo cannot bring back everything; empty if it can."""
    exit_code: int | None
    barrier_after: bool
    """Another process changed the tree after it, and before the next one."""
    refused: Literal["", "undo", "redo"] = ""
    """The operation that brought it to its state, if the system refused a part. The same operation tries that again."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command's step."""

    info: StepInfo | None
    """None if it changed nothing."""
    denied: bool
    """A safeguard was denied, or not answered: its changes were rolled back."""


class PathChange(msgspec.Struct, frozen=True, kw_only=True):
    """A step's change of one path."""

    path: bytes
    change: Literal["added", "modified", "deleted", "renamed", "metadata"]
    source: bytes | None = None
    """Where it was before, for a rename."""


class ConflictInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An object left unchanged."""

    path: bytes
    reason: str
    kept: bytes | None
    """Where what belongs there is kept: an absolute path; None if nothing was lost."""

    @property
    def account(self) -> str:
        """The reason, and where what belongs there is kept; for people."""
        return self.reason if self.kept is None else f"{self.reason}; {display(self.kept)} holds the other"


class UndoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an undo, a redo or a rollback."""

    steps: tuple[StepId, ...]
    paths: int
    conflicts: tuple[ConflictInfo, ...]


class BarrierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that no step made."""

    id: int
    at: int
    """Nanoseconds since 1970-01-01 UTC."""
    after: StepId | None
    """The newest step before it."""
    paths: tuple[bytes, ...]
    """The edited paths, as far as known; the root alone means any path."""
    who: str
    """The process, as far as it is known: ``name (pid)``."""
    blocks: bool
    """False with the policy ``warn``."""


class UnfinishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is not at its end, or whose files are still written to through its descriptors."""

    step: StepId
    run: str
    begun: int
    """As `StepInfo.begun`."""
    paths: tuple[bytes, ...]
    """Its changed paths; for an ended step those that may still be written to."""


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a run, while it exists."""

    pid: int
    command: tuple[bytes, ...]
    step: StepId
    """Its open step; 0 if there is none."""


class TicketInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that waits for a person."""

    id: int
    step: StepId
    danger: Literal["delete", "overwrite", "rename_over", "limit"]
    path: bytes
    message: str
    """The dangerous operation, in one line."""
    asked_at: int
    denied_at: int
    """When it is denied by itself. Both nanoseconds since 1970-01-01 UTC."""
    conflicts: tuple[ConflictInfo, ...] = ()
    """After a denial: objects that the rollback of its step left unchanged."""
    unanswered: float = 0.0
    """Seconds for which the program waited in vain; 0 if it still waits, or had an answer."""


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The report for a run at its end."""

    unanswered: tuple[TicketInfo, ...] = ()
    """Its held operations, or those of no run, without an answer in time: their steps were rolled back."""
    forgotten: int = 0
    """The number of its steps that the log's limits evicted."""


class UndoService(Protocol):
    """See the module. Every method raises `HoldfastError`; `holdfast.undo.local_service._undo_redo` says what undo and
    redo refuse.
    """

    def steps(self) -> Sequence[StepInfo]:
        """All steps in the log, oldest first, open ones included."""
        ...

    def changes(self, step: StepId) -> Sequence[PathChange]:
        """A step's changes, sorted by path. Raises `NotFoundError`."""
        ...

    def conflicts(self, step: StepId) -> Sequence[ConflictInfo]:
        """Objects that the last undo, redo or rollback of a finished step left unchanged, by any process, including one
        that finished an interrupted reversal. Raises `NotFoundError`.
        """
        ...

    def connected(self, step: StepId) -> Sequence[StepId]:
        """A finished step, with those that must be undone (or redone, if it is undone) together with it, since they
        touch the same; last action first. Raises `NotFoundError`.
        """
        ...

    def check_connected(self, steps: Sequence[StepId]) -> None:
        """Raise as `undo` (for undone steps `redo`) does if other steps block these: `RefusedError`, or `NotFoundError`
        for one that is not finished. Changes nothing.
        """
        ...

    def written_late(self) -> Sequence[tuple[StepId, bytes]]:
        """Files that were written to through descriptors of a finished step after its end, each with the step: unless
        another process is known to have changed the file since.
        """
        ...

    def mixed_since(self, at: int, seq: int | None) -> Sequence[tuple[StepId, bytes]]:
        """Files that could be written to through descriptors of a finished step after its end and after the sequence
        number ``seq``, and that another process has changed as well, each with the step: undo cannot separate the two.
        The time ``at`` (ns) is of the same moment; it counts if ``seq`` is None, or an earlier version has recorded no
        number.
        """
        ...

    def going_on(self) -> Sequence[UnfinishedStep]:
        """The steps that are not at their end and have changed anything, and those whose files are still written to."""
        ...

    def processes(self, run: str) -> Sequence[ProcessInfo]:
        """The existing processes of a run."""
        ...

    def signal(self, run: str, number: int) -> int:
        """Send a signal (0: none) to every process of a run; how many there are."""
        ...

    def forgotten(self) -> Sequence[str]:
        """The runs of which the log holds not all steps any more."""
        ...

    def undo(self, steps: Sequence[StepId], *, force: bool = False) -> UndoReport:
        """Reverse finished steps, all or none."""
        ...

    def foresee(self, steps: Sequence[StepId], *, forward: bool = False, force: bool = False) -> Sequence[ConflictInfo]:
        """Raise what `undo` (``forward``: `redo`) would refuse as things are now (not with ``force``). Returns the
        paths that it would leave alone as another process has replaced or removed what the steps left. Nothing is
        changed.
        """
        ...

    def redo(self, steps: Sequence[StepId], *, force: bool = False) -> UndoReport:
        """Bring undone steps forward again, all or none."""
        ...

    def note_contents(self, step: StepId, contents: Sequence[tuple[bytes, bytes]]) -> None:
        """Tell the hashes of what a finished step left, by path, computed since it ended: so that it is known again
        where it is changed and then put back.
        """
        ...

    def unnoted(self) -> Sequence[StepId]:
        """The finished steps for whose present results `note_contents` was not called yet."""
        ...

    def left_files(self, step: StepId) -> Sequence[bytes]:
        """The paths at which a finished step left a file or a link, sorted; for `note_contents`. Raises
        `NotFoundError`.
        """
        ...

    def brought_back(self, paths: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Report files that the caller has just restored from a checkpoint, within `quiet`: the hashes of files and
        links, None for removed ones. A step's result is then recognised there, and the rest is no edit by others.
        """
        ...

    def still_brought(self, paths: Sequence[bytes]) -> Sequence[bytes]:
        """The paths at which a step has left a result, and that still have what `brought_back` reported."""
        ...

    def begin(self, label: str) -> StepId:
        """Open an explicit step: all changes that follow belong to it until it is closed.

        A step that a process of a run opens belongs to the run, includes only this run's changes, and ends with it at
        the latest. Raises `RefusedError` if such a step is open, or one that includes everything, or there is no keeper
        that intercepts.
        """
        ...

    def commit(self, step: StepId) -> StepInfo:
        """Close an explicit step. A step of a run's process is deleted if it changed nothing, or after a `rollback`.

        A process of a run can close, here and by `rollback`, only steps of that run. Raises `NotFoundError` if it is
        not open, and `RefusedError` if it is another's, or (``denied``) if it was denied: mutations of a denied step of
        a run's process fail until this call, the next `begin`, or the end of the run.
        """
        ...

    def rollback(self, step: StepId) -> UndoReport:
        """Close an explicit step and undo it."""
        ...

    def write(self, path: bytes, content: int, *, expected: bytes | None = None, run: str = "") -> StepInfo | None:
        """Write the content of the descriptor ``content``, of a regular file, to the file ``path``, relative to the
        root: a step of its own, of the kind *api*, or a part of the open explicit one; all of it or nothing.

        ``expected``: the hash that the present content must have, empty for no file, None for any. ``run``: the run
        that it belongs to, while that goes on. Waits while a safeguard holds it. Missing directories are made. None if
        nothing changed. Raises `RefusedError` with the code ``changed`` if the content differs, ``denied`` after a
        denial; `EscapeError`; `StorageError`.
        """
        ...

    def barriers(self) -> Sequence[BarrierInfo]:
        """The barriers in the log, oldest first."""
        ...

    def held(self) -> Sequence[TicketInfo]:
        """The operations that wait for a person, oldest first."""
        ...

    def answer(self, ticket: int, *, allow: bool) -> TicketInfo:
        """Allow a held operation, or deny it: then its step is rolled back (`TicketInfo.conflicts` has the rest) and
        may change nothing more.

        Raises `NotFoundError` if it does not wait.
        """
        ...

    def quiet(self) -> AbstractContextManager[None]:
        """While it is entered, mutations by supervised processes wait; what the caller changes makes no barrier."""
        ...

    def thresholds(self) -> Thresholds:
        """The limits at which a person is asked: the strictest of all (`holdfast.undo.safeguards.tickets`)."""
        ...

    def limits(self) -> LogLimits:
        """How much the log holds."""
        ...

    def configure(self, limits: LogLimits) -> None:
        """Change how much the log holds, for as long as its keeper lives. The last call counts."""
        ...

    def discard(self) -> int:
        """Forget all finished steps, and the logs of other versions that were set aside; returns how many steps."""
        ...
