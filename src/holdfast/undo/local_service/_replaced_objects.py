"""What a reversal of steps will leave alone: paths at which another process has put, or removed, an object.

A reversal finds this out record by record (`holdfast.undo.reversal`). A dry run compares only where the steps left
their objects with what is there now.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.model.paths import parents
from holdfast.undo.foreign_edits.detection import changed_paths, missing_directories, new_directories
from holdfast.undo.journal.records import Made, Remove
from holdfast.undo.journal.step_footprint import objects_by_path
from holdfast.undo.reversal.durable_reversal import ordered_records
from holdfast.undo.reversal.reversal_context import ELSE, NO_DIRECTORY, NOT_THERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.undo.journal.step_file import SealedStep
    from holdfast.undo.log import UndoLog


def find_replaced(log: UndoLog, sealed: Sequence[SealedStep]) -> dict[bytes, str]:
    """The paths, with the reasons that the reversal will give. The gate is held."""
    records = ordered_records(sealed)
    places, now = objects_by_path(records), log.recorder.aliases.now
    made = {record.identity for record in records if isinstance(record, Made)}
    removed = {record.path for record in records if isinstance(record, Remove) and record.type == "d"}
    brought = set(new_directories(records))
    missing = frozenset(missing_directories(log.directories, records))
    found: dict[bytes, str] = {}
    for path in places if missing else ():
        if not missing.isdisjoint(parents(path)):
            found[path] = NO_DIRECTORY
    for path in dict.fromkeys(path for path, _ in changed_paths(log, sealed)):
        object_ = places.get(path)
        try:
            place = log.directories.place(path)
            is_directory = stat.S_ISDIR(os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False).st_mode)
            there = identity(place.dir_fd, place.name)
        except OSError:
            if path in places and object_ is not None and object_ not in made:
                found.setdefault(path, NOT_THERE)
            continue
        if object_ is not None and there == now(object_):
            continue  # it was only edited: that is overwritten
        if path in places and not (path in removed and is_directory):
            found[path] = ELSE
        # It keeps the directories that the steps have made.
        found |= dict.fromkeys((above for above in parents(path) if places.get(above) in brought), ELSE)
    return found
