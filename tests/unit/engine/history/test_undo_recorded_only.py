"""I8: what the faces ask for takes back what steps and Holdfast did, and nothing of others, be it saved or not; and an
undo of several changes takes back all of them, or none.
"""

from __future__ import annotations

import pytest

from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError, RefusedError


def write(name, content=b"1"):
    return lambda actor: actor.write(name, content)


def cursor(bench):
    return bench.context.catalog.cursor(bench.workspace.id)


def refused(bench, count=1, **options):
    """Undo, and see that it is refused for others' changes, and has changed nothing."""
    tree, at = bench.look(), cursor(bench)
    with pytest.raises(RefusedError) as caught:
        bench.workspace.undo(count, recorded_only=True, **options)
    assert caught.value.code == "barrier"
    assert bench.look() == tree
    now = cursor(bench)
    assert (now.head, now.position, now.redo_tip) == (at.head, at.position, at.redo_tip)
    return caught.value


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_an_edit_by_hand_is_not_taken_back(bench, saved, dry_run):
    step = bench.step(write(b"g"))
    bench.workspace.checkpoint("by the agent")
    (bench.tree / "f").write_text("by hand")
    (bench.tree / "theirs").write_text("by hand")
    if saved:
        bench.workspace.checkpoint("by hand")
    error = refused(bench, dry_run=dry_run)
    assert error.data == {"paths": ["f", "theirs"]}
    assert "f, theirs" in error.message
    assert bench.workspace.undo(step=step, recorded_only=True).steps == (step,)
    assert (bench.tree / "theirs").read_text() == "by hand"


def test_what_a_person_undoes_goes_by_all_changes_as_before(bench):
    (bench.tree / "f").write_text("by hand")
    bench.workspace.checkpoint("by hand")
    bench.workspace.undo()
    bench.check_content(0)


def test_an_edit_beneath_a_step_stops_what_goes_on_behind_it(bench):
    bench.step(write(b"before"))
    (bench.tree / "theirs").write_text("by hand")
    last = bench.step(write(b"after"))
    assert bench.workspace.undo(recorded_only=True).steps == (last,)
    assert (bench.tree / "theirs").exists()
    (bench.tree / "f").write_text("by hand")
    bench.workspace.checkpoint()
    refused(bench)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_all_are_taken_back_or_none(bench, count):
    (bench.tree / "theirs").write_text("by hand")
    bench.workspace.checkpoint("by hand")
    bench.seen.append(bench.look())
    steps = [bench.step(write(name)) for name in (b"a", b"b", b"cache/c")]
    bench.workspace.undo(recorded_only=True)
    bench.check(3)
    tip = cursor(bench).redo_tip
    if count == 2:
        assert list(bench.workspace.undo(count, recorded_only=True).steps) == steps[1::-1]
        bench.check(1)
        return
    refused(bench, count)
    bench.check(3)
    assert cursor(bench).redo_tip == tip
    assert [step.state for step in bench.workspace.steps()] == ["done", "done", "undone"]
    assert list(bench.workspace.redo().steps) == steps[2:]
    bench.check(4)


def test_a_person_too_has_all_or_nothing(bench):
    steps = [bench.step(write(name)) for name in (b"a", b"b")]
    bench.workspace.checkpoint()
    for count in (3, 50):
        for dry_run in (True, False):
            before = bench.workspace.log()
            with pytest.raises(NotFoundError, match="only 2 changes to undo") as caught:
                bench.workspace.undo(count, dry_run=dry_run)
            assert (caught.value.code, caught.value.data) == ("nothing_to_undo", {"available": 2})
            assert bench.workspace.log() == before
    bench.check(2)
    assert list(bench.workspace.undo(2).steps) == steps[::-1]
    with pytest.raises(NotFoundError, match="only 2 changes to redo"):
        bench.workspace.redo(3)


def test_states_steps_and_what_is_not_saved_are_counted_before_any_is_taken_back(bench):
    (bench.tree / "g").write_text("saved")
    bench.workspace.checkpoint()
    run = begin_run(bench.context, "do things")
    for name in (b"a", b"cache/c"):
        bench.step(write(name), run=run)
    end_run(bench.context, run, "do things")
    (bench.tree / "g").write_text("not saved")
    before, began = bench.look(), cursor(bench)
    for _ in range(2):
        with pytest.raises(NotFoundError, match="only 4 changes to undo"):
            bench.workspace.undo(5)
        assert bench.look() == before
    assert cursor(bench).redo_tip == cursor(bench).position
    assert cursor(bench).position != began.position
    foreseen = bench.workspace.undo(4, dry_run=True)
    done = bench.workspace.undo(4)
    assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted)
    bench.check_content(0)
    bench.workspace.redo(4)
    assert (bench.tree / "g").read_text() == "not saved"


def test_an_edit_between_two_steps_of_a_file_that_they_write_is_a_change_that_counts(bench):
    bench.step(write(b"g"))
    (bench.tree / "g").write_text("by hand")
    bench.step(write(b"g"))
    with pytest.raises(NotFoundError):
        bench.workspace.undo(9, force=True)
    bench.workspace.undo(2, force=True)
    with pytest.raises(NotFoundError):
        bench.workspace.undo(9)


def test_a_restore_is_taken_back_and_what_was_restored_over_is_there_again(bench):
    bench.step(write(b"g"))
    bench.workspace.checkpoint()
    (bench.tree / "f").write_text("by hand")
    bench.seen.append(bench.look())
    first = bench.workspace.log().checkpoints[-1].id
    bench.workspace.restore(first)
    refused(bench, 2)
    bench.check_content(0)
    bench.workspace.undo(recorded_only=True)
    bench.check_content(2)
    bench.workspace.redo()
    bench.check_content(0)


def test_what_cannot_be_brought_forward_again_is_told_of(bench, monkeypatch):
    (bench.tree / "theirs").write_text("by hand")
    bench.workspace.checkpoint()
    steps = [bench.step(write(name)) for name in (b"a", b"b")]

    def damaged(*_args, **_options):
        raise IntegrityError("a preimage is damaged")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.engine.history._navigator.reapply_steps", damaged)
        patched.setattr("holdfast.engine.history._navigator.carry_out", damaged)
        with pytest.raises(HoldfastError) as caught:
            bench.workspace.undo(3)
    assert caught.value.code == "integrity"
    assert caught.value.data == {"taken_back": steps, "redo": 2}
    assert "steps 1 and 2 stay taken back" in caught.value.message
    assert caught.value.hint == "`holdfast redo 2` brings it forward"
    bench.workspace.redo(2)
    bench.check(2)


def test_a_run_that_is_not_known_whole_is_not_taken_back_by_a_checkpoint(bench):
    run = begin_run(bench.context, "do things")
    for name in (b"a", b"b"):
        bench.step(write(name), run=run)
    end_run(bench.context, run, "do things")
    bench.workspace.discard_steps()
    (bench.tree / "theirs").write_text("by hand")
    for dry_run in (True, False):
        refused(bench, run=run, dry_run=dry_run)
    with pytest.raises(RefusedError) as caught:
        bench.workspace.undo(run=run)
    assert caught.value.code == "others_since"
    bench.workspace.undo(run=run, force=True)
    bench.check_content(0)


def test_steps_that_go_together_are_named(bench):
    first = bench.step(write(b"g"))
    second = bench.step(lambda actor: actor.write(b"g", b"22"))
    with pytest.raises(RefusedError) as caught:
        bench.workspace.undo(step=first)
    assert caught.value.code == "steps_connected"
    assert caught.value.data == {"together": [first, second]}
    assert sorted(bench.workspace.undo(step=[first, second], recorded_only=True).steps) == [first, second]
    with pytest.raises(RefusedError) as caught:
        bench.workspace.redo(step=second)
    assert caught.value.data == {"together": [first, second]}


def test_a_run_of_which_the_rest_cannot_be_taken_back_is_as_it_was(bench, monkeypatch):
    run = begin_run(bench.context, "do things")
    bench.step(write(b"a"), run=run)
    bench.workspace.discard_steps()
    step = bench.step(write(b"cache/b"), run=run)
    end_run(bench.context, run, "do things")
    at = cursor(bench)

    def damaged(*_args, **_options):
        raise IntegrityError("content is damaged")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.engine.history.undo.carry_out", damaged)
        with pytest.raises(IntegrityError):
            bench.workspace.undo(run=run, force=True)
    bench.check(2)
    now = cursor(bench)
    assert (now.head, now.position, now.redo_tip) == (at.head, at.position, at.redo_tip)
    assert [each.state for each in bench.workspace.steps() if each.id == step] == ["done"]
    bench.workspace.undo(run=run, force=True)
    bench.check_content(0)


def test_a_restore_of_some_paths_is_a_change_of_its_own(bench):
    bench.step(write(b"f", b"22"))
    bench.step(write(b"g"))
    first = bench.workspace.log().checkpoints[-1].id
    bench.workspace.checkpoint("later")
    bench.workspace.restore(first, ["f"], as_state=True)
    assert not bench.workspace.status().changes
    assert (bench.tree / "f").read_text() == "0"
    bench.workspace.restore("@", ["f"], as_state=True)  # not what was saved for it
    assert (bench.tree / "f").read_text() == "22"
    bench.workspace.undo(2, recorded_only=True)
    bench.check_content(2)
    (bench.tree / "f").write_text("by hand")
    refused(bench)
