"""Undo and redo of finished steps: whether they may be."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.message_text import named_steps
from holdfast.model.paths import display
from holdfast.undo.completion.late_writes import moved_to, settle_late_writes
from holdfast.undo.completion.step_sealer import damaged_preimages
from holdfast.undo.foreign_edits.detection import changed_by_other_name, changed_paths
from holdfast.undo.foreign_edits.other_links import KEPT, find_in_log, find_survivors, lost_names
from holdfast.undo.journal.records import OURSELVES, Content, Made, Meta
from holdfast.undo.journal.step_footprint import first_contacts, footprint_of, objects_by_path
from holdfast.undo.local_service._content_match import adopt_matching, still_brought
from holdfast.undo.local_service._replaced_objects import find_replaced
from holdfast.undo.local_service._step_dependencies import refuse_overlaps
from holdfast.undo.local_service._write_obstacles import refuse_obstacles
from holdfast.undo.recovery.interrupted_reversals import finish_failed
from holdfast.undo.reversal.durable_reversal import ReversalResult, note_crossed, ordered_records, reverse
from holdfast.undo.reversal.reversal_context import is_refusal
from holdfast.undo.tree.signatures import is_as_left, is_unknown, is_untouched, signature
from holdfast.undo.whole_writes import AT_ONCE, TRY_AGAIN, leased_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import ForeignEdit, Signature, StepId
    from holdfast.undo.journal.step_file import SealedStep, State, StepHead
    from holdfast.undo.log import UndoLog

_LOOK = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | AT_ONCE
_MAX_SHOWN = 5
_MAX_REPORTED = 1000


def undo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> ReversalResult:
    """Reverse finished steps, all of them or none. Others' mutations wait meanwhile.

    Raises `NotFoundError`; `RefusedError` if a later step or another process has changed the same since, the system
    refuses a change, or a step is not protected (``force`` goes ahead, and redo restores what it overwrites);
    `IntegrityError` if a preimage is missing or damaged.
    """
    return _change(log, list(steps), "done", force=force)


def redo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> ReversalResult:
    """Bring undone steps forward again. As `undo` in everything else."""
    return _change(log, list(steps), "undone", force=force)


def _change(log: UndoLog, steps: Sequence[StepId], state: State, *, force: bool) -> ReversalResult:
    with log.recorder.gate:
        for finished in finish_failed(log):
            if set(finished.steps) == set(steps) and all(log.heads[step].state != state for step in steps):
                return finished  # the same request again
        settle_late_writes(log)
        log.directories.close()  # directories that an earlier change opened may have moved since
        sealed = _recognised(log, _read(log, steps, state))
        if not force:
            _refuse(log, sealed)
        for one in map(log.read, steps):
            if bad := damaged_preimages(log.preimages, one.head, one.records):
                raise IntegrityError(
                    f"step {one.head.id} cannot be reversed: {len(bad)} of its preimages are missing or damaged",
                    hint="the other steps are not affected",
                )
        _refuse_leases(log, sealed)
        if force:
            sealed = _note_what_is_crossed(log, sealed)
        return reverse(log, sealed, forward=state == "undone")


def foresee(log: UndoLog, steps: Iterable[StepId], *, forward: bool, force: bool = False) -> list[tuple[bytes, str]]:
    """Raise what `undo` (``forward``: `redo`) would refuse of these steps as things are now (nothing with ``force``).
    Returns the paths that it would leave alone as another process has replaced or removed what is there, with the
    reasons. Changes nothing.

    Except problems found only by doing it: damage, files on which a process has a lease, and obstacles past ``force``.
    """
    with log.recorder.gate:
        settle_late_writes(log)
        log.directories.close()
        sealed = _recognised(log, _read(log, steps, "undone" if forward else "done"), keep=False)
        if not force:
            _refuse(log, sealed)
        return sorted(find_replaced(log, sealed).items())


def _read(log: UndoLog, steps: Iterable[StepId], state: State) -> list[SealedStep]:
    """The records by which the steps leave the state; for a step that has left it, those that the system refused."""
    sealed: list[SealedStep] = []
    for step in steps:
        one = log.read(step)
        if one.head.state != state and not one.head.refused:
            raise NotFoundError(f"step {step} is {'undone already' if state == 'done' else 'not undone'}")
        sealed.append(one.leaving(state))
    return sealed


def _recognised(log: UndoLog, sealed: Sequence[SealedStep], *, keep: bool = True) -> list[SealedStep]:
    """The steps by the present objects: as in `adopt_matching`, and for refused records, by whether the system permits
    the change now.
    """
    again = [one for one in sealed if log.heads[one.head.id].state != one.head.state]
    found = adopt_matching(log, sealed, keep=keep and not again)
    for at, one in enumerate(found):
        left = dict(one.head.left)
        for path in objects_by_path(log.heads[one.head.id].refused):
            if path in left and is_untouched(log.directories, path, left[path]):
                left[path] = signature(log.directories, path)
        found[at] = msgspec.structs.replace(one, head=msgspec.structs.replace(one.head, left=tuple(left.items())))
    return found


def _refuse(log: UndoLog, sealed: Sequence[SealedStep]) -> None:
    _refuse_unprotected(sealed)
    refuse_overlaps(log, [one.head.id for one in sealed], sealed[0].head.state)
    _refuse_writers(log, sealed)
    _refuse_unreversed(log, sealed)
    refuse_obstacles(log, sealed)
    lost = list(dict.fromkeys(path for path, _ in changed_paths(log, sealed)))
    _refuse_barriers(log, sealed, frozenset(lost))
    _refuse_foreign_edits(log, sealed, lost)


def _refuse_unreversed(log: UndoLog, sealed: Sequence[SealedStep]) -> None:
    """Refuse a step of an earlier version that kept objects which could not be changed, without a record of them."""
    stayed = {
        met.path
        for one in sealed
        for met in (() if log.heads[one.head.id].refused else one.head.conflicts)
        if is_refusal(met.reason)
    }
    if stayed:
        done, before = ("undone", "redone") if sealed[0].head.state == "done" else ("redone", "undone")
        raise RefusedError(
            f"{named_steps(one.head.id for one in sealed)} cannot be {done} exactly: when {before}, "
            f"{_format_paths(sorted(stayed))} stayed as it was",
            hint="--force goes ahead with the rest",
            code="unwritable",
            data=_reported_paths(stayed),
        )


def _note_what_is_crossed(log: UndoLog, sealed: Sequence[SealedStep]) -> list[SealedStep]:
    """Record others' changes that are overwritten: they return, as others', when the reversal is reversed."""
    lost = {path for path, _ in changed_paths(log, sealed)}
    noted: list[SealedStep] = []
    for one in sealed:
        head = one.head
        found = log.barriers.found_by_steps(head.id, _since(one))
        mine: list[tuple[State, bytes]] = [
            (head.state, path)
            for path, left in head.left
            if path in lost or (not found.isdisjoint((path, b"")) and not is_as_left(log.directories, path, left))
        ]
        if mine:
            one = note_crossed(log, one, tuple(sorted({*head.crossed, *mine})))
        noted.append(one)
    return noted


def _refuse_unprotected(sealed: Sequence[SealedStep]) -> None:
    for one in sealed:
        if one.head.protected:
            done = "undone" if one.head.state == "done" else "redone"
            raise RefusedError(
                f"step {one.head.id} cannot be {done} whole: {one.head.protected}",
                hint="--force brings back the kept files",
            )


def _refuse_barriers(log: UndoLog, sealed: Sequence[SealedStep], lost: Set[bytes]) -> None:
    left = {path for one in sealed for path, _ in one.head.left}

    def is_back(own: Mapping[bytes, Signature | None], path: bytes, is_found: bool) -> bool:
        if is_found:
            # That step may have been undone: then its restored object has the edit.
            return path not in own or is_as_left(log.directories, path, own[path])
        if is_unknown(own.get(path)):
            # No step found the edit, as the path was unknown: a step that restored it does not prove the content.
            return False
        if path in left:
            return path not in lost
        return path not in lost and signature(log.directories, path) is None  # it came and went

    for one in sealed:
        back = partial(is_back, dict(one.head.left))
        if (barrier := _crossed_barrier(log, one, back)) is not None:
            what = _format_paths(barrier.paths) if b"" not in barrier.paths else "the workspace"
            if barrier.who == OURSELVES:
                message = _changed_outside(what, f"step {one.head.id}")
            else:
                message = f"{barrier.who or 'another process'} has changed {what} since step {one.head.id}"
            raise RefusedError(
                message,
                hint=_force_hint(one.head.state, {*lost, *barrier.paths}),
                code="barrier",
                data=_reported_paths([*lost, *barrier.paths]),
            )


def _crossed_barrier(log: UndoLog, one: SealedStep, is_back: Callable[[bytes, bool], bool]) -> ForeignEdit | None:
    if not log.barriers.records:
        return None
    came = first_contacts(one.records, log.recorder.aliases)
    elsewhere = {*changed_by_other_name(log, one), *_edited_since(log, one)}
    return log.barriers.newest_crossed(one.head.id, _since(one), footprint_of(one.records), is_back, came, elsewhere)


def _edited_since(log: UndoLog, one: SealedStep) -> Iterator[Identity]:
    """Objects that the step wrote to, changed or made, and outsiders edited after that, by any name, unless they are as
    the step left them. Later steps' results, or restored objects, contain the edit.
    """
    objects = log.barriers.edited_objects(_since(one))
    now, own = log.recorder.aliases.now, dict(one.head.left)
    began: dict[Identity, int] = {}
    for record in one.records if objects else ():
        if isinstance(record, (Content, Meta, Made)):
            began.setdefault(record.identity, record.seq)
    for path, object_ in objects_by_path(one.records).items() if objects else ():
        if object_ is None or object_ not in began or now(object_) not in objects:
            continue
        # A concurrent step may have moved it by the step's end, so the path has no result.
        was = own.get(path)
        is_untouched = was is not None and is_as_left(log.directories, path, was)
        if not is_untouched and now(object_) in log.barriers.edited_objects(began[object_]):
            yield now(object_)


def _changed_outside(paths: str, since: str) -> str:
    """The message if a restore or an undo was the last to change steps' results: it may have reversed an edit, or
    restored one, so it is not the cause.
    """
    return f"{paths} {'have' if ', ' in paths else 'has'} changed since {since}, outside of any step"


def _force_hint(state: State, lost: Collection[bytes]) -> str:
    """The hint if steps in this state are not reversed for what another process has changed at ``lost``."""
    done, back = ("undoes", "redo") if state == "done" else ("redoes", "undo")
    if lost and all(path.endswith(b"/index") and b".git" in path.split(b"/") for path in lost):
        return (
            f"git has written its index anew, as `git status` does: --force {done} the rest and leaves the index; then "
            "`git reset` makes it anew from HEAD"
        )
    return (
        f"--force {done} it nevertheless: {back} gives back what that overwrites, and files that have replaced those "
        "of the step stay"
    )


def _since(sealed: SealedStep) -> int:
    """When a step came to where it is now."""
    return min((record.seq for record in sealed.records), default=sealed.head.first)


def _format_paths(paths: Sequence[bytes]) -> str:
    return ", ".join(display(path) for path in paths[:_MAX_SHOWN]) + (", …" if len(paths) > _MAX_SHOWN else "")


def _reported_paths(paths: Iterable[bytes]) -> dict[str, object]:
    return {"paths": [display(path) for path in sorted(set(paths))[:_MAX_REPORTED]]}


def _refuse_foreign_edits(log: UndoLog, sealed: Sequence[SealedStep], lost: Sequence[bytes]) -> None:
    if not lost:
        return
    state, steps = sealed[0].head.state, named_steps(one.head.id for one in sealed)
    unknown = {at: (head, path) for head, path, now in _unknown(log, sealed) for at in (now, path)}
    unsaid = [path for path in lost if path in unknown]
    # Refused records are compared with the state at the refusal, which has changed.
    stopped = [one.head for one in sealed if not one.head.refused]
    conflicts = {met.path for head in stopped for met in head.conflicts}
    stayed = [path for path in lost if path in conflicts]
    code = "barrier"
    if (other := _rolled_back_since(log, sealed)) is not None:
        code = "step_rolled_back"
        message = (
            f"{steps} cannot be {'undone' if state == 'done' else 'redone'} exactly: step {other} was rolled back "
            f"since, and {_format_paths(lost)} is not as it was left"
        )
    elif unsaid:
        head, path = unknown[unsaid[0]]
        if path in log.unsettled.get(head.id, {}):
            raise _still_written(unsaid[0])
        message = f"what step {head.id} left in {_format_paths(unsaid)} is not known: {_why_unknown(log, head, path)}"
    elif stayed:
        before = "undone" if state == "undone" else "redone"
        message = f"{steps} could not be {before} whole: {_format_paths(stayed)} stayed as it was"
    else:
        is_brought = len(still_brought(log, lost)) == len(lost)
        told = f"another process has changed what {steps} left: {_format_paths(lost)}"
        message = _changed_outside(_format_paths(lost), steps) if is_brought else told
    raise RefusedError(message, hint=_force_hint(state, lost), code=code, data=_reported_paths(lost))


def _rolled_back_since(log: UndoLog, sealed: Sequence[SealedStep]) -> StepId | None:
    """A step that ran beside these and was rolled back after they began (an undo of it would have been refused), or was
    rolled back only in part: no record has the objects that it removed.
    """
    since = min(_since(one) for one in sealed)
    until = max(max(one.head.last, one.head.looked_at) for one in sealed)
    beside = (
        head.id
        for head in log.heads.values()
        if head.rolled_back and head.acted > since and (head.conflicts or head.first < until)
    )
    return next(beside, None)


def _unknown(log: UndoLog, sealed: Sequence[SealedStep]) -> Iterator[tuple[StepHead, bytes, bytes]]:
    """Results that may still be written to: the step, the path, and the present path."""
    for one in sealed:
        for path, left in one.head.left:
            if left is not None and is_unknown(left):
                there = signature(log.directories, path)
                is_there = there is not None and there.key == left.key
                yield one.head, path, path if is_there else moved_to(log, log.directories, one, path, left) or path


def _why_unknown(log: UndoLog, head: StepHead, path: bytes) -> str:
    if path in dict(head.late):
        return "a later step wrote to it too"
    left, now = dict(head.left)[path], signature(log.directories, path)
    if left is None or now is None or now.key != left.key:
        return "while a process could still write to it, another one removed or replaced it"
    return "a process could still write to it when the keeper was killed"


def _refuse_writers(log: UndoLog, sealed: Sequence[SealedStep]) -> None:
    """Refuse to undo a step that opened descriptors which are still written to: writing would go on after the undo."""
    written = {record.path for one in sealed for record in one.records if isinstance(record, Content)}
    # A result of one of these may be what a denied step still writes to.
    waiting = {was.key for each in log.unsettled.values() for was in each.values()}
    written |= {path for one in sealed for path, left in one.head.left if left and left.key in waiting}
    written |= {now for _, _, now in _unknown(log, sealed)}
    for path in _lost_and_written(log, sealed):
        raise _still_written(path)
    for path in sorted(written):
        try:
            place = log.directories.place(path)
            fd = os.open(place.name, _LOOK, dir_fd=place.dir_fd)
        except OSError:
            continue  # it is not there, and that has been judged
        try:
            is_written = stat.S_ISREG(os.fstat(fd).st_mode) and writer_of(fd) is WriterStatus.SOME
        finally:
            os.close(fd)
        if is_written:
            raise _still_written(path)


def _lost_and_written(log: UndoLog, sealed: Sequence[SealedStep]) -> Iterator[bytes]:
    """The names that one of the steps took from an object that one of them had written to, while a process still has it
    open for writing: it lives on under another name, or is in the log.
    """
    keys = {key for one in sealed for key in log.unsettled_others.get(one.head.id, ())}
    if not keys:
        return
    records = ordered_records(sealed)
    survivors = find_survivors(log, log.directories, records)
    yield from (lost.path for lost in survivors if lost.is_changed and lost.now.key in keys)
    written = {record.identity for record in records if isinstance(record, Content)}
    for path, keeping, object_ in lost_names(records):
        there = find_in_log(log, keeping.number) if keeping.how in KEPT and object_ in written else None
        if there is not None and there.now.key in keys:
            yield path


def _still_written(path: bytes) -> RefusedError:
    return RefusedError(
        f"a process still has {display(path)} open for writing",
        hint="end it first; --force goes ahead with what it has written so far",
        code="still_written",
    )


def _refuse_leases(log: UndoLog, sealed: Sequence[SealedStep]) -> None:
    """Refuse files that cannot be written to at once: a lease would stop the reversal in the middle, and all wait."""
    records = ordered_records(sealed)
    written = {record.identity for record in records if isinstance(record, Content)}
    places = objects_by_path(records) if written else {}
    for path in sorted(path for path, object_ in places.items() if object_ in written):
        try:
            place = log.directories.place(path)
            if stat.S_ISREG(os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False).st_mode):
                os.close(os.open(place.name, _WRITE, dir_fd=place.dir_fd))
        except BlockingIOError:
            raise RefusedError(leased_reason(path), hint=TRY_AGAIN, code="leased") from None
        except OSError:
            continue  # as with `_refuse_writers`
