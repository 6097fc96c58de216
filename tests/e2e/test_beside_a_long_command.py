"""What a long command of a session holds up for others, and what goes on beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..waiting import wait_until
from .test_sessions import HOLDFAST, Agent
from .test_sessions import agent as agent


@pytest.fixture(name="go")
def _go(agent: Agent, tree: Path) -> Iterator[Path]:
    """A command runs in the session ``one``, which ``me`` shares with ``other``, until this is written to."""
    (tree / "f").write_text("1\n")
    agent.run("start", "one")
    agent.run("share", "other")
    agent.environment["HOLDFAST_AGENT"] = "other"
    # (What waits is refused at once here, so that nothing that has to go on can have waited for the command.)
    agent.environment["HOLDFAST_LOCK_TIMEOUT"] = "0s"
    os.mkfifo(go := tree.parent / "go")
    command = f"export A=a; echo theirs > long; read line < {go}; echo over >> long"
    words = [*HOLDFAST, "session", "exec", "-s", "one", command]
    environment = agent.environment | {"HOLDFAST_AGENT": "me"}
    with subprocess.Popen(words, cwd=tree, env=environment) as running:
        wait_until((tree / "long").exists)
        yield go
        assert running.poll() is None, "it has run all the time"
        go.write_text("on\n")
        assert running.wait(60) == 0
    assert (tree / "long").read_text() == "theirs\nover\n"
    assert agent.run("exec", "-s", "one", "echo $A")["stdout"] == "a\n"


def _done(agent: Agent, *words: str) -> str:
    done = agent.try_to(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_who_looks_saves_and_forks_waits_for_no_command(agent: Agent, tree: Path, go: Path) -> None:
    assert agent.run("info", "-s", "one")["running"]["exit_code"] is None
    assert agent.run("list")["sessions"][0]["busy"]
    assert agent.run("history", "-s", "one")["commands"][0]["exit_code"] is None
    assert "A long" in _done(agent, "status")
    assert "+theirs" in _done(agent, "diff")
    assert "read line" in _done(agent, "steps")
    _done(agent, "checkpoint", "-m", "meanwhile")
    assert "meanwhile" in _done(agent, "log")
    assert agent.run("checkpoint", "-s", "one")["hash"]
    assert agent.run("branch", "-s", "one", "here")["name"].endswith("/here")
    fork = Path(agent.run("fork", "-s", "one", "apart")["root"])
    assert agent.run("exec", "-s", "apart", "cat long")["stdout"] == "theirs\n"
    assert (fork / "long").read_text() == "theirs\n"


def test_who_works_in_a_session_of_their_own_there_waits_for_no_command(agent: Agent, tree: Path, go: Path) -> None:
    agent.run("start", "two")
    assert agent.run("exec", "-s", "two", "cat f; echo 2 > f")["stdout"] == "1\n"
    _done(agent, "run", "-q", "--", "sh", "-c", "echo 3 > g")
    _done(agent, "undo")
    assert not (tree / "g").exists()
    assert (tree / "f").read_text() == "2\n"
    _done(agent, "undo")
    assert (tree / "f").read_text() == "1\n"
    _done(agent, "redo")
    _done(agent, "restore", "@", "f")
    assert (tree / "f").read_text() == "2\n"
    assert (tree / "long").read_text() == "theirs\n"


def test_what_begins_where_the_command_ends_waits_for_it(agent: Agent, go: Path) -> None:
    agent.run("branch", "-s", "one", "here")
    agent.run("fork", "-s", "one", "apart")
    for words in (
        ("exec", "-s", "one", "true"),
        ("checkout", "-s", "one", "here"),
        ("merge", "-s", "one", "apart"),
    ):
        assert agent.fails(*words) == (4, "session_busy"), words
    refused = agent.try_to("session", "exec", "-s", "one", "true").stderr.decode()
    assert "begin your own in the same directory (`holdfast session start`)" in refused
