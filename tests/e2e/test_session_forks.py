"""Forks of sessions by real snapshot providers: with all that they carry, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.forks.workspace_providers import providers_of
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.clock import SystemClock
from holdfast.model.errors import RefusedError, StorageError, UnsupportedError
from holdfast.model.session_types import CommandResult

from ..disks import mounted

DONE = CommandResult(exit_code=0, stdout="", stderr="")


@pytest.fixture
def disk(tmp_path):
    """A file system whose files can share blocks."""
    with mounted("xfs", tmp_path) as place:
        yield place


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
            assert not session.context.catalog.find_workspace(made.root)
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
    (tree / "deps/inner").mkdir(parents=True)
    (tree / "deps/inner/x.o").write_text("ignored")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=home, agent="me")
    with sessions.start(tree, "one") as session:
        run(session, lambda: (tree / "sub/tracked").write_text("2"))
        session.branch("then")
        run(session, lambda: (tree / "sub/tracked").write_text("3"))
        found = [one.detect() for one in providers_of(session.context, "try")]
        usable = [one for one in found if one.score and "worktree" in one.modes]
        cases = [(one.provider, ignored) for one in usable for ignored in {False, one.carries_ignored}]
        for number, (name, ignored) in enumerate(cases):
            made = session.fork(f"side{number}", provider=name, with_ignored=ignored)
            root = Path(os.fsdecode(made.root))
            early = session.fork(f"early{number}", provider=name, checkpoint="then", with_ignored=ignored)
            assert (root / "sub/tracked").read_text() == "3"
            assert (Path(os.fsdecode(early.root)) / "sub/tracked").read_text() == "2"
            for each in (root, Path(os.fsdecode(early.root))):
                assert (each / "built.o").exists() == ignored, name
                assert (each / "deps").exists() == ignored, name
                if not ignored:
                    assert sorted(os.listdir(each)) == [".gitignore", "script", "sub"], name
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
            assert [one.id for one in session.context.catalog.workspaces() if one.live] == [session.workspace.id]
            assert os.listdir(home / "workspaces") == [session.workspace.id]
            mounts = Path("/proc/self/mounts").read_text()
            assert str(tmp_path) not in mounts, name
        assert session.workspace.verify(read_data=True).ok
    sessions.close()


def git_in(tree, *words, ok=True):
    git = ["git", "-C", tree, "-c", "user.name=U", "-c", "user.email=u@example.org"]
    done = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done.stdout.strip()


def repository(tree):
    """Two branches that are in conflict."""
    lay(tree)
    git_in(tree, "init", "--quiet", "-b", "main")
    git_in(tree, "add", "--all")
    git_in(tree, "commit", "--quiet", "-m", "first")
    for branch in ("other", "main"):
        git_in(tree, "checkout", "--quiet", *(["-b"] if branch == "other" else []), branch)
        (tree / "sub/tracked").write_text(branch)
        git_in(tree, "commit", "--quiet", "--all", "-m", branch)


BUSY = {
    "rebase": ("rebase", "other"),
    "merge": ("merge", "other"),
    "bisect": ("bisect", "start", "HEAD", "HEAD~1"),
    "unmerged": ("checkout", "--quiet", "--merge", "other"),
}


@pytest.mark.parametrize("what", BUSY)
def test_the_next_best_provider_is_used_where_git_is_busy(tmp_path, caplog, what):
    tree, home = tmp_path / "tree", tmp_path / "home"
    repository(tree)
    if what == "unmerged":
        (tree / "sub/tracked").write_text("mine")
    git_in(tree, *BUSY[what], ok=False)
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=home, agent="me")
    with sessions.start(tree, "one") as session:
        began = (tree / "sub/tracked").read_text()
        with pytest.raises(RefusedError) as caught:
            session.fork("side", provider="git")
        assert caught.value.code == ("git_unmerged" if what == "unmerged" else "git_operation")
        assert [one.id for one in sessions.list()] == ["one"]
        made = session.fork("side")
        assert made.provider == "holdfast"
        (reason,) = made.passed_over
        assert reason == f"git: {caught.value.message}"
        (warned,) = caplog.records
        assert reason in warned.getMessage()
        caplog.clear()
        assert (Path(os.fsdecode(made.root)) / "sub/tracked").read_text() == began
        sessions.delete("side")
        assert left(home, tree) == []
    sessions.close()


def test_conflicts_and_a_branch_come_along_where_that_is_asked_for(tmp_path):
    tree, home = tmp_path / "tree", tmp_path / "home"
    repository(tree)
    git_in(tree, "merge", "other", ok=False)
    (tree / "untracked").write_text("untracked")
    holdfast.init(tree, home=home).close()
    (home / "config.toml").write_text('[git]\ninclude_conflicts = "yes"\n')
    sessions = Sessions(home=home, agent="me")
    with sessions.start(tree, "one") as session:
        made = session.fork("side", on_branch="side")
        assert made.provider == "git"
        fork = Path(os.fsdecode(made.root))
        for name in ("sub/tracked", "untracked"):
            assert (fork / name).read_text() == (tree / name).read_text()
        status = git_in(fork, "status", "--porcelain", "--branch").splitlines()
        assert status == ["## side", "UU sub/tracked", "?? untracked"]
        with pytest.raises(UnsupportedError):
            session.fork("copied", on_branch="side", provider="copy")
        with pytest.raises(RefusedError) as refused:
            session.fork("again", on_branch="other")
        assert refused.value.code == "branch_exists"
        sessions.delete("side")
        assert left(home, tree) == []
    sessions.close()


@pytest.mark.parametrize("what", ["index", "HEAD", "packed-refs", "objects/info/alternates", "refs/heads/pipe"])
def test_the_next_best_provider_is_used_where_git_fails(tmp_path, what):
    tree, home = tmp_path / "tree", tmp_path / "home"
    repository(tree)
    holdfast.init(tree, home=home).close()
    path = tree / ".git" / what
    path.unlink(missing_ok=True)
    if what == "index":
        path.write_bytes(b"no index")
    else:
        os.mkfifo(path)
    sessions = Sessions(home=home, agent="me")
    with sessions.start(tree, "one") as session:
        with pytest.raises((RefusedError, StorageError)) as caught:
            session.fork("side", provider="git")
        assert caught.value.code == ("git_failed" if what == "index" else "git_pipe")
        assert [one.id for one in sessions.list()] == ["one"]
        made = session.fork("side")
        assert made.provider != "git"
        (reason,) = made.passed_over
        assert caught.value.message in reason
        assert (Path(os.fsdecode(made.root)) / "sub/tracked").read_bytes() == (tree / "sub/tracked").read_bytes()
        sessions.delete("side")
        assert left(home, tree) == []
    sessions.close()


def test_a_fork_of_a_linked_work_tree_leads_to_no_repository_of_the_users(tmp_path):
    """I15."""
    main, tree, home = tmp_path / "main", tmp_path / "tree", tmp_path / "home"
    repository(main)
    git_in(main, "worktree", "add", "--quiet", "-b", "more", tree)
    holdfast.init(tree, home=home).close()
    before = {path: path.read_bytes() for path in (main / ".git").rglob("*") if path.is_file()}
    sessions = Sessions(home=home, agent="me")
    with sessions.start(tree, "one") as session:
        usable = [one.detect() for one in providers_of(session.context, "try")]
        assert {one.provider for one in usable if one.score} == {"git", "holdfast"}
        for name in ("git", "holdfast"):
            root = session.fork(name, provider=name).root
            (Path(os.fsdecode(root)) / "new").write_text("x")
            git_in(os.fsdecode(root), "add", "new", ok=False)
            git_in(os.fsdecode(root), "commit", "--quiet", "-m", "in the fork", ok=False)
            sessions.delete(name)
    now = {path: path.read_bytes() for path in (main / ".git").rglob("*") if path.is_file()}
    assert {path for path in now if "holdfast" not in str(path) and now[path] != before.get(path)} == set()
    sessions.close()


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
def test_git_finds_nothing_from_a_copy_that_has_no_repository(disk, tmp_path, beside):
    """I15: also where copies lie in the work tree of one."""
    tree, home = disk / "tree", (disk if beside else tmp_path) / "home"
    repository(tree)
    git_in(disk, "init", "--quiet")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        root = Path(os.fsdecode(session.fork("side", provider="reflink").root))
        assert root.is_relative_to(home if beside else tree)
        assert not (root / ".git").exists()
        assert git_in(root, "rev-parse", "--show-toplevel", ok=False) == ""
        whole = Path(os.fsdecode(session.fork("whole", provider="reflink", with_ignored=True).root))
        assert git_in(whole, "rev-parse", "--show-toplevel") == str(whole)
        for name in ("side", "whole"):
            sessions.delete(name)
        assert left(home, tree) == []
    sessions.close()


@pytest.fixture
def overlaid(tmp_path):
    """A session with a fork by an overlay, in which something was done, saved and not."""
    tree, home = tmp_path / "tree", tmp_path / "home"
    lay(tree)
    (tree / "built.o").write_text("ignored")
    holdfast.init(tree, home=home).close()
    with Sessions(home=home, agent="me") as sessions:
        with sessions.start(tree, "one") as session:
            found = [one.detect() for one in providers_of(session.context, "try") if one.name == "overlay"]
            if "worktree" not in found[0].modes:
                pytest.skip(f"no overlay can be mounted at a path of its own: {found[0].notes}")
            root = Path(os.fsdecode(session.fork("side", provider="overlay", with_ignored=True).root))
        with sessions.open("side") as fork:
            run(fork, lambda: (root / "sub/tracked").write_text("2"))
            run(fork, (root / "script").unlink)
            fork.checkpoint("done")
        (root / "unsaved").write_text("mine")
        (root / "built.o").write_text("built")
        yield sessions, root
        sessions.delete("side")
        assert left(home, tree) == []
        assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def restart(root):
    """What a restart of the machine does to the mount."""
    subprocess.run(["umount", str(root)], check=True)
    assert os.listdir(root) == []


def test_a_fork_by_an_overlay_goes_on_after_a_restart(overlaid, tmp_path):
    sessions, root = overlaid
    for number in range(2):
        restart(root)
        with sessions.open("side") as fork:
            assert fork.state.metrics.recoveries == 0
            assert sorted(os.listdir(root)) == [".gitignore", "built.o", "sub", "unsaved"]
            assert [(root / name).read_text() for name in ("sub/tracked", "unsaved", "built.o")] == [
                "2", "mine", "built" if not number else "built again"
            ]  # fmt: skip
            assert fork.workspace.status().clean, "what nobody had saved was, when it was opened"
            entry = run(fork, lambda number=number: (root / "more").write_text(str(number)))
            assert [change.path for change in fork.workspace.diff(entry.before, entry.after).changes] == [b"more"]
            (root / "more").unlink()
            (root / "built.o").write_text("built again")
    with holdfast.open(root, home=tmp_path / "home") as workspace:
        assert workspace.verify(read_data=True).ok


def test_nothing_is_taken_for_the_content_of_an_overlay_that_is_not_mounted(overlaid, tmp_path):
    """I5: what is not seen is not deleted."""
    sessions, root = overlaid
    restart(root)
    for path in (root, root / "sub"):
        with pytest.raises(RefusedError) as caught:
            holdfast.open(path, home=tmp_path / "home")
        assert caught.value.code == "not_mounted"
    assert sessions.info("side").root == bytes(root)
    with sessions.open("one") as session:
        session.checkout("forks/side")
        assert not Path(os.fsdecode(session.root), "script").exists()
    # (It was opened to be saved, which has mounted it.)
    assert sorted(os.listdir(root)) == [".gitignore", "built.o", "sub", "unsaved"]


def test_a_fork_of_a_fork_by_an_overlay_goes_on_after_a_restart(overlaid):
    sessions, root = overlaid
    with sessions.open("side") as fork:
        inner = Path(os.fsdecode(fork.fork("inner", provider="overlay").root))
    (inner / "mine").write_text("x")
    restart(inner)
    restart(root)
    with sessions.open("inner"):
        assert (inner / "mine").read_text() == "x"
        assert (inner / "unsaved").read_text() == "mine"
        assert os.listdir(root) == [], "it stands on a capture of that"
    restart(inner)
    sessions.delete("inner")
    assert not inner.exists()


def test_a_forks_overlay_is_mounted_to_see_whether_it_has_expired(overlaid, monkeypatch):
    sessions, root = overlaid
    sessions.delete("one")
    restart(root)
    later = SystemClock().now() + 8 * 86400 * 10**6
    monkeypatch.setattr(SystemClock, "now", lambda _: later)
    assert sessions.sweep().removed == (), "somebody has something in it that was not saved"
    assert (root / "unsaved").read_text() == "mine"


def with_submodule(base):
    """A repository with a submodule in which something is changed, and something is new."""
    tree, other = base / "tree", base / "other"
    for path in (tree, other):
        lay(path)
        git_in(path, "init", "--quiet", "-b", "main")
        git_in(path, "add", "--all")
        git_in(path, "commit", "--quiet", "-m", "first")
    git_in(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", other, "part")
    git_in(tree, "commit", "--quiet", "-m", "part")
    (tree / "part/script").write_text("changed")
    (tree / "part/new").write_text("new")
    (tree / "part/built.o").write_text("ignored")
    return tree


def content_of(*directories):
    return {path: path.read_bytes() for each in directories for path in each.rglob("*") if path.is_file()}


def test_a_submodule_in_a_fork_is_a_repository_with_what_is_changed_in_the_users(tmp_path):
    tree, home = with_submodule(tmp_path), tmp_path / "home"
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        before = content_of(tree)
        made = session.fork("side", provider="git")
        root = Path(os.fsdecode(made.root))
        assert git_in(root, "status", "--porcelain") == "M part"
        for each in (tree / "part", root / "part"):
            assert git_in(each, "status", "--porcelain") == "M script\n?? new"
        assert not (root / "part/built.o").exists()
        with sessions.open("side") as fork:
            assert fork.workspace.status().clean
            git_in(root / "part", "add", "--all")
            git_in(root / "part", "commit", "--quiet", "-m", "in the fork")
            git_in(root, "commit", "--quiet", "--all", "-m", "with it")
            assert fork.workspace.status().clean, "no checkpoint holds .git"
            inner = fork.fork("inner", provider="git")
        nested = Path(os.fsdecode(inner.root)) / "part"
        assert git_in(nested, "log", "--format=%s") == "in the fork\nfirst"
        assert git_in(nested, "status", "--porcelain") == ""
        for name in ("inner", "side"):
            sessions.delete(name)
        assert content_of(tree) == before, "I15"
        assert left(home, tree) == []
        assert not os.path.lexists(root)
    sessions.close()


def test_a_submodule_in_a_copy_of_everything_is_the_copys(tmp_path):
    tree, home = with_submodule(tmp_path), tmp_path / "home"
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        found = [one.detect() for one in providers_of(session.context, "try")]
        names = [one.provider for one in found if one.score and one.carries_ignored and "worktree" in one.modes]
        assert "copy" in names
        before = content_of(tree)
        for name in names:
            root = Path(os.fsdecode(session.fork(name, provider=name, with_ignored=True).root))
            assert (root / "part/built.o").exists()
            assert git_in(root / "part", "rev-parse", "--show-toplevel") == str(root / "part")
            git_in(root / "part", "commit", "--quiet", "--all", "-m", "in the copy")
            git_in(root / "part", "gc", "--quiet", "--prune=now")
            git_in(root, "submodule", "--quiet", "update", "--force")
            git_in(root, "submodule", "--quiet", "deinit", "--force", "part")
            assert content_of(tree) == before, name
            sessions.delete(name)
    sessions.close()


def test_a_fork_without_ignored_files_leads_nowhere_whatever_leads_out_of_the_workspace(tmp_path):
    """It has no ``.git``: so what copies all of a linked work tree can make it, and need not look for any."""
    outer, tree, home = with_submodule(tmp_path), tmp_path / "linked", tmp_path / "home"
    git_in(outer, "worktree", "add", "--quiet", tree)
    git_in(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        found = [one.detect(with_git=False) for one in providers_of(session.context, "try")]
        names = [one.provider for one in found if one.score and one.carries_ignored and "worktree" in one.modes]
        assert "copy" in names
        before = content_of(outer, tree)
        for name in names:
            made = session.fork(name, provider=name)
            root = Path(os.fsdecode(made.root))
            assert made.provider == name
            assert (root / "part/script").exists()
            assert not list(root.rglob(".git"))
            for place in (root, root / "part"):
                assert git_in(place, "rev-parse", "--git-dir", ok=False) == ""
            with pytest.raises((RefusedError, UnsupportedError), match=r"leads? to a repository of yours, by \.git"):
                session.fork("whole", provider=name, with_ignored=True)
            sessions.delete(name)
        assert content_of(outer, tree) == before, "I15"
    sessions.close()


def with_attributes(tree):
    """A repository with files of which attributes make others than are in it: the tree has those of before."""
    tree.mkdir()
    git_in(tree, "init", "--quiet", "-b", "main")
    (tree / ".gitattributes").write_text("*.bat text eol=crlf\n*.id ident\n")
    for name in ("one.bat", "two.bat"):
        (tree / name).write_text("echo 1\n")
    (tree / "v.id").write_text("$Id$\n")
    git_in(tree, "add", "--all")
    git_in(tree, "commit", "--quiet", "-m", "1")
    assert git_in(tree, "status", "--porcelain") == ""


def test_git_in_a_fork_calls_nothing_changed_that_attributes_make_another_file(tmp_path):
    tree, home = tmp_path / "tree", tmp_path / "home"
    with_attributes(tree)
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        fork = session.fork("two", provider="git")
    there = Path(os.fsdecode(fork.root))
    assert (there / "one.bat").read_bytes() == b"echo 1\n", "as it is in the tree"
    assert git_in(there, "status", "--porcelain") == ""
    git_in(there, "rebase", "--quiet", "--force-rebase", "--root")
    (there / "two.bat").write_text("echo 2\n")
    assert git_in(there, "status", "--porcelain").strip() == "M two.bat"
    sessions.delete("two")
    sessions.close()


def test_git_in_submodules_of_a_fork_calls_nothing_changed_that_attributes_make_another_file(tmp_path):
    """Nor in those that are in one of them."""
    tree, home = tmp_path / "tree", tmp_path / "home"
    for name in ("tree", "middle", "leaf"):
        with_attributes(tmp_path / name)
    allowed = ("-c", "protocol.file.allow=always")
    git_in(tmp_path / "middle", *allowed, "submodule", "--quiet", "add", tmp_path / "leaf", "leaf")
    git_in(tmp_path / "middle", "commit", "--quiet", "-m", "leaf")
    git_in(tree, *allowed, "submodule", "--quiet", "add", tmp_path / "middle", "part")
    git_in(tree, *allowed, "submodule", "--quiet", "update", "--init", "--recursive")
    git_in(tree, "commit", "--quiet", "-m", "part")
    places = [tree, tree / "part", tree / "part/leaf"]
    for place in places:
        for name in ("one.bat", "two.bat"):
            (place / name).write_bytes(b"echo 1\n")
        (place / "v.id").write_text("$Id$\n")
    holdfast.init(tree, home=home).close()
    sessions = Sessions(home=bytes(home), agent="me")
    with sessions.start(bytes(tree), "one") as session:
        before = content_of(tree)
        there = Path(os.fsdecode(session.fork("two", provider="git").root))
        assert content_of(tree) == before, "I15"
    for place in (there / each.relative_to(tree) for each in places[1:]):
        assert (place / "one.bat").read_bytes() == b"echo 1\n", "as it is in the tree"
        assert git_in(place, "status", "--porcelain") == ""
        (place / "two.bat").write_text("echo 2\n")
        assert git_in(place, "status", "--porcelain").splitlines()[-1].strip() == "M two.bat"
    sessions.delete("two")
    sessions.close()
