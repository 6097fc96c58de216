"""I3: an undo or a redo of steps that was killed is finished by whatever comes next, and the history learns of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.engine.opening.undo_log import open_service
from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.errors import FormatError, NotFoundError

from ....older_notes import age


def test_killed_between_the_undo_and_its_record_nothing_is_undone_twice(bench, monkeypatch):
    step = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")))

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.engine.history._step_reversal.create_checkpoint_or_part", killed)
    with pytest.raises(KeyboardInterrupt):
        bench.workspace.undo()
    monkeypatch.undo()
    bench.check(0)
    assert [each.state for each in bench.workspace.steps() if each.id == step] == ["undone"]
    assert bench.workspace.undo().steps == (step,)
    bench.check(0)
    with pytest.raises(NotFoundError):
        bench.workspace.undo()
    assert bench.workspace.redo().steps == (step,)
    bench.check(1)


def test_killed_in_the_middle_of_an_undo_the_history_learns_of_it(bench, cut_short, caplog):
    first = bench.step(lambda actor: (actor.write(b"n", b"1"), actor.write(b"m", b"1")))
    second = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    cut_short(bench.workspace.undo)
    bench.workspace.steps()
    assert bench.workspace.undo().steps == (second,)
    bench.check(1)
    assert f"step {second} was taken back" in caplog.text
    assert bench.workspace.undo().steps == (first,)
    bench.check(0)
    bench.workspace.redo(2)
    bench.check(2)
    cut_short(bench.workspace.undo)
    assert bench.workspace.redo().steps == (second,)
    bench.check(2)
    cut_short(bench.workspace.undo)
    assert list(bench.workspace.undo(2).steps) == [second, first]
    bench.check(0)


def test_killed_in_the_middle_of_the_undo_of_a_run(bench, cut_short):
    earlier = bench.step(lambda actor: actor.write(b"cache/earlier", b"1"), run="earlier")
    run = begin_run(bench.context, "do things")
    steps = [bench.step(lambda actor, name=name: actor.write(name, b"1"), run=run) for name in (b"n", b"m")]
    end_run(bench.context, run, "do things")
    cut_short(lambda: bench.workspace.undo(run=""))
    assert sorted(bench.workspace.undo(run="").steps) == steps
    bench.check(1)
    assert sorted(bench.workspace.redo().steps) == steps
    bench.check(3)
    cut_short(lambda: bench.workspace.undo(step=steps[1]))
    assert bench.workspace.undo(run="").steps == (steps[0],)
    bench.check_content(1)
    assert bench.workspace.undo(run="").steps == (earlier,)


def test_what_an_undo_that_was_cut_short_left_is_saved_by_somebody(bench, cut_short):
    bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    cut_short(bench.workspace.undo)
    with open_service(bench.context):
        pass
    (bench.tree / "f").write_text("by hand")
    bench.workspace.checkpoint()
    bench.workspace.undo()
    assert [each.state for each in bench.workspace.steps()] == ["undone"]
    assert bench.workspace.redo().steps == ()
    assert (bench.tree / "f").read_text() == "by hand"


def test_killed_in_the_middle_of_a_redo_the_history_learns_of_it(bench, cut_short, caplog):
    first = bench.step(lambda actor: (actor.write(b"n", b"1"), actor.write(b"m", b"1")))
    second = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    bench.workspace.undo(2)
    cut_short(bench.workspace.redo)
    assert bench.workspace.redo().steps == (first,)
    bench.check(1)
    assert f"step {first} was brought forward" in caplog.text
    cut_short(bench.workspace.redo)
    assert bench.workspace.undo().steps == (second,)
    bench.check(1)
    bench.workspace.undo()
    cut_short(lambda: bench.workspace.redo(2))
    assert list(bench.workspace.redo(2).steps) == [first, second]
    bench.check(2)
    with pytest.raises(NotFoundError):
        bench.workspace.redo()


def test_killed_in_the_middle_of_a_redo_of_chosen_steps(bench, cut_short):
    one = bench.step(lambda actor: (actor.write(b"n", b"1"), actor.write(b"m", b"1")))
    two = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    bench.workspace.undo(2)
    (bench.tree / "by-hand").write_text("x")
    cut_short(lambda: bench.workspace.redo(step=two))
    assert bench.workspace.redo(step=two).steps == (two,)
    assert not (bench.tree / "f").exists()
    cut_short(lambda: bench.workspace.redo(step=one))
    assert bench.workspace.undo().steps == (one,)
    assert not (bench.tree / "n").exists()
    assert bench.workspace.undo().steps == (two,)
    bench.workspace.undo()
    bench.check_content(0)


@pytest.mark.parametrize("writer", ["this version", "an older one"])
@pytest.mark.parametrize("operation", ["undo", "redo"])
@pytest.mark.parametrize("what", ["checkpoint", "restore", "run"])
def test_what_changes_the_tree_or_the_history_finishes_it_first(bench, cut_short, caplog, operation, what, writer):
    step = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    if operation == "redo":
        bench.workspace.undo()
    bench.workspace.checkpoint("before")
    cut_short(getattr(bench.workspace, operation))
    if writer != "this version":
        assert age(bench.context.folder)
    if what == "checkpoint":
        bench.workspace.checkpoint("then")
    elif what == "restore":
        bench.workspace.restore("before", dry_run=True)
        bench.check(0 if operation == "undo" else 1)
        assert "that was cut short is finished" not in caplog.text  # the history is left to what changes it
        bench.workspace.restore("before")
    else:
        end_run(bench.context, begin_run(bench.context, "do"), "do")
    assert "that was cut short is finished" in caplog.text
    assert [each.state for each in bench.workspace.steps()] == ["undone" if operation == "undo" else "done"]
    if what == "restore":
        bench.workspace.undo()
        bench.check_content(0 if operation == "undo" else 1)
        return
    bench.check(0 if operation == "undo" else 1)
    back = bench.workspace.redo if operation == "undo" else bench.workspace.undo
    assert back().steps == (step,)
    bench.check(1 if operation == "undo" else 0)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("operation", ["undo", "redo"])
def test_what_saves_by_itself_saves_nothing_half_done_and_leaves_the_history_alone(
    bench, cut_short, caplog, operation, by_hand
):
    """As the watcher does, before anything else is asked for."""
    step = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1"), actor.write(b"n", b"1")))
    if operation == "redo":
        bench.workspace.undo()
    cut_short(getattr(bench.workspace, operation))
    if by_hand:
        (bench.tree / "other").write_text("x")
    assert bench.workspace.checkpoint(kind="auto").created
    if not by_hand:
        bench.check(0 if operation == "undo" else 1)
    assert "that was cut short is finished" not in caplog.text
    assert getattr(bench.workspace, operation)().steps == (step,)
    assert [each.state for each in bench.workspace.steps()] == ["undone" if operation == "undo" else "done"]
    if by_hand:
        assert (bench.tree / "other").read_text() == "x"
        return
    bench.check(0 if operation == "undo" else 1)
    back = bench.workspace.redo if operation == "undo" else bench.workspace.undo
    assert back().steps == (step,)
    bench.check(1 if operation == "undo" else 0)


@pytest.mark.parametrize("operation", ["undo", "redo"])
def test_killed_before_it_has_begun_nothing_was(bench, monkeypatch, operation):
    step = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    if operation == "redo":
        bench.workspace.undo()
    before = bench.look()

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"holdfast.undo.local_service.undo_service.LocalUndoService.{operation}", killed)
        with pytest.raises(KeyboardInterrupt):
            getattr(bench.workspace, operation)()
    bench.workspace.checkpoint("then")
    assert bench.look() == before
    assert getattr(bench.workspace, operation)().steps == (step,)
    bench.check(0 if operation == "undo" else 1)


def test_a_damaged_note_keeps_nobody_from_saving_and_undo_names_it(bench, cut_short, caplog):
    bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    cut_short(bench.workspace.undo)
    note = bench.context.folder + b"/operation"
    with open(note, "r+b") as file:
        file.seek(-2, 2)
        file.write(b"7")
    assert bench.workspace.checkpoint("then").created
    assert "cannot be finished now" in caplog.text
    for act in (bench.workspace.undo, bench.workspace.redo, lambda: bench.workspace.restore("@-")):
        with pytest.raises(FormatError, match="operation is damaged"):
            act()


@pytest.mark.parametrize("operation", ["undo", "redo"])
def test_who_looks_at_steps_alone_finishes_nothing_and_says_what_would_be_finished(bench, cut_short, caplog, operation):
    step = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1"), actor.write(b"n", b"1")))
    if operation == "redo":
        bench.workspace.undo()
    act = getattr(bench.workspace, operation)
    cut_short(act)
    half = bench.look()
    for dry in (act, lambda **options: act(step=step, **options)):
        caplog.clear()
        foreseen = dry(dry_run=True)
        assert (foreseen.steps, foreseen.dry_run) == ([step], True)
        assert f"the {operation} that was cut short would be finished first" in caplog.text
    bench.workspace.step(step)
    bench.workspace.steps()
    bench.workspace.barriers()
    assert bench.look() == half
    caplog.clear()
    bench.workspace.status()
    assert f"the {operation} of step {step} was cut short" in caplog.text
    bench.check(0 if operation == "undo" else 1)
    assert act().steps == (step,)
    bench.check(0 if operation == "undo" else 1)


@pytest.mark.parametrize("operation", ["undo", "redo"])
def test_what_was_there_before_is_what_was_saved_before_and_not_half_of_it(bench, cut_short, operation):
    bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"m", b"1"), actor.write(b"n", b"1")))
    if operation == "redo":
        bench.workspace.undo()
    before = bench.workspace.checkpoint().checkpoint.id
    cut_short(getattr(bench.workspace, operation))
    assert bench.workspace.checkpoint(kind="auto").checkpoint.id != before
    assert getattr(bench.workspace, operation)().rescue == before


@pytest.mark.parametrize("by", ["who asks", "somebody else"])
@pytest.mark.parametrize("operation", ["undo", "redo"])
def test_what_it_leaves_alone_is_told_with_where_the_other_lies(bench, cut_short, caplog, operation, by):
    (bench.tree / "f").write_text("before")
    bench.step(lambda actor: (actor.write(b"f", b"after"), actor.write(b"cache/old", b"after")))
    if operation == "redo":
        bench.workspace.undo()
    cut_short(getattr(bench.workspace, operation))
    edited = "cache/old" if operation == "redo" else "f"
    (bench.tree / edited).write_text("by hand")
    if by == "somebody else":
        with open_service(bench.context):
            pass
        caplog.clear()
    done = getattr(bench.workspace, operation)()
    ((path, reason),) = done.skipped
    assert path == os.fsencode(edited)
    kept = Path(reason.partition("; ")[2].removesuffix(" holds the other"))
    assert kept.parent.name == "aside"
    assert kept.read_text() == {"undo": "before", "redo": "after"}[operation]
    told = [record.getMessage() for record in caplog.records if str(kept) in record.getMessage()]
    assert len(told) == (2 if by == "who asks" else 1)
    assert path not in done.written
    assert (bench.tree / edited).read_text() == "by hand"
