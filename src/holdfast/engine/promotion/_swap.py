"""The point of no return: production and the build are swapped, if production is still the state that was copied.

Every step here may be killed and repeated: the places of the two directories show the progress. Their identities
(device, inode, birth time) are in the catalog before the swap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from holdfast.engine.history.checkpoint import create_checkpoint_locked
from holdfast.engine.history.history_writer import next_state
from holdfast.engine.history.recovery import lock_and_finish
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening import identity
from holdfast.engine.opening.context import pause_watcher
from holdfast.engine.opening.operation_journal import refuse_unfinished, reverses_steps
from holdfast.engine.opening.undo_log import open_and_quieten, report_restored
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion._build_directory import AT_SWAP, BEFORE_COPY, load_stamps, save_stamps
from holdfast.engine.promotion._in_place_update import update_in_place
from holdfast.engine.promotion._target_state import UNCHANGED, note_taken_in, refuse_running
from holdfast.engine.promotion.spec import PromotionAnswer
from holdfast.files.directories.directory_exchange import (
    CANNOT,
    DirectoryIdentity,
    directory_identity,
    exchange,
    is_same_directory,
)
from holdfast.files.directories.transplant import transplant
from holdfast.files.directories.tree_stamps import Stamps, changed_paths, stamps
from holdfast.model.checkpoint import Provenance
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import IntegrityError, StorageError, room_hint
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.model.checkpoint import Checkpoint

_LOG = Log(__name__)
_ROUNDS = 5
"""How often ignored files are carried over again while a process keeps writing to them."""


def swap(job: PromotionJob) -> PromotionAnswer | Literal["changed"] | None:
    """Swap the build with production, checkpoint it, and record that in its history.

    ``changed``: production was edited since the plan, and keeps the edits. None: it is done. Raises `HoldfastError`:
    before the swap production is untouched; after it, the next call continues.
    """
    context = job.context
    if reverses_steps(context.folder):
        lock_and_finish(context)
    with context.lock(), pause_watcher(context):
        if job.row.phase == "swapping" and not has_begun(job):
            job.save("building")
        if job.row.phase == "building":
            if (answer := _prepare(job)) is not None:
                return answer
            newest = context.catalog.events(context.workspace.id, limit=1)
            job.facts.seen = newest[0].seq if newest else 0
            job.save("swapping")
        if job.row.phase == "swapping":
            done = _exchange(job) if job.facts.exchange else None
            if done is not None:
                return done
    if job.row.phase == "swapping":  # in place: by a restore, which takes the lock itself
        with pause_watcher(context):
            return update_in_place(job)
    record(job)
    return None


def has_begun(job: PromotionJob) -> bool:
    """Whether an interrupted swap has changed anything: if not, production is examined again."""
    if not job.facts.exchange:
        return bool(job.facts.target)
    return not is_same_directory(directory_identity(job.context.workspace.path), _place(job.facts.old))


def record(job: PromotionJob) -> None:
    """Record production's new state in its history. Idempotent."""
    context, facts = job.context, job.facts
    if facts.answer is not None:
        return
    spec = job.spec
    provenance = Provenance(spec.author, spec.message, spec.command)
    with context.lock(), open_and_quieten(context):
        cursor = context.catalog.cursor(context.workspace.id)
        # If another command has saved it meanwhile, that is the state; undo returns to the one before in either case.
        first = cursor.head == facts.ours
        if (left := _state_before_recording(job)) is not None:
            first, done = False, left
            _LOG.warning("another process has moved %s since the swap; it stays there", spec.path)
        else:
            done = create_checkpoint_locked(
                context,
                CheckpointRequest(kind="manual" if first else "auto", provenance=provenance),
                recorded=next_state(cursor, "promote") if first else None,
            ).checkpoint
        ours = context.catalog.checkpoint(CheckpointId(facts.ours))
        report_restored(context, manifest.diff(context.store.pages, ours.root, done.root))
        note_taken_in(context, done.id, job.row.theirs, CheckpointId(facts.base), facts.record)
        facts.answer = PromotionAnswer(
            result="promoted",
            checkpoint=done.id,
            previous=facts.ours,
            undo_command="holdfast undo" if first else f"holdfast restore {facts.ours[:12]}",
        )
        job.save()


def _state_before_recording(job: PromotionJob) -> Checkpoint | None:
    """Production's new state, if production was changed again before that was recorded: that change had saved it. The
    present state then has nothing of the fork.
    """
    catalog = job.context.catalog
    since = [one for one in catalog.events(job.row.workspace) if one.seq > job.facts.seen]
    if not any(one.operation in ("restore", "undo", "redo") for one in since):
        return None
    saved = since[-1]
    return catalog.checkpoint(
        saved.checkpoint if saved.operation in ("checkpoint", "prompt") else CheckpointId(job.facts.ours)
    )


def _prepare(job: PromotionJob) -> PromotionAnswer | Literal["changed"] | None:
    """Check that production is still the state that was copied, and carry over later changes of uncaptured files."""
    context, facts = job.context, job.facts
    root, tree = context.workspace.path, build_directory.tree_of(job)
    refuse_running(context)
    refuse_unfinished(context.folder)
    if not is_same_directory(directory_identity(root), _place(facts.old)):
        return "changed"
    own = build_directory.own_entries(job, root)
    try:
        before = load_stamps(job, BEFORE_COPY)
        for _ in range(_ROUNDS):
            now = stamps(root, without=own)
            seen = scan_tree(context)
            if seen.head is None or seen.head.id != facts.ours or seen.root != seen.head.root:
                return "changed"
            paths = _uncaptured(job, changed_paths(before, now))
            if facts.exchange:
                left = transplant(root, tree, paths, nonce=job.row.id)
                if in_the_way := [one for one in left if one in now]:
                    return PromotionAnswer(
                        result="failed",
                        code="in_the_way",
                        message=f"{display(in_the_way[0])} was made in production meanwhile, and differs in the build",
                        recovery=UNCHANGED,
                    )
            before = now
            now = stamps(root, without=own)
            if now == before:
                save_stamps(job, AT_SWAP, now)
                build_directory.sync(tree)
                return None
        return "changed"
    except OSError as error:
        raise StorageError(
            f"cannot carry over the ignored files in {display(root)}: {error.strerror}", hint=room_hint(error)
        ) from error


def _uncaptured(job: PromotionJob, paths: Sequence[bytes]) -> list[bytes]:
    """Those of ``paths`` that are neither in production's state nor in the merged one."""
    context, facts = job.context, job.facts
    held: set[bytes] = set()
    for one in (facts.ours, facts.merged):
        root = context.catalog.checkpoint(CheckpointId(one)).root
        held.update(manifest.get_many(context.store.pages, root, list(paths)))
    return [path for path in paths if path not in held]


def _exchange(job: PromotionJob) -> Literal["changed"] | None:
    """Swap, or find that it was swapped already; back again if a process wrote to production in the last moment."""
    context, facts = job.context, job.facts
    root, tree = context.workspace.path, build_directory.tree_of(job)
    built, old = _place(facts.built), _place(facts.old)
    here, there = directory_identity(root), directory_identity(tree)
    try:
        if is_same_directory(here, old) and is_same_directory(there, built):
            own = build_directory.own_entries(job, root)
            at_swap = load_stamps(job, AT_SWAP)
            made = stamps(tree, without=own)
            try:
                exchange(root, tree)
            except OSError as error:
                if error.errno not in CANNOT:
                    raise
                facts.exchange = False
                facts.hindrance = error.strerror or "the system refuses"
                job.save("building")
                return "changed"
            if changed_paths(at_swap, stamps(tree, without=own)):
                _swap_back(job, root, tree, made)
                return "changed"
        elif is_same_directory(here, built) and is_same_directory(there, old):
            if changed_paths(load_stamps(job, AT_SWAP), stamps(tree, without=build_directory.own_entries(job, tree))):
                _LOG.warning("a process wrote to the old directory of %s since the swap", display(root))
        else:
            raise IntegrityError(
                f"neither {display(root)} nor {display(tree)} is what it was when they were to change places",
                hint="they were moved; put them back, and then run `holdfast promote --resume`",
                code="places_changed",
            )
    except OSError as error:
        raise StorageError(f"{display(root)} cannot be swapped: {error.strerror}", hint=room_hint(error)) from error
    _note_directory(context, root)
    job.save("swapped")
    return None


def _swap_back(job: PromotionJob, root: bytes, tree: bytes, made: Stamps) -> None:
    """Swap back, with files that were written to the new directory in between."""
    exchange(root, tree)
    own = build_directory.own_entries(job, root)
    meanwhile = changed_paths(made, stamps(tree, without=own))
    if meanwhile:
        transplant(tree, root, meanwhile, nonce=job.row.id)
    _note_directory(job.context, root)
    job.save("building")


def _note_directory(context: Context, root: bytes) -> None:
    """Note which directory production is now."""
    about = os.lstat(root)
    context.catalog.move_workspace(context.workspace.id, root, about.st_dev, about.st_ino)
    identity.remember_root(context.folder, root)


def _place(fields: tuple[int, int, int | None] | None) -> DirectoryIdentity | None:
    return None if fields is None else DirectoryIdentity(*fields)
