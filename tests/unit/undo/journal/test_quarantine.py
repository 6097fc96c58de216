"""What cannot be put back where it belongs is not lost: it lies aside, and its path is told (I8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.journal.preimages import Preimages
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.reports.step_views import undo_report
from holdfast.undo.service import ConflictInfo

from ..conftest import Bench, redo, undo

LARGE = b"large" * 10_000


def kept(conflict: ConflictInfo) -> Path:
    assert conflict.kept is not None
    return Path(os.fsdecode(conflict.kept))


def remove(actor: InterceptedActor) -> None:
    actor.unlink(b"file")


def replace(actor: InterceptedActor) -> None:
    actor.write(b"new", b"new")
    actor.rename(b"new", b"file")


@pytest.mark.parametrize("work", [remove, replace])
def test_a_removed_file_whose_place_is_taken(bench: Bench, work: Callable[[InterceptedActor], None]) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"the first")
    with bench.keeper() as log:
        step = bench.step(log, work)
        path.unlink(missing_ok=True)
        path.write_bytes(b"a stranger's")
        done = undo(log, [step], force=True)
        assert path.read_bytes() == b"a stranger's"
        found = [conflict for conflict in done.conflicts if conflict.kept is not None]
        assert [conflict.path for conflict in found] == [b"file"]
        assert kept(found[0]).read_bytes() == b"the first"
        assert log.heads[step].conflicts
    with bench.keeper() as log:
        redo(log, [step], force=True)
        assert kept(found[0]).read_bytes() == b"the first"
        assert path.read_bytes() == b"a stranger's"


@pytest.mark.parametrize("content", [b"small", LARGE])
def test_a_file_that_was_written_to_and_is_gone(bench: Bench, content: bytes) -> None:
    path = bench.tree / "file"
    path.write_bytes(content)
    path.chmod(0o640)
    os.utime(path, ns=(5, 5_000_000_000))
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"file", b"written"))
        path.unlink()
        (conflict,) = undo(log, [step], force=True).conflicts
        there = kept(conflict)
        assert there.read_bytes() == content
        assert (there.stat().st_mode & 0o777, there.stat().st_mtime_ns) == (0o640, 5_000_000_000)


def test_a_file_whose_directory_is_gone(bench: Bench) -> None:
    directory = bench.tree / "directory"
    directory.mkdir()
    (directory / "file").write_bytes(b"the first")
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.unlink(b"directory/file"))
        directory.rmdir()
        (conflict,) = undo(log, [step], force=True).conflicts
        assert conflict.path == b"directory/file"
        assert kept(conflict).read_bytes() == b"the first"


def test_what_was_edited_after_the_keeper_was_killed(bench: Bench) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"the first")
    bench.abandon(lambda actor: actor.write(b"file", b"the step's"))
    _edit(path, b"edited after the kill", bench.end_life())
    with bench.keeper() as log:
        recovered = recover(log)
        assert path.read_bytes() == b"edited after the kill"
        assert recovered.rolled_back is not None
        (conflict,) = undo_report(log.quarantine, [recovered.rolled_back]).conflicts
        assert kept(conflict).read_bytes() == b"the first"


def test_what_was_edited_after_the_kill_survives_a_kill_of_the_recovery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, I8: the second recovery knows what the first one knew."""
    for name in ("edited", "other"):
        (bench.tree / name).write_bytes(b"the first")

    def both(actor: InterceptedActor) -> None:
        actor.write(b"edited", b"the step's")
        actor.write(b"other", b"the step's")
        actor.mkdir(b"new")

    bench.abandon(both)
    _edit(bench.tree / "edited", b"edited after the kill", end := bench.end_life())

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, bench.keeper() as log:
        patch.setattr(Preimages, "move_in", die)
        with pytest.raises(Killed):
            recover(log)
    _edit(bench.tree / "other", b"edited between the recoveries", end)
    with bench.keeper() as log:
        (finished,) = recover(log).finished
        assert (bench.tree / "edited").read_bytes() == b"edited after the kill"
        assert (bench.tree / "other").read_bytes() == b"edited between the recoveries"
        conflicts = undo_report(log.quarantine, [finished]).conflicts
        assert sorted(conflict.path for conflict in conflicts) == [b"edited", b"other"]
        assert {kept(conflict).read_bytes() for conflict in conflicts} == {b"the first"}
        assert not (bench.tree / "new").exists()


def _edit(path: Path, content: bytes, after: int) -> None:
    """Write to the file, later than ``after`` by the file system's coarser clock."""
    while path.stat().st_ctime_ns <= after:
        path.write_bytes(content)


def test_a_keeper_that_has_not_said_that_it_lives_for_long_takes_nothing_for_anothers(bench: Bench) -> None:
    """What it has journalled is a sign of life as well."""
    before = bench.photograph()
    bench.abandon(lambda actor: actor.write(b"file", b"content"))
    beat = bench.directory / "beat"
    beat.write_bytes(b"")
    with bench.keeper() as log:
        recovered = recover(log)
        assert recovered.rolled_back is not None
        assert recovered.rolled_back.conflicts == ()
        bench.assert_as(before)
