"""A file that is kept in the log and that somebody still writes to is broken off by a copy."""

from __future__ import annotations

import os

import pytest

from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.completion.late_writes import settle_late_writes
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.interceptor import Place
from holdfast.undo.local_service.undo_service import LocalUndoService

from ..conftest import Bench, redo, undo


def test_a_removed_file_with_a_writer_when_the_step_ends(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    path.chmod(0o640)
    os.setxattr(path, "user.a", b"1")
    with bench.keeper() as log:
        earlier = bench.step(log, lambda actor: actor.write(b"file", b"earlier"))
        before = bench.photograph()
        with open(path, "r+b", buffering=0) as file:
            step = bench.step(log, lambda actor: actor.unlink(b"file"))
            file.write(b"WRITTEN")
        undo(log, [step])
        bench.assert_as(before)
        redo(log, [step])
        assert not path.exists()
        undo(log, [step])
        bench.assert_as(before)
        undo(log, [earlier])  # of an object that is another one by now
        assert path.read_bytes() == b"before"
    with bench.keeper() as log:
        redo(log, [earlier])
        bench.assert_as(before)


def test_a_removed_file_that_is_opened_again_for_writing(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    before = bench.photograph()
    reader = os.open(path, os.O_RDONLY)
    with bench.keeper() as log:
        earlier = bench.step(log, lambda actor: actor.unlink(b"file"))

        def write_through(actor: InterceptedActor) -> None:
            log.recorder.before_open(actor.step, Place(-1, b"", b""), reader)
            os.truncate(proc_path(reader), 0)

        bench.step(log, write_through)
        undo(log, [earlier])
        bench.assert_as(before)
    os.close(reader)


def test_a_file_that_is_still_open_for_writing_is_not_undone(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            fd = actor.open(b"file", os.O_WRONLY)
            os.write(fd, b"after")
            seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
            with pytest.raises(RefusedError, match="still has file open for writing"):
                undo(log, [step])
            os.close(fd)
        undo(log, [step])
        assert path.read_bytes() == b"before"


def test_what_was_not_known_is_not_known_by_an_undo_of_a_later_step(bench: Bench) -> None:
    """I8: the keeper was gone before the writer."""
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        log.writers = lambda _: frozenset({path.stat().st_ino})
        first = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
    with bench.keeper() as log:
        with pytest.raises(RefusedError, match="could still write to it when the keeper was killed"):
            undo(log, [first])
        undo(log, [bench.step(log, lambda actor: actor.write(b"file", b"B"))])
        with pytest.raises(RefusedError) as refused:
            undo(log, [first])
        assert refused.value.code == "barrier"
        assert path.read_bytes() == b"the first step's"


def test_what_others_replaced_while_it_was_written_to_is_said_to_be_replaced(bench: Bench) -> None:
    """I8: nobody has seen the edit."""
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        log.writers = lambda _: frozenset({path.stat().st_ino})
        step = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        (bench.tree / "mine").write_bytes(b"put there by hand")
        (bench.tree / "mine").replace(path)
        log.writers = lambda _: frozenset()
        with pytest.raises(RefusedError, match=f"what step {step} left in file .* removed or replaced it") as refused:
            undo(log, [step])
        assert refused.value.code == "barrier"
        assert path.read_bytes() == b"put there by hand"


def test_what_others_edited_while_it_was_written_to_is_not_known(bench: Bench) -> None:
    """I8: somebody has seen the edit."""
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        log.writers = lambda _: frozenset({path.stat().st_ino})
        step = bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))
        path.write_bytes(b"edited by hand")
        log.record_foreign_edit([b"file"], "vim")
        log.writers = lambda _: frozenset()
        with pytest.raises(RefusedError) as refused:
            undo(log, [step])
        assert refused.value.code == "barrier"
        assert path.read_bytes() == b"edited by hand"


@pytest.mark.parametrize("order", ["the later one is looked at after that", "the later one is settled before"])
def test_what_is_written_late_is_not_taken_for_a_later_steps(bench: Bench, order: str) -> None:
    """I1, I8: else an undo of the later one alone would lose it."""
    path = bench.tree / "file"
    path.write_bytes(b"before\n")
    before = bench.photograph()
    with bench.keeper() as log, open(path, "ab", buffering=0) as file:
        log.writers = lambda _: frozenset({path.stat().st_ino})

        def write(actor: InterceptedActor) -> None:
            os.close(actor.open(b"file", os.O_WRONLY))
            file.write(b"early\n")

        first = bench.step(log, write)
        between = bench.open_step(log, lambda actor: actor.write(b"file", b"between\n", at=13))
        if order == "the later one is settled before":
            file.write(b"late\n")
            bench.finish(log, between)
            file.close()
            log.writers = lambda _: frozenset()
            waiting = log.unsettled.pop(first)
            settle_late_writes(log)
            log.unsettled[first] = waiting
        else:
            file.write(b"late\n")
            file.close()
            log.writers = lambda _: frozenset()
            bench.finish(log, between)
        with pytest.raises(RefusedError, match=f"step {first} has to do with file too"):
            undo(log, [between])
        assert path.read_bytes() == b"before\nearly\nbetween\nlate\n"
        undo(log, [between, first])
        bench.assert_as(before)


def test_a_step_that_is_forgotten_is_not_waited_for(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        log.writers = lambda _: frozenset({path.stat().st_ino})
        bench.step(log, lambda actor: actor.write(b"file", b"the step's"))
        service = LocalUndoService(log)
        assert service.is_unsettled
        service.discard()
        assert not service.is_unsettled


def test_what_nobody_writes_to_is_known_though_all_that_is_open_was_not_looked_at(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    with bench.keeper() as log:
        log.writers = lambda thorough: frozenset() if thorough else None
        step = bench.step(log, lambda actor: actor.write(b"file", b"the step's"))
        assert log.unsettled == {}
        undo(log, [step])
        assert path.read_bytes() == b"before"


def test_what_somebody_writes_to_is_taken_for_the_steps_until_all_was_looked_at(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    before = bench.photograph()
    with bench.keeper() as log:
        inode = path.stat().st_ino
        log.writers = lambda thorough: frozenset({inode}) if thorough else None
        with open(path, "ab", buffering=0) as file:
            step = bench.step(log, lambda actor: actor.write(b"file", b"the step's"))
            settle_late_writes(log, eagerly=False)
            file.write(b"late")
            with pytest.raises(RefusedError, match="still has file open for writing"):
                undo(log, [step])
        settle_late_writes(log, eagerly=False)
        assert log.unsettled == {}
        undo(log, [step])
        bench.assert_as(before)


def test_what_another_step_has_put_into_the_log_is_looked_at_once_more(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    os.link(path, bench.tree / "also")
    before = bench.photograph()
    with bench.keeper() as log, open(path, "ab", buffering=0) as file:
        service = LocalUndoService(log)
        log.writers = lambda _: frozenset({os.fstat(file.fileno()).st_ino})
        writing = bench.open_step(log, lambda actor: actor.write(b"file", b"written"))

        def remove(actor: InterceptedActor) -> None:
            actor.unlink(b"file")
            actor.unlink(b"also")

        removing = bench.open_step(log, remove)
        service.close(removing)
        service.close(writing)
        file.write(b"late")
        log.writers = lambda _: frozenset()
        undo(log, [removing, writing])
        bench.assert_as(before)


def test_what_a_step_wrote_to_what_it_made_and_is_in_the_log_alone_is_its_own(bench: Bench) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        making = bench.open_step(log, lambda actor: actor.write(b"file", b"made"))

        def take_a_name(actor: InterceptedActor) -> None:
            actor.link(b"file", b"also")
            actor.unlink(b"file")

        taking = bench.step(log, take_a_name)
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), making) as actor:
            actor.write(b"also", b"written")
            actor.unlink(b"also")
        bench.finish(log, making)
        undo(log, [taking, making])
        bench.assert_as(before)


def test_what_several_steps_have_left_is_known_of_all_when_the_last_of_them_is_finished(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        log.writers = lambda _: frozenset({path.stat().st_ino})
        first, second = (bench.open_step(log, lambda actor: actor.write(b"file", b"written")) for _ in range(2))
        service.close(first)
        finish = service.begin_close(second)
        log.writers = lambda _: frozenset()
        settle_late_writes(log, eagerly=False)  # before the second one is written
        assert finish is not None
        finish()
        undo(log, [first, second])
        bench.assert_as(before)


def test_what_a_later_step_replaced_and_still_writes_to_is_not_edited_by_others(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    before = bench.photograph()
    with bench.keeper() as log:
        log.writers = lambda _: frozenset({path.stat().st_ino})
        steps = [bench.step(log, lambda actor: actor.write(b"file", b"the first step's"))]

        def replace(actor: InterceptedActor) -> None:
            actor.write(b"new", b"the second step's")
            actor.rename(b"new", b"file")

        steps.append(bench.step(log, replace))
        with open(path, "ab"):
            settle_late_writes(log)  # the first one's writer is gone, the second one's is not
        log.writers = lambda _: frozenset()
        steps.append(bench.step(log, lambda actor: actor.chmod(b"file", 0o600)))
        assert log.barriers.records == []
        undo(log, steps)
        bench.assert_as(before)
