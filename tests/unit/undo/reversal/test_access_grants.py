"""What was closed to its owner, and is opened while what was done there is reversed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.testing.crash_points import MUTATIONS, run_killed
from holdfast.testing.permissions import permissions_hold
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import differences
from holdfast.undo.journal.records import Mutation, StepId
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.reversal._record_reversal import Reversal

from ..conftest import Bench, redo, undo

MOST = 400
CALLS = [call for call in MUTATIONS if call[1] != "mkdir"]
"""(Hundreds of which open a log.)"""


def test_a_directory_that_was_open_when_the_keeper_was_killed_is_closed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = bench.tree / "d" / "s"
    closed.mkdir(parents=True)
    (closed / "f").write_bytes(b"before")
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.unlink(b"d/s/f"))
    closed.chmod(0)
    tried: list[Mutation] = []

    def refused_then_killed(_self: Reversal, record: Mutation) -> None:
        if tried:
            os._exit(9)
        tried.append(record)
        raise PermissionError  # as for everybody but root

    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(Reversal, "_reverse", refused_then_killed)
            with bench.keeper() as log:
                undo(log, [step], force=True)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    with bench.keeper() as log:
        assert [done.steps for done in recover(log).finished] == [(step,)]
    assert stat.S_IMODE(closed.stat().st_mode) == 0
    closed.chmod(0o700)
    assert (closed / "f").read_bytes() == b"before"


@pytest.fixture
def obedient() -> Iterator[None]:
    """Permissions hold, also for root."""
    with permissions_hold():
        yield


def lock(actor: InterceptedActor) -> None:
    """Close what has extended attributes: not even its owner may read those any more."""
    actor.unlink(b"d/s/f")
    actor.setxattr(b"d/s", "user.new", b"the step's")
    actor.chmod(b"d/s", 0)
    actor.setxattr(b"file", "user.old", b"the step's")
    actor.chmod(b"file", 0)


def set_out(bench: Bench) -> None:
    (bench.tree / "d/s").mkdir(parents=True)
    for name in "d/s/f", "file":
        (bench.tree / name).write_bytes(b"before")
    for name in "d", "d/s", "file":
        os.setxattr(bench.tree / name, "user.old", b"before")


def go_back(bench: Bench, step: StepId) -> None:
    with bench.keeper() as log:
        undo(log, [step])


def looked_at(path: Path) -> tuple[int, bytes]:
    """The mode of what is closed, and its attribute, which can be read by opening it for that long."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o700)
    value = os.getxattr(path, "user.old")
    path.chmod(mode)
    return mode, value


@pytest.mark.usefixtures("obedient")
def test_what_a_step_has_closed_with_attributes_is_undone_and_redone(bench: Bench) -> None:
    set_out(bench)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: (actor.mkdir(b"d/s/new"), lock(actor)))
        assert undo(log, [step]).conflicts == ()
        bench.assert_as(before)
        assert redo(log, [step]).conflicts == ()
        assert stat.S_IMODE((bench.tree / "file").stat().st_mode) == 0
        with pytest.raises(PermissionError):
            os.listdir(bench.tree / "d/s")
        assert undo(log, [step]).conflicts == ()
        bench.assert_as(before)


@pytest.mark.usefixtures("obedient")
def test_a_step_opens_what_was_closed_with_attributes(bench: Bench) -> None:
    """As it may without Holdfast; what the attributes were is kept as soon as they can be changed."""
    set_out(bench)
    for name in "d/s", "file":
        (bench.tree / name).chmod(0)

    def unlock(actor: InterceptedActor) -> None:
        for path in b"d/s", b"file":
            actor.chmod(path, 0o700)
            actor.setxattr(path, "user.old", b"the step's")

    with bench.keeper() as log:
        step = bench.step(log, unlock)
        after = bench.photograph()
        for _ in range(2):
            assert undo(log, [step]).conflicts == ()
            assert [looked_at(bench.tree / name) for name in ("d/s", "file")] == [(0, b"before")] * 2
            assert redo(log, [step], force=True).conflicts == ()
            bench.assert_as(after)


@pytest.mark.usefixtures("obedient")
def test_attributes_that_can_be_set_but_not_read_are_not_lost(bench: Bench) -> None:
    set_out(bench)
    (bench.tree / "file").chmod(0o200)
    with bench.keeper() as log, pytest.raises(PermissionError):
        bench.step(log, lambda actor: actor.setxattr(b"file", "user.old", b"the step's"))
    (bench.tree / "file").chmod(0o600)
    assert os.getxattr(bench.tree / "file", "user.old") == b"before"


def lock_a_directory(actor: InterceptedActor) -> None:
    """What is new in it cannot be seen any more when the step ends."""
    actor.mkdir(b"d/s/new")
    lock(actor)


def lock_several(actor: InterceptedActor) -> None:
    actor.write(b"d/s/made", b"x")
    actor.rename(b"d/s/made", b"d/s/new")
    actor.mkdir(b"d/s/sub")
    actor.write(b"d/s/sub/f", b"1")
    actor.chmod(b"d/s/sub", 0)
    lock(actor)
    actor.chmod(b"d", 0)


def lock_what_was_replaced(actor: InterceptedActor) -> None:
    actor.write(b"d/s/new", b"x")
    actor.rename(b"d/s/new", b"d/s/f")
    actor.write(b"d/s/new", b"x")
    actor.setxattr(b"d/s", "user.new", b"the step's")
    actor.chmod(b"d/s", 0)
    actor.chmod(b"d", 0)


LOCKS: list[Callable[[InterceptedActor], None]] = [lock, lock_a_directory, lock_several, lock_what_was_replaced]
EVERY = 5
"""Of so many changes it is killed at one."""


@pytest.mark.usefixtures("obedient")
@pytest.mark.parametrize("lock", LOCKS)
def test_i3_killed_anywhere_what_was_closed_is_right_in_the_end(
    tmp_path: Path, lock: Callable[[InterceptedActor], None]
) -> None:
    for fatal in range(1 + LOCKS.index(lock) % EVERY, MOST, EVERY):
        bench = Bench(tmp_path / str(fatal))
        set_out(bench)
        before = bench.photograph()
        with bench.keeper() as log:
            step = bench.step(log, lock)

        ended = run_killed(partial(go_back, bench, step), fatal, calls=CALLS)
        with bench.keeper() as log:
            assert [conflict for done in recover(log).finished for conflict in done.conflicts] == [], fatal
            if log.heads[step].state == "done":
                undo(log, [step])
        assert differences(before, bench.photograph()) == [], fatal
        if not ended.killed:
            return
    raise AssertionError(f"it has more than {MOST} changes")


@pytest.mark.usefixtures("obedient")
@pytest.mark.parametrize("lock", LOCKS[1:])
def test_i8_what_others_change_where_a_killed_undo_had_opened_it_stays(
    tmp_path: Path, lock: Callable[[InterceptedActor], None]
) -> None:
    edited = 0
    for fatal in range(10 + LOCKS.index(lock) % EVERY, MOST, EVERY):
        bench = Bench(tmp_path / str(fatal))
        set_out(bench)
        with bench.keeper() as log:
            step = bench.step(log, lock)

        ended = run_killed(partial(go_back, bench, step), fatal, calls=CALLS)
        if not ended.killed:
            assert edited
            return
        inner = bench.tree / "d/s"
        if not os.access(inner, os.W_OK | os.X_OK, effective_ids=True):
            continue
        # (One that is there is theirs by what they have added, or the directory is, by what they have made in it.)
        marks = [inner / "by hand"]
        if (inner / "new").is_file():
            marks.append(inner / "new")
        for path in marks:
            with path.open("ab") as file:
                file.write(b"by hand")
        with bench.keeper() as log:
            conflicts = [conflict for done in recover(log).finished for conflict in done.conflicts]
            if log.heads[step].state == "undone":
                edited += 1
                assert len(marks) == 1 or conflicts, fatal
        kept = [path.read_bytes() for path in bench.tree.rglob("*") if path.is_file()]
        assert sum(content.endswith(b"by hand") for content in kept) == len(marks), fatal
    raise AssertionError(f"it has more than {MOST} changes")
