"""I12: whatever a guest has in its rings, and however it changes while it is read, a chain comes out or the queue is
broken; what comes out is within the limits, and in the guest's memory.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.testing.virtqueue_driver import INDIRECT, NEXT, WRITE, DriverQueue, GuestRam, NoSpaceError
from holdfast.wire.virtio.feature_bits import Feature
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion
from holdfast.wire.virtio.split_queue import MAX_INDIRECT, RingLayout, SplitQueue, fill, skip

BASE = 0x1000
BYTES = 16_384
MOST = 8192
FEATURES = int(Feature.INDIRECT_DESC | Feature.EVENT_IDX)
LENGTHS = st.sampled_from([0, 1, 15, 16, 32, 48, 160, 4096, MOST, MOST + 1, BYTES, (1 << 32) - 1]) | st.integers(0, 64)
ADDRESSES = st.integers(BASE - 2, BASE + BYTES) | st.sampled_from([0, (1 << 64) - 1, 1 << 63])
FLAGS = st.sampled_from([0, NEXT, NEXT, WRITE, NEXT | WRITE, INDIRECT, INDIRECT | NEXT]) | st.integers(0, 0xFFFF)
DESCRIPTORS = st.tuples(ADDRESSES, LENGTHS, FLAGS, st.integers(0, 9) | st.integers(0, 0xFFFF))


def check_pops(device: SplitQueue, size: int, memory: memoryview, *, rounds: int) -> int:
    """Take chains until there are none, or the queue is broken; give them back. How many there were."""
    taken = 0
    for _ in range(rounds):
        try:
            chain = device.pop()
        except FormatError as error:
            assert len(error.message) < 200
            break
        if chain is None:
            break
        taken += 1
        assert device.in_flight <= size
        assert len(chain.readable) <= MOST
        assert all(0 < len(view) <= len(memory) for view in chain.writable)
        assert len(chain.writable) <= 2 * (size + MAX_INDIRECT)
        assert skip(chain.writable, 0) == chain.writable
        if chain.writable and len(chain.writable[0]) < 64:
            fill(chain.writable, b"x" * len(chain.writable[0]))
        device.push(chain.head, 0)
        device.wants_call()
    return taken


@given(
    st.sampled_from([1, 2, 8]),
    st.lists(DESCRIPTORS, max_size=24),
    st.lists(st.integers(0, 9) | st.integers(0, 0xFFFF), min_size=1, max_size=8),
    st.integers(0, 9) | st.integers(0, 0xFFFF),
    st.integers(0, BYTES),
    st.booleans(),
)
@settings(max_examples=400)
def test_any_ring(
    size: int, tables: list[tuple[int, int, int, int]], heads: list[int], index: int, cut: int, in_two: bool
) -> None:
    buffer = bytearray(BYTES)
    ram = GuestRam(buffer, guest_address=BASE)
    driver = DriverQueue(ram, size, FEATURES)
    # The table of the ring and what follows, the places that indirect tables may lie at as well.
    for at, descriptor in enumerate(tables):
        if at < size:
            driver.describe(at, *descriptor)
        else:
            struct.pack_into("<QIHH", buffer, 512 + 16 * (at - size), *descriptor)
    regions = [MappedRegion(BASE, ram.user_address, ram.view)]
    if in_two and 512 <= cut < BYTES:
        regions = [
            MappedRegion(BASE, ram.user_address, ram.view[:cut]),
            MappedRegion(BASE + cut, ram.user_address * 2, ram.view[cut:]),
        ]
    device = SplitQueue(GuestMemory(regions), driver.layout, FEATURES, max_readable=MOST)
    for at, head in enumerate(heads[:size]):
        struct.pack_into("<H", buffer, driver.available_at + 4 + 2 * at, head)
    struct.pack_into("<H", buffer, driver.available_at + 2, index)
    check_pops(device, size, ram.view, rounds=100)


@given(st.binary(min_size=600, max_size=600), st.integers(0, 15).map(lambda power: 1 << power), st.integers(0, 0xFFFF))
@settings(max_examples=300)
def test_any_bytes_for_a_ring(data: bytes, size: int, position: int) -> None:
    buffer = bytearray((data * (1 + (1 << 20) // len(data)))[: 1 << 20])
    view = memoryview(buffer)
    layout = RingLayout(size, 0, 16 * size, 20 * size + 16)
    try:
        device = SplitQueue(
            GuestMemory([MappedRegion(0, 0, view)]), layout, FEATURES, max_readable=MOST, position=position
        )
    except FormatError:
        # Let it begin where the used ring is.
        (position,) = struct.unpack_from("<H", buffer, layout.used + 2)
        device = SplitQueue(
            GuestMemory([MappedRegion(0, 0, view)]), layout, FEATURES, max_readable=MOST, position=position
        )
    check_pops(device, size, view, rounds=100)


SCRIBBLER = """
import mmap, random, struct, sys
descriptor, end, size, available, seed = map(int, sys.argv[1:])
memory = mmap.mmap(descriptor, 0)
choose = random.Random(seed)
print("scribbling", flush=True)
while True:
    at = 16 * choose.randrange(end // 16)
    kind = choose.randrange(4)
    if kind == 0:
        struct.pack_into("<H", memory, at + 12, choose.choice((0, 1, 2, 3, 4, 5)))
    elif kind == 1:
        struct.pack_into("<H", memory, at + 14, choose.randrange(size + 1))
    elif kind == 2:
        struct.pack_into("<I", memory, at + 8, choose.choice((0, 1, 16, 160, 9000, 0xFFFFFFFF)))
    else:
        struct.pack_into("<Q", memory, at, choose.choice((0x1000 + 16 * choose.randrange(1024), 0xFFFFFFFFFFFF)))
    if not choose.randrange(64):
        struct.pack_into("<H", memory, available + 2, choose.randrange(65536))
"""


@pytest.mark.parametrize("size", [4, 64])
def test_memory_that_changes_while_it_is_read(size: int) -> None:
    """Another process writes to descriptors, and at times to the index, as fast as it can, until both have happened
    often: a chain was good, and the queue was broken.
    """
    descriptor = os.memfd_create("guest")
    os.ftruncate(descriptor, BYTES)
    mapping = mmap.mmap(descriptor, BYTES)
    driver = DriverQueue(GuestRam(mapping, guest_address=BASE), size, FEATURES)
    numbers = (descriptor, 16 * size, size, driver.available_at, size)
    choose = random.Random(size)
    taken = broken = 0
    with subprocess.Popen(
        [sys.executable, "-c", SCRIBBLER, *map(str, numbers)], stdout=subprocess.PIPE, pass_fds=[descriptor]
    ) as scribbler:
        try:
            os.close(descriptor)
            assert scribbler.stdout is not None
            assert scribbler.stdout.readline()
            while taken < 2000 or broken < 200:
                ram = GuestRam(mapping, guest_address=BASE)
                driver = DriverQueue(ram, size, FEATURES)
                device = SplitQueue(ram.memory(), driver.layout, FEATURES, max_readable=MOST)
                for _ in range(size):
                    try:
                        driver.add([b"head", b"body" * 10], [16, 100], indirect=choose.random() < 0.5)
                    except NoSpaceError:
                        break
                count = check_pops(device, size, ram.view, rounds=4 * size)
                taken += count
                broken += count < size
        finally:
            scribbler.kill()
