"""A driver and a device at one ring, whatever they do in what order: what comes out is what was put in, in its order,
what was used comes back, and neither sleeps while there is something to do.
"""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.testing.virtqueue_driver import DriverQueue, GuestRam, NoSpaceError
from holdfast.wire.virtio.feature_bits import Feature
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion
from holdfast.wire.virtio.split_queue import Chain, SplitQueue, fill

MOST = 4096
INDIRECT = int(Feature.INDIRECT_DESC)
FEATURES = st.sampled_from([INDIRECT, INDIRECT | int(Feature.EVENT_IDX)])
PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
ROOM = st.lists(st.integers(1, 40), max_size=4)


class Ring(RuleBasedStateMachine):
    """``kicked`` and ``called`` are the two events."""

    @initialize(
        size=st.sampled_from([1, 2, 4, 16]),
        features=FEATURES,
        position=st.sampled_from([0, 3, 32_767, 65_533]),
        border=st.integers(1, 8191),
    )
    def begin(self, size: int, features: int, position: int, border: int) -> None:
        ram = GuestRam(bytearray(8192), guest_address=0x1000)
        self.driver = DriverQueue(ram, size, features, position=position)
        end = self.driver.used_at + 6 + 8 * size
        # Rings are in one region, buffers may lie across the border of two.
        cut = min(max(border, end), 8191)
        self.regions = [
            MappedRegion(0x1000, ram.user_address, ram.view[:cut]),
            MappedRegion(0x1000 + cut, ram.user_address + (1 << 32), ram.view[cut:]),
        ]
        self.features = features
        self.device = self.device_at(position, 0)
        self.waiting: deque[tuple[int, bytes, list[int]]] = deque()
        self.taken: list[Chain] = []
        self.used: deque[tuple[int, bytes]] = deque()
        self.kicked = self.called = False
        self.device_sleeps = self.driver_sleeps = False

    def device_at(self, position: int, in_flight: int) -> SplitQueue:
        memory = GuestMemory(self.regions)
        return SplitQueue(
            memory, self.driver.layout, self.features, max_readable=MOST, position=position, in_flight=in_flight
        )

    @rule(pieces=PIECES, room=ROOM, indirect=st.booleans(), tell=st.booleans())
    def add(self, pieces: list[bytes], room: list[int], indirect: bool, tell: bool) -> None:
        if not pieces and not room:
            pieces = [b"."]
        try:
            head = self.driver.add(pieces, room, indirect=indirect)
        except NoSpaceError:
            return
        self.waiting.append((head, b"".join(pieces), room))
        if tell:
            self.tell()

    @rule()
    def tell(self) -> None:
        if self.driver.wants_kick():
            self.kicked, self.device_sleeps = True, False

    @rule()
    def pop(self) -> None:
        chain = self.device.pop()
        if not self.waiting:
            assert chain is None
            return
        head, data, room = self.waiting.popleft()
        assert chain is not None
        assert (chain.head, chain.readable, sum(map(len, chain.writable))) == (head, data, sum(room))
        self.taken.append(chain)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), reply=st.binary(max_size=60))
    def push(self, data: st.DataObject, reply: bytes) -> None:
        chain = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        reply = reply[: sum(map(len, chain.writable))]
        self.device.push(chain.head, fill(chain.writable, reply))
        self.used.append((chain.head, reply))
        if self.device.wants_call():
            self.called, self.driver_sleeps = True, False

    @rule()
    def take_used(self) -> None:
        self.called = False
        self.driver.request_calls()
        for used in self.driver.take_used():
            head, reply = self.used.popleft()
            assert (used.head, used.written, used.data[: used.written]) == (head, len(reply), reply)
        assert not self.used
        self.driver_sleeps = True

    @rule()
    def work_without_kicks(self) -> None:
        self.device_sleeps = False
        self.device.suppress_kicks()

    @precondition(lambda self: not self.waiting)
    @rule()
    def wait_for_a_kick(self) -> None:
        self.kicked = False
        assert not self.device.request_kicks()
        self.device_sleeps = True

    @precondition(lambda self: self.waiting)
    @rule()
    def not_wait_for_a_kick(self) -> None:
        assert self.device.request_kicks()

    @rule()
    def pause(self) -> None:
        """Another object goes on, as after GET_VRING_BASE and SET_VRING_KICK."""
        self.device = self.device_at(self.device.position, self.device.in_flight)
        self.device_sleeps = False

    @rule()
    def remap(self) -> None:
        self.device.remap(GuestMemory(self.regions))

    @invariant()
    def counts(self) -> None:
        assert self.device.in_flight == len(self.taken)
        assert self.driver.in_flight == len(self.taken) + len(self.waiting) + len(self.used)

    def teardown(self) -> None:
        """Whoever sleeps now is woken by the next thing there is to do."""
        if not hasattr(self, "driver"):
            return
        if self.device_sleeps:
            self.tell()
            assert not self.waiting or self.kicked
        if self.driver_sleeps:
            assert not self.used or self.called


TestRing = Ring.TestCase
