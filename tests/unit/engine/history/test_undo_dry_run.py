"""What a dry run of undo and redo says is what would be done, and changes nothing."""

from __future__ import annotations

import os

import pytest

from holdfast.engine.opening.undo_log import log_directory
from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.errors import NotFoundError, RefusedError


def test_redo_foresees_what_the_undo_log_does_with_ignored_files(bench):
    step = bench.step(lambda actor: (actor.unlink(b"f"), actor.write(b"cache/new", b"1")))
    bench.workspace.undo()
    before = bench.look()
    foreseen = bench.workspace.redo(dry_run=True)
    assert bench.look() == before
    assert list(foreseen.steps) == [step]
    done = bench.workspace.redo()
    assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted) == ([b"cache/new"], [b"f"])


def test_redo_foresees_steps_and_changes_by_others_alike(bench):
    bench.step(lambda actor: actor.write(b"cache/new", b"1"))
    (bench.tree / "by-hand").write_text("x")
    bench.workspace.undo(2)
    foreseen = bench.workspace.redo(2, dry_run=True)
    assert (foreseen.written, foreseen.deleted) == ([b"by-hand", b"cache/new"], [])
    with pytest.raises(NotFoundError):
        bench.workspace.redo(3, dry_run=True)


def test_undo_foresees_what_two_steps_come_to(bench):
    bench.step(lambda actor: actor.write(b"g", b"1"))
    bench.step(lambda actor: actor.rename(b"g", b"h"))
    for foreseen in (bench.workspace.undo(2, dry_run=True), bench.workspace.undo(step=[1, 2], dry_run=True)):
        assert (foreseen.written, foreseen.deleted) == ([], [b"h"])
    with pytest.raises(NotFoundError):
        bench.workspace.undo(30, dry_run=True)


def test_steps_that_depend_on_others_are_refused_before_and_after(bench):
    first = bench.step(lambda actor: actor.write(b"g", b"1"))
    second = bench.step(lambda actor: actor.write(b"g", b"2"))
    for dry_run in (True, False):
        with pytest.raises(RefusedError) as error:
            bench.workspace.undo(step=first, dry_run=dry_run)
        assert (error.value.code, error.value.data) == ("steps_connected", {"together": [first, second]})
    bench.workspace.undo(step=[first, second])
    for dry_run in (True, False):
        with pytest.raises(RefusedError) as error:
            bench.workspace.redo(step=second, dry_run=dry_run)
        assert error.value.code == "steps_connected"


def test_directories_that_are_to_be_deleted_are_listed(bench):
    bench.step(lambda actor: (actor.mkdir(b"d"), actor.write(b"d/new", b"1")))
    bench.step(lambda actor: actor.chmod(b"d", 0o700))
    for act in (bench.workspace.undo, bench.workspace.redo):
        foreseen = act(2, dry_run=True)
        done = act(2)
        assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted)
        assert [b"d", b"d/new"] in (done.written, done.deleted)


def test_what_was_changed_in_a_directory_that_moved_is_named_by_where_it_is_then(bench):
    bench.step(lambda actor: (actor.write(b"cache/old", b"1"), actor.rename(b"cache", b"moved")))
    for act, written, gone in ((bench.workspace.undo, b"cache", b"moved"), (bench.workspace.redo, b"moved", b"cache")):
        foreseen = act(dry_run=True)
        done = act()
        assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted)
        assert (done.written, done.deleted) == ([written, written + b"/old"], [gone])


@pytest.mark.parametrize("first", ["the change", "the move"])
def test_a_directory_that_moved_between_two_steps_is_followed(bench, first):
    if first == "the change":
        bench.step(lambda actor: actor.write(b"cache/old", b"1"))
        bench.step(lambda actor: actor.rename(b"cache", b"moved"))
    else:
        bench.step(lambda actor: actor.rename(b"cache", b"moved"))
        bench.step(lambda actor: actor.write(b"moved/old", b"1"))
    for act in (bench.workspace.undo, bench.workspace.redo):
        for chosen in ({"count": 2}, {"step": [1, 2]}):
            foreseen = act(**chosen, dry_run=True)
            assert all(path.startswith(foreseen.written[0]) for path in foreseen.written)
        done = act(2)
        assert all(os.path.lexists(os.path.join(os.fsencode(bench.tree), path)) for path in done.written)
        assert (act.__name__, done.deleted) in (("undo", [b"moved"]), ("redo", [b"cache"]))


def test_who_only_looks_leaves_the_log_as_it_was(bench):
    step = bench.step(lambda actor: actor.write(b"cache/new", b"1"))

    def log():
        top = os.fsdecode(log_directory(bench.context))
        paths = [os.path.join(where, name) for where, _, names in os.walk(top) for name in names]
        return {path: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in paths}

    before = log()
    bench.workspace.steps()
    bench.workspace.step(step)
    bench.workspace.barriers()
    bench.workspace.undo(dry_run=True)
    bench.workspace.undo(step=step, dry_run=True)
    assert log() == before
    bench.workspace.undo()
    bench.check(0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_where_no_run_is_left_to_undo_it_is_said_whether_there_was_one(bench, dry_run):
    with pytest.raises(NotFoundError, match="there is no run to undo"):
        bench.workspace.undo(run="", dry_run=dry_run)
    run = begin_run(bench.context, "do things")
    bench.step(lambda actor: actor.write(b"n", b"1"), run=run)
    end_run(bench.context, run, "do things")
    bench.workspace.undo(run="")
    with pytest.raises(NotFoundError, match="no run is left to undo") as error:
        bench.workspace.undo(run="", dry_run=dry_run)
    assert error.value.code == "nothing_to_undo"


def kept(bench):
    """The undo log, as bytes."""
    base = log_directory(bench.context)
    found = {}
    for directory, _, names in os.walk(base):
        for name in names:
            if name not in (b"lock", b"beat") and not name.startswith(b"journal"):
                with open(os.path.join(directory, name), "rb") as file:
                    found[os.path.join(directory, name)] = file.read()
    return found


def test_what_others_have_changed_since_is_refused_before_and_after(bench):
    first = bench.step(lambda actor: actor.write(b"g", b"1"))
    second = bench.step(lambda actor: actor.write(b"h", b"1"))
    (bench.tree / "g").write_text("by hand")
    for options in ({"step": first}, {"step": [first, second]}):
        for dry_run in (True, False):
            log = kept(bench)
            with pytest.raises(RefusedError) as error:
                bench.workspace.undo(dry_run=dry_run, **options)
            assert error.value.code == "barrier"
            assert "g" in error.value.message
            if dry_run:
                assert kept(bench) == log
    assert bench.workspace.undo(step=second, dry_run=True).deleted == [b"h"]
    assert bench.workspace.undo(step=first, force=True, dry_run=True).deleted == [b"g"]


def test_so_is_what_lies_in_the_way_of_the_newest_steps(bench):
    bench.step(lambda actor: actor.write(b"cache/a", b"1"))
    bench.step(lambda actor: actor.write(b"cache/b", b"1"))
    (bench.tree / "cache/a").write_text("by hand")  # it is ignored: no change that checkpoints know
    assert bench.workspace.undo(dry_run=True).deleted == [b"cache/b"]
    for dry_run in (True, False):
        with pytest.raises(RefusedError) as error:
            bench.workspace.undo(2, dry_run=dry_run)
        assert error.value.code == "barrier"


def test_redo_foresees_what_others_have_changed_too(bench):
    bench.step(lambda actor: actor.write(b"cache/a", b"1"))
    bench.workspace.undo()
    (bench.tree / "cache").mkdir(exist_ok=True)
    (bench.tree / "cache/a").write_text("by hand")
    for options in ({}, {"step": 1}):
        for dry_run in (True, False):
            with pytest.raises(RefusedError) as error:
                bench.workspace.redo(dry_run=dry_run, **options)
            assert error.value.code == "barrier"


def test_what_was_put_back_is_no_barrier_in_a_dry_run_either(bench):
    step = bench.step(lambda actor: actor.write(b"g", b"1"))
    bench.workspace.checkpoint("by the step")
    bench.workspace.restore("@-")
    bench.workspace.undo()
    log = kept(bench)
    assert bench.workspace.undo(step=step, dry_run=True).deleted == [b"g"]
    assert kept(bench) == log
    assert bench.workspace.undo(step=step).deleted == [b"g"]


def replace(path, content="by hand"):
    """As editors and `sed -i` do."""
    beside = path.with_name("beside")
    beside.write_text(content)
    beside.replace(path)


def edit(path):
    path.write_text("by hand, longer than before")


OTHERS = {
    "replaced": lambda tree: replace(tree / "f"),
    "edited": lambda tree: edit(tree / "f"),
    "edited and put back": lambda tree: (replace(tree / "f"), replace(tree / "f", "step")),
    "removed": lambda tree: (tree / "f").unlink(),
    "a directory instead": lambda tree: ((tree / "f").unlink(), (tree / "f").mkdir()),
    "new file replaced": lambda tree: replace(tree / "new"),
    "new file edited": lambda tree: edit(tree / "new"),
    "new file removed": lambda tree: (tree / "new").unlink(),
    "file in a new directory": lambda tree: edit(tree / "made/in/more"),
    "replaced in a new directory": lambda tree: replace(tree / "made/in/one"),
    "the removed made again": lambda tree: edit(tree / "cache/gone"),
    "the removed directory made again": lambda tree: ((tree / "left").mkdir(), edit(tree / "left/other")),
    "the target of a move replaced": lambda tree: replace(tree / "moved"),
    "the source of a move made again": lambda tree: edit(tree / "cache/old"),
    "the replaced replaced": lambda tree: replace(tree / "saved"),
    "the replaced removed": lambda tree: (tree / "saved").unlink(),
    "a directory removed": lambda tree: ((tree / "cache/deep/new").unlink(), (tree / "cache/deep").rmdir()),
    "described replaced": lambda tree: replace(tree / "mode"),
    "described removed": lambda tree: (tree / "mode").unlink(),
}


@pytest.mark.parametrize("others", OTHERS)
def test_it_names_what_the_forced_command_leaves_alone(bench, others):
    tree = bench.tree
    for name in ("cache/gone", "saved", "left/one", "cache/deep/old", "mode"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("before")
    bench.workspace.checkpoint()

    def work(actor):
        actor.write(b"f", b"step")
        actor.write(b"new", b"step")
        actor.mkdir(b"made")
        actor.mkdir(b"made/in")
        actor.write(b"made/in/one", b"step")
        actor.unlink(b"cache/gone")
        actor.unlink(b"left/one")
        actor.rmdir(b"left")
        actor.rename(b"cache/old", b"moved")
        actor.write(b"temporary", b"step")
        actor.rename(b"temporary", b"saved")
        actor.unlink(b"cache/deep/old")
        actor.write(b"cache/deep/new", b"step")
        actor.chmod(b"mode", 0o600)

    step = bench.step(work)
    OTHERS[others](tree)
    before = bench.look()
    foreseen = bench.workspace.undo(step=step, force=True, dry_run=True)
    patch = b"".join(bench.workspace.planned_patch(bench.workspace.planned_diff(foreseen)))
    assert bench.look() == before
    done = bench.workspace.undo(step=step, force=True)
    assert {one.path for one in foreseen.skipped} == {one.path for one in done.skipped}
    assert not [one.path for one in done.skipped if b"diff --git a/%b " % one.path in patch]
    if done.skipped:
        assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted)


def test_so_does_the_preview_of_the_newest_change(bench):
    bench.step(lambda actor: (actor.write(b"cache/a", b"1"), actor.write(b"cache/old", b"1")))
    replace(bench.tree / "cache/old")  # it is ignored: no change that checkpoints know
    for act in (bench.workspace.undo, bench.workspace.redo):
        foreseen = act(force=True, dry_run=True)
        done = act(force=True)
        assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted)
        assert [one.path for one in foreseen.skipped] == [one.path for one in done.skipped]
    assert (bench.tree / "cache/old").read_text() == "by hand"
