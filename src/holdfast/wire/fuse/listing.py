"""Builds what READDIR and READDIRPLUS are answered with, never larger than was asked for."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.wire.fuse.kernel import NAME_MAX
from holdfast.wire.fuse.replies import ENTRY, entry_fields

if TYPE_CHECKING:
    from holdfast.wire.fuse.replies import Entry

_DIRENT: Final = struct.Struct("=QQII")
"""Inode, offset, length of the name, type; the name follows, and zeros up to eight bytes."""
_PLUS_BYTES: Final = ENTRY.size + _DIRENT.size
_NO_ENTRY: Final = bytes(ENTRY.size)
_TYPE_SHIFT: Final = 12
"""From a mode to ``DT_*``."""


class Listing:
    """The entries from one offset on. ``offset`` of an entry is where the *next* one is: with it a READDIR goes on,
    also long after, so it has to mean the same place whatever was removed meanwhile.

    Each `add` says whether there was room; if not, what was added is all of this reply. An empty reply is the end of
    the directory, so that an entry has to fit when nothing is in there: the kernel asks for a page or more.
    """

    __slots__ = ("_data", "_size")

    def __init__(self, size: int) -> None:
        """At most ``size`` bytes."""
        self._size = size
        self._data = bytearray()

    @property
    def data(self) -> bytearray:
        """What to answer with; its own, not a copy."""
        return self._data

    def fits(self, name: bytes, *, plus: bool) -> bool:
        """Whether there is room for this name: to be asked before a lookup is counted."""
        return len(self._data) + _padded((_PLUS_BYTES if plus else _DIRENT.size) + len(name)) <= self._size

    def add(self, name: bytes, inode: int, mode: int, offset: int) -> bool:
        """For READDIR: ``mode`` has the type, in an inode's or with its type alone."""
        if not self.fits(name, plus=False):
            return False
        self._append(_DIRENT.pack(inode, offset, _length(name), mode >> _TYPE_SHIFT & 15), name)
        return True

    def add_plus(self, name: bytes, found: Entry | None, inode: int, mode: int, offset: int) -> bool:
        """For READDIRPLUS: with what a lookup would say, which counts as one (only if this returns true).

        Without it (None) the name is listed only: ``.`` and ``..`` must be, and anything may be.
        """
        if not self.fits(name, plus=True):
            return False
        dirent = _DIRENT.pack(inode, offset, _length(name), mode >> _TYPE_SHIFT & 15)
        self._append((_NO_ENTRY if found is None else ENTRY.pack(*entry_fields(found))) + dirent, name)
        return True

    def _append(self, record: bytes, name: bytes) -> None:
        self._data += record
        self._data += name
        self._data += bytes(-len(self._data) % 8)


def _padded(count: int) -> int:
    return (count + 7) & ~7


def _length(name: bytes) -> int:
    """The kernel fails the whole directory for a name that cannot be."""
    if not 0 < len(name) <= NAME_MAX or b"/" in name:
        raise ValueError(f"{name!r} is no name")
    return len(name)
