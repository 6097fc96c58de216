"""Submodules in forks: repositories of their own, whatever kind the user's are, and none of the user's is touched."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.snapshot.git import _submodules as submodules

from .conftest import Beside, User, hashed
from .test_fork_objects import collect
from .test_forks_stay_whole import check, work_in

Make = Callable[..., Beside]


def repository(path: Path, text: str = "inner\n") -> User:
    """A repository with one file that is committed."""
    path.mkdir()
    made = User(path)
    made.git("init", "--quiet", "--initial-branch=main")
    made.write("inner", text)
    made.commit()
    return made


@pytest.fixture
def other(tmp_path: Path) -> User:
    """What submodules are clones of."""
    return repository(tmp_path / "other")


@pytest.fixture
def deep(user: User, other: User, tmp_path: Path) -> User:
    """A user whose repository has a submodule in which there is another one."""
    middle = repository(tmp_path / "middle", "middle\n")
    middle.git("submodule", "--quiet", "add", "--name", "a name", other.root, "in ner/leaf")
    middle.commit()
    user.git("submodule", "--quiet", "add", "--name", "one/two", middle.root, "sub")
    user.git("submodule", "--quiet", "update", "--init", "--recursive")
    user.commit()
    return user


def in_it(around: User, path: str) -> User:
    """The submodule of a repository."""
    return User(around.root / path)


def is_apart(fork: User, path: str) -> User:
    """The submodule of a fork, which is a repository in the fork."""
    found = in_it(fork, path)
    assert found.git("rev-parse", "--show-toplevel") == str(found.root)
    own = Path(found.git("rev-parse", "--absolute-git-dir"))
    assert own.is_relative_to(fork.root)
    return found


def test_what_git_does_in_one_is_as_in_the_users(deep: User, beside: Make) -> None:
    fork = work_in(beside(deep))
    before = hashed(deep.root)
    assert fork.git("submodule", "status", "--recursive") == deep.git("submodule", "status", "--recursive")
    assert fork.git("status", "--porcelain") == ""
    assert fork.git("config", "submodule.one/two.active") == "true"
    for path in ("sub/in ner/leaf", "sub"):
        inner = is_apart(fork, path)
        assert inner.git("status", "--porcelain") == ("" if path != "sub" else 'M "in ner/leaf"')
        inner.write("inner", "changed in the fork\n")
        assert inner.git("diff", "--name-only").splitlines()[-1] == "inner"
        inner.git("commit", "--quiet", "--all", "-m", "in the fork")
        assert inner.git("log", "--format=%s") == "in the fork\nm" + ("\nm" if path == "sub" else "")
        assert inner.git("remote") == ""
        inner.git("gc", "--quiet", "--prune=now")
        check(inner)
    assert fork.git("status", "--porcelain") == "M sub"
    fork.git("commit", "--quiet", "--all", "-m", "all of it")
    assert fork.git("status", "--porcelain") == ""
    assert fork.git("submodule", "status", "--recursive") != deep.git("submodule", "status", "--recursive")
    fork.git("submodule", "--quiet", "update", "--recursive")
    fork.git("submodule", "--quiet", "deinit", "--force", "--all")
    assert hashed(deep.root) == before, "I15"
    assert is_apart(deep, "sub/in ner/leaf").git("show", "HEAD:inner") == "inner"


def test_what_is_committed_in_one_stays_whole_when_the_users_is_collected_or_gone(deep: User, beside: Make) -> None:
    theirs = in_it(deep, "sub/in ner/leaf")
    theirs.git("checkout", "--quiet", "-b", "topic")
    theirs.write("more", "of a topic\n")
    theirs.commit()
    theirs.git("checkout", "--quiet", "main")
    fork = work_in(beside(deep))
    inner = is_apart(fork, "sub/in ner/leaf")
    assert inner.git("branch", "--list", "--format=%(refname:short)").splitlines()[1:] == ["main", "topic"]
    inner.write("more", "of a topic\n")
    inner.commit("-m", "another")
    theirs.git("branch", "-D", "topic")
    collect(theirs)
    check(inner)
    inner.git("merge", "--quiet", "-m", "merged", "topic")
    kept = deep.root / "sub/.git"
    gone = deep.git_dir / "modules"
    gone.rename(deep.root.parent / "moved away")
    kept.rename(deep.root.parent / "file")
    check(inner)
    again = work_in(Beside(fork.root, deep.root.parent / "state of the fork"))
    check(is_apart(again, "sub/in ner/leaf"))
    assert is_apart(again, "sub/in ner/leaf").git("log", "-1", "--format=%s") == "merged"
    (deep.root.parent / "moved away").rename(gone)
    (deep.root.parent / "file").rename(kept)
    Beside(fork.root, deep.root.parent / "state of the fork").clean()


def test_commits_that_the_outer_one_does_not_know_and_what_is_staged(deep: User, beside: Make) -> None:
    inner = in_it(deep, "sub")
    first = inner.git("rev-parse", "HEAD")
    inner.write("inner", "ahead\n")
    ahead = inner.commit()
    fork = work_in(beside(deep))
    assert is_apart(fork, "sub").git("rev-parse", "HEAD") == ahead
    assert fork.git("status", "--porcelain") == "", "the fork's commit has it, as it has changed files"
    deep.git("add", "sub")
    inner.git("checkout", "--quiet", first)
    fork = work_in(beside(deep))
    assert is_apart(fork, "sub").git("rev-parse", "HEAD") == first, "staged or not makes no difference"


def test_a_repository_of_the_old_kind(user: User, other: User, beside: Make) -> None:
    """Its own directory is in it, and nothing says what it is called."""
    user.git("clone", "--quiet", other.root, "old")
    user.commit()
    fork = work_in(beside(user))
    inner = is_apart(fork, "old")
    assert (inner.root / ".git").is_dir()
    inner.write("inner", "x\n")
    inner.commit()
    check(inner)
    assert fork.git("status", "--porcelain") == "M old"


def test_one_that_is_not_initialised_is_not(deep: User, beside: Make, caplog: pytest.LogCaptureFixture) -> None:
    deep.git("submodule", "--quiet", "deinit", "--force", "sub")
    fork = work_in(beside(deep))
    assert fork.git("submodule", "status") == deep.git("submodule", "status")
    assert os.listdir(fork.root / "sub") == []
    assert not caplog.records


def test_those_of_a_linked_work_tree(deep: User, beside: Make, tmp_path: Path) -> None:
    deep.git("worktree", "add", "--quiet", "--detach", tmp_path / "linked")
    linked = User(tmp_path / "linked", deep.git_dir)
    linked.git("submodule", "--quiet", "update", "--init", "--recursive")
    assert "worktrees" in (linked.root / "sub/.git").read_text()
    in_it(linked, "sub").write("inner", "of the linked one\n")
    in_it(linked, "sub").commit()
    fork = work_in(beside(linked))
    inner = is_apart(fork, "sub")
    assert inner.git("show", "HEAD:inner") == "of the linked one"
    assert is_apart(fork, "sub/in ner/leaf").git("status", "--porcelain") == ""
    assert is_apart(work_in(beside(deep)), "sub").git("show", "HEAD:inner") == "middle"


def test_a_fork_of_a_snapshot_has_them_at_its_commits(deep: User, beside: Make) -> None:
    one = beside(deep)
    inner = in_it(deep, "sub")
    taken, first = one.take(), inner.git("rev-parse", "HEAD")
    inner.write("inner", "later\n")
    inner.commit()
    branch = User(Path(os.fsdecode(one.provider.branch(taken, "b", "worktree").path)))
    assert is_apart(branch, "sub").git("rev-parse", "HEAD") == first
    view = one.provider.mount(taken)
    assert os.listdir(os.path.join(view.path, b"sub")) == [], "nobody works in a view"
    one.provider.cleanup(view.token)


def test_a_commit_that_the_users_has_no_more(deep: User, beside: Make, caplog: pytest.LogCaptureFixture) -> None:
    inner = in_it(deep, "sub")
    inner.write("inner", "ahead\n")
    ahead = inner.commit()
    git = beside(deep)
    snapshot = git.take()
    inner.git("reset", "--quiet", "--hard", "HEAD~1")
    collect(inner)
    with caplog.at_level(logging.WARNING):
        fork = User(Path(os.fsdecode(git.provider.branch(snapshot, "of-it", "worktree").path)))
    assert list((fork.root / "sub").iterdir()) == []
    assert f"the submodule sub is no repository in the fork: it does not have its commit {ahead[:12]}" in caplog.text


def test_a_shallow_one(user: User, other: User, beside: Make) -> None:
    other.write("inner", "2\n")
    other.commit()
    user.git("submodule", "--quiet", "add", "--depth=1", other.root.as_uri(), "sub")
    user.commit()
    inner = is_apart(work_in(beside(user)), "sub")
    assert inner.git("log", "--format=%s") == "m"
    check(inner)


# -- those that are left ----------------------------------------------------------------------------------------------


def left(user: User, one: Beside, caplog: pytest.LogCaptureFixture, reason: str) -> User:
    """A fork in which the submodule ``sub`` is an empty directory, for that reason."""
    before = hashed(user.root)
    fork = work_in(one)
    assert hashed(user.root) == before
    assert os.listdir(fork.root / "sub") == []
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    assert len(said) == 1
    assert said[0].startswith("the submodule sub is no repository in the fork: ")
    assert reason in said[0]
    assert fork.git("status", "--porcelain") == ""
    own = fork.root / ".git/modules"
    assert not list(own.rglob("HEAD"))
    return fork


def elsewhere(user: User, other: User, tmp_path: Path) -> None:
    """Has the user's ``.git`` of the submodule lead to a repository of somebody's."""
    user.git("submodule", "--quiet", "add", other.root, "sub")
    user.commit()
    shutil.move(user.git_dir / "modules/sub", tmp_path / "secret")
    (tmp_path / "secret/config").write_text("[core]\n\tbare = false\n")


@pytest.mark.parametrize("how", ["absolute", "relative", "link", "link in modules", "linked directory"])
def test_a_git_file_that_leads_elsewhere(
    user: User, other: User, beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    elsewhere(user, other, tmp_path)
    git_file = user.root / "sub/.git"
    if how == "absolute":
        git_file.write_text(f"gitdir: {tmp_path}/secret\n")
    elif how == "relative":
        git_file.write_text("gitdir: ../.git/modules/../../../secret\n")
    elif how == "link":
        git_file.unlink()
        git_file.symlink_to(tmp_path / "secret")
    elif how == "link in modules":
        (user.git_dir / "modules/sub").symlink_to(tmp_path / "secret")
    else:
        (user.git_dir / "modules").rmdir()
        (user.git_dir / "modules").symlink_to(tmp_path)
        (tmp_path / "sub").symlink_to("secret")
    secret = hashed(tmp_path / "secret")
    one = beside(user)
    fork = left(user, one, caplog, "its repository lies elsewhere")
    assert hashed(tmp_path / "secret") == secret
    commit = fork.git("ls-files", "--stage", "sub").split()[1]
    fork.git("cat-file", "-e", commit, ok=False)
    assert "missing" in fork.git("cat-file", "--batch-check=%(objectname)", "--batch-all-objects", ok=False) or (
        commit not in fork.git("cat-file", "--batch-check=%(objectname)", "--batch-all-objects")
    )


def test_parts_of_one_that_lead_to_what_is_hidden_or_away(
    user: User, other: User, beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    user.git("submodule", "--quiet", "add", other.root, "sub")
    user.commit()
    own = user.git_dir / "modules/sub"
    one = beside(user, hidden=(os.fsencode(tmp_path / "hidden"),))
    (tmp_path / "hidden").mkdir()
    (own / "packed-refs").unlink(missing_ok=True)
    (tmp_path / "hidden/refs").write_text("# pack-refs with: sorted \n")
    (own / "packed-refs").symlink_to(tmp_path / "hidden/refs")
    left(user, one, caplog, "is hidden from runs")
    (own / "packed-refs").unlink()
    shutil.move(own / "objects", tmp_path / "hidden/objects")
    (own / "objects").symlink_to(tmp_path / "hidden/objects")
    fork = left(user, one, caplog, "is hidden from runs")
    assert fork.git("rev-parse", "HEAD^{tree}")


def test_a_submodule_that_is_a_linked_work_tree(
    user: User, other: User, beside: Make, caplog: pytest.LogCaptureFixture
) -> None:
    other.git("worktree", "add", "--quiet", "--detach", user.root / "sub")
    user.commit()
    left(user, beside(user), caplog, "linked work tree")


def test_two_of_one_repository_and_one_within_another(
    user: User, other: User, beside: Make, caplog: pytest.LogCaptureFixture
) -> None:
    user.git("submodule", "--quiet", "add", "--name", "one", other.root, "first")
    user.git("submodule", "--quiet", "add", "--name", "three", other.root, "sub")
    user.commit()
    (user.root / "sub/.git").write_text("gitdir: ../.git/modules/one\n")
    one = beside(user)
    fork = work_in(one)
    assert "does not go together" in caplog.text
    assert is_apart(fork, "first").git("status", "--porcelain") == ""
    assert os.listdir(fork.root / "sub") == []
    caplog.clear()
    shutil.move(user.git_dir / "modules/three", user.git_dir / "modules/one/modules/three")
    (user.root / "sub/.git").write_text("gitdir: ../.git/modules/one/modules/three\n")
    fork = work_in(one)
    assert "does not go together" in caplog.text
    assert os.listdir(fork.root / "sub") == []
    caplog.clear()


def test_a_required_filter_that_is_not_run(
    user: User, other: User, beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other.write(".gitattributes", "inner filter=crypt\n")
    other.commit()
    user.git("submodule", "--quiet", "add", other.root, "sub")
    user.commit()
    inner = in_it(user, "sub")
    marker = tmp_path / "ran"
    inner.git("config", "filter.crypt.smudge", f"touch '{marker}'; cat")
    inner.git("config", "filter.crypt.required", "true")
    inner.git("config", "core.fsmonitor", f"touch '{marker}'; false")
    inner.git("config", "core.hooksPath", str(tmp_path))
    fork = left(user, beside(user), caplog, "crypt")
    assert not marker.exists()
    assert fork.git("submodule", "status").startswith("-")
    trusting = beside(user, trust_local_filters=True)
    inner = is_apart(work_in(trusting), "sub")
    assert inner.git("show", "HEAD:inner") == "inner"
    assert marker.exists()


def test_names_that_mean_something_else_are_names(user: User, other: User, beside: Make) -> None:
    user.git("submodule", "--quiet", "add", other.root, "sub")
    name = 'x"]\\n[core] fsmonitor = false; ['
    text = f'[submodule "{name}"]'.replace('x"', 'x\\"').replace("\\n", "\\\\n")
    user.write(".gitmodules", f"{text}\n\tpath = sub\n\turl = ../x\n")
    user.commit()
    fork = work_in(beside(user))
    assert fork.git("config", "--get", f"submodule.{name}.active") == "true"
    assert fork.git("config", "--local", "--get", "core.fsmonitor", ok=False) == ""
    is_apart(fork, "sub")


def test_of_very_many_some_are_left(
    user: User, other: User, beside: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        user.git("clone", "--quiet", other.root, f"sub{number}")
    user.commit()
    monkeypatch.setattr(submodules, "MOST", 2)
    monkeypatch.setattr(submodules, "_SHOWN", 1)
    fork = work_in(beside(user))
    assert [len(os.listdir(fork.root / f"sub{number}")) for number in range(4)] == [2, 2, 0, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "the submodule sub2 is no repository in the fork: no more than 2 are",
        "1 more submodules are no repositories in the fork",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    caplog.clear()
