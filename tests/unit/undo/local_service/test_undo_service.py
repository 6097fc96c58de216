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
from holdfast.undo.journal.step_file import StepHead
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.safeguards import tickets
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import OFF, LogLimits, Thresholds

from ..conftest import Bench


class Keeper:
    """A service on the log of a bench, with a clock that stands still."""

    def __init__(self, bench: Bench, log: UndoLog, clock: ManualClock, safeguards: Safeguards) -> None:
        self.bench = bench
        self.log = log
        self.clock = clock
        self.safeguards = safeguards
        self.service = LocalUndoService(log, safeguards, intercepts=True)

    def act(self, step: StepId, work: Callable[[InterceptedActor], object]) -> None:
        with InterceptedActor(self.log.recorder, os.fsencode(self.bench.tree), step) as actor:
            work(actor)

    def step(self, work: Callable[[InterceptedActor], object]) -> StepId:
        step = self.service.open("command", command=(b"work",))
        self.act(step, work)
        self.service.close(step, 0)
        return step


@contextmanager
def opened(bench: Bench, thresholds: Thresholds = OFF, limits: LogLimits | None = None) -> Generator[Keeper]:
    root = os.open(bench.tree, os.O_RDONLY | os.O_DIRECTORY)
    clock = ManualClock()
    safeguards = Safeguards(clock, thresholds)
    log = UndoLog(os.fsencode(bench.directory), root, clock, safeguards, limits)
    recover(log)
    try:
        yield Keeper(bench, log, clock, safeguards)
    finally:
        log.close()
        os.close(root)


def write(name: bytes, content: bytes = b"content") -> Callable[[InterceptedActor], None]:
    return lambda actor: actor.write(name, content)


def test_steps_are_listed_oldest_first_with_what_they_did(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        service = keeper.service
        first = keeper.step(write(b"new"))
        second = keeper.step(lambda actor: actor.rename(b"old", b"moved"))
        third = service.open("api")
        keeper.act(third, write(b"new", b"more"))
        infos = service.steps()
        assert [(info.id, info.state) for info in infos] == [(first, "done"), (second, "done"), (third, "open")]
        assert infos[0].command == (b"work",)
        assert [(each.path, each.change) for each in service.changes(first)] == [(b"new", "added")]
        assert [(each.path, each.change, each.source) for each in service.changes(second)] == [
            (b"moved", "renamed", b"old")
        ]
        assert [(each.path, each.change) for each in service.changes(third)] == [(b"new", "modified")]
        with pytest.raises(NotFoundError):
            service.changes(99)


def test_steps_may_end_and_go_while_a_thread_goes_through_the_others(bench: Bench) -> None:
    with bench.keeper() as log:
        first, second = bench.step(log, write(b"one")), bench.step(log, write(b"two"))
        going = iter(log.heads.values())
        assert next(going).id == first
        third = bench.step(log, write(b"three"))
        log.remove(first)
        assert [head.id for head in going] == [second]
        assert list(log.heads) == [second, third]


def test_what_a_step_did_is_told_also_once_it_is_undone(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")

    def work(actor: InterceptedActor) -> None:
        actor.write(b"new", b"new")
        actor.rename(b"old", b"moved")

    with opened(bench) as keeper:
        step = keeper.step(work)
        before = keeper.service.changes(step)
        keeper.service.undo([step])
        assert keeper.service.changes(step) == before
        assert keeper.service.steps()[0].state == "undone"


def test_a_step_that_changed_nothing_leaves_nothing(bench: Bench) -> None:
    with opened(bench) as keeper:
        step = keeper.service.open("command", command=(b"ls",))
        assert keeper.service.close(step, 0) is None
        assert keeper.service.steps() == []


def test_an_explicit_step_is_rolled_back(bench: Bench) -> None:
    before = bench.photograph()
    with opened(bench) as keeper:
        step = keeper.service.begin("a try")
        assert keeper.service.explicit_step("") == keeper.service.explicit_step("a run") == step
        with pytest.raises(RefusedError, match="is open"):
            keeper.service.begin("another")
        keeper.act(step, write(b"new"))
        assert keeper.service.rollback(step).steps == (step,)
        assert keeper.service.explicit_step("") is None
        bench.assert_as(before)
        with pytest.raises(NotFoundError):
            keeper.service.commit(step)


def test_what_a_run_has_begun_is_its_own(bench: Bench) -> None:
    """I10: it takes in nothing of others, and who is in a run closes nothing of others."""
    with opened(bench) as keeper:
        mine, other = keeper.service.begin("mine", run="a"), keeper.service.begin("other", run="b")
        everything = keeper.service.begin("a person's")
        assert [keeper.service.explicit_step(run) for run in ("a", "b", "c", "")] == [
            mine,
            other,
            everything,
            everything,
        ]
        for close in (keeper.service.commit, keeper.service.rollback):
            for step in (other, everything):
                with pytest.raises(RefusedError, match="not begun by the run a"):
                    close(step, run="a")
        for run in ("a", "c", ""):
            with pytest.raises(RefusedError, match="is open"):
                keeper.service.begin("another", run=run)
        keeper.service.rollback(mine, run="a")
        assert keeper.service.explicit_step("a") == everything
        keeper.service.commit(other)  # a person may
        keeper.service.commit(everything)
        assert keeper.service.explicit_step("b") is None


def test_an_explicit_step_without_changes_is_committed(bench: Bench) -> None:
    with opened(bench) as keeper:
        info = keeper.service.commit(keeper.service.begin("nothing"))
        assert (info.kind, info.command, info.paths) == ("explicit", (b"nothing",), 0)


def test_no_group_begins_where_nothing_is_intercepted(bench: Bench) -> None:
    with opened(bench) as keeper, pytest.raises(RefusedError, match="nothing is intercepted"):
        LocalUndoService(keeper.log).begin("")


def test_an_ambient_step_ends_after_quiet(bench: Bench) -> None:
    with opened(bench) as keeper:
        service = keeper.service
        step = service.ambient_step()
        assert step < 0
        keeper.act(step, write(b"one"))
        keeper.clock.advance(4)
        keeper.act(service.ambient_step(), write(b"two"))
        keeper.clock.advance(4)
        service.tick()
        assert service.ambient_step() == step
        keeper.clock.advance(1)
        service.tick()
        assert [(info.id, info.state, info.paths) for info in service.steps()] == [(step, "done", 2)]
        assert service.ambient_step() == step - 1


def test_a_barrier_is_not_crossed_and_survives_the_keeper(bench: Bench) -> None:
    """I8."""
    with opened(bench) as keeper:
        step = keeper.step(write(b"file"))
        free = keeper.step(write(b"free"))
        (bench.tree / "file").write_bytes(b"by vim")
        keeper.service.record_foreign_edit([b"file"], "vim (12)")
    with opened(bench) as keeper:
        (barrier,) = keeper.service.barriers()
        assert (barrier.paths, barrier.who, barrier.blocks, barrier.after) == ((b"file",), "vim (12)", True, free)
        assert [info.barrier_after for info in keeper.service.steps()] == [False, True]
        with pytest.raises(RefusedError, match=r"vim \(12\) has changed file since") as refused:
            keeper.service.undo([step])
        assert refused.value.code == "barrier"
        keeper.service.undo([free])
        keeper.service.undo([step], force=True)
        keeper.service.redo([step])


def test_a_warning_is_listed_and_does_not_block(bench: Bench) -> None:
    with opened(bench) as keeper:
        step = keeper.step(write(b"file"))
        keeper.service.record_foreign_edit([b""], blocks=False)
        assert [barrier.blocks for barrier in keeper.service.barriers()] == [False]
        keeper.service.undo([step])


def test_edits_without_a_step_between_are_one_barrier(bench: Bench) -> None:
    with opened(bench) as keeper:
        keeper.step(write(b"file"))
        for path in (b"one", b"two", b"one"):
            keeper.service.record_foreign_edit([path], "vim (12)")
        assert [barrier.paths for barrier in keeper.service.barriers()] == [(b"one", b"two")]
        with keeper.service.quiet():
            assert keeper.service.is_quiet
            keeper.service.record_foreign_edit([b"ours"])
        assert not keeper.service.is_quiet
        assert len(keeper.service.barriers()) == 1


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
    with opened(three, Thresholds(deletes=3)) as keeper:
        service = keeper.service
        step = service.open("command", command=(b"rm", b"-rf"))
        with pytest.raises(HeldError) as held:
            keeper.act(step, removals(3))
        assert os.listdir(three.tree) == ["2"]
        (ticket,) = service.held()
        assert (ticket.id, ticket.danger, ticket.path) == (held.value.ticket, "delete", b"2")
        assert "rm -rf" in ticket.message
        with pytest.raises(HeldError):  # the whole step waits, and the others do not
            keeper.act(step, write(b"new"))
        keeper.step(write(b"other"))
        keeper.clock.advance(40)
        service.answer(ticket.id, allow=True)
        assert service.held() == []
        assert keeper.log.recorder.step(step).last == keeper.clock.monotonic(), "to wait was no pause"
        keeper.act(step, lambda actor: actor.unlink(b"2"))
        keeper.act(step, lambda actor: actor.unlink(b"other"))
        assert os.listdir(three.tree) == []
        with pytest.raises(NotFoundError):
            service.answer(ticket.id, allow=True)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_denied_is_rolled_back_alone(three: Bench, is_late: bool) -> None:
    """I9: timeout is deny."""
    before = three.photograph()
    with opened(three, Thresholds(deletes=3)) as keeper:
        service = keeper.service
        step = service.open("command")
        other = service.open("command")
        (three.tree / "by-another").mkdir()
        before = three.photograph()
        keeper.act(other, write(b"by-another/file"))
        with pytest.raises(HeldError) as held:
            keeper.act(step, removals(3))
        if is_late:
            keeper.clock.advance(29)
            service.tick()
            assert len(service.held()) == 1
            keeper.clock.advance(1)
            service.tick()
        else:
            service.answer(held.value.ticket, allow=False)
        assert service.held() == []
        assert os.listdir(three.tree / "by-another") == ["file"]
        with pytest.raises(PermissionError):
            keeper.act(step, write(b"new"))
        assert service.close(step, 1) is None
        service.close(other, 0)
        assert {info.id: info.state for info in service.steps()} == {step: "undone", other: "done"}
        assert {info.id: info.exit_code for info in service.steps()} == {step: 1, other: 0}
        service.undo([other])
        three.assert_as(before)


def test_a_denied_step_that_ends_before_it_is_taken_back_keeps_its_exit_code(
    three: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(three, Thresholds(deletes=3)) as keeper:
        service = keeper.service
        step = service.open("command")
        with pytest.raises(HeldError) as held:
            keeper.act(step, removals(3))

        def end_first(*arguments: Any, **options: Any) -> StepHead:
            monkeypatch.undo()
            assert service.close(step, 7) is None
            return step_sealer.seal_step(*arguments, **options)

        monkeypatch.setattr("holdfast.undo.local_service._step_completion.seal_step", end_first)
        service.answer(held.value.ticket, allow=False)
        assert [(info.state, info.exit_code) for info in service.steps()] == [("undone", 7)]
    with opened(three) as keeper:
        assert [info.exit_code for info in keeper.service.steps()] == [7]


@pytest.mark.parametrize("answer", ["allowed", "denied", "too late", "for another run"])
def test_what_lapsed_and_was_allowed_goes_on_when_it_is_tried_again(bench: Bench, answer: str) -> None:
    (bench.tree / "large").write_bytes(b"content")
    with opened(bench, Thresholds(overwrite_bytes=5, timeout=30.0)) as keeper:
        service = keeper.service
        step = service.open("command", run="run")
        with pytest.raises(HeldError) as held:
            keeper.act(step, write(b"large"))
        keeper.clock.advance(8)
        service.lapse(held.value.ticket)
        service.close(step)
        service.lapse(held.value.ticket)  # (several wait for one answer, and each of them fails)
        assert [ticket.id for ticket in service.held()] == [held.value.ticket], "it waits on alone"
        assert service.run_ending("other").unanswered == ()
        (told,) = service.run_ending("run").unanswered
        assert (told.step, told.path, told.unanswered) == (step, b"large", 8.0)
        assert service.run_ending("run").unanswered == ()
        service.answer(held.value.ticket, allow=answer != "denied")
        assert service.held() == []
        if answer == "too late":
            keeper.clock.advance(31)
        again = service.open("command", run="other" if answer == "for another run" else "run")
        if answer == "allowed":
            keeper.act(again, write(b"large", b"changed"))
            assert (bench.tree / "large").read_bytes() == b"changed"
            once_more = service.open("command", run="run")
            with pytest.raises(HeldError):
                keeper.act(once_more, write(b"large"))
        else:
            with pytest.raises(HeldError):
                keeper.act(again, write(b"large"))
            assert (bench.tree / "large").read_bytes() == b"content"


def _closed(keeper: Keeper, step: StepId, _ticket: int) -> None:
    keeper.service.close(step, 1)


def _committed(keeper: Keeper, step: StepId, _ticket: int) -> None:
    with pytest.raises(RefusedError) as refused:
        keeper.service.commit(step)
    assert refused.value.code == "denied"


def _lapsed(keeper: Keeper, step: StepId, ticket: int) -> None:
    keeper.service.lapse(ticket)
    with pytest.raises(PermissionError):
        keeper.act(step, write(b"new"))


_KINDS = ("command", "explicit", "explicit of a run", "ambient")


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        *((end, kind) for end in (_closed, _lapsed) for kind in _KINDS),
        *((_committed, kind) for kind in _KINDS if "explicit" in kind),
    ],
)
def test_however_a_hold_ends_unanswered_nothing_is_left_of_the_step(
    three: Bench, kind: str, end: Callable[[Keeper, StepId, int], None]
) -> None:
    """I9."""
    before = three.photograph()
    with opened(three, Thresholds(deletes=3)) as keeper:
        service = keeper.service
        match kind:
            case "explicit":
                step = service.begin("a try")
            case "explicit of a run":
                step = service.begin("a try", run="run")
            case "ambient":
                step = service.ambient_step()
            case _:
                step = service.open("command", run="run")
        keeper.act(step, write(b"made"))
        with pytest.raises(HeldError) as held:
            keeper.act(step, removals(3))
        assert not service.was_refused(step)
        end(keeper, step, held.value.ticket)
        three.assert_as(before)
        assert service.was_refused(step)
        assert [(info.id, info.state) for info in service.steps()] == [
            (step, "open" if _shown(end, kind) else "undone")
        ]
        assert service.explicit_step("") is None


def _shown(end: Callable[[Keeper, StepId, int], None], kind: str) -> bool:
    """A run's own step stays, for what belongs to it fails until it is closed."""
    return end is _lapsed and kind == "explicit of a run"


def test_who_is_refused_finds_nothing_of_the_step_any_more(three: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(three, Thresholds(deletes=3)) as keeper:
        step = keeper.service.open("command")
        with pytest.raises(HeldError) as held:
            keeper.act(step, removals(3))

        def try_first(*arguments: Any, **options: Any) -> StepHead:
            monkeypatch.undo()
            with pytest.raises(HeldError) as waits:
                keeper.act(step, write(b"new"))
            assert waits.value.ticket == 0, "it is tried again in a moment"
            return step_sealer.seal_step(*arguments, **options)

        monkeypatch.setattr("holdfast.undo.local_service._step_completion.seal_step", try_first)
        keeper.service.answer(held.value.ticket, allow=False)
        with pytest.raises(PermissionError):
            keeper.act(step, write(b"new"))
        assert sorted(os.listdir(three.tree)) == ["0", "1", "2"]


def test_what_has_not_lapsed_is_asked_about_no_more_when_its_step_has_ended(bench: Bench) -> None:
    (bench.tree / "large").write_bytes(b"content")
    with opened(bench, Thresholds(overwrite_bytes=5)) as keeper:
        step = keeper.service.open("command", run="run")
        with pytest.raises(HeldError):
            keeper.act(step, write(b"large"))
        keeper.service.close(step)
        assert keeper.service.held() == []


def test_while_somebody_else_changes_the_tree_nothing_is_recorded_and_nobody_goes_on(bench: Bench) -> None:
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        with keeper.service.quiet(), pytest.raises(HeldError) as held:
            keeper.act(step, write(b"new"))
        assert held.value.ticket == 0
        keeper.act(step, write(b"new"))


def test_a_group_of_a_run_that_held_nothing_is_no_step_that_was_forgotten(bench: Bench) -> None:
    with opened(bench) as keeper:
        service = keeper.service
        keeper.step(write(b"f"))
        service.commit(service.begin("looked", run="r"))
        assert service.rollback(service.begin("looked again", run="r")).steps == ()
        assert [info.kind for info in service.steps()] == ["command"]
        assert "r" not in service.forgotten()


def test_what_a_run_groups_itself_and_is_denied_changes_nothing_more_until_it_is_closed(three: Bench) -> None:
    """I9: also where the first change was the one that was denied, and nothing of the step is left."""
    with opened(three, Thresholds(deletes=1)) as keeper:
        service = keeper.service
        step = service.begin("command", run="r")
        with pytest.raises(HeldError):
            keeper.act(step, lambda actor: actor.unlink(b"1"))
        service.answer(service.held()[0].id, allow=False)
        assert [(info.id, info.state) for info in service.steps()] == [(step, "open")]
        assert service.explicit_steps("r") == [step]
        with pytest.raises(PermissionError):
            keeper.act(step, write(b"new"))
        with (three.tree.parent / "content").open("w+b") as file:
            info = service.write(b"other", file.fileno(), expected=b"")
        assert info is not None
        assert info.id != step
        with pytest.raises(RefusedError) as caught:
            service.commit(step)
        assert caught.value.code == "denied"
        assert service.explicit_steps(None) == []
        assert [info.kind for info in service.steps()] == ["api"]
        by_hand = service.begin("by hand")
        with pytest.raises(HeldError):
            keeper.act(by_hand, lambda actor: actor.unlink(b"2"))
        service.answer(service.held()[0].id, allow=False)
        assert service.explicit_steps(None) == []
        again = service.begin("left", run="r")
        keeper.act(again, write(b"left"))
        with pytest.raises(HeldError):
            keeper.act(again, lambda actor: actor.unlink(b"1"))
        service.answer(service.held()[0].id, allow=False)
        assert not (three.tree / "left").exists()
        third = service.begin("next", run="r")
        keeper.act(third, write(b"new"))
        assert service.commit(third).paths == 1
        assert [(info.id, info.state) for info in service.steps()][1:] == [(again, "undone"), (third, "done")]


def test_what_a_step_made_itself_is_no_loss(bench: Bench) -> None:
    with opened(bench, Thresholds(deletes=1, overwrite_bytes=1, rename_over=True)) as keeper:

        def work(actor: InterceptedActor) -> None:
            actor.write(b"a", b"content")
            actor.write(b"a", b"again")
            actor.write(b"b", b"content")
            actor.rename(b"a", b"b")
            actor.unlink(b"b")

        keeper.step(work)
        assert keeper.service.held() == []


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
    with opened(three, thresholds) as keeper:
        step = keeper.service.open("command")
        with pytest.raises(HeldError):
            keeper.act(step, work)
        three.assert_as(before)
        assert [ticket.danger for ticket in keeper.service.held()] == [danger]
        keeper.service.undo([keeper.step(write(b"other"))])  # an undo asks nobody
        keeper.service.close(step)
        assert keeper.service.held() == []


def test_a_step_over_its_limit_goes_on_unprotected_and_says_what_is_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    large = bench.tree / "large"
    large.write_bytes(b"x" * 100_000)
    (bench.tree / "small").write_bytes(b"small")

    def work(actor: InterceptedActor) -> None:
        actor.write(b"large", b"gone")
        actor.unlink(b"small")

    with opened(bench, limits=LogLimits(max_step_bytes=50_000)) as keeper:
        step = keeper.step(work)
        assert "large" in keeper.service.steps()[0].unprotected
        with pytest.raises(RefusedError, match="cannot be undone whole"):
            keeper.service.undo([step])
        (conflict,) = keeper.service.undo([step], force=True).conflicts
        assert (conflict.path, conflict.kept) == (b"large", None)
        assert (bench.tree / "small").read_bytes() == b"small"
        assert keeper.service.steps()[0].state == "partly"
    caplog.clear()


def test_the_oldest_steps_are_forgotten_at_the_limit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with opened(bench, limits=LogLimits(max_steps=2)) as keeper:
        steps = [keeper.step(write(b"%d" % at)) for at in range(3)]
        assert [info.id for info in keeper.service.steps()] == steps[1:]
        assert "cannot be undone any more" in caplog.text
        assert keeper.service.discard() == 2
        assert keeper.service.steps() == []
    caplog.clear()


def test_the_steps_of_a_run_count_as_one_while_it_goes_on_and_after(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(bench, limits=LogLimits(max_steps=2)) as keeper:
        service = keeper.service

        def work(name: bytes, run: str) -> StepId:
            step = service.open("command", run=run)
            keeper.act(step, write(name))
            service.close(step)
            return step

        first = [work(b"a%d" % at, "first") for at in range(4)]
        going_on = service.open("command", run="first")
        keeper.act(going_on, write(b"by the server"))
        second = [work(b"b%d" % at, "second") for at in range(4)]
        assert [info.id for info in service.steps()] == [*first, going_on, *second]
        assert service.forgotten() == []
        # The run that goes on began first; the other one has acted longer ago.
        alone = work(b"c", "")
        assert [info.id for info in service.steps()] == [*first, going_on, alone]
        assert service.forgotten() == ["second"]
        assert "4 of its oldest steps cannot be undone any more, and so not all of run second" in caplog.text
        service.close(going_on)
        service.undo([*first, going_on])
        assert sorted(os.listdir(bench.tree)) == ["b0", "b1", "b2", "b3", "c"]
    caplog.clear()


def test_bytes_alone_limit_the_steps_of_a_run(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for at in range(6):
        (bench.tree / f"{at}").write_bytes(bytes(10_000))
    with opened(bench, limits=LogLimits(max_steps=1, max_bytes=40_000)) as keeper:
        service, steps = keeper.service, list[StepId]()
        for at in range(6):
            steps.append(service.open("command", run="run"))
            keeper.act(steps[-1], lambda actor, at=at: actor.unlink(b"%d" % at))
            service.close(steps[-1])
        # (Each takes three blocks.)
        assert [info.id for info in service.steps()] == steps[-3:]
        assert service.forgotten() == ["run"]
        assert "1 of its oldest steps cannot be undone any more, and so not all of run run" in caplog.text
        service.configure(LogLimits(max_steps=1, max_bytes=1))
        assert [info.id for info in service.steps()] == steps[-1:]  # the newest never goes
        service.undo(steps[-1:])
        assert os.listdir(bench.tree) == ["5"]
    caplog.clear()


def test_a_killed_keeper_brings_nobody_into_debt(three: Bench) -> None:
    before = three.photograph()
    with opened(three) as keeper:
        step = keeper.service.begin("cut off")
        keeper.act(step, removals(2))
        keeper.service.tick()
    with opened(three) as keeper:
        three.assert_as(before)
        assert [info.state for info in keeper.service.steps()] == ["undone"]
        keeper.service.redo([step])
        assert os.listdir(three.tree) == ["2"]


def test_what_a_step_left_is_known_before_the_rest_of_its_end_is_done(bench: Bench) -> None:
    """However late that is: what others change meanwhile is not taken for the step's, and not lost."""
    with opened(bench) as keeper:
        service = keeper.service
        first = service.open("command")
        keeper.act(first, lambda actor: (actor.write(b"new", b"1"), actor.write(b"other", b"2")))
        finish = service.begin_close(first, 0)
        assert finish is not None
        second = keeper.step(write(b"new", b"more than that"))
        (bench.tree / "other").write_bytes(b"by hand")
        found = finish()
        assert found is not None
        assert (found.id, found.paths) == (first, 2)
        assert [step.id for step in service.steps()] == [first, second]
        assert service.undo([second]).conflicts == ()
        with pytest.raises(RefusedError):
            service.undo([first])
        assert (bench.tree / "other").read_bytes() == b"by hand"


def test_no_more_than_so_many_wait_for_a_person(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_MOST", 1)
    for name in ("a", "b"):
        (bench.tree / name).write_bytes(b"")
    with opened(bench, Thresholds(deletes=1)) as keeper:
        one, two = keeper.service.open("command"), keeper.service.open("command")
        with pytest.raises(HeldError):
            keeper.act(one, lambda actor: actor.unlink(b"a"))
        with pytest.raises(OSError, match="too many"):
            keeper.act(two, lambda actor: actor.unlink(b"b"))
        assert [ticket.step for ticket in keeper.service.held()] == [one]
        assert (bench.tree / "b").exists()
