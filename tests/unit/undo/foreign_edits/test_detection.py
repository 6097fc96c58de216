"""An edit by somebody else that a later step came upon is not lost when that step and the earlier one are undone."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.model.errors import RefusedError
from holdfast.model.ids import hash_bytes
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recorder.last_state import LastState, load_last_state
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.tree.signatures import signature

from ..conftest import Bench, redo, undo


def object_of(tree: Path, path: bytes) -> Identity:
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return identity(root, path)
    finally:
        os.close(root)


def in_place(path: Path) -> None:
    path.write_bytes(b"edited by hand")


def by_rename(path: Path) -> None:
    path.with_name("swap").write_bytes(b"edited by hand")
    path.with_name("swap").rename(path)


def in_secret(path: Path) -> None:
    """The same size, and the times set back."""
    found = path.stat()
    path.write_bytes(b"b" * found.st_size)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def replaces(actor: InterceptedActor) -> None:
    actor.write(b"new", b"content")
    actor.rename(b"new", b"file")


def moves_over(actor: InterceptedActor) -> None:
    actor.rename(b"file", b"other")
    actor.write(b"file", b"content")


LATER: dict[str, Callable[[InterceptedActor], object]] = {
    "write": lambda actor: actor.write(b"file", b"B"),
    "append": lambda actor: actor.write(b"file", b"B", at=100),
    "chmod": lambda actor: actor.chmod(b"file", 0o600),
    "unlink": lambda actor: actor.unlink(b"file"),
    "replace": replaces,
    "rename": lambda actor: actor.rename(b"file", b"other"),
    "rename and make anew": moves_over,
    "link": lambda actor: actor.link(b"file", b"other"),
}


def refused(log: UndoLog, *steps: int) -> None:
    with pytest.raises(RefusedError, match=r"another process has changed .*file") as error:
        undo(log, steps)
    assert error.value.code == "barrier"


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("edit", [in_place, by_rename, in_secret])
def test_an_edit_between_two_steps(bench: Bench, edit: Callable[[Path], None], later: str) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
    edit(path)
    edited = bench.photograph()
    with bench.keeper() as log:
        second = bench.step(log, LATER[later])
        refused(log, first, second)
        undo(log, [second])
        bench.assert_as(edited)
    with bench.keeper() as log:
        refused(log, first)
        redo(log, [second])
        undo(log, [second])
        refused(log, first)
        bench.assert_as(edited)
        undo(log, [first], force=True)
        redo(log, [first], force=True)
        if edit is not by_rename:
            bench.assert_as(edited)


@pytest.mark.parametrize("later", ["write", "unlink"])
def test_an_edit_before_a_step_that_was_cut_off(bench: Bench, later: str) -> None:
    """I3: what the journal said of it before the step is there after the kill."""
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
    in_place(path)
    bench.abandon(LATER[later])
    with bench.keeper() as log:
        recover(log)
        assert path.read_bytes() == b"edited by hand"
        refused(log, first)


def test_what_a_step_made_and_somebody_removed_and_another_step_made_again(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        path.unlink()
        undo(log, [bench.step(log, lambda actor: actor.write(b"file", b"B"))])
        refused(log, first)


def test_an_edit_by_another_name(bench: Bench) -> None:
    path, other = bench.tree / "file", bench.tree / "other"
    path.write_bytes(b"before")
    os.link(path, other)
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        in_place(other)
        undo(log, [bench.step(log, lambda actor: actor.write(b"other", b"B"))])
        refused(log, first)
        assert other.read_bytes() == b"edited by hand"


def test_an_edit_below_a_directory_that_is_moved(bench: Bench) -> None:
    (bench.tree / "file").mkdir()
    (bench.tree / "file" / "it").write_bytes(b"before")
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file/it", b"the first step's"))
        in_place(bench.tree / "file" / "it")
        moved = bench.step(log, lambda actor: actor.rename(b"file", b"other"))
        written = bench.step(log, lambda actor: actor.write(b"other/it", b"B"))
        undo(log, [written])
        undo(log, [moved])
        assert (bench.tree / "file" / "it").read_bytes() == b"edited by hand"
        refused(log, first)


def test_what_was_crossed_by_force_and_is_back_is_theirs(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        in_place(path)
        undo(log, [step], force=True)
        assert path.read_bytes() == b"before"
        redo(log, [step])
        assert path.read_bytes() == b"edited by hand"
        refused(log, step)


def test_what_was_moved_back_by_force_is_theirs(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        second = bench.step(log, lambda actor: actor.rename(b"file", b"other"))
        in_place(bench.tree / "other")
        undo(log, [second], force=True)
        assert path.read_bytes() == b"edited by hand"
        refused(log, first)


def test_what_others_changed_and_an_undo_left_is_theirs(bench: Bench) -> None:
    path = bench.tree / "file"
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        second = bench.step(log, replaces)
        path.unlink()
        in_place(path)
        assert undo(log, [second], force=True).conflicts
        refused(log, first)
        assert path.read_bytes() == b"edited by hand"


def test_an_edit_that_was_taken_back_is_none(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    before = path.stat()
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        LocalUndoService(log).note_contents(first, [(b"file", hash_bytes(b"the first step's"))])
        in_place(path)
        undo(log, [bench.step(log, lambda actor: actor.write(b"file", b"B"))])
        refused(log, first)
        path.with_name("swap").write_bytes(b"the first step's")
        path.with_name("swap").chmod(path.stat().st_mode)
        path.with_name("swap").rename(path)
        undo(log, [first])
    assert path.read_bytes() == b"before"
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_steps_alone_make_no_barrier(bench: Bench) -> None:
    before = bench.photograph()

    def make(actor: InterceptedActor) -> None:
        actor.mkdir(b"a")
        for name in (b"a/one", b"a/two"):
            actor.write(name, b"content")
        actor.link(b"a/one", b"a/linked")

    def work(actor: InterceptedActor) -> None:
        actor.write(b"a/one", b"other content")
        actor.chmod(b"a/one", 0o600)
        actor.unlink(b"a/linked")
        actor.unlink(b"a/two")
        actor.write(b"a/two", b"again")
        actor.rename(b"a/one", b"a/three")
        actor.write(b"a/one", b"again")

    def both(actor: InterceptedActor) -> None:
        # (While the first one is open the second one writes to the same.)
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), other) as second:
            actor.write(b"b/one", b"1")
            second.write(b"b/one", b"2", at=100)
            actor.chmod(b"b/one", 0o640)
            second.rename(b"b/one", b"b/five")
            actor.write(b"b/five", b"3", at=200)

    with bench.keeper() as log:
        steps = [bench.step(log, make), bench.step(log, work)]
        steps.append(bench.step(log, lambda actor: actor.rename(b"a", b"b")))
        steps.append(bench.step(log, make))
        other = log.new_id()
        log.recorder.begin(other, "api")
        steps.append(bench.step(log, both))
        bench.finish(log, other)
        undo(log, [steps[0], *steps[1:], other])
        bench.assert_as(before)
        redo(log, [*steps, other])
        undo(log, [*steps, other])
        bench.assert_as(before)
        assert log.barriers.records == []


@pytest.mark.parametrize("made", [lambda actor: actor.write(b"q", b"b"), lambda actor: actor.mkdir(b"q")])
def test_what_an_open_step_makes_anew_where_another_one_ended_meanwhile(
    bench: Bench, made: Callable[[InterceptedActor], object]
) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        first, second = log.new_id(), log.new_id()
        root = os.fsencode(bench.tree)
        log.recorder.begin(first, "api")
        log.recorder.begin(second, "api")
        with InterceptedActor(log.recorder, root, first) as one, InterceptedActor(log.recorder, root, second) as other:
            one.write(b"q", b"a")
            one.unlink(b"q")
            made(other)
            bench.finish(log, first)
            (other.rmdir if (bench.tree / "q").is_dir() else other.unlink)(b"q")
            other.write(b"q", b"c")
        bench.finish(log, second)
        assert log.barriers.records == []
        undo(log, [first, second])
        bench.assert_as(before)


def gives_way(actor: InterceptedActor) -> None:
    actor.unlink(b"file")
    actor.link(b"x", b"file")


def moves_away(actor: InterceptedActor) -> None:
    actor.rename(b"file", b"other")
    actor.link(b"x", b"file")
    actor.chmod(b"file", 0o600)


def takes_from_elsewhere(actor: InterceptedActor) -> None:
    actor.unlink(b"file")
    actor.link(b"dir/x", b"file")
    actor.unlink(b"dir/x")


@pytest.mark.parametrize("later", [gives_way, moves_away, takes_from_elsewhere])
@pytest.mark.parametrize("is_one", [False, True])
def test_what_a_step_links_to_the_place_of_something_is_nobody_elses(
    bench: Bench, later: Callable[[InterceptedActor], object], is_one: bool
) -> None:
    (bench.tree / "dir").mkdir()
    for name in ("x", "dir/x", "file"):
        (bench.tree / name).write_bytes(os.fsencode(name))
    before = bench.photograph()
    with bench.keeper() as log:

        def appends(actor: InterceptedActor) -> None:
            actor.write(b"file", b"B", at=100)

        def both(actor: InterceptedActor) -> None:
            later(actor)
            appends(actor)

        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        steps = [bench.step(log, both)] if is_one else [bench.step(log, later), bench.step(log, appends)]
        assert log.barriers.records == []
        undo(log, [first, *steps])
        bench.assert_as(before)


def test_an_edit_of_what_is_given_another_name_is_told(bench: Bench) -> None:
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
    in_place(bench.tree / "file")
    with bench.keeper() as log:
        second = bench.step(log, lambda actor: actor.link(b"file", b"other"))
        assert [record.paths for record in log.barriers.records] == [(b"file",)]
        refused(log, first, second)


def test_what_somebody_else_removes_while_a_step_is_open(bench: Bench) -> None:
    with bench.keeper() as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            actor.write(b"q", b"a")
            actor.unlink(b"q")
            bench.step(log, lambda other: other.write(b"q", b"b"))
            (bench.tree / "q").unlink()
            actor.write(b"q", b"c")
        assert [record.paths for record in log.barriers.records] == [(b"q",)]


def test_a_directory_that_was_made_again_is_the_steps_own(bench: Bench) -> None:
    """Also where its keeper has known another one by its name, from an undo before."""
    with bench.keeper() as log:
        bench.step(log, lambda actor: (actor.mkdir(b"d"), actor.write(b"d/1", b"old")))
        undo(log, [bench.step(log, lambda actor: actor.write(b"d/1", b"2", at=1))])
        bench.step(log, lambda actor: actor.rename(b"d", b"e"))
        made = bench.step(
            log, lambda actor: (actor.mkdir(b"d"), actor.write(b"d/1", b"new"), actor.write(b"d/2", b"n"))
        )
        undo(log, [made])
        assert sorted(os.listdir(bench.tree)) == ["e"]


def test_an_edit_in_a_directory_that_was_made_again_is_seen(bench: Bench) -> None:
    """I8."""
    with bench.keeper() as log:
        bench.step(log, lambda actor: (actor.mkdir(b"d"), actor.write(b"d/1", b"old")))
        step = bench.step(log, lambda actor: actor.write(b"d/1", b"2", at=1))
        undo(log, [step])
        redo(log, [step])
        (bench.tree / "d").rename(bench.tree / "aside")
        (bench.tree / "d").mkdir()
        (bench.tree / "d/1").write_bytes(b"edited by hand")
        with pytest.raises(RefusedError, match="what step 2 left: d/1"):
            undo(log, [step])
        assert (bench.tree / "d/1").read_bytes() == b"edited by hand"


def moved_by_hand(tree: Path) -> None:
    """And edited."""
    (tree / "file").rename(tree / "other")
    in_place(tree / "other")


def number_used_anew(tree: Path) -> None:
    """Another file gets the freed inode number."""
    number = (tree / "file").stat().st_ino
    (tree / "file").unlink()
    for at in range(100):
        (tree / f"{at}").write_bytes(b"edited by hand")
        if (tree / f"{at}").stat().st_ino == number:
            (tree / f"{at}").rename(tree / "other")
            return
    pytest.skip("this file system does not use a number anew at once")


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("edit", [moved_by_hand, number_used_anew])
def test_what_was_told_of_is_not_told_of_a_later_step(
    bench: Bench, edit: Callable[[Path], None], is_closed: bool
) -> None:
    with ExitStack() as stack:
        log = stack.enter_context(bench.keeper())
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        edit(bench.tree)
        edited = bench.photograph()
        second = bench.step(log, lambda actor: actor.write(b"file", b"the second step's"))
        if is_closed:
            stack.close()
            log = stack.enter_context(bench.keeper())
        third = bench.step(log, lambda actor: actor.rename(b"other", b"file"))
        assert [(record.finder, record.paths) for record in log.barriers.records] == [
            (second, (b"file",)),
            (third, (b"other",)),
        ]
        refused(log, first, second, third)
        undo(log, [second, third])
        bench.assert_as(edited)
        refused(log, first)


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_was_left_since_it_was_told_is_told_again(bench: Bench, is_closed: bool) -> None:
    """I8."""
    with ExitStack() as stack:
        log = stack.enter_context(bench.keeper())
        bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        (bench.tree / "file").unlink()
        second = bench.step(log, lambda actor: actor.write(b"file", b"the second step's"))
        moved_by_hand(bench.tree)
        if is_closed:
            stack.close()
            log = stack.enter_context(bench.keeper())
        third = bench.step(log, lambda actor: actor.rename(b"other", b"file"))
        refused(log, second, third)
        assert [record.paths for record in log.barriers.records] == [(b"file",), (b"file", b"other")]


@pytest.mark.parametrize(("after", "told"), [(1, (b"other",)), (0, (b"file", b"other"))])
def test_what_was_told_is_known_again_where_nobody_acted_meanwhile(
    bench: Bench, after: int, told: tuple[bytes, ...]
) -> None:
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        moved_by_hand(bench.tree)
        second = bench.step(log, lambda actor: actor.write(b"file", b"the second step's"))
        ended = max(log.heads[first].last, log.heads[first].looked_at)
        heads = log.heads | {second: msgspec.structs.replace(log.heads[second], first=ended + after)}
        known = LastState(log.directories.device)
        load_last_state(known, heads, log.barriers.records)
        assert known.foreign_paths(log.directories.place(b"other"), (bench.tree / "other").stat()) == told


def test_what_was_left_where_a_step_has_told_already_is_told_again(bench: Bench) -> None:
    """I8: that step is told of there only once."""
    with bench.keeper() as log:
        bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        (bench.tree / "file").unlink()
        finder = log.new_id()
        log.recorder.begin(finder, "api")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), finder) as actor:
            actor.write(b"file", b"2")
            bench.step(log, replaces)
            moved_by_hand(bench.tree)
            actor.write(b"file", b"3")
        bench.finish(log, finder)
        bench.step(log, lambda actor: actor.rename(b"other", b"file"))
        assert log.barriers.records[-1].paths == (b"file", b"other")


@pytest.mark.parametrize(("left_at", "told"), [(1, (b"other",)), (1 << 62, (b"file", b"other"))])
def test_what_only_has_got_the_number_of_what_a_step_left_is_not_taken_for_that(
    bench: Bench, left_at: int, told: tuple[bytes, ...]
) -> None:
    """It was born after that was left. Nobody has changed what a later step has left in the same place."""
    (bench.tree / "other").write_bytes(b"by hand")
    with bench.keeper() as log:
        found = signature(log.directories, b"other")
        assert found is not None
        known = LastState(log.directories.device)
        known.note([(b"file", msgspec.structs.replace(found, ctime=left_at, mtime=left_at))])
        assert known.foreign_paths(log.directories.place(b"other"), (bench.tree / "other").stat()) == told


def test_what_a_step_left_while_the_one_that_told_went_on_is_told_again(bench: Bench) -> None:
    """I8: its keeper is gone, and nobody knows which came first."""
    (bench.tree / "more").write_bytes(b"before")
    with bench.keeper() as log:
        bench.step(log, lambda actor: (actor.write(b"file", b"1"), actor.write(b"more", b"1")))
        (bench.tree / "file").unlink()
        in_place(bench.tree / "more")
        finder = log.new_id()
        log.recorder.begin(finder, "api")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), finder) as actor:
            actor.write(b"file", b"2")
            other = bench.step(log, lambda actor: (actor.unlink(b"file"), actor.write(b"file", b"3")))
            actor.write(b"more", b"2")
        bench.finish(log, finder)
    moved_by_hand(bench.tree)
    with bench.keeper() as log:
        third = bench.step(log, lambda actor: actor.rename(b"other", b"file"))
        assert log.barriers.records[-1].paths == (b"file", b"other")
        refused(log, finder, other, third)


def test_an_edit_by_another_name_that_an_undone_step_gave_back_is_not_taken_back(bench: Bench) -> None:
    """I8: what the later step left once it was undone is the edit, and no step's."""
    bench.tree.joinpath("f").write_bytes(b"before")
    bench.tree.joinpath("d").mkdir()
    os.link(bench.tree / "f", bench.tree / "d/x")

    def write_and_remove(actor: InterceptedActor) -> None:
        actor.write(b"d/x", b"step")
        actor.unlink(b"d/x")

    def save(actor: InterceptedActor) -> None:
        actor.write(b"new", b"saved")
        actor.rename(b"new", b"f")

    with bench.keeper() as log:
        first = bench.step(log, write_and_remove)
        bench.tree.joinpath("f").write_bytes(b"edited")
        log.record_foreign_edit([b"f"], "vim", objects=[object_of(bench.tree, b"f")])
        second = bench.step(log, save)
        undo(log, [second])
        assert bench.tree.joinpath("f").read_bytes() == b"edited"
        with pytest.raises(RefusedError) as refused:
            undo(log, [first])
        assert refused.value.code == "barrier"
        redo(log, [second])


def test_where_an_edit_gets_its_name_back_the_redo_leaves_what_the_step_had_left_there(bench: Bench) -> None:
    bench.tree.joinpath("f").write_bytes(b"before")
    bench.tree.joinpath("own").write_bytes(b"own")
    os.link(bench.tree / "f", bench.tree / "x")
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.rename(b"own", b"x"))
        bench.tree.joinpath("f").write_bytes(b"edited")
        log.record_foreign_edit([b"f"], "vim", objects=[object_of(bench.tree, b"f")])
        second = bench.step(log, lambda actor: actor.unlink(b"x"))
        undo(log, [second])
        undo(log, [first])
        assert bench.tree.joinpath("x").read_bytes() == b"edited"
        redo(log, [first])
        redo(log, [second])
        assert bench.tree.joinpath("f").read_bytes() == b"edited"


def test_an_edit_by_another_name_of_what_is_still_written_to_is_seen(bench: Bench) -> None:
    """I8: once it is not, it is not known who wrote what is there."""
    bench.tree.joinpath("f").write_bytes(b"before")
    os.link(bench.tree / "f", bench.tree / "x")
    with bench.keeper() as log:
        fd = os.open(bench.tree / "f", os.O_WRONLY)
        log.writers = lambda _: frozenset({os.fstat(fd).st_ino})
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            actor.write(b"f", b"step")
        service.close(step, 0)
        bench.tree.joinpath("x").write_bytes(b"edited")
        log.record_foreign_edit([b"x"], "vim", objects=[object_of(bench.tree, b"x")])
        os.close(fd)
        log.writers = lambda _: frozenset()
        with pytest.raises(RefusedError) as refused:
            service.undo([step])
        assert refused.value.code == "barrier"
