"""Commands that a host has an agent start, one after the other: each is the step that was opened for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread

import pytest

from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.supervisor.control.remote_service import RemoteUndoService
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.service import PRESET, StepInfo, Thresholds

from ..waiting import wait_until
from .test_supervisor_runs import Place, _place

__all__ = ["_place"]  # the fixture, used by its name

AGENT = """
import subprocess, sys
for line in sys.stdin:
    print(subprocess.run(["sh", "-c", line]).returncode, flush=True)
"""


class Host:
    """Gives an agent commands."""

    def __init__(self, place: Place, agent: subprocess.Popen[str], remote: RemoteUndoService) -> None:
        self.place = place
        self.agent = agent
        self.remote = remote

    def begin(self, command: str) -> int:
        step = self.remote.expect("", [b"sh", b"-c", command.encode()])
        assert self.agent.stdin is not None
        self.agent.stdin.write(command + "\n")
        self.agent.stdin.flush()
        return step

    def end(self, step: int) -> StepInfo | None:
        assert self.agent.stdout is not None
        return self.remote.settle(step, int(self.agent.stdout.readline())).info

    def command(self, command: str) -> tuple[int, StepInfo | None]:
        step = self.begin(command)
        return step, self.end(step)


@contextmanager
def hosted(place: Place) -> Generator[Host]:
    with place.start(sys.executable, "-I", "-S", "-c", AGENT, stdin=-1, stdout=-1) as agent:
        wait_until(place.is_kept)
        with place.remote() as remote:
            wait_until(lambda: remote.serves(""))
            yield Host(place, agent, remote)
        agent.communicate(timeout=60)
        assert agent.returncode == 0


def test_each_command_is_the_step_that_was_opened_for_it(place: Place) -> None:
    (place.tree / "old").write_text("old")
    before = photograph(place.tree)
    with hosted(place) as host:
        first, info = host.command("mkdir d && touch d/f && rm old; exit 7")
        assert info is not None
        assert (info.id, info.exit_code, info.state, info.kind) == (first, 7, "done", "command")
        assert info.command == (b"sh", b"-c", b"mkdir d && touch d/f && rm old; exit 7")
        assert [change.path for change in host.remote.changes(first)] == [b"d", b"d/f", b"old"]
        nothing, info = host.command("cat d/f")
        assert info is None
        last, info = host.command("sleep 0.1; touch g")
        assert info is not None
        assert info.id == last > nothing > first
        host.remote.undo([last, first])
        assert differences(before, photograph(place.tree)) == []


def test_what_a_command_leaves_running_is_not_of_the_next_one(place: Place) -> None:
    with hosted(place) as host:
        first, info = host.command("touch one; (until [ -e go ]; do sleep 0.01; done; touch late) & true")
        assert info is not None
        assert info.paths == 1
        second, info = host.command("touch two go; until [ -e late ]; do sleep 0.01; done")
        assert info is not None
        assert [change.path for change in host.remote.changes(second)] == [b"go", b"two"]
        late = next(step for step in host.remote.steps() if step.id not in (first, second))
        assert [change.path for change in host.remote.changes(late.id)] == [b"late"]


def test_a_step_stays_open_until_it_is_settled(place: Place) -> None:
    with hosted(place) as host:
        step = host.begin("touch f; sleep 0.2; touch g")
        with pytest.raises(RefusedError):
            host.remote.expect("", [b"x"])
        assert host.agent.stdout is not None
        code = int(host.agent.stdout.readline())
        assert [(info.id, info.state) for info in host.remote.steps()] == [(step, "open")]
        info = host.remote.settle(step, code).info
        assert info is not None
        assert info.paths == 2
        for wrong in (step, 99):
            with pytest.raises(NotFoundError):
                host.remote.settle(wrong, 0)
        with pytest.raises(NotFoundError):
            host.remote.expect("another", [b"x"])


def test_a_step_that_no_command_came_for_is_nothing(place: Place) -> None:
    with hosted(place) as host:
        step = host.remote.expect("", [b"x"])
        assert host.remote.settle(step, None).info is None
        after, info = host.command("touch f")
        assert info is not None
        assert info.id == after


def test_files_are_written_beside_what_runs(place: Place) -> None:
    (place.tree / "large").write_bytes(b"1" * (11 << 20))
    before = photograph(place.tree)
    with hosted(place) as host:
        content = os.memfd_create("content")
        os.write(content, b"written")
        step = host.begin("touch f; until [ -e new ]; do sleep 0.01; done; cat new > copy")
        wait_until((place.tree / "f").exists)
        info = host.remote.write(b"new", content)
        assert info is not None
        assert (info.kind, info.paths) == ("api", 1)
        assert host.end(step) is not None
        assert host.remote.barriers() == []
        host.remote.guard("", PRESET)
        found: list[object] = []

        def write() -> None:
            with place.remote() as other:
                try:
                    found.append(other.write(b"large", content))
                except HoldfastError as error:
                    found.append(error.code)

        for allow in (False, True):
            writer = Thread(target=write)
            writer.start()
            wait_until(lambda: len(host.remote.held()) == 1)
            assert (place.tree / "large").stat().st_size == 11 << 20
            host.remote.answer(host.remote.held()[0].id, allow=allow)
            writer.join(20)
        assert found[0] == "denied"
        assert (place.tree / "large").read_bytes() == b"written"
        os.close(content)
        assert host.remote.barriers() == []
        host.remote.undo([info.id for info in host.remote.steps() if info.state == "done"])
        assert differences(before, photograph(place.tree)) == []


def test_only_who_started_a_run_changes_what_it_asks_for(place: Place) -> None:
    """I9."""
    script = f"""
import sys
sys.path[:] = {sys.path!r}
from holdfast.model.errors import HoldfastError
from holdfast.supervisor.control.remote_service import connect
from holdfast.undo.safeguards.tickets import OFF
with connect({os.fsencode(place.log)!r}) as remote:
    for run in ("", "another"):
        try:
            remote.guard(run, OFF)
        except HoldfastError as error:
            print(error.code)
"""
    with hosted(place) as host:
        host.remote.guard("", PRESET)
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        assert told.split() == ["refused", "not_found"]
        assert host.remote.thresholds() == PRESET


@pytest.mark.parametrize("orphaned", [False, True])
def test_what_runs_may_not_ask_for_what_concerns_others(place: Place, orphaned: bool) -> None:
    """I9."""
    script = f"""
import os, sys, time
while {orphaned} and os.path.exists("/proc/" + os.environ["PARENT"]):
    time.sleep(0.01)
sys.path[:] = {sys.path!r}
from holdfast.model.errors import RefusedError
from holdfast.supervisor.control.remote_service import connect
from holdfast.undo.service import LogLimits
from holdfast.undo.safeguards.tickets import OFF
with connect({os.fsencode(place.log)!r}) as remote:
    content = os.memfd_create("content")
    for ask in (
        lambda: remote.write(b"f", content), lambda: remote.expect("", [b"x"]), lambda: remote.settle(1, 0),
        lambda: remote.configure(LogLimits()), lambda: remote.guard("", OFF), lambda: remote.answer(1, allow=True),
        remote.discard,
        lambda: remote.undo([1], force=True), lambda: remote.redo([1]), lambda: remote.quiet().__enter__(),
    ):
        try:
            ask()
        except RefusedError:
            print("refused")
"""
    words = [sys.executable, "-c", script]
    if orphaned:
        words = ["sh", "-c", f"PARENT=$$ {shlex.join(words)} & kill -KILL $$"]  # which sorts nothing that it leaves
    assert place.run(*words, code=137 if orphaned else 0) == "refused\n" * 10


def lose(place: Place) -> None:
    """Files for a command to delete, which somebody is asked about at the fifth."""
    for number in range(9):
        (place.tree / f"d{number}").write_text("content")


ASKED = Thresholds(deletes=5, timeout=100)
REMOVE = "rm -f d*"


def test_what_waits_for_a_person_when_its_step_is_settled_does_not_happen(place: Place) -> None:
    """I9: as when its session ends, and it has not. (The agent's child leaves it behind.)"""
    lose(place)
    code = place.tree.parent / "code"
    with hosted(place) as host:
        host.remote.guard("", ASKED)
        step = host.begin(f"({REMOVE}; touch over; echo $? > ../code) >&2 & true")
        wait_until(lambda: bool(host.remote.held()))
        assert [ticket.step for ticket in host.remote.held()] == [step]
        assert len(os.listdir(place.tree)) == 5
        assert host.end(step) == next(info for info in host.remote.steps() if info.id == step)
        wait_until(lambda: code.exists() and code.read_text())
        assert code.read_text() == "1\n"
        assert host.remote.held() == []
        assert sorted(os.listdir(place.tree)) == [f"d{number}" for number in range(9)]
        assert [(info.id, info.state) for info in host.remote.steps()] == [(step, "undone")]
        # What comes after it is another matter.
        _, info = host.command("rm d4")
        assert info is not None


@pytest.mark.parametrize("timeout", [100, 0.2], ids=["denied", "not answered"])
def test_what_a_denied_command_leaves_running_stays_denied(place: Place, timeout: float) -> None:
    """I9."""
    lose(place)
    code = place.tree.parent / "code"
    before = photograph(place.tree)
    with hosted(place) as host:
        host.remote.guard("", ASKED._replace(timeout=timeout))
        step = host.begin(
            "(until rm -f d1 2> /dev/null; [ -e ../go ]; do sleep 0.01; done; rm -f d1; touch over; echo > ../code) & "
            f"{REMOVE}; true"
        )
        if timeout == 100:
            wait_until(lambda: bool(host.remote.held()))
            host.remote.answer(host.remote.held()[0].id, allow=False)
        info = host.end(step)
        assert info is not None
        assert info.state == "undone"
        (place.tree.parent / "go").touch()
        wait_until(lambda: code.exists() and code.read_text())
        assert differences(before, photograph(place.tree)) == []
        _, info = host.command("rm d1 d2")
        assert info is not None
        assert info.paths == 2


def test_what_was_denied_within_an_explicit_step_stays_denied_after_it(place: Place) -> None:
    """I9."""
    lose(place)
    before = photograph(place.tree)
    with hosted(place) as host:
        host.remote.guard("", ASKED)
        explicit = host.remote.begin("explicit")
        step = host.begin("until rm -f d* 2> /dev/null; [ -e ../go ]; do sleep 0.01; done; touch over; true")
        wait_until(lambda: bool(host.remote.held()))
        assert [ticket.step for ticket in host.remote.held()] == [explicit]
        host.remote.answer(host.remote.held()[0].id, allow=False)
        (place.tree.parent / "go").touch()
        assert host.end(step) is None
        assert differences(before, photograph(place.tree)) == []
        _, info = host.command("rm d1")
        assert info is not None
