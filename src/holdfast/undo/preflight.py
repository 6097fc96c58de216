"""The directories that a reversal works in, and those that it removes: looked at before it touches anything.

A directory that somebody has moved away, or has put something into, would stop the reversal in the middle. That is of
no path that a step has left something at, so what the steps left does not tell of it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.undo.records import Made, Make, Put
from holdfast.undo.signatures import place_in
from holdfast.undo.traces import grounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.files.handle import Identity
    from holdfast.undo.directories import Directories
    from holdfast.undo.log import UndoLog
    from holdfast.undo.records import Mutation

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def missing(directories: Directories, records: Sequence[Mutation]) -> Iterator[bytes]:
    """The directories in which the records changed names, and that are not there any more. Where that cannot be seen,
    as somebody has closed a directory, nothing is said.
    """
    for path in sorted(grounds(records)):
        try:
            place = place_in(directories, path)
            is_there = stat.S_ISDIR(os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False).st_mode)
        except PermissionError:
            continue
        except OSError:
            is_there = False
        if not is_there:
            yield path


def added(log: UndoLog, records: Sequence[Mutation], places: Mapping[bytes, Identity | None]) -> Iterator[bytes]:
    """What there is in the directories that the records put there, and that they did not leave there themselves.

    Edits that are not to be in the way (the policy ``warn``) are left out. ``places`` are the `whereabouts`.
    """
    warned = {path for barrier in log.barriers.records if not barrier.blocks for path in barrier.paths}
    if b"" in warned:
        return
    brought = set(_brought(records))
    for path, object_ in places.items():
        if object_ not in brought:
            continue
        for name in _names(log.directories, path):
            inner = path + b"/" + name
            if places.get(inner) is None and inner not in warned:
                yield inner


def _brought(records: Sequence[Mutation]) -> Iterator[Identity]:
    """The directories that were not there before."""
    makes = {record.seq for record in records if isinstance(record, Make) and record.type == "d"}
    for record in records:
        if (isinstance(record, Made) and record.make in makes) or (isinstance(record, Put) and record.type == "d"):
            yield record.identity


def _names(directories: Directories, path: bytes) -> list[bytes]:
    """What is in the directory; nothing where it cannot be listed, which says nothing of it."""
    try:
        place = directories.place(path)
        fd = os.open(place.name, _LIST, dir_fd=place.dir_fd)
    except OSError:
        return []
    try:
        return [os.fsencode(name) for name in os.listdir(fd)]
    finally:
        os.close(fd)
