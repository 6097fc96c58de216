"""The port of undo on a log: steps, groups, barriers, safeguards."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.model.errors import HeldError, NotFoundError, RefusedError
from holdfast.testing.clocks import ManualClock
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.completion import step_sealer
from holdfast.undo.journal.records import StepId
from holdfast.undo.journal.step_file import Head
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.safeguards import tickets as safeguards
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import OFF, Limits, Thresholds

from ..conftest import Bench


class Office:
    """A desk on the log of a bench, with a clock that stands still."""

    def __init__(self, bench: Bench, log: UndoLog, clock: ManualClock, safeguards: Safeguards) -> None:
        self.bench = bench
        self.log = log
        self.clock = clock
        self.safeguards = safeguards
        self.desk = LocalUndoService(log, safeguards, intercepts=True)

    def act(self, step: StepId, work: Callable[[InterceptedActor], object]) -> None:
        with InterceptedActor(self.log.recorder, os.fsencode(self.bench.tree), step) as actor:
            work(actor)

    def step(self, work: Callable[[InterceptedActor], object]) -> StepId:
        step = self.desk.open("command", command=(b"work",))
        self.act(step, work)
        self.desk.close(step, 0)
        return step


@contextmanager
def opened(bench: Bench, thresholds: Thresholds = OFF, limits: Limits | None = None) -> Generator[Office]:
    root = os.open(bench.tree, os.O_RDONLY | os.O_DIRECTORY)
    clock = ManualClock()
    safeguards = Safeguards(clock, thresholds)
    log = UndoLog(os.fsencode(bench.directory), root, clock, safeguards, limits)
    recover(log)
    try:
        yield Office(bench, log, clock, safeguards)
    finally:
        log.close()
        os.close(root)


def write(name: bytes, content: bytes = b"content") -> Callable[[InterceptedActor], None]:
    return lambda actor: actor.write(name, content)


def test_steps_are_listed_oldest_first_with_what_they_did(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as office:
        desk = office.desk
        first = office.step(write(b"new"))
        second = office.step(lambda actor: actor.rename(b"old", b"moved"))
        third = desk.open("api")
        office.act(third, write(b"new", b"more"))
        infos = desk.steps()
        assert [(info.id, info.state) for info in infos] == [(first, "done"), (second, "done"), (third, "open")]
        assert infos[0].command == (b"work",)
        assert [(each.path, each.change) for each in desk.changes(first)] == [(b"new", "added")]
        assert [(each.path, each.change, each.source) for each in desk.changes(second)] == [
            (b"moved", "renamed", b"old")
        ]
        assert [(each.path, each.change) for each in desk.changes(third)] == [(b"new", "modified")]
        with pytest.raises(NotFoundError):
            desk.changes(99)


def test_what_a_step_did_is_told_also_once_it_is_undone(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")

    def work(actor: InterceptedActor) -> None:
        actor.write(b"new", b"new")
        actor.rename(b"old", b"moved")

    with opened(bench) as office:
        step = office.step(work)
        before = office.desk.changes(step)
        office.desk.undo([step])
        assert office.desk.changes(step) == before
        assert office.desk.steps()[0].state == "undone"


def test_a_step_that_changed_nothing_leaves_nothing(bench: Bench) -> None:
    with opened(bench) as office:
        step = office.desk.open("command", command=(b"ls",))
        assert office.desk.close(step, 0) is None
        assert office.desk.steps() == []


def test_an_explicit_step_is_rolled_back(bench: Bench) -> None:
    before = bench.photograph()
    with opened(bench) as office:
        step = office.desk.begin("a try")
        assert office.desk.explicit("") == office.desk.explicit("a run") == step
        with pytest.raises(RefusedError, match="is open"):
            office.desk.begin("another")
        office.act(step, write(b"new"))
        assert office.desk.rollback(step).steps == (step,)
        assert office.desk.explicit("") is None
        bench.assert_as(before)
        with pytest.raises(NotFoundError):
            office.desk.commit(step)


def test_what_a_run_has_begun_is_its_own(bench: Bench) -> None:
    """I10: it takes in nothing of others, and who is in a run closes nothing of others."""
    with opened(bench) as office:
        mine, other = office.desk.begin("mine", run="a"), office.desk.begin("other", run="b")
        everything = office.desk.begin("a person's")
        assert [office.desk.explicit(run) for run in ("a", "b", "c", "")] == [mine, other, everything, everything]
        for close in (office.desk.commit, office.desk.rollback):
            for step in (other, everything):
                with pytest.raises(RefusedError, match="not begun by the run a"):
                    close(step, run="a")
        for run in ("a", "c", ""):
            with pytest.raises(RefusedError, match="is open"):
                office.desk.begin("another", run=run)
        office.desk.rollback(mine, run="a")
        assert office.desk.explicit("a") == everything
        office.desk.commit(other)  # a person may
        office.desk.commit(everything)
        assert office.desk.explicit("b") is None


def test_an_explicit_step_without_changes_is_committed(bench: Bench) -> None:
    with opened(bench) as office:
        info = office.desk.commit(office.desk.begin("nothing"))
        assert (info.kind, info.command, info.paths) == ("explicit", (b"nothing",), 0)


def test_no_group_begins_where_nothing_is_intercepted(bench: Bench) -> None:
    with opened(bench) as office, pytest.raises(RefusedError, match="nothing is intercepted"):
        LocalUndoService(office.log).begin("")


def test_an_ambient_step_ends_after_quiet(bench: Bench) -> None:
    with opened(bench) as office:
        desk = office.desk
        step = desk.ambient()
        assert step < 0
        office.act(step, write(b"one"))
        office.clock.advance(4)
        office.act(desk.ambient(), write(b"two"))
        office.clock.advance(4)
        desk.tick()
        assert desk.ambient() == step
        office.clock.advance(1)
        desk.tick()
        assert [(info.id, info.state, info.paths) for info in desk.steps()] == [(step, "done", 2)]
        assert desk.ambient() == step - 1


def test_a_barrier_is_not_crossed_and_survives_the_keeper(bench: Bench) -> None:
    """I8."""
    with opened(bench) as office:
        step = office.step(write(b"file"))
        free = office.step(write(b"free"))
        (bench.tree / "file").write_bytes(b"by vim")
        office.desk.outside([b"file"], "vim (12)")
    with opened(bench) as office:
        (barrier,) = office.desk.barriers()
        assert (barrier.paths, barrier.who, barrier.blocks, barrier.after) == ((b"file",), "vim (12)", True, free)
        assert [info.barrier_after for info in office.desk.steps()] == [False, True]
        with pytest.raises(RefusedError, match=r"vim \(12\) has changed file since") as refused:
            office.desk.undo([step])
        assert refused.value.code == "barrier"
        office.desk.undo([free])
        office.desk.undo([step], force=True)
        office.desk.redo([step])


def test_a_warning_is_listed_and_does_not_block(bench: Bench) -> None:
    with opened(bench) as office:
        step = office.step(write(b"file"))
        office.desk.outside([b""], blocks=False)
        assert [barrier.blocks for barrier in office.desk.barriers()] == [False]
        office.desk.undo([step])


def test_edits_without_a_step_between_are_one_barrier(bench: Bench) -> None:
    with opened(bench) as office:
        office.step(write(b"file"))
        for path in (b"one", b"two", b"one"):
            office.desk.outside([path], "vim (12)")
        assert [barrier.paths for barrier in office.desk.barriers()] == [(b"one", b"two")]
        with office.desk.quiet():
            assert office.desk.is_quiet
            office.desk.outside([b"ours"])
        assert not office.desk.is_quiet
        assert len(office.desk.barriers()) == 1


def removals(count: int) -> Callable[[InterceptedActor], None]:
    def work(actor: InterceptedActor) -> None:
        for at in range(count):
            actor.unlink(b"%d" % at)

    return work


@pytest.fixture
def three(bench: Bench) -> Bench:
    for name in "012":
        (bench.tree / name).write_bytes(b"content")
    return bench


def test_a_safeguard_holds_the_removal_that_reaches_it(three: Bench) -> None:
    """I9."""
    with opened(three, Thresholds(deletes=3)) as office:
        desk = office.desk
        step = desk.open("command", command=(b"rm", b"-rf"))
        with pytest.raises(HeldError) as held:
            office.act(step, removals(3))
        assert os.listdir(three.tree) == ["2"]
        (ticket,) = desk.held()
        assert (ticket.id, ticket.danger, ticket.path) == (held.value.ticket, "delete", b"2")
        assert "rm -rf" in ticket.message
        with pytest.raises(HeldError):  # the whole step waits, and the others do not
            office.act(step, write(b"new"))
        office.step(write(b"other"))
        desk.answer(ticket.id, allow=True)
        assert desk.held() == []
        office.act(step, lambda actor: actor.unlink(b"2"))
        office.act(step, lambda actor: actor.unlink(b"other"))
        assert os.listdir(three.tree) == []
        with pytest.raises(NotFoundError):
            desk.answer(ticket.id, allow=True)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_denied_is_rolled_back_alone(three: Bench, is_late: bool) -> None:
    """I9: timeout is deny."""
    before = three.photograph()
    with opened(three, Thresholds(deletes=3)) as office:
        desk = office.desk
        step = desk.open("command")
        other = desk.open("command")
        (three.tree / "by-another").mkdir()
        before = three.photograph()
        office.act(other, write(b"by-another/file"))
        with pytest.raises(HeldError) as held:
            office.act(step, removals(3))
        if is_late:
            office.clock.advance(29)
            desk.tick()
            assert len(desk.held()) == 1
            office.clock.advance(1)
            desk.tick()
        else:
            desk.answer(held.value.ticket, allow=False)
        assert desk.held() == []
        assert os.listdir(three.tree / "by-another") == ["file"]
        with pytest.raises(PermissionError):
            office.act(step, write(b"new"))
        assert desk.close(step, 1) is None
        desk.close(other, 0)
        assert {info.id: info.state for info in desk.steps()} == {step: "undone", other: "done"}
        assert {info.id: info.exit_code for info in desk.steps()} == {step: 1, other: 0}
        desk.undo([other])
        three.assert_as(before)


def test_a_denied_step_that_ends_before_it_is_taken_back_keeps_its_exit_code(
    three: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(three, Thresholds(deletes=3)) as office:
        desk = office.desk
        step = desk.open("command")
        with pytest.raises(HeldError) as held:
            office.act(step, removals(3))

        def end_first(*arguments: Any, **options: Any) -> Head:
            monkeypatch.undo()
            assert desk.close(step, 7) is None
            return step_sealer.seal(*arguments, **options)

        monkeypatch.setattr("holdfast.undo.local_service._step_completion.seal", end_first)
        desk.answer(held.value.ticket, allow=False)
        assert [(info.state, info.exit_code) for info in desk.steps()] == [("undone", 7)]
    with opened(three) as office:
        assert [info.exit_code for info in office.desk.steps()] == [7]


@pytest.mark.parametrize("answer", ["allowed", "denied", "too late", "for another run"])
def test_what_lapsed_and_was_allowed_goes_on_when_it_is_tried_again(bench: Bench, answer: str) -> None:
    (bench.tree / "large").write_bytes(b"content")
    with opened(bench, Thresholds(overwrite_bytes=5, timeout=30.0)) as office:
        desk = office.desk
        step = desk.open("command", run="run")
        with pytest.raises(HeldError) as held:
            office.act(step, write(b"large"))
        office.clock.advance(8)
        desk.lapse(held.value.ticket)
        desk.close(step)
        desk.lapse(held.value.ticket)  # (several wait for one answer, and each of them fails)
        assert [ticket.id for ticket in desk.held()] == [held.value.ticket], "it waits on alone"
        assert desk.parting("other").unanswered == ()
        (told,) = desk.parting("run").unanswered
        assert (told.step, told.path, told.unanswered) == (step, b"large", 8.0)
        assert desk.parting("run").unanswered == ()
        desk.answer(held.value.ticket, allow=answer != "denied")
        assert desk.held() == []
        if answer == "too late":
            office.clock.advance(31)
        again = desk.open("command", run="other" if answer == "for another run" else "run")
        if answer == "allowed":
            office.act(again, write(b"large", b"changed"))
            assert (bench.tree / "large").read_bytes() == b"changed"
            once_more = desk.open("command", run="run")
            with pytest.raises(HeldError):
                office.act(once_more, write(b"large"))
        else:
            with pytest.raises(HeldError):
                office.act(again, write(b"large"))
            assert (bench.tree / "large").read_bytes() == b"content"


def _closed(office: Office, step: StepId, _ticket: int) -> None:
    office.desk.close(step, 1)


def _committed(office: Office, step: StepId, _ticket: int) -> None:
    with pytest.raises(RefusedError) as refused:
        office.desk.commit(step)
    assert refused.value.code == "denied"


def _lapsed(office: Office, step: StepId, ticket: int) -> None:
    office.desk.lapse(ticket)
    with pytest.raises(PermissionError):
        office.act(step, write(b"new"))


_KINDS = ("command", "explicit", "explicit of a run", "ambient")


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        *((end, kind) for end in (_closed, _lapsed) for kind in _KINDS),
        *((_committed, kind) for kind in _KINDS if "explicit" in kind),
    ],
)
def test_however_a_hold_ends_unanswered_nothing_is_left_of_the_step(
    three: Bench, kind: str, end: Callable[[Office, StepId, int], None]
) -> None:
    """I9."""
    before = three.photograph()
    with opened(three, Thresholds(deletes=3)) as office:
        desk = office.desk
        match kind:
            case "explicit":
                step = desk.begin("a try")
            case "explicit of a run":
                step = desk.begin("a try", run="run")
            case "ambient":
                step = desk.ambient()
            case _:
                step = desk.open("command", run="run")
        office.act(step, write(b"made"))
        with pytest.raises(HeldError) as held:
            office.act(step, removals(3))
        end(office, step, held.value.ticket)
        three.assert_as(before)
        assert [(info.id, info.state) for info in desk.steps()] == [(step, "open" if _shown(end, kind) else "undone")]
        assert desk.explicit("") is None


def _shown(end: Callable[[Office, StepId, int], None], kind: str) -> bool:
    """A run's own step stays, for what belongs to it fails until it is closed."""
    return end is _lapsed and kind == "explicit of a run"


def test_who_is_refused_finds_nothing_of_the_step_any_more(three: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(three, Thresholds(deletes=3)) as office:
        step = office.desk.open("command")
        with pytest.raises(HeldError) as held:
            office.act(step, removals(3))

        def try_first(*arguments: Any, **options: Any) -> Head:
            monkeypatch.undo()
            with pytest.raises(HeldError) as waits:
                office.act(step, write(b"new"))
            assert waits.value.ticket == 0, "it is tried again in a moment"
            return step_sealer.seal(*arguments, **options)

        monkeypatch.setattr("holdfast.undo.local_service._step_completion.seal", try_first)
        office.desk.answer(held.value.ticket, allow=False)
        with pytest.raises(PermissionError):
            office.act(step, write(b"new"))
        assert sorted(os.listdir(three.tree)) == ["0", "1", "2"]


def test_what_has_not_lapsed_is_asked_about_no_more_when_its_step_has_ended(bench: Bench) -> None:
    (bench.tree / "large").write_bytes(b"content")
    with opened(bench, Thresholds(overwrite_bytes=5)) as office:
        step = office.desk.open("command", run="run")
        with pytest.raises(HeldError):
            office.act(step, write(b"large"))
        office.desk.close(step)
        assert office.desk.held() == []


def test_while_somebody_else_changes_the_tree_nothing_is_recorded_and_nobody_goes_on(bench: Bench) -> None:
    with opened(bench) as office:
        step = office.desk.open("command")
        with office.desk.quiet(), pytest.raises(HeldError) as held:
            office.act(step, write(b"new"))
        assert held.value.ticket == 0
        office.act(step, write(b"new"))


def test_a_group_of_a_run_that_held_nothing_is_no_step_that_was_forgotten(bench: Bench) -> None:
    with opened(bench) as office:
        desk = office.desk
        office.step(write(b"f"))
        desk.commit(desk.begin("looked", run="r"))
        assert desk.rollback(desk.begin("looked again", run="r")).steps == ()
        assert [info.kind for info in desk.steps()] == ["command"]
        assert "r" not in desk.forgotten()


def test_what_a_run_groups_itself_and_is_denied_changes_nothing_more_until_it_is_closed(three: Bench) -> None:
    """I9: also where the first change was the one that was denied, and nothing of the step is left."""
    with opened(three, Thresholds(deletes=1)) as office:
        desk = office.desk
        step = desk.begin("command", run="r")
        with pytest.raises(HeldError):
            office.act(step, lambda actor: actor.unlink(b"1"))
        desk.answer(desk.held()[0].id, allow=False)
        assert [(info.id, info.state) for info in desk.steps()] == [(step, "open")]
        assert desk.explicit_steps("r") == [step]
        with pytest.raises(PermissionError):
            office.act(step, write(b"new"))
        with (three.tree.parent / "content").open("w+b") as file:
            info = desk.write(b"other", file.fileno(), expected=b"")
        assert info is not None
        assert info.id != step
        with pytest.raises(RefusedError) as caught:
            desk.commit(step)
        assert caught.value.code == "denied"
        assert desk.explicit_steps(None) == []
        assert [info.kind for info in desk.steps()] == ["api"]
        by_hand = desk.begin("by hand")
        with pytest.raises(HeldError):
            office.act(by_hand, lambda actor: actor.unlink(b"2"))
        desk.answer(desk.held()[0].id, allow=False)
        assert desk.explicit_steps(None) == []
        again = desk.begin("left", run="r")
        office.act(again, write(b"left"))
        with pytest.raises(HeldError):
            office.act(again, lambda actor: actor.unlink(b"1"))
        desk.answer(desk.held()[0].id, allow=False)
        assert not (three.tree / "left").exists()
        third = desk.begin("next", run="r")
        office.act(third, write(b"new"))
        assert desk.commit(third).paths == 1
        assert [(info.id, info.state) for info in desk.steps()][1:] == [(again, "undone"), (third, "done")]


def test_what_a_step_made_itself_is_no_loss(bench: Bench) -> None:
    with opened(bench, Thresholds(deletes=1, overwrite_bytes=1, rename_over=True)) as office:

        def work(actor: InterceptedActor) -> None:
            actor.write(b"a", b"content")
            actor.write(b"a", b"again")
            actor.write(b"b", b"content")
            actor.rename(b"a", b"b")
            actor.unlink(b"b")

        office.step(work)
        assert office.desk.held() == []


@pytest.mark.parametrize(
    ("thresholds", "work", "danger"),
    [
        (Thresholds(overwrite_bytes=7), write(b"0", b""), "overwrite"),
        (Thresholds(rename_over=True), lambda actor: actor.rename(b"0", b"1"), "rename_over"),
        (Thresholds(deletes=1), lambda actor: actor.unlink(b"0"), "delete"),
    ],
)
def test_dangers(three: Bench, thresholds: Thresholds, work: Callable[[InterceptedActor], None], danger: str) -> None:
    before = three.photograph()
    with opened(three, thresholds) as office:
        step = office.desk.open("command")
        with pytest.raises(HeldError):
            office.act(step, work)
        three.assert_as(before)
        assert [ticket.danger for ticket in office.desk.held()] == [danger]
        office.desk.undo([office.step(write(b"other"))])  # an undo asks nobody
        office.desk.close(step)
        assert office.desk.held() == []


def test_a_step_over_its_limit_goes_on_unprotected_and_says_what_is_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    large = bench.tree / "large"
    large.write_bytes(b"x" * 100_000)
    (bench.tree / "small").write_bytes(b"small")

    def work(actor: InterceptedActor) -> None:
        actor.write(b"large", b"gone")
        actor.unlink(b"small")

    with opened(bench, limits=Limits(max_step_bytes=50_000)) as office:
        step = office.step(work)
        assert "large" in office.desk.steps()[0].unprotected
        with pytest.raises(RefusedError, match="cannot be undone whole"):
            office.desk.undo([step])
        (conflict,) = office.desk.undo([step], force=True).conflicts
        assert (conflict.path, conflict.kept) == (b"large", None)
        assert (bench.tree / "small").read_bytes() == b"small"
        assert office.desk.steps()[0].state == "partly"
    caplog.clear()


def test_the_oldest_steps_are_forgotten_at_the_limit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with opened(bench, limits=Limits(max_steps=2)) as office:
        steps = [office.step(write(b"%d" % at)) for at in range(3)]
        assert [info.id for info in office.desk.steps()] == steps[1:]
        assert "cannot be undone any more" in caplog.text
        assert office.desk.discard() == 2
        assert office.desk.steps() == []
    caplog.clear()


def test_the_steps_of_a_run_count_as_one_while_it_goes_on_and_after(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(bench, limits=Limits(max_steps=2)) as office:
        desk = office.desk

        def work(name: bytes, run: str) -> StepId:
            step = desk.open("command", run=run)
            office.act(step, write(name))
            desk.close(step)
            return step

        first = [work(b"a%d" % at, "first") for at in range(4)]
        going_on = desk.open("command", run="first")
        office.act(going_on, write(b"by the server"))
        second = [work(b"b%d" % at, "second") for at in range(4)]
        assert [info.id for info in desk.steps()] == [*first, going_on, *second]
        assert desk.forgotten() == []
        # The run that goes on began first; the other one has acted longer ago.
        alone = work(b"c", "")
        assert [info.id for info in desk.steps()] == [*first, going_on, alone]
        assert desk.forgotten() == ["second"]
        assert "4 of its oldest steps cannot be undone any more, and so not all of run second" in caplog.text
        desk.close(going_on)
        desk.undo([*first, going_on])
        assert sorted(os.listdir(bench.tree)) == ["b0", "b1", "b2", "b3", "c"]
    caplog.clear()


def test_bytes_alone_limit_the_steps_of_a_run(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for at in range(6):
        (bench.tree / f"{at}").write_bytes(bytes(10_000))
    with opened(bench, limits=Limits(max_steps=1, max_bytes=40_000)) as office:
        desk, steps = office.desk, list[StepId]()
        for at in range(6):
            steps.append(desk.open("command", run="run"))
            office.act(steps[-1], lambda actor, at=at: actor.unlink(b"%d" % at))
            desk.close(steps[-1])
        # (Each takes three blocks.)
        assert [info.id for info in desk.steps()] == steps[-3:]
        assert desk.forgotten() == ["run"]
        assert "1 of its oldest steps cannot be undone any more, and so not all of run run" in caplog.text
        desk.configure(Limits(max_steps=1, max_bytes=1))
        assert [info.id for info in desk.steps()] == steps[-1:]  # the newest never goes
        desk.undo(steps[-1:])
        assert os.listdir(bench.tree) == ["5"]
    caplog.clear()


def test_a_killed_keeper_brings_nobody_into_debt(three: Bench) -> None:
    before = three.photograph()
    with opened(three) as office:
        step = office.desk.begin("cut off")
        office.act(step, removals(2))
        office.desk.tick()
    with opened(three) as office:
        three.assert_as(before)
        assert [info.state for info in office.desk.steps()] == ["undone"]
        office.desk.redo([step])
        assert os.listdir(three.tree) == ["2"]


def test_what_a_step_left_is_known_before_the_rest_of_its_end_is_done(bench: Bench) -> None:
    """However late that is: what others change meanwhile is not taken for the step's, and not lost."""
    with opened(bench) as office:
        desk = office.desk
        first = desk.open("command")
        office.act(first, lambda actor: (actor.write(b"new", b"1"), actor.write(b"other", b"2")))
        finish = desk.closing(first, 0)
        assert finish is not None
        second = office.step(write(b"new", b"more than that"))
        (bench.tree / "other").write_bytes(b"by hand")
        found = finish()
        assert found is not None
        assert (found.id, found.paths) == (first, 2)
        assert [step.id for step in desk.steps()] == [first, second]
        assert desk.undo([second]).conflicts == ()
        with pytest.raises(RefusedError):
            desk.undo([first])
        assert (bench.tree / "other").read_bytes() == b"by hand"


def test_no_more_than_so_many_wait_for_a_person(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safeguards, "_MOST", 1)
    for name in ("a", "b"):
        (bench.tree / name).write_bytes(b"")
    with opened(bench, Thresholds(deletes=1)) as office:
        one, two = office.desk.open("command"), office.desk.open("command")
        with pytest.raises(HeldError):
            office.act(one, lambda actor: actor.unlink(b"a"))
        with pytest.raises(OSError, match="too many"):
            office.act(two, lambda actor: actor.unlink(b"b"))
        assert [ticket.step for ticket in office.desk.held()] == [one]
        assert (bench.tree / "b").exists()
