"""Steps that overlap and have to do with the same go together, and leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..conftest import Bench


class Keeper:
    """A service on the log of a bench, and steps that go on at the same time."""

    def __init__(self, bench: Bench, log: UndoLog) -> None:
        self.bench, self.log = bench, log
        self.service = LocalUndoService(log)

    def act(self, step: StepId, work: Callable[[InterceptedActor], object]) -> None:
        with InterceptedActor(self.log.recorder, os.fsencode(self.bench.tree), step) as actor:
            work(actor)

    def open(self, count: int) -> list[StepId]:
        return [self.service.open("command") for _ in range(count)]

    def close(self, *steps: StepId) -> None:
        for step in steps:
            self.service.close(step, 0)


@contextmanager
def opened(bench: Bench) -> Generator[Keeper]:
    with bench.keeper() as log:
        recover(log)
        yield Keeper(bench, log)


@pytest.fixture
def keeper(bench: Bench) -> Generator[Keeper]:
    for name in ("c", "d"):
        (bench.tree / name).mkdir()
    (bench.tree / "f").write_bytes(b"f")
    os.link(bench.tree / "f", bench.tree / "g")
    with opened(bench) as keeper:
        yield keeper


def test_what_is_in_between_goes_with_them(keeper: Keeper) -> None:
    """A third step, over before the second began with the same, has to go before the first can."""
    before = keeper.bench.photograph()
    one, two, three = keeper.open(3)
    keeper.act(one, lambda actor: actor.write(b"c/x", b"1"))
    keeper.act(three, lambda actor: actor.write(b"c/x", b"3"))
    keeper.close(three)
    keeper.act(one, lambda actor: actor.write(b"f", b"1"))
    keeper.act(two, lambda actor: actor.write(b"g", b"2"))
    keeper.act(one, lambda actor: actor.write(b"c/y", b"1"))
    keeper.close(one, two)
    after = keeper.bench.photograph()
    with pytest.raises(RefusedError, match=f"steps {one} and {three} have to do with"):
        keeper.service.undo([two])
    assert sorted(keeper.service.connected(two)) == [one, two, three]
    keeper.service.undo(keeper.service.connected(two))
    keeper.bench.assert_as(before)
    assert sorted(keeper.service.connected(one)) == [one, two, three]
    keeper.service.redo([one, two, three])
    keeper.bench.assert_as(after)


def test_one_that_is_over_before_the_other_acts_stays_alone(keeper: Keeper) -> None:
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"f", b"1"))
    keeper.close(one)
    between = keeper.bench.photograph()
    keeper.act(two, lambda actor: actor.write(b"g", b"2"))
    keeper.close(two)
    assert keeper.service.connected(two) == [two]
    keeper.service.undo([two])
    keeper.bench.assert_as(between)
    with pytest.raises(NotFoundError):
        keeper.service.connected(99)


def test_one_that_goes_on_is_waited_for(keeper: Keeper) -> None:
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"f", b"1"))
    keeper.act(two, lambda actor: actor.write(b"g", b"2"))
    keeper.close(one)
    with pytest.raises(RefusedError, match="still going on") as refused:
        keeper.service.undo(keeper.service.connected(one))
    assert refused.value.code == "step_open"


def test_what_is_moved_before_it_was_looked_at_is_no_edit_of_somebody_else(keeper: Keeper) -> None:
    before = keeper.bench.photograph()
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.rename(b"c", b"d/e"))
    keeper.act(two, lambda actor: actor.rename(b"d", b"c"))
    keeper.close(one, two)
    keeper.service.undo(keeper.service.connected(two))
    keeper.bench.assert_as(before)


def test_what_another_step_has_put_in_its_place_is_not_taken_for_it(keeper: Keeper) -> None:
    (keeper.bench.tree / "f").chmod(0o700)
    before = keeper.bench.photograph()
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.mkdir(b"n"))
    keeper.act(two, lambda actor: actor.chmod(b"d", 0o700))
    keeper.act(two, lambda actor: actor.exchange(b"f", b"d"))
    keeper.act(one, lambda actor: actor.write(b"f/x", b"1"))
    keeper.act(one, lambda actor: actor.chmod(b"d", 0o755))
    keeper.close(one, two)
    after = keeper.bench.photograph()
    both = [one, two]
    for _ in range(2):
        assert keeper.service.undo(both).conflicts == ()
        keeper.bench.assert_as(before)
        assert keeper.service.redo(both).conflicts == ()
        keeper.bench.assert_as(after)


def test_what_one_made_and_removed_is_not_missed_where_another_changed_it(keeper: Keeper) -> None:
    before = keeper.bench.photograph()
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.mkfifo(b"p"))
    keeper.act(two, lambda actor: (actor.chmod(b"p", 0o600), actor.write(b"x", b"2")))
    keeper.act(one, lambda actor: actor.write(b"t", b"1"))
    keeper.act(two, lambda actor: actor.write(b"t", b"22"))
    keeper.act(one, lambda actor: (actor.unlink(b"p"), actor.unlink(b"t")))
    keeper.close(one, two)
    assert keeper.service.undo(keeper.service.connected(two)).conflicts == ()
    keeper.bench.assert_as(before)


def test_what_is_named_is_what_both_have_to_do_with(keeper: Keeper) -> None:
    os.link(keeper.bench.tree / "f", keeper.bench.tree / "z")
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"f", b"1", at=0))
    keeper.close(one)
    keeper.act(two, lambda actor: (actor.write(b"alone", b"2"), actor.write(b"z", b"2", at=0)))
    keeper.close(two)
    with pytest.raises(RefusedError, match=f"step {two} has to do with f too"):
        keeper.service.undo([one])


def test_what_is_to_be_done_about_a_refused_redo_is_said_of_a_redo(keeper: Keeper) -> None:
    (one,) = keeper.open(1)
    keeper.act(one, lambda actor: actor.write(b"f", b"1"))
    keeper.close(one)
    keeper.service.undo([one])
    (keeper.bench.tree / "f").write_bytes(b"by hand")
    with pytest.raises(RefusedError) as refused:
        keeper.service.redo([one])
    assert refused.value.hint == (
        "--force redoes it nevertheless: undo gives back what that overwrites, and files that have replaced those of "
        "the step stay"
    )


def taken_back_and_brought_forward(keeper: Keeper, before: object, steps: list[StepId]) -> None:
    after = keeper.bench.photograph()
    keeper.service.undo(steps)
    assert keeper.bench.photograph() == before
    keeper.service.redo(steps)
    assert keeper.bench.photograph() == after


def test_what_a_step_described_lies_where_another_one_has_moved_it(keeper: Keeper) -> None:
    """I1: it has made something else at the old path since."""
    before = keeper.bench.photograph()
    (one,) = keeper.open(1)
    keeper.act(one, lambda actor: actor.mkdir(b"c/x"))
    keeper.close(one)
    two, three = keeper.open(2)
    keeper.act(two, lambda actor: actor.chmod(b"c/x", 0o700))
    keeper.act(three, lambda actor: actor.rename(b"c", b"e"))
    keeper.act(two, lambda actor: actor.mkdir(b"c"))
    keeper.act(two, lambda actor: actor.mkdir(b"c/x"))
    keeper.close(two, three)
    taken_back_and_brought_forward(keeper, before, [one, two, three])


def test_what_a_step_made_comes_back_with_what_another_one_has_moved(keeper: Keeper) -> None:
    """I1: when the step ended there was nothing where it had made it."""
    before = keeper.bench.photograph()
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"f", b"1"))
    keeper.act(one, lambda actor: actor.write(b"c/x", b"1"))
    keeper.act(one, lambda actor: actor.chmod(b"c/x", 0o700))
    keeper.act(two, lambda actor: actor.rename(b"c", b"e"))
    keeper.close(one)
    keeper.act(two, lambda actor: actor.rename(b"e", b"c"))
    keeper.close(two)
    taken_back_and_brought_forward(keeper, before, [one, two])


def test_what_others_change_where_another_step_has_moved_it_is_theirs(keeper: Keeper) -> None:
    """I8."""
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"c/x", b"1"))
    keeper.act(two, lambda actor: actor.rename(b"c", b"e"))
    keeper.act(one, lambda actor: actor.write(b"f", b"1"))
    keeper.close(one, two)
    (keeper.bench.tree / "e/x").write_bytes(b"theirs")
    with pytest.raises(RefusedError, match=r"another process has changed .*: e/x"):
        keeper.service.undo([one, two])


def test_what_a_step_made_it_changes_where_another_one_has_moved_it(keeper: Keeper) -> None:
    """I1: of what a step does to its own file nothing more is recorded."""
    before = keeper.bench.photograph()
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"x", b"1"))
    keeper.act(two, lambda actor: actor.rename(b"x", b"c/x"))
    keeper.close(two)
    keeper.act(one, lambda actor: actor.chmod(b"c/x", 0o4755))
    keeper.close(one)
    taken_back_and_brought_forward(keeper, before, [one, two])


def test_an_edit_where_another_step_has_moved_it_is_not_what_a_step_left(keeper: Keeper) -> None:
    """I8: though the step that made it ends only after the edit."""
    one, two = keeper.open(2)
    keeper.act(one, lambda actor: actor.write(b"x", b"1"))
    keeper.act(two, lambda actor: actor.rename(b"x", b"c/x"))
    keeper.close(two)
    (keeper.bench.tree / "c/x").write_bytes(b"theirs")
    keeper.service.record_foreign_edit([b"c/x"])
    keeper.close(one)
    with pytest.raises(RefusedError, match="c/x"):
        keeper.service.undo([one, two])
    assert (keeper.bench.tree / "c/x").read_bytes() == b"theirs"


def test_what_another_step_has_moved_away_is_known_to_be_gone(keeper: Keeper) -> None:
    """I1: whoever makes something there comes upon nobody's edit."""
    before = keeper.bench.photograph()
    (one,) = keeper.open(1)
    keeper.act(one, lambda actor: actor.write(b"x", b"1"))
    keeper.close(one)
    two, three = keeper.open(2)
    keeper.act(two, lambda actor: actor.unlink(b"x"))
    keeper.act(two, lambda actor: actor.write(b"x", b"2"))
    keeper.act(three, lambda actor: actor.rename(b"x", b"c/x"))
    keeper.close(two)
    keeper.act(three, lambda actor: actor.symlink(b"f", b"x"))
    keeper.close(three)
    assert keeper.service.barriers() == []
    taken_back_and_brought_forward(keeper, before, [one, two, three])
