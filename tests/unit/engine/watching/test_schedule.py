"""When a checkpoint is due."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.watching._schedule import Pace, Scheduler
from holdfast.model.errors import UsageError


class FakeClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> int:
        return int(self.time * 1e6)

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def scheduler(clock: FakeClock) -> Scheduler:
    return Scheduler(Pace(), clock)


def test_nothing_is_due_when_nothing_changed(scheduler: Scheduler) -> None:
    assert scheduler.due_in() is None
    assert not scheduler.unsaved


def test_due_when_nothing_has_changed_for_a_while(scheduler: Scheduler, clock: FakeClock) -> None:
    scheduler.changed()
    assert scheduler.due_in() == 5
    clock.time += 3
    scheduler.changed()
    assert scheduler.due_in() == 5
    clock.time += 5
    assert scheduler.due_in() == 0
    clock.time += 100
    assert scheduler.due_in() == 0
    scheduler.saved()
    assert scheduler.due_in() is None


def test_what_goes_on_changing_is_due_at_the_latest(scheduler: Scheduler, clock: FakeClock) -> None:
    assert scheduler.due_within() is None
    scheduler.changed()
    for _ in range(99):
        clock.time += 3
        scheduler.changed()
    assert (scheduler.due_in(), scheduler.due_within()) == (3, 3)
    scheduler.saved()
    scheduler.changed()
    assert (scheduler.due_in(), scheduler.due_within()) == (5, 300)
    scheduler.failed()
    assert (scheduler.due_in(), scheduler.due_within()) == (5, 300)
    scheduler.pause()
    assert scheduler.due_within() is None


def test_a_doubt_is_saved_and_puts_nothing_off(scheduler: Scheduler, clock: FakeClock) -> None:
    scheduler.doubted()
    assert scheduler.unsaved
    clock.time += 3
    scheduler.doubted()
    assert scheduler.due_in() == 2
    scheduler.changed()
    assert scheduler.due_in() == 5


def test_due_at_the_latest_while_changes_go_on(scheduler: Scheduler, clock: FakeClock) -> None:
    for _ in range(299):
        scheduler.changed()
        assert scheduler.due_in() != 0
        clock.time += 1
    scheduler.changed()
    assert scheduler.due_in() == 1
    clock.time += 1
    scheduler.changed()
    assert scheduler.due_in() == 0
    scheduler.saved()
    scheduler.changed()
    assert scheduler.due_in() == 5  # the next stretch begins anew


def saves_of_constant_edits(clock: FakeClock, pace: Pace, hours: float) -> list[float]:
    """When an editor that writes as soon as all is saved is saved."""
    scheduler = Scheduler(pace, clock)
    start = clock.time
    found: list[float] = []
    while clock.time - start < hours * 3600:
        scheduler.changed()
        wait = scheduler.due_in()
        assert wait is not None
        clock.time += wait
        scheduler.saved()
        found.append(clock.time - start)
    return found


def test_the_budget_of_an_hour_is_spread_over_it(clock: FakeClock) -> None:
    saves = saves_of_constant_edits(clock, Pace(), 3)
    waits = [later - earlier for earlier, later in itertools.pairwise(saves)]
    assert waits[:4] == pytest.approx([5, 5, 6, 8])  # at first as soon as the edits pause
    assert waits[:40] == sorted(waits[:40])
    assert max(waits) <= 120  # twice the even interval: no edit waits for longer
    for start in range(0, 7200, 60):
        in_hour = sum(1 for save in saves if start <= save < start + 3600)
        assert 30 <= in_hour <= 60


@pytest.mark.parametrize("per_hour", [1, 2, 3, 7, 60, 3600])
def test_a_budget_of_any_size_is_never_exceeded_and_never_blocks_for_long(clock: FakeClock, per_hour: int) -> None:
    saves = saves_of_constant_edits(clock, Pace(debounce=0.0, per_hour=per_hour), 3)
    assert max(later - earlier for earlier, later in itertools.pairwise(saves)) <= 2 * 3600 / per_hour + 1e-6
    for earlier, later in zip(saves, saves[per_hour:], strict=False):
        assert later - earlier >= 3600 - 1e-6


def test_an_hour_without_edits_gives_the_budget_back(scheduler: Scheduler, clock: FakeClock) -> None:
    for _ in range(50):
        scheduler.changed()
        scheduler.saved()
    scheduler.changed()
    assert scheduler.due_in() == 2 * 3600 * 50 / 60**2
    clock.time += 3600
    scheduler.saved()
    scheduler.changed()
    assert scheduler.due_in() == 5


def test_what_does_not_count_does_not_use_up_the_limit(clock: FakeClock) -> None:
    scheduler = Scheduler(Pace(per_hour=1), clock)
    for _ in range(10):
        scheduler.changed()
        scheduler.saved(counted=False)
    scheduler.changed()
    assert scheduler.due_in() == 5


def test_a_pause_holds_back_and_nothing_is_forgotten(scheduler: Scheduler, clock: FakeClock) -> None:
    scheduler.pause()
    scheduler.pause()
    scheduler.changed()
    clock.time += 1000
    assert scheduler.due_in() is None
    scheduler.resume()
    assert scheduler.paused
    assert scheduler.due_in() is None
    scheduler.resume()
    assert scheduler.due_in() == 0
    scheduler.resume()  # one too many
    scheduler.pause()
    assert scheduler.paused


def test_failures_are_repeated_ever_later(scheduler: Scheduler, clock: FakeClock) -> None:
    scheduler.changed()
    clock.time += 5
    waits: list[float | None] = []
    for _ in range(9):
        assert scheduler.due_in() == 0
        scheduler.failed()
        wait = scheduler.due_in()
        assert wait is not None
        waits.append(wait)
        clock.time += wait
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert scheduler.unsaved
    assert scheduler.failures == 9
    scheduler.saved()
    scheduler.changed()
    assert scheduler.due_in() == 5
    assert scheduler.failures == 0


def test_a_thousand_failures(scheduler: Scheduler) -> None:
    scheduler.changed()
    for _ in range(2000):
        scheduler.failed()
    assert scheduler.due_in() == 300


@pytest.mark.parametrize(
    "pace", [Pace(per_hour=0), Pace(debounce=-1), Pace(latest=float("nan")), Pace(last_retry=float("inf"))]
)
def test_a_pace_that_makes_no_sense(pace: Pace, clock: FakeClock) -> None:
    with pytest.raises(UsageError):
        Scheduler(pace, clock)


@settings(deadline=None, max_examples=200)
@given(
    pace=st.builds(
        Pace,
        debounce=st.floats(0, 20),
        latest=st.floats(0, 400),
        per_hour=st.integers(1, 5),
        first_retry=st.floats(0, 10),
        last_retry=st.floats(0, 100),
    ),
    steps=st.lists(
        st.tuples(st.sampled_from(["changed", "failed", "wait", "pause", "resume"]), st.floats(0, 900)), max_size=60
    ),
)
def test_the_promises_hold_over_any_course(pace: Pace, steps: list[tuple[str, float]]) -> None:
    """Saving whenever it is due: never over the limit, never before the debounce, never later than allowed."""
    clock = FakeClock()
    scheduler = Scheduler(pace, clock)
    saves: list[float] = []
    first: float | None = None
    last = 0.0
    for what, amount in [*steps, *[("resume", 0.0)] * len(steps), ("wait", 10_000.0)]:
        end = clock.time
        match what:
            case "changed":
                scheduler.changed()
                last = clock.time
                first = last if first is None else first
            case "failed":
                scheduler.failed()
            case "pause":
                scheduler.pause()
            case "resume":
                scheduler.resume()
            case _:
                end += amount
        while (wait := scheduler.due_in()) is not None and clock.time + wait <= end:
            assert first is not None
            clock.time += wait
            assert scheduler.due_in() == pytest.approx(0, abs=1e-6)
            assert clock.time >= min(last + pace.debounce, first + pace.latest) - 1e-6
            scheduler.saved()
            saves.append(clock.time)
            first = None
            assert sum(1 for save in saves if save > clock.time - 3600 + 1e-6) <= pace.per_hour
        clock.time = end
    assert not scheduler.unsaved  # nothing is forgotten once there was time enough
