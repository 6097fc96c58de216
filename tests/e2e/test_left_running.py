"""What commands of a session leave running is listed while it runs, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ..waiting import wait_until
from .test_session_lines import leave, run_line, sit_down
from .test_session_shell import Begin
from .test_session_shell import begin as begin
from .test_sessions import HOLDFAST, Agent
from .test_sessions import agent as agent

SUPERVISED = pytest.mark.parametrize("how", ["--supervised", "--unsupervised"])


def _left(agent: Agent, *words: str) -> list[dict[str, Any]]:
    return agent.run("info", *words)["processes"]


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@SUPERVISED
def test_each_is_there_with_its_command_and_its_time_until_it_ends(agent: Agent, tree: Path, how: str) -> None:
    agent.run("start", "one", how)
    agent.run("start", "two", how)
    assert _left(agent, "-s", "one") == []
    before = time.time()
    agent.run("exec", "-s", "one", "sleep 600 > /dev/null 2>&1 & echo $! > a; sh -c 'exec sleep 601' & echo $! > b")
    pids = [int((tree / name).read_text()) for name in "ab"]
    for pid, words in zip(pids, (["sleep", "600"], ["sleep", "601"]), strict=True):
        (found,) = [one for one in _left(agent, "-s", "one") if one["pid"] == pid]
        since = datetime.fromisoformat(found.pop("since")).timestamp()
        assert before - 1 < since < time.time() + 1
        assert found == {"pid": pid, "command": words, "recoverable": False}
    assert len(_left(agent, "-s", "one")) == 2
    assert _left(agent, "-s", "two") == [], "each session has its own"
    shown = agent.try_to("session", "info", "-s", "one").stdout.decode()
    assert "left running (a process that ends does not come back):" in shown
    assert f"{pids[1]:>10}  since 2" in shown
    assert b"2 processes left running" in agent.try_to("session", "list").stdout
    assert {one["pid"] for one in agent.run("delete", "one", "--dry-run")["processes"]} == set(pids)
    deleted = agent.try_to("session", "delete", "one", "--dry-run").stdout.decode()
    assert f"left running: process {pids[0]} (sleep 600), process {pids[1]} (sleep 601)." in deleted
    assert agent.run("delete", "two", "--dry-run")["processes"] == []
    _end(pids[0])
    wait_until(lambda: [one["pid"] for one in _left(agent, "-s", "one")] == pids[1:])
    _end(pids[1])
    wait_until(lambda: _left(agent, "-s", "one") == [])
    assert "left running nothing" in agent.try_to("session", "info", "-s", "one").stdout.decode()


@SUPERVISED
def test_what_belongs_to_the_command_that_runs_is_not_left_yet(agent: Agent, tree: Path, how: str) -> None:
    agent.run("start", "one", how)
    agent.run("exec", "sleep 600 > /dev/null 2>&1 & echo $! > first")
    os.mkfifo(go := tree.parent / "go")
    command = f"sleep 601 > /dev/null 2>&1 & echo $! > second.new; mv second.new second; read line < {go}"
    first = int((tree / "first").read_text())
    with subprocess.Popen([*HOLDFAST, "session", "exec", command], cwd=tree, env=agent.environment) as running:
        wait_until((tree / "second").exists)
        second = int((tree / "second").read_text())
        assert [one["pid"] for one in _left(agent)] == [first]
        assert agent.run("info")["running"]["command"] == command
        go.write_text("on\n")
        assert running.wait(60) == 0
    assert {one["pid"] for one in _left(agent)} == {first, second}
    for pid in (first, second):
        _end(pid)
    wait_until(lambda: _left(agent) == [])


def test_one_that_has_cleared_its_environment_is_found_in_its_tree(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    agent.run("exec", "env -i setsid sleep 600 > /dev/null 2>&1 & sleep 0")
    wait_until(lambda: [one["command"] for one in _left(agent)] == [["sleep", "600"]])
    _end(_left(agent)[0]["pid"])
    wait_until(lambda: _left(agent) == [])


def test_a_job_that_a_shell_leaves_is_left_once_the_shell_has_ended(begin: Begin) -> None:
    person = begin("bash")
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    terminal = sit_down(person)
    run_line(
        terminal, "setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 600' > /dev/null 2>&1 < /dev/null &"
    )
    wait_until((person.tree / "pid").exists)
    leave(terminal)
    pid = int((person.tree / "pid").read_text())
    (found,) = person.run("session", "info")["processes"]
    assert found["pid"] == pid
    _end(pid)
    wait_until(lambda: person.run("session", "info")["processes"] == [])


def test_a_fork_of_an_unsupervised_session_is_not_deleted_while_one_runs(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--unsupervised")
    agent.run("fork", "two")
    agent.run("exec", "-s", "two", f"sleep 600 > /dev/null 2>&1 & echo $! > {tree}/pid")
    assert agent.fails("delete", "two", "--dry-run") == (4, "left_running")
    _end(int((tree / "pid").read_text()))
    wait_until(lambda: agent.try_to("session", "delete", "two", "--yes").returncode == 0)
