"""A step forgets what it only seemed to change, and what it made and removed again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.records import Touch
from holdfast.undo.local_service.undo_service import LocalUndoService

from ..conftest import Bench, redo, undo


@pytest.fixture
def old(bench: Bench) -> Path:
    """A file whose ctime has come to rest."""
    path = bench.tree / "file"
    path.write_bytes(b"content" * 5000)
    _let_rest(path)
    return path


def _let_rest(path: Path) -> None:
    while time.time_ns() - path.stat().st_ctime_ns < 25_000_000:
        pass


def test_a_file_that_was_only_opened_leaves_nothing(bench: Bench, old: Path) -> None:
    def work(actor: InterceptedActor) -> None:
        os.close(actor.open(b"file", os.O_RDWR))

    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            work(actor)
        assert list(log.preimages.numbers()) != []
        assert service.close(step, 0) is None
        assert service.steps() == []
        assert list(log.preimages.numbers()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda actor: actor.write(b"file", b"CONTENT", at=0),
        lambda actor: actor.chmod(b"file", 0o600),
        lambda actor: actor.utime(b"file", 5),
        lambda actor: actor.rename(b"file", b"moved"),
    ],
    ids=["write", "chmod", "utime", "rename"],
)
def test_what_was_changed_stays(bench: Bench, old: Path, change: Callable[[InterceptedActor], None]) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            os.close(actor.open(b"file", os.O_RDWR))
            change(actor)
        assert service.close(step, 0) is not None
        undo(log, [step])
        bench.assert_as(before)


def test_what_was_changed_stays_where_it_is_opened_for_nothing_later(bench: Bench) -> None:
    path = bench.tree / "file"
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        path.write_bytes(b"content")  # (So lately that its times do not tell of the change.)
        before = bench.photograph()
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            actor.chmod(b"file", 0o600)
            _let_rest(path)
            os.close(actor.open(b"file", os.O_RDWR))
        assert service.close(step, 0) is not None
        undo(log, [step])
        bench.assert_as(before)


def test_a_file_that_is_still_open_for_writing_stays_known(bench: Bench, old: Path) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            fd = actor.open(b"file", os.O_RDWR)
            assert service.close(step, 0) is not None
            os.write(fd, b"later")
            os.close(fd)
        undo(log, [step], force=True)
        bench.assert_as(before)


def test_what_goes_through_a_pipe_after_its_step_counts_as_its_own(bench: Bench) -> None:
    """I1. Nobody can be asked whether it is still open; and what goes through is nobody's edit."""
    pipe = bench.tree / "pipe"
    os.mkfifo(pipe)
    while time.time_ns() - pipe.stat().st_ctime_ns < 25_000_000:
        pass
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        pipe_fd = os.open(pipe, os.O_RDWR)
        there = os.open(pipe, os.O_PATH)
        log.recorder.before_metadata_change(step, Place(-1, b"", b"pipe"), there)
        os.close(there)
        assert service.close(step, 0) is not None
        os.write(pipe_fd, b"later")
        os.close(pipe_fd)
        undo(log, [step])
        bench.assert_as(before)


def _churn(actor: InterceptedActor) -> None:
    actor.mkdir(b"made")
    for number in range(3):
        actor.mkdir(b"made/%d" % number)
        os.close(actor.open(b"made/%d/file" % number, os.O_CREAT | os.O_WRONLY))
        actor.unlink(b"made/%d/file" % number)
        actor.rmdir(b"made/%d" % number)
    actor.rmdir(b"made")


def test_what_was_made_and_removed_again_is_not_replayed(bench: Bench, old: Path) -> None:
    """I1. The directory's mtime is all that is left to bring back; lists show the paths all the same."""
    os.utime(bench.tree, (1, 1))
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            _churn(actor)
        info = service.close(step, 0)
        assert info is not None
        assert info.paths == 7
        assert [type(record) for record in log.read(step).records] == [Touch]
        assert list(log.preimages.numbers()) == []
        after = bench.photograph()
        for _ in range(2):
            undo(log, [step])
            bench.assert_as(before)
            redo(log, [step])
            bench.assert_as(after)
        assert [one.paths for one in service.steps()] == [7]


def test_what_was_moved_through_a_directory_that_went_is_brought_back(bench: Bench, old: Path) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            actor.mkdir(b"way")
            actor.mkdir(b"way/in")
            actor.rename(b"file", b"way/in/file")
            actor.rename(b"way/in/file", b"moved")
            actor.rmdir(b"way/in")
            actor.rmdir(b"way")
        assert service.close(step, 0) is not None
        after = bench.photograph()
        undo(log, [step])
        bench.assert_as(before)
        redo(log, [step])
        bench.assert_as(after)


def test_what_another_step_had_to_do_with_stays_known(bench: Bench) -> None:
    """I10. The other one cannot be undone alone, by its records of what is not there any more."""
    with bench.keeper() as log:
        service = LocalUndoService(log)
        step, other = service.open("command"), service.open("command")
        with (
            InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor,
            InterceptedActor(log.recorder, os.fsencode(bench.tree), other) as beside,
        ):
            actor.write(b"file", b"content", at=0)
            beside.write(b"file", b"CONTENT", at=0)
            actor.unlink(b"file")
        assert service.close(step, 0) is not None
        assert service.close(other, 0) is not None
        assert sorted(service.connected(other)) == [step, other]
