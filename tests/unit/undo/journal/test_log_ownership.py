"""A log of another version is not changed, until a person says so: it stays as it is, or is set aside whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.model.errors import LockedError
from holdfast.undo.journal.heartbeat import NONE, Heartbeat, encode_beat, read_beat
from holdfast.undo.journal.log_ownership import (
    VersionMismatchError,
    check_version,
    discard_log,
    forget_others,
    last_of_others,
    set_aside,
)
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..conftest import Bench, undo


class Killed(BaseException):
    """Nothing may catch it."""


def snapshot(bench: Bench) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in bench.directory.rglob("*") if path.is_file()}


def of_another_version(bench: Bench) -> tuple[Heartbeat, dict[Path, bytes]]:
    """Make a log of another version; its sign of life, and what is in it, by the path in it."""
    (bench.tree / "file").write_bytes(b"content")
    with bench.keeper() as log:
        for _ in range(3):
            bench.step(log, lambda actor: actor.write(b"made", b"x"))
        step = bench.step(log, lambda actor: actor.unlink(b"file"))
        (bench.tree / "file").write_bytes(b"a stranger's")
        undo(log, [step], force=True)
    (bench.directory / "version").write_bytes(b"HFUNDO 2\n")
    beat = read_beat(os.fsencode(bench.directory))
    assert beat is not None
    return beat, held(bench.directory)


def held(log: Path) -> dict[Path, bytes]:
    """What is in a log but for what stays where it is."""
    return {
        path.relative_to(log): path.read_bytes()
        for path in log.rglob("*")
        if path.is_file() and path.relative_to(log).parts[0] not in ("lock", "aside", "other-version")
    }


def move(bench: Bench, least: Heartbeat = NONE, say: Callable[[], object] = lambda: None) -> None:
    set_aside(os.fsencode(bench.directory), least, say)


def test_a_log_of_another_version(bench: Bench) -> None:
    (bench.tree / "file").write_bytes(b"content")
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.unlink(b"file"))
        (bench.tree / "file").write_bytes(b"a stranger's")
        undo(log, [step], force=True)
    (bench.directory / "version").write_bytes(b"HFUNDO 2\n")
    before = snapshot(bench)
    with pytest.raises(VersionMismatchError) as mismatch, bench.keeper():
        pass
    assert mismatch.value.code == "undo_version_mismatch"
    assert snapshot(bench) == before
    discard_log(os.fsencode(bench.directory), NONE)
    with bench.keeper() as log:
        assert log.heads == {}
        (aside,) = (bench.directory / "aside").iterdir()
        assert aside.read_bytes() == b"content"


def test_a_log_that_is_kept_is_not_discarded(bench: Bench) -> None:
    with bench.keeper(), pytest.raises(LockedError):
        discard_log(os.fsencode(bench.directory), NONE)


def test_a_damaged_step_is_left_out_and_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with bench.keeper() as log:
        steps = [bench.step(log, lambda actor, name=name: actor.write(name, b"x")) for name in (b"a", b"b")]
    path = bench.directory / "steps" / f"{steps[0]:08d}"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with bench.keeper() as log:
        assert list(log.heads) == [steps[1]]
        assert "is damaged" in caplog.text
        undo(log, [steps[1]])
    caplog.clear()


def test_a_log_of_another_version_is_set_aside_whole(bench: Bench) -> None:
    beat, before = of_another_version(bench)
    said: list[None] = []
    move(bench, say=lambda: said.append(None))
    move(bench, say=lambda: said.append(None))
    assert len(said) == 1
    (place,) = (bench.directory / "other-version").iterdir()
    assert held(place) == before
    assert last_of_others(os.fsencode(bench.directory)) == beat.seq
    assert [path.read_bytes() for path in (bench.directory / "aside").iterdir()] == [b"content"]
    with bench.keeper() as log:
        assert log.heads == {}
        step = bench.step(log, lambda actor: actor.write(b"new", b"x"))
        assert step > beat.step
        assert log.heads[step].first > beat.seq
        assert log.new_id(ambient=True) < beat.ambient
        undo(log, [step])
        assert not (bench.tree / "new").exists()
    assert held(place) == before


def test_a_log_that_is_set_aside_while_it_is_killed_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: whatever the point, and killed again, nothing of the other log is lost, or mixed with the new one."""
    beat, before = of_another_version(bench)
    for part in (bench.directory / "kept").iterdir():  # (hundreds of empty ones take long to copy)
        with suppress(OSError):
            part.rmdir()
    whole = bench.directory.rename(bench.directory.parent / "whole")
    points = 0
    while True:
        shutil.rmtree(bench.directory, ignore_errors=True)
        shutil.copytree(whole, bench.directory)
        was_killed = kill(bench, monkeypatch, after=points)
        if was_killed:
            with pytest.raises(VersionMismatchError):
                check_version(os.fsencode(bench.directory))
            kill(bench, monkeypatch, after=2)
            move(bench)
        (place,) = (bench.directory / "other-version").iterdir()
        assert held(place) == before
        check_version(os.fsencode(bench.directory))
        begun = read_beat(os.fsencode(bench.directory))
        assert begun is not None
        assert begun._replace(seq=beat.seq) == beat._replace(at=0)
        assert begun.seq > beat.seq
        assert last_of_others(os.fsencode(bench.directory)) == beat.seq
        if not was_killed:
            break
        points += 1
    with bench.keeper() as log:
        recover(log)
        assert log.heads == {}
        assert log.new_id() == beat.step + 1
    assert points > len({path.parts[0] for path in before})


def kill(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, after: int) -> bool:
    """Set the log aside, and kill that after so many directories were made and names changed; whether it came to it."""
    done = 0

    def counted(way: Callable[..., None]) -> Callable[..., None]:
        def carry_out(*args: object, **named: object) -> None:
            nonlocal done
            if done == after:
                raise Killed
            done += 1
            way(*args, **named)

        return carry_out

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", counted(os.rename))
        patched.setattr(os, "mkdir", counted(os.mkdir))
        try:
            move(bench)
        except Killed:
            return True
    return False


def test_a_second_log_of_another_version_is_set_aside_beside_the_first(bench: Bench) -> None:
    _, first = of_another_version(bench)
    move(bench)
    _, second = of_another_version(bench)
    move(bench)
    places = sorted((bench.directory / "other-version").iterdir())
    assert [held(place) for place in places] == [first, second]
    (kept := next(iter((places[0] / "kept").iterdir())) / "empty").mkdir()
    kept.chmod(0)
    forget_others(os.fsencode(bench.directory))
    assert last_of_others(os.fsencode(bench.directory)) is None
    assert {path.name for path in bench.directory.iterdir()} >= {"aside", "version"}
    assert not list(bench.directory.glob("other-version*"))


def test_what_the_sign_of_life_of_another_version_does_not_tell(bench: Bench) -> None:
    """Nothing that the history knows counts as later than all that such a log holds."""
    of_another_version(bench)
    (bench.directory / "beat").write_bytes(b"of another format")
    move(bench, Heartbeat(0, 70, -80, 900))
    assert last_of_others(os.fsencode(bench.directory)) == 901
    assert read_beat(os.fsencode(bench.directory)) == Heartbeat(0, 70, -80, 902)


def test_a_log_of_another_version_with_an_open_step_stays(bench: Bench) -> None:
    beat, _ = of_another_version(bench)
    (bench.directory / "beat").write_bytes(encode_beat(beat._replace(at=5)))
    before = snapshot(bench)
    with pytest.raises(VersionMismatchError, match="that version alone"):
        move(bench)
    assert snapshot(bench) == before


def test_a_log_of_another_version_that_is_kept_stays(bench: Bench) -> None:
    with bench.keeper():
        (bench.directory / "version").write_bytes(b"HFUNDO 2\n")
        before = snapshot(bench)
        with pytest.raises(LockedError):
            move(bench)
        assert snapshot(bench) == before


def test_a_log_that_is_made_anew_numbers_its_steps_above_all_that_are_known(bench: Bench) -> None:
    beat, _ = of_another_version(bench)
    discard_log(os.fsencode(bench.directory), NONE)
    with bench.keeper() as log:
        assert log.new_id() > beat.step
    root = os.open(bench.tree, os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(bench.directory / "lost"), root, SystemClock(), least=Heartbeat(0, 70, -80, 900))
    try:
        assert (log.new_id(), log.new_id(ambient=True), log.recorder.next_seq()) == (71, -81, 901)
    finally:
        log.close()
        os.close(root)
