"""One history: steps, checkpoints and what others change are taken back, and brought forward, the newest first."""

from __future__ import annotations

import logging
import os
import shutil
from itertools import product

import pytest

from holdfast.cli.steps_barriers_safeguard import step_numbers
from holdfast.engine.history.checkpoint import create_checkpoint_locked
from holdfast.engine.opening.undo_log import open_service
from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.tree_state import differences


def test_steps_are_undone_one_by_one_ignored_files_included_and_redone(bench):
    one = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.unlink(b"cache/old")))
    two = bench.step(lambda actor: actor.write(b"cache/new", b"2"))
    assert bench.workspace.undo().steps == (two,)
    bench.check(1)
    result = bench.workspace.undo()
    assert (result.steps, result.written, result.deleted) == ((one,), [b"cache/old", b"f"], [])
    bench.check(0)
    with pytest.raises(NotFoundError) as refused:
        bench.workspace.undo()
    assert refused.value.code == "nothing_to_undo"
    assert bench.workspace.redo().steps == (one,)
    bench.check(1)
    assert bench.workspace.redo().steps == (two,)
    bench.check(2)
    assert list(bench.workspace.undo(2).steps) == [two, one]
    bench.check(0)
    assert list(bench.workspace.redo(2).steps) == [one, two]
    bench.check(2)


def test_what_is_changed_after_a_checkpoint_behind_steps_is_undone_first(bench):
    step = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")))
    bench.workspace.checkpoint()  # as a run's end: it only records what the step did
    (bench.tree / "g").write_text("by hand")
    assert bench.workspace.undo().steps == ()
    bench.check_files(1)
    assert bench.workspace.undo().steps == (step,)
    bench.check_files(0)
    bench.workspace.redo()
    bench.check_files(1)
    bench.workspace.redo()
    assert (bench.tree / "g").read_text() == "by hand"


@pytest.mark.parametrize("unsaved", [False, True])
@pytest.mark.parametrize("changes", list(map("".join, product("es", repeat=4))))
def test_many_changes_of_one_file_are_undone_at_once_as_one_by_one(bench, changes, unsaved):
    """Edits (e) and steps (s): which of the states lie before a step, the file's path does not tell."""
    for number, change in enumerate(changes, 1):
        if change == "e":
            (bench.tree / "f").write_text(f"{number}")
        else:
            run = begin_run(bench.context, "changes f")
            bench.step(lambda actor: actor.write(b"f", b"%d" % number), run=run)  # noqa: B023 - it is called at once
            end_run(bench.context, run, "changes f")
        bench.workspace.checkpoint()
    if unsaved:
        (bench.tree / "f").write_text("unsaved")
    count = len(changes) + unsaved
    with pytest.raises(NotFoundError) as refused:
        bench.workspace.undo(count + 1)
    assert refused.value.data == {"available": count}
    assert (bench.tree / "f").read_text() == ("unsaved" if unsaved else "4")
    way_back = bench.workspace.undo(count).undo_command.split()
    assert (bench.tree / "f").read_text() == "0"
    bench.workspace.redo(int((*way_back, "1")[2]))  # (edits that were undone at once may be one)
    for number in reversed(range(count)):
        bench.workspace.undo()
        assert (bench.tree / "f").read_text() == str(number)


def test_undo_past_undone_steps_to_an_earlier_state_is_redone_by_the_log(bench):
    (bench.tree / "g").write_text("1")
    bench.workspace.checkpoint()
    bench.seen.append(bench.look())
    step = bench.step(lambda actor: actor.write(b"cache/new", b"1"))
    bench.workspace.undo()
    bench.workspace.undo()
    assert not (bench.tree / "g").exists()
    bench.workspace.redo()
    assert not (bench.tree / "cache" / "new").exists()
    assert bench.workspace.redo().steps == (step,)
    assert (bench.tree / "cache" / "new").read_text() == "1"
    with pytest.raises(NotFoundError):
        bench.workspace.redo()
    assert list(bench.workspace.undo(2).steps) == [step]
    assert not (bench.tree / "g").exists()
    bench.workspace.redo(2)
    assert (bench.tree / "cache" / "new").read_text() == "1"


def test_a_new_change_after_an_undo_is_what_is_undone_and_redone(bench):
    bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.workspace.undo()
    (bench.tree / "f").write_text("by hand")
    bench.workspace.checkpoint()
    with pytest.raises(NotFoundError):
        bench.workspace.redo()
    bench.workspace.undo()
    assert (bench.tree / "f").read_text() == "0"
    bench.workspace.redo()
    assert (bench.tree / "f").read_text() == "by hand"


def test_a_checkpoint_in_the_middle_of_a_step_does_not_part_it(bench):
    def work(actor):
        actor.write(b"f", b"1")
        with bench.context.lock():
            create_checkpoint_locked(bench.context, CheckpointRequest(kind="auto"))
        actor.write(b"g", b"2")

    step = bench.step(work)
    bench.workspace.checkpoint()
    assert bench.workspace.undo().steps == (step,)
    bench.check(0)
    with pytest.raises(NotFoundError):
        bench.workspace.undo()
    bench.workspace.redo()
    bench.check(1)


def test_a_step_that_ends_while_a_checkpoint_is_made_is_no_part_of_what_that_had_looked_at_before(bench, monkeypatch):
    steps = []
    random = bench.context.random

    def work_first(size):
        if not steps:
            steps.append(bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1"))))
        return random(size)

    (bench.tree / "g").write_text("by hand")
    with bench.context.lock(), monkeypatch.context() as patch:
        patch.setattr(bench.context, "random", work_first)  # (asked for the checkpoint's id, when the tree was scanned)
        create_checkpoint_locked(bench.context, CheckpointRequest(kind="auto"))
    bench.workspace.checkpoint()
    assert bench.workspace.undo().steps == tuple(steps)
    assert ((bench.tree / "f").read_text(), (bench.tree / "g").read_text()) == ("0", "by hand")
    bench.workspace.undo()
    bench.check_files(0)
    bench.workspace.redo(2)
    bench.check_content(1)


def test_somebody_elses_edit_is_not_lost_and_both_ways_out_are_named(bench):
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")))
    (bench.tree / "f").write_text("mine")
    with pytest.raises(RefusedError) as refused:
        bench.workspace.undo()
    assert refused.value.exit_code == 4
    assert "--force" in (refused.value.hint or "")
    assert "holdfast restore" in (refused.value.hint or "")
    assert (bench.tree / "f").read_text() == "mine"
    bench.workspace.undo(force=True)
    bench.check(0)
    bench.workspace.redo()
    assert (bench.tree / "f").read_text() == "mine"


def test_what_could_not_be_moved_back_is_not_told_of_as_if_it_were(bench):
    bench.step(lambda actor: (actor.rename(b"f", b"moved"), actor.write(b"cache/new", b"1")))
    (bench.tree / "moved").unlink()
    (bench.tree / "moved").write_text("by hand")
    result = bench.workspace.undo(force=True)
    assert {item.path for item in result.skipped} == {b"moved"}
    assert (result.written, result.deleted) == ([], [b"cache/new"])
    assert not (bench.tree / "f").exists()
    assert (bench.tree / "moved").read_text() == "by hand"


def test_a_step_that_goes_on_is_not_taken_away_from_under_it(bench, caplog):
    bench.step(lambda actor: actor.write(b"f", b"1"), ends=False)
    with caplog.at_level(logging.WARNING), open_service(bench.context):
        pass
    assert "rolled back" in caplog.text
    bench.check(0)


def test_a_step_of_a_killed_keeper_is_rolled_back_and_can_be_brought_forward(bench, caplog):
    step = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")), ends=False)
    with caplog.at_level(logging.WARNING):
        assert bench.workspace.steps() == []
        assert f"step {step}: the next command that changes anything first rolls back the open step" in caplog.text
        bench.check(1)
        with open_service(bench.context):
            pass
    assert f"step {step}: the open step was rolled back" in caplog.text
    assert [each.state for each in bench.workspace.steps()] == ["undone"]
    bench.check(0)
    assert bench.workspace.redo(step=step).steps == (step,)
    bench.check(1)
    assert bench.workspace.undo().steps == (step,)
    bench.check(0)


def test_a_whole_run_is_undone_together(bench):
    run = begin_run(bench.context, "do things")
    first = bench.step(lambda actor: actor.write(b"f", b"1"), run=run)
    bench.workspace.checkpoint()
    second = bench.step(lambda actor: (actor.write(b"f", b"2"), actor.unlink(b"cache/old")), run=run)
    end_run(bench.context, run, "do things")
    assert sorted(bench.workspace.undo(run="").steps) == [first, second]
    bench.check(0)
    with pytest.raises(NotFoundError):
        bench.workspace.undo(run="")
    with pytest.raises(NotFoundError):
        bench.workspace.undo(run=run)
    assert len(bench.workspace.redo().steps) == 2
    bench.check(2)
    bench.workspace.undo()
    bench.check(1)


def test_a_run_whose_steps_are_forgotten_is_undone_by_the_checkpoint_that_it_began_with(bench, caplog):
    run = begin_run(bench.context, "do things")
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")), run=run)
    end_run(bench.context, run, "do things")
    assert bench.workspace.discard_steps() == 1
    for dry_run in (True, False):
        with pytest.raises(
            RefusedError, match="undo can no longer bring back ignored files that they changed or removed"
        ) as refused:
            bench.workspace.undo(run="", dry_run=dry_run)
        assert refused.value.code == "steps_forgotten"
    bench.check_files(1)
    with caplog.at_level(logging.WARNING):
        assert bench.workspace.undo(run="", force=True).steps == ()
    assert "ignored files that they changed stay as they are" in caplog.text
    assert (bench.tree / "f").read_text() == "0"
    assert (bench.tree / "cache" / "new").exists()
    bench.workspace.undo()
    assert (bench.tree / "f").read_text() == "1"


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
def test_what_is_edited_by_hand_after_a_run_that_changed_nothing_is_not_taken_back_with_it(bench, has_ended, dry_run):
    """I8."""
    run = begin_run(bench.context, "look around")
    with open_service(bench.context, always=True):
        pass
    if has_ended:
        end_run(bench.context, run, "look around")
    (bench.tree / "f").write_text("by hand")
    for chosen in ("", run):
        with pytest.raises(NotFoundError) as refused:
            bench.workspace.undo(run=chosen, dry_run=dry_run)
        assert refused.value.code == "nothing_to_undo"
    assert (bench.tree / "f").read_text() == "by hand"


def test_what_is_edited_by_hand_after_a_run_whose_steps_are_forgotten_is_taken_back_by_force_alone(bench):
    """I8."""
    run = begin_run(bench.context, "do things")
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")), run=run)
    end_run(bench.context, run, "do things")
    bench.workspace.discard_steps()
    (bench.tree / "g").write_text("by hand")
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="later edits by other processes: g") as refused:
            bench.workspace.undo(run="", dry_run=dry_run)
        assert refused.value.code == "others_since"
    assert (bench.tree / "g").read_text() == "by hand"
    bench.workspace.undo()
    with pytest.raises(RefusedError) as refused:
        bench.workspace.undo(run="")
    assert refused.value.code == "steps_forgotten"
    (bench.tree / "g").write_text("by hand")
    bench.workspace.undo(run=run, force=True)
    assert not (bench.tree / "g").exists()
    bench.workspace.undo()
    assert (bench.tree / "g").read_text() == "by hand"


def test_redo_without_the_steps_brings_back_what_checkpoints_hold(bench, caplog):
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")))
    bench.workspace.undo()
    bench.workspace.discard_steps()
    with caplog.at_level(logging.WARNING):
        bench.workspace.redo()
    assert "but no ignored files" in caplog.text
    assert (bench.tree / "f").read_text() == "1"
    assert not (bench.tree / "cache" / "new").exists()


def test_one_step_of_several_is_undone_and_the_history_goes_on(bench):
    first = bench.step(lambda actor: actor.write(b"cache/one", b"1"))
    second = bench.step(lambda actor: actor.write(b"cache/two", b"2"))
    assert bench.workspace.undo(step=first).steps == (first,)
    assert not (bench.tree / "cache" / "one").exists()
    assert bench.workspace.undo().steps == (second,)
    bench.check_files(0)
    assert list(bench.workspace.redo(2).steps) == [second, first]
    bench.check_files(2)


def test_dry_run_tells_and_touches_nothing(bench):
    bench.workspace.checkpoint()
    step = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")))
    (bench.tree / "g").write_text("1")
    before, log = bench.look(), bench.workspace.log().events
    result = bench.workspace.undo(dry_run=True)
    assert (list(result.steps), result.written, result.deleted) == ([step], [b"f"], [b"cache/new"])
    assert bench.look() == before
    assert bench.workspace.log().events == log


def test_dry_run_tells_of_chosen_steps_and_of_a_run_what_then_happens(bench):
    run = begin_run(bench.context, "do things")
    one = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/new", b"1")), run=run)
    two = bench.step(lambda actor: (actor.unlink(b"cache/old"), actor.write(b"cache/new", b"2")), run=run)
    end_run(bench.context, run, "do things")

    def foretold(verb, **chosen):
        before, log = bench.look(), bench.workspace.log().events
        told = verb(dry_run=True, **chosen)
        assert (bench.look(), bench.workspace.log().events) == (before, log)
        assert told.dry_run
        done = verb(**chosen)
        assert (told.written, told.deleted) == (done.written, done.deleted)
        assert sorted(told.steps) == sorted(done.steps)
        return sorted(told.steps)

    assert foretold(bench.workspace.undo, step=two) == [two]
    assert foretold(bench.workspace.redo, step=two) == [two]
    assert foretold(bench.workspace.undo, run="") == [one, two]
    assert bench.workspace.redo(step=[one, two], dry_run=True).written == [b"cache/new", b"f"]
    with pytest.raises(NotFoundError):
        bench.workspace.undo(step=one, dry_run=True)
    assert foretold(bench.workspace.redo, step=[one, two]) == [one, two]
    with pytest.raises(NotFoundError):
        bench.workspace.redo(step=one, dry_run=True)
    assert bench.workspace.discard_steps() == 2
    assert foretold(bench.workspace.undo, run=run, force=True) == []


def test_a_log_on_another_mount_lies_in_the_tree_and_is_ours_alone(bench, monkeypatch, caplog):
    monkeypatch.setattr("holdfast.engine.opening.undo_log._is_other_mount", lambda *_: True)
    with caplog.at_level(logging.WARNING):
        step = bench.step(lambda actor: actor.write(b"f", b"1"))
    assert "git clean" in caplog.text
    assert bench.workspace.undo().steps == (step,)
    assert (bench.tree / "f").read_text() == "0"
    ignored = bench.tree / ".holdfast" / ".gitignore"
    assert ignored.read_text() == "*\n"
    for left, mended in (("", "*\n"), ("undo\n", "undo\n")):  # (empty, as after a kill; and a person's own)
        ignored.write_text(left)
        bench.step(lambda actor: actor.write(b"f", b"2"))
        assert ignored.read_text() == mended
    os.chmod(bench.tree / ".holdfast" / "undo", 0o755)
    with pytest.raises(RefusedError) as refused:
        bench.workspace.steps()
    assert refused.value.code == "foreign_log"


def test_a_step_is_undone_after_a_later_edit_of_the_same_files_was(bench):
    run = begin_run(bench.context, "do things")
    work = lambda actor: (actor.write(b"f", b"1"), actor.mkdir(b"new"), actor.write(b"new/d", b"1"))  # noqa: E731
    step = bench.step(work, run=run)
    end_run(bench.context, run, "do things")
    for _ in range(2):
        (bench.tree / "f").write_text("by hand")
        shutil.rmtree(bench.tree / "new")
        bench.workspace.undo()
        bench.check_content(1)
        assert bench.workspace.undo().steps == (step,)
        bench.check_content(0)
        bench.workspace.redo(2)
        assert (bench.tree / "f").read_text() == "by hand"
        bench.workspace.undo()
        bench.workspace.undo()
        bench.check_content(0)
        bench.workspace.redo()
        bench.check_content(1)


def test_an_edit_that_was_put_back_otherwise_is_an_edit(bench):
    run = begin_run(bench.context, "do things")
    step = bench.step(lambda actor: actor.write(b"f", b"1"), run=run)
    end_run(bench.context, run, "do things")
    for content in ("2", "1"):
        (bench.tree / "f").unlink()
        (bench.tree / "f").write_text(content)
        (bench.tree / "f").chmod(0o600)
        with pytest.raises(RefusedError):
            bench.workspace.undo(step=step)
        assert (bench.tree / "f").read_text() == content


@pytest.mark.parametrize("path", [b"f", b"cache/new"])
def test_an_undo_during_a_run_can_be_redone_after_it_unless_a_step_has_ended_since(bench, path):
    run = begin_run(bench.context, "do things")
    one = bench.step(lambda actor: actor.write(path, b"1"), run=run)
    two = bench.step(lambda actor: actor.write(path, b"2"), run=run)
    bench.workspace.undo()
    end_run(bench.context, run, "do things")
    assert bench.workspace.redo().steps == (two,)
    bench.check(2)
    run = begin_run(bench.context, "do more")
    bench.workspace.undo(2)
    bench.check(0)
    three = bench.step(lambda actor: actor.write(b"cache/more", b"3"), run=run)
    end_run(bench.context, run, "do more")
    with pytest.raises(NotFoundError):
        bench.workspace.redo()
    assert [step.state for step in bench.workspace.steps() if step.id in (one, two)] == ["undone"] * 2
    assert bench.workspace.undo().steps == (three,)
    bench.check_files(0)


def test_an_edit_behind_a_run_that_changed_only_ignored_files_is_undone_first(bench):
    run = begin_run(bench.context, "do things")
    step = bench.step(lambda actor: actor.write(b"cache/new", b"1"), run=run)
    end_run(bench.context, run, "do things")
    (bench.tree / "f").write_text("by hand")
    assert bench.workspace.undo().steps == ()
    bench.check_content(1)
    assert bench.workspace.undo().steps == (step,)
    bench.check_content(0)


def follow(bench, command):
    """Do what a command line says that was printed: one `holdfast undo`, `redo` or `restore`, or several."""
    for each in command.split(" && "):
        name, verb, *words = each.split()
        assert name == "holdfast"
        if words[:1] == ["--run"]:
            bench.workspace.undo(run=words[1])
        elif words[:1] == ["--step"]:
            getattr(bench.workspace, verb)(step=[step for word in words[1::2] for step in step_numbers(word)])
        elif verb == "restore":
            bench.workspace.restore(*words)
        else:
            getattr(bench.workspace, verb)(*map(int, words))


@pytest.mark.parametrize("has_run", [True, False])
def test_the_command_that_redo_names_takes_back_all_that_it_did(bench, has_run):
    (bench.tree / "g").write_text("before the steps")
    run = begin_run(bench.context, "do things") if has_run else ""
    ids = [bench.step(lambda actor, n=n: actor.write(b"f%d" % n, b"1"), run=run) for n in range(3)]
    if has_run:
        end_run(bench.context, run, "do things")
        bench.workspace.undo(run=run)
    else:
        bench.workspace.undo(step=ids)
    before = bench.look()
    result = bench.workspace.redo()
    assert result.undo_command == (
        f"holdfast undo --run {run}" if has_run else f"holdfast undo --step {ids[0]}-{ids[-1]}"
    )
    follow(bench, result.undo_command)
    assert differences(before, bench.look()) == []


def test_what_an_undo_that_leaves_something_alone_names_brings_all_of_it_back(bench):
    (bench.tree / "g").write_text("1")
    (bench.tree / "h").write_text("1")
    bench.workspace.checkpoint()
    ids = [bench.step(lambda actor, n=n: actor.write(b"cache/%d" % n, b"1")) for n in range(4)]
    bench.workspace.checkpoint()
    before = bench.look()
    with (bench.tree / "g").open("r+"):
        result = bench.workspace.undo(5)
    assert [one.path for one in result.skipped] == [b"g"]
    assert list(result.steps) == ids[::-1]
    assert result.undo_command is not None
    assert result.undo_command.startswith("holdfast restore ")
    assert result.undo_command.endswith(f" && holdfast redo --step {ids[0]}-{ids[-1]}")
    follow(bench, result.undo_command)
    assert contents(before) == contents(bench.look())


def test_an_undo_that_comes_to_what_it_cannot_change_at_all_brings_the_steps_forward_again(bench):
    (bench.tree / "g").write_text("1")
    bench.workspace.checkpoint()
    bench.step(lambda actor: actor.write(b"cache/new", b"1"))
    bench.workspace.checkpoint()
    before = bench.look()
    with (bench.tree / "g").open("r+"), pytest.raises(RefusedError) as refused:
        bench.workspace.undo(2)
    assert refused.value.code == "left_alone"
    assert contents(before) == contents(bench.look())


def contents(look):
    return {path: (one.mode, one.content) for path, one in look.items()}


def test_the_command_that_redo_names_counts_steps_and_states(bench):
    bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.step(lambda actor: actor.write(b"cache/new", b"1"))
    for text in "12":
        (bench.tree / "g").write_text(text)
        bench.workspace.checkpoint()
    result = bench.workspace.undo(4)
    assert result.undo_command == "holdfast redo 4"
    follow(bench, result.undo_command)
    assert (bench.tree / "g").read_text() == "2"
    bench.workspace.undo(4)
    bench.check_content(0)
    result = bench.workspace.redo(2)
    assert result.undo_command == "holdfast undo 2"
    follow(bench, result.undo_command)
    bench.check_content(0)
    result = bench.workspace.redo(4)
    assert result.undo_command == "holdfast undo 4"
    follow(bench, result.undo_command)
    bench.check_content(0)


def test_the_command_that_a_redo_of_chosen_steps_names_takes_them_back_alone(bench):
    ids = [bench.step(lambda actor, n=n: actor.write(b"f%d" % n, b"1")) for n in range(3)]
    bench.workspace.undo(step=ids[:2])
    before = bench.look()
    result = bench.workspace.redo(step=ids[:2])
    assert result.undo_command == f"holdfast undo --step {ids[0]} --step {ids[1]}"
    follow(bench, result.undo_command)
    assert differences(before, bench.look()) == []
    assert bench.workspace.redo(step=ids[0]).undo_command == "holdfast undo"
