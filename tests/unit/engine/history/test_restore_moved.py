"""I8: redo and undo of a step that moved or linked a file, after an edit of it was taken back by a checkpoint."""

from __future__ import annotations

import pytest

from holdfast.model.errors import RefusedError
from holdfast.testing.tree_state import differences


def _move_into_a_directory(actor):
    actor.mkdir(b"dd")
    actor.rename(b"f", b"dd/f")


def _link_and_write(actor):
    actor.link(b"f", b"n")
    actor.write(b"n", b"written by the other name")


def _link_and_move(actor):
    actor.link(b"f", b"n")
    actor.chmod(b"n", 0o600)
    actor.rename(b"n", b"m")


def _link_and_remove(actor):
    actor.link(b"f", b"n")
    actor.unlink(b"f")


def _link_and_replace(actor):
    actor.link(b"f", b"n")
    actor.rename(b"g", b"f")


def _write_and_move_above(actor):
    actor.write(b"cache/old", b"written")
    actor.write(b"d/e", b"written")
    actor.rename(b"d", b"moved")


WORKS = {
    "to a free name": (b"f", lambda actor: actor.rename(b"f", b"n")),
    "over another file": (b"f", lambda actor: actor.rename(b"f", b"g")),
    "over another file, which is edited": (b"g", lambda actor: actor.rename(b"f", b"g")),
    "into a new directory": (b"f", _move_into_a_directory),
    "a directory of what it wrote": (b"d/e", _write_and_move_above),
    "exchanged": (b"f", lambda actor: actor.exchange(b"f", b"g")),
    "by a link and the removal of the old name": (b"f", _link_and_remove),
    "linked": (b"f", lambda actor: actor.link(b"f", b"n")),
    "linked and written": (b"f", _link_and_write),
    "linked and moved": (b"f", _link_and_move),
}


@pytest.fixture
def tree(tree):
    (tree / "g").write_text("g")
    (tree / "d").mkdir()
    (tree / "d" / "e").write_text("e")
    return tree


def _look(bench):
    """Without the times, which checkpoints do not bring back."""
    return {path: one._replace(mtime=0) for path, one in bench.look().items()}


def _edit_and_take_back(bench, path):
    """An edit by hand that a checkpoint has and `undo` takes back: the file is another object then."""
    before, file = _look(bench), bench.tree / path.decode()
    was = file.stat().st_ino
    file.write_text("by hand")
    bench.workspace.checkpoint()
    assert bench.workspace.undo().steps == ()
    assert differences(before, _look(bench)) == []
    assert file.stat().st_ino != was


@pytest.mark.parametrize("what", WORKS)
def test_an_edit_that_a_checkpoint_took_back_stops_neither_redo_nor_undo(bench, what):
    path, work = WORKS[what]
    before = _look(bench)
    step = bench.step(work)
    after = _look(bench)
    bench.workspace.undo()
    _edit_and_take_back(bench, path)
    for reverse, wanted in ((bench.workspace.redo, after), (bench.workspace.undo, before)):
        result = reverse(step=step)
        assert (result.steps, result.skipped) == ((step,), [])
        assert differences(wanted, _look(bench)) == []


@pytest.mark.parametrize("what", ["to a free name", "over another file", "a directory of what it wrote"])
def test_an_edit_that_comes_after_that_is_a_barrier(bench, what):
    path, work = WORKS[what]
    step = bench.step(work)
    bench.workspace.undo()
    _edit_and_take_back(bench, path)
    (bench.tree / path.decode()).write_text("another edit")
    before = bench.look()
    with pytest.raises(RefusedError) as refused:
        bench.workspace.redo(step=step)
    assert refused.value.code == "barrier"
    assert differences(before, bench.look()) == []


@pytest.mark.parametrize(
    "change", [lambda file: file.write_text("another edit"), lambda file: file.chmod(0o640)], ids=["written", "chmod"]
)
def test_what_was_edited_after_that_is_not_linked_again(bench, change):
    step = bench.step(_link_and_write)
    bench.workspace.undo()
    _edit_and_take_back(bench, b"f")
    change(bench.tree / "f")
    before = _look(bench)
    assert bench.workspace.redo(step=step).skipped != []
    assert differences(before, _look(bench)) == []


def test_what_an_undone_move_gave_back_is_known_again_by_an_edit_by_hand_too(bench):
    step = bench.step(lambda actor: actor.rename(b"f", b"n"))
    bench.workspace.undo()
    (bench.tree / "f").unlink()
    (bench.tree / "f").write_text("0")
    assert bench.workspace.redo(step=step).steps == (step,)


@pytest.mark.parametrize("work", [_link_and_remove, _link_and_replace], ids=["removed", "replaced"])
def test_a_name_that_a_step_took_is_given_to_the_other_name_that_a_checkpoint_brought_back(bench, work):
    before = _look(bench)
    step = bench.step(work)
    bench.workspace.checkpoint()  # as a run's end
    after = _look(bench)
    _edit_and_take_back(bench, b"n")  # in place: so the log has the edit, as it has the same object
    for reverse, wanted in ((bench.workspace.undo, before), (bench.workspace.redo, after)):
        assert reverse(step=step).skipped == []
        assert differences(wanted, _look(bench)) == []


def test_an_edit_by_another_name_that_is_gone_does_not_come_back_with_a_name_that_a_step_took(bench):
    (bench.tree / "n").hardlink_to(bench.tree / "f")
    bench.workspace.checkpoint()
    step = bench.step(lambda actor: actor.unlink(b"n"))
    bench.workspace.checkpoint()  # as a run's end
    _edit_and_take_back(bench, b"f")
    with pytest.raises(RefusedError) as refused:
        bench.workspace.undo(step=step)
    assert refused.value.code == "barrier"
    assert not (bench.tree / "n").exists()


def test_a_name_that_a_step_took_comes_back_where_only_the_other_name_is_gone(bench):
    (bench.tree / "n").hardlink_to(bench.tree / "f")
    bench.workspace.checkpoint()
    step = bench.step(lambda actor: actor.unlink(b"n"))
    (bench.tree / "f").unlink()
    assert bench.workspace.undo(step=step, force=True).skipped == []
    assert (bench.tree / "n").read_text() == "0"
