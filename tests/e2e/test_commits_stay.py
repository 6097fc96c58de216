"""What brings files back by checkpoints leaves commits of Git where they are, and says so in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .test_sessions import Agent, agent

__all__ = ["agent"]
AS_ME = "git -c user.name=U -c user.email=u@example.org"


def git(root: Path, *words: str) -> str:
    done = subprocess.run([*AS_ME.split(), *words], cwd=root, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture(name="head")
def _head(agent: Agent, tree: Path) -> str:
    """A repository with a commit, and a session in it."""
    git(tree, "init", "--quiet", "--initial-branch=main")
    (tree / "file").write_text("1\n")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", "first")
    agent.run("start", "one", "--unsupervised")  # (undo of a step takes commits back)
    return git(tree, "rev-parse", "HEAD")


def said(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.decode().splitlines() if "stays at" in line]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", ["undo", "restore", "checkout"])
def test_a_commit_that_stays_is_named(agent: Agent, tree: Path, head: str, way: str, packed: bool) -> None:
    agent.run("branch", "before")
    assert agent.try_to("checkpoint", "-m", "saved").returncode == 0
    agent.try_to("session", "exec", f"echo 2 > file && {AS_ME} commit -qam second")
    second = git(tree, "rev-parse", "HEAD")
    if packed:
        git(tree, "pack-refs", "--all")
    words = {"undo": ["undo"], "restore": ["restore", "saved"], "checkout": ["session", "checkout", "before"]}[way]
    (line,) = said(agent.try_to(*words))
    assert f"main stays at {second[:12]} (it was {head[:12]} when that state was saved)" in line
    assert f"`git reset {head[:12]}`" in line
    assert (tree / "file").read_text() == "1\n"
    assert git(tree, "rev-parse", "main") == second, "I15"
    git(tree, "reset", "--quiet", head[:12])
    assert git(tree, "status", "--porcelain") == ""
    if way == "undo":
        (line,) = said(agent.try_to("redo"))
        assert f"main stays at {head[:12]} (it was {second[:12]} " in line


def test_what_was_done_after_the_commit_is_taken_back_without_a_word(agent: Agent, tree: Path, head: str) -> None:
    agent.try_to("session", "exec", "echo 2 > file")
    agent.try_to("session", "exec", f"{AS_ME} commit -qam second")
    agent.try_to("session", "exec", "echo 3 > file")
    assert said(agent.try_to("undo")) == [], "that state is the one that was committed"
    assert (tree / "file").read_text() == "2\n"
    (line,) = said(agent.try_to("undo"))
    assert f"(it was {head[:12]} " in line


def test_another_branch_and_none_are_named(agent: Agent, tree: Path, head: str) -> None:
    agent.try_to("session", "exec", f"git checkout -qb topic; echo 2 > file; {AS_ME} commit -qam second")
    second = git(tree, "rev-parse", "HEAD")
    (line,) = said(agent.try_to("undo"))
    assert f"the branch topic stays at {second[:12]} (it was the branch main at {head[:12]} " in line
    assert "git reset" not in line
    agent.try_to("session", "exec", f"git checkout -q --detach; echo 3 > file; {AS_ME} commit -qam third")
    (line,) = said(agent.try_to("undo"))
    assert f"HEAD, which is on no branch, stays at {git(tree, 'rev-parse', 'HEAD')[:12]}" in line


def test_a_run_takes_its_commits_back_and_says_nothing(agent: Agent, tree: Path, head: str) -> None:
    done = agent.try_to("run", "--", "sh", "-c", f"echo 2 > file; {AS_ME} commit -qam second")
    assert done.returncode == 0, done.stderr
    assert git(tree, "rev-parse", "HEAD") != head
    assert said(agent.try_to("undo", "--run")) == []
    assert git(tree, "rev-parse", "HEAD") == head


@pytest.mark.parametrize("damage", ["", "HFGH 1 0", "none of ours\n"])
def test_a_list_that_is_damaged_keeps_nobody_from_anything(
    agent: Agent, tree: Path, home: Path, head: str, damage: str
) -> None:
    assert len(head) == 40
    agent.try_to("session", "exec", f"echo 2 > file && {AS_ME} commit -qam second")
    (heads,) = home.glob("workspaces/*/heads")
    heads.write_text(damage)
    assert said(agent.try_to("undo")) == []
    assert (tree / "file").read_text() == "1\n"
    agent.try_to("session", "exec", f"echo 3 > file && {AS_ME} commit -qam third")
    assert len(said(agent.try_to("undo"))) == 1
