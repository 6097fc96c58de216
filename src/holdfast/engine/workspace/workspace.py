"""The public face of the engine: one workspace and everything that can be done with it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

from holdfast.engine.opening.context import ask_watcher, pause_watcher
from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.opening.opener import Opener
from holdfast.engine.workspace.home import WorkspaceFace
from holdfast.model.checkpoint import Checkpoint, Kind, Provenance
from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from holdfast.engine.diffs.line_origins import LineOrigins
    from holdfast.engine.diffs.patch_text import FileStat
    from holdfast.engine.diffs.tree_diff import DiffContents, PlannedDiff
    from holdfast.engine.forks.checkpoint_mount import Mounted
    from holdfast.engine.forks.mount_server_client import MountServer
    from holdfast.engine.forks.snapshots import Snapshots
    from holdfast.engine.history.queries import HistoryPosition, Relatives, RowDetails, StatePlace
    from holdfast.engine.history.retention import Policy
    from holdfast.engine.history.timeline import SessionCommands
    from holdfast.engine.merging.fork_merge import ForkMerge
    from holdfast.engine.merging.partial_restore import PartialRestore, RestoreFile, RestorePart
    from holdfast.engine.merging.reapply.resolver import Ladder
    from holdfast.engine.merging.stacked_plan import Resolution
    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.operation_journal import Operation
    from holdfast.engine.running.machine_state import MachineStatus
    from holdfast.engine.running.run import RunResult
    from holdfast.files.scan.capture_estimate import CaptureEstimate
    from holdfast.files.watch import Watcher
    from holdfast.model.answers import workspace as answers
    from holdfast.model.command_results import (
        CheckpointResult,
        Details,
        Diff,
        Forgotten,
        ForkResult,
        Log,
        RestoreResult,
        Status,
    )
    from holdfast.model.config.settings import Isolation, OutsidePolicy, Settings
    from holdfast.model.content import Progress
    from holdfast.model.errors import ConfigError
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.model.timeline import TimelineItem, TimelineKind, TimelinePage
    from holdfast.store.catalog.usage_statistics import Stats
    from holdfast.undo.service import (
        BarrierInfo,
        ConflictInfo,
        PathChange,
        StepInfo,
        TicketInfo,
        UndoReport,
        UndoService,
    )


class WorkspaceQueries(WorkspaceFace):
    """Queries of a workspace about its checkpoints, their contents, and differences between states."""

    def log(self, limit: int | None = None, *, everything: bool = False) -> Log:
        """The checkpoints, newest first, and what happened to the tree. ``everything``: of all workspaces in the
        home. ``limit`` is a number from 0; None means all.
        """
        from holdfast.engine.history.queries import log

        return log(self._context, limit, everything=everything)

    def timeline(
        self,
        *,
        path: str | bytes = b"",
        author: str = "",
        kinds: Sequence[TimelineKind] = (),
        since: int | None = None,
        until: int | None = None,
        text: str = "",
        limit: int = 100,
        cursor: str | None = None,
    ) -> TimelinePage:
        """All that happened, newest first, in pages. It has events, runs, prompts, steps, barriers, held operations,
        and commands of sessions. At most ``limit`` items; the page's ``cursor`` gives the next ones. See
        `holdfast.model.timeline` for what an item says, and what the filters mean.
        """
        from holdfast.engine.history.timeline import timeline
        from holdfast.model.timeline import TimelineFilter

        wanted = TimelineFilter(_below_root([path]), author, tuple(kinds), since, until, text)
        return timeline(self._context, wanted, limit=limit, cursor=cursor, sessions=self._session_commands())

    def log_rows(
        self,
        *,
        paths: Sequence[str | bytes] = (),
        author: str = "",
        since: int | None = None,
        until: int | None = None,
        text: str = "",
        steps: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[TimelineItem]:
        """The rows of `holdfast log`, newest first. With ``steps`` also steps, barriers and held operations. It groups
        the rows of `timeline`: a run is one row, and so is a command of a session with its checkpoint. Imported
        checkpoints are included. Consume it while the workspace is open. ``progress`` is called for every examined row,
        matching or not; an error that it raises ends the query.
        """
        from holdfast.engine.history.timeline import log_rows
        from holdfast.model.timeline import TimelineFilter

        wanted = TimelineFilter(_below_root(paths), author, (), since, until, text)
        return log_rows(self._context, wanted, steps=steps, sessions=self._session_commands(), progress=progress)

    def log_page(
        self,
        *,
        path: str | bytes = b"",
        author: str = "",
        kinds: Sequence[TimelineKind] = (),
        since: int | None = None,
        until: int | None = None,
        text: str = "",
        limit: int = 100,
        cursor: str | None = None,
        down_to: str | None = None,
    ) -> TimelinePage:
        """Pages of `log_rows`. Each begins at the ``cursor`` of the page before. At most ``limit`` rows; ``down_to``:
        only down to that cursor. Steps of runs are left out. The cost depends on the page, not on the length of the
        history; a page may have fewer rows where few match the filters.
        """
        from holdfast.engine.history.timeline import log_page
        from holdfast.model.timeline import TimelineFilter

        wanted = TimelineFilter(_below_root([path]), author, tuple(kinds), since, until, text)
        sessions = self._session_commands()
        return log_page(self._context, wanted, limit=limit, cursor=cursor, until=down_to, sessions=sessions)

    def checkpoints_holding(self, paths: Sequence[str | bytes]) -> Iterator[Checkpoint]:
        """Checkpoints with a path, newest first. Each holds one of ``paths``, or a file below it. Consume it while the
        workspace is open.
        """
        from holdfast.engine.history.queries import checkpoints_holding

        return checkpoints_holding(self._context, [path.strip(b"/") for path in encode_paths(paths)])

    def position(self) -> HistoryPosition:
        """The tree's place in the history, and where `redo` leads."""
        from holdfast.engine.history.queries import position

        return position(self._context)

    def history_revision(self) -> str:
        """A text that changes with the timeline. Takes no lock."""
        from holdfast.engine.history.queries import history_revision

        return history_revision(self._context)

    def relatives(self, checkpoints: Iterable[CheckpointId]) -> Mapping[CheckpointId, Relatives]:
        """The forks of each checkpoint, and the merges into it."""
        from holdfast.engine.history.queries import relatives

        return relatives(self._context, checkpoints)

    def browse(self, name: str, path: str | bytes = b"") -> StatePlace:
        """A file of a checkpoint, or a directory with its items. An empty path is the root."""
        from holdfast.engine.history.queries import browse

        return browse(self._context, self.resolve(name), os.fsencode(path).strip(b"/"))

    def line_origins(self, name: str, path: str | bytes) -> LineOrigins:
        """The change that each line of a file comes from. Each has its steps and the prompt before it; see
        `holdfast.engine.diffs.line_origins`.
        """
        from holdfast.engine.diffs.line_origins import line_origins

        return line_origins(self._context, self.resolve(name), os.fsencode(path).strip(b"/"))

    def _session_commands(self) -> Sequence[SessionCommands]:
        """The sessions here, for the timeline."""
        if not self._context.catalog.has_sessions(self._context.workspace.id):
            return ()  # importing the module for them takes longer than all else
        from functools import partial

        from holdfast.engine.history.timeline import SessionCommands
        from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers

        tiers = SessionCheckpointTiers(self._context)
        return [
            SessionCommands(one.id, one.owner, partial(tiers.commands, one.id))
            for one in tiers.rows.list(self._context.workspace.id)
        ]

    def show(self, name: str = "@") -> Details:
        """One checkpoint, its changes, and what it did not capture."""
        from holdfast.engine.history.queries import show

        return show(self._context, self.resolve(name))

    def show_row(self, name: str) -> RowDetails:
        """A row of the log by its name (``prompt:41``, ``run:ID``, …). Raises
        `NotFoundError`.
        """
        from holdfast.engine.history.queries import show_row

        return show_row(self._context, name, self._session_commands())

    def row_details(self, item: TimelineItem) -> RowDetails:
        """`show_row` of a row that `log_rows` gave."""
        from holdfast.engine.history.queries import row_details

        return row_details(self._context, item)

    def row_diff(self, found: RowDetails) -> Diff:
        """The changes of a row as a diff. Renames are among them. Raises `NotFoundError` if a state of it was
        forgotten.
        """
        from holdfast.engine.diffs.tree_diff import diff

        if found.item.checkpoint is None:
            raise NotFoundError(f"no checkpoint holds what {found.item.name} changed")
        return diff(self._context, found.before, found.item.checkpoint)

    def resolve(self, name: str) -> CheckpointId:
        """The checkpoint that ``name`` means. Raises `NotFoundError`, or `UsageError` if it means several."""
        from holdfast.engine.history.revisions import resolve_name

        return resolve_name(self._context, name)

    def cat(self, name: str, path: str | bytes) -> Iterator[bytes]:
        """The verified content of a file in a checkpoint, in pieces. Of a symbolic link it is the target."""
        from holdfast.engine.history.queries import cat

        return cat(self._context, self.resolve(name), os.fsencode(path))

    def diff(
        self, a: str | None = None, b: str | None = None, *, paths: Sequence[str | bytes] = (), renames: bool = True
    ) -> Diff:
        """How ``b`` (None: the tree) differs from ``a`` (None: ``@``). ``paths`` limit it."""
        from holdfast.engine.diffs.tree_diff import diff

        target = None if b is None else self.resolve(b)
        base = self.resolve("@" if a is None else a)
        return diff(self._context, base, target, paths=encode_paths(paths), renames=renames)

    def diff_from_nothing(self, name: str) -> Diff:
        """All that a checkpoint holds, as added."""
        from holdfast.engine.diffs.tree_diff import diff

        return diff(self._context, None, self.resolve(name))

    def patch(self, diff: Diff, *, context: int = 3, binary: bool = False) -> Iterator[bytes]:
        """A diff as text for ``git apply``. ``binary`` includes the content of binary files."""
        from holdfast.engine.diffs.patch_text import patch

        return patch(diff, self.diff_contents(diff).fetch, context=context, binary=binary)

    def planned_diff(self, planned: RestoreResult) -> PlannedDiff:
        """The changes of a dry run, and the paths that no checkpoint holds."""
        from holdfast.engine.diffs.tree_diff import planned_diff

        return planned_diff(self._context, planned)

    def planned_patch(self, planned: PlannedDiff, *, context: int = 3) -> Iterator[bytes]:
        """A planned diff as text. As by `patch`."""
        from holdfast.engine.diffs.patch_text import patch

        return patch(planned.diff, planned.contents.fetch, context=context)

    def diff_stat(self, diff: Diff) -> list[FileStat]:
        """How many lines each file gains and loses."""
        from holdfast.engine.diffs.patch_text import stat

        return stat(diff, self.diff_contents(diff).fetch)

    def diff_json(self, diff: Diff) -> answers.Diff:
        """A diff as its JSON object. It has the text of each modified file."""
        from holdfast.engine.diffs.patch_text import to_json

        return to_json(diff, self.diff_contents(diff).fetch)

    def diff_contents(self, diff: Diff) -> DiffContents:
        """The content of both sides of a diff, read by ``fetch(entries)``. It works while the workspace is open."""
        from holdfast.engine.diffs.tree_diff import DiffContents

        return DiffContents(self._context, diff)


def _below_root(paths: Sequence[str | bytes]) -> tuple[bytes, ...]:
    """Paths as the timeline has them: none where one of them is the root, below which everything lies."""
    found = tuple(path.strip(b"/") for path in encode_paths(paths))
    return () if b"" in found else found


def encode_paths(paths: Sequence[str | bytes]) -> list[bytes]:
    """Paths as the engine has them. Refuses a single path instead of a list: its letters would count as paths."""
    if isinstance(paths, (str, bytes)):
        raise UsageError(f"{paths!r} is not a list of paths")
    return [os.fsencode(path) for path in paths]


class WorkspaceSteps(WorkspaceFace):
    """Queries and operations on the steps in a workspace's undo log: their groups, and answers to held operations."""

    def steps(self) -> Sequence[StepInfo]:
        """The steps in the undo log, oldest first."""
        from holdfast.engine.opening.undo_log import list_steps

        return list_steps(self._context)

    def step(self, step: int) -> tuple[StepInfo, Sequence[PathChange]]:
        """One step, with its changes by path. Raises `NotFoundError`."""
        from holdfast.engine.opening.undo_log import step_changes

        return step_changes(self._context, step)

    def conflicts(self, step: int) -> Sequence[ConflictInfo]:
        """Paths left alone when a step was last undone, redone or rolled back. Each with the reason, such as an edit by
        another process, and where the step's version is kept. Raises `NotFoundError`.
        """
        from holdfast.engine.opening.undo_log import step_conflicts

        return step_conflicts(self._context, step)

    def discard_steps(self) -> int | None:
        """Forget all finished steps, and undo logs of other versions."""
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.opening.undo_log import discard_steps

        return discard_steps(self._context)

    def discard_other_version(self) -> bool:
        """Delete undo logs of other versions; False if there are none."""
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.opening.undo_log import discard_other_version

        return discard_other_version(self._context)

    def begin_step(self, label: str = "") -> int:
        """Open an explicit step for all supervised processes. Its id."""
        with self._undo_log() as log:
            return log.begin(label)

    def commit_step(self, step: int | None = None) -> StepInfo:
        """Close an explicit step. By default the open one."""
        with self._undo_log() as log:
            return log.commit(self._explicit(log, step))

    def rollback_step(self, step: int | None = None) -> UndoReport:
        """Close an explicit step, and take it back."""
        with self._undo_log() as log:
            return log.rollback(self._explicit(log, step))

    def barriers(self) -> Sequence[BarrierInfo]:
        """The known edits by others, oldest first."""
        from holdfast.engine.opening.undo_log import list_barriers

        return list_barriers(self._context)

    def held(self) -> Sequence[TicketInfo]:
        """The operations that wait for a person. Takes no lock."""
        from holdfast.engine.opening.undo_log import open_if_running

        with open_if_running(self._context) as log:  # only a keeper holds operations
            return [] if log is None else log.held()

    def answer(self, ticket: int, *, allow: bool) -> TicketInfo:
        """Let a held operation happen, or deny it and roll its step back. Raises `NotFoundError`."""
        with self._undo_log() as log:
            return log.answer(ticket, allow=allow)

    @contextmanager
    def _undo_log(self) -> Generator[UndoService]:
        from holdfast.engine.opening.undo_log import open_service, require_service

        with open_service(self._context) as log:
            yield require_service(log)

    def _explicit(self, log: UndoService, step: int | None) -> int:
        """The number of an explicit step: ``step``, or the open one; within a run, the run's own."""
        from holdfast.engine.opening.current_run import current_run

        if step is not None:
            return step
        run = current_run(self._context)
        found = [each for each in log.steps() if each.kind == "explicit" and each.state == "open"]
        if run is not None:
            found = [each for each in found if each.run == run]
        if not found:
            raise NotFoundError("no step is open", hint="holdfast step begin opens one", code="no_open_step")
        # Of several, a person means their own step rather than a run's.
        return min(found, key=lambda each: bool(each.run)).id


def init(
    path: str | bytes | os.PathLike[str] = ".",
    *,
    home: str | bytes | os.PathLike[str] | None = None,
    force: bool = False,
    write_ignore: bool = False,
    flags: Mapping[str, object] | None = None,
) -> Workspace:
    """Begin to remember a directory, and open it. Idempotent: an existing workspace is just opened.

    Nothing is written into the directory, unless ``write_ignore`` asks for a ``.checkpointignore`` with the default
    patterns (an existing one is left as it is). ``home`` is where everything is kept (default: ``$HOLDFAST_HOME``,
    else the XDG data directory). Raises `RefusedError`, unless ``force``, for a directory that is hardly
    meant, such as ``/`` or ``$HOME``.
    """
    opener = Opener(home=None if home is None else os.fsencode(home), flags=flags)
    try:
        context, new = opener.init(os.fsencode(path), force=force)
        context.recover()
        workspace = Workspace(opener, context, new=new)
        if write_ignore:
            workspace.write_ignore()
    except BaseException:
        opener.close()
        raise
    return workspace


def open(  # noqa: A001 - `holdfast.open` reads as what it does
    path: str | bytes | os.PathLike[str] = ".",
    *,
    home: str | bytes | os.PathLike[str] | None = None,
    flags: Mapping[str, object] | None = None,
    lenient: bool = False,
    freeing: bool = False,
    create: bool = False,
) -> Workspace:
    """Open the workspace at ``path``, or the nearest above. Raises `NotFoundError` if there is none.

    ``create`` makes ``path`` a workspace in that case, as `init` does, with its errors; this is logged. ``lenient``: if
    the workspace's ``holdfast.toml`` is wrong, use its last saved version instead of raising `ConfigError`, so that a
    process that broke it cannot keep the user from going back; `Workspace.misconfigured` has the error. An unfinished
    step of a killed keeper is rolled back first, and logged (I3). ``freeing`` is for callers that forget or collect: on
    a disk that is too full to open the catalog, the disk reserve is used.
    """
    opener = Opener(home=None if home is None else os.fsencode(home), flags=flags, lenient=lenient, freeing=freeing)
    try:
        where, new = os.fsencode(path), False
        if create:
            context, new = opener.open_or_init(where)
        else:
            context = opener.open(where)
        context.recover()
        return Workspace(opener, context, new=new)
    except BaseException:
        opener.close()
        raise


class Workspace(WorkspaceSteps, WorkspaceQueries):
    """A directory with a memory. Use it as a context manager, or `close` it.

    Checkpoints are named as on the command line: full ids, unique prefixes, labels, ``@`` (the tree's present
    checkpoint: after a restore or an undo not the newest), ``@-``, ``@-3``. One thread at a time; any number of
    processes may use the same workspace, one change at a time.
    """

    def __init__(self, opener: Opener, context: Context, *, new: bool = False) -> None:
        super().__init__(opener, context)
        self.new = new
        """True if this call of `init` or `open` made it a workspace."""

    @property
    def id(self) -> WorkspaceId:
        """Its id."""
        return self._context.workspace.id

    @property
    def path(self) -> bytes:
        """The real path of its root."""
        return self._context.workspace.path

    @property
    def misconfigured(self) -> ConfigError | None:
        """The mistake in its ``holdfast.toml``, if opened ``lenient``."""
        return self._context.misconfigured

    @property
    def home(self) -> bytes:
        """Where everything is kept."""
        return self._opener.home

    @property
    def folder(self) -> bytes:
        """Its folder in the home. It has index, lock, socket and log of the watcher."""
        return self._context.folder

    # -- saving -------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> Settings:
        """The settings as the files say now."""
        self._context.renew_settings()
        return self._context.settings

    @property
    def isolation(self) -> Isolation:
        """The configured isolation of `run`."""
        return self._settings.isolation

    @property
    def vm_image(self) -> str:
        """The name of its virtual machines' image."""
        return self._settings.vm.image

    def checkpoint(
        self,
        label: str = "",
        *,
        message: str = "",
        author: str | None = None,
        command: str = "",
        kind: Kind = "manual",
        full_hash: bool = False,
        progress: Progress | None = None,
    ) -> CheckpointResult:
        """Save the tree. Atomic, and durable when it returns (I4).

        If nothing changed, no checkpoint is made and ``created`` is False. The one that holds this state becomes manual
        and gets the label in addition to its own (see ``labelled``), and author, message and command where it has none.
        ``author`` defaults to ``identity.author`` of the settings. ``full_hash`` reads every file again instead of
        trusting the index for unchanged ones. A running watcher does the work, at a cost that depends on the changes
        alone. An undo or a redo that was cut short is finished first, unless ``kind`` is ``auto``. Raises
        `LockedError`, `StorageError`, `QuotaError`.
        """
        from holdfast.engine.history.operations import checkpoint
        from holdfast.model.command_results import CheckpointRequest

        who = self._settings.identity.author if author is None else author
        return checkpoint(
            self._context, CheckpointRequest(kind, label, Provenance(who, message, command), full_hash), progress
        )

    def label(self, name: str, label: str) -> Checkpoint:
        """Add a label to a checkpoint, which becomes manual. Raises `UsageError` for an invalid label."""
        forbid_inside_run(self._context, "a label")
        from holdfast.engine.history.checkpoint import label_checkpoint

        return label_checkpoint(self._context, self.resolve(name), label)

    def prompt(self, text: str, *, author: str | None = None) -> CheckpointResult:
        """Save the tree before an agent acts, and add its prompt to the history. It is added without changes, too. The
        kind is ``auto``; ``prompt`` of the result is its number, and ``undo(to=…)`` returns to the state before it. The
        first 4,000 characters of a longer text are kept. ``author`` and errors as in `checkpoint`.
        """
        from holdfast.engine.history.operations import prompt

        return prompt(self._context, text, self._settings.identity.author if author is None else author)

    def status(self) -> Status:
        """How the tree differs from its checkpoint (``@``). Changes nothing."""
        found = ask_watcher(self._context, lambda watcher: watcher.status())
        if found is not None:
            return found
        from holdfast.engine.history.status import status

        return status(self._context, watching=False)

    def ignored(self) -> list[bytes]:
        """Paths that the ignore rules leave out; a directory ends with a slash."""
        from holdfast.files.local_tree import LocalTree

        self._context.renew_settings()
        tree = self._context.tree
        return list(tree.excluded_paths()) if isinstance(tree, LocalTree) else []

    def estimate(self) -> CaptureEstimate | None:
        """The size of a first checkpoint if unusual, else None."""
        limits = self._settings.capture
        if self._context.catalog.cursor(self.id).head is not None:
            return None
        from holdfast.files.local_tree import LocalTree

        if not isinstance(self._context.tree, LocalTree):
            return None
        most_files, most_bytes = limits.warn_files or sys.maxsize, limits.warn_bytes or sys.maxsize
        found = self._context.tree.estimate(max_files=most_files, max_bytes=most_bytes)
        return found if found.files > most_files or found.bytes > most_bytes else None

    def write_ignore(self) -> bool:
        """Write the default ``.checkpointignore``; False if there is one."""
        from holdfast.files.ignore.rules import write_default_ignore

        return write_default_ignore(self._context.workspace.path)

    def let_go(self) -> None:
        """Hold nothing back from retention any more. It is for a fork that has served its turn.

        Its checkpoints stay until they are forgotten; `init` in its directory begins a new workspace.
        """
        self._context.catalog.let_go(self.id)

    # -- going back and forth -----------------------------------------------------------------------------------

    def restore(
        self,
        name: str,
        paths: Sequence[str | bytes] = (),
        *,
        dry_run: bool = False,
        as_state: bool = False,
        expected: str | None = None,
        exact: bool = False,
        progress: Progress | None = None,
    ) -> RestoreResult:
        """Restore the tree, or ``paths`` of it, to a checkpoint; the tree is saved first (I6).

        Touches only paths that differ, and deletes only paths that the rescue checkpoint holds (I5). Atomic per file;
        if it is cut short, `restore_continue` finishes it and `restore_abort` takes it back. Files that another process
        changes meanwhile stay, and are listed in ``skipped``; if no path can be changed, it raises `RefusedError`
        (``left_alone``) and the history gets no event. A restore of ``paths`` leaves the result unsaved; ``as_state``
        saves it, so that ``undo(recorded_only=True)`` takes it back. With ``expected``, it raises `RefusedError`
        (``changed_meanwhile``) unless the tree equals that checkpoint. Paths that a checkpoint of another workspace
        lists as not captured stay, and are in ``skipped``, unless ``exact``.

        An undo or a redo that was cut short is finished first.

        ``@`` skips rescue checkpoints here: it is the newest other one at or before the tree's present state. So
        restoring one path after another gives the saved contents, and not those that the first restore rescued.
        """
        from holdfast.engine.history.operations import restore

        return restore(
            self._context,
            name,
            encode_paths(paths),
            dry_run=dry_run,
            as_state=as_state,
            expected=None if expected is None else self.resolve(expected),
            exact=exact,
            progress=progress,
        )

    def restore_differences(self, name: str, paths: Sequence[str | bytes] = ()) -> PartialRestore:
        """The differences from a checkpoint, in parts for `restore_parts`."""
        forbid_inside_run(self._context, "a restore")
        from holdfast.engine.merging.partial_restore import differences

        return differences(self._context, name, encode_paths(paths))

    def restore_parts(
        self,
        target: CheckpointId,
        chosen: Sequence[tuple[RestoreFile, Collection[RestorePart]]],
        *,
        progress: Progress | None = None,
    ) -> RestoreResult | None:
        """Restore the ``chosen`` parts of `restore_differences`; None if that changes nothing. As `restore`, in one
        restore that `undo` takes back. Raises `RefusedError` (``changed_meanwhile``) if one of the files has changed
        since.
        """
        forbid_inside_run(self._context, "a restore")
        from holdfast.engine.merging.partial_restore import restore_parts

        return restore_parts(self._context, target, chosen, progress)

    def merge(
        self,
        fork: str,
        *,
        resolutions: Mapping[str | bytes, Resolution] | None = None,
        message: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ForkMerge:
        """Merge a fork: its directory, its workspace's id, or a checkpoint (docs/reference/merge.md).

        Both trees are saved first. Overlaps go up the ladder of the settings, except files that ``resolutions`` decide.
        If overlaps stay open, nothing is changed and the result lists them; otherwise the tree becomes the merged
        state, which `undo` reverses. Raises as `fork_merge.merge`.
        """
        forbid_inside_run(self._context, "a merge")
        from holdfast.engine.history import operations
        from holdfast.engine.merging import fork_merge

        def ladder() -> Ladder:
            from holdfast.engine.merging.reapply.resolver import ladder_of

            return ladder_of(self._context)

        source = fork_merge.find_source(self._opener, self._context, fork)
        decided = {os.fsencode(path): one for path, one in (resolutions or {}).items()}
        done = fork_merge.merge(
            self._context,
            source.state,
            fork_merge.merge_provenance(
                self._settings.identity.author, ": ".join(filter(None, (f"merged {source.called}", message)))
            ),
            fork_merge.OverlapPolicy(ladder, decided, dry_run),
            bring=lambda merged, ours: operations.restore(self._context, merged, expected=ours, progress=progress),
        )
        return done._replace(not_captured=source.not_captured)

    def next_reapply(self) -> dict[str, Any] | None:
        """The change that waits longest for an agent, or None. It is of a merge into this workspace.

        The caller holds it for ``merge.lease``: docs/reference/ladder.md has its fields.
        """
        from holdfast.engine.merging.reapply.answer_queue import take

        return take(self._context, self._context.clock, self._context.random(16).hex(), self.id)

    def waiting_reapplies(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """The changes that wait for an agent, without content."""
        from holdfast.engine.merging.reapply.answer_queue import list_waiting

        return list_waiting(self._context, self._context.clock.now(), limit=limit, workspace=self.id)

    def answer_reapply(self, name: str, token: str, answer: Mapping[str, Any]) -> str:
        """Answer a change of `next_reapply`. ``name`` is its ``id``; it has the ``token``, too. Returns ``answered`` or
        ``declined``.

        Nothing is merged by that: the next `merge` of the same fork uses it. Raises as `answer_queue.answer`.
        """
        from holdfast.engine.merging.reapply.answer_queue import answer as give

        return give(self._context, self._context.clock, name, token, dict(answer), self.id)

    def restore_continue(self, *, as_state: bool = False, progress: Progress | None = None) -> RestoreResult:
        """Finish an interrupted restore or fork. Paths that other processes changed since stay, and are in ``skipped``
        with the place of the other version. Raises `NotFoundError` if there is none. For ``as_state`` see `restore`.
        """
        forbid_inside_run(self._context, "a restore")
        from holdfast.engine.history.recovery import resume

        with pause_watcher(self._context):
            return resume(self._context, progress, as_state=as_state)

    def restore_abort(self, *, progress: Progress | None = None) -> RestoreResult:
        """Reverse an interrupted restore. The tree returns to its state before; see `restore_continue`."""
        forbid_inside_run(self._context, "a restore")
        from holdfast.engine.history.recovery import abandon

        with pause_watcher(self._context):
            return abandon(self._context, progress)

    def unfinished(self) -> Operation | None:
        """The interrupted restore, if any."""
        from holdfast.engine.opening.operation_journal import unfinished

        return unfinished(self._context)

    def undo(
        self,
        count: int = 1,
        *,
        to: int | None = None,
        step: int | Sequence[int] | None = None,
        run: str | None = None,
        stop: bool = False,
        force: bool = False,
        recorded_only: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RestoreResult:
        """Take back the newest ``count`` changes, all since a prompt (``to``), steps, or a run. ``to`` is the number of
        the prompt; an empty ``run`` is the newest. Unsaved changes are saved first, and count as the newest change.
        Steps that depend on each other are one change. A step in progress keeps its changes: newer ones that are
        independent of it are taken back; for older ones the error (``step_open``) names the process that keeps the step
        open. ``stop`` ends the processes of the ``run`` first, and no others: SIGTERM to each of them, then SIGKILL.

        Steps of a `run` are reversed exactly, ignored files included; other changes by checkpoints. Raises
        `RefusedError` if another process has changed the same paths since, unless ``force``. ``recorded_only`` takes
        back only changes of steps and of Holdfast itself; an undo that would take back other changes, saved or not, is
        refused as a whole.
        """
        forbid_inside_run(self._context, "an undo")
        from holdfast.engine.history.undo import undo, undo_steps

        chosen = _step_ids(step)
        if (count != 1) + (to is not None) + bool(chosen) + (run is not None) > 1:
            raise UsageError("undo takes a number of changes, a prompt, steps, or a run: only one of them")
        with pause_watcher(self._context):
            if not chosen and run is None:
                return undo(
                    self._context,
                    count,
                    to=to,
                    force=force,
                    recorded_only=recorded_only,
                    dry_run=dry_run,
                    progress=progress,
                )
            if stop and (run is None or dry_run):
                raise UsageError("only a run can be stopped, and not in a dry run")
            return undo_steps(
                self._context,
                steps=chosen,
                run=run or "",
                stop=stop,
                force=force,
                recorded_only=recorded_only,
                dry_run=dry_run,
                progress=progress,
            )

    def redo(
        self,
        count: int = 1,
        *,
        step: int | Sequence[int] | None = None,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RestoreResult:
        """Bring back the newest ``count`` undone changes, or undone steps. Steps come back together, also if others
        came later.
        """
        forbid_inside_run(self._context, "a redo")
        from holdfast.engine.history.undo import redo, redo_steps

        chosen = _step_ids(step)
        with pause_watcher(self._context):
            if not chosen:
                return redo(self._context, count, force=force, dry_run=dry_run, progress=progress)
            if count != 1:
                raise UsageError("redo takes a number of changes or steps, not both")
            return redo_steps(self._context, chosen, force=force, dry_run=dry_run, progress=progress)

    # -- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        command: Sequence[str | bytes],
        *,
        directory: str | bytes | os.PathLike[str] | None = None,
        environment: Mapping[bytes, bytes] | None = None,
        one_step: bool = False,
        guard: bool = False,
        isolation: Isolation | None = None,
        ask: Callable[[TicketInfo], bool | None] | None = None,
        bridge: bool = False,
        outside: OutsidePolicy | None = None,
    ) -> RunResult:
        """Run a command (its argument list); `undo` and ``undo(run="")`` take it back.

        It has this process's terminal, directory and environment (with ``HOLDFAST_RUN``), unless others are given. The
        state is saved before and after. ``one_step``: all of it is one step. ``guard``: mass deletion and large
        overwrites wait for a person, who is asked by ``ask`` on another thread (None: another process calls `answer`).
        ``isolation``: the parts of the machine that it sees and reaches (None: as in the settings). ``bridge``: a mount
        serves the tree instead of a supervisor. ``outside``: whether undo of it stops at other processes' changes
        (None: as in the settings). Raises `UnsupportedError` where the system cannot supervise, mount, or isolate as
        requested; then nothing has run.
        """
        from holdfast.engine.running.run import Invocation, RunPolicy, configured_thresholds, run

        where = None if directory is None else os.fsencode(directory)
        thresholds = configured_thresholds(self._settings.safeguard, guard=guard)
        return run(
            self._context,
            Invocation(encode_paths(command), where, environment, one_step=one_step),
            RunPolicy(isolation, bridge, thresholds=thresholds, outside=outside),
            ask=ask,
        )

    def vm_status(self) -> MachineStatus:
        """Its running virtual machines, and the kept disk."""
        from holdfast.engine.running.machine_state import machine_status

        return machine_status(self._context)

    def vm_reset(self) -> bool:
        """Remove the kept disk of virtual machines; whether there was one. The workspace's files are no part of it.
        Raises `RefusedError` (``machine_running``) while one runs.
        """
        from holdfast.engine.running.machine_state import reset_machine

        return reset_machine(self._context)

    def fork(
        self,
        name: str | None,
        directory: str | bytes | os.PathLike[str],
        *,
        mount: bool = False,
        server: MountServer | None = None,
        progress: Progress | None = None,
    ) -> ForkResult:
        """Write a checkpoint out as a workspace of its own. ``directory`` must not exist, or be empty.

        Without a ``name`` it is the present state: unsaved changes are saved first, as a checkpoint of the kind
        ``auto``. Raises `ConfigError` while the workspace's ``holdfast.toml`` is wrong, since files that it excludes
        would be saved.

        With ``mount`` no file is written, and it takes only as long as a mount: changes are kept in the home. A process
        of its own serves it, until `Home.unmount`; `Home.mount_fork` mounts it again, after a restart of the machine
        too, and `Home.materialise` makes it a plain directory. ``server`` is that process if the caller has started it
        already, which is quicker before the workspace is opened. Raises `UnsupportedError` where forks cannot be
        mounted.
        """
        forbid_inside_run(self._context, "a fork")
        self._context.renew_settings()
        if name is None and self._context.misconfigured is not None:
            raise self._context.misconfigured
        from holdfast.engine.opening.context import with_disk_reserve

        def open_fork() -> Context:
            return self._opener.make_fork(os.fsencode(directory), source, self._context.workspace)

        with with_disk_reserve(self._context):  # a fork may be the user's way to recover files
            source = self.checkpoint(kind="auto").checkpoint.id if name is None else self.resolve(name)
            if mount:
                from holdfast.engine.forks.mounted_forks import fork_mounted

                return fork_mounted(self._context, source, open_fork, server)
            from holdfast.engine.forks.fork import fork

            return fork(self._context, source, open_fork, progress=progress)

    def mount(
        self,
        name: str,
        directory: str | bytes | os.PathLike[str],
        *,
        at: str | None = None,
        allow_other: bool = False,
    ) -> Mounted:
        """Mount a checkpoint, read-only. ``directory`` must be empty, or is made for the duration.

        With ``at``, an ISO 8601 time or an age (``2h``), it is the checkpoint that was newest then, and ``name`` is
        ignored. Threads of this process serve it until `Mounted.close`, which must precede the workspace's; until then
        the checkpoint is not collected. ``allow_other``: other users may read it too, within the file modes. Raises
        `UnsupportedError` where nothing can be mounted.
        """
        forbid_inside_run(self._context, "a mount")
        from holdfast.engine.forks.checkpoint_mount import mount_checkpoint

        checkpoint = self._named_or_at(name, at)
        return mount_checkpoint(
            self._context, checkpoint, os.fsencode(directory), home=self.home, allow_other=allow_other
        )

    def mount_detached(
        self,
        name: str,
        directory: str | bytes | os.PathLike[str],
        *,
        at: str | None = None,
        allow_other: bool = False,
        server: MountServer | None = None,
    ) -> tuple[CheckpointId, int]:
        """As `mount`, by a process of its own, until `Home.unmount`. Returns the checkpoint and the process id.

        ``server`` as in `fork`.
        """
        forbid_inside_run(self._context, "a mount")
        from holdfast.engine.forks.mount_server_client import MountOrder, given_or_started

        with given_or_started(server) as serving:
            checkpoint = self._named_or_at(name, at)
            serving.mount(
                MountOrder(
                    home=self.home,
                    root=self.path,
                    directory=os.path.abspath(os.fsencode(directory)),
                    checkpoint=checkpoint,
                    allow_other=allow_other,
                )
            )
            return checkpoint, serving.pid

    @property
    def snapshots(self) -> Snapshots:
        """Its snapshots by providers."""
        from holdfast.engine.forks.snapshots import Snapshots

        return Snapshots(self._context)

    def _named_or_at(self, name: str, at: str | None) -> CheckpointId:
        """The checkpoint of this name; with ``at``, the newest then."""
        if at is None:
            return self.resolve(name)
        from holdfast.engine.forks.checkpoint_mount import newest_checkpoint_at
        from holdfast.model.config.values import parse_moment

        try:
            moment = parse_moment(at, self._context.clock.now())
        except ValueError as error:
            raise UsageError(str(error)) from None
        return newest_checkpoint_at(self._context, moment)

    # -- watching -----------------------------------------------------------------------------------------------

    def check_watchable(self) -> None:
        """Raise `RefusedError` inside a run."""
        forbid_inside_run(self._context, "watching")

    def watch(self, *, ready: Callable[[Watcher], None] | None = None) -> str | None:
        """Save after changes, until a signal or `WatchClient.stop`. Idle sessions here, and their forks, are saved as
        well (`holdfast.engine.sessions.idle.idle_schedule`).

        Returns None if everything is saved at the end, else the reason. ``ready`` is called when other commands can
        connect. Raises `LockedError` if the workspace has a watcher already.
        """
        self.check_watchable()
        from holdfast.engine.sessions.idle.idle_schedule import IdleSaver
        from holdfast.engine.watching.watcher import watch

        return watch(self._context, ready, self._sweep_sessions, IdleSaver(self._opener, lambda: (self.id,)))

    def _sweep_sessions(self) -> None:
        """See `holdfast.engine.sessions.lifecycle.sweep.sweep_if_due`."""
        from holdfast.engine.sessions.lifecycle.sweep import sweep_if_due

        sweep_if_due(self._opener)

    # -- keeping house ------------------------------------------------------------------------------------------

    def forget(self, names: Sequence[str] = (), *, policy: Policy | None = None, dry_run: bool = False) -> Forgotten:
        """Remove the named checkpoints, or those that ``policy`` (None: the settings') does not keep.

        A live fork's origin is refused when named and kept otherwise. Removed checkpoints' changesets are composed into
        their children's; `gc` frees unused content after the grace time.
        """
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.upkeep.forget_checkpoints import forget

        return forget(self._context, [self.resolve(name) for name in names], policy=policy, dry_run=dry_run)

    def forget_gone(self, *, dry_run: bool = False) -> Forgotten:
        """Drop the workspaces whose directories were deleted, and their checkpoints.

        Checkpoints that others depend on stay, and so does this workspace even without its directory
        (`Home.forget_gone` has no such exception). Before this call, a deleted workspace can be brought back by
        `restore` at its path.
        """
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.upkeep.forget_checkpoints import forget_gone

        return forget_gone(self._context, but=self.id, dry_run=dry_run)

    def stats(self) -> Stats:
        """Used space."""
        from holdfast.engine.upkeep.housekeeping import stats

        return stats(self._context)

    def export(self, names: Sequence[str], file: str | bytes | os.PathLike[str]) -> list[CheckpointId]:
        """Write checkpoints with their ancestors to a bundle (``.tar.zst``). Atomic. Returns the ids of all that it
        holds.
        """
        from holdfast.engine.upkeep.bundle_export import export_bundle

        return export_bundle(self._context, [self.resolve(name) for name in names], os.fsencode(file))

    def import_(self, file: str | bytes | os.PathLike[str]) -> list[CheckpointId]:
        """Take in the checkpoints of a bundle. They are this workspace's from then on. The file is hostile until all of
        it is verified.
        """
        forbid_inside_run(self._context, "an import")
        from holdfast.engine.upkeep.bundle_import import import_bundle

        return import_bundle(self._context, os.fsencode(file))


def _step_ids(step: int | Sequence[int] | None) -> Sequence[int]:
    """The ids of one or more steps, each once."""
    return () if step is None else tuple(dict.fromkeys([step] if isinstance(step, int) else step))
