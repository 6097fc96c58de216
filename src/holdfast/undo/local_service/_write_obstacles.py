"""Changes that the system does not permit this user, found before a reversal changes anything.

The reversal would skip them, and they could no longer be reversed after the rest.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux import syscalls
from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.metadata import proc_path
from holdfast.files.write.refusals import cause_at
from holdfast.model.errors import RefusedError
from holdfast.model.message_text import named_steps
from holdfast.model.paths import display
from holdfast.undo.journal.records import Content, Made, Make, Meta, Move, PutBack
from holdfast.undo.journal.step_footprint import objects_by_path, renamed_directories
from holdfast.undo.reversal.durable_reversal import ordered_records
from holdfast.undo.reversal.reversal_context import OBJECT
from holdfast.undo.tree.signatures import place_at
from holdfast.undo.whole_writes import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Mutation
    from holdfast.undo.journal.step_file import SealedStep
    from holdfast.undo.log import UndoLog

_MAX_SHOWN = 5
_MAX_REPORTED = 1000


def refuse_obstacles(log: UndoLog, sealed: Sequence[SealedStep]) -> None:
    """Raise `RefusedError` (``unwritable``) with the paths that a reversal of the steps must change and cannot, each
    with its cause and remedy.

    Obstacles that are not found here (a sticky directory, a rule of a security module) are skipped by the reversal.
    """
    found = dict(_obstacles(log, sealed))
    if not found:
        return
    done = "undone" if sealed[0].head.state == "done" else "redone"
    shown = [f"{display(path) or '.'}: {cause}" for path, cause in sorted(found.items())[:_MAX_SHOWN]]
    if len(found) > _MAX_SHOWN:
        shown.append(f"and {len(found) - _MAX_SHOWN} more")
    raise RefusedError(
        f"{named_steps(one.head.id for one in sealed)} cannot be {done}: {'; '.join(shown)}",
        hint="nothing was changed; --force goes ahead with the rest, and keeps aside what belongs there",
        code="unwritable",
        data={"paths": [display(path) for path in sorted(found)[:_MAX_REPORTED]]},
    )


def _obstacles(log: UndoLog, sealed: Sequence[SealedStep]) -> Iterator[tuple[bytes, str]]:
    """The paths that cannot be changed, with the reasons, including directories whose entries cannot be changed."""
    records, now = ordered_records(sealed), log.recorder.aliases.now
    root = log.directories.directory(b"")
    described = {now(record.identity) for record in records if isinstance(record, Meta)}
    written = {now(record.identity) for record in records if isinstance(record, Content)}
    brought = {now(object_) for object_ in _brought_directories(records)}
    others = written | described | brought
    directories = renamed_directories(records)
    places: dict[bytes, Identity | None] = dict.fromkeys(directories)
    places |= objects_by_path(records)
    for path, object_ in places.items():
        has_entries = path in directories
        if object_ is None and not has_entries:
            continue
        try:
            place = place_at(log.directories, path)
            if object_ is not None and not has_entries and now(object_) not in others:
                # Only its name changes, so the directory's permissions decide. There may be very many of these.
                if syscalls.protection(place.name, place.dir_fd) and (cause := cause_at(root, path)) is not None:
                    yield path, cause
                continue
            fd = os.open(place.name, OBJECT, dir_fd=place.dir_fd)
        except OSError:
            continue  # it is missing, which other code checks
        try:
            there = identity(fd, b"")
            if object_ is not None and there != now(object_):
                continue
            # A reversal opens directories that the user or a step has closed to their owner.
            is_closed = os.fstat(fd).st_uid != os.geteuid() and there not in described
            cause = cause_at(root, path or b".", has_entries=has_entries and is_closed)
            if cause is None and there in brought and syscalls.mount_id(fd) != syscalls.mount_id(place.dir_fd):
                cause = f"something is mounted there: `umount {display(path)}` first"
            if cause is None and there in written:
                cause = _opening_cause(fd, is_closed)
        finally:
            os.close(fd)
        if cause is not None:
            yield path, cause


def _brought_directories(records: Sequence[Mutation]) -> Iterator[Identity]:
    """The directories that got a name."""
    makes = {record.seq for record in records if isinstance(record, Make) and record.type == "d"}
    for record in records:
        if isinstance(record, Made):
            if record.make in makes:
                yield record.identity
        elif isinstance(record, (Move, PutBack)) and record.type == "d":
            yield record.identity


def _opening_cause(fd: int, is_closed: bool) -> str | None:
    """Why the file cannot be opened for writing; None if it can, or only a lease prevents it."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    try:
        os.close(os.open(proc_path(fd), os.O_WRONLY | AT_ONCE))
    except OSError as error:
        if error.errno == errno.ETXTBSY:
            return "a process runs it as its program; end it first"
        if error.errno == errno.EACCES and is_closed:
            return "it may not be written: it is another user's"
    return None
