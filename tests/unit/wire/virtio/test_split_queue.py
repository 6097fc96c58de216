"""What a driver puts into a ring comes out of it; what no driver may put there breaks the queue, at once. (I12)"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from holdfast.model.errors import FormatError
from holdfast.testing.virtqueue_driver import INDIRECT, NEXT, WRITE, DriverQueue, GuestRam, NoSpaceError
from holdfast.wire.virtio.feature_bits import Feature
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion
from holdfast.wire.virtio.split_queue import MAX_INDIRECT, MAX_SIZE, RingLayout, SplitQueue, fill, skip

PLAIN = 0
ALL = int(Feature.INDIRECT_DESC | Feature.EVENT_IDX)
BASE = 0x10_0000
MOST = 1 << 16


class Pair:
    """A driver and a device at one ring."""

    def __init__(
        self, size: int = 8, features: int = ALL, *, position: int = 0, memory: int = 1 << 20, most: int = MOST
    ) -> None:
        self.ram = GuestRam(bytearray(memory), guest_address=BASE)
        self.driver = DriverQueue(self.ram, size, features, position=position)
        self.device = SplitQueue(self.ram.memory(), self.driver.layout, features, max_readable=most, position=position)

    def buffer(self, size: int = 16) -> int:
        return BASE + self.ram.allocate(size)

    def refused(self, match: str) -> None:
        with pytest.raises(FormatError, match=match):
            self.device.pop()


@pytest.mark.parametrize("features", [PLAIN, ALL])
@pytest.mark.parametrize("indirect", [False, True])
def test_a_chain_there_and_back(features: int, indirect: bool) -> None:
    if indirect and not features:
        features = int(Feature.INDIRECT_DESC)
    pair = Pair(features=features)
    assert pair.device.pop() is None
    head = pair.driver.add([b"head", b"body"], [2, 10], indirect=indirect)
    chain = pair.device.pop()
    assert chain is not None
    assert (chain.head, chain.readable, [len(view) for view in chain.writable]) == (head, b"headbody", [2, 10])
    assert (pair.device.in_flight, pair.device.position) == (1, 1)
    assert pair.device.pop() is None
    assert pair.driver.take_used() == []
    pair.device.push(chain.head, fill(chain.writable, b"answer"))
    assert pair.device.in_flight == 0
    (used,) = pair.driver.take_used()
    assert used == (head, 6, b"answer" + bytes(6))
    assert pair.driver.take_used() == []


def test_what_is_read_is_a_copy() -> None:
    pair = Pair()
    pair.driver.add([b"before"])
    chain = pair.device.pop()
    assert chain is not None
    pair.ram.view[:] = bytes(len(pair.ram.view))
    assert chain.readable == b"before"


def test_either_part_can_be_missing() -> None:
    pair = Pair()
    pair.driver.add([b"only"])
    pair.driver.add([], [5])
    first, second = pair.device.pop(), pair.device.pop()
    assert first is not None
    assert second is not None
    assert (first.readable, first.writable) == (b"only", [])
    assert (second.readable, [len(view) for view in second.writable]) == (b"", [5])


def test_chains_can_be_answered_in_any_order() -> None:
    pair = Pair()
    heads = [pair.driver.add([b"%d" % number], [1]) for number in range(4)]
    chains = [pair.device.pop() for _ in heads]
    for at in (2, 0, 3, 1):
        chain = chains[at]
        assert chain is not None
        pair.device.push(chain.head, fill(chain.writable, chain.readable))
    assert [used.head for used in pair.driver.take_used()] == [heads[2], heads[0], heads[3], heads[1]]


@pytest.mark.parametrize("position", [0, 65_530, 65_535, 32_767])
@pytest.mark.parametrize("size", [1, 2, 256])
def test_indexes_begin_anew_after_65535(position: int, size: int) -> None:
    pair = Pair(size, position=position)
    for number in range(20):
        pair.driver.add([b"%d" % number])
        chain = pair.device.pop()
        assert chain is not None
        assert chain.readable == b"%d" % number
        pair.device.push(chain.head, 0)
        assert pair.device.wants_call()
        assert len(pair.driver.take_used()) == 1
    assert pair.device.position == (position + 20) & 0xFFFF


def test_the_largest_ring_can_be_full() -> None:
    pair = Pair(MAX_SIZE, position=40_000, memory=1 << 21)
    for number in range(MAX_SIZE):
        pair.driver.add([struct.pack("H", number)])
    with pytest.raises(NoSpaceError):
        pair.driver.add([b"one more"])
    for number in range(MAX_SIZE):
        chain = pair.device.pop()
        assert chain is not None
        assert chain.readable == struct.pack("H", number)
    assert pair.device.pop() is None
    assert pair.device.in_flight == MAX_SIZE


@pytest.mark.parametrize("size", [0, 3, 12, MAX_SIZE + 1, MAX_SIZE * 2, -8])
def test_a_size_that_no_ring_has(size: int) -> None:
    pair = Pair()
    with pytest.raises(FormatError, match="ring size"):
        SplitQueue(pair.ram.memory(), pair.driver.layout._replace(size=size), ALL, max_readable=MOST)


@pytest.mark.parametrize("part", ["descriptors", "available", "used"])
@pytest.mark.parametrize("address", [0, (1 << 64) - 1, -4])
def test_a_ring_that_is_not_in_memory(part: str, address: int) -> None:
    pair = Pair()
    at = address if address >= 0 else pair.ram.user_address + len(pair.ram.view) + address
    layout = pair.driver.layout._replace(**{part: at})
    with pytest.raises(FormatError, match="address"):
        SplitQueue(pair.ram.memory(), layout, ALL, max_readable=MOST)


def test_an_indirect_table_at_the_end_of_a_chain() -> None:
    pair = Pair()
    table = pair.ram.allocate(32, 16)
    first, second, third = pair.buffer(), pair.buffer(), pair.buffer()
    pair.ram.view[first - BASE : first - BASE + 3] = b"one"
    pair.ram.view[second - BASE : second - BASE + 3] = b"two"
    struct.pack_into("<QIHH", pair.ram.view, table, second, 3, NEXT, 1)
    struct.pack_into("<QIHH", pair.ram.view, table + 16, third, 9, WRITE, 0)
    pair.driver.describe(4, first, 3, NEXT, 5)
    pair.driver.describe(5, BASE + table, 32, INDIRECT)
    pair.driver.publish(4)
    chain = pair.device.pop()
    assert chain is not None
    assert (chain.head, chain.readable, [len(view) for view in chain.writable]) == (4, b"onetwo", [9])


def test_buffers_and_tables_may_cross_regions_that_adjoin() -> None:
    buffer = bytearray(1 << 16)
    ram = GuestRam(buffer, guest_address=BASE)
    driver = DriverQueue(ram, 8, ALL)
    border = 0x4008
    ram.allocate(border - 100 - ram.allocate(1), 1)
    memory = GuestMemory(
        [
            MappedRegion(BASE, ram.user_address, memoryview(buffer)[:border]),
            MappedRegion(BASE + border, ram.user_address + (1 << 40), memoryview(buffer)[border:]),
        ]
    )
    device = SplitQueue(memory, driver.layout, ALL, max_readable=MOST)
    data, table = border - 5, border - 8
    ram.view[data : data + 10] = b"0123456789"
    driver.describe(0, BASE + data, 10, NEXT, 1)
    driver.describe(1, BASE + border - 2, 4, WRITE)
    driver.publish(0)
    chain = device.pop()
    assert chain is not None
    assert (chain.readable, [len(view) for view in chain.writable]) == (b"0123456789", [2, 2])
    fill(chain.writable, b"abcd")
    assert ram.view[border - 2 : border + 2] == b"abcd"
    struct.pack_into("<QIHH", ram.view, table, BASE, 4, 0, 0)
    driver.describe(2, BASE + table, 16, INDIRECT)
    driver.publish(2)
    chain = device.pop()
    assert chain is not None
    assert chain.readable == bytes(ram.view[:4])


def loop(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 1, NEXT, 1)
    pair.driver.describe(1, pair.buffer(), 1, NEXT, 0)


def loop_of_one(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 1, NEXT, 0)


def loop_in_a_table(pair: Pair) -> None:
    table = pair.ram.allocate(32, 16)
    for at in range(2):
        struct.pack_into("<QIHH", pair.ram.view, table + 16 * at, pair.buffer(), 1, NEXT, 1 - at)
    pair.driver.describe(0, BASE + table, 32, INDIRECT)


def next_out_of_the_ring(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 1, NEXT, 8)


def next_out_of_the_table(pair: Pair) -> None:
    table = pair.ram.allocate(16, 16)
    struct.pack_into("<QIHH", pair.ram.view, table, pair.buffer(), 1, NEXT, 1)
    pair.driver.describe(0, BASE + table, 16, INDIRECT)


def buffer_out_of_memory(pair: Pair) -> None:
    pair.driver.describe(0, BASE + (1 << 20) - 3, 4, WRITE)


def buffer_below_memory(pair: Pair) -> None:
    pair.driver.describe(0, BASE - 1, 2, 0)


def buffer_around_the_end(pair: Pair) -> None:
    pair.driver.describe(0, (1 << 64) - 1, (1 << 32) - 1, 0)


def buffer_without_bytes(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 0, 0)


def buffer_without_bytes_after_another(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 1, NEXT, 1)
    pair.driver.describe(1, pair.buffer(), 0, 0)


def room_without_bytes(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 0, WRITE)


def readable_after_writable(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(), 1, WRITE | NEXT, 1)
    pair.driver.describe(1, pair.buffer(), 1, 0)


def too_much_to_read(pair: Pair) -> None:
    pair.driver.describe(0, pair.buffer(MOST), MOST, NEXT, 1)
    pair.driver.describe(1, pair.buffer(), 1, 0)


def too_much_of_the_same(pair: Pair) -> None:
    """A few bytes that say that they are many: no more is copied than the limit."""
    table = pair.ram.allocate(16 * MAX_INDIRECT, 16)
    for at in range(MAX_INDIRECT):
        flags = NEXT if at + 1 < MAX_INDIRECT else 0
        struct.pack_into("<QIHH", pair.ram.view, table + 16 * at, BASE, 1 << 20, flags, at + 1)
    pair.driver.describe(0, BASE + table, 16 * MAX_INDIRECT, INDIRECT)


def table(pair: Pair, length: int, flags: int = INDIRECT) -> None:
    pair.driver.describe(0, pair.buffer(16 * MAX_INDIRECT + 16), length, flags)


def table_in_a_table(pair: Pair) -> None:
    inner, outer = pair.ram.allocate(16, 16), pair.ram.allocate(16, 16)
    struct.pack_into("<QIHH", pair.ram.view, inner, pair.buffer(), 1, 0, 0)
    struct.pack_into("<QIHH", pair.ram.view, outer, BASE + inner, 16, INDIRECT, 0)
    pair.driver.describe(0, BASE + outer, 16, INDIRECT)


def table_out_of_memory(pair: Pair) -> None:
    pair.driver.describe(0, BASE + (1 << 20) - 16, 32, INDIRECT)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (loop, "loop"),
        (loop_of_one, "loop"),
        (loop_in_a_table, "loop"),
        (next_out_of_the_ring, "descriptor 8: the table has 8"),
        (next_out_of_the_table, "descriptor 1: the table has 1"),
        (buffer_out_of_memory, "address"),
        (buffer_below_memory, "address"),
        (buffer_around_the_end, "address"),
        (buffer_without_bytes, "without bytes"),
        (buffer_without_bytes_after_another, "without bytes"),
        (room_without_bytes, "without bytes"),
        (readable_after_writable, "readable buffer after"),
        (too_much_to_read, "readable bytes"),
        (too_much_of_the_same, "readable bytes"),
        (lambda pair: table(pair, 0), "indirect table"),
        (lambda pair: table(pair, 15), "indirect table"),
        (lambda pair: table(pair, 17), "indirect table"),
        (lambda pair: table(pair, 16 * MAX_INDIRECT + 16), "indirect table"),
        (lambda pair: table(pair, 16, INDIRECT | NEXT), "indirect table"),
        (table_in_a_table, "indirect table"),
        (table_out_of_memory, "address"),
    ],
)
def test_a_chain_that_no_driver_makes(spoil: Callable[[Pair], None], match: str) -> None:
    pair = Pair()
    spoil(pair)
    pair.driver.publish(0)
    pair.refused(match)
    assert (pair.device.position, pair.device.in_flight) == (0, 0)


def test_a_head_that_is_no_descriptor() -> None:
    pair = Pair()
    pair.driver.publish(8)
    pair.refused("descriptor 8: the table has 8")


def test_an_indirect_table_that_was_not_agreed_upon() -> None:
    pair = Pair(features=PLAIN)
    pair.driver.add([b"data"], indirect=True)
    pair.refused("indirect table")


@pytest.mark.parametrize("index", [9, 1000, 32_768, 65_535])
def test_an_index_further_on_than_the_ring_is_long(index: int) -> None:
    pair = Pair()
    struct.pack_into("<H", pair.ram.view, pair.driver.available_at + 2, index)
    pair.refused("available ring: index")


def test_chains_in_flight_count_for_what_may_wait() -> None:
    pair = Pair()
    for number in range(8):
        pair.driver.add([b"%d" % number])
    chains = [pair.device.pop() for _ in range(8)]
    pair.driver.publish(0)
    pair.refused("available ring: index 9 after 8")
    assert chains[0] is not None
    pair.device.push(chains[0].head, 0)
    assert pair.device.pop() is not None


def test_an_index_that_goes_back() -> None:
    pair = Pair()
    pair.driver.add([b"a"])
    pair.device.pop()
    struct.pack_into("<H", pair.ram.view, pair.driver.available_at + 2, 0)
    pair.refused("available ring: index 0 after 1")


def test_a_chain_longer_than_its_ring_if_it_is_in_a_table() -> None:
    pair = Pair(size=2)
    pair.driver.add([b"a"] * 300, [1] * 3, indirect=True)
    chain = pair.device.pop()
    assert chain is not None
    assert (chain.readable, len(chain.writable)) == (b"a" * 300, 3)


@pytest.mark.parametrize("features", [PLAIN, int(Feature.EVENT_IDX)])
def test_a_kick_is_wanted_only_by_a_device_that_waits(features: int) -> None:
    pair = Pair(features=features)
    assert not pair.device.request_kicks()
    pair.driver.add([b"first"])
    assert pair.driver.wants_kick()
    pair.device.suppress_kicks()
    pair.driver.add([b"second"])
    assert not pair.driver.wants_kick()
    assert pair.device.pop() is not None
    assert pair.device.request_kicks(), "one is there, and no kick will come for it"
    assert pair.device.pop() is not None
    assert not pair.device.request_kicks()
    pair.driver.add([b"third"])
    assert pair.driver.wants_kick()


@pytest.mark.parametrize("features", [PLAIN, int(Feature.EVENT_IDX)])
def test_a_call_is_made_only_for_a_driver_that_waits(features: int) -> None:
    pair = Pair(features=features)

    def answer() -> None:
        chain = pair.device.pop()
        assert chain is not None
        pair.device.push(chain.head, 0)

    for _ in range(4):
        pair.driver.add([b"data"])
    assert not pair.device.wants_call(), "nothing was pushed"
    answer()
    assert pair.device.wants_call()
    assert not pair.device.wants_call(), "it was told already"
    pair.driver.suppress_calls()
    pair.driver.take_used()
    answer()
    assert not pair.device.wants_call()
    pair.driver.request_calls()
    assert len(pair.driver.take_used()) == 1
    answer()
    assert pair.device.wants_call()
    pair.driver.take_used()
    answer()
    assert pair.device.wants_call()


def test_a_driver_can_wait_for_several_chains() -> None:
    pair = Pair()
    for _ in range(6):
        pair.driver.add([b"data"])
    told: list[bool] = []
    pair.driver.request_calls(3)
    for _ in range(6):
        chain = pair.device.pop()
        assert chain is not None
        pair.device.push(chain.head, 0)
        told.append(pair.device.wants_call())
    assert told == [True, False, True, False, False, False], "and the first, as nobody knows what was told before"


def test_the_first_call_is_made_whatever_an_earlier_device_has_told() -> None:
    pair = Pair()
    pair.driver.request_calls(100)
    pair.driver.add([b"data"])
    chain = pair.device.pop()
    assert chain is not None
    pair.device.push(chain.head, 0)
    assert pair.device.wants_call()


def test_a_queue_goes_on_where_another_has_ended_with_chains_in_flight() -> None:
    pair = Pair(position=65_534)
    for number in range(4):
        pair.driver.add([b"%d" % number], [1])
    taken = [pair.device.pop() for _ in range(3)]
    assert taken[0] is not None
    pair.device.push(taken[0].head, 0)
    after = SplitQueue(
        pair.ram.memory(),
        pair.driver.layout,
        ALL,
        max_readable=MOST,
        position=pair.device.position,
        in_flight=pair.device.in_flight,
    )
    chain = after.pop()
    assert chain is not None
    assert chain.readable == b"3"
    for other in (taken[1], taken[2], chain):
        assert other is not None
        after.push(other.head, 0)
    assert len(pair.driver.take_used()) == 4


def test_a_queue_does_not_begin_where_its_used_ring_is_not() -> None:
    pair = Pair(position=7)
    for position, in_flight in ((6, 0), (8, 0), (7, 1)):
        with pytest.raises(FormatError, match="used ring: index 7"):
            SplitQueue(
                pair.ram.memory(),
                pair.driver.layout,
                ALL,
                max_readable=MOST,
                position=position,
                in_flight=in_flight,
            )


def test_memory_that_is_replaced_is_used_from_then_on() -> None:
    pair = Pair()
    pair.driver.add([b"data"], [4])
    chain = pair.device.pop()
    assert chain is not None
    pair.driver.add([b"old"])
    elsewhere = bytearray(bytes(pair.ram.view).replace(b"old", b"new"))
    pair.device.remap(GuestMemory([MappedRegion(BASE, pair.ram.user_address, memoryview(elsewhere))]))
    pair.device.push(chain.head, 3)
    assert struct.unpack_from("<HHII", elsewhere, pair.driver.used_at) == (0, 1, chain.head, 3)
    assert pair.driver.take_used() == []
    after = pair.device.pop()
    assert after is not None
    assert after.readable == b"new"
    fill(chain.writable, b"late")
    with pytest.raises(FormatError, match="address"):
        pair.device.remap(GuestMemory([MappedRegion(BASE, 0, memoryview(elsewhere))]))


def test_a_ring_may_lie_in_a_buffer_that_is_written_to() -> None:
    """What a guest does to its own ring is its own affair: the device reads it anew, and refuses what is wrong."""
    pair = Pair()
    pair.driver.describe(0, BASE + pair.driver.available_at, 6, WRITE)
    pair.driver.publish(0)
    chain = pair.device.pop()
    assert chain is not None
    fill(chain.writable, b"\xff" * 6)
    pair.device.push(0, 6)
    pair.refused("available ring: index 65535")


def test_a_reply_fills_the_room_in_order() -> None:
    buffer = bytearray(10)
    room = [memoryview(buffer)[:3], memoryview(buffer)[3:4], memoryview(buffer)[4:]]
    assert fill(room, b"abcde") == 5
    assert buffer == b"abcde" + bytes(5)
    assert fill(room, memoryview(b"0123456789")) == 10
    assert buffer == b"0123456789"
    assert fill(room, b"") == 0
    with pytest.raises(FormatError, match="11 bytes are needed, and there is room for 10"):
        fill(room, b"0123456789a")


def test_data_goes_after_the_head_of_a_reply() -> None:
    buffer = bytearray(range(10))
    room = [memoryview(buffer)[:3], memoryview(buffer)[3:4], memoryview(buffer)[4:]]
    assert [bytes(view) for view in skip(room, 0)] == [bytes(range(3)), b"\3", bytes(range(4, 10))]
    assert [bytes(view) for view in skip(room, 2)] == [b"\2", b"\3", bytes(range(4, 10))]
    assert [bytes(view) for view in skip(room, 3)] == [b"\3", bytes(range(4, 10))]
    assert [bytes(view) for view in skip(room, 9)] == [b"\x09"]
    assert skip(room, 10) == []
    with pytest.raises(FormatError, match="1 bytes too few"):
        skip(room, 11)


def test_a_layout_says_where_the_parts_are() -> None:
    pair = Pair()
    assert pair.driver.layout == RingLayout(
        8,
        pair.ram.user_address + pair.driver.descriptors_at,
        pair.ram.user_address + pair.driver.available_at,
        pair.ram.user_address + pair.driver.used_at,
    )
