"""Forks of sessions by real snapshot providers: with all that they carry, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.providers import providers_of
from holdfast.engine.sessions.sessions import Sessions
from holdfast.model.errors import UnsupportedError
from holdfast.model.session import CommandResult

DONE = CommandResult(exit_code=0, stdout="", stderr="")


@pytest.fixture
def disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a loop device")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    try:
        subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs mkfs.xfs")
    done = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a loop device here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def lay(tree):
    (tree / "sub").mkdir(parents=True)
    (tree / ".gitignore").write_text("*.o\n")
    (tree / "sub/tracked").write_text("1")
    (tree / "script").write_text("#!/bin/sh\n")
    (tree / "script").chmod(0o755)


def run(session, work):
    entry = session.begin("work", level="changes")
    work()
    return session.end(entry, DONE, cwd=".", env=session.environment(), duration_ms=1)


def left(home, root):
    """What a provider has left in the home or in the tree."""
    found = [path for path in home.rglob("*") if path.is_file() and "/snapshots/" in str(path)]
    return [str(path) for path in found if path.suffix not in (".lock", ".new")] + [
        str(path) for path in (root / ".holdfast/snapshots",) if path.exists()
    ]


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
def test_a_fork_by_reflinks_carries_ignored_files(disk, tmp_path, beside):
    tree, home = disk / "tree", (disk if beside else tmp_path) / "home"
    lay(tree)
    (tree / "built.o").write_text("ignored")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        run(session, lambda: (tree / "sub/tracked").write_text("2"))
        session.branch("then")
        run(session, lambda: (tree / "sub/tracked").write_text("3"))
        made = session.fork("side", provider="reflink", with_ignored=True)
        assert made.provider == "reflink"
        root = Path(os.fsdecode(made.root))
        assert (root / "built.o").read_text() == "ignored"
        with sessions.open("side") as fork:
            assert fork.state.metrics.recoveries == 0
            assert fork.workspace.status().clean
            entry = run(fork, lambda: (root / "sub/tracked").write_text("mine"))
            assert [change.path for change in fork.workspace.diff(entry.before, entry.after).changes] == [
                b"sub/tracked"
            ]
            inner = fork.fork("inner", provider="reflink", with_ignored=True)
            assert (Path(os.fsdecode(inner.root)) / "sub/tracked").read_text() == "mine"
            sessions.open("inner").delete()
            fork.checkpoint("done")
        early = session.fork("early", provider="reflink", checkpoint="then", with_ignored=True)
        assert (Path(os.fsdecode(early.root)) / "sub/tracked").read_text() == "2"
        assert (Path(os.fsdecode(early.root)) / "built.o").exists()
        assert (tree / "sub/tracked").read_text() == "3"
        assert session.workspace.status().clean, "forks are no part of the workspace"
        session.checkout("forks/side")
        assert (tree / "sub/tracked").read_text() == "mine"
        for name in ("side", "early"):
            sessions.open(name).delete()
            assert not session.workspace._context.catalog.find_workspace(made.root)
        assert left(home, tree) == []
        assert session.workspace.verify(read_data=True).ok
    sessions.close()


def test_a_fork_of_a_git_work_tree_holds_what_git_does_not_know_as_well(tmp_path):
    tree, home = tmp_path / "tree", tmp_path / "home"
    lay(tree)
    git = ["git", "-C", tree, "-c", "user.name=U", "-c", "user.email=u@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    (tree / "untracked").write_text("new")
    (tree / "built.o").write_text("ignored")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        run(session, lambda: (tree / "sub/tracked").write_text("2"))
        with pytest.raises(UnsupportedError):
            session.fork("side", provider="git", with_ignored=True)
        made = session.fork("side", provider="git")
        root = Path(os.fsdecode(made.root))
        assert (made.provider, made.mode) == ("git", "worktree")
        assert (root / "untracked").read_text() == "new"
        assert (root / "sub/tracked").read_text() == "2"
        assert os.access(root / "script", os.X_OK)
        assert not (root / "built.o").exists()
        with sessions.open("side") as fork:
            assert fork.workspace.status().clean
            run(fork, lambda: (root / "untracked").write_text("mine"))
            fork.delete()
        assert left(home, tree) == []
        refs = subprocess.run([*git, "for-each-ref", "refs/holdfast"], check=True, capture_output=True).stdout
        assert refs == b""
        assert (tree / "untracked").read_text() == "new"
    sessions.close()


def test_every_provider_that_can_be_used_makes_forks_that_leave_nothing(tmp_path):
    tree, home = tmp_path / "tree", tmp_path / "home"
    lay(tree)
    (tree / "built.o").write_text("ignored")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=home, agent="me")
    with sessions.start(tree, "one") as session:
        run(session, lambda: (tree / "sub/tracked").write_text("2"))
        session.branch("then")
        run(session, lambda: (tree / "sub/tracked").write_text("3"))
        found = [one.detect() for one in providers_of(session.workspace._context, "try")]
        usable = [one for one in found if one.score and "worktree" in one.modes]
        names = [*((one.provider, one.carries_ignored) for one in usable), ("plain", False)]
        for number, (name, ignored) in enumerate(names):
            made = session.fork(f"side{number}", provider=name)
            root = Path(os.fsdecode(made.root))
            early = session.fork(f"early{number}", provider=name, checkpoint="then")
            assert (root / "sub/tracked").read_text() == "3"
            assert (Path(os.fsdecode(early.root)) / "sub/tracked").read_text() == "2"
            assert (root / "built.o").exists() == ignored, name
            with sessions.open(made.id) as fork:
                assert fork.workspace.status().clean, name
                assert fork.state.metrics.recoveries == 0
                run(fork, lambda root=root, name=name: (root / "mine").write_text(name))
                fork.checkpoint("done")
            session.checkout(f"forks/{made.id}")
            assert (tree / "mine").read_text() == name
            session.checkout("then")
            run(session, lambda: (tree / "sub/tracked").write_text("3"))
            for fork in (made, early):
                sessions.delete(fork.id)
                assert not os.path.lexists(fork.root), name
            assert left(home, tree) == [], name
            assert [one.id for one in session.workspace._context.catalog.workspaces() if one.live] == [
                session.workspace.id
            ]
            assert os.listdir(home / "workspaces") == [session.workspace.id]
            mounts = Path("/proc/self/mounts").read_text()
            assert str(tmp_path) not in mounts, name
        assert session.workspace.verify(read_data=True).ok
    sessions.close()
