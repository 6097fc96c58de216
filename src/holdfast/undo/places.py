"""What is at a place: a name in a directory, which is never followed."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.undo.preimages import is_empty

if TYPE_CHECKING:
    from holdfast.undo.interceptor import Place


def lstat(place: Place) -> os.stat_result:
    """What is there. Raises `OSError`."""
    return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)


def lstat_or_none(place: Place) -> os.stat_result | None:
    """What is there; None if nothing is."""
    try:
        return lstat(place)
    except FileNotFoundError:
        return None


def exists(place: Place) -> bool:
    """Whether anything is there."""
    # (An exception would take longer than the system does.)
    return os.access(place.name, os.F_OK, dir_fd=place.dir_fd, follow_symlinks=False)


def is_at(place: Place, found: os.stat_result) -> bool:
    """Whether the object is where it is said to be."""
    try:
        return os.path.samestat(lstat(place), found)
    except OSError:
        return False


def is_empty_at(place: Place) -> bool | None:
    """Whether the directory is empty; None if we may not look."""
    try:
        return is_empty(place.dir_fd, place.name)
    except PermissionError:
        return None


def may_replace(found: os.stat_result, victim: os.stat_result, target: Place) -> bool:
    """Whether the system would let ``found`` replace ``victim``."""
    if stat.S_ISDIR(victim.st_mode):
        return stat.S_ISDIR(found.st_mode) and is_empty_at(target) is not False
    return not stat.S_ISDIR(found.st_mode)
