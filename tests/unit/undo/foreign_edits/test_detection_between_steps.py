"""I8: what steps do to each other's files, and to those that are still written to, is taken for no outsider's edit."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.completion.late_writes import settle_late_writes
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog

from ..conftest import Bench


@contextmanager
def acting(bench: Bench, log: UndoLog, step: StepId) -> Generator[InterceptedActor]:
    with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
        yield actor


def write_to(log: UndoLog, *fds: int) -> None:
    """Let the log be told that these are open for writing, and nothing else is."""
    log.writers = lambda _: frozenset(os.fstat(fd).st_ino for fd in fds)


def object_of(bench: Bench, path: bytes) -> Identity:
    root = os.open(bench.tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return identity(root, path)
    finally:
        os.close(root)


def test_what_is_removed_before_it_is_known_how_it_was_left_is_made_anew(bench: Bench) -> None:
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor:
            fd = actor.open(b"f", os.O_WRONLY | os.O_CREAT)
            write_to(log, fd)
            with acting(bench, log, second) as other:
                os.close(other.open(b"f", os.O_WRONLY))
            service.close(second, 0)
            os.close(fd)
            write_to(log)
            actor.unlink(b"f")
            settle_late_writes(log)
            actor.write(b"f", b"anew")
            settle_late_writes(log)
            actor.unlink(b"f")
            actor.write(b"f", b"again")
        service.close(first, 0)
        assert service.barriers() == []
        service.undo([first, second])
        assert not (bench.tree / "f").exists()


def test_what_is_made_anew_before_it_is_known_how_it_was_left(bench: Bench) -> None:
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor:
            fd = actor.open(b"f", os.O_WRONLY | os.O_CREAT)
            write_to(log, fd)
            with acting(bench, log, second) as other:
                os.close(other.open(b"f", os.O_WRONLY))
            service.close(second, 0)
            actor.unlink(b"f")
            actor.write(b"f", b"anew")
            os.close(fd)
            write_to(log)
            settle_late_writes(log)
            third = service.open("command")
            with acting(bench, log, third) as other:
                other.write(b"f", b"the third's")
        for step in (third, first):
            service.close(step, 0)
        assert service.barriers() == []


def test_a_step_that_has_ended_and_is_not_finished_is_a_later_step(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = bench.step(log, lambda actor: actor.write(b"f", b"one"))
        second = service.open("command")
        with acting(bench, log, second) as actor:
            actor.write(b"f", b"two")
        finish = service.begin_close(second, 0)
        assert finish is not None
        with pytest.raises(RefusedError) as refused:
            service.foresee([first])
        assert refused.value.code == "steps_connected"
        with pytest.raises(RefusedError) as refused:
            service.undo([first])
        assert refused.value.code == "steps_connected"
        assert (info := finish()) is not None
        assert info.id == second
        service.undo([first, second])
        assert (bench.tree / "f").read_bytes() == b"before"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_file_that_is_written_to_while_another_step_moves_its_directory(bench: Bench, is_late: bool) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = service.open("command")
        with acting(bench, log, first) as actor:
            fd = actor.open(b"d/f", os.O_WRONLY | os.O_CREAT)
        write_to(log, fd)
        service.close(first, 0)
        second = bench.step(log, lambda actor: actor.exchange(b"d", b"e"))
        if is_late:
            os.write(fd, b"late")
        os.close(fd)
        write_to(log)
        settle_late_writes(log)
        after = bench.photograph()
        together = [[first, second]] if is_late else [[first], [second]]
        for steps in reversed(together):
            service.undo(steps)
        bench.assert_as(before)
        for steps in together:
            service.redo(steps)
        bench.assert_as(after)


def test_a_denied_step_gives_way_only_to_what_others_changed_after_it(bench: Bench) -> None:
    """I9."""
    path = bench.tree / "f"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"first", b"")
            other.write(b"f", b"the second's")
            service.close(second, 0)
            actor.write(b"f", b"the first's")
        finish = service.begin_close(first, take_back=True)
        assert finish is not None
        finish()
        assert service.conflicts(first) == []
        assert path.read_bytes() == b"the second's"
        service.undo([second])
        assert path.read_bytes() == b"before"


def test_a_denied_step_leaves_what_another_one_that_goes_on_has_changed_after_it(bench: Bench) -> None:
    path = bench.tree / "f"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"f", b"the first's")
            other.write(b"f", b"the second's")
            finish = service.begin_close(first, take_back=True)
            assert finish is not None
            finish()
            assert path.read_bytes() == b"the second's"
            third = service.open("command")
            with acting(bench, log, third) as another:
                another.chmod(b"f", 0o600)
        for step in (third, second):
            service.close(step, 0)
        assert service.barriers() == []


def test_what_stays_of_a_denied_step_is_nobody_elses(bench: Bench) -> None:
    path = bench.tree / "f"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"f", b"the first's")
            other.write(b"f", b"the second's")
            service.close(second, 0)
            actor.write(b"f", b"the first's again", at=0)
        finish = service.begin_close(first, take_back=True)
        assert finish is not None
        finish()
        assert [found.path for found in service.conflicts(first)] == [b"f"]
        service.undo([second])


def test_what_a_denied_step_had_removed_was_not_gone_for_a_step_beside_it(bench: Bench) -> None:
    path = bench.tree / "f"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"f", b"the first's")
            other.unlink(b"f")
        service.close(first, 0)
        finish = service.begin_close(second, take_back=True)
        assert finish is not None
        finish()
        service.undo([first])
        assert path.read_bytes() == b"before"


def test_a_path_that_leads_elsewhere_as_a_directory_was_moved(bench: Bench) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
        (bench.tree / name / "y").write_bytes(b"before")
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"d/y", b"the first's")
            actor.unlink(b"e/y")
            service.close(first, 0)
            other.exchange(b"d", b"e")
        service.close(second, 0)
        service.undo([first, second])
        bench.assert_as(before)


def test_a_directory_that_another_step_has_brought_to_a_path_is_another_one(bench: Bench) -> None:
    """I1."""
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"d/one", b"")
            other.exchange(b"d", b"e")
            actor.write(b"d/two", b"")
        for step in (first, second):
            service.close(step, 0)
        service.undo([first, second])
        bench.assert_as(before)


@pytest.mark.parametrize("is_undone_meanwhile", [False, True])
def test_the_time_of_a_directory_that_steps_change_names_in_by_turns(bench: Bench, is_undone_meanwhile: bool) -> None:
    """I1."""
    (bench.tree / "d").mkdir()
    os.utime(bench.tree, (1, 1))
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"d/y", b"")
            other.write(b"x", b"")
            actor.write(b"z", b"")
            if is_undone_meanwhile:
                service.close(second, 0)
                service.undo([second])
        service.close(first, 0)
        if not is_undone_meanwhile:
            service.close(second, 0)
            service.undo([first])
            service.undo([second])
        else:
            service.undo([first])
        bench.assert_as(before)


def test_an_edit_of_what_was_still_written_to_is_not_vouched_for_by_a_step_that_gave_it_back(bench: Bench) -> None:
    path = bench.tree / "f"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = service.open("command")
        with acting(bench, log, first) as actor:
            fd = actor.open(b"f", os.O_WRONLY)
        write_to(log, fd)
        service.close(first, 0)
        path.write_bytes(b"edited by hand")
        service.record_foreign_edit([b"f"], "vim")
        second = bench.step(log, lambda actor: actor.unlink(b"f"))
        os.close(fd)
        write_to(log)
        service.undo([second])
        with pytest.raises(RefusedError) as refused:
            service.undo([first])
        assert refused.value.code == "barrier"
        assert path.read_bytes() == b"edited by hand"


def test_a_directory_in_which_a_call_has_failed_may_be_gone(bench: Bench) -> None:
    (bench.tree / "d/g").mkdir(parents=True)
    (bench.tree / "x").touch()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = service.open("command")
        with acting(bench, log, first) as actor:
            with pytest.raises(OSError, match="Invalid argument"):
                actor.exchange(b"d/g", b"d")
            actor.chmod(b"x", 0o600)
            second = service.open("command")
            with acting(bench, log, second) as other:
                other.rmdir(b"d/g")
                other.rmdir(b"d")
            service.close(second, 0)
        service.close(first, 0)
        service.undo([first])


def test_a_directory_that_an_open_step_has_exchanged_does_not_stand_for_another(bench: Bench) -> None:
    for name in ("d/g", "e"):
        (bench.tree / name).mkdir(parents=True)
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor:
            actor.chmod(b"e", 0o700)
        with acting(bench, log, second) as actor:
            actor.exchange(b"d/g", b"e")
        service.close(first, 0)
        with pytest.raises(RefusedError, match="still going on"):
            service.undo([first])
        service.close(second, 0)
        assert not service.undo([first, second]).conflicts
        bench.assert_as(before)


def test_what_was_denied_while_a_step_went_on_need_not_be_redone_before_it(bench: Bench) -> None:
    for name in ("d/g", "e"):
        (bench.tree / name).mkdir(parents=True)
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor:
            actor.exchange(b"d/g", b"e")
        with acting(bench, log, second) as actor:
            actor.rename(b"d", b"e/m")
        finish = service.begin_close(second, take_back=True)
        assert finish is not None
        finish()
        service.close(first, 0)
        after = bench.photograph()
        service.undo([first])
        service.redo([first])
        bench.assert_as(after)


def test_what_was_denied_between_two_steps_is_nobody_elses_where_it_is_in_the_way(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        steps = [service.open("command") for _ in range(3)]
        with acting(bench, log, steps[0]) as actor:
            actor.write(b"f", b"one")
        for step in steps[1:]:
            with acting(bench, log, step) as actor:
                actor.write(b"new", b"%d" % step)
                actor.rename(b"new", b"f")
        finish = service.begin_close(steps[1], take_back=True)
        assert finish is not None
        finish()
        for step in (steps[0], steps[2]):
            service.close(step, 0)
        service.undo([steps[0], steps[2]])
        service.redo([steps[0], steps[2]])
        assert (bench.tree / "f").read_bytes() == b"%d" % steps[2]


def test_what_was_denied_before_a_step_was_undone_need_not_be_redone_before_it(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        for step in (first, second):
            with acting(bench, log, step) as actor:
                actor.write(b"f", b"%d" % step)
        service.close(first, 0)
        finish = service.begin_close(second, take_back=True)
        assert finish is not None
        finish()
        after = bench.photograph()
        service.undo([first])
        service.redo([first])
        bench.assert_as(after)


def test_a_file_that_is_still_written_to_by_another_of_its_names(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    os.link(bench.tree / "f", bench.tree / "x")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        write_to(log)
        bench.step(log, lambda actor: actor.write(b"x", b"first"))
        second = service.open("command")
        with acting(bench, log, second) as actor:
            fd = actor.open(b"f", os.O_WRONLY | os.O_TRUNC)
            write_to(log, fd)
            service.close(second, 0)
        bench.step(log, lambda actor: actor.rename(b"x", b"moved"))
        os.close(fd)
        assert service.barriers() == []


def test_a_link_of_what_another_directory_had_at_its_path(bench: Bench) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
        (bench.tree / name / "y").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        bench.step(log, lambda actor: actor.write(b"d/y", b"the first's"))
        second = service.open("command")
        with acting(bench, log, second) as actor:
            actor.exchange(b"d", b"e")
            actor.link(b"d/y", b"e/n")
        service.close(second, 0)
        assert service.barriers() == []


def test_a_link_of_what_was_removed(bench: Bench) -> None:
    with bench.keeper() as log:
        service = LocalUndoService(log)
        write_to(log)
        bench.step(log, lambda actor: actor.write(b"f", b"before"))
        fd = os.open(bench.tree / "f", os.O_RDWR)
        second, third = service.open("command"), service.open("command")
        with acting(bench, log, second) as actor, acting(bench, log, third) as other:
            actor.unlink(b"f")
            service.close(second, 0)
            other.write(b"other", b"")
            place = Place(os.open(bench.tree, os.O_RDONLY | os.O_DIRECTORY), b"n", b"n")
            with pytest.raises(FileNotFoundError):
                log.recorder.link(third, fd, place, lambda: os.link(b"gone", b"n", dst_dir_fd=place.dir_fd))
            os.close(place.dir_fd)
        os.close(fd)
        service.close(third, 0)
        assert service.barriers() == []


def test_what_a_denied_step_moves_back_is_as_the_other_step_left_it(bench: Bench) -> None:
    (bench.tree / "x").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        write_to(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.chmod(b"x", 0o600)
            other.rename(b"x", b"n")
            service.close(second, 0)
            actor.rename(b"n", b"x")
        finish = service.begin_close(first, take_back=True)
        assert finish is not None
        finish()
        service.undo([second])
        assert service.barriers() == []
        assert (bench.tree / "x").exists()


def test_what_another_step_has_brought_elsewhere_stays_of_a_denied_step_and_is_told(bench: Bench) -> None:
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            fd = actor.open(b"f", os.O_WRONLY | os.O_CREAT)
            write_to(log, fd)
            other.rename(b"f", b"n")
            service.close(second, 0)
        os.close(fd)
        write_to(log)
        finish = service.begin_close(first, take_back=True)
        assert finish is not None
        finish()
        assert [found.path for found in service.conflicts(first)] == [b"n"]
        service.undo([second])


def test_what_was_put_back_before_its_directory_was_moved_back(bench: Bench) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
    (bench.tree / "d/y").write_bytes(b"before")
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = service.open("command")
        with acting(bench, log, first) as actor:
            fd = actor.open(b"d/y", os.O_WRONLY)
        write_to(log, fd)
        service.close(first, 0)
        second = bench.step(log, lambda actor: actor.exchange(b"d", b"e"))
        third = bench.step(log, lambda actor: actor.unlink(b"e/y"))
        os.close(fd)
        write_to(log)
        for step in (third, second, first):
            service.undo([step])
        bench.assert_as(before)


def test_a_path_in_a_directory_that_is_brought_forward_after_another_one_lost_it(bench: Bench) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
        (bench.tree / name / "y").write_bytes(b"before")

    def first(actor: InterceptedActor) -> None:
        actor.unlink(b"d/y")
        actor.rmdir(b"d")
        actor.chmod(b"e/y", 0o600)

    with bench.keeper() as log:
        service = LocalUndoService(log)
        steps = [
            bench.step(log, first),
            bench.step(log, lambda actor: actor.rename(b"e", b"d")),
            bench.step(log, lambda actor: actor.unlink(b"d/y")),
        ]
        after = bench.photograph()
        for step in reversed(steps):
            service.undo([step])
        for step in steps:
            service.redo([step])
        bench.assert_as(after)


def test_a_step_that_was_redone_later_is_a_later_step(bench: Bench) -> None:
    for name in ("d/g", "e"):
        (bench.tree / name).mkdir(parents=True)
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = bench.step(log, lambda actor: actor.exchange(b"d", b"e"))
        second = service.open("command")
        with acting(bench, log, second) as actor:
            actor.write(b"n", b"")
            service.undo([first])
            actor.chmod(b"d/g", 0o700)
        service.close(second, 0)
        service.undo([second])
        service.redo([second, first])
        assert sorted(service.connected(second)) == [first, second]
        service.undo([first, second])


def test_a_file_that_a_step_moves_to_and_fro_while_it_is_written_to(bench: Bench) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            fd = actor.open(b"e/y", os.O_WRONLY | os.O_CREAT)
            write_to(log, fd)
            other.exchange(b"d", b"e")
            service.close(first, 0)
            other.exchange(b"d", b"e")
        os.close(fd)
        write_to(log)
        service.close(second, 0)
        service.undo([first, second])
        assert not (bench.tree / "e/y").exists()


def test_a_step_changes_by_another_name_what_lost_the_one_that_it_knows(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    os.link(bench.tree / "f", bench.tree / "x")
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"x", b"the first's")
            other.unlink(b"x")
            service.close(second, 0)
            actor.setxattr(b"f", "user.a", b"1")
        service.close(first, 0)
        service.undo([first, second])
        bench.assert_as(before)


def test_what_a_denied_step_still_writes_to_is_nobody_elses(bench: Bench) -> None:
    with bench.keeper() as log:
        service = LocalUndoService(log)
        write_to(log)
        first = bench.step(log, lambda actor: actor.write(b"f", b"the first's"))
        second = service.open("command")
        with acting(bench, log, second) as actor:
            fd = actor.open(b"f", os.O_WRONLY)
        write_to(log, fd)
        finish = service.begin_close(second, take_back=True)
        assert finish is not None
        finish()
        with pytest.raises(RefusedError) as refused:
            service.undo([first])
        assert refused.value.code == "still_written"
        os.close(fd)
        write_to(log)
        service.undo([first])


def test_what_a_denied_step_had_taken_and_gives_back_is_as_the_other_step_left_it(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    os.link(bench.tree / "f", bench.tree / "x")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.unlink(b"f")
            actor.rename(b"x", b"f")
            other.unlink(b"f")
        service.close(second, 0)
        finish = service.begin_close(first, take_back=True)
        assert finish is not None
        finish()
        bench.step(log, lambda actor: actor.write(b"f", b"the third's"))
        assert service.barriers() == []


def test_what_a_denied_step_has_moved_away_was_not_gone_for_a_step_beside_it(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.unlink(b"f")
            other.write(b"new", b"the second's")
            other.rename(b"new", b"f")
            actor.write(b"f", b"the first's", at=0)
            finish = service.begin_close(second, take_back=True)
            assert finish is not None
            finish()
        service.close(first, 0)
        service.undo([first])


def test_a_directory_that_a_denied_step_had_moved_is_back_with_what_is_in_it(bench: Bench) -> None:
    for name in ("d", "e"):
        (bench.tree / name).mkdir()
    (bench.tree / "d/x").write_bytes(b"before")
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.chmod(b"d/x", 0o600)
            other.exchange(b"d", b"e")
        service.close(first, 0)
        finish = service.begin_close(second, take_back=True)
        assert finish is not None
        finish()
        service.undo([first])
        bench.assert_as(before)


def test_what_a_denied_step_had_replaced_and_gives_back_is_in_the_hand_of_the_step_beside_it(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            actor.write(b"f", b"the first's")
            other.write(b"f", b"the second's")
            actor.write(b"new", b"anew")
            actor.rename(b"new", b"f")
            finish = service.begin_close(first, take_back=True)
            assert finish is not None
            finish()
            other.unlink(b"f")
            other.write(b"f", b"the second's again")
        service.close(second, 0)
        assert service.barriers() == []


@pytest.mark.parametrize("is_moved", [False, True])
def test_an_edit_by_another_name_of_what_a_step_took_a_name_from_or_moved(bench: Bench, is_moved: bool) -> None:
    (bench.tree / "f").write_bytes(b"before")
    os.link(bench.tree / "f", bench.tree / "x")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with acting(bench, log, first) as actor, acting(bench, log, second) as other:
            other.write(b"other", b"")
            actor.write(b"x", b"the first's")
            service.close(first, 0)
            if is_moved:
                other.rename(b"x", b"moved")
            else:
                other.write(b"new", b"the second's")
                other.rename(b"new", b"x")
        (bench.tree / "f").write_bytes(b"edited by hand")
        service.record_foreign_edit([b"f"], "vim", objects=[object_of(bench, b"f")])
        service.close(second, 0)
        with pytest.raises(RefusedError) as refused:
            service.undo([first, second])
        assert refused.value.code == "barrier"
        assert (bench.tree / "f").read_bytes() == b"edited by hand"


def test_an_edit_by_another_name_of_what_was_still_written_to(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"before")
    os.link(bench.tree / "f", bench.tree / "x")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first = service.open("command")
        with acting(bench, log, first) as actor:
            fd = actor.open(b"x", os.O_WRONLY)
        write_to(log, fd)
        service.close(first, 0)
        (bench.tree / "f").write_bytes(b"edited by hand")
        service.record_foreign_edit([b"f"], "vim", objects=[object_of(bench, b"f")])
        second = bench.step(log, lambda actor: actor.chmod(b"x", 0o600))
        os.close(fd)
        write_to(log)
        service.undo([second])
        with pytest.raises(RefusedError) as refused:
            service.undo([first])
        assert refused.value.code == "barrier"
        assert (bench.tree / "f").read_bytes() == b"edited by hand"
