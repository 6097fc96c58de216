"""What waits for a client: in order, in bounded memory, and given up when nobody reads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.api.stdio._outbox import MAX_OFFERED, MAX_OWED_BYTES, MAX_STREAMED_BYTES, Outbox
from holdfast.model.clock import Clock
from holdfast.testing.clocks import ManualClock

PIPE = 1 << 16


class Client:
    """The other end of an outbox."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.fd, self.other = os.pipe()
        self.changes = threading.Semaphore(0)
        self.outbox = Outbox(
            self.other, lost=lambda count: b"lost %d\n" % count, changed=self.changes.release, clock=clock
        )

    def stop_reading(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def stop_writing(self) -> None:
        """Wait until the outbox writes no more: the number of its descriptor may be another file's at once."""
        if self.other >= 0:
            self.outbox.finish(60, time.monotonic())
            self.outbox._thread.join(60)
            os.close(self.other)
            self.other = -1

    def fill(self) -> None:
        """Until the writer is busy, and what comes now has to wait."""
        self.outbox.owe(b"x" * (2 * PIPE) + b"\n")

    def lines(self, until: Callable[[], object] = lambda: None) -> list[bytes]:
        """All that is written until the outbox is done, which nobody uses any more when ``until`` has returned."""
        found = bytearray()
        reader = threading.Thread(
            target=lambda: [found.extend(piece) for piece in iter(lambda: os.read(self.fd, PIPE), b"")]
        )
        reader.start()
        until()
        self.stop_writing()
        reader.join()
        return [bytes(line) for line in found.split(b"\n")[:-1] if not line.startswith(b"xx")]


@pytest.fixture(name="client")
def _client() -> Iterator[Client]:
    client = Client()
    yield client
    client.stop_reading()
    client.stop_writing()


def never() -> bool:
    return False


def test_lines_are_written_in_order_whatever_they_are(client: Client) -> None:
    client.fill()
    client.outbox.owe(b"1\n")
    client.outbox.offer(b"2\n")
    assert client.outbox.stream(b"3\n", never)
    client.outbox.owe(b"4\n")
    assert client.lines() == [b"1", b"2", b"3", b"4"]


def test_too_many_events_are_counted_and_that_is_said(client: Client) -> None:
    client.fill()
    for number in range(MAX_OFFERED + 7):
        client.outbox.offer(b"%d\n" % number)
    client.outbox.owe(b"owed\n")
    lines = client.lines()
    assert lines[:MAX_OFFERED] == [b"%d" % number for number in range(MAX_OFFERED)]
    assert sorted(lines[MAX_OFFERED:]) == [b"lost 7", b"owed"]


def test_a_stream_waits_for_room(client: Client) -> None:
    line = b"x" * (1 << 17) + b"\n"
    count = 16 * MAX_STREAMED_BYTES // len(line)
    taken: list[bool] = []
    waiting: list[int] = []
    full = threading.Event()

    def look() -> bool:
        waiting.append(client.outbox._bytes["streamed"])
        if waiting[-1] >= MAX_STREAMED_BYTES:
            full.set()
        return False

    thread = threading.Thread(target=lambda: taken.extend(client.outbox.stream(line, look) for _ in range(count)))
    thread.start()
    assert full.wait(60)
    assert client.lines(thread.join) == []
    assert taken == [True] * count
    assert max(waiting) < MAX_STREAMED_BYTES + len(line)


def test_whoever_streams_can_be_told_to_give_up(client: Client) -> None:
    given_up = threading.Event()
    results: list[bool] = []

    def stream() -> None:
        while not results or results[-1]:
            results.append(client.outbox.stream(b"x" * (1 << 17) + b"\n", given_up.is_set))

    thread = threading.Thread(target=stream)
    thread.start()
    given_up.set()
    client.outbox.nudge()
    thread.join(60)
    assert not thread.is_alive()
    assert len(results) <= 2 + (MAX_STREAMED_BYTES + 2 * PIPE) // (1 << 17)


def test_there_is_room_again_when_something_was_read(client: Client) -> None:
    client.outbox.owe(b"x" * MAX_OWED_BYTES + b"\n")
    assert not client.outbox.has_room
    assert not client.changes.acquire(blocking=False)
    assert client.lines() == []
    assert client.changes.acquire(timeout=60)
    assert client.outbox.has_room


def test_when_nobody_reads_any_more_nobody_waits(client: Client) -> None:
    client.fill()
    client.stop_reading()
    assert client.changes.acquire(timeout=60)
    assert client.outbox.is_broken
    assert not client.outbox.stream(b"1\n", never)
    client.outbox.owe(b"2\n")
    client.outbox.finish(60, time.monotonic())


def test_the_end_does_not_wait_for_ever(client: Client) -> None:
    client.fill()
    client.outbox.finish(0.01, time.monotonic())


def test_a_descriptor_that_does_not_block(client: Client) -> None:
    os.set_blocking(client.other, False)
    client.fill()
    client.outbox.owe(b"1\n")
    assert client.lines() == [b"1"]


def test_who_has_read_nothing_for_long_when_the_end_is_reached_is_not_waited_for_again() -> None:
    clock = ManualClock()
    client = Client(clock)
    client.fill()
    since = clock.monotonic()
    clock.advance(1000)  # while what runs is ended
    client.outbox.owe(b"an answer\n")
    client.outbox.finish(1000, since)
    os.read(client.fd, PIPE)
    client.stop_reading()
    client.stop_writing()


def test_an_answer_that_comes_late_is_waited_for(client: Client) -> None:
    client.outbox.owe(b"an answer\n")
    client.outbox.finish(60, time.monotonic() - 1000)
    assert os.read(client.fd, PIPE) == b"an answer\n"
