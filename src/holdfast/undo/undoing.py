"""Undo and redo of finished steps: whether they may be, and carrying it out so that it survives being killed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.paths import display
from holdfast.undo.records import Reverse, Reversed
from holdfast.undo.reversal import Conflict, Reversal
from holdfast.undo.sealing import damaged, is_same, numbers, seal, signature
from holdfast.undo.traces import reach, whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.files.handle import Identity
    from holdfast.undo.log import UndoLog
    from holdfast.undo.records import Mutation, Signature, StepId
    from holdfast.undo.sealed import Head, Sealed
    from holdfast.undo.traces import Reach

_SHOWN = 5


class Undone(NamedTuple):
    """What an undo or a redo did."""

    steps: tuple[StepId, ...]
    paths: int
    """How many operations were reversed."""
    conflicts: tuple[Conflict, ...]
    """What was left as it is; not empty only if it was forced, or in a recovery."""


def undo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> Undone:
    """Reverse finished steps, all of them or none. Mutations by others wait meanwhile.

    Raises `NotFoundError`; `RefusedError` if a later step or somebody else has changed the same since, or a step is not
    protected (``force`` goes ahead: whatever is lost can be had back by redo); `IntegrityError` if a preimage is
    missing or damaged.
    """
    return _change(log, list(steps), "done", force=force)


def redo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> Undone:
    """Bring undone steps forward again. As `undo` in everything else."""
    return _change(log, list(steps), "undone", force=force)


def _change(log: UndoLog, steps: Sequence[StepId], state: str, *, force: bool) -> Undone:
    with log.recorder.gate:
        sealed = [log.read(step) for step in steps]
        for one in sealed:
            if one.head.state != state and one.head.state != "partly":
                word = "undone already" if state == "done" else "not undone"
                raise NotFoundError(f"step {one.head.id} is {word}")
        if not force:
            _refuse_unprotected(sealed)
            _refuse_overlaps(log, sealed)
            _refuse_strangers(log, sealed)
        for one in sealed:
            if bad := damaged(log.preimages, one.head, one.records):
                raise IntegrityError(
                    f"step {one.head.id} cannot be reversed: {len(bad)} of its preimages are missing or damaged",
                    hint="the other steps are not affected",
                )
        return reverse(log, sealed, forward=state == "undone")


def reverse(
    log: UndoLog, sealed: Sequence[Sealed], *, forward: bool = False, theirs: frozenset[Identity] = frozenset()
) -> Undone:
    """Reverse finished steps without asking whether they may be; what conflicts is left and reported."""
    note = Reverse(log.recorder.next_seq(), tuple(one.head.id for one in sealed), forward, log.clock.now() * 1000)
    log.recorder.note(note)
    for one in sealed:
        head = one.head
        log.recorder.begin(head.id, head.kind, run=head.run, command=head.command, directory=head.directory)
    return carry_out(log, sealed, note, theirs=theirs)


def carry_out(
    log: UndoLog,
    sealed: Sequence[Sealed],
    note: Reverse,
    *,
    start: int | None = None,
    theirs: frozenset[Identity] = frozenset(),
) -> Undone:
    """Reverse the records of the steps, which are open in the recorder again, from position ``start``; then finish
    them.
    """
    records: list[Mutation] = sorted(
        (record for one in sealed for record in one.records), key=lambda record: record.seq
    )

    def before(position: int) -> None:
        log.recorder.note(Reversed(log.recorder.next_seq(), note.seq, position))

    log.directories.close()
    reversal = Reversal(log.recorder, log.preimages, log.directories, theirs)
    reversal.run(records, len(records) - 1 if start is None else start, before)
    for one in sealed:
        head = one.head
        opened = log.recorder.end(head.id, head.exit_code)
        state = "done" if note.forward else "undone"
        seal(log, opened, state=state, ended_at=head.ended_at, exit_code=head.exit_code, before=head)
        for number in numbers(one.records) - numbers(opened.records):
            log.preimages.discard(number)
    if not log.recorder.open_steps:
        log.journal.restart()
    return Undone(tuple(one.head.id for one in sealed), reversal.paths, tuple(reversal.conflicts))


def _refuse_unprotected(sealed: Sequence[Sealed]) -> None:
    for one in sealed:
        if one.head.protected:
            raise RefusedError(
                f"step {one.head.id} cannot be undone whole: {one.head.protected}",
                hint="--force brings back what was kept",
            )


def _refuse_overlaps(log: UndoLog, sealed: Sequence[Sealed]) -> None:
    chosen = {one.head.id for one in sealed}
    ours = [(one.head, reach(one.records)) for one in sealed]
    for other in _others(log, chosen):
        mine = [(head, its) for head, its in ours if _is_in_the_way(head, other)]
        theirs = other.reach() if mine else None
        for head, its in mine:
            if theirs is not None and (at := its.meets(theirs)) is not None:
                order = "redo" if other.state == "undone" else "undo"
                raise RefusedError(
                    f"step {head.id} cannot be reversed alone: step {other.id} has to do with {display(at)} too",
                    hint=f"{order} step {other.id} first, or both together",
                )


class _Other(NamedTuple):
    id: StepId
    state: str
    first: int
    last: float
    reach: Callable[[], Reach]


def _others(log: UndoLog, chosen: set[StepId]) -> Iterator[_Other]:
    for head in log.heads.values():
        if head.id not in chosen:
            yield _Other(head.id, head.state, head.first, head.last, partial(_reach_of, log, head.id))
    for step in log.recorder.open_steps:
        if step.id not in chosen:
            yield _Other(step.id, "open", step.begin.seq, float("inf"), partial(reach, step.records))


def _reach_of(log: UndoLog, step: StepId) -> Reach:
    return reach(log.read(step).records)


def _is_in_the_way(head: Head, other: _Other) -> bool:
    if other.state != "undone":
        return other.last > head.first
    # What was undone and came before has to be there again before this one can follow.
    return head.state == "undone" and other.first < head.first


def _refuse_strangers(log: UndoLog, sealed: Sequence[Sealed]) -> None:
    newest: dict[bytes, Signature | None] = {}
    objects: dict[int, Signature] = {}
    for head in sorted(log.heads.values(), key=lambda head: head.acted):
        newest.update(head.left)
        # A later step may have changed the same object by another of its names.
        objects.update({left.inode: left for _, left in head.left if left is not None})
    lost: list[bytes] = []
    for one in sealed:
        lost += [
            path
            for path in whereabouts(one.records)
            if path in newest
            and not is_same((at := newest[path]) and objects[at.inode], signature(log.directories, path))
        ]
    if lost:
        shown = ", ".join(display(path) for path in lost[:_SHOWN]) + (", …" if len(lost) > _SHOWN else "")
        raise RefusedError(
            f"somebody else has changed what step {sealed[-1].head.id} left: {shown}",
            hint="--force undoes it nevertheless; redo gives their version back",
            code="barrier",
        )
