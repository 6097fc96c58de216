"""From an open step to a finished one: its results are examined, its preimages are hashed, the file is written."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.file_lease import is_written
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.undo.completion.late_writes import filter_writable
from holdfast.undo.foreign_edits.other_links import find_in_log, find_survivors
from holdfast.undo.journal.records import KeepMethod, Move, PutBack, Remove
from holdfast.undo.journal.step_file import Preimage, SealedStep, State, StepConflict, StepHead
from holdfast.undo.journal.step_footprint import (
    DirectoryMoves,
    changed_before,
    filled_paths,
    kept_preimages,
    last_paths,
    objects_by_path,
    touched_before,
)
from holdfast.undo.tree.signatures import (
    NOT_OURS,
    content_through,
    is_unknown,
    place_at,
    signature,
    unknown_signature,
    with_hash,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.journal.records import Mutation, Signature, StepId
    from holdfast.undo.log import UndoLog
    from holdfast.undo.safeguards.open_step import OpenStep
    from holdfast.undo.tree.rooted_directories import Directories

_HASHED_BYTES = 32 << 20
"""Of all the files of one step that have several names."""


class StepRemains(NamedTuple):
    """The results of a step."""

    paths: tuple[tuple[bytes, Signature | None], ...]
    others: tuple[Signature, ...]
    """See `StepHead.others`."""
    edited: tuple[Identity, ...] = ()
    """See `StepHead.edited`."""


class ConcurrentSteps:
    """Several steps that are finished at once, by the records of all of them."""

    def __init__(self, records: Mapping[StepId, Sequence[Mutation]]) -> None:
        places = objects_by_path(sorted((one for each in records.values() for one in each), key=lambda one: one.seq))
        self.places = places
        """Which object they have left at each path."""
        self.now = {object_: path for path, object_ in places.items() if object_ is not None}
        """And where each object."""
        self._among = _overlapping({step: _span(each) or (0, 0) for step, each in records.items()})

    def is_alone(self, step: StepId) -> bool:
        """Whether no other of the steps acted between the first and the last record of this one. Overlapping steps are
        reversed together only, so the separate result of one never existed.
        """
        return step not in self._among


def _overlapping(spans: Mapping[StepId, tuple[int, int]]) -> frozenset[StepId]:
    found: set[StepId] = set()
    last, until = None, -1
    """The step that ends last, of the earlier ones."""
    for step, (first, end) in sorted(spans.items(), key=lambda span: span[1]):
        if last is not None and first <= until:
            found |= {last, step}
        if end > until:
            last, until = step, end
    return frozenset(found)


def find_remains(
    log: UndoLog,
    step: OpenStep,
    alive_until: int | None = None,
    foreign: Collection[bytes] = frozenset(),
    concurrent: ConcurrentSteps | None = None,
) -> StepRemains:
    """The step's result at each path that it touched. The gate is held, so that nothing changes it before. See
    `seal_step`.

    Files that are still written to through its descriptors, or others', are unknown
    (`holdfast.undo.completion.late_writes`). Another process has changed the paths ``foreign``. ``concurrent`` are
    all steps that are finished together, including this one: another of them may have moved or replaced its results.
    """
    places = objects_by_path(step.records)
    with log.open_directories() as directories:
        if concurrent is not None and concurrent.is_alone(step.id):
            ends = _final_objects(places, concurrent)
            for path in _brought_paths(directories, step, places):
                del ends[path]
        elif concurrent is not None:
            paths = _with_moved_paths(directories, step, places, concurrent.now)
            ends = {path: path for path in paths}
        else:
            step.renames_by_others = log.recorder.renames_by_others(step)
            if step.renames_by_others:
                now = {
                    object_: path
                    for path, object_ in objects_by_path(_records_with_renames(step)).items()
                    if object_ is not None
                }
                paths = _with_moved_paths(directories, step, places, now)
            else:
                paths = places.keys() - _brought_paths(directories, step, places)
            ends = {path: path for path in paths}
        found: dict[bytes, Signature | None] = {}
        absent: set[bytes] = set()
        for path, end in sorted(ends.items()):
            # Paths in a directory that the step has removed as well are not examined one by one.
            if end is None or end.rpartition(b"/")[0] in absent:
                found[path] = None
            else:
                found[path] = signature(directories, end, alive_until)
            if end is not None and found[path] is None:
                absent.add(end)
    found |= {path: NOT_OURS for path in foreign if found.get(path) is not None}
    unsettled = filter_writable(log, {path: left for path, left in found.items() if ends[path] == path})
    if unsettled:
        log.unsettled[step.id] = unsettled
        found |= {path: unknown_signature(left) for path, left in unsettled.items()}
    else:
        log.unsettled.pop(step.id, None)
    left = StepRemains(tuple(found.items()), _signatures_of_others(log, step, alive_until, foreign))
    # If a parent was moved since, an object that is missing here is not missing where that directory returns.
    taken = {record.path for record in step.records if isinstance(record, (Remove, Move))}
    log.recorder.last_state.forget_places(taken - found.keys())
    log.recorder.last_state.note(left.paths, left.others)
    log.recorder.last_state.forget(unsettled.items())
    if left.others:
        written = log.writers(False)
        keys = frozenset(one.key for one in left.others if written is None or one.inode in written)
        log.recorder.last_state.forget_objects(keys)
        log.unsettled_others[step.id] = keys
    else:
        log.unsettled_others.pop(step.id, None)
    return left


def _final_objects(places: Mapping[bytes, Identity | None], concurrent: ConcurrentSteps) -> dict[bytes, bytes | None]:
    """The present path of the object that a step left at each path; None if it left none there, though one exists."""

    def end(path: bytes, object_: Identity | None) -> bytes | None:
        if concurrent.places.get(path) == object_:
            return path
        # A missing object is restored by the step that has taken it.
        return None if object_ is None else concurrent.now.get(object_, path)

    return {path: end(path, object_) for path, object_ in places.items()}


def _with_moved_paths(
    directories: Directories,
    step: OpenStep,
    places: Mapping[bytes, Identity | None],
    now: Mapping[Identity, bytes],
) -> Iterable[bytes]:
    """The paths of the step's results, and the paths ``now`` to which concurrent steps have moved them.

    The step's own records do not show the moves: by them its result, or another object, is at the old path. Its later
    changes, by its descriptors or to an object recorded before, may be in no record at all.
    """
    mine = {
        record.identity: record.target if isinstance(record, Move) else record.path
        for record in step.records
        if isinstance(record, (PutBack, Move))
    }
    mine |= last_paths(step.records) | {object_: path for path, object_ in places.items() if object_ is not None}
    paths = places.keys() - _brought_paths(directories, step, places)
    for object_, old in mine.items():
        path = now.get(object_, old)
        if places.get(path) == object_ or (places.get(old) == object_ and _is_there(directories, old, object_)):
            continue
        if _is_there(directories, path, object_):
            paths.add(path)
    return paths


def _brought_paths(
    directories: Directories, step: OpenStep, places: Mapping[bytes, Identity | None]
) -> frozenset[bytes]:
    """Objects that the step removed before a move of a parent directory, and that exist now: they came with it."""
    moves = DirectoryMoves(_records_with_renames(step))
    if not moves:
        return frozenset()
    gone = {record.path: record.seq for record in step.records if isinstance(record, (Remove, Move))}
    return frozenset(
        path
        for path, seq in gone.items()
        if path in places and places[path] is None and moves.above(path) > seq and signature(directories, path)
    )


def _span(records: Sequence[Mutation]) -> tuple[int, int] | None:
    return (records[0].seq, records[-1].seq) if records else None


def _records_with_renames(step: OpenStep) -> Sequence[Mutation]:
    """The step's records, and the records by which others have moved the objects in them."""
    return (
        sorted([*step.records, *step.renames_by_others], key=lambda record: record.seq)
        if step.renames_by_others
        else step.records
    )


def _is_there(directories: Directories, path: bytes, object_: Identity) -> bool:
    try:
        place = directories.place(path)
        return identity(place.dir_fd, place.name) == object_
    except OSError:
        return False


def exclude_foreign_edits(log: UndoLog, step: OpenStep, left: StepRemains) -> StepRemains:
    """Remove others' edits, made after the step touched a path, from the step's results, though they existed at its
    end.

    Undo of the step would overwrite such an edit, and nothing at the end shows its author. An object that exists
    neither now nor before the step came and went.
    """
    with log.recorder.gate:
        told = _records_with_renames(step)
        edited = list(touched_before(told, step.edits.paths()))
        by_name = changed_before(step.records, step.edits.objects())
        if not edited and not by_name:
            return left
        paths, objects = {path for path, _ in edited}, {object_ for _, object_ in edited if object_ is not None}
        objects |= by_name
        places, new = objects_by_path(told), filled_paths(step.records)
        foreign = {
            path: found
            for path, found in left.paths
            if (path in paths or places.get(path) in objects)
            and not is_unknown(found)
            and not (found is None and (path in new or _is_met_elsewhere(path, edited, places)))
        }
        known = log.recorder.last_state
        for path, found in foreign.items():
            # A later step may have left another object there by now.
            if found is not None and known.last_signature(found.key) == found:
                known.forget([(path, found)])
                known.note([(path, NOT_OURS)])
        return left._replace(
            paths=tuple((path, NOT_OURS if path in foreign else found) for path, found in left.paths),
            edited=tuple(sorted(by_name)),
        )


def _is_met_elsewhere(
    path: bytes, edited: Iterable[tuple[bytes, Identity | None]], places: Mapping[bytes, Identity | None]
) -> bool:
    """Whether the step had left nothing at the path by then, or has moved the edited object there."""
    kept = set(places.values())
    objects = {object_ for where, object_ in edited if where == path} - {None}
    return all(object_ in kept and object_ != places.get(path) for object_ in objects)


def _signatures_of_others(
    log: UndoLog, step: OpenStep, alive_until: int | None, foreign: Collection[bytes]
) -> tuple[Signature, ...]:
    """`StepHead.others`."""
    found = {one.key: one for one in _known_others(log, step)}
    with log.open_directories() as directories:
        for one in find_survivors(log, directories, step.records, step.shared):
            if one.path in foreign or (alive_until is not None and one.now.ctime > alive_until):
                found.pop(one.now.key, None)
                found[NOT_OURS.key] = NOT_OURS
            else:
                found[one.now.key] = one.now
    return tuple(found.values())


def _known_others(log: UndoLog, step: OpenStep) -> Iterator[Signature]:
    own = preimage_numbers(step.records) if step.shared else ()
    for number in step.shared:
        there = find_in_log(log, number)
        # Another step may have put an object into the log whose last name in the tree this step removed: then no record
        # has this step's writes to it.
        if there is not None and (there.names > 1 or number not in own):
            yield there.now
    if step.detached:
        known = {path for head in log.heads.values() for path, left in head.left if left and left.key in step.detached}
        now = (signature(log.directories, path) for path in known)
        yield from (found for found in now if found is not None and found.key in step.detached)
    related = {object_ for keeping, object_ in kept_preimages(step.records) if keeping.how is KeepMethod.RELATED}
    for path, object_ in objects_by_path(step.records, others=True).items() if related else ():
        if object_ in related and (found := signature(log.directories, path)) is not None:
            yield found


def _with_hashes(log: UndoLog, step: OpenStep, left: StepRemains) -> StepRemains:
    """With the hashes of files that have several names, as far as they are still as they were left."""
    room = _HASHED_BYTES
    paths: list[tuple[bytes, Signature | None]] = []
    others: list[Signature] = []
    with log.open_directories() as directories:
        for path, found in left.paths:
            if found is not None and found.names > 1 and found.size <= room:
                found = with_hash(partial(place_at, directories, path), found)
                room -= found.size if found.check else 0
            paths.append((path, found))
        others_left = find_survivors(log, directories, step.records, step.shared) if left.others else ()
        places = {one.now.key: one.place for one in others_left}
        for found in left.others if places else ():
            if (place := places.get(found.key)) is not None and found.size <= room:
                found = with_hash(place, found)
                room -= found.size if found.check else 0
            others.append(found)
    if room == _HASHED_BYTES:
        return left
    with log.recorder.gate:
        log.recorder.last_state.add_hashes(paths, others)
    return left._replace(paths=tuple(paths), others=tuple(others) or left.others)


class StepEnd(NamedTuple):
    """How a step ended."""

    state: State
    ended_at: int
    exit_code: int | None
    conflicts: Sequence[StepConflict] = ()
    """Records that could not be reversed on the way to this state."""
    rolled_back: bool = False
    """It came to its state by a rollback, regardless of other steps since."""


def seal_step(
    log: UndoLog,
    step: OpenStep,
    end: StepEnd,
    *,
    before: StepHead | None = None,
    alive_until: int | None = None,
    left: StepRemains | None = None,
    spared: Iterable[bytes] = (),
    refused: Sequence[Mutation] = (),
) -> StepHead:
    """Write the step, which the recorder has closed, as a finished one.

    ``before`` is its head if it was finished before. ``alive_until`` is the last moment (ns) at which its killed keeper
    can have changed anything: later changes are not the step's. ``left`` is the result of `find_remains`; by default it
    is computed now. ``spared`` are the paths of `StepHead.spared`, ``refused`` as there.
    """
    preimages = tuple(_preimages(log.preimages, step, refused, log.recorder.max_step_bytes))
    if left is None:
        left = exclude_foreign_edits(log, step, find_remains(log, step, alive_until))
    left = _with_hashes(log, step, left)
    begin = step.begin
    first, last = step.span or _span(step.records) or (begin.seq, begin.seq)
    head = StepHead(
        id=begin.step,
        kind=begin.kind,
        state=end.state,
        first=before.first if before else first,
        last=before.last if before else last,
        looked_at=before.looked_at if before else step.looked_at,
        acted=last,
        run=begin.run,
        command=begin.command,
        directory=begin.directory,
        started_at=before.started_at if before else begin.at,
        ended_at=end.ended_at,
        exit_code=end.exit_code,
        protected=step.unprotected_reason or (before.protected if before else ""),
        copied=step.copied,
        paths=before.paths if before else len(step.transient.union(path for path, _ in left.paths)),
        left=left.paths,
        others=left.others,
        edited=before.edited if before else left.edited,
        preimages=preimages,
        conflicts=tuple(end.conflicts),
        rolled_back=end.rolled_back,
        aliases=(*(before.aliases if before else ()), *step.aliases),
        parent=begin.parent,
        crossed=tuple(one for one in before.crossed if one[0] != end.state) if before else (),
        late=before.late if before else (),
        kept_open=before.kept_open if before else (),
        open_until=_open_until(log, begin.step, before),
        absences=_absences(log, before, end, last) if before else (),
        begun=before.begun if before else begin.seq,
        spared=tuple(_signatures_at(log, spared)),
        refused=tuple(refused),
        # Without files and links there are no hashes to record.
        noted=all(found is None or stat.S_ISDIR(found.mode) for _, found in left.paths),
    )
    log.write(SealedStep(head, tuple(step.records)))
    return head


def _absences(log: UndoLog, before: StepHead, end: StepEnd, now: int) -> tuple[tuple[int, int], ...]:
    """`StepHead.absences`."""
    is_redone = before.state == "undone" and end.state == "done"
    if is_redone and any(before.acted < head.first < now for head in log.heads.values()):
        return (*before.absences, (before.acted, now))
    return before.absences


def _open_until(log: UndoLog, step: StepId, before: StepHead | None) -> tuple[tuple[bytes, int], ...]:
    """`StepHead.open_until`."""
    known = dict(before.open_until) if before else {}
    return tuple((known | dict.fromkeys(log.unsettled.get(step, ()), 0)).items())


def _signatures_at(log: UndoLog, paths: Iterable[bytes]) -> Iterator[tuple[bytes, Signature]]:
    """How it looks now at the paths, as far as there is anything."""
    with log.open_directories() as directories:
        for path in sorted(paths):
            if (found := signature(directories, path)) is not None:
                yield path, with_hash(partial(place_at, directories, path), found)


def preimage_numbers(records: Iterable[Mutation]) -> set[int]:
    """The numbers of the preimages that may be in the log for the records."""
    return {keeping.number for keeping, _ in kept_preimages(records) if keeping.number}


def _preimages(
    preimages: Preimages, step: OpenStep, refused: Sequence[Mutation], most_summed: int
) -> Iterator[Preimage]:
    """The preimages that the step needs. A kept file that has no other name and that a process still writes to is
    copied.

    More than ``most_summed`` bytes are not hashed: a sparse file may have a size that takes days.
    """
    for keeping, _ in kept_preimages([*step.records, *refused]):
        number, how = keeping.number, keeping.how
        found = preimages.metadata_of(number) if number else None
        if found is None:
            continue
        is_kept_itself = how is KeepMethod.MOVED or how is KeepMethod.LINKED
        if is_kept_itself and found.st_nlink == 1 and stat.S_ISREG(found.st_mode) and _is_written(preimages, number):
            step.note_copied(preimages.break_off(number))
            found = preimages.metadata_of(number) or found
        is_summed = how is KeepMethod.COPIED and found.st_size <= most_summed
        yield Preimage(number, found.st_blocks * 512, _sum_up(preimages, number) if is_summed else None)


def _is_written(preimages: Preimages, number: int) -> bool:
    try:
        fd = preimages.open(number)
    except PermissionError:
        return False  # no lease shows its writers, and copying fails: its owner may not read it
    try:
        return is_written(fd)
    finally:
        os.close(fd)


def _sum_up(preimages: Preimages, number: int) -> bytes:
    fd = preimages.open(number)
    try:
        return content_through(fd)
    finally:
        os.close(fd)


def damaged_preimages(preimages: Preimages, head: StepHead, records: Iterable[Mutation]) -> list[int]:
    """The numbers of preimages that the step needs and that are missing or damaged."""
    given_back = {record.number for record in records if isinstance(record, PutBack)}
    bad: list[int] = []
    for preimage in head.preimages:
        if preimage.number in given_back:
            continue
        if preimages.metadata_of(preimage.number) is None or (
            preimage.check is not None and _sum_up(preimages, preimage.number) != preimage.check
        ):
            bad.append(preimage.number)
    return bad
