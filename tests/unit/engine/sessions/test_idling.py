"""Which idle sessions are tried when: the plan, by a clock that goes only where a test moves it."""

from __future__ import annotations

import pytest

from holdfast.engine.sessions.idling import Plan
from holdfast.model.session import SessionId
from holdfast.store.session_records import Unsaved
from holdfast.testing.clocks import ManualClock

ONE, TWO = SessionId("one"), SessionId("two")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def plan(clock: ManualClock) -> Plan:
    return Plan(30, clock)


def nobody(_session: SessionId) -> bool:
    return False


def test_one_is_tried_when_nothing_was_done_in_it_for_so_long(plan: Plan, clock: ManualClock) -> None:
    one = Unsaved(ONE, 1, clock.now())
    clock.advance(10)
    two = Unsaved(TWO, 1, clock.now())
    clock.advance(19)
    assert plan.choose([one, two], nobody) == []
    clock.advance(1)
    assert plan.choose([one, two], nobody) == [ONE]
    clock.advance(10)
    assert plan.choose([one, two], nobody) == [ONE, TWO]


def test_one_that_is_open_is_asked_for_when_it_may_be_due_and_not_before(plan: Plan, clock: ManualClock) -> None:
    one = Unsaved(ONE, 1, clock.now())
    asked: list[SessionId] = []

    def is_open(session: SessionId) -> bool:
        asked.append(session)
        return len(asked) < 3

    assert plan.choose([one], is_open) == []
    assert asked == []
    clock.advance(30)
    assert plan.choose([one], is_open) == []
    assert plan.choose([one], is_open) == []
    assert plan.choose([one], is_open) == [ONE]


def test_of_many_some_are_tried_at_once_and_the_others_next(plan: Plan, clock: ManualClock) -> None:
    unsaved = [Unsaved(SessionId(f"s{number}"), 1, clock.now()) for number in range(50)]
    clock.advance(30)
    tried: list[SessionId] = []
    while chosen := plan.choose(unsaved, nobody):
        assert len(chosen) <= 20
        tried += chosen
        for session in chosen:
            plan.later(session, None)
    assert tried == [one.session for one in unsaved]


def test_what_wants_to_be_left_alone_for_longer_is_until_something_happens_in_it(
    plan: Plan, clock: ManualClock
) -> None:
    one, two = Unsaved(ONE, 1, clock.now()), Unsaved(TWO, 1, clock.now())
    clock.advance(30)
    plan.choose([one, two], nobody)
    plan.later(ONE, 100)
    plan.later(TWO, None)
    clock.advance(99)
    assert plan.choose([one, two], nobody) == []
    clock.advance(1)
    assert plan.choose([one, two], nobody) == [ONE]
    plan.later(ONE, 0.001)
    clock.advance(0.5)
    assert plan.choose([one, two], nobody) == [], "no process is started so soon"
    clock.advance(1_000_000)
    assert plan.choose([one, two], nobody) == [ONE]
    assert plan.choose([two._replace(revision=2)], nobody) == [TWO]


def test_what_fails_is_tried_at_growing_intervals_and_told_once(plan: Plan, clock: ManualClock) -> None:
    one = Unsaved(ONE, 1, clock.now())
    clock.advance(30)
    plan.choose([one], nobody)
    assert plan.failed(ONE, "no room")
    waits: list[int] = []
    for _ in range(10):
        waits.append(0)
        while not plan.choose([one], nobody):
            clock.advance(10)
            waits[-1] += 10
        assert not plan.failed(ONE, "no room")
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    again = one._replace(revision=2, updated_at=clock.now())
    clock.advance(30)
    assert plan.choose([again], nobody) == [ONE], "something has happened in it"
    assert not plan.failed(ONE, "no room")
    assert not plan.failed(ONE), "nobody is told that somebody is at it"
    assert plan.failed(ONE, "not there")
    plan.choose([], nobody)
    plan.choose([again], nobody)
    assert plan.failed(ONE, "not there"), "it was saved in between"
