"""Which thread takes requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from functools import partial
from queue import Empty, SimpleQueue

import pytest

from holdfast.bridge.server import request_threads
from holdfast.bridge.server.request_threads import Leader

from ....waiting import wait_until


class Others:
    """Threads that wait for their turn, and then do nothing more."""

    def __init__(self, turns: Leader) -> None:
        self._turns = turns
        self.threads: list[threading.Thread] = []
        self.leading: SimpleQueue[int] = SimpleQueue()

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.threads.append(threading.Thread(target=self._wait, args=(number,)))
            self.threads[-1].start()

    def _wait(self, number: int) -> None:
        if self._turns.wait(number):
            self.leading.put(number)


@pytest.fixture(name="made")
def _made() -> Generator[Callable[[], tuple[Leader, Others]]]:
    """Turns, of which this thread has number 0 and leads."""
    known: list[tuple[Leader, Others]] = []

    def make() -> tuple[Leader, Others]:
        turns = Leader()
        assert turns.wait(0)
        known.append((turns, Others(turns)))
        return known[-1]

    yield make
    for turns, others in known:
        turns.end()
        for thread in others.threads:
            thread.join(20)
            assert not thread.is_alive()


def test_one_leads_until_it_resigns(made: Callable[[], tuple[Leader, Others]]) -> None:
    turns, others = made()
    others.begin(1, 2, 3)
    wait_until(lambda: turns.is_watched)
    for _ in range(100):
        turns.note_taken(0)
        turns.note_waiting(0)
    with pytest.raises(Empty):
        others.leading.get(block=False)
    turns.resign(0)
    follower = others.leading.get(timeout=20)
    assert turns.leads(follower)
    assert not turns.leads(0)


def test_others_lead_one_by_one_while_those_before_are_kept(made: Callable[[], tuple[Leader, Others]]) -> None:
    turns, others = made()
    others.begin(1, 2, 3)
    seen = [0]
    for _ in range(3):
        turns.note_taken(seen[-1])  # and it never comes back
        seen.append(others.leading.get(timeout=20))
    assert sorted(seen) == [0, 1, 2, 3]
    assert not turns.leads(0)


def test_who_is_kept_after_a_while_without_requests_is_seen(made: Callable[[], tuple[Leader, Others]]) -> None:
    turns, others = made()
    others.begin(1)
    wait_until(lambda: turns.is_watched)
    wait_until(lambda: not turns.is_watched)  # nobody looks any more
    turns.note_taken(0)
    assert others.leading.get(timeout=20) == 1


def test_who_comes_back_waits_and_leads_again(made: Callable[[], tuple[Leader, Others]]) -> None:
    turns, others = made()
    others.begin(1)
    turns.resign(0)
    assert others.leading.get(timeout=20) == 1
    others.begin(0)
    turns.resign(1)
    assert others.leading.get(timeout=20) == 0
    turns.note_taken(1)  # as one that has not heard that it leads no more
    turns.note_waiting(1)
    assert turns.leads(0)


def test_nobody_waits_when_it_is_over(made: Callable[[], tuple[Leader, Others]]) -> None:
    turns, others = made()
    others.begin(1, 2)
    turns.end()
    for thread in others.threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not turns.wait(0)
    assert others.leading.empty()


def test_all_lead_where_it_is_not_to_be_one_alone() -> None:
    turns = Leader(alone=False)
    assert all(turns.wait(number) and turns.leads(number) for number in range(4))
    turns.resign(1)
    assert turns.leads(1)
    turns.end()
    assert not turns.wait(1)


def test_what_has_no_thread_of_its_own_waits_for_one_and_is_refused_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_threads, "MOST_HELD", 4)
    slow = request_threads.SlowRequests(request_threads.ServingThreads(), most=1)
    go, done = threading.Event(), SimpleQueue[int]()

    def work(number: int) -> None:
        assert go.wait(20)
        done.put(number)

    assert all(slow.do(partial(work, number)) for number in range(4))
    assert not slow.do(partial(work, 4))
    go.set()
    assert [done.get(timeout=20) for _ in range(4)] == [0, 1, 2, 3]
    assert slow.join(20)
    assert slow.do(partial(work, 5))
    assert done.get(timeout=20) == 5
    assert slow.join(20)
