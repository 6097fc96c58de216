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
_PLUS: Final = struct.Struct(ENTRY.format + _DIRENT.format[1:])
_NO_ENTRY: Final = ENTRY.unpack(bytes(ENTRY.size))
_PADDING: Final = tuple(map(bytes, range(8)))
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
        count = (_PLUS if plus else _DIRENT).size + len(name)
        return len(self._data) + count + -count % 8 <= self._size

    def add(self, name: bytes, inode: int, mode: int, offset: int) -> bool:
        """For READDIR: ``mode`` has the type, in an inode's or with its type alone."""
        return self._add(_DIRENT, (), name, inode, mode, offset)

    def add_plus(self, name: bytes, found: Entry | None, inode: int, mode: int, offset: int) -> bool:
        """For READDIRPLUS: with what a lookup would say, which counts as one (only if this returns true).

        Without it (None) the name is listed only: ``.`` and ``..`` must be, and anything may be.
        """
        return self._add(_PLUS, _NO_ENTRY if found is None else entry_fields(found), name, inode, mode, offset)

    def _add(
        self, form: struct.Struct, entry: tuple[int, ...], name: bytes, inode: int, mode: int, offset: int
    ) -> bool:
        # (One call for a name: a directory may have a hundred thousand.)
        length = _length(name)
        count = form.size + length
        padding = -count % 8
        data = self._data
        if len(data) + count + padding > self._size:
            return False
        data += form.pack(*entry, inode, offset, length, mode >> _TYPE_SHIFT & 15)
        data += name
        data += _PADDING[padding]
        return True


def _length(name: bytes) -> int:
    """The kernel fails the whole directory for a name that cannot be."""
    if not 0 < len(name) <= NAME_MAX or b"/" in name:
        raise ValueError(f"{name!r} is no name")
    return len(name)
