"""Bringing the tree to a checkpoint, in a way that can be taken back.

A rescue checkpoint comes first (I6). The plan is the difference between that rescue and the target, so that only
paths which the rescue holds and the target lacks are ever deleted (I5), and ignore rules that come back with the
restore decide nothing. A record in the workspace's folder lets the next command finish or take back a restore that
was cut short (I3).
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
"""Begins why something stays that a state of another workspace lacks; what that state says of it follows."""
_LEFT_OUT = "it is left out there, as by an ignore rule"

UNDO_COMMAND = "holdfast undo"
REDO_COMMAND = "holdfast redo"

_BUFFERED_BYTES = 64 << 20
"""Up to this much content is read and verified before the tree is touched, and kept; more is verified in a pass of
its own."""

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
    """Bring the tree, or only ``paths`` of it, to ``target``. Touches nothing that does not differ.

    Where it leaves another state than the target, as with ``paths``, that is unsaved, among whatever comes next; with
    ``as_state`` it is saved as what this restore did.

    Atomic per file, durable when it returns, not atomic as a whole: cut short, it is finished or taken back by
    `holdfast.engine.history.recovery`. Files that changed meanwhile, or that no checkpoint holds, are
    left alone and listed in ``skipped``; unless ``exact``, what another workspace's state does not capture, or ignores,
    is, too. Raises `NotFoundError` (no such checkpoint or path), `IntegrityError` before anything is touched if content
    that is needed is damaged, `RefusedError` while an earlier restore is unfinished, or (code ``changed_meanwhile``) if
    the tree is not as ``expected`` has it, which a merge asks for: that is then saved, and nothing else has happened;
    and (``left_alone``) if there is something to change, and no path of it could be.
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
            # What was not saved for want of room is no part of this: `undo` would take it for the newest change.
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
    """Save what the tree holds now, if anything is unsaved; return the checkpoint that holds it. Needs the lock.

    A workspace whose directory is gone is made again, empty: that is then the state that was saved. ``meanwhile`` as
    `Tree.scan` has it; ``touched`` gives the paths at and below which something is about to be changed, if not
    anywhere: on a full disk those alone may be saved (`create_checkpoint_or_part`).
    """
    recreate_root(context)
    return create_checkpoint_or_part(context, CheckpointRequest(kind="rescue"), touched, progress, meanwhile=meanwhile)


def _preload(context: Context, target: Checkpoint, paths: Sequence[bytes]) -> None:
    """Load what comes after the look at the tree, and read the pages that the plan will need if nothing is unsaved.

    That takes as long as the look itself, and changes nothing: what is wrong is met again, and reported, in its turn.
    """
    import json  # noqa: F401  # pyright: ignore[reportUnusedImport]

    from holdfast.files.write import applier  # noqa: F401  # pyright: ignore[reportUnusedImport]

    head = context.catalog.cursor(context.workspace.id).head
    if head is not None:
        with suppress(HoldfastError):
            _plan(context.store.pages, context.catalog.checkpoint(head).root, target.root, paths)


def preview(context: Context, target: Checkpoint, paths: Sequence[bytes] = ()) -> RestoreResult:
    """What bringing the tree to ``target`` would do now. Changes nothing and stores nothing. Needs the lock."""
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
    """Bring the tree from the state ``now``, which it was just saved as, to ``target``, under the operation. Needs the
    lock.

    An undo or a redo deletes nothing that the target's own rules ignore: it was there, uncaptured, when that was the
    state. Unless ``exact``, nothing deletes what another workspace's state does not capture, or ignores: it was there,
    too. A file of credentials that is not captured is saved, and replaced, only where ``replaces_credentials``: a merge
    brings the work of others, and leaves it alone as it does an ignored file. Raises `RefusedError` (``left_alone``)
    where no path could be changed: the workspace then stands where it stood.
    """
    plan, spared, logs = _plan_with_logs(context, context.store.pages, now.root, target.root, operation.paths)
    wanted = {change.path for change in plan.writes if change.before is None and is_credential(change.path)}
    if wanted and replaces_credentials and mending is None and any(map(context.tree.is_there, wanted)):
        # What is not captured, and is going to be overwritten, is in the rescue all the same.
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
        # Nothing has happened, so the history has nothing to say of it, and the workspace stands where it stood.
        remove_operation(context.folder, operation)
        context.catalog.unpin_all(pins)
        raise _nothing_changed([*spared, *applied.skipped])
    # (Before it was cut short it may have brought the rest there as well.)
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
            # Files that were ignored, and are not any more, make it another state than the target. What the rules on
            # the disk leave out does not: it was brought back all the same.
            reached, settled = all(change.after is None for change in seen), not seen
        if operation.kind != "restore" or replaces_credentials:
            _warn_of_differences(seen, target, {one.path for one in applied.skipped})
    head = target.id
    if reached and not settled and operation.kind == "restore" and not replaces_credentials:
        # What the merged rules leave out is no change to come: the next state would have it, and undo stop there.
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
    """Say in what the tree is another than ``target``, which it was just brought to, but for the paths ``named``."""
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
    """What the caller is told of ``applied``."""
    undo_command = REDO_COMMAND if operation.kind == "undo" else UNDO_COMMAND
    if not (applied.written or applied.deleted):
        undo_command = None  # nothing has changed: it would take back what was there before
    elif applied.skipped and operation.kind in ("undo", "redo") and operation.rescue is not None:
        # What was left alone stands in the way of walking on.
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
    """``plan`` without deleting what ``target`` does not capture or, as a state of another workspace, has begun to
    ignore, but for ``logs`` of databases that it brings; and what that is.

    It was there, as something that no checkpoint holds: that it is not in the state does not say that it was deleted.
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
    """Every path that was asked for must be in the target, or in the last checkpoint (then it is deleted)."""
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
    """What gives the content of every write, all of it verified before this returns: damage must show before the tree
    is touched.
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
