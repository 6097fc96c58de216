"""Holdfast is killed while a command of a session runs: the next command of the session ends that, and only that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from ..waiting import has_ended, wait_until
from .test_session_shell import Terminal
from .test_sessions import HOLDFAST, Agent
from .test_sessions import agent as agent

COMMAND = "(echo $BASHPID > inner; read line < {go}) & echo $$ > pid; read line < {go}"


class Scene:
    """A session with a place of its own for temporary files, and a pipe that nobody ever writes to."""

    def __init__(self, agent: Agent, place: Path) -> None:
        self.agent = agent
        self.temporary = place / "temporary"
        self.temporary.mkdir()
        self.go = place / "go"
        os.mkfifo(self.go)
        agent.environment["TMPDIR"] = str(self.temporary)
        agent.run("start", "one")
        self.sessions = next(Path(agent.environment["HOLDFAST_HOME"]).glob("sessions/*"))

    def number(self, name: str) -> int:
        path = self.agent.tree / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} to be written")
        return int(path.read_text())

    def killed(self, before: str = "") -> list[int]:
        """Kill Holdfast while a command runs; the command, and what that has started."""
        command = before + COMMAND.format(go=self.go)
        holder = subprocess.Popen(
            [*HOLDFAST, "session", "exec", command],
            cwd=self.agent.tree,
            env=self.agent.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        found = [self.number("pid"), self.number("inner")]
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        return found


@pytest.fixture
def scene(agent: Agent, tmp_path: Path) -> Generator[Scene]:
    place = tmp_path / "scene"
    place.mkdir()
    found = Scene(agent, place)
    yield found
    for name in ("pid", "inner", "daemon"):
        path = agent.tree / name
        if path.exists() and not has_ended(int(path.read_text())):
            os.kill(int(path.read_text()), signal.SIGKILL)


def test_i3_the_next_command_ends_what_was_left_running_and_removes_what_was_left_lying(scene: Scene) -> None:
    left = scene.killed("trap '' TERM HUP; ")
    assert not any(map(has_ended, left)), "nobody has ended it"
    assert len(os.listdir(scene.temporary)) == 1
    scene.agent.run("info")
    assert not any(map(has_ended, left)), "who looks ends nothing"
    done = scene.agent.try_to("session", "exec", "echo on")
    assert (done.returncode, done.stdout) == (0, b"on\n")
    assert b"2 processes that a killed command of the session one left running were ended" in done.stderr
    assert all(map(has_ended, left))
    assert os.listdir(scene.temporary) == []
    assert {path.suffix for path in scene.sessions.iterdir()} == {".lock"}
    assert [one["exit_code"] for one in scene.agent.run("history")["commands"]] == [0, None]


def test_deleting_the_session_ends_it_too(scene: Scene) -> None:
    left = scene.killed()
    scene.agent.run("delete", "one")
    assert all(map(has_ended, left))
    assert os.listdir(scene.temporary) == []
    assert os.listdir(scene.sessions) == []


@pytest.mark.parametrize("noted", [True, False])
def test_what_outlived_its_shell_is_known_by_the_session(scene: Scene, noted: bool) -> None:
    """Also where Holdfast was killed before it had noted which process the shell is."""
    shell, inner = scene.killed()
    if not noted:
        note = scene.sessions / "one.running"
        note.write_text(json.dumps({"folder": json.loads(note.read_text())["folder"]}))
    os.kill(shell, signal.SIGKILL)
    wait_until(lambda: has_ended(shell), "the shell to end")
    scene.agent.run("checkpoint")
    assert has_ended(inner)


def test_what_is_not_surely_the_sessions_is_left_alone(scene: Scene) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        folder = scene.temporary / "holdfast-0123456789abcdef"
        other = scene.temporary / "not-ours"
        other.mkdir()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        here = f"{boot}/{os.readlink('/proc/self/ns/pid')}"
        began = Path(f"/proc/{innocent.pid}/stat").read_text().rpartition(")")[2].split()[19]
        cases: list[object] = [
            {"folder": str(folder), "process": f"{here} {innocent.pid} {int(began) - 1}"},  # another had its number
            {"folder": str(folder), "process": f"elsewhere/1 {innocent.pid} {began}"},
            {"folder": str(other)},
            {"folder": "\\q", "process": "a b"},
            {"folder": str(other), "process": f"{here} what"},
            ["what"],
        ]
        for said in cases:
            folder.mkdir(exist_ok=True)
            (scene.sessions / "one.running").write_text(json.dumps(said))
            done = scene.agent.try_to("session", "checkpoint")
            assert done.returncode == 0, done.stderr
            assert innocent.poll() is None, said
            assert other.exists()
            assert folder.exists() == (said not in cases[:2])
            assert not (scene.sessions / "one.running").exists()
    finally:
        innocent.kill()
        innocent.communicate()


def test_what_an_ended_command_has_left_running_goes_on(scene: Scene) -> None:
    scene.agent.run("exec", f"(echo $BASHPID > daemon; read line < {scene.go}) &")
    left = scene.number("daemon")
    scene.killed()
    scene.agent.run("exec", "true")
    assert not has_ended(left)


def test_a_shell_at_a_terminal_is_ended_with_what_runs_in_it(scene: Scene) -> None:
    agent = scene.agent
    environment = {**agent.environment, "TERM": "dumb", "PS1": "@@ ", "HOME": str(scene.temporary.parent)}
    (scene.temporary.parent / ".bashrc").write_text("PS1='@@ '\n")
    terminal = Terminal([*HOLDFAST, "-q", "session", "shell"], environment, agent.tree)
    terminal.expect("@@ ")
    terminal.type(f"(trap '' HUP; echo $BASHPID > inner; read line < {scene.go})\r")
    inner = scene.number("inner")
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    agent.run("exec", "true")
    assert has_ended(inner)
    assert os.listdir(scene.temporary) == []
