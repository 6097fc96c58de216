"""Which idle sessions are tried when: the plan, by a clock that goes only where a test moves it; and who does it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.idle import idle_schedule
from holdfast.engine.sessions.idle.idle_schedule import IdlePlan, IdleSaver
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.errors import StorageError
from holdfast.model.session_types import CommandResult, SessionId
from holdfast.store.catalog.session_records import UnsavedSession
from holdfast.testing.clocks import ManualClock

from .....waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.model.ids import WorkspaceId

ONE, TWO = SessionId("one"), SessionId("two")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def plan(clock: ManualClock) -> IdlePlan:
    return IdlePlan(30, clock)


def nobody(_session: SessionId) -> bool:
    return False


def test_one_is_tried_when_nothing_was_done_in_it_for_so_long(plan: IdlePlan, clock: ManualClock) -> None:
    one = UnsavedSession(ONE, 1, clock.now())
    clock.advance(10)
    two = UnsavedSession(TWO, 1, clock.now())
    clock.advance(19)
    assert plan.choose([one, two], nobody) == []
    clock.advance(1)
    assert plan.choose([one, two], nobody) == [ONE]
    clock.advance(10)
    assert plan.choose([one, two], nobody) == [ONE, TWO]


def test_one_that_is_open_is_asked_for_when_it_may_be_due_and_not_before(plan: IdlePlan, clock: ManualClock) -> None:
    one = UnsavedSession(ONE, 1, clock.now())
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


def test_of_many_some_are_tried_at_once_and_the_others_next(plan: IdlePlan, clock: ManualClock) -> None:
    unsaved = [UnsavedSession(SessionId(f"s{number}"), 1, clock.now()) for number in range(50)]
    clock.advance(30)
    tried: list[SessionId] = []
    while chosen := plan.choose(unsaved, nobody):
        assert len(chosen) <= 20
        tried += chosen
        for session in chosen:
            plan.later(session, None)
    assert tried == [one.session for one in unsaved]


def test_what_wants_to_be_left_alone_for_longer_is_until_something_happens_in_it(
    plan: IdlePlan, clock: ManualClock
) -> None:
    one, two = UnsavedSession(ONE, 1, clock.now()), UnsavedSession(TWO, 1, clock.now())
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


def test_what_fails_is_tried_at_growing_intervals_and_told_once(plan: IdlePlan, clock: ManualClock) -> None:
    one = UnsavedSession(ONE, 1, clock.now())
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


class Place:
    """A home with sessions that are idle at once."""

    def __init__(self, home: Path, tree: Path) -> None:
        self._flags: dict[str, object] = {"session.idle": 0, "session.min_interval": 0}
        holdfast.init(tree, home=home).close()
        self.sessions = Sessions(home=home, agent="me", flags=self._flags)
        self._opener = Opener(home=os.fsencode(home), flags=self._flags)
        self._workspace = self._opener.open(os.fsencode(tree)).workspace.id
        self._tree = tree
        self._begun: list[IdleSaver] = []

    def use(self, name: SessionId) -> None:
        """Begin a session with a command in it."""
        with self.sessions.start(self._tree, name) as session:
            entry = session.begin("true", level="changes")
            done = CommandResult(exit_code=0, stdout="", stderr="")
            session.end(entry, done, cwd=".", env=session.environment(), duration_ms=0)

    def begin(self) -> IdleSaver:
        self._begun.append(IdleSaver(self._opener, lambda: [self._workspace]))
        return self._begun[-1]

    def turn_until(self, condition: Callable[[], object], what: str) -> None:
        """Give each its turn, again and again."""

        def turned() -> object:
            for one in self._begun:
                one.turn()
            return condition()

        wait_until(turned, what)

    def end(self) -> None:
        for one in self._begun:
            one.end()
        self.sessions.close()
        self._opener.close()


@pytest.fixture
def place(home: Path, tree: Path) -> Iterator[Place]:
    found = Place(home, tree)
    yield found
    found.end()


def test_several_that_see_to_the_same_sessions_save_each_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for name in (ONE, TWO):
        place.use(name)
    for _ in range(3):
        place.begin()
    place.turn_until(lambda: not any(one.journal for one in place.sessions.list()), "both to be saved")
    place.end()
    assert [one.checkpoints for one in place.sessions.list()] == [2, 2]
    assert not [record for record in caplog.records if record.levelname != "INFO"]


def test_a_process_that_ends_before_it_has_saved_is_told_of_and_not_started_again_at_once(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ONE, TWO):
        place.use(name)
    real, started = idle_schedule.start_module, []

    def start(_module: str, **streams: Any) -> Any:
        started.append(real("sched", **streams))  # (which does nothing)
        return started[-1]

    monkeypatch.setattr(idle_schedule, "start_module", start)
    place.begin()
    place.turn_until(lambda: caplog.records, "that to be told")
    place.use(SessionId("three"))
    place.turn_until(lambda: "the session three" in caplog.text, "the third one to be tried")
    place.end()
    said = [record.getMessage().partition(" is idle, and cannot be saved: ") for record in caplog.records]
    assert [one for one, _, _ in said] == ["the session one", "the session three"]
    assert all("was ended" in why for _, _, why in said)
    assert len(started) == 2, "the first two are left alone for a while"
    caplog.clear()


def test_a_catalog_that_cannot_be_asked_is_told_of_once_and_asked_again(
    home: Path, tree: Path, caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    asked: list[int] = []

    def workspaces() -> list[WorkspaceId]:
        asked.append(1)
        raise StorageError("it is not there")

    holdfast.init(tree, home=home).close()
    opener = Opener(home=os.fsencode(home), clock=clock)
    found = IdleSaver(opener, workspaces)
    for _ in range(3):
        clock.advance(found.due_in())
        found.turn()
        found.turn()
    opener.close()
    assert len(asked) == 3
    (record,) = caplog.records
    assert "it is not there" in record.getMessage()
    caplog.clear()
