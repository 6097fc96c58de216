"""I9: what was ever supervised approves nothing, whatever it sheds, and cannot end those who look after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor.confinement import landlock
from holdfast.supervisor.process_tree.members import parent_of
from holdfast.testing.tree_state import differences, photograph

from ..waiting import stop, wait_until
from .test_supervisor_runs import Place, _place, is_alive, keeper_of

__all__ = ["_place"]  # the fixture, used by its name

needs_scopes = pytest.mark.skipif(
    landlock.version() < landlock.SCOPES_SINCE, reason="this kernel's Landlock keeps no signals in"
)

SLIPS_AWAY = """
import json, os, signal, sys
from holdfast.model.errors import HoldfastError
from holdfast.supervisor.control.remote_service import connect
from holdfast.undo.service import LogLimits

def tried(act):
    try:
        return repr(act())
    except HoldfastError as error:
        return error.code
    except OSError as error:
        return error.strerror

def tell(found):
    print(json.dumps(found), flush=True)

log = sys.argv[1].encode()
if os.fork():
    signal.pause()  # the agent
first = os.getpid()
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)  # nobody has seen whose parent it was
while os.getppid() == first:
    pass  # until it is adopted
os.setsid()
remote = connect(log)
parent = os.getppid()
tell([os.getpid(), parent, tried(remote.visit)])
for line in sys.stdin:
    content = os.open("/dev/null", os.O_RDONLY)
    again = connect(log)
    asked = {
        "kill": lambda: [os.kill(int(pid), signal.SIGTERM) for pid in line.split()],
        "undo": lambda: again.undo([1], force=True),
        "redo": lambda: again.redo([1]),
        "write": lambda: again.write(b"forged", content),
        "answer": lambda: again.answer(1, allow=True),
        "configure": lambda: again.configure(limits=LogLimits(max_steps=1)),
        "begin": lambda: again.begin("mine"),
        "commit": lambda: again.commit(2),
        "rollback": lambda: again.rollback(2),
        "discard": lambda: again.discard(),
    }
    tell({what: tried(act) for what, act in asked.items()})
    again.close()
"""


class Stray:
    """A process that has left its tree as far as it can, and does what it is told."""

    def __init__(self, run: subprocess.Popen[str]) -> None:
        self._run = run
        self.pid, self.parent, self.visited = self._told()

    def asks(self, *kills: int) -> dict[str, str]:
        """Have it send these processes a signal, and ask a keeper for everything: what came of it."""
        assert self._run.stdin is not None
        self._run.stdin.write(" ".join(map(str, kills)) + "\n")
        self._run.stdin.flush()
        return self._told()

    def _told(self) -> Any:
        assert self._run.stdout is not None
        return json.loads(self._run.stdout.readline())


@contextmanager
def stray(place: Place) -> Generator[tuple[Stray, subprocess.Popen[str]]]:
    place.sh("echo 1 > precious")
    wait_until(lambda: not place.is_kept())
    run = place.start(sys.executable, "-c", SLIPS_AWAY, str(place.log), stdin=-1, stdout=-1, stderr=-1)
    try:
        yield Stray(run), run
    finally:
        run.send_signal(signal.SIGCONT)
        run.kill()
        run.communicate()


def none_of(asked: dict[str, str]) -> None:
    assert set(asked.values()) == {"inside_run"}, asked


@needs_scopes
def test_who_looks_after_a_tree_cannot_be_ended_by_it(place: Place) -> None:
    with stray(place) as (loose, run):
        assert loose.visited == "inside_run"
        keeper = keeper_of(place)
        for pid in (loose.parent, run.pid, keeper, os.getpid()):
            assert loose.asks(pid)["kill"] == "Operation not permitted"
        assert all(map(is_alive, (loose.parent, run.pid, keeper)))
        asked = loose.asks()
        del asked["kill"], asked["begin"], asked["commit"], asked["rollback"]
        none_of(asked)


def test_what_outlives_those_who_looked_after_it_approves_nothing(place: Place) -> None:
    with stray(place) as (loose, run):
        keeper = keeper_of(place)
        with place.remote() as person:
            person.visit()
            stop(run.pid)  # else it would end what is left
            os.kill(loose.parent, signal.SIGKILL)
            wait_until(lambda: parent_of(loose.pid) != loose.parent)
            run.kill()
            run.wait()
            person.steps()
            asked = loose.asks()
            del asked["kill"]
            none_of(asked)
            assert [step.state for step in person.steps()] == ["done"]
        assert (place.tree / "precious").read_text() == "1\n"
        assert os.listdir(place.tree) == ["precious"]
        wait_until(lambda: not is_alive(keeper))
        with place.start("cat", stdin=-1, stdout=-1) as later:  # served by another keeper, which never knew it
            wait_until(place.is_kept)
            asked = loose.asks()
            del asked["kill"]
            none_of(asked)
            later.communicate()


OPENS = """
import os, sys
lock, keeper = sys.argv[1:]
for path in (lock, *(f"/proc/{keeper}/fd/{fd}" for fd in range(20))):
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC):
        try:
            os.open(path, flags)
        except OSError as error:
            print(error.strerror)
        else:
            print("opened", path)
"""


def test_nothing_supervised_gets_hold_of_the_proof(place: Place) -> None:
    script = f'read keeper; exec {sys.executable} -c "$0" {place.log}/lock $keeper'
    with place.start("sh", "-c", script, OPENS, stdin=-1, stdout=-1) as run:
        wait_until(place.is_kept)
        out, _ = run.communicate(f"{keeper_of(place)}\n", timeout=60)
    assert run.returncode == 0
    assert "Permission denied" in out
    assert "opened" not in out


ASKS = """
import os, sys
from holdfast.model.errors import HoldfastError
from holdfast.supervisor.control.remote_service import connect
log = sys.argv[1].encode()
os.close(os.open(log + b"/lock", os.O_WRONLY))  # this is no business of the keeper that serves us
for method, *arguments in (("answer", 1), ("undo", [1]), ("redo", [1]), ("discard",), ("visit",), ("begin", "mine")):
    try:
        getattr(connect(log), method)(*arguments, **({"allow": True} if method == "answer" else {}))
    except HoldfastError as error:
        print(error.code)
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_what_one_keeper_serves_approves_nothing_of_another(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other", tmp_path / "elsewhere")
    with other.start("cat", stdin=-1, stdout=-1) as kept:
        wait_until(other.is_kept)
        assert place.run(sys.executable, "-c", ASKS, str(other.log)).split() == ["inside_run"] * 6
        with other.remote() as person:
            person.visit()
        kept.communicate()
    wait_until(lambda: not other.is_kept())


@pytest.mark.parametrize("nested", [False, True], ids=["beside it", "in it"])
def test_no_run_changes_the_undo_log_in_another_workspace(place: Place, tmp_path: Path, nested: bool) -> None:
    """I14. Where it lies, some of these would move it away from its name, or put something else there."""
    tree = place.tree / "other" if nested else tmp_path / "other"
    tree.mkdir()
    other = Place(tree, tree / ".holdfast/undo")
    other.sh("echo 1 > file")
    wait_until(lambda: not other.is_kept())
    before = photograph(other.log)
    (tmp_path / "way").symlink_to(other.log)
    changes = (
        "rm -rf .holdfast/undo",
        "rm .holdfast/undo/version",
        "mv .holdfast/undo undo",
        "mv .holdfast kept",
        "mv .holdfast/undo/version .",
        "ln .holdfast/undo/lock lock",
        "echo > .holdfast/undo/lock",
        f"echo > {tmp_path}/way/lock",
        "chmod 0 .holdfast/undo",
        "touch .holdfast/undo/new",
        "mkdir -p sub/.holdfast/undo",
    )
    tries = (f"sh -c '{change}' 2> refused && echo done; cat refused; rm -rf refused sub; echo @" for change in changes)
    said = place.sh(f"cd {tree}; " + "; ".join(tries)).split("@\n")
    for change, answer in zip((*changes, ""), said, strict=True):
        assert ("Permission denied" in answer, "done" in answer) == (bool(change), False), change
    assert differences(before, photograph(other.log)) == []
    place.sh(f"mv {tree} {tree}.moved; mkdir {tree}.moved/undo {tree}.moved/.holdfast/x")  # which is its own affair
    assert [step.state for step in Place(Path(f"{tree}.moved"), Path(f"{tree}.moved/.holdfast/undo")).steps()]


def test_signals_among_what_is_supervised_are_as_ever(place: Place) -> None:
    script = (
        "sleep 100 & kill -STOP $!; kill -CONT $!; kill $!; wait $!; echo $?; timeout 0.01 sleep 100; echo $?;"
        " trap 'echo told' TERM; kill -TERM 0"
    )
    assert place.sh(script).split() == ["143", "124", "told"]
