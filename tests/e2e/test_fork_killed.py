"""Holdfast is killed while a provider makes a fork: nothing that it has started goes on, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from ..waiting import has_ended, wait_until
from .test_sessions import HOLDFAST, Agent
from .test_sessions import agent as agent


def test_git_and_its_filters_end_with_holdfast(agent: Agent, tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / ".gitconfig").write_text(
        '[user]\nname = n\nemail = e@example.org\n[filter "slow"]\n'
        f'clean = cat\nsmudge = "echo $$ > {user}/new; mv {user}/new {user}/pid; exec sleep 1000"\n'
    )
    agent.environment["HOME"] = str(user)
    (agent.tree / ".gitattributes").write_text("file filter=slow\n")
    (agent.tree / "file").write_text("content\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=agent.tree, env=agent.environment, check=True)
    agent.run("start", "one")
    holder = subprocess.Popen(
        [*HOLDFAST, "session", "fork", "side", "--provider", "git"],
        cwd=agent.tree,
        env=agent.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until((user / "pid").exists, "the filter to run")
    # (Killed right after it has started Git, it would not have said yet what is to end with it.)
    wait_until(lambda: "poll" in Path(f"/proc/{holder.pid}/wchan").read_text(), "the wait for Git")
    runs = int((user / "pid").read_text())
    git = os.getpgid(runs)
    assert git != runs
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    for process in (runs, git):
        wait_until(lambda process=process: has_ended(process), "its end")
    (user / ".gitconfig").write_text("")
    agent.run("exec", "true")
    left = list(Path(agent.environment["HOLDFAST_HOME"]).glob("workspaces/*/snapshots/git/*/*"))
    assert left == []
    agent.run("fork", "side", "--provider", "git")
    agent.run("delete", "--yes", "side")
