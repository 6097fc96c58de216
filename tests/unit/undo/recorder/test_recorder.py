"""What the recorder must never say or do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.journal import segments
from holdfast.undo.journal.preimages import Preimages
from holdfast.undo.journal.records import Content, Link, Make, Remove
from holdfast.undo.journal.segments import read_journal
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.recorder import recorder
from holdfast.undo.recorder.recorder import Recorder
from holdfast.undo.recovery.keeper_recovery import recover

from ..conftest import Bench, redo, undo


@pytest.mark.parametrize(
    "work", [lambda actor: actor.mkdir(b"there"), lambda actor: actor.link(b"file", b"again")], ids=["mkdir", "link"]
)
def test_what_is_there_is_never_said_to_be_going_to_be_made(
    bench: Bench, work: Callable[[InterceptedActor], None]
) -> None:
    """I3: killed after such a record, the rollback would take it for the step's own, and remove it."""
    (bench.tree / "there").mkdir()
    (bench.tree / "file").write_bytes(b"content")
    os.link(bench.tree / "file", bench.tree / "again")
    with bench.keeper() as log:
        with pytest.raises(FileExistsError):
            bench.open_step(log, work)
        records = read_journal(os.fsencode(bench.directory)).records
        assert not any(isinstance(record, Make | Link) for record in records)


def test_content_is_captured_once(bench: Bench) -> None:
    """I2."""
    path = bench.tree / "file"
    path.write_bytes(b"first")
    os.link(path, bench.tree / "other name")
    before = bench.photograph()

    def work(actor: InterceptedActor) -> None:
        for content in (b"second", b"third"):
            actor.write(b"file", content)
        actor.write(b"other name", b"fourth")

    with bench.keeper() as log:
        step = bench.step(log, work)
        assert len([record for record in log.read(step).records if isinstance(record, Content)]) == 1
        undo(log, [step])
        bench.assert_as(before)


def test_what_a_step_made_and_removed_is_not_kept(bench: Bench) -> None:
    def work(actor: InterceptedActor) -> None:
        actor.write(b"file", b"content")
        actor.unlink(b"file")

    with bench.keeper() as log:
        bench.step(log, work)
        assert list(log.preimages.numbers()) == []


@pytest.mark.parametrize("same", [True, False], ids=["the same step", "another step"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda actor: actor.rename(b"file", b"moved"),
        lambda actor: actor.unlink(b"file"),
        lambda actor: actor.rename(b"other", b"file"),
        lambda actor: (actor.mkdir(b"dir"), actor.rename(b"file", b"dir/file"), actor.rename(b"dir", b"dir 2")),
    ],
    ids=["moved", "removed", "replaced", "moved twice"],
)
def test_what_happens_to_a_file_during_its_copy_is_reversed_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[InterceptedActor], object], *, same: bool
) -> None:
    (bench.tree / "file").write_bytes(b"content" * 10_000)
    (bench.tree / "other").write_bytes(b"other")
    before = bench.photograph()

    with bench.keeper() as log:
        first, second = log.new_id(), log.new_id()
        for step in (first, second):
            log.recorder.begin(step, "api")
        copy_in = log.preimages.copy_in

        def slow_copy(source: int, number: int) -> int:
            monkeypatch.undo()
            with InterceptedActor(log.recorder, os.fsencode(bench.tree), first if same else second) as other:
                meanwhile(other)
            return copy_in(source, number)

        monkeypatch.setattr(log.preimages, "copy_in", slow_copy)
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), first) as actor:
            fd = actor.open(b"file", os.O_WRONLY)
        os.pwrite(fd, b"written", 0)
        os.close(fd)
        for step in (first, second):
            seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
        log.restart()
        assert undo(log, [first] if same else [first, second]).conflicts == ()
        bench.assert_as(before)


def test_a_copy_that_fails_leaves_no_word_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.tree / "file").write_bytes(b"content" * 10_000)
    before = bench.photograph()
    with bench.keeper() as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            with monkeypatch.context() as patch:
                patch.setattr(log.preimages, "copy_in", refuse)
                with pytest.raises(PermissionError):
                    actor.open(b"file", os.O_WRONLY)
            assert log.recorder.step(step).records == []
            actor.write(b"file", b"written")
        seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
        log.restart()
        assert undo(log, [step]).conflicts == ()
        bench.assert_as(before)


def test_a_keeper_that_is_killed_while_it_copies_has_let_nobody_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3."""
    (bench.tree / "file").write_bytes(b"content" * 10_000)
    before = bench.photograph()

    def work(actor: InterceptedActor) -> None:
        monkeypatch.setattr(Recorder, "retract", lambda *_: None)
        monkeypatch.setattr(Preimages, "copy_in", refuse)
        with pytest.raises(PermissionError):
            actor.open(b"file", os.O_WRONLY)
        monkeypatch.undo()

    bench.abandon(work)
    with bench.keeper() as log:
        found = recover(log)
        assert found.rolled_back is not None
        assert found.rolled_back.conflicts == ()
    bench.assert_as(before)


@pytest.mark.parametrize(
    "remove",
    [lambda actor: actor.unlink(b"file"), lambda actor: actor.rename(b"other", b"file")],
    ids=["removed", "replaced"],
)
def test_who_has_a_removed_file_open_has_it_alone(bench: Bench, remove: Callable[[InterceptedActor], None]) -> None:
    """I1: the log keeps a copy, however it had kept the file."""
    (bench.tree / "file").write_bytes(b"content")
    (bench.tree / "other").write_bytes(b"other")
    (bench.tree / "directory").mkdir(mode=0o751)
    before = bench.photograph()
    fd, folder = (os.open(bench.tree / name, os.O_RDONLY) for name in ("file", "directory"))

    def work(actor: InterceptedActor) -> None:
        remove(actor)
        actor.rmdir(b"directory")
        for held in (fd, folder):
            assert log.recorder.release_removed(actor.step, held)
            assert log.recorder.release_removed(actor.step, held), "a second time"
            os.fchmod(held, 0o700)
        os.truncate(f"/proc/self/fd/{fd}", 0)
        assert os.fstat(fd).st_nlink == os.fstat(folder).st_nlink == 0

    with bench.keeper() as log:
        step = bench.step(log, work)
        assert undo(log, [step]).conflicts == ()
        bench.assert_as(before)
    os.close(fd)
    os.close(folder)


def test_what_has_another_name_is_nobodys_alone(bench: Bench) -> None:
    (bench.tree / "file").write_bytes(b"content")
    os.link(bench.tree / "file", bench.tree / "again")
    fd = os.open(bench.tree / "file", os.O_RDONLY)

    def work(actor: InterceptedActor) -> None:
        actor.unlink(b"file")
        assert not log.recorder.release_removed(actor.step, fd)

    with bench.keeper() as log:
        bench.step(log, work)
    os.close(fd)


def test_a_directory_half_copied_when_the_keeper_was_killed_is_removed(bench: Bench) -> None:
    with bench.keeper() as log:
        os.mkdir(b"00/0000000000000100.new", dir_fd=log.preimages.fd)
        assert list(log.preimages.numbers()) == []
        with pytest.raises(FileNotFoundError):
            os.stat(b"00/0000000000000100.new", dir_fd=log.preimages.fd)


def refuse(*_: object) -> None:
    raise PermissionError(13, "")


def test_where_nothing_can_be_renamed_or_linked_all_comes_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, as another object, which earlier steps know."""
    for name in ("small", "large"):
        (bench.tree / name).write_bytes(name.encode() * 5000)
    (bench.tree / "small").chmod(0o4711)
    os.setxattr(bench.tree / "large", "user.a", b"value")
    os.symlink("nowhere", bench.tree / "link")
    os.mkfifo(bench.tree / "pipe")
    (bench.tree / "full").mkdir(mode=0o2755)
    (bench.tree / "full/file").write_bytes(b"content")
    (bench.tree / "empty").mkdir()
    states = [bench.photograph()]
    monkeypatch.setattr(Preimages, "move_in", refuse)
    monkeypatch.setattr(Preimages, "link_in", refuse)

    def write(actor: InterceptedActor) -> None:
        actor.write(b"small", b"written")
        actor.write(b"large", b"written", at=10)
        actor.write(b"full/file", b"written")

    def remove(actor: InterceptedActor) -> None:
        for name in (b"small", b"link", b"pipe", b"full/file"):
            actor.unlink(name)
        actor.rename(b"full", b"empty")
        actor.write(b"new", b"new")
        actor.rename(b"new", b"large")

    with bench.keeper() as log:
        steps: list[int] = []
        for work in (write, remove):
            steps.append(bench.step(log, work))
            states.append(bench.photograph())
    for _ in range(2):
        with bench.keeper() as log:
            for step, state in ((steps[1], states[1]), (steps[0], states[0])):
                assert undo(log, [step]).conflicts == ()
                bench.assert_as(state)
        with bench.keeper() as log:
            for step, state in ((steps[0], states[1]), (steps[1], states[2])):
                assert redo(log, [step]).conflicts == ()
                bench.assert_as(state)


def test_a_damaged_preimage_spoils_its_step_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.model.errors import IntegrityError

    monkeypatch.setattr(Preimages, "move_in", refuse)
    monkeypatch.setattr(Preimages, "link_in", refuse)
    for name in ("one", "two"):
        (bench.tree / name).write_bytes(name.encode() * 10_000)
    with bench.keeper() as log:
        one, two = (bench.step(log, lambda actor, name=name: actor.unlink(name)) for name in (b"one", b"two"))
        (record,) = [record for record in log.read(one).records if isinstance(record, Remove)]
        path = bench.directory / "kept" / f"{record.keeping.number % 256:02x}" / f"{record.keeping.number:016x}"
        content = bytearray(path.read_bytes())
        content[5] ^= 1
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match="missing or damaged"):
            undo(log, [one])
        undo(log, [two])
        assert (bench.tree / "two").exists()
        path.unlink()
        with pytest.raises(IntegrityError):
            undo(log, [one], force=True)


@pytest.mark.parametrize("most", [100, 0], ids=["remembered", "too many to be remembered"])
def test_whose_content_was_brought_back_is_known(bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """And where it is not, it counts as brought back."""
    monkeypatch.setattr(recorder, "_MOST_REVERSED", most)
    for name in ("written", "other"):
        (bench.tree / name).write_bytes(b"content")
    written, other = (os.open(bench.tree / name, os.O_PATH) for name in ("written", "other"))
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"written", b"new"))
        before = log.recorder.reversals
        assert not log.recorder.was_reversed(written, before)
        undo(log, [step])
        assert log.recorder.reversals != before
        assert log.recorder.was_reversed(written, before)
        assert log.recorder.was_reversed(other, before) == (not most)
        assert not log.recorder.was_reversed(written, log.recorder.reversals)
    for fd in (written, other):
        os.close(fd)


def test_whatever_moves_a_directory_says_so(bench: Bench) -> None:
    (bench.tree / "dir" / "inner").mkdir(parents=True)
    (bench.tree / "file").write_bytes(b"content")
    with bench.keeper() as log:
        service = LocalUndoService(log)
        seen = log.recorder.arrangement

        def moved() -> bool:
            nonlocal seen
            before, seen = seen, log.recorder.arrangement
            return seen != before

        assert not moved()
        bench.step(log, lambda actor: actor.rename(b"file", b"renamed"))
        assert not moved()
        renamed = bench.step(log, lambda actor: actor.rename(b"dir/inner", b"outer"))
        assert moved()
        undo(log, [renamed])
        assert moved()
        removed = bench.step(log, lambda actor: actor.rmdir(b"dir/inner"))
        assert moved()
        undo(log, [removed])
        assert moved()
        with service.quiet():
            moved()
        assert moved()


def test_a_journal_that_could_not_be_read_any_more_takes_no_more_changes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the step has done by then is recorded, and can be taken back."""
    before = bench.photograph()
    monkeypatch.setattr(segments, "_FULL_BYTES", 4000)

    def fill(actor: InterceptedActor) -> None:
        for number in range(1000):
            actor.mkdir(b"%d" % number)

    with bench.keeper() as log:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            bench.open_step(log, fill)
        (step,) = log.recorder.open_steps
        assert 1 < len(os.listdir(bench.tree)) < 100
        seal_step(log, log.recorder.end(step.id, 0), StepEnd("done", 0, 0))
        log.restart()
        undo(log, [step.id])
    bench.assert_as(before)
