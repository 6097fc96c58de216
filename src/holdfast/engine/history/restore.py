"""Restoring the tree to a checkpoint, reversibly.

A rescue checkpoint comes first (I6). The plan is the difference between that rescue and the target, so it deletes only
paths that the rescue holds and the target lacks (I5), and ignore rules that the restore brings back do not affect it. A
record in the workspace's folder lets the next command finish or reverse an interrupted restore (I3).
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext, suppress

from holdfast.engine.history._git_heads import warn_of_commits
from holdfast.engine.history._restore_plan import (
    Plan,
    exclude_conflicts,
    exclude_split_databases,
    half_written_paths,
    with_sqlite_logs,
)
from holdfast.engine.history.checkpoint import (
    create_checkpoint_locked,
    create_checkpoint_or_part,
)
from holdfast.engine.history.history_writer import next_state, record_end
from holdfast.engine.history.status import changes_ignore_rules, ignored_paths, only_uncaptured_paths, scan_tree
from holdfast.engine.opening.context import with_disk_reserve
from holdfast.engine.opening.identity import recreate_root
from holdfast.engine.opening.operation_journal import (
    OperationNotes,
    new_operation,
    read_operation,
    refuse_unfinished,
    remove_operation,
    write_operation,
)
from holdfast.engine.opening.undo_log import open_and_quieten, report_restored
from holdfast.files.ignore.sqlite_files import database_of, with_companions
from holdfast.files.scan.secret_files import is_credential
from holdfast.model.command_results import CheckpointRequest, RestoreResult
from holdfast.model.entries import NotCaptured, after_of
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import could_not_change
from holdfast.model.paths import display, under
from holdfast.store.blobs.content_supply import StoredContent, buffer_content
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Generator, Mapping, Sequence
    from typing import Literal

    from holdfast.engine.history._restore_plan import PlanWithLogs, Resumption
    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.operation_journal import Operation
    from holdfast.files.tree import ApplyResult
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.content import Progress, Supply
    from holdfast.model.entries import Change
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.manifests.manifest import PageSource

_LOG = Log(__name__)

NOT_THERE = "the state that it goes to does not capture it, and does not say that it was deleted: "
"""Begins the reason why a path stays that a state of another workspace lacks; that state's own reason follows."""
_LEFT_OUT = "it is left out there, as by an ignore rule"

UNDO_COMMAND = "holdfast undo"
REDO_COMMAND = "holdfast redo"

_BUFFERED_BYTES = 64 << 20
"""Content up to this size is read, verified and kept before the tree is touched; more is verified in its own pass."""

_MOST_REPORTED = 100
_MOST_NAMED = 5


def restore(
    context: Context,
    target: CheckpointId,
    paths: Sequence[bytes] = (),
    *,
    dry_run: bool = False,
    as_state: bool = False,
    expected: CheckpointId | None = None,
    exact: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Restore the tree, or only ``paths`` of it, to ``target``. Touches only paths that differ.

    If the result differs from the target, as with ``paths``, it stays unsaved, as part of the next change; ``as_state``
    saves it as this restore's own.

    Atomic per file, durable when it returns, not atomic as a whole: after an interruption
    `holdfast.engine.history.recovery` finishes or reverses it. Files that changed meanwhile, or that no checkpoint
    holds, stay and are listed in ``skipped``; unless ``exact``, so do paths that another workspace's state does not
    capture, or ignores. Raises `NotFoundError` (no such checkpoint or path), and `IntegrityError` before any change if
    needed content is damaged. Raises `RefusedError` while an earlier restore is unfinished; for a merge also
    (``changed_meanwhile``) if the tree differs from ``expected``: only the checkpoint was made then; and
    (``left_alone``) if there are changes to make and none of them is possible.
    """
    with context.lock(), nullcontext() if dry_run else _ready(context):
        checkpoint = context.catalog.checkpoint(target)
        if dry_run:
            return preview(context, checkpoint, paths)
        refuse_unfinished(context.folder)
        _check_paths(context, checkpoint, paths)
        part: set[bytes] = set()

        def touched() -> set[bytes]:
            part.update(member for path in paths for member in with_companions(path))
            return part

        rescue = save_rescue(context, progress, meanwhile=lambda: _preload(context, checkpoint, paths), touched=touched)
        if expected is not None and rescue.root != context.catalog.checkpoint(expected).root:
            raise RefusedError(
                f"{display(context.workspace.path)} has changed meanwhile; nothing was written there",
                hint=f"`holdfast diff {expected[:12]}` shows the changes; try again",
                code="changed_meanwhile",
            )
        if rescue.id == target:
            return RestoreResult(target, rescue.id, [], [], [], dry_run=False, undo_command=None)
        operation = new_operation(context, "restore", target, rescue=rescue.id, paths=paths)
        done = carry_out(
            context, operation, rescue, checkpoint, progress, exact=exact, replaces_credentials=expected is None
        )
        if as_state and (done.written or done.deleted):
            record_result(context, operation, progress)
        if part and done.undo_command:
            # Changes left unsaved for want of room are not part of this: `undo` would count them as the newest change.
            from shlex import quote

            back = " ".join(quote(os.fsdecode(path)) for path in paths)
            done = done._replace(undo_command=f"holdfast restore {rescue.id[:12]} {back}")
        return done


@contextmanager
def _ready(context: Context) -> Generator[None]:
    with with_disk_reserve(context), open_and_quieten(context):
        yield


def record_result(context: Context, operation: Operation, progress: Progress | None) -> None:
    """Enter what a restore has left in the history as its own state, unless it is the target's."""
    if context.catalog.cursor(context.workspace.id).position == operation.position:
        record_state(context, "restore", progress)


def record_state(
    context: Context, operation: Literal["checkpoint", "restore"], progress: Progress | None
) -> tuple[Checkpoint, int]:
    """Save what the tree holds as the next state, also if it is as before; the checkpoint and the state."""
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.head is not None, "it was saved before anything was changed"
    saved = create_checkpoint_locked(
        context, CheckpointRequest(kind="rescue"), progress, recorded=next_state(cursor, operation)
    ).checkpoint
    position = context.catalog.cursor(context.workspace.id).position
    assert position is not None, "a state was recorded"
    return saved, position


def save_rescue(
    context: Context,
    progress: Progress | None = None,
    *,
    meanwhile: Callable[[], None] | None = None,
    touched: Callable[[], Collection[bytes]] = tuple,
) -> Checkpoint:
    """Save the tree's unsaved changes; return the checkpoint that holds its state. Needs the lock.

    If the workspace's directory is gone it is made anew, empty, and that is the state that is saved. ``meanwhile`` as
    in `Tree.scan`; ``touched`` returns the paths that will change, if not all: on a full disk only those may be saved
    (`create_checkpoint_or_part`).
    """
    recreate_root(context)
    return create_checkpoint_or_part(context, CheckpointRequest(kind="rescue"), touched, progress, meanwhile=meanwhile)


def _preload(context: Context, target: Checkpoint, paths: Sequence[bytes]) -> None:
    """Import the modules that follow the scan, and read the pages that the plan needs if there are no unsaved changes.

    This runs during the scan and changes nothing: an error appears again, and is reported, at its proper place.
    """
    import json  # noqa: F401  # pyright: ignore[reportUnusedImport]

    from holdfast.files.write import applier  # noqa: F401  # pyright: ignore[reportUnusedImport]

    head = context.catalog.cursor(context.workspace.id).head
    if head is not None:
        with suppress(HoldfastError):
            _plan(context.store.pages, context.catalog.checkpoint(head).root, target.root, paths)


def preview(context: Context, target: Checkpoint, paths: Sequence[bytes] = ()) -> RestoreResult:
    """The result of restoring the tree to ``target`` now. Changes nothing and stores nothing. Needs the lock."""
    _check_paths(context, target, paths)
    now = scan_tree(context, gone_is_empty=True)
    found = _plan_with_logs(context, now.pages, now.root, target.root, paths)
    plan, spared = _spare_uncaptured(context, target, found.plan, found.logs)
    plan = exclude_split_databases(plan, found.logs, spared)
    spared = [*found.spared, *spared]
    return RestoreResult(
        checkpoint=target.id,
        rescue=None,
        written=[change.path for change in plan.writes],
        deleted=[change.path for change in plan.deletes],
        skipped=spared,
        dry_run=True,
        undo_command=None,
        letters=_letters(plan.writes),
        foreseen={change.path: change.after for change in (*plan.deletes, *plan.writes)},
    )


def carry_out(
    context: Context,
    operation: Operation,
    now: Checkpoint,
    target: Checkpoint,
    progress: Progress | None,
    *,
    mending: Resumption | None = None,
    exact: bool = False,
    replaces_credentials: bool = True,
) -> RestoreResult:
    """Bring the tree from the just saved state ``now`` to ``target``, under the operation. Needs the lock.

    An undo or a redo keeps files that the target's own rules ignore: they existed, uncaptured, in that state. Unless
    ``exact``, it also keeps paths that another workspace's state does not capture, or ignores, for the same reason. An
    uncaptured credential file is saved and replaced only with ``replaces_credentials``: a merge brings others' work,
    and leaves it alone like an ignored file. Raises `RefusedError` (``left_alone``) if no path could be changed: the
    workspace keeps its position.
    """
    plan, spared, logs = _plan_with_logs(context, context.store.pages, now.root, target.root, operation.paths)
    wanted = {change.path for change in plan.writes if change.before is None and is_credential(change.path)}
    if wanted and replaces_credentials and mending is None and any(map(context.tree.is_there, wanted)):
        # The rescue must hold uncaptured files that will be overwritten.
        now = create_checkpoint_locked(context, CheckpointRequest(kind="rescue"), progress, also=wanted).checkpoint
        position = context.catalog.cursor(context.workspace.id).position
        tip = position if operation.redo_tip == operation.position else operation.redo_tip
        operation = operation._replace(rescue=now.id, position=position, redo_tip=tip)
        plan, spared, logs = _plan_with_logs(context, context.store.pages, now.root, target.root, operation.paths)
    rules_change = changes_ignore_rules((*plan.deletes, *plan.writes))
    if mending is not None:
        first = _plan(context.store.pages, mending.evidence, target.root, operation.paths)
        empty = now.total_files == 0
        half = half_written_paths(context.store, plan.writes, mending, operation.in_place)
        plan, others = exclude_conflicts(context.store.pages, plan, first, mending, target.id, empty=empty, half=half)
        spared = [*spared, *others]
    if not exact:
        plan, missed = _spare_uncaptured(context, target, plan, logs)
        spared = [*spared, *missed]
    if rules_change and operation.kind != "restore":
        ignored = ignored_paths(context, target.root, [change.path for change in plan.deletes])
        ignored -= {log for log in logs if database_of(log) not in ignored}
        plan = plan._replace(deletes=[one for one in plan.deletes if one.path not in ignored])
    plan = exclude_split_databases(plan, logs, spared)
    # Neither where it leads nor what leads back may be forgotten or collected; cut short, until that is settled.
    pins = f"an unfinished restore in the workspace {context.workspace.id}"
    back = now if operation.rescue is None else context.catalog.checkpoint(operation.rescue)
    context.catalog.pin_all({one.id: one for one in (target, now, back)}.values(), pins)
    try:
        supply = _verified_content(context, plan.writes)
        write_operation(context.folder, operation)
    except BaseException:
        if read_operation(context.folder) is None:
            context.catalog.unpin_all(pins)
        raise
    writes = ((change, None if _same_content(change) else supply) for change in plan.writes)
    notes = OperationNotes(context.folder, operation, [change.path for change in plan.writes])
    applied = context.tree.apply(plan.deletes, writes, nonce=operation.nonce, progress=progress, notes=notes)
    if mending is None and applied.skipped and not (applied.written or applied.deleted):
        # Nothing has happened, so the history gets no event and the position stays.
        remove_operation(context.folder, operation)
        context.catalog.unpin_all(pins)
        raise _nothing_changed([*spared, *applied.skipped])
    # The part before the interruption may have made the other changes as well.
    brought = plan if mending is None else _plan(context.store.pages, mending.evidence, target.root, operation.paths)
    report_restored(context, (*brought.deletes, *brought.writes))
    context.renew_settings()
    applied = applied._replace(skipped=[*spared, *applied.skipped])
    reached = settled = not operation.paths and not applied.skipped
    seen: Sequence[Change] = ()
    if not operation.paths and (rules_change or mending is not None):
        found = scan_tree(context)
        seen = manifest.diff(found.pages, target.root, found.root)
        if reached:
            # Files that are no longer ignored make the state differ from the target. Files that the rules on the disk
            # ignore do not: they were restored as well.
            reached, settled = all(change.after is None for change in seen), not seen
        if operation.kind != "restore" or replaces_credentials:
            _warn_of_differences(seen, target, {one.path for one in applied.skipped})
    head = target.id
    if reached and not settled and operation.kind == "restore" and not replaces_credentials:
        # Files that the merged rules ignore must not become a change, at which undo would stop.
        from holdfast.engine.history.derived_state import create_derived_checkpoint

        head = create_derived_checkpoint(context, target.id, seen, target.provenance)
    apart = None if mending is None else mending.apart
    if apart is None or reached:
        record_end(context, operation, reached=reached, head=head, apart=apart)
    else:
        record_state(context, "restore", progress)
    remove_operation(context.folder, operation)
    context.catalog.unpin_all(pins)
    if settled:
        context.tree.settle(target.root)
    if not operation.paths:
        warn_of_commits(context, target)
    return restore_result(operation, applied)._replace(letters=_letters(plan.writes))


def _warn_of_differences(seen: Sequence[Change], target: Checkpoint, named: Container[bytes]) -> None:
    """Report differences of the tree from ``target``, to which it was just brought, except the paths ``named``."""
    seen = [change for change in seen if change.path not in named]
    if left_out := [change.path for change in seen if change.after is None]:
        _LOG.warning(
            "the ignore rules that are there now leave out %s, which %s holds: changes to them are not saved",
            _named(left_out),
            target.id[:12],
        )
    if others := [change.path for change in seen if change.after is not None]:
        _LOG.warning(
            "not as in %s, since the rules that come with it do not leave them out: %s; `holdfast status` lists them",
            target.id[:12],
            _named(others),
        )


def _named(paths: Sequence[bytes]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(map(display, paths[:_MOST_NAMED])) + more


def _nothing_changed(left: Sequence[NotCaptured]) -> RefusedError:
    return RefusedError(
        f"{could_not_change(left)}; nothing was changed",
        code="left_alone",
        data={"paths": [display(one.path) for one in left[:_MOST_REPORTED]]},
    )


def _letters(writes: Sequence[Change]) -> Mapping[bytes, str]:
    return {change.path: change.status for change in writes if change.status != "M"}


def restore_result(operation: Operation, applied: ApplyResult) -> RestoreResult:
    """The caller's result of ``applied``."""
    undo_command = REDO_COMMAND if operation.kind == "undo" else UNDO_COMMAND
    if not (applied.written or applied.deleted):
        undo_command = None  # nothing changed, so the command would undo an older change
    elif applied.skipped and operation.kind in ("undo", "redo") and operation.rescue is not None:
        # Skipped paths stop further undo and redo.
        undo_command = f"holdfast restore {operation.rescue[:12]}"
    return RestoreResult(
        checkpoint=operation.target,
        rescue=operation.rescue,
        written=applied.written,
        deleted=applied.deleted,
        skipped=applied.skipped,
        dry_run=False,
        undo_command=undo_command,
    )


def _plan(pages: PageSource, now: Hash, target: Hash, paths: Sequence[bytes]) -> Plan:
    return _limited(manifest.diff(pages, now, target), paths)


def _limited(changes: Sequence[Change], paths: Sequence[bytes]) -> Plan:
    if paths:
        changes = [change for change in changes if any(under(change.path, path) for path in paths)]
    return Plan(
        deletes=[change for change in changes if change.after is None],
        writes=[change for change in changes if change.after is not None],
    )


def _plan_with_logs(
    context: Context, pages: PageSource, now: Hash, target: Hash, paths: Sequence[bytes]
) -> PlanWithLogs:
    """As `_plan`, with what databases need."""
    changes = manifest.diff(pages, now, target)
    return with_sqlite_logs(context, _limited(changes, paths), changes, pages, now, target, paths)


def _spare_uncaptured(
    context: Context, target: Checkpoint, plan: Plan, logs: frozenset[bytes]
) -> tuple[Plan, list[NotCaptured]]:
    """``plan`` without deletions of paths that ``target`` does not capture, or has begun to ignore as a state of
    another workspace, except ``logs`` of its databases; and these paths.

    Such files existed outside any checkpoint: their absence in the state does not mean that they were deleted.
    """
    if not plan.deletes:
        return plan, []
    missed = dict(context.catalog.not_captured(target.id))
    if target.workspace == context.workspace.id:
        spared = missed.keys() & {change.path for change in plan.deletes}
    else:
        spared = only_uncaptured_paths(context, target.id, [*plan.deletes, *plan.writes])
    spared -= logs
    kept = [NotCaptured(path, NOT_THERE + missed.get(path, _LEFT_OUT)) for path in sorted(spared)]
    return plan._replace(deletes=[change for change in plan.deletes if change.path not in spared]), kept


def _check_paths(context: Context, target: Checkpoint, paths: Sequence[bytes]) -> None:
    """Every requested path must be in the target, or in the last checkpoint (then it is deleted)."""
    head = context.catalog.cursor(context.workspace.id).head
    roots = {target.root} if head is None else {target.root, context.catalog.checkpoint(head).root}
    for path in paths:
        if path and not any(any(manifest.iterate(context.store.pages, root, path)) for root in roots):
            raise NotFoundError(
                f"{display(path)} is not in {target.id[:12]}",
                hint=f"`holdfast show {target.id[:12]}` and `holdfast log` list the files of each checkpoint",
                code="no_such_path",
            )


def _verified_content(context: Context, writes: Sequence[Change]) -> Supply:
    """A source of the content of every write, all verified before this returns: damage must show before the tree is
    touched.
    """
    needed = [change for change in writes if not _same_content(change)]
    supply = StoredContent(context.store.reader)
    if sum(after_of(change).size for change in needed) <= _BUFFERED_BYTES:
        return buffer_content(supply, needed)
    for content in supply.fetch(needed):
        if not isinstance(content, bytes):
            for _ in content:
                pass
    return supply


def _same_content(change: Change) -> bool:
    """True if only the permissions of a regular file differ."""
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and before.hash == after.hash
        and not before.is_symlink
        and not after.is_symlink
    )
