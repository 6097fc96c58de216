"""The operations on one working directory: each turns a payload into calls of the host, and their result into the
documented object.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from holdfast.api._request_arguments import named_steps, path_in
from holdfast.api._truncated_results import MadeCheckpoint, Reverted, Status, Step, cut
from holdfast.api.stdio import _event_messages as event_messages
from holdfast.api.stdio import _messages as messages
from holdfast.api.stdio import _result_types as result_types
from holdfast.model.answers import files
from holdfast.model.answers import workspace as answers
from holdfast.model.answers.steps import Barrier, RolledBack
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.json_encoder import encode, encode_all
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.model.command_results import Diff, RestoreResult
    from holdfast.undo.service import BarrierInfo, Thresholds

MAX_DIFF_BYTES: Final = 16 << 20
MAX_DIFF_FILES: Final = 10_000
VERSION_MISMATCH: Final = "undo_version_mismatch"


class Operation(NamedTuple):
    """One that is done on a working directory, which its payload names."""

    payload: type[messages.Payload]
    result: type[object]
    work: Callable[[HostedDirectory, Any], result_types.Result]


def undo_rollback(hosted: HostedDirectory, asked: messages.UndoRollback) -> Reverted:
    """Take changes back."""
    chosen = named_steps(asked.step_id, asked.step_ids, names=("step_id", "step_ids"))
    count = _count(asked.steps, alone=chosen is not None or asked.run is not None)
    with hosted.workspace() as workspace:
        done = workspace.undo(
            count,
            step=chosen,
            run=asked.run,
            force=asked.force,
            recorded_only=not asked.force,
            dry_run=asked.dry_run,
        )
    if not done.dry_run:
        hosted.rolled_back(done.steps)
    return _restored(done)


def redo(hosted: HostedDirectory, asked: messages.Redo) -> Reverted:
    """Bring changes forward again."""
    chosen = named_steps(asked.step_id, asked.step_ids, names=("step_id", "step_ids"))
    count = _count(asked.steps, alone=chosen is not None)
    with hosted.workspace() as workspace:
        return _restored(workspace.redo(count, step=chosen, force=asked.force, dry_run=asked.dry_run))


def _count(steps: int | msgspec.UnsetType, *, alone: bool) -> int:
    """The number of changes to undo or redo; `UsageError` if steps are named as well."""
    if isinstance(steps, msgspec.UnsetType):
        return 1
    if alone:
        raise UsageError("steps counts changes, and stands alone: not beside step_id, step_ids or run")
    return steps


def step_begin(hosted: HostedDirectory, asked: messages.StepBegin) -> result_types.BegunStep:
    """Open a step for all that follows."""
    return result_types.BegunStep(step_id=hosted.begin_step(asked.label))


def step_commit(hosted: HostedDirectory, _asked: messages.StepEnd) -> Step:
    """Close it."""
    closed = hosted.commit_step()
    with hosted.undo_log() as log:
        changes = () if log is None or not closed.paths else log.changes(closed.id)
    return event_messages.step(closed, changes, (), result_types.MAX_LISTED)


def step_rollback(hosted: HostedDirectory, _asked: messages.StepEnd) -> RolledBack:
    """Close the step and roll it back."""
    report = hosted.rollback_step()
    return encode(RolledBack, report, conflicts=report.conflicts[: result_types.MAX_LISTED])


def undo_history(hosted: HostedDirectory, asked: messages.UndoHistory) -> result_types.History:
    """A page of the steps, with the barriers between them."""
    with hosted.undo_log() as log:
        steps = [] if log is None else list(reversed(log.steps()))
        page, following = _page(steps, lambda step: step.id, asked.before, asked.limit)
        shown: list[Step] = []
        barriers: Sequence[BarrierInfo] = ()
        if log is not None:
            for step in page:
                left = log.conflicts(step.id) if step.state == "partly" else ()
                shown.append(event_messages.step(step, log.changes(step.id), left, asked.changes))
            barriers = log.barriers()
    ids, known = {step.id for step in page}, {step.id for step in steps}
    # Edits before the oldest step belong to the page that ends the list.
    among = [each for each in barriers if each.after in ids or (following is None and each.after not in known)]
    said = encode_all(Barrier, among[-result_types.MAX_LISTED :])
    return result_types.History(steps=shown, next=following, barriers=said)


def undo_configure(hosted: HostedDirectory, asked: messages.UndoConfigure) -> result_types.UndoLimits:
    """Change how much the undo log holds."""
    changed = {
        "max_bytes": asked.max_log_size_bytes,
        "max_steps": asked.max_step_count,
        "max_step_bytes": asked.max_single_step_size_bytes,
    }
    with hosted.undo_log() as log:
        now = hosted.rules(log).limits
    hosted.limit(now._replace(**_said(changed)))
    with hosted.undo_log() as log:
        return encode(result_types.UndoLimits, hosted.rules(log).limits)


def undo_discard(hosted: HostedDirectory, asked: messages.UndoDiscard) -> result_types.Discarded:
    """Begin a new undo log, or forget one of another version that was set aside."""
    with hosted.workspace() as workspace:
        if not asked.force:
            try:
                workspace.steps()
            except HoldfastError as error:
                if error.code != VERSION_MISMATCH:
                    raise
            else:
                if workspace.discard_other_version():
                    return result_types.Discarded(discarded=None)
                raise RefusedError(
                    "the undo log is of this version, and its steps can be undone",
                    hint="force forgets them all the same",
                    code="not_mismatched",
                )
        return result_types.Discarded(discarded=workspace.discard_steps())


def fs_list(hosted: HostedDirectory, asked: messages.FsList) -> result_types.Listing:
    """A page of a directory."""
    path = path_in(hosted.path, asked.path)
    behind = b"" if asked.after is None else parse_display(asked.after)
    found = hosted.list_directory(path, after=behind, limit=asked.limit)
    following = None if found.following is None else display(found.following)
    return result_types.Listing(path=display(path), entries=encode_all(files.Entry, found.items), next=following)


def fs_read(hosted: HostedDirectory, asked: messages.FsRead) -> files.Part:
    """A part of a file."""
    path = path_in(hosted.path, asked.path)
    read = hosted.read_file(path, offset=asked.offset, limit=asked.limit)
    return encode(files.Part, read, path=path)


def fs_status(hosted: HostedDirectory, _asked: messages.FsStatus) -> Status:
    """How the tree differs from its last checkpoint."""
    with hosted.workspace() as workspace:
        status = encode(answers.Status, workspace.status())
    names = ("added", "modified", "deleted", "not_captured")
    return cut(status, *names, most=result_types.MAX_LISTED)


def safeguard_configure(hosted: HostedDirectory, asked: messages.SafeguardConfigure) -> result_types.Guarding:
    """Change the rules of the safeguards."""
    changed = {
        "deletes": asked.delete_threshold,
        "overwrite_bytes": asked.overwrite_threshold_bytes,
        "rename_over": asked.rename_over,
        "limit": asked.unprotected,
        "timeout": asked.timeout_seconds,
    }
    hosted.guard(hosted.thresholds._replace(**_said(changed)))
    with hosted.undo_log() as log:
        return guarding_object(hosted.rules(log).thresholds, hosted.thresholds)


def checkpoint_create(hosted: HostedDirectory, asked: messages.CheckpointCreate) -> MadeCheckpoint:
    """Save the present state."""
    with hosted.workspace() as workspace:
        made = workspace.checkpoint(asked.label, message=asked.message, author=asked.author)
    return cut(encode(answers.MadeCheckpoint, made), "not_captured", most=result_types.MAX_LISTED)


def checkpoint_list(hosted: HostedDirectory, asked: messages.CheckpointList) -> result_types.Checkpoints:
    """A page of the checkpoints."""
    with hosted.workspace() as workspace:
        log = workspace.log()
    page, following = _page(log.checkpoints, lambda each: str(each.id), asked.before, asked.limit)
    return result_types.Checkpoints(head=log.head, checkpoints=encode_all(answers.Checkpoint, page), next=following)


def checkpoint_diff(hosted: HostedDirectory, asked: messages.CheckpointDiff) -> answers.Diff:
    """The differences, with their text."""
    with hosted.workspace() as workspace:
        diff = workspace.diff(asked.base, asked.target, paths=_paths(hosted, asked.paths))
        _check_size(diff)
        return workspace.diff_json(diff)


def checkpoint_restore(hosted: HostedDirectory, asked: messages.CheckpointRestore) -> Reverted:
    """Bring the tree, or some paths, to a checkpoint."""
    with hosted.workspace() as workspace:
        done = workspace.restore(asked.checkpoint, _paths(hosted, asked.paths), dry_run=asked.dry_run, as_state=True)
    return _restored(done)


def checkpoint_restore_continue(hosted: HostedDirectory, _asked: messages.CheckpointMend) -> Reverted:
    """Finish a restore that was cut short."""
    with hosted.workspace() as workspace:
        return _restored(workspace.restore_continue(as_state=True))


def checkpoint_restore_abort(hosted: HostedDirectory, _asked: messages.CheckpointMend) -> Reverted:
    """Take a restore that was cut short back."""
    with hosted.workspace() as workspace:
        return _restored(workspace.restore_abort())


def checkpoint_read(hosted: HostedDirectory, asked: messages.CheckpointRead) -> files.Part:
    """A part of a file in a checkpoint."""
    path = path_in(hosted.path, asked.path)
    read = hosted.read_saved(asked.checkpoint, path, offset=asked.offset, limit=asked.limit)
    return encode(files.Part, read, path=path)


def fork(hosted: HostedDirectory, asked: messages.Fork) -> answers.Forked:
    """Write a checkpoint out as a workspace of its own."""
    path = parse_display(asked.path)
    if not os.path.isabs(path):
        raise UsageError("path: a fork's path begins with /")
    hosted.refuse_others(path)
    with hosted.workspace() as workspace:
        return encode(answers.Forked, workspace.fork(asked.checkpoint, path))


OPERATIONS: dict[str, Operation] = {
    "step.begin": Operation(messages.StepBegin, result_types.BegunStep, step_begin),
    "step.commit": Operation(messages.StepEnd, Step, step_commit),
    "step.rollback": Operation(messages.StepEnd, RolledBack, step_rollback),
    "undo.rollback": Operation(messages.UndoRollback, Reverted, undo_rollback),
    "redo": Operation(messages.Redo, Reverted, redo),
    "undo.history": Operation(messages.UndoHistory, result_types.History, undo_history),
    "undo.configure": Operation(messages.UndoConfigure, result_types.UndoLimits, undo_configure),
    "undo.discard": Operation(messages.UndoDiscard, result_types.Discarded, undo_discard),
    "fs.list": Operation(messages.FsList, result_types.Listing, fs_list),
    "fs.read": Operation(messages.FsRead, files.Part, fs_read),
    "fs.status": Operation(messages.FsStatus, Status, fs_status),
    "safeguard.configure": Operation(messages.SafeguardConfigure, result_types.Guarding, safeguard_configure),
    "checkpoint.create": Operation(messages.CheckpointCreate, MadeCheckpoint, checkpoint_create),
    "checkpoint.list": Operation(messages.CheckpointList, result_types.Checkpoints, checkpoint_list),
    "checkpoint.diff": Operation(messages.CheckpointDiff, answers.Diff, checkpoint_diff),
    "checkpoint.read": Operation(messages.CheckpointRead, files.Part, checkpoint_read),
    "checkpoint.restore": Operation(messages.CheckpointRestore, Reverted, checkpoint_restore),
    "checkpoint.restore_continue": Operation(messages.CheckpointMend, Reverted, checkpoint_restore_continue),
    "checkpoint.restore_abort": Operation(messages.CheckpointMend, Reverted, checkpoint_restore_abort),
    "fork": Operation(messages.Fork, answers.Forked, fork),
}


def guarding_object(holding: Thresholds, own: Thresholds) -> result_types.Guarding:
    """The safeguards' rules in force, and those of this session alone, as an object."""
    return encode(result_types.Guarding, holding, own=None if own == holding else own)


T = TypeVar("T")
K = TypeVar("K", int, str)


def _page(items: Sequence[T], key: Callable[[T], K], before: K | None, limit: int) -> tuple[Sequence[T], K | None]:
    """At most ``limit`` of ``items`` after the one whose key is ``before``, and the key to continue with."""
    begin = 0
    if before is not None:
        begin = next((at + 1 for at, item in enumerate(items) if key(item) == before), -1)
        if begin < 0:
            raise NotFoundError(f"before: {before} is not in the list (any more)")
    page = items[begin : begin + limit]
    return page, key(page[-1]) if begin + limit < len(items) else None


def _restored(done: RestoreResult) -> Reverted:
    names = ("written", "deleted", "skipped")
    return cut(encode(Reverted, done, totals={}), *names, most=result_types.MAX_LISTED)


def _said(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _paths(hosted: HostedDirectory, texts: Sequence[str]) -> list[bytes]:
    return [path_in(hosted.path, text) for text in texts]


def _check_size(diff: Diff) -> None:
    """Raise `RefusedError` if an answer with all of ``diff`` would be too large."""
    pairs = [(change.before, change.after) for change in diff.changes if change.before and change.after]
    pairs += [(each.before, each.after) for each in diff.renamed]
    size = sum(entry.size for pair in pairs for entry in pair)
    count = len(diff.changes) + len(diff.renamed)
    if count > MAX_DIFF_FILES or size > MAX_DIFF_BYTES:
        raise RefusedError(
            f"{count} files, {size} bytes of which may have changed, are too much for one answer",
            hint="say which paths",
            code="too_large",
        )


# All that a client can ask for.

HELLO: Final = "hello"

REQUESTS: dict[str, tuple[type[messages.Payload], type[object]]] = {
    HELLO: (messages.Hello, result_types.Welcome),
    "session.start": (messages.SessionStart, result_types.SessionStatus),
    "session.stop": (messages.Nothing, result_types.Done),
    "session.reset": (messages.Nothing, result_types.SessionStatus),
    "session.status": (messages.Nothing, result_types.SessionStatus),
    "agent.execute": (messages.AgentExecute, result_types.Executed),
    "agent.prompt": (messages.AgentPrompt, result_types.Executed),
    "agent.cancel": (messages.AgentCancel, result_types.Cancelled),
    "safeguard.confirm": (messages.SafeguardConfirm, result_types.Answered),
    **{name: (operation.payload, operation.result) for name, operation in OPERATIONS.items()},
}
"""All requests: their payload types and their answers."""
