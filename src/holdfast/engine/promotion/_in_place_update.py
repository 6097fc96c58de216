"""For a production that cannot be swapped with the build: it is updated to the same state file by file.

Not atomic. Captured files come first, by a restore with a journal, which the next call finishes after a crash. Other
files (dependencies, build outputs) follow, each atomically. Undo reverses the first part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.derived_state import create_derived_checkpoint
from holdfast.engine.history.recovery import resume
from holdfast.engine.history.restore import restore
from holdfast.engine.history.status import files_on_disk
from holdfast.engine.opening.context import saved_state
from holdfast.engine.opening.operation_journal import read_operation
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion._build import tree_at
from holdfast.engine.promotion._build_directory import AFTER_APPLY, BEFORE_COPY, load_stamps
from holdfast.engine.promotion._target_state import note_taken_in
from holdfast.engine.promotion.spec import PromotionAnswer
from holdfast.files.directories.transplant import transplant
from holdfast.files.directories.tree_stamps import changed_paths, stamps
from holdfast.model.checkpoint import Provenance
from holdfast.model.errors import RefusedError, StorageError, room_hint
from holdfast.model.ids import CheckpointId, new_checkpoint_id
from holdfast.model.paths import display
from holdfast.store.blobs.lazy_writer import LazyWriter
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.model.entries import NotCaptured


def update_in_place(job: PromotionJob) -> Literal["changed"] | None:
    """Update production to the build. Idempotent: a repeated call finishes an interrupted one.

    ``changed``: another process has edited it since the check, and nothing was done.
    """
    context, facts = job.context, job.facts
    target = _captured(job, context)
    skipped: Sequence[NotCaptured] = ()
    operation = read_operation(context.folder)
    if operation is not None and operation.target == target:
        skipped = resume(context).skipped
    elif not _stands_on(context, target):
        try:
            skipped = restore(context, target, expected=CheckpointId(facts.ours)).skipped
        except RefusedError as error:
            if error.code != "changed_meanwhile":
                raise
            facts.plans.append(target)
            facts.target = ""
            job.save("building")
            return "changed"
    _copy_uncaptured(job, context)
    facts.late += [display(one.path) for one in skipped]
    note_taken_in(context, target, job.row.theirs, CheckpointId(facts.base), facts.record)
    facts.answer = PromotionAnswer(
        result="promoted",
        checkpoint=context.catalog.cursor(context.workspace.id).head or target,
        previous=facts.ours,
        atomic=False,
        undo_command="holdfast undo",
    )
    job.save("swapped")
    return None


def _stands_on(context: Context, target: CheckpointId) -> bool:
    """Whether production was brought to ``target``, or to its part that the new rules capture."""
    head = context.catalog.cursor(context.workspace.id).head
    return head is not None and target in (head, context.catalog.checkpoint(head).parent)


def _captured(job: PromotionJob, context: Context) -> CheckpointId:
    """A checkpoint of the build, which no tree has yet. Content that was just collected is stored anew."""
    if job.facts.target:
        return CheckpointId(job.facts.target)
    spec = job.spec
    writer = LazyWriter(context.store.writer)
    ours = context.catalog.checkpoint(CheckpointId(job.facts.ours))
    try:
        scan = tree_at(job, build_directory.tree_of(job)).scan(writer, saved=saved_state(context, ours), full_hash=True)
        content = writer.finish()
    except BaseException:
        writer.abort()
        raise
    held = manifest.build((path, entry) for path, entry in sorted(scan.changes.items()) if entry is not None)
    differing = manifest.diff(context.store.pages_with(held.new_pages), ours.root, held.root)
    # Newly ignored files still exist in the copy, so they were not deleted.
    there = files_on_disk(build_directory.tree_of(job), [one.path for one in differing if one.after is None])
    changes = [one for one in differing if one.path not in there]
    name = new_checkpoint_id(context.random)
    job.facts.plans.append(name)  # killed before it is the target, it is forgotten like every other plan
    job.save()
    with context.lock():
        create_derived_checkpoint(
            context, ours.id, changes, Provenance(spec.author, spec.message, spec.command), content=content, name=name
        )
    context.catalog.pin(context.catalog.checkpoint(name).root, job.pins, checkpoint=name)
    job.facts.plans.remove(name)
    job.facts.target = name
    job.save()
    return name


def _copy_uncaptured(job: PromotionJob, context: Context) -> None:
    """Copy built files that no checkpoint holds; production's own stay if they were changed meanwhile."""
    root, tree = context.workspace.path, build_directory.tree_of(job)
    own = build_directory.own_entries(job, root)
    try:
        made = changed_paths(load_stamps(job, AFTER_APPLY), stamps(tree, without=own))
        theirs = set(changed_paths(load_stamps(job, BEFORE_COPY), stamps(root, without=own)))
        head = context.catalog.cursor(context.workspace.id).head
        held = set[bytes]() if head is None else _held(context, head, made)
        transplant(tree, root, [one for one in made if one not in theirs | held], nonce=job.row.id)
        build_directory.sync(root)
    except OSError as error:
        raise StorageError(
            f"cannot bring the build to {display(root)}: {error.strerror}", hint=room_hint(error)
        ) from error


def _held(context: Context, checkpoint: CheckpointId, paths: list[bytes]) -> set[bytes]:
    return set(manifest.get_many(context.store.pages, context.catalog.checkpoint(checkpoint).root, paths))
