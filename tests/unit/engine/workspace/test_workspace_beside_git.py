"""Beside the user's Git: it stays as it is, byte for byte, and nothing that a repository brings along is executed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.workspace.workspace import Workspace

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(at: Path, *words: str) -> str:
    options = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return subprocess.run(
        ["git", *options, *words], cwd=at, check=True, capture_output=True, text=True, env=environ
    ).stdout


def fingerprint(*roots: Path) -> dict[str, tuple[object, ...]]:
    """Every file, link and directory below ``roots``: content, permissions, times, inode."""
    found: dict[str, tuple[object, ...]] = {}
    for root in roots:
        for path in [root, *root.rglob("*")]:
            about = path.lstat()
            if path.is_symlink():
                content: object = os.readlink(path)
            else:
                content = path.read_bytes() if path.is_file() else None
            found[str(path)] = (content, about.st_mode, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    return found


def use_everything(workspace: Workspace, tree: Path, place: Path) -> None:
    """Every use-case that looks at the tree or changes it."""
    workspace.checkpoint("one")
    (tree / "tracked").write_text("edited\n")
    (tree / "untracked").write_text("u\n")
    workspace.status()
    workspace.estimate()
    b"".join(workspace.patch(workspace.diff("one")))
    workspace.checkpoint("two")
    workspace.restore("one", dry_run=True)
    workspace.restore("one")
    workspace.undo()
    workspace.undo()
    workspace.redo()
    workspace.restore("one", [b"tracked"])
    workspace.checkpoint("three", full_hash=True)
    workspace.fork("one", place / "forked")
    workspace.export(["three"], place / "bundle")
    workspace.forget([], policy=None)
    workspace.gc(grace=0)
    workspace.verify(read_data=True)
    shutil.rmtree(tree / "sub")
    workspace.undo()


@pytest.fixture(name="repository")
def _repository(tree: Path) -> Path:
    git(tree, "init", "-q")
    (tree / "tracked").write_text("t\n")
    (tree / "sub").mkdir()
    (tree / "sub/f").write_text("f\n")
    (tree / ".gitignore").write_text("/built/\n")
    (tree / "built").mkdir()
    (tree / "built/out").write_text("o")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "first")
    git(tree, "tag", "v1")
    git(tree, "branch", "other")
    (tree / "tracked").write_text("stashed\n")
    git(tree, "stash")
    (tree / "staged").write_text("s\n")
    git(tree, "add", "staged")
    return tree


def test_every_file_of_a_git_directory_stays_as_it_is(
    repository: Path, open_workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    # I15
    git(repository, "worktree", "add", "-q", str(tmp_path / "linked"), "other")
    hook = repository / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch hook-ran\n")
    hook.chmod(0o755)
    before = fingerprint(repository / ".git")
    staged = git(repository, "ls-files", "--stage")
    workspace = open_workspace(repository)
    use_everything(workspace, repository, tmp_path)
    assert fingerprint(repository / ".git") == before
    assert git(repository, "ls-files", "--stage") == staged
    assert not (tmp_path / "forked/.git").exists()
    linked = fingerprint(tmp_path / "linked/.git")
    with holdfast.init(tmp_path / "linked", home=workspace.home) as other:
        other.checkpoint("linked")
        (tmp_path / "linked/tracked").unlink()
        other.undo()
        assert b".git" not in {change.path for change in other.show("linked").changes}
    assert fingerprint(tmp_path / "linked/.git") == linked
    assert fingerprint(repository / ".git") == before


@pytest.mark.parametrize("layout", ["separate", "bare with work trees"])
def test_a_git_directory_of_another_name_in_the_workspace_stays_as_it_is(
    tree: Path, open_workspace: Callable[..., Workspace], tmp_path: Path, layout: str
) -> None:
    # I14, I15: a file `.git` says where it is.
    at, place = tree, tree / "own"
    if layout == "separate":
        git(tree, "init", "-q", f"--separate-git-dir={place}")
    else:
        git(tmp_path, "init", "-q", "--bare", str(place))
        (tree / ".git").write_text("gitdir: ./own\n")
        first = git(tree, "commit-tree", "-m", "none", git(tree, "mktree", "--missing").strip())
        git(tree, "update-ref", "refs/heads/main", first.strip())
        git(tree, "worktree", "add", "-q", "work", "main")
        at = tree / "work"
    (at / "tracked").write_text("1\n")
    git(at, "add", "tracked")
    git(at, "commit", "-qm", "one")
    workspace = open_workspace()
    workspace.checkpoint("one")
    held = {change.path for change in workspace.show("one").changes}
    assert held == {os.fsencode((at / "tracked").relative_to(tree))}
    (at / "tracked").write_text("2\n")
    git(at, "commit", "-qam", "two")
    before = fingerprint(place)
    log = git(at, "log", "--oneline")
    assert b"own/" in workspace.ignored()
    workspace.undo()
    assert (at / "tracked").read_text() == "1\n"
    assert fingerprint(place) == before
    assert git(at, "log", "--oneline") == log
    planted = tmp_path / "theirs/own/hooks/post-commit"
    planted.parent.mkdir(parents=True)
    planted.write_text("#!/bin/sh\ntouch hook-ran\n")
    with holdfast.init(tmp_path / "theirs", home=tmp_path / "their home") as theirs:
        theirs.checkpoint("forged")
        theirs.export(["forged"], tmp_path / "bundle")
    workspace.import_(tmp_path / "bundle")
    result = workspace.restore("forged")
    assert [path for path, _ in result.skipped] == [b"own/hooks/post-commit"]
    assert fingerprint(place) == before


def test_nested_repositories_are_ordinary_files_without_their_git(
    repository: Path, open_workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    # I14, I15
    inner = repository / "vendor/inner"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    (inner / "code").write_text("c\n")
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "inner")
    before = fingerprint(repository / ".git", inner / ".git")
    workspace = open_workspace(repository)
    use_everything(workspace, repository, tmp_path)
    held = {change.path for change in workspace.show("one").changes}
    assert b"vendor/inner/code" in held
    assert not any(b".git" in path.split(b"/") for path in held)
    (inner / "code").unlink()
    workspace.undo()
    assert (inner / "code").read_text() == "c\n"
    workspace.checkpoint()
    (inner / "code").write_text("changed\n")
    shutil.rmtree(repository / "sub")
    workspace.restore("one")
    assert fingerprint(repository / ".git", inner / ".git") == before


def test_a_git_directory_that_was_replaced_is_not_touched_by_going_back(
    repository: Path, open_workspace: Callable[..., Workspace]
) -> None:
    # I15: `.git` is in no checkpoint, so no restore brings it or takes it away.
    workspace = open_workspace(repository)
    workspace.checkpoint("with")
    shutil.rmtree(repository / ".git")
    (repository / "tracked").write_text("2\n")
    workspace.restore("with")
    assert not (repository / ".git").exists()
    git(repository, "init", "-q")
    before = fingerprint(repository / ".git")
    workspace.undo()
    assert (repository / "tracked").read_text() == "2\n"
    assert fingerprint(repository / ".git") == before


def test_a_hostile_repository_executes_nothing_and_leads_nowhere(
    repository: Path, open_workspace: Callable[..., Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Case 15; I7, I15
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    for name in ("post-checkout", "pre-commit", "post-index-change", "fsmonitor-watchman", "reference-transaction"):
        hook = repository / ".git/hooks" / name
        hook.write_bytes(program.read_bytes())
        hook.chmod(0o755)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("not ours\n")
    with open(repository / ".git/config", "a") as config:
        config.write(
            f'[core]\n\tfsmonitor = "{program}"\n\thooksPath = .git/hooks\n\texcludesFile = "{outside}/victim"\n'
            f'\tpager = "{program}"\n\tsshCommand = "{program}"\n\tworktree = "{outside}"\n'
            f'[filter "evil"]\n\tsmudge = "{program}"\n\tclean = "{program}"\n'
            f'[diff "evil"]\n\tcommand = "{program}"\n\ttextconv = "{program}"\n'
            f'[include]\n\tpath = "{outside}/victim"\n'
        )
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / ".gitmodules").symlink_to(outside / "victim")
    (repository / "sub/.gitignore").symlink_to(outside / "victim")
    (repository / "README").write_text("1")
    (repository / "readme").write_text("2")
    (repository / "nested/.git").mkdir(parents=True)
    (repository / "nested/.git/config").write_text(f"[core]\n\tfsmonitor = {program}\n")
    (repository / "nested/f").write_text("f")
    (repository / "module").mkdir()
    (repository / "module/.git").write_text(f"gitdir: {outside}\n")
    (repository / "module/f").write_text("f")
    for name, value in {
        "GIT_DIR": str(repository / ".git"),
        "GIT_WORK_TREE": str(outside),
        "GIT_INDEX_FILE": str(outside / "index"),
        "GIT_EXTERNAL_DIFF": str(program),
        "GIT_SSH_COMMAND": str(program),
    }.items():
        monkeypatch.setenv(name, value)
    protected = (repository / ".git", repository / "nested/.git", outside)
    before = fingerprint(*protected)
    workspace = open_workspace(repository)
    use_everything(workspace, repository, tmp_path)
    held = {change.path for change in workspace.show("one").changes}
    assert held >= {b"README", b"readme", b"nested/f", b"module/f", b".gitmodules", b"sub/.gitignore"}
    assert b"".join(workspace.cat("one", b".gitmodules")) == os.fsencode(outside / "victim")
    (repository / ".gitmodules").unlink()
    (repository / ".gitmodules").write_text("a file now")
    workspace.restore("one")
    assert os.readlink(repository / ".gitmodules") == str(outside / "victim")
    (repository / "module/.git").unlink()
    (repository / "module/f").unlink()
    (repository / "module").rmdir()
    (repository / "module").symlink_to(outside)
    workspace.restore("one")
    assert (repository / "module/f").read_text() == "f"
    assert fingerprint(*protected) == before
    assert not ran.exists()


def test_git_still_works_on_what_came_back(repository: Path, open_workspace: Callable[..., Workspace]) -> None:
    workspace = open_workspace(repository)
    workspace.checkpoint("one")
    shutil.rmtree(repository / "sub")
    (repository / "tracked").write_text("2\n")
    workspace.restore("one")
    assert git(repository, "status", "--porcelain") == "A  staged\n"
    assert git(repository, "fsck", "--strict") == ""
