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


class Office:
    """A desk on the log of a bench, and steps that go on at the same time."""

    def __init__(self, bench: Bench, log: UndoLog) -> None:
        self.bench, self.log = bench, log
        self.desk = LocalUndoService(log)

    def act(self, step: StepId, work: Callable[[InterceptedActor], object]) -> None:
        with InterceptedActor(self.log.recorder, os.fsencode(self.bench.tree), step) as actor:
            work(actor)

    def open(self, count: int) -> list[StepId]:
        return [self.desk.open("command") for _ in range(count)]

    def close(self, *steps: StepId) -> None:
        for step in steps:
            self.desk.close(step, 0)


@contextmanager
def opened(bench: Bench) -> Generator[Office]:
    with bench.keeper() as log:
        recover(log)
        yield Office(bench, log)


@pytest.fixture
def office(bench: Bench) -> Generator[Office]:
    for name in ("c", "d"):
        (bench.tree / name).mkdir()
    (bench.tree / "f").write_bytes(b"f")
    os.link(bench.tree / "f", bench.tree / "g")
    with opened(bench) as office:
        yield office


def test_what_is_in_between_goes_with_them(office: Office) -> None:
    """A third step, over before the second began with the same, has to go before the first can."""
    before = office.bench.photograph()
    one, two, three = office.open(3)
    office.act(one, lambda actor: actor.write(b"c/x", b"1"))
    office.act(three, lambda actor: actor.write(b"c/x", b"3"))
    office.close(three)
    office.act(one, lambda actor: actor.write(b"f", b"1"))
    office.act(two, lambda actor: actor.write(b"g", b"2"))
    office.act(one, lambda actor: actor.write(b"c/y", b"1"))
    office.close(one, two)
    after = office.bench.photograph()
    with pytest.raises(RefusedError, match=f"steps {one} and {three} have to do with"):
        office.desk.undo([two])
    assert sorted(office.desk.connected(two)) == [one, two, three]
    office.desk.undo(office.desk.connected(two))
    office.bench.assert_as(before)
    assert sorted(office.desk.connected(one)) == [one, two, three]
    office.desk.redo([one, two, three])
    office.bench.assert_as(after)


def test_one_that_is_over_before_the_other_acts_stays_alone(office: Office) -> None:
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"f", b"1"))
    office.close(one)
    between = office.bench.photograph()
    office.act(two, lambda actor: actor.write(b"g", b"2"))
    office.close(two)
    assert office.desk.connected(two) == [two]
    office.desk.undo([two])
    office.bench.assert_as(between)
    with pytest.raises(NotFoundError):
        office.desk.connected(99)


def test_one_that_goes_on_is_waited_for(office: Office) -> None:
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"f", b"1"))
    office.act(two, lambda actor: actor.write(b"g", b"2"))
    office.close(one)
    with pytest.raises(RefusedError, match="still going on") as refused:
        office.desk.undo(office.desk.connected(one))
    assert refused.value.code == "step_open"


def test_what_is_moved_before_it_was_looked_at_is_no_edit_of_somebody_else(office: Office) -> None:
    before = office.bench.photograph()
    one, two = office.open(2)
    office.act(one, lambda actor: actor.rename(b"c", b"d/e"))
    office.act(two, lambda actor: actor.rename(b"d", b"c"))
    office.close(one, two)
    office.desk.undo(office.desk.connected(two))
    office.bench.assert_as(before)


def test_what_another_step_has_put_in_its_place_is_not_taken_for_it(office: Office) -> None:
    (office.bench.tree / "f").chmod(0o700)
    before = office.bench.photograph()
    one, two = office.open(2)
    office.act(one, lambda actor: actor.mkdir(b"n"))
    office.act(two, lambda actor: actor.chmod(b"d", 0o700))
    office.act(two, lambda actor: actor.exchange(b"f", b"d"))
    office.act(one, lambda actor: actor.write(b"f/x", b"1"))
    office.act(one, lambda actor: actor.chmod(b"d", 0o755))
    office.close(one, two)
    after = office.bench.photograph()
    both = [one, two]
    for _ in range(2):
        assert office.desk.undo(both).conflicts == ()
        office.bench.assert_as(before)
        assert office.desk.redo(both).conflicts == ()
        office.bench.assert_as(after)


def test_what_one_made_and_removed_is_not_missed_where_another_changed_it(office: Office) -> None:
    before = office.bench.photograph()
    one, two = office.open(2)
    office.act(one, lambda actor: actor.mkfifo(b"p"))
    office.act(two, lambda actor: (actor.chmod(b"p", 0o600), actor.write(b"x", b"2")))
    office.act(one, lambda actor: actor.write(b"t", b"1"))
    office.act(two, lambda actor: actor.write(b"t", b"22"))
    office.act(one, lambda actor: (actor.unlink(b"p"), actor.unlink(b"t")))
    office.close(one, two)
    assert office.desk.undo(office.desk.connected(two)).conflicts == ()
    office.bench.assert_as(before)


def test_what_is_named_is_what_both_have_to_do_with(office: Office) -> None:
    os.link(office.bench.tree / "f", office.bench.tree / "z")
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"f", b"1", at=0))
    office.close(one)
    office.act(two, lambda actor: (actor.write(b"alone", b"2"), actor.write(b"z", b"2", at=0)))
    office.close(two)
    with pytest.raises(RefusedError, match=f"step {two} has to do with f too"):
        office.desk.undo([one])


def test_what_is_to_be_done_about_a_refused_redo_is_said_of_a_redo(office: Office) -> None:
    (one,) = office.open(1)
    office.act(one, lambda actor: actor.write(b"f", b"1"))
    office.close(one)
    office.desk.undo([one])
    (office.bench.tree / "f").write_bytes(b"by hand")
    with pytest.raises(RefusedError) as refused:
        office.desk.redo([one])
    assert refused.value.hint == "--force redoes it nevertheless; undo gives their version back"


def taken_back_and_brought_forward(office: Office, before: object, steps: list[StepId]) -> None:
    after = office.bench.photograph()
    office.desk.undo(steps)
    assert office.bench.photograph() == before
    office.desk.redo(steps)
    assert office.bench.photograph() == after


def test_what_a_step_described_lies_where_another_one_has_moved_it(office: Office) -> None:
    """I1: it has made something else at the old path since."""
    before = office.bench.photograph()
    (one,) = office.open(1)
    office.act(one, lambda actor: actor.mkdir(b"c/x"))
    office.close(one)
    two, three = office.open(2)
    office.act(two, lambda actor: actor.chmod(b"c/x", 0o700))
    office.act(three, lambda actor: actor.rename(b"c", b"e"))
    office.act(two, lambda actor: actor.mkdir(b"c"))
    office.act(two, lambda actor: actor.mkdir(b"c/x"))
    office.close(two, three)
    taken_back_and_brought_forward(office, before, [one, two, three])


def test_what_a_step_made_comes_back_with_what_another_one_has_moved(office: Office) -> None:
    """I1: when the step ended there was nothing where it had made it."""
    before = office.bench.photograph()
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"f", b"1"))
    office.act(one, lambda actor: actor.write(b"c/x", b"1"))
    office.act(one, lambda actor: actor.chmod(b"c/x", 0o700))
    office.act(two, lambda actor: actor.rename(b"c", b"e"))
    office.close(one)
    office.act(two, lambda actor: actor.rename(b"e", b"c"))
    office.close(two)
    taken_back_and_brought_forward(office, before, [one, two])


def test_what_others_change_where_another_step_has_moved_it_is_theirs(office: Office) -> None:
    """I8."""
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"c/x", b"1"))
    office.act(two, lambda actor: actor.rename(b"c", b"e"))
    office.act(one, lambda actor: actor.write(b"f", b"1"))
    office.close(one, two)
    (office.bench.tree / "e/x").write_bytes(b"theirs")
    with pytest.raises(RefusedError, match=r"somebody else has changed .*: e/x"):
        office.desk.undo([one, two])


def test_what_a_step_made_it_changes_where_another_one_has_moved_it(office: Office) -> None:
    """I1: of what a step does to its own file nothing more is recorded."""
    before = office.bench.photograph()
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"x", b"1"))
    office.act(two, lambda actor: actor.rename(b"x", b"c/x"))
    office.close(two)
    office.act(one, lambda actor: actor.chmod(b"c/x", 0o4755))
    office.close(one)
    taken_back_and_brought_forward(office, before, [one, two])


def test_an_edit_where_another_step_has_moved_it_is_not_what_a_step_left(office: Office) -> None:
    """I8: though the step that made it ends only after the edit."""
    one, two = office.open(2)
    office.act(one, lambda actor: actor.write(b"x", b"1"))
    office.act(two, lambda actor: actor.rename(b"x", b"c/x"))
    office.close(two)
    (office.bench.tree / "c/x").write_bytes(b"theirs")
    office.desk.outside([b"c/x"])
    office.close(one)
    with pytest.raises(RefusedError, match="c/x"):
        office.desk.undo([one, two])
    assert (office.bench.tree / "c/x").read_bytes() == b"theirs"


def test_what_another_step_has_moved_away_is_known_to_be_gone(office: Office) -> None:
    """I1: whoever makes something there comes upon nobody's edit."""
    before = office.bench.photograph()
    (one,) = office.open(1)
    office.act(one, lambda actor: actor.write(b"x", b"1"))
    office.close(one)
    two, three = office.open(2)
    office.act(two, lambda actor: actor.unlink(b"x"))
    office.act(two, lambda actor: actor.write(b"x", b"2"))
    office.act(three, lambda actor: actor.rename(b"x", b"c/x"))
    office.close(two)
    office.act(three, lambda actor: actor.symlink(b"f", b"x"))
    office.close(three)
    assert office.desk.barriers() == []
    taken_back_and_brought_forward(office, before, [one, two, three])
