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
from holdfast.undo.completion.late_writes import settle
from holdfast.undo.completion.step_sealer import damaged
from holdfast.undo.foreign_edits.detection import changed, changed_elsewhere
from holdfast.undo.journal.records import OURSELVES, Content, Made, Meta
from holdfast.undo.journal.step_footprint import first_contacts, reach, whereabouts
from holdfast.undo.leased_writes import AT_ONCE, TRY_AGAIN, leased
from holdfast.undo.local_service._content_match import adopt_matching
from holdfast.undo.local_service._step_dependencies import refuse_overlaps
from holdfast.undo.recovery.interrupted_reversals import finish_failed
from holdfast.undo.reversal.durable_reversal import ReversalResult, ordered_records, reverse
from holdfast.undo.tree.signatures import is_left, is_unknown, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Outside, Signature, StepId
    from holdfast.undo.journal.step_file import Head, Sealed, State
    from holdfast.undo.log import UndoLog

_LOOK = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | AT_ONCE
_SHOWN = 5
_TOLD = 1000


def undo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> ReversalResult:
    """Reverse finished steps, all of them or none. Mutations by others wait meanwhile.

    Raises `NotFoundError`; `RefusedError` if a later step or another process has changed the same since, or a step is
    not protected (``force`` goes ahead: whatever is lost can be had back by redo); `IntegrityError` if a preimage is
    missing or damaged.
    """
    return _change(log, list(steps), "done", force=force)


def redo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> ReversalResult:
    """Bring undone steps forward again. As `undo` in everything else."""
    return _change(log, list(steps), "undone", force=force)


def _change(log: UndoLog, steps: Sequence[StepId], state: str, *, force: bool) -> ReversalResult:
    with log.recorder.gate:
        for finished in finish_failed(log):
            if set(finished.steps) == set(steps) and all(log.heads[step].state != state for step in steps):
                return finished  # what was asked for again
        settle(log)
        log.directories.close()  # (what a change before this one has opened may lie elsewhere by now)
        sealed = adopt_matching(log, _read(log, steps, state))
        if not force:
            _refuse(log, sealed)
        for one in sealed:
            if bad := damaged(log.preimages, one.head, one.records):
                raise IntegrityError(
                    f"step {one.head.id} cannot be reversed: {len(bad)} of its preimages are missing or damaged",
                    hint="the other steps are not affected",
                )
        _refuse_leases(log, sealed)
        if force:
            sealed = _note_what_is_crossed(log, sealed)
        return reverse(log, sealed, forward=state == "undone")


def foresee(log: UndoLog, steps: Iterable[StepId], *, forward: bool) -> None:
    """Raise what `undo` (``forward``: `redo`) would refuse of these steps as things are now. Changes nothing.

    But for what shows only in the doing: damage, and files that a process has a lease on.
    """
    with log.recorder.gate:
        settle(log)
        log.directories.close()
        _refuse(log, adopt_matching(log, _read(log, steps, "undone" if forward else "done"), keep=False))


def _read(log: UndoLog, steps: Iterable[StepId], state: str) -> list[Sealed]:
    sealed = [log.read(step) for step in steps]
    for one in sealed:
        if one.head.state != state:
            word = "undone already" if state == "done" else "not undone"
            raise NotFoundError(f"step {one.head.id} is {word}")
    return sealed


def _refuse(log: UndoLog, sealed: Sequence[Sealed]) -> None:
    _refuse_unprotected(sealed)
    refuse_overlaps(log, [one.head.id for one in sealed])
    _refuse_writers(log, sealed)
    lost = list(dict.fromkeys(path for path, _ in changed(log, sealed)))
    _refuse_barriers(log, sealed, frozenset(lost))
    _refuse_strangers(log, sealed, lost)


def _note_what_is_crossed(log: UndoLog, sealed: Sequence[Sealed]) -> list[Sealed]:
    """What others have changed is overwritten, and is back if the reversal is reversed: then it is theirs again."""
    lost = {path for path, _ in changed(log, sealed)}
    noted: list[Sealed] = []
    for one in sealed:
        head = one.head
        found = log.barriers.found(head.id, _since(one))
        mine = [
            (head.state, path)
            for path, left in head.left
            if path in lost or (not found.isdisjoint((path, b"")) and not is_left(log.directories, path, left))
        ]
        if mine:
            known = msgspec.structs.replace(head, crossed=tuple(sorted({*head.crossed, *mine})))
            one = msgspec.structs.replace(one, head=known)
            log.write(one)
        noted.append(one)
    return noted


def _refuse_unprotected(sealed: Sequence[Sealed]) -> None:
    for one in sealed:
        if one.head.protected:
            done = "undone" if one.head.state == "done" else "redone"
            raise RefusedError(
                f"step {one.head.id} cannot be {done} whole: {one.head.protected}",
                hint="--force brings back what was kept",
            )


def _refuse_barriers(log: UndoLog, sealed: Sequence[Sealed], lost: Set[bytes]) -> None:
    left = {path for one in sealed for path, _ in one.head.left}

    def is_back(own: Mapping[bytes, Signature | None], path: bytes, is_found: bool) -> bool:
        if is_found:
            # That step may have been undone: what it gave back is the edit.
            return path not in own or is_left(log.directories, path, own[path])
        if is_unknown(own.get(path)):
            # No step came upon the edit, as nothing was known of the path: one that gave it back does not vouch for it.
            return False
        if path in left:
            return path not in lost
        return path not in lost and signature(log.directories, path) is None  # it came and went

    for one in sealed:
        back = partial(is_back, dict(one.head.left))
        if (barrier := _crossed(log, one, back)) is not None:
            what = _listed(barrier.paths) if b"" not in barrier.paths else "the workspace"
            who = "a restore or an undo" if barrier.who == OURSELVES else barrier.who or "somebody else"
            raise RefusedError(
                f"{who} has changed {what} since step {one.head.id}",
                hint=_by_force(one.head.state),
                code="barrier",
                data=_told([*lost, *barrier.paths]),
            )


def _crossed(log: UndoLog, one: Sealed, is_back: Callable[[bytes, bool], bool]) -> Outside | None:
    if not log.barriers.records:
        return None
    came = first_contacts(one.records, log.recorder.aliases)
    elsewhere = {*changed_elsewhere(log, one), *_edited_since(log, one)}
    return log.barriers.crossed(one.head.id, _since(one), reach(one.records), is_back, came, elsewhere)


def _edited_since(log: UndoLog, one: Sealed) -> Iterator[Identity]:
    """What the step wrote to, described or made, and outsiders edited after that, by whatever name, if it is not as the
    step left it. (Whatever later steps left there, or gave back, has the edit in it.)
    """
    objects = log.barriers.edited_objects(_since(one))
    now, own = log.recorder.aliases.now, dict(one.head.left)
    began: dict[Identity, int] = {}
    for record in one.records if objects else ():
        if isinstance(record, Content | Meta | Made):
            began.setdefault(record.identity, record.seq)
    for path, object_ in whereabouts(one.records).items() if objects else ():
        if object_ is None or object_ not in began or now(object_) not in objects:
            continue
        # (Where a step beside it had moved it by its end, nothing is said of the path.)
        was = own.get(path)
        is_as_left = was is not None and is_left(log.directories, path, was)
        if not is_as_left and now(object_) in log.barriers.edited_objects(began[object_]):
            yield now(object_)


def _by_force(state: State) -> str:
    """The hint if steps in this state are not reversed for what another process has changed."""
    done, back = ("undoes", "redo") if state == "done" else ("redoes", "undo")
    return f"--force {done} it nevertheless; {back} gives their version back"


def _since(sealed: Sealed) -> int:
    """When a step came to where it is now."""
    return min((record.seq for record in sealed.records), default=sealed.head.first)


def _listed(paths: Sequence[bytes]) -> str:
    return ", ".join(display(path) for path in paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")


def _told(paths: Iterable[bytes]) -> dict[str, object]:
    return {"paths": [display(path) for path in sorted(set(paths))[:_TOLD]]}


def _refuse_strangers(log: UndoLog, sealed: Sequence[Sealed], lost: Sequence[bytes]) -> None:
    last = {path: one.head for one in sealed for path, _ in one.head.left}
    unsaid = [path for path in lost if path in last and is_unknown(dict(last[path].left)[path])]
    if unsaid:
        head = last[unsaid[0]]
        raise RefusedError(
            f"what step {head.id} left in {_listed(unsaid)} is not known: {_why_unknown(log, head, unsaid[0])}",
            hint=_by_force(sealed[0].head.state),
            code="barrier",
            data=_told(lost),
        )
    if lost:
        raise RefusedError(
            f"somebody else has changed what {named_steps(one.head.id for one in sealed)} left: {_listed(lost)}",
            hint=_by_force(sealed[0].head.state),
            code="barrier",
            data=_told(lost),
        )


def _why_unknown(log: UndoLog, head: Head, path: bytes) -> str:
    if path in dict(head.late):
        return "a later step wrote to it too"
    left, now = dict(head.left)[path], signature(log.directories, path)
    if left is None or now is None or now.key != left.key:
        return "while a process could still write to it, another one removed or replaced it"
    return "a process could still write to it when the keeper was killed"


def _refuse_writers(log: UndoLog, sealed: Sequence[Sealed]) -> None:
    """What is written through a descriptor that a step opened belongs to it, and would go on after its undo."""
    written = {record.path for one in sealed for record in one.records if isinstance(record, Content)}
    # (What one of these left may be what another one, that was denied, still writes to.)
    waiting = {was.key for each in log.unsettled.values() for was in each.values()}
    written |= {path for one in sealed for path, left in one.head.left if left and left.key in waiting}
    written |= {path for one in sealed for path, left in one.head.left if is_unknown(left)}
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
            raise RefusedError(
                f"a process still has {display(path)} open for writing",
                hint="end it first; --force goes ahead with what it has written so far",
                code="still_written",
            )


def _refuse_leases(log: UndoLog, sealed: Sequence[Sealed]) -> None:
    """Refuse files that cannot be written to at once: a lease would stop the reversal in the middle, and all wait."""
    records = ordered_records(sealed)
    written = {record.identity for record in records if isinstance(record, Content)}
    for path in sorted(path for path, object_ in whereabouts(records).items() if object_ in written):
        try:
            place = log.directories.place(path)
            if stat.S_ISREG(os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False).st_mode):
                os.close(os.open(place.name, _WRITE, dir_fd=place.dir_fd))
        except BlockingIOError:
            raise RefusedError(leased(path), hint=TRY_AGAIN, code="leased") from None
        except OSError:
            continue  # as with `_refuse_writers`
