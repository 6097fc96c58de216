"""Merging a fork into a workspace: the plan, changes applied anew, the merged state, and then the tree.

The merged state is a checkpoint before any change of the tree. So the tree is brought to it as by any restore: undoable
(I6), refused if the tree has changed since the plan, and finished or reversed after an interruption (I3).
"""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from holdfast.engine.history import operations
from holdfast.engine.history.checkpoint import make_room
from holdfast.engine.history.derived_state import create_derived_checkpoint, forgotten_if_unreached
from holdfast.engine.history.revisions import resolve_name
from holdfast.engine.merging import stacked_plan
from holdfast.engine.merging.three_way import Decision
from holdfast.model.answers.merges import FileRecord as FileRecordAnswer
from holdfast.model.answers.merges import OpenOverlap
from holdfast.model.checkpoint import Provenance
from holdfast.model.content import SMALL_BLOB_BYTES
from holdfast.model.entries import Entry
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.model.json_encoder import encode, encode_all
from holdfast.model.paths import display
from holdfast.store.catalog.reapply_rows import ReapplyRows
from holdfast.store.catalog_records import MergeParent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.engine.merging.reapply.resolver import FileForecast, FileRecord, Ladder
    from holdfast.engine.merging.stacked_plan import MergePlan, Overlap, Resolution
    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opener import Opener
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.blobs.content_writer import WrittenBlobs

T = TypeVar("T")

_MOST_SAID = 4000
"""Characters of a command that a merged state tells of."""


class OverlapPolicy(NamedTuple):
    """How files are decided that both sides have changed."""

    ladder: Callable[[], Ladder] | None = None
    """Makes the ladder for the overlaps; most merges need none, and import no rungs."""
    resolutions: Mapping[bytes, Resolution] = MappingProxyType({})
    """A person's decisions, by `Overlap.path`."""
    dry_run: bool = False
    """No agent is asked, and nothing is stored."""


class PreparedMerge(NamedTuple):
    """A merged state that no tree has yet, or why there is none."""

    plan: MergePlan
    """With all that was settled."""
    records: Sequence[FileRecord]
    """The result for each overlapping file, with the work of each rung of the ladder."""
    merged: CheckpointId | None
    """The merged state; None if an overlap is open, or in a dry run. Production's own if there is nothing to do."""

    differences: Mapping[bytes, tuple[str, str]] = MappingProxyType({})
    """For each open file, by `Overlap.path`, unless it was a dry run: the changes here and in the fork, as hunks of
    unified diffs. Empty for files that are no text.
    """
    foreseen: Mapping[bytes, FileForecast] = MappingProxyType({})
    """In a dry run, for each file that is open, by `Overlap.path`: what the rungs of the ladder would do."""


class ForkMerge(NamedTuple):
    """The result of a merge; with ``dry_run`` its preview."""

    prepared: PreparedMerge
    restored: RestoreResult | None
    """The changes of the tree; None if there were none."""
    dry_run: bool
    not_captured: Sequence[NotCaptured] = ()
    """Files in the fork's directory that no checkpoint holds: they are not merged."""

    @property
    def plan(self) -> MergePlan:
        """The plan."""
        return self.prepared.plan

    @property
    def waiting(self) -> Sequence[Overlap]:
        """The files that wait for an agent or a person; in a dry run those that the rungs without questions would leave
        to them.
        """
        foreseen = self.prepared.foreseen
        return [one for one in self.plan.overlapping if one.path not in foreseen or not foreseen[one.path].applies]


def merge(
    context: Context,
    fork: CheckpointId,
    who: Provenance,
    policy: OverlapPolicy,
    *,
    since: CheckpointId | None = None,
    bring: Callable[[CheckpointId, CheckpointId], RestoreResult] | None = None,
) -> ForkMerge:
    """Merge the state ``fork`` into the tree of the workspace; with ``since`` only the changes from that state to
    ``fork``, which a later merge does not count as merged.

    The tree is saved first. ``bring(merged, ours)`` then brings the tree from ``ours`` to the merged state (None: by
    `operations.restore`). If overlaps are open after the ``policy``, the tree is not touched, and the result lists
    them.

    Raises `RefusedError`: ``unrelated``, ``stale`` or ``not_shown`` for a resolution, ``changed_meanwhile`` if another
    process changes the tree meanwhile, ``left_alone`` if the system lets no path of it be changed, and as ``bring``.
    """
    ours = operations.save(context).checkpoint.id
    prepared = prepare(context, ours, fork, who, policy, since=since)
    restored = None
    if prepared.merged is not None and prepared.merged != ours:
        with forgotten_if_unreached(context, prepared.merged):
            if bring is None:
                restored = operations.restore(context, prepared.merged, expected=ours)
            else:
                restored = bring(prepared.merged, ours)
    if prepared.merged is not None and prepared.records:
        forget_answers(context, [one.path for one in prepared.records])
    return ForkMerge(prepared, restored, policy.dry_run)


def prepare(
    context: Context,
    production: CheckpointId,
    fork: CheckpointId,
    who: Provenance,
    policy: OverlapPolicy,
    *,
    since: CheckpointId | None = None,
    name: CheckpointId | None = None,
) -> PreparedMerge:
    """Put ``fork`` and ``production`` together as a checkpoint of the workspace, ``name`` if it is given; ``since`` as
    `merge` has it. Touches no tree.

    Takes the workspace's lock for the commit alone, not while the ladder works. Durable when it returns. Raises
    `RefusedError` (``unrelated``, ``vanished``), `NotFoundError`.
    """
    plan = stacked_plan.plan(context, fork, production, since=None if since is None else [since])
    _refuse_unknown(policy.resolutions, plan)
    records: list[FileRecord] = []
    rungs: Ladder | None = None
    new: dict[Hash, bytes] = {}
    if plan.stacked.overlaps:
        rungs = None if policy.ladder is None else policy.ladder()
        with ExitStack() if rungs is None or rungs.workers is None else rungs.workers.resources:
            settled, new, records = _settled(context, plan, policy, rungs)
        if settled:
            bases = [plan.base, *plan.also_bases]
            plan = stacked_plan.plan(context, fork, production, since=bases, settled=settled)
            # A file that is taken away makes room for the other side's directory, whose files overlap no more.
            overlaps = {one.path for one in plan.stacked.overlaps}
            records = [one for one in records if one.path in overlaps]
    if policy.dry_run:
        return PreparedMerge(plan, records, None, foreseen=_foreseen(context, plan, rungs))
    if plan.overlapping:
        return PreparedMerge(plan, records, None, _shown(context, plan))
    taken_in = MergeParent(fork, plan.base, encode_record(records)) if since is None else None
    if not plan.stacked.plan.changes:
        # Nothing is recorded if one of the two is the base, and so in the other already: a state must not become its
        # own ancestor.
        if taken_in is not None and plan.base not in (fork, production):
            context.catalog.add_merge_parents(production, taken_in)
        return PreparedMerge(plan, records, production)
    with context.lock():
        merged = create_derived_checkpoint(
            context,
            production,
            plan.stacked.plan.changes,
            who,
            taken_in=taken_in,
            content=store_contents(context, new),
            name=name,
        )
    return PreparedMerge(plan, records, merged)


def _foreseen(context: Context, plan: MergePlan, ladder: Ladder | None) -> dict[bytes, FileForecast]:
    """The ladder's expected work on open files, by `Overlap.path`; no agent is asked."""
    if ladder is None or not plan.overlapping:
        return {}
    from holdfast.engine.merging.reapply.resolver import foresee

    return {one.path: foresee(context, plan, one, ladder) for one in plan.overlapping}


def _settled(
    context: Context, plan: MergePlan, policy: OverlapPolicy, ladder: Ladder | None
) -> tuple[dict[bytes, Decision], dict[Hash, bytes], list[FileRecord]]:
    """The decisions about overlapping files, by hand or by the ladder; new contents; and the result for each file."""
    from holdfast.engine.merging.reapply.resolver import reapply_all, record_decision

    new: dict[Hash, bytes] = {}
    settled: dict[bytes, Decision] = {}
    records: dict[bytes, FileRecord] = {}
    # First, so that no agent is asked in vain if a resolution is refused.
    for one in plan.stacked.overlaps:
        resolution = policy.resolutions.get(one.path)
        if resolution is None:
            continue
        from holdfast.engine.merging.reapply import manual_resolution
        from holdfast.engine.merging.reapply.answer_queue import last_shown

        shown = last_shown(context.store, context.workspace.id, one.path)
        manual_resolution.check(one, resolution, shown, context.settings.merge.max_bytes)
        settled[one.path] = Decision(resolution.prefer, manual_resolution.resolved_entry(one, resolution))
        records[one.path] = record_decision(one, settled[one.path])
        if resolution.prefer is None and resolution.content is not None:
            new[hash_bytes(resolution.content)] = resolution.content
    # With a preferred side no agent is asked, so a dry run can predict everything.
    prefer = None if ladder is None else ladder.prefer
    left = (
        [] if policy.dry_run and prefer is None else [one for one in plan.stacked.overlaps if one.path not in settled]
    )
    for one, found in zip(left, reapply_all(context, plan, left, ladder), strict=True):
        records[one.path] = found.record
        if found.answered:
            settled[one.path] = Decision(None, _entry(one.mode, found.content))
        elif prefer is not None and one.why != "in_the_way":
            settled[one.path] = Decision(prefer)
            records[one.path] = record_decision(one, settled[one.path], found.record.tried)
        if found.content is not None:
            new[hash_bytes(found.content)] = found.content
    return settled, new, [records[one.path] for one in plan.stacked.overlaps if one.path in records]


def _refuse_unknown(resolutions: Mapping[bytes, Resolution], plan: MergePlan) -> None:
    for path in resolutions.keys() - {one.path for one in plan.stacked.overlaps}:
        raise UsageError(
            f"{display(path)} does not overlap, so there is nothing to decide",
            hint="--dry-run lists the files that do",
            code="not_overlapping",
        )


def _shown(context: Context, plan: MergePlan) -> dict[bytes, tuple[str, str]]:
    """The open overlaps for the person who must decide. The shown version is recorded: only that may be decided."""
    from holdfast.engine.merging.reapply.answer_queue import note_shown, sweep
    from holdfast.engine.merging.reapply.manual_resolution import differences

    found: dict[bytes, tuple[str, str]] = {}
    now = context.clock.now()
    sweep(context.store, now)
    for one in plan.overlapping:
        note_shown(context.store, context.workspace.id, one.path, one.version, now)
        found[one.path] = differences(context, one)
    return found


def _entry(mode: int | None, content: bytes | None) -> Entry | None:
    if content is None:
        return None
    assert mode is not None, "a file whose permissions are open is for a person"
    return Entry(hash_bytes(content), len(content), mode)


def store_contents(context: Context, new: Mapping[Hash, bytes]) -> WrittenBlobs:
    """Store new contents; content that is stored already costs nothing."""
    make_room(context, 0)
    writer = context.store.writer()
    try:
        for content in new.values():
            if len(content) <= SMALL_BLOB_BYTES:
                writer.add(content)
            else:
                writer.add_stream((content,))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def merge_provenance(author: str, message: str, command: str = "") -> Provenance:
    """Who has merged what and why, as a record of it can hold that: a command may be long, and no text."""
    return Provenance(author, message, display(os.fsencode(command))[:_MOST_SAID])


def forget_answers(context: Context, paths: Iterable[bytes]) -> None:
    """Forget what a command has answered for these files: they were merged, so that the same is not asked again."""
    ReapplyRows(context.store.catalog).forget_kept(context.workspace.id, paths)


def encode_record(records: Sequence[FileRecord]) -> str:
    """The results for files, in the form of a merge's record; empty without any."""
    return json.dumps({"files": encode_all(FileRecordAnswer, records)}) if records else ""


# The argument of `holdfast merge FORK`: a fork's directory, the id of a workspace, or a checkpoint.

_WORKSPACE = re.compile(r"[0-9a-f]{16}\Z")


class MergeSource(NamedTuple):
    """The source of a merge."""

    state: CheckpointId
    called: str
    """Its name for people."""
    not_captured: Sequence[NotCaptured] = ()
    """Files in the fork's directory that neither a checkpoint nor the target workspace has."""


def merge_object(kind: type[T], found: ForkMerge) -> T:
    """The answer for a merge or its preview: as ``kind``, `answers.merges.Merged` or a class derived from it."""
    prepared = found.prepared
    return encode(
        kind,
        found.plan,
        overlapping_files=open_overlaps(found) or None,
        dry_run=found.dry_run,
        files=prepared.records,
        merged=prepared.merged,
        restored=found.restored,
        not_captured=found.not_captured,
    )


def open_overlaps(found: ForkMerge) -> list[OpenOverlap]:
    """Each file that is open, as it is answered: what both sides have changed in it, or what the ladder would do about
    it.
    """
    prepared = found.prepared
    overlapping: list[OpenOverlap] = []
    for one in found.plan.overlapping:
        ours, theirs = prepared.differences.get(one.path, (None, None))
        expected = prepared.foreseen.get(one.path)
        overlapping.append(encode(OpenOverlap, one, production_diff=ours, fork_diff=theirs, foreseen=expected))
    return overlapping


def find_source(opener: Opener, into: Context, name: str) -> MergeSource:
    """The state that ``name`` means. A fork's directory is saved first.

    In this order: the id of a workspace, a checkpoint of any workspace, a fork's directory. Raises `NotFoundError`,
    `RefusedError` (code ``itself``).
    """
    known = None
    if _WORKSPACE.match(name):
        known = next((one for one in opener.store().catalog.workspaces() if one.id == name), None)
    if known is not None:
        return _newest(into, opener.open_known(known.id), f"the fork {name}")
    try:
        return MergeSource(resolve_name(into, name), f"the checkpoint {name}")
    except NotFoundError:
        if not os.path.isdir(name):
            if "/" not in name:
                raise
            problem = f"{name} is not a directory" if os.path.lexists(name) else f"the directory {name} does not exist"
            raise NotFoundError(problem, code="no_such_path") from None
    context = opener.open(os.fsencode(name))
    return _newest(into, context, f"the fork {display(context.workspace.path)}")


def _newest(into: Context, context: Context, called: str) -> MergeSource:
    from holdfast.engine.history.operations import save
    from holdfast.engine.history.status import only_in_directory

    if context.workspace.id == into.workspace.id:
        raise RefusedError("a workspace cannot be merged into itself", code="itself")
    made = save(context)
    missed = only_in_directory(context.workspace.path, into.workspace.path, made.not_captured)
    return MergeSource(made.checkpoint.id, called, missed)
