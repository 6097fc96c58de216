"""Finds the bytes that an address means, in the mappings of a guest's memory.

A region of guest memory has two addresses. Descriptors name buffers by the guest's physical address; vhost-user names
the rings by the front end's own ("user") address.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ADDRESS_END: Final = 1 << 64


class MappedRegion(NamedTuple):
    """A region and its bytes: a writable view of bytes, all of the region."""

    guest_address: int
    user_address: int
    view: memoryview


class Extent(NamedTuple):
    """A run of addresses, ``end`` not included, and its bytes."""

    start: int
    end: int
    view: memoryview


def check_ranges(ranges: Sequence[tuple[int, int]], where: str) -> None:
    """Check ranges of addresses, as (address, size). Raises `FormatError` if one is empty, goes past 64 bits, or
    overlaps another.
    """
    end = 0
    for address, size in sorted(ranges):
        if size <= 0 or address < 0 or address + size > ADDRESS_END:
            raise FormatError(f"{where}: {size} bytes at {address:#x} are no range of addresses")
        if address < end:
            raise FormatError(f"{where}: the region at {address:#x} overlaps the one before it")
        end = address + size


class GuestMemory:
    """The memory of one guest, as one memory table describes it. It never changes: a new table is a new object.

    Its views keep their mapping alive, even when this object is gone.
    """

    __slots__ = ("_guest", "_guest_starts", "_user", "_user_starts")

    def __init__(self, regions: Iterable[MappedRegion]) -> None:
        """Raises `FormatError` if regions overlap or are empty, `ValueError` for a read-only view."""
        kept = tuple(regions)
        if any(region.view.readonly or region.view.format != "B" for region in kept):
            raise ValueError("guest memory: a view of writable bytes is needed")
        check_ranges([(region.guest_address, len(region.view)) for region in kept], "guest addresses")
        check_ranges([(region.user_address, len(region.view)) for region in kept], "user addresses")
        self._guest: Final = _extents((region.guest_address, region.view) for region in kept)
        self._user: Final = _extents((region.user_address, region.view) for region in kept)
        self._guest_starts: Final = [extent.start for extent in self._guest]
        self._user_starts: Final = [extent.start for extent in self._user]

    def extent_at(self, guest_address: int) -> Extent:
        """The region that ``guest_address`` is in. Raises `FormatError` if none has it."""
        return _find(self._guest, self._guest_starts, guest_address)

    def guest_views(self, guest_address: int, length: int) -> list[memoryview]:
        """The bytes of a range of guest addresses, in order: one view, or one for each of the regions that adjoin.

        Raises `FormatError` if it is empty, or not all of it is memory.
        """
        if length <= 0:
            raise FormatError(f"guest address {guest_address:#x}: a range without bytes")
        end = guest_address + length
        views: list[memoryview] = []
        while guest_address < end:
            extent = self.extent_at(guest_address)
            last = min(end, extent.end)
            views.append(extent.view[guest_address - extent.start : last - extent.start])
            guest_address = last
        return views

    def user_view(self, user_address: int, length: int) -> memoryview:
        """The bytes at a user address. Raises `FormatError` if they are not in one region: a ring is always in one."""
        start, end, view = _find(self._user, self._user_starts, user_address)
        if length <= 0 or user_address + length > end:
            raise FormatError(f"user address {user_address:#x}: {length} bytes are not in one region")
        return view[user_address - start : user_address - start + length]


def _extents(pairs: Iterable[tuple[int, memoryview]]) -> list[Extent]:
    return [Extent(start, start + len(view), view) for start, view in sorted(pairs, key=lambda pair: pair[0])]


def _find(extents: list[Extent], starts: list[int], address: int) -> Extent:
    at = bisect_right(starts, address) - 1
    if at < 0 or address >= extents[at].end:
        raise FormatError(f"address {address:#x} is in no region of guest memory")
    return extents[at]
