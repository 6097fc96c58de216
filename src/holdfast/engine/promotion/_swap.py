"""The point of no return: production and what was built change places, if production is still what it was built from.

Everything here can be killed at any moment and called again: what has happened is told by which directory is where
(device, inode, time of birth), which the catalog knows from before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from holdfast.engine.history.checkpoint import Recorded, take_locked
from holdfast.engine.history.restore import refuse_unfinished
from holdfast.engine.history.status import present
from holdfast.engine.opening import identity
from holdfast.engine.opening.context import paused
from holdfast.engine.opening.undo_log import kept_still, tell_brought_back
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion._build_directory import AT_SWAP, BEFORE_COPY, load_stamps, save_stamps
from holdfast.engine.promotion._in_place_update import bring_in_place
from holdfast.engine.promotion._target_state import UNCHANGED, note_taken_in, refuse_running
from holdfast.engine.promotion.spec import Answer
from holdfast.files.directories.directory_exchange import (
    CANNOT,
    DirectoryIdentity,
    directory_identity,
    exchange,
    is_same_directory,
)
from holdfast.files.directories.transplant import transplant
from holdfast.files.directories.tree_stamps import Stamps, changed_paths, stamps
from holdfast.model.checkpoint import HistoryEvent, Provenance
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import IntegrityError, StorageError, room_hint
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion._job_context import Work
    from holdfast.model.checkpoint import Checkpoint

_LOG = Log(__name__)
_ROUNDS = 5
"""So often what is ignored is carried over again, as somebody writes to it all the time."""


def swap(work: Work) -> Answer | Literal["changed"] | None:
    """Let what was built take production's place, checkpoint it, and write that into its history.

    ``changed``: production was edited since it was planned for, and is as its editors have it. None: it is done. Raises
    `HoldfastError`: before the swap production is untouched then; after it, whoever calls this again goes on.
    """
    context = work.context
    with context.lock(), paused(context):
        if work.row.phase == "swapping" and not has_begun(work):
            work.save("building")
        if work.row.phase == "building":
            if (answer := _prepare(work)) is not None:
                return answer
            newest = context.catalog.events(context.workspace.id, limit=1)
            work.facts.seen = newest[0].seq if newest else 0
            work.save("swapping")
        if work.row.phase == "swapping":
            done = _exchange(work) if work.facts.exchange else None
            if done is not None:
                return done
    if work.row.phase == "swapping":  # in place: by a restore, which takes the lock itself
        with paused(context):
            return bring_in_place(work)
    record(work)
    return None


def has_begun(work: Work) -> bool:
    """Whether a swap that was cut short has changed anything: if not, production is looked at again."""
    if not work.facts.exchange:
        return bool(work.facts.target)
    return not is_same_directory(directory_identity(work.context.workspace.path), _place(work.facts.old))


def record(work: Work) -> None:
    """Enter in production's history what it has become. Idempotent: whoever was there first has done it."""
    context, facts = work.context, work.facts
    if facts.answer is not None:
        return
    spec = work.spec
    provenance = Provenance(spec.author, spec.message, spec.command)
    with context.lock(), kept_still(context):
        cursor = context.catalog.cursor(context.workspace.id)
        event = HistoryEvent(0, 0, "promote", CheckpointId(""), cursor.position)
        # (If another command has saved it meanwhile, that is the state; undo goes back to the one before either way.)
        first = cursor.head == facts.ours
        if (left := _left_already(work)) is not None:
            first, done = False, left
            _LOG.warning("somebody has brought %s elsewhere since the swap, and it stays there", spec.path)
        else:
            done = take_locked(
                context,
                CheckpointRequest(kind="manual" if first else "auto", provenance=provenance),
                recorded=Recorded(event, None) if first else None,
            ).checkpoint
        ours = context.catalog.checkpoint(CheckpointId(facts.ours))
        tell_brought_back(context, manifest.diff(context.store.pages, ours.root, done.root))
        note_taken_in(context, done.id, work.row.theirs, CheckpointId(facts.base), facts.record)
        facts.answer = Answer(
            result="promoted",
            checkpoint=done.id,
            previous=facts.ours,
            undo_command="holdfast undo" if first else f"holdfast restore {facts.ours[:12]}",
        )
        work.save()


def _left_already(work: Work) -> Checkpoint | None:
    """What production had become, if somebody has gone elsewhere from there before that was recorded: by then they had
    saved it. The state that it is in now holds nothing of the fork.
    """
    catalog = work.context.catalog
    since = [one for one in catalog.events(work.row.workspace) if one.seq > work.facts.seen]
    if not any(one.operation in ("restore", "undo", "redo") for one in since):
        return None
    saved = since[-1]
    return catalog.checkpoint(saved.checkpoint if saved.operation == "checkpoint" else CheckpointId(work.facts.ours))


def _prepare(work: Work) -> Answer | Literal["changed"] | None:
    """See whether production is still what was built from, and carry over what has changed of that which no checkpoint
    holds.
    """
    context, facts = work.context, work.facts
    root, tree = context.workspace.path, build_directory.tree_of(work)
    refuse_running(context)
    refuse_unfinished(context)
    if not is_same_directory(directory_identity(root), _place(facts.old)):
        return "changed"
    own = build_directory.own_in(work, root)
    try:
        before = load_stamps(work, BEFORE_COPY)
        for _ in range(_ROUNDS):
            now = stamps(root, without=own)
            seen = present(context)
            if seen.head is None or seen.head.id != facts.ours or seen.root != seen.head.root:
                return "changed"
            paths = _uncaptured(work, changed_paths(before, now))
            if facts.exchange:
                left = transplant(root, tree, paths, nonce=work.row.id)
                if in_the_way := [one for one in left if one in now]:
                    return Answer(
                        result="failed",
                        code="in_the_way",
                        message=f"{display(in_the_way[0])} was made in production meanwhile, and in what was built "
                        "something else",
                        recovery=UNCHANGED,
                    )
            before = now
            now = stamps(root, without=own)
            if now == before:
                save_stamps(work, AT_SWAP, now)
                build_directory.sync(tree)
                return None
        return "changed"
    except OSError as error:
        raise StorageError(
            f"what is ignored in {display(root)} cannot be carried over: {error.strerror}", hint=room_hint(error)
        ) from error


def _uncaptured(work: Work, paths: Sequence[bytes]) -> list[bytes]:
    """Those of ``paths`` that neither production's state nor the merged one holds."""
    context, facts = work.context, work.facts
    held: set[bytes] = set()
    for one in (facts.ours, facts.merged):
        root = context.catalog.checkpoint(CheckpointId(one)).root
        held.update(manifest.get_many(context.store.pages, root, list(paths)))
    return [path for path in paths if path not in held]


def _exchange(work: Work) -> Literal["changed"] | None:
    """Swap, or find that it was swapped already; back again if somebody wrote to production in the last moment."""
    context, facts = work.context, work.facts
    root, tree = context.workspace.path, build_directory.tree_of(work)
    built, old = _place(facts.built), _place(facts.old)
    here, there = directory_identity(root), directory_identity(tree)
    try:
        if is_same_directory(here, old) and is_same_directory(there, built):
            own = build_directory.own_in(work, root)
            at_swap = load_stamps(work, AT_SWAP)
            made = stamps(tree, without=own)
            try:
                exchange(root, tree)
            except OSError as error:
                if error.errno not in CANNOT:
                    raise
                facts.exchange = False
                facts.hindrance = error.strerror or "the system refuses"
                work.save("building")
                return "changed"
            if changed_paths(at_swap, stamps(tree, without=own)):
                _back(work, root, tree, made)
                return "changed"
        elif is_same_directory(here, built) and is_same_directory(there, old):
            if changed_paths(load_stamps(work, AT_SWAP), stamps(tree, without=build_directory.own_in(work, tree))):
                _LOG.warning("something was written to the old directory of %s since the swap", display(root))
        else:
            raise IntegrityError(
                f"neither {display(root)} nor {display(tree)} is what it was when they were to change places",
                hint="somebody has moved them; put them back, and then `holdfast promote --resume`",
                code="places_changed",
            )
    except OSError as error:
        raise StorageError(f"{display(root)} cannot be swapped: {error.strerror}", hint=room_hint(error)) from error
    _remember(context, root)
    work.save("swapped")
    return None


def _back(work: Work, root: bytes, tree: bytes, made: Stamps) -> None:
    """Swap back; what was written to the new directory in between is brought along."""
    exchange(root, tree)
    own = build_directory.own_in(work, root)
    meanwhile = changed_paths(made, stamps(tree, without=own))
    if meanwhile:
        transplant(tree, root, meanwhile, nonce=work.row.id)
    _remember(work.context, root)
    work.save("building")


def _remember(context: Context, root: bytes) -> None:
    """Note which directory production is now."""
    about = os.lstat(root)
    context.catalog.move_workspace(context.workspace.id, root, about.st_dev, about.st_ino)
    identity.remember(context.folder, root)


def _place(fields: tuple[int, int, int | None] | None) -> DirectoryIdentity | None:
    return None if fields is None else DirectoryIdentity(*fields)
