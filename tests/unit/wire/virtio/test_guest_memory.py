"""Which bytes an address of a guest means, and which addresses mean none. (I12)"""

from __future__ import annotations

import pytest

from holdfast.model.errors import FormatError
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion

LOW = bytearray(range(100))
NEXT = bytearray(range(100, 200))
HIGH = bytearray(50)
TOP = (1 << 64) - 50


def memory() -> GuestMemory:
    return GuestMemory(
        [
            MappedRegion(1100, 70_000, memoryview(NEXT)),
            MappedRegion(1000, 50_000, memoryview(LOW)),
            MappedRegion(TOP, TOP, memoryview(HIGH)),
        ]
    )


def test_a_range_is_one_view_or_one_for_each_region_that_adjoins() -> None:
    assert [bytes(view) for view in memory().guest_views(1010, 5)] == [bytes(range(10, 15))]
    assert [bytes(view) for view in memory().guest_views(1090, 20)] == [bytes(range(90, 100)), bytes(range(100, 110))]
    assert [len(view) for view in memory().guest_views(1000, 200)] == [100, 100]
    assert [len(view) for view in memory().guest_views(TOP, 50)] == [50]


def test_what_is_written_to_a_view_is_in_the_mapping() -> None:
    buffer = bytearray(10)
    views = GuestMemory([MappedRegion(0, 0, memoryview(buffer))]).guest_views(3, 4)
    views[0][:] = b"data"
    assert buffer == b"\0\0\0data\0\0\0"


@pytest.mark.parametrize(
    ("address", "length"),
    [(999, 1), (999, 2), (1200, 1), (1199, 2), (1000, 201), (0, 1), (TOP - 1, 1), (TOP, 51), (1000, 0), (1 << 64, 1)],
)
def test_a_range_that_is_not_all_memory_is_refused(address: int, length: int) -> None:
    with pytest.raises(FormatError, match=r"guest|address"):
        memory().guest_views(address, length)


def test_user_addresses_are_other_addresses_of_the_same_bytes() -> None:
    assert bytes(memory().user_view(50_010, 5)) == bytes(range(10, 15))
    assert bytes(memory().user_view(70_099, 1)) == bytes([199])


@pytest.mark.parametrize(("address", "length"), [(1000, 1), (50_099, 2), (50_100, 1), (50_000, 0), (50_000, 1 << 64)])
def test_a_user_range_does_not_cross_regions(address: int, length: int) -> None:
    with pytest.raises(FormatError, match="address"):
        memory().user_view(address, length)


@pytest.mark.parametrize(
    "regions",
    [
        [(0, 0, 10), (9, 100, 10)],
        [(0, 0, 10), (100, 9, 10)],
        [(0, 0, 10), (100, 0, 10)],
        [(0, 0, 0)],
        [((1 << 64) - 9, 0, 10)],
        [(0, (1 << 64) - 9, 10)],
    ],
)
def test_regions_that_cannot_be_are_refused(regions: list[tuple[int, int, int]]) -> None:
    with pytest.raises(FormatError, match="addresses"):
        GuestMemory(MappedRegion(guest, user, memoryview(bytearray(size))) for guest, user, size in regions)


@pytest.mark.parametrize("view", [memoryview(bytes(8)), memoryview(bytearray(8)).cast("H")])
def test_a_view_must_be_of_bytes_that_can_be_written(view: memoryview) -> None:
    with pytest.raises(ValueError, match="writable"):
        GuestMemory([MappedRegion(0, 0, view)])
