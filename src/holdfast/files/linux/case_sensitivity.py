"""Whether a directory's file system tells names apart that differ in the case of their letters alone."""

from __future__ import annotations

import array
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

IGNORES_CASE: Final = "its file system takes names that differ in the case of their letters alone for one"
"""Why a directory cannot be used, where `ignores_case` says so."""

_FS_IOC_GETFLAGS: Final = 0x80086601
_FS_CASEFOLD_FL: Final = 0x40000000
_MOST_LOOKED_AT: Final = 100


def ignores_case(directory: bytes) -> bool:
    """Whether ``readme`` and ``README`` are the same there: as on ext4 where that is turned on, vfat, exFAT, NTFS, and
    network file systems of such hosts. Looks existing entries up with their letter case exchanged; writes nothing.

    An empty directory is judged by its own name. Raises `OSError` unless it is a readable directory.
    """
    if _is_casefolded(directory):
        return True
    with os.scandir(directory) as entries:
        names = {entry.name for entry, _ in zip(entries, range(_MOST_LOOKED_AT), strict=False)}
    for name in names:
        if (other := _in_other_letters(name)) is not None and other not in names:
            return _is_same(os.path.join(directory, name), os.path.join(directory, other))
    above, name = os.path.split(os.path.realpath(directory))
    other = _in_other_letters(name)
    if other is None or os.path.ismount(directory):
        return False
    return _is_same(os.path.join(above, name), os.path.join(above, other)) and other not in _names(above)


def _names(directory: bytes) -> Iterator[bytes]:
    with suppress(OSError), os.scandir(directory) as entries:
        yield from (entry.name for entry in entries)


def _is_casefolded(directory: bytes) -> bool:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = array.array("I", [0, 0])
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags)
        return bool(flags[0] & _FS_CASEFOLD_FL)
    except OSError:
        return False  # its file system has no such flags
    finally:
        os.close(fd)


def _in_other_letters(name: bytes) -> bytes | None:
    """The name with the case of its ASCII letters exchanged; None if it has none."""
    other = name.swapcase()
    return None if other == name else other


def _is_same(path: bytes, other: bytes) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(other))
    except OSError:
        return False
