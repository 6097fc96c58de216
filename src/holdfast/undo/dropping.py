"""What a step recorded for nothing: files that it opened for writing, or was going to change, and left as they were.

A file is as it was if its size, its mtime and its ctime are: whatever changes content or metadata sets the ctime. That
was asked only of files whose ctime had been at rest for longer than the clock of a file system is coarse, and a file
that somebody still has open for writing may yet change.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.handle import identity
from holdfast.files.lease import Writer, writer_of
from holdfast.undo.records import Content, Meta, Touch
from holdfast.undo.traces import whereabouts

if TYPE_CHECKING:
    from holdfast.files.handle import Identity
    from holdfast.undo.directories import Directories
    from holdfast.undo.log import UndoLog
    from holdfast.undo.steps import OpenStep

_REST = 20_000_000
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def remember(step: OpenStep, object_: Identity, found: os.stat_result, now: int) -> None:
    """Note what the object looks like before the step changes it, at ``now`` (ns)."""
    if now - found.st_ctime_ns > _REST:
        step.seen.setdefault(object_, (found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def drop_unchanged(log: UndoLog, step: OpenStep) -> bool:
    """Take out of a step, which is closed, what it recorded for nothing, with its preimages.

    False if nothing is left that it did.
    """
    if step.seen:
        places = {object_: path for path, object_ in whereabouts(step.records).items() if object_ is not None}
        with log.looking() as directories:
            same = {
                object_
                for object_, before in step.seen.items()
                if object_ in places and _is_as_before(directories, places[object_], object_, before)
            }
        for record in step.records:
            if isinstance(record, Content) and record.identity in same and record.keeping.number:
                log.preimages.discard(record.keeping.number)
        step.records[:] = [
            record for record in step.records if not (isinstance(record, Content | Meta) and record.identity in same)
        ]
    return any(not isinstance(record, Touch) for record in step.records)


def _is_as_before(directories: Directories, path: bytes, object_: Identity, before: tuple[int, int, int]) -> bool:
    if not path:
        return False
    try:
        place = directories.place(path)
        found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
        if (found.st_size, found.st_mtime_ns, found.st_ctime_ns) != before:
            return False
        if stat.S_ISFIFO(found.st_mode):
            return False  # somebody may have it open, and nobody can be asked
        if not stat.S_ISREG(found.st_mode):
            return identity(place.dir_fd, place.name) == object_
        fd = os.open(place.name, _READ, dir_fd=place.dir_fd)
        try:
            return identity(fd, b"") == object_ and writer_of(fd) is Writer.NONE
        finally:
            os.close(fd)
    except OSError:
        return False
