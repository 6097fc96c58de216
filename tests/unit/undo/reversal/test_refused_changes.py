"""What the system does not let a reversal change: undo and redo refuse it, and a recovery gets over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.model.errors import RefusedError
from holdfast.model.ids import hash_bytes
from holdfast.testing.crash_points import MUTATIONS, run_killed
from holdfast.testing.permissions import permissions_hold
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.reversal.reversal_context import NOT_DESCRIBED

from ....obstacles import mounted_read_only, protected
from ..conftest import Bench, redo, undo

USER = 65534
MOST = 100


@contextmanager
def not_writable(path: Path) -> Generator[None]:
    """As a directory of another user is to one who is not root."""
    if os.geteuid():
        pytest.skip("needs root, to give a directory away")
    os.chown(path, USER, USER)
    path.chmod(0o555)
    try:
        with permissions_hold():
            yield
    finally:
        path.chmod(0o755)
        os.chown(path, 0, 0)


class Case(NamedTuple):
    obstruct: Callable[[Path], AbstractContextManager[None]]
    at: str
    cause: str
    paths: set[bytes]
    """What cannot be changed."""


PROTECTED_FILE = Case(protected, "d/edited", "it is protected: `chattr -i d/edited` lifts that", {b"d/edited"})
GROWING_FILE = Case(
    partial(protected, attribute="a"), "d/edited", "it is protected: `chattr -a d/edited` lifts that", {b"d/edited"}
)
NAMES = {b"d/removed", b"d/new", b"d/moved", b"d/made"}
PROTECTED_DIRECTORY = Case(protected, "d", "is protected: `chattr -i d` lifts that", NAMES)
MOUNTED = Case(mounted_read_only, "d", "is on a read-only mount", {*NAMES, b"d/edited"})
CLOSED = Case(not_writable, "d", "may not be written: `chmod u+w d`, if it is yours", NAMES)
CASES = [
    pytest.param(PROTECTED_FILE, id="file"),
    pytest.param(GROWING_FILE, id="append-only"),
    pytest.param(PROTECTED_DIRECTORY, id="directory"),
    pytest.param(MOUNTED, id="mount"),
    pytest.param(CLOSED, id="closed"),
]


def plant(bench: Bench) -> None:
    (bench.tree / "d").mkdir()
    for name in ("d/edited", "d/removed", "d/old", "free"):
        (bench.tree / name).write_bytes(b"before")


def work(actor: InterceptedActor) -> None:
    actor.write(b"free", b"the step's")
    actor.write(b"d/edited", b"the step's")
    actor.unlink(b"d/removed")
    actor.write(b"d/new", b"the step's")
    actor.rename(b"d/old", b"d/moved")
    actor.mkdir(b"d/made")
    actor.write(b"late", b"the step's")


def note(bench: Bench, log: UndoLog, step: StepId) -> None:
    """So that a file is known again after its ctime has changed."""
    service = LocalUndoService(log)
    paths = [(path, bench.tree / os.fsdecode(path)) for path in service.left_files(step)]
    service.note_contents(step, [(path, hash_bytes(at.read_bytes())) for path, at in paths if at.exists()])


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_before_anything_is_changed_and_goes_on_once_that_is_lifted(bench: Bench, case: Case) -> None:
    plant(bench)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, work)
        after = bench.photograph()
        for change, state, there in ((undo, before, after), (redo, after, before)):
            note(bench, log, step)
            with case.obstruct(bench.tree / case.at):
                seen = bench.photograph()
                with pytest.raises(RefusedError) as caught:
                    change(log, [step])
                assert caught.value.code == "unwritable"
                assert f"{case.at}: " in caught.value.message
                assert case.cause in caught.value.message
                with pytest.raises(RefusedError) as foreseen:
                    LocalUndoService(log).foresee([step], forward=change is redo)
                assert foreseen.value.message == caught.value.message
                bench.assert_as(seen)
                assert not log.interrupted
            bench.assert_as(there)
            assert change(log, [step]).conflicts == ()
            bench.assert_as(state)


@pytest.mark.parametrize("case", CASES)
def test_forced_it_is_left_named_with_its_cause_and_kept_aside(bench: Bench, case: Case) -> None:
    plant(bench)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, work)
        after = bench.photograph()
        note(bench, log, step)
        with case.obstruct(bench.tree / case.at):
            left = {met.path: met for met in undo(log, [step], force=True).conflicts}
            stayed = bench.photograph()
        assert case.paths <= left.keys() | {b"d/moved"}
        assert all(case.cause in left[path].reason for path in left.keys() & case.paths)
        for path in left.keys() & {b"d/edited", b"d/removed"}:
            kept = left[path].kept
            assert kept is not None
            assert Path(os.fsdecode(kept)).read_bytes() == b"before"
        assert stayed[b"free"].content == b"before"
        assert b"late" not in stayed
        assert [info.state for info in LocalUndoService(log).steps()] == ["partly"]
        assert redo(log, [step]).conflicts == ()
        bench.assert_as(after)
        assert undo(log, [step]).conflicts == ()
        bench.assert_as(before)
        assert list(bench.directory.glob("aside/*")) == []


@pytest.mark.parametrize("case", CASES)
def test_what_a_forced_undo_left_is_undone_when_that_is_asked_for_again(bench: Bench, case: Case) -> None:
    plant(bench)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, work)
        after = bench.photograph()
        with case.obstruct(bench.tree / case.at):
            for _ in range(2):
                assert undo(log, [step], force=True).conflicts
                (info,) = LocalUndoService(log).steps()
                assert (info.state, info.refused) == ("partly", "undo")
            with pytest.raises(RefusedError) as caught:
                undo(log, [step])
            assert caught.value.code == "unwritable"
        assert undo(log, [step]).conflicts == ()
        bench.assert_as(before)
        (info,) = LocalUndoService(log).steps()
        assert (info.state, info.refused) == ("undone", "")
        assert list(bench.directory.glob("aside/*")) == []
        redo(log, [step])
        bench.assert_as(after)
        undo(log, [step])
        bench.assert_as(before)


def test_what_others_edited_meanwhile_is_not_overwritten_unasked(bench: Bench) -> None:
    plant(bench)
    with bench.keeper() as log:
        step = bench.step(log, work)
        with protected(bench.tree / "d/edited"):
            undo(log, [step], force=True)
        (bench.tree / "d/edited").write_bytes(b"another's")
        with pytest.raises(RefusedError, match="d/edited"):
            undo(log, [step])
        with pytest.raises(RefusedError, match="d/edited"):
            redo(log, [step])
        assert (bench.tree / "d/edited").read_bytes() == b"another's"


@pytest.mark.parametrize("case", CASES)
def test_what_a_killed_keeper_left_open_is_rolled_back_but_for_it(
    bench: Bench, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    plant(bench)
    with ExitStack() as stack:
        # (Before the last sign of life: what is protected after it counts as changed by another process.)
        bench.abandon(lambda actor: (work(actor), stack.enter_context(case.obstruct(bench.tree / case.at))))
        with bench.keeper() as log:
            back = recover(log).rolled_back
        assert back is not None
        assert case.cause in caplog.text
        with bench.keeper() as log:
            assert recover(log).rolled_back is None
    assert (bench.tree / "free").read_bytes() == b"before"
    assert not (bench.tree / "late").exists()


@pytest.mark.parametrize("case", CASES)
def test_an_undo_that_was_killed_in_the_middle_is_finished_but_for_it(tmp_path: Path, case: Case) -> None:
    """I3."""

    def go_back(bench: Bench, step: StepId) -> None:
        with bench.keeper() as log:
            undo(log, [step])

    for fatal in range(1, MOST):
        bench = Bench(tmp_path / str(fatal))
        plant(bench)
        with bench.keeper() as log:
            step = bench.step(log, work)
            note(bench, log, step)
        ended = run_killed(partial(go_back, bench, step), fatal * 3, calls=MUTATIONS)
        with case.obstruct(bench.tree / case.at):
            with bench.keeper() as log:
                finished = recover(log).finished
                state = log.heads[step].state
            with bench.keeper() as log:
                assert recover(log) == (None, ()), fatal
        if finished or not ended.killed:
            assert state == "undone"
            assert (bench.tree / "free").read_bytes() == b"before", fatal
            assert not (bench.tree / "late").exists(), fatal
        if not ended.killed:
            return
    raise AssertionError(f"it has more than {3 * MOST} changes")


@pytest.mark.parametrize("change", [undo, redo])
def test_what_follows_a_forced_undo_is_finished_if_it_is_killed(
    tmp_path: Path, change: Callable[[UndoLog, list[StepId]], object]
) -> None:
    """I3."""

    def go_on(bench: Bench, step: StepId) -> None:
        with bench.keeper() as log:
            change(log, [step])

    for fatal in range(1, MOST):
        bench = Bench(tmp_path / str(fatal))
        plant(bench)
        before = bench.photograph()
        with bench.keeper() as log:
            step = bench.step(log, work)
            after = bench.photograph()
            with protected(bench.tree / "d"):
                undo(log, [step], force=True)
        ended = run_killed(partial(go_on, bench, step), fatal * 5, calls=MUTATIONS)
        with bench.keeper() as log:
            finished = recover(log).finished
            if change is redo and (finished or log.heads[step].state == "done"):
                bench.assert_as(after)
            if log.heads[step].state == "done" or log.heads[step].refused:
                undo(log, [step])
            bench.assert_as(before)
        assert list(bench.directory.glob("aside/*")) == []
        if not ended.killed:
            return
    raise AssertionError(f"it has more than {5 * MOST} changes")


def test_a_step_that_is_rolled_back_leaves_it(bench: Bench) -> None:
    plant(bench)
    with bench.keeper() as log:
        service = LocalUndoService(log, intercepts=True)
        step = service.begin("step")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), step) as actor:
            work(actor)
        with protected(bench.tree / "d/edited"):
            (met,) = service.rollback(step).conflicts
        assert met.path == b"d/edited"
        assert PROTECTED_FILE.cause in met.reason
        assert not log.interrupted
    assert (bench.tree / "d/edited").read_bytes() == b"the step's"
    assert (bench.tree / "d/removed").read_bytes() == b"before"


def test_a_program_that_runs_is_not_written_to(bench: Bench) -> None:
    program = bench.tree / "program"
    shutil.copy("/bin/sleep", program)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"program", b"\0", at=os.stat("/bin/sleep").st_size))
        with subprocess.Popen([program, "1000"]) as running:
            try:
                with pytest.raises(RefusedError, match="program: a process runs it as its program") as caught:
                    undo(log, [step])
                assert caught.value.code == "unwritable"
                (met,) = undo(log, [step], force=True).conflicts
                assert met.reason == "it cannot be changed: a process runs it as its program"
            finally:
                running.kill()
        assert met.kept is not None
        assert Path(os.fsdecode(met.kept)).read_bytes() == before[b"program"].content


def test_a_directory_that_something_is_mounted_on_stays(bench: Bench) -> None:
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: (actor.mkdir(b"d"), actor.write(b"free", b"new")))
        with mounted_read_only(bench.tree / "d"):
            with pytest.raises(RefusedError, match="d: "):
                undo(log, [step])
            (met,) = undo(log, [step], force=True).conflicts
        assert met.path == b"d"
    assert os.listdir(bench.tree) == ["d"]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Bench]:
    """The bench of an ordinary user, as which the test goes on."""
    del tmp_path  # (which others may not search)
    if os.geteuid():
        pytest.skip("needs root, to be two users")
    base = Path(tempfile.mkdtemp(prefix="shared-", dir="/var/tmp"))
    os.chown(base, USER, USER)
    os.setegid(USER)
    os.seteuid(USER)
    try:
        yield Bench(base)
    finally:
        os.seteuid(0)
        os.setegid(0)
        shutil.rmtree(base)


@contextmanager
def root() -> Generator[None]:
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(USER)


def test_another_users_directory_that_is_closed_is_named(shared: Bench) -> None:
    plant(shared)
    with shared.keeper() as log:
        step = shared.step(log, work)
        with root():
            os.chown(shared.tree / "d", 0, 0)
            (shared.tree / "d").chmod(0o555)
        with pytest.raises(RefusedError, match="d: it may not be written: `chmod u"):
            undo(log, [step])
        left = undo(log, [step], force=True).conflicts
        assert {met.path for met in left} >= {b"d/removed", b"d/new", b"d/made"}
        assert not log.interrupted
    assert (shared.tree / "free").read_bytes() == b"before"
    assert not (shared.tree / "late").exists()


def test_in_another_users_files_content_and_names_come_back(shared: Bench) -> None:
    """The times of what belongs to another user cannot be set."""
    plant(shared)
    with root():
        for name, mode in (("d", 0o777), ("d/edited", 0o666)):
            os.chown(shared.tree / name, 0, 0)
            (shared.tree / name).chmod(mode)
    with shared.keeper() as log:
        step = shared.step(log, work)
        (met,) = undo(log, [step]).conflicts
        assert (met.path, met.reason, met.kept) == (b"d/edited", NOT_DESCRIBED, None)
        assert (shared.tree / "d/edited").read_bytes() == b"before"
        assert sorted(os.listdir(shared.tree / "d")) == ["edited", "old", "removed"]
        redo(log, [step])
        assert (shared.tree / "d/edited").read_bytes() == b"the step's"
