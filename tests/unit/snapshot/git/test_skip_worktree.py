"""What the user's index says not to look at is looked at where it is there, and is not gone where it is not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import StorageError
from holdfast.snapshot.git._command import Git
from holdfast.snapshot.git._skip_worktree import clear_flags, is_unchanged

from .conftest import Beside, User

Make = Callable[..., Beside]
COMMITTED = {"a": "a\n", "b": "b\n", "d/x": "d/x\n", "d/y": "d/y\n"}
MARKS = ["--skip-worktree", "--assume-unchanged"]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("before", [True, False])
def test_a_change_of_what_is_marked_is_captured(user: User, beside: Make, mark: str, before: bool) -> None:
    """Made before the first snapshot, or after it."""
    odd = b"new\nline \xe9"
    with open(os.path.join(bytes(user.root), odd), "wb") as file:
        file.write(b"odd\n")
    user.commit()
    user.git("update-index", mark, "a", "d/x", os.fsdecode(odd))
    one = beside(user)
    if not before:
        one.take()
    user.write("a", "changed\n")
    (user.root / "d/x").chmod(0o755)
    with open(os.path.join(bytes(user.root), odd), "wb") as file:
        file.write(b"changed too\n")
    found = one.holds(one.take())
    assert (found[b"a"], found[b"d/x"], found[odd]) == (
        (False, b"changed\n"),
        (True, b"d/x\n"),
        (False, b"changed too\n"),
    )
    user.write("a", "changed again\n")
    assert one.texts()["a"] == "changed again\n"
    user.write("a", "a\n")
    assert one.texts()["a"] == "a\n"


def test_a_file_with_both_marks(user: User, beside: Make) -> None:
    user.git("update-index", "--assume-unchanged", "a")
    user.git("update-index", "--skip-worktree", "a")
    one = beside(user)
    one.take()
    user.write("a", "changed\n")
    assert one.texts()["a"] == "changed\n"


def test_what_is_skipped_and_not_there_is_as_the_index_has_it(user: User, beside: Make) -> None:
    """Also where it was there, and changed, when the snapshot before was taken."""
    user.git("update-index", "--skip-worktree", "a", "d/x", "d/y")
    for path in ("a", "d/x", "d/y"):
        (user.root / path).unlink()
    (user.root / "d").rmdir()
    one = beside(user)
    assert one.texts() == COMMITTED
    user.write("a", "there\n")
    user.write("d/x", "there as well\n")
    assert one.texts() == {**COMMITTED, "a": "there\n", "d/x": "there as well\n"}
    (user.root / "a").unlink()
    assert one.texts() == {**COMMITTED, "d/x": "there as well\n"}
    (user.root / "d/x").unlink()
    (user.root / "d").rmdir()
    (user.root / "d").symlink_to("b")
    assert one.texts() == COMMITTED
    (user.root / "d").unlink()
    user.write("d", "a file in place of a directory\n")
    assert one.texts() == COMMITTED


@pytest.mark.parametrize("before", [True, False])
def test_what_is_assumed_unchanged_and_is_gone_is_gone(user: User, beside: Make, before: bool) -> None:
    user.git("update-index", "--assume-unchanged", "a", "d/x", "d/y")
    one = beside(user)
    if not before:
        one.take()
    for path in ("a", "d/x", "d/y"):
        (user.root / path).unlink()
    assert one.texts() == {"b": "b\n"}


def test_marks_that_the_users_own_configuration_sets(
    user: User, beside: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With ``core.ignoreStat`` Git would have all that it takes in assumed to be unchanged."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[core]\n\tignoreStat = true\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    one = beside(user)
    user.write("a", "changed\n")
    assert one.texts()["a"] == "changed\n"
    (user.root / "a").unlink()
    assert "a" not in one.texts()


@pytest.mark.parametrize("sparse_index", [True, False])
def test_what_comes_and_goes_outside_of_a_sparse_checkout(user: User, beside: Make, sparse_index: bool) -> None:
    user.write("e/z", "z\n")
    user.commit()
    user.git("sparse-checkout", "set", "--cone", "e", *(["--sparse-index"] if sparse_index else []))
    one = beside(user)
    stored = _stored(one, one.take().id)
    user.write("d/x", "there\n")
    assert _stored(one, one.take().id) == {**stored, "d/x": "there\n"}
    (user.root / "d/x").unlink()
    assert _stored(one, one.take().id) == stored
    (user.root / "d").rmdir()
    (user.root / "e/z").unlink()
    assert _stored(one, one.take().id) == {path: text for path, text in stored.items() if path != "e/z"}


def test_what_is_there_no_more_is_looked_up_by_directories(user: User, tmp_path: Path) -> None:
    """However many files a sparse checkout leaves out: what is looked at every time is where it ends."""
    for number in range(40):
        user.write(f"left/out/{number % 4}/{number}", "x\n")
    user.commit()
    user.git("sparse-checkout", "set", "--no-cone", "/a", "/d")
    copy = tmp_path / "index"
    copy.write_bytes((user.git_dir / "index").read_bytes())
    git = Git(bytes(user.root), git_dir=bytes(user.git_dir), work_tree=bytes(user.root), index=bytes(copy))
    found = clear_flags(git, bytes(user.root))
    assert found == b"-b\0-left\0"
    assert is_unchanged(bytes(user.root), found)
    user.write("left/else", "x\n")
    assert not is_unchanged(bytes(user.root), found)


def test_nothing_is_marked_and_nothing_is_written(user: User, tmp_path: Path) -> None:
    copy = tmp_path / "index"
    copy.write_bytes((user.git_dir / "index").read_bytes())
    copy.chmod(0o400)
    before = copy.stat()
    git = Git(bytes(user.root), git_dir=bytes(user.git_dir), work_tree=bytes(user.root), index=bytes(copy))
    assert clear_flags(git, bytes(user.root)) == b""
    assert copy.stat().st_ino == before.st_ino


@pytest.mark.parametrize("size", [40, 72, 100, -1])
def test_an_index_that_is_damaged_is_said_to_be(user: User, beside: Make, size: int) -> None:
    """Git reads what is cut off as zeros, and lists files that are not there."""
    kept = (user.git_dir / "index").read_bytes()
    (user.git_dir / "index").write_bytes(kept[:size])
    one = beside(user)
    with pytest.raises(StorageError, match="index of the repository is damaged"):
        one.take()
    (user.git_dir / "index").write_bytes(kept)
    assert one.texts() == COMMITTED


def test_an_index_without_a_digest(user: User, beside: Make) -> None:
    """As newer versions of Git write it with ``index.skipHash``."""
    kept = (user.git_dir / "index").read_bytes()
    (user.git_dir / "index").write_bytes(kept[:-20] + bytes(20))
    assert beside(user).texts() == COMMITTED


def _stored(one: Beside, snapshot: str) -> dict[str, str]:
    """What is in the commit of a snapshot, checked out or not."""
    ref = f"refs/holdfast/sessions/s/snapshots/{snapshot}"
    (path,) = one.state.glob("shadow-*.git")
    git = ["git", "--git-dir", path, "cat-file", "-p"]
    return {
        name: subprocess.run([*git, f"{ref}:{name}"], check=True, capture_output=True, text=True).stdout
        for name in one.shadow("ls-tree", "-r", "--name-only", ref).splitlines()
    }
