"""What is tracked is captured as it is in the files, whatever the user's index knows of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError
from holdfast.testing.provider_contract import content

from .conftest import Beside, User

Make = Callable[..., Beside]
COMMITTED = {"a": "a\n", "b": "b\n", "d/x": "d/x\n", "d/y": "d/y\n"}


def test_nothing_changed_is_the_commit(user: User, beside: Make) -> None:
    one = beside(user)
    taken = one.take()
    assert one.texts(taken) == COMMITTED
    ref = f"refs/holdfast/sessions/s/snapshots/{taken.id}"
    assert one.shadow("rev-parse", f"{ref}^{{tree}}") == user.git("rev-parse", "HEAD^{tree}")
    assert one.shadow("rev-parse", f"{ref}^") == user.git("rev-parse", "HEAD")
    assert user.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/holdfast") == (
        f"refs/holdfast/s/{user.git('rev-parse', 'HEAD')} {user.git('rev-parse', 'HEAD')}"
    )


def test_staged_and_not_staged_alike(user: User, beside: Make) -> None:
    user.write("a", "staged\n")
    user.write("new", "staged and new\n")
    user.git("add", "a", "new")
    user.write("b", "not staged\n")
    user.write("d/x", "staged\n")
    user.git("add", "d/x")
    user.write("d/x", "staged, then changed\n")
    user.git("rm", "--quiet", "d/y")
    assert beside(user).texts() == {
        "a": "staged\n",
        "b": "not staged\n",
        "d/x": "staged, then changed\n",
        "new": "staged and new\n",
    }


def test_what_is_only_staged_is_captured(user: User, beside: Make) -> None:
    """The files are as the index has them, and not as HEAD does: no comparison of the two shows that."""
    user.write("a", "staged\n")
    user.git("add", "a")
    user.git("mv", "b", "moved")
    one = beside(user)
    assert one.texts() == {"a": "staged\n", "moved": "b\n", "d/x": "d/x\n", "d/y": "d/y\n"}


def test_what_was_removed_from_the_index_alone_is_not_tracked(user: User, beside: Make) -> None:
    user.git("rm", "--quiet", "--cached", "a")
    assert "a" not in beside(user).texts()
    assert beside(user, include_untracked=True).texts() == COMMITTED


def test_untracked_files_where_that_is_wanted_and_never_ignored_ones(user: User, beside: Make) -> None:
    user.write(".gitignore", "*.log\n")
    user.commit()
    for name in ("new", "deep/er/new", "noise.log", ".holdfast/undo/x", "-x", "sp ace\n"):
        user.write(name, "new\n")
    (user.root / "link").symlink_to("nowhere")
    user.git("config", "core.excludesFile", str(user.write("../rules", "deep/\n").resolve()))
    (user.git_dir / "info").mkdir(exist_ok=True)
    (user.git_dir / "info/exclude").write_text("sp*\n")
    (user.root / "nested").mkdir()
    User(user.root / "nested").git("init", "--quiet")
    user.write("nested/inner", "of another repository\n")
    assert beside(user).texts().keys() == {*COMMITTED, ".gitignore"}
    assert beside(user, include_untracked=True).texts().keys() == {*COMMITTED, ".gitignore", "new", "-x", "link"}


def test_an_intention_to_add_is_enough(user: User, beside: Make) -> None:
    user.write("new", "new\n")
    user.git("add", "--intent-to-add", "new")
    one = beside(user)
    assert one.texts()["new"] == "new\n"
    user.write("new", "newer\n")
    assert one.texts()["new"] == "newer\n"


def test_kinds_of_files_come_and_go(user: User, beside: Make) -> None:
    one = beside(user)
    first = one.take()
    (user.root / "a").unlink()
    (user.root / "a").symlink_to("b")
    (user.root / "b").chmod(0o755)
    (user.root / "d/x").unlink()
    (user.root / "d/y").unlink()
    (user.root / "d").rmdir()
    (user.root / "d").symlink_to("nowhere")
    second = one.take()
    assert one.holds(second) == {b"a": (True, b"-> b"), b"b": (True, b"b\n")}
    (user.root / "d").unlink()
    (user.root / "a").unlink()
    os.mkfifo(user.root / "a")
    assert one.texts() == {"b": "b\n"}
    (user.root / "a").unlink()
    user.write("a/inner", "now a directory\n")
    user.git("add", "--intent-to-add", "a/inner")
    assert one.texts() == {"b": "b\n", "a/inner": "now a directory\n"}
    assert one.texts(first) == COMMITTED


def test_a_change_within_the_tick_of_the_index_is_seen(user: User, beside: Make) -> None:
    """Same size, same time: only that the index is not newer says that the file may have changed."""
    user.git("config", "core.trustctime", "false")
    user.write("a", "1\n")
    user.git("add", "a")
    tick = (user.git_dir / "index").stat().st_mtime_ns
    user.write("a", "2\n")
    os.utime(user.root / "a", ns=(tick, tick))
    assert beside(user).texts()["a"] == "2\n"


def test_modes_count_only_where_the_repository_says_so(user: User, beside: Make) -> None:
    user.git("config", "core.fileMode", "false")
    (user.root / "a").chmod(0o755)
    one = beside(user)
    assert one.holds(one.take())[b"a"] == (False, b"a\n")
    user.git("config", "core.fileMode", "true")
    assert one.holds(one.take())[b"a"] == (True, b"a\n")


def test_line_ends_as_attributes_and_configuration_say(user: User, beside: Make) -> None:
    user.write(".gitattributes", "*.txt text eol=crlf\n*.bin -text\n")
    user.commit()
    for name in ("a.txt", "a.bin", "plain"):
        (user.root / name).write_bytes(b"one\r\ntwo\r\n")
    user.git("config", "core.autocrlf", "true")
    user.git("add", "--intent-to-add", "a.txt", "a.bin", "plain")
    (user.git_dir / "info").mkdir(exist_ok=True)
    (user.git_dir / "info/attributes").write_text("plain -text\n")
    one = beside(user)
    taken = one.take()
    stored = {
        name: one.shadow("cat-file", "-p", f"refs/holdfast/sessions/s/snapshots/{taken.id}:{name}")
        for name in ("a.txt", "a.bin", "plain")
    }
    assert {name: "\r" in text for name, text in stored.items()} == {"a.txt": False, "a.bin": True, "plain": True}
    assert one.holds(taken)[b"a.txt"] == (False, b"one\r\ntwo\r\n")


@pytest.mark.parametrize("whose", ["the user's", "the repository's"])
def test_ends_of_lines_that_would_not_come_back_are_no_error(
    user: User, beside: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whose: str
) -> None:
    """With ``core.safecrlf`` Git adds no such file; that is said to whoever commits, and a snapshot is to be had."""
    text = "[core]\n\tautocrlf = true\n\tsafecrlf = true\n"
    if whose == "the user's":
        (tmp_path / "home").mkdir()
        (tmp_path / "home/.gitconfig").write_text(text)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    else:
        with (user.git_dir / "config").open("a") as file:
            file.write(text)
    user.write("a", "only\nUnix\n")
    user.write("both", "both\r\nkinds\n")
    user.git("-c", "core.safecrlf=false", "add", "--intent-to-add", "both")
    one = beside(user)
    assert one.texts() == {name: f"{name}\r\n" for name in ("b", "d/x", "d/y")} | {
        "a": "only\r\nUnix\r\n",
        "both": "both\r\nkinds\r\n",
    }


def test_a_split_index_and_one_with_a_cache_of_untracked_files(user: User, beside: Make) -> None:
    user.git("config", "core.untrackedCache", "true")
    user.git("update-index", "--split-index", "--untracked-cache")
    user.git("status")
    user.write("a", "changed\n")
    user.write("new", "new\n")
    user.git("add", "new")
    assert list(user.git_dir.glob("sharedindex.*"))
    one = beside(user)
    assert one.texts() == {**COMMITTED, "a": "changed\n", "new": "new\n"}
    user.write("b", "changed later\n")
    assert one.texts()["b"] == "changed later\n"


def test_an_index_that_is_a_link(user: User, beside: Make, tmp_path: Path) -> None:
    """As Git takes it, which writes through the link."""
    index, elsewhere = user.git_dir / "index", tmp_path / "index elsewhere"
    index.rename(elsewhere)
    index.symlink_to(elsewhere)
    one = beside(user)
    assert one.texts() == COMMITTED
    user.write("a", "changed\n")
    user.write("new", "new\n")
    user.git("add", "new")
    assert index.is_symlink()
    assert one.texts() == {**COMMITTED, "a": "changed\n", "new": "new\n"}
    elsewhere.unlink()
    assert one.texts() == {}, "as Git has it: nothing is tracked"


@pytest.mark.parametrize("what", ["itself", "/dev/zero", "pipe", "d"])
def test_an_index_that_is_no_file_is_said_to_be_none(user: User, beside: Make, what: str) -> None:
    index, kept = user.git_dir / "index", user.git_dir / "kept"
    index.rename(kept)
    os.mkfifo(user.git_dir / "pipe")
    index.symlink_to("index" if what == "itself" else user.root / "d" if what == "d" else what)
    one = beside(user)
    with pytest.raises(RefusedError, match=r"\.git/index is no file") as refused:
        one.take()
    assert refused.value.code == "git_index"
    kept.replace(index)
    assert one.texts() == COMMITTED


@pytest.mark.parametrize(("cone", "sparse_index"), [(True, True), (True, False), (False, False)])
def test_a_sparse_checkout_stays_one(user: User, beside: Make, cone: bool, sparse_index: bool) -> None:
    user.write("e/z", "z\n")
    user.commit()
    words = ["--cone", "e"] if cone else ["--no-cone", "/a", "/e"]
    user.git("sparse-checkout", "set", *words, *(["--sparse-index"] if sparse_index else []))
    assert not (user.root / "d").exists()
    user.write("e/z", "changed\n")
    one = beside(user)
    taken = one.take()
    ref = f"refs/holdfast/sessions/s/snapshots/{taken.id}"
    assert one.shadow("cat-file", "-p", f"{ref}:d/x") == "d/x", "what is not checked out is not gone"
    assert one.shadow("cat-file", "-p", f"{ref}:e/z") == "changed"
    branch = one.provider.branch(taken, "b", "worktree")
    assert content(branch.path) == content(user.root)
    (user.root / "d").mkdir()
    user.write("d/x", "there although it should not be\n")
    again = one.take()
    ref = f"refs/holdfast/sessions/s/snapshots/{again.id}"
    assert one.shadow("cat-file", "-p", f"{ref}:d/x") == "there although it should not be"
    assert one.shadow("cat-file", "-p", f"{ref}:d/y") == "d/y"


def test_odd_names(user: User, beside: Make) -> None:
    for name in (b"n\xe9", b"new\nline", b'"quoted"', b"\\", b" ", b"-rf", b":(top)x", b"*", b"x" * 255, b"#"):
        with open(os.path.join(bytes(user.root), name), "wb") as file:
            file.write(name)
    user.git("add", "--all")
    one = beside(user)
    assert one.holds(one.take()) == content(user.root)
    for name in (b"n\xe9", b"new\nline", b"*"):
        with open(os.path.join(bytes(user.root), name), "wb") as file:
            file.write(b"changed")
    os.unlink(os.path.join(bytes(user.root), b":(top)x"))
    assert one.holds(one.take()) == content(user.root)


def test_a_workspace_inside_of_a_repository(user: User, beside: Make) -> None:
    inner = User(user.root / "d", user.git_dir)
    one = beside(inner)
    inner.write("x", "changed\n")
    branch = one.provider.branch(one.take(), "b", "worktree")
    assert content(branch.path) == content(inner.root)
    assert branch.path.endswith(b"/d")
    with open(os.path.join(branch.path, b"../a"), "w") as file:
        file.write("beside it\n")
    again = one.provider.snapshot(branch, "of the branch")
    ref = f"refs/holdfast/sessions/s/snapshots/{again.id}"
    assert one.shadow("cat-file", "-p", f"{ref}:a") == "beside it"


def test_branches_are_captured_with_what_was_committed_in_them(user: User, beside: Make) -> None:
    one = beside(user)
    branch = one.provider.branch(one.take(), "b", "worktree")
    there = User(Path(os.fsdecode(branch.path)))
    there.write("a", "committed there\n")
    there.commit()
    there.write("b", "and changed\n")
    there.write("new", "staged\n")
    there.git("add", "new")
    taken = one.provider.snapshot(branch, "t")
    assert one.texts(taken) == {**COMMITTED, "a": "committed there\n", "b": "and changed\n", "new": "staged\n"}
    assert one.texts() == COMMITTED
