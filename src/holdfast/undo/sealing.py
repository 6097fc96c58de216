"""From an open step to a finished one: what it left is looked at, its preimages are summed up, the file is written."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.lease import Writer, writer_of
from holdfast.model.ids import Hasher
from holdfast.undo.records import Content, How, Keeping, Move, Put, Remove, Signature
from holdfast.undo.sealed import Head, Preimage, Sealed, State, Trouble
from holdfast.undo.traces import whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.files.handle import Identity
    from holdfast.undo.directories import Directories
    from holdfast.undo.log import UndoLog
    from holdfast.undo.preimages import Preimages
    from holdfast.undo.records import Mutation
    from holdfast.undo.steps import OpenStep

_CHUNK = 1 << 20
NOT_OURS = Signature(0, 0, 0, 0, 0)
"""Equal to nothing that is: somebody else had changed it before the step could be finished."""


def look(log: UndoLog, step: OpenStep, alive_until: int | None = None) -> tuple[tuple[bytes, Signature | None], ...]:
    """What the step left at each path that it touched, before anybody else changes it. See `seal`."""
    places = whereabouts(step.records)
    with log.looking() as directories:
        return tuple((path, signature(directories, path, alive_until)) for path in sorted(places))


def seal(
    log: UndoLog,
    step: OpenStep,
    *,
    state: State,
    ended_at: int,
    exit_code: int | None,
    before: Head | None = None,
    alive_until: int | None = None,
    conflicts: Iterable[Trouble] = (),
    left: tuple[tuple[bytes, Signature | None], ...] | None = None,
) -> Head:
    """Write the step, which the recorder has closed, as a finished one.

    ``before`` is what was said of it if it was finished before. ``alive_until`` is the last moment (ns) at which its
    keeper can have changed anything, if it was killed: what was changed later is not taken for the step's.
    ``conflicts`` are what could not be reversed on the way to ``state``. ``left`` is what `look` found; else it is
    looked at now.
    """
    step.copied += _break_off_what_is_written(log.preimages, step.records)
    if left is None:
        left = look(log, step, alive_until)
    preimages = tuple(_preimages(log.preimages, step.records))
    begin = step.begin
    last = step.records[-1].seq if step.records else begin.seq
    head = Head(
        id=begin.step,
        kind=begin.kind,
        state=state,
        first=before.first if before else begin.seq,
        last=before.last if before else last,
        acted=last,
        run=begin.run,
        command=begin.command,
        directory=begin.directory,
        started_at=before.started_at if before else begin.at,
        ended_at=ended_at,
        exit_code=exit_code,
        protected=step.bare or (before.protected if before else ""),
        copied=step.copied,
        paths=len(left),
        left=left,
        preimages=preimages,
        conflicts=tuple(conflicts),
        aliases=(*(before.aliases if before else ()), *step.aliases),
        parent=begin.parent,
    )
    log.write(Sealed(head, tuple(step.records)))
    return head


def signature(directories: Directories, path: bytes, alive_until: int | None = None) -> Signature | None:
    """What the path looks like now; None if nothing is there."""
    try:
        if path:
            place = directories.place(path)
            found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
        else:
            found = os.fstat(directories.directory(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return NOT_OURS  # a link on the way
    if alive_until is not None and found.st_ctime_ns > alive_until:
        return NOT_OURS
    # The size and the times of a directory are those of its names, which other steps change too; those of a pipe are
    # those of what goes through it.
    if stat.S_ISDIR(found.st_mode) or stat.S_ISFIFO(found.st_mode):
        return Signature(found.st_ino, found.st_mode, 0, 0, 0)
    # Another name that comes or goes, in the log too, changes the ctime.
    ctime = found.st_ctime_ns if found.st_nlink == 1 else 0
    return Signature(found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, ctime)


def is_same(left: Signature | None, now: Signature | None) -> bool:
    """Whether nobody has changed a path since a step left it. The ctime counts where both have one."""
    if left is None or now is None or not left.ctime or not now.ctime:
        return (left and msgspec.structs.replace(left, ctime=0)) == (now and msgspec.structs.replace(now, ctime=0))
    return left == now


def keepings(records: Iterable[Mutation]) -> Iterator[tuple[Keeping, Identity]]:
    """What each record keeps, and of which object."""
    for record in records:
        match record:
            case Remove() | Content():
                yield record.keeping, record.identity
            case Move(replaced=lost) if lost is not None:
                yield lost.keeping, lost.identity
            case _:
                pass


def numbers(records: Iterable[Mutation]) -> set[int]:
    """The numbers of the preimages that may be in the log for the records."""
    return {keeping.number for keeping, _ in keepings(records) if keeping.number}


def _preimages(preimages: Preimages, records: Iterable[Mutation]) -> Iterator[Preimage]:
    for keeping, _ in keepings(records):
        if keeping.number and (found := preimages.look(keeping.number)) is not None:
            copied = keeping.how is How.COPIED
            check = _sum_up(preimages, keeping.number) if copied else None
            yield Preimage(keeping.number, found.st_blocks * 512, check)


def _break_off_what_is_written(preimages: Preimages, records: Iterable[Mutation]) -> int:
    """Copy the files in the log that somebody still writes to, and that have no other name; returns the bytes."""
    copied = 0
    for keeping, _ in keepings(records):
        if keeping.how not in (How.MOVED, How.LINKED):
            continue
        found = preimages.look(keeping.number)
        if found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            try:
                fd = preimages.open(keeping.number)
            except PermissionError:
                continue  # nobody can be asked, nor could it be copied: its owner may not read it
            try:
                is_written = writer_of(fd) is Writer.SOME
            finally:
                os.close(fd)
            if is_written:
                copied += preimages.break_off(keeping.number)
    return copied


def _sum_up(preimages: Preimages, number: int) -> bytes:
    hasher = Hasher()
    fd = preimages.open(number)
    try:
        while piece := os.read(fd, _CHUNK):
            hasher.update(piece)
    finally:
        os.close(fd)
    return hasher.hash()


def damaged(preimages: Preimages, head: Head, records: Iterable[Mutation]) -> list[int]:
    """The numbers of the preimages that the step needs and that are missing, or are not what they were."""
    given_back = {record.number for record in records if isinstance(record, Put)}
    bad: list[int] = []
    for preimage in head.preimages:
        if preimage.number in given_back:
            continue
        if preimages.look(preimage.number) is None or (
            preimage.check is not None and _sum_up(preimages, preimage.number) != preimage.check
        ):
            bad.append(preimage.number)
    return bad
