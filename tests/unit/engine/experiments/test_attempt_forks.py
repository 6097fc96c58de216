"""The forks of an experiment are made several at once, by real providers, and nothing of them is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine.experiments.attempts import Attempt, AttemptProgress, Order
from holdfast.engine.experiments.experiment import experiment
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.model.errors import HoldfastError, StorageError

from ..sessions.test_hooks import configure, script
from .test_experiment import content, forks_on_disk, order, sessions_left

Make = Callable[[], Sessions]
LONG = 60.0


def is_forking() -> bool:
    """Whether this thread makes a fork."""
    return threading.current_thread().name.startswith("fork")


class Gate:
    """What makes `Sessions`, as ``make`` does; ``enter`` is called with a number before each fork is made."""

    def __init__(self, make: Make, enter: Callable[[int], None]) -> None:
        self._make = make
        self._enter = enter
        self._lock = threading.Lock()
        self.forks = 0

    def __call__(self) -> Sessions:
        if is_forking():
            with self._lock:
                self.forks += 1
                number = self.forks
            self._enter(number)
        return self._make()


def test_forks_are_made_at_once(make: Make, session: Session) -> None:
    both = threading.Barrier(2, timeout=LONG)

    def enter(number: int) -> None:
        if number <= 2:
            both.wait()  # (Made one after the other, the first would wait for the second.)

    with experiment(Gate(make, enter), session, order("true", "true", parallel=2)) as found:
        assert found.comparison.statistics.succeeded == 2
    assert sessions_left(make) == ["main"]


def test_an_attempt_begins_while_forks_are_still_made(make: Make, session: Session) -> None:
    ran = threading.Event()

    def enter(number: int) -> None:
        if number == 2:
            assert ran.wait(LONG), "no attempt began"

    def tell(moved: AttemptProgress) -> None:
        if moved.phase == "done":
            ran.set()

    with experiment(Gate(make, enter), session, order("true", "true", "true", parallel=2), tell=tell) as found:
        assert found.comparison.statistics.succeeded == 3


def test_no_more_are_made_at_once_than_may_run(make: Make, session: Session) -> None:
    forking: set[int] = set()
    running: set[int] = set()
    most = {"forking": 0, "running": 0}

    def tell(moved: AttemptProgress) -> None:
        for phase, those in (("forking", forking), ("running", running)):
            (those.add if moved.phase == phase else those.discard)(moved.number)
            most[phase] = max(most[phase], len(those))

    with experiment(make, session, order(*["sleep 0.05"] * 5, parallel=2), tell=tell) as found:
        assert found.comparison.statistics.succeeded == 5
    assert most["forking"] <= 2
    assert most["running"] <= 2


def test_a_fork_that_cannot_be_made_ends_all_and_leaves_nothing(
    make: Make, session: Session, home: Path, tree: Path
) -> None:
    before = content(tree)

    def enter(number: int) -> None:
        if number == 3:
            raise StorageError("the disk is broken")

    with (
        pytest.raises(StorageError, match="the disk is broken"),
        experiment(Gate(make, enter), session, order("sleep 600", "sleep 600", "true", "true", parallel=2)),
    ):
        pytest.fail("a fork is missing")
    assert sessions_left(make) == ["main"]
    assert forks_on_disk(home) == []
    assert content(tree) == before


def test_cancelled_while_forks_are_made_it_leaves_nothing(make: Make, session: Session, home: Path) -> None:
    stop = threading.Event()
    gate = Gate(make, lambda number: stop.set() if number == 2 else None)
    with (
        pytest.raises(HoldfastError) as caught,
        experiment(gate, session, order(*["sleep 600"] * 6, parallel=2, keep=True), stop=stop),
    ):
        pytest.fail("it was cancelled")
    assert caught.value.code == "cancelled"
    # (Those that were not begun were never made.)
    assert sessions_left(make) == ["main"]
    assert forks_on_disk(home) == []


def test_the_session_counts_them_and_a_hook_hears_of_each(
    make: Make, session: Session, home: Path, tmp_path: Path
) -> None:
    with experiment(make, session, order("true", "true", "true")):
        assert session.state.metrics.forks == 3
    session.close()
    configure(home, script(tmp_path / "hook", f"cat >> {tmp_path}/told; echo >> {tmp_path}/told"), "after_fork")
    with make() as sessions, sessions.open("main") as again:
        with experiment(make, again, order("true", "true")) as found:
            assert found.comparison.statistics.succeeded == 2
        assert again.state.metrics.forks == 5
    assert (tmp_path / "told").read_text().count('"fork"') == 2


def test_a_tree_that_changes_while_forks_are_made_is_no_attempts(make: Make, session: Session, tree: Path) -> None:
    def enter(number: int) -> None:
        if number == 2:
            (tree / "a").write_text("mine\n")

    with experiment(Gate(make, enter), session, Order([Attempt(1, "1", "cat a"), Attempt(2, "2", "cat a")])) as found:
        for one in found.comparison.ranked:
            if one.phase == "failed":
                assert "another state" in one.error
            else:
                assert one.result is not None
                assert one.result.stdout == "a\n"
    assert content(tree)["a"] == "mine\n"
    assert not any(os.path.exists(one.root) for one in found.comparison.ranked)
