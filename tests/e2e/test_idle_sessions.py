"""``watch`` saves sessions that are idle, though nobody opens them, and is in nobody's way with it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..waiting import has_ended, wait_until
from .conftest import INSTALLED
from .test_sessions import Agent
from .test_sessions import agent as agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUICK = {"HOLDFAST_SESSION_IDLE": "1s", "HOLDFAST_SESSION_MIN_INTERVAL": "0", "HOLDFAST_WATCH_DEBOUNCE": "50ms"}


class Watcher:
    """``holdfast watch``, as somebody else runs it."""

    def __init__(self, agent: Agent, log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*INSTALLED, "watch"],
                cwd=agent.tree,
                env={**agent.environment, "HOLDFAST_AGENT": "somebody else"},
                stdout=subprocess.PIPE,
                stderr=file,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"Watching ")

    def logged(self, what: str) -> int:
        """In how many lines of its log that is."""
        return sum(what in line for line in self.log.read_text().splitlines())

    def saved(self, session: str) -> int:
        """How often it has saved that."""
        return self.logged(f"saved the session {session}, which was idle")

    def end(self) -> bytes:
        """End it as a system does; the rest of what it says."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.log.read_text()
        assert "Traceback" not in self.log.read_text()
        return out


@pytest.fixture
def begin(agent: Agent, tmp_path: Path) -> Iterator[Callable[[], Watcher]]:
    agent.environment |= QUICK
    begun: list[Watcher] = []

    def begin_it() -> Watcher:
        begun.append(Watcher(agent, tmp_path / f"watch-{len(begun)}.log"))
        return begun[-1]

    yield begin_it
    for watcher in begun:
        if watcher.process.poll() is None:
            watcher.end()


class Hook:
    """A command before each save that waits to be let go on."""

    def __init__(self, agent: Agent, place: Path) -> None:
        self._began, self._go = place / "began", place / "go"
        os.mkfifo(self._go)
        self._config = Path(agent.environment["HOLDFAST_HOME"]) / "config.toml"
        script = f"cat > {shlex.quote(str(place / 'about'))}; echo $$ > {self._began}; read line < {self._go}"
        self._config.write_text(f"[hooks]\nbefore_checkpoint = ['sh', '-c', \"{script}\"]\n")

    def wait(self) -> int:
        """Wait until it runs; its process."""
        wait_until(lambda: self._began.exists() and self._began.read_text().endswith("\n"), "the hook")
        return int(self._began.read_text())

    def let_go(self) -> None:
        self._go.write_text("on\n")

    def remove(self) -> None:
        self._config.unlink()


def newest(agent: Agent, name: str) -> tuple[str, int]:
    """The newest state that a session was saved in, and how many entries its journal has since."""
    info: dict[str, Any] = agent.run("info", "-s", name)
    return info["checkpoint"], info["journal"]


def test_idle_sessions_of_the_workspace_and_of_its_forks_are_saved(agent: Agent, begin: Callable[[], Watcher]) -> None:
    agent.run("start", "one")
    agent.run("fork", "side", "-s", "one")
    agent.run("fork", "deep", "-s", "side")
    names = ("one", "side", "deep")
    before = {}
    for name in names:
        agent.run("exec", "-s", name, f"echo {name} > {name}; export A={name}")
        before[name], entries = newest(agent, name)
        assert entries
    watcher = begin()
    wait_until(lambda: all(watcher.saved(name) for name in names), "all to be saved")
    for name in names:
        info = agent.run("info", "-s", name)
        assert (info["checkpoint"] != before[name], info["journal"]) == (True, 0)
        assert (info["env"]["A"], info["owner"], info["recoveries"]) == (name, "me", 0)
        assert agent.try_to("cat", f"{info['tree']}:{name}").stdout == f"{name}\n".encode()
    assert agent.run("exec", "-s", "one", "echo $A")["stdout"] == "one\n"
    wait_until(lambda: watcher.saved("one") == 2, "what was done since")
    threads = os.listdir(f"/proc/{watcher.process.pid}/task")
    assert len(threads) == 1, "with more it would walk large trees without a second process"
    assert watcher.end() == b"Stopped; everything is saved.\n"
    assert newest(agent, "one")[1] == 0


def test_a_command_that_comes_meanwhile_waits_and_is_not_refused(
    agent: Agent, begin: Callable[[], Watcher], tmp_path: Path
) -> None:
    agent.run("start", "one")
    agent.run("exec", "export A=1")
    hook = Hook(agent, tmp_path)
    begin()
    hook.wait()
    assert agent.run("info")["busy"]
    assert agent.try_to("checkpoint").returncode == 0, "the watcher does its own work"
    told = tmp_path / "told"
    with told.open("wb") as file:
        command = subprocess.Popen(
            [*INSTALLED, "session", "exec", "echo $A"],
            cwd=agent.tree,
            env=agent.environment,
            stdout=subprocess.PIPE,
            stderr=file,
        )
    wait_until(lambda: "waiting at most" in told.read_text(), "it to wait")
    hook.remove()
    hook.let_go()
    assert command.communicate(timeout=60)[0] == b"1\n"
    assert command.returncode == 0, told.read_text()


def test_a_watcher_that_is_told_to_stop_does_not_wait_for_a_save_and_loses_nothing(
    agent: Agent, begin: Callable[[], Watcher], tmp_path: Path
) -> None:
    agent.run("start", "one")
    agent.run("exec", "export A=1")
    before = newest(agent, "one")
    hook = Hook(agent, tmp_path)
    watcher = begin()
    running = hook.wait()
    (agent.tree / "new").write_text("x")
    assert watcher.end() == b"Stopped; everything is saved.\n"
    wait_until(lambda: has_ended(running), "the end of the hook")
    hook.remove()
    assert newest(agent, "one") == before
    watcher = begin()
    wait_until(lambda: watcher.saved("one"), "it to be saved after all")
    assert agent.run("info")["env"]["A"] == "1"


def test_one_that_cannot_be_saved_is_told_once_and_holds_up_no_other(
    agent: Agent, begin: Callable[[], Watcher]
) -> None:
    agent.run("start", "one")
    side = Path(agent.run("fork", "side", "-s", "one", "--provider", "copy")["root"])
    agent.run("exec", "-s", "side", "echo 1 > f")
    moved = side.rename(side.with_name("moved"))
    watcher = begin()
    wait_until(lambda: watcher.logged("the session side is idle, and cannot be saved"), "that to be told")
    agent.run("exec", "-s", "one", "echo 1 > f")
    wait_until(lambda: watcher.saved("one"), "the other one to be saved")
    assert not side.exists()
    moved.rename(side)
    agent.run("exec", "-s", "side", "echo 2 > f")
    wait_until(lambda: watcher.saved("side"), "it to be saved, now that it can be")
    watcher.end()
    assert watcher.logged("cannot be saved") == 1
