"""A snapshot stays whatever the user does to the repository, and what it stands on is pinned there as long (I15)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError, StorageError, UnsupportedError
from holdfast.snapshot.git.provider import git_provider
from holdfast.snapshot.port import Prepared, Provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import content

from .conftest import IDENTITY, Beside, User

Make = Callable[..., Beside]


def collect(user: User) -> None:
    """Drop all that the user's own refs, reflogs and index do not name."""
    user.git("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
    user.git("gc", "--quiet", "--prune=now")


def test_amend_expiry_and_collection_break_no_snapshot(user: User, beside: Make) -> None:
    one = beside(user)
    user.write("a", "staged, and nowhere else\n")
    user.git("add", "a")
    first = one.take()
    user.git("reset", "--quiet", "--hard")
    user.write("only", "in a stash\n")
    user.git("add", "only")
    user.git("stash", "--quiet")
    user.git("stash", "apply", "--quiet")
    second = one.take()
    user.git("stash", "drop", "--quiet")
    user.git("reset", "--quiet", "--hard")
    user.write("b", "amended\n")
    user.git("rm", "--quiet", "-r", "d")
    user.commit("--amend")
    collect(user)
    third = one.take()
    parent = one.shadow("rev-parse", f"refs/holdfast/sessions/s/snapshots/{third.id}^")
    assert parent == user.git("rev-parse", "HEAD"), "it stands on another commit than the snapshot before it"
    user.write("a", "amended again\n")
    user.commit("--amend")
    collect(user)
    assert one.texts(first)["a"] == "staged, and nowhere else\n"
    assert one.texts(first)["d/x"] == "d/x\n"
    assert one.texts(second)["only"] == "in a stash\n"
    assert one.texts(third) == {"a": "a\n", "b": "amended\n"}
    one.shadow("fsck", "--full", "--strict", "--no-dangling")
    assert len(user.git("for-each-ref", "refs/holdfast").splitlines()) == 2, "one for each commit"


def test_a_pin_goes_with_the_last_snapshot_that_needs_it(user: User, beside: Make) -> None:
    one = beside(user)
    first, second = one.take(), one.take()
    branch = one.provider.branch(second, "b", "worktree")
    user.write("a", "more\n")
    user.commit("--amend")
    user.git("pack-refs", "--all")
    assert user.git("for-each-ref", "refs/holdfast")
    for snapshot in (first, second):
        one.provider.discard(snapshot)
    assert not user.git("for-each-ref", "refs/holdfast"), "what the branch stands on is kept for it"
    collect(user)
    again = one.provider.snapshot(branch, "still whole")
    assert one.texts(again)["a"] == "a\n"
    assert one.provider.branch(again, "c", "worktree")
    assert not user.git("for-each-ref", "refs/holdfast")
    one.clean()
    assert not user.git("for-each-ref", "refs/holdfast")
    assert not one.state.joinpath("shadow-sha1.git").exists()


def test_what_was_added_and_committed_in_a_work_tree_is_kept_without_it(user: User, beside: Make) -> None:
    """It is in a repository of its own, which borrows, and goes with it."""
    user.write("staged", "staged by the user, and in no commit\n")
    user.git("add", "staged")
    one = beside(user)
    branch = one.provider.branch(one.take(), "b", "worktree")
    user.git("rm", "--quiet", "--cached", "staged")
    user.root.joinpath("staged").unlink()
    collect(user)
    root = Path(os.fsdecode(branch.path))
    git = ["git", "-C", root, "-c", "user.name=A", "-c", "user.email=a@example.org"]
    (root / "committed").write_text("committed there\n")
    (root / "added").write_text("added there\n")
    for words in (
        ["add", "committed"],
        ["commit", "--quiet", "-m", "there"],
        ["add", "added"],
        ["fsck", "--full", "--strict"],
    ):
        subprocess.run([*git, *words], check=True, capture_output=True)
    assert (root / ".git").is_dir()
    taken = one.provider.snapshot(branch, "there")
    one.provider.cleanup(branch.token)
    found = one.texts(taken)
    assert found["staged"] == "staged by the user, and in no commit\n"
    assert (found["committed"], found["added"]) == ("committed there\n", "added there\n")
    one.shadow("fsck", "--full", "--strict", "--no-dangling")


def test_work_trees_of_work_trees_hold_all_however_many(user: User, tmp_path: Path) -> None:
    """Git follows five repositories that borrow from each other, and no more."""
    root = bytes(user.root)
    made: list[tuple[Provider, Prepared]] = []
    for number in range(8):
        provider = git_provider(ProviderContext(root, bytes(tmp_path / f'a "q" \\b\n{number}'), "s"))
        made.append((provider, provider.prepare("worktree")))
        root = made[-1][1].path
        git = ["git", "-C", root, "-c", "user.name=A", "-c", "user.email=a@example.org"]
        (Path(os.fsdecode(root)) / f"new {number}").write_text(f"{number}\n")
        for words in (["add", "--all"], ["commit", "--quiet", "-m", f"{number}"], ["fsck", "--strict"], ["log"]):
            done = subprocess.run([*git, *words], check=True, capture_output=True)
            assert done.stderr == b""
    assert content(root)[b"new 0"] == (False, b"0\n")
    for provider, prepared in reversed(made):
        provider.cleanup(prepared.token)


def test_a_snapshot_costs_what_has_changed(user: User, beside: Make) -> None:
    for number in range(200):
        user.write(f"many/{number % 10}/{number}", f"{number}\n")
    user.commit()
    one = beside(user)
    one.take()
    assert objects(one) == 1, "the commit alone"
    user.write("many/3/3", "changed\n")
    one.take()
    assert objects(one) == 6, "a file, three trees and a commit"
    one.take()
    assert objects(one) == 7


def objects(one: Beside) -> int:
    """How many objects the shadow has of its own."""
    said = dict(line.split(": ") for line in one.shadow("count-objects", "-v").splitlines())
    return int(said["count"]) + int(said["in-pack"])


def test_a_kept_index_that_is_of_no_use_is_begun_anew(user: User, beside: Make) -> None:
    one = beside(user)
    one.take()
    (index,) = (path for path in (one.state / "indexes").iterdir() if not path.suffix)
    index.write_bytes(b"DIRC damaged")
    user.write("a", "changed\n")
    assert one.texts()["a"] == "changed\n"
    Path(f"{index}.lock").write_bytes(b"of one that was killed")
    user.write("a", "again\n")
    assert one.texts()["a"] == "again\n"


UNFINISHED = {
    "rebase": ["rebase", "--quiet", "other"],
    "merge": ["merge", "--quiet", "other"],
    "cherry-pick": ["cherry-pick", "other"],
    "revert": ["revert", "--no-edit", "HEAD~1"],
    "am": ["am", "patch"],
}


@pytest.mark.parametrize("what", [*UNFINISHED, "bisect"])
def test_nothing_is_captured_while_git_has_something_under_way(user: User, beside: Make, what: str) -> None:
    one = beside(user)
    taken = one.take()
    user.git("checkout", "--quiet", "-b", "other")
    user.write("a", "other\n")
    user.commit()
    (user.root / "../patch").write_text(user.git("format-patch", "--stdout", "HEAD~1") + "\n")
    user.git("checkout", "--quiet", "main")
    for text in ("mine\n", "mine again\n"):
        user.write("a", text)
        user.commit()
    if what == "bisect":
        user.git("bisect", "start")
    else:
        words = ["am", "-3", "../patch"] if what == "am" else UNFINISHED[what]
        user.git(*words, ok=False)
    before = one.provider.tokens()
    for act in (one.take, lambda: one.provider.prepare("worktree")):
        with pytest.raises(RefusedError) as refused:
            act()
        assert refused.value.code == "git_operation"
        assert what in refused.value.message
    assert one.provider.tokens() == before
    assert any(what in note for note in one.provider.detect().notes)
    assert one.texts(taken)["a"] == "a\n", "looking is no matter"
    user.git(*(["bisect", "reset"] if what == "bisect" else [what, "--abort"]))
    assert one.texts()["a"] == "mine again\n"


def test_conflicts_are_named(user: User, beside: Make) -> None:
    user.git("checkout", "--quiet", "-b", "other")
    user.write("d/x", "other\n")
    user.commit()
    user.git("checkout", "--quiet", "main")
    user.write("d/x", "mine\n")
    user.git("stash", "--quiet")
    user.git("checkout", "--quiet", "other")
    user.git("stash", "apply", "--quiet", ok=False)
    with pytest.raises(RefusedError, match="d/x") as refused:
        beside(user).take()
    assert refused.value.code == "git_unmerged"


# -- repositories of other shapes -------------------------------------------------------------------------------------


def test_a_linked_work_tree_has_an_index_and_a_head_of_its_own(user: User, beside: Make, tmp_path: Path) -> None:
    user.git("worktree", "add", "--quiet", "-b", "linked", tmp_path / "linked")
    linked = User(tmp_path / "linked", user.git_dir)
    linked.write("a", "linked\n")
    linked.git("add", "a")
    user.write("a", "main\n")
    assert beside(linked).texts()["a"] == "linked\n"
    assert beside(user).texts()["a"] == "main\n"
    linked.git("bisect", "start")
    with pytest.raises(RefusedError):
        beside(linked).take()
    assert beside(user).take()


def test_a_git_directory_that_lies_elsewhere(beside: Make, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    user = User(tmp_path / "tree", tmp_path / "else where")
    user.git("init", "--quiet", f"--separate-git-dir={user.git_dir}")
    user.write("a", "a\n")
    user.commit()
    user.write("a", "changed\n")
    assert beside(user).texts() == {"a": "changed\n"}


def test_a_bare_repository_gives_work_trees(user: User, beside: Make, tmp_path: Path) -> None:
    user.git("clone", "--quiet", "--bare", user.root, tmp_path / "bare")
    bare = User(tmp_path / "bare", tmp_path / "bare")
    one = beside(bare)
    assert one.provider.detect().modes == ("worktree",)
    prepared = one.provider.prepare("worktree")
    assert content(prepared.path) == content(user.root)
    with open(os.path.join(prepared.path, b"a"), "w") as file:
        file.write("changed\n")
    assert one.texts(one.provider.snapshot(prepared, ""))["a"] == "changed\n"


def test_a_shallow_clone_gives_work_trees_whose_history_ends_where_it_does(
    user: User, beside: Make, tmp_path: Path
) -> None:
    user.write("a", "2\n")
    user.commit()
    user.git("clone", "--quiet", "--depth=1", user.root.as_uri(), tmp_path / "clone")
    clone = User(tmp_path / "clone")
    clone.write("a", "3\n")
    work = User(Path(os.fsdecode(beside(clone).provider.prepare("worktree").path)))
    assert len(work.git("log", "--format=%h").splitlines()) == 2, "what was captured, and what was cloned"
    work.git("fsck", "--strict")


def test_forks_of_forks_of_forks(user: User, beside: Make) -> None:
    """Git itself follows no more than five object stores from one to the next."""
    made: list[Beside] = []
    for number in range(9):
        user.write("a", f"{number}\n")
        made.append(beside(user))
        user = User(Path(os.fsdecode(made[-1].provider.prepare("worktree").path)))
    assert user.git("log", "--format=%h").count("\n") == 9
    user.git("fsck", "--strict")
    for one in reversed(made):
        one.clean()


def test_a_submodule_is_the_commit_that_it_is_at(user: User, beside: Make, tmp_path: Path) -> None:
    other = User(tmp_path / "other")
    other.root.mkdir()
    other.git("init", "--quiet")
    other.write("inner", "inner\n")
    first = other.commit()
    user.git("submodule", "--quiet", "add", other.root, "sub")
    user.commit()
    inside = User(user.root / "sub")
    inside.write("inner", "changed\n")
    second = inside.commit()
    inside.write("inner", "changeD\n")  # of the same size: to compare it is to filter it
    marker = tmp_path / "ran"
    inside.git("config", "core.fsmonitor", f"touch '{marker}'; false")
    inside.git("config", "filter.evil.clean", f"touch '{marker}'; cat")
    (user.git_dir / "modules/sub/info").mkdir(exist_ok=True)
    (user.git_dir / "modules/sub/info/attributes").write_text("* filter=evil\n")
    one = beside(user)
    taken = one.take()
    ref = f"refs/holdfast/sessions/s/snapshots/{taken.id}"
    assert one.shadow("ls-tree", ref, "sub") == f"160000 commit {second}\tsub"
    assert first != second
    one.take()  # now it is at the commit that is known
    assert not marker.exists()
    inside.git("status", "--porcelain")
    assert marker.exists(), "Git itself would have run it"
    marker.unlink()
    in_the_submodule = Beside(inside.root, tmp_path / "state of it", (user.root,))
    assert in_the_submodule.texts()["inner"] == "changeD\n"
    assert not marker.exists()


def test_a_partial_clone_is_never_completed(user: User, beside: Make, tmp_path: Path) -> None:
    user.write("big/one", "one\n")
    user.write("big/two", "two\n")
    user.commit()
    user.git("config", "uploadpack.allowFilter", "true")
    url = f"file://{user.root}"
    words = ["clone", "--quiet", "--filter=blob:none", "--sparse", "-c", "protocol.file.allow=always", url]
    subprocess.run(["git", *IDENTITY, *words, tmp_path / "partial"], check=True, capture_output=True)
    partial = User(tmp_path / "partial")
    partial.git("sparse-checkout", "set", "d")
    partial.write("d/x", "changed\n")
    partial.write("new", "new\n")
    partial.git("add", "new")
    partial.write("big/three", "beside what was never fetched\n")
    partial.git("add", "--sparse", "big/three")
    partial.git("config", "remote.origin.uploadpack", f"touch '{tmp_path / 'fetched'}'; git-upload-pack")
    one = beside(partial)
    taken = one.take()
    assert one.texts(taken) == {"a": "a\n", "b": "b\n", "d/x": "changed\n", "d/y": "d/y\n", "new": "new\n"}
    assert (
        one.shadow("ls-tree", "--name-only", f"refs/holdfast/sessions/s/snapshots/{taken.id}:big") == "one\nthree\ntwo"
    )
    assert not (tmp_path / "fetched").exists()
    partial.git("cat-file", "-p", "HEAD:big/one")
    assert (tmp_path / "fetched").exists(), "Git itself would have fetched"


def test_a_directory_that_is_no_repository_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    one = Beside(tmp_path / "tree", tmp_path / "state")
    assert one.provider.detect().score == 0
    assert one.provider.detect().notes == ("the workspace is in no repository of Git",)
    with pytest.raises(UnsupportedError):
        one.provider.prepare("worktree")
    assert list(one.provider.tokens()) == []


def test_what_is_left_can_be_cleaned_up_when_the_repository_is_gone(user: User, tmp_path: Path) -> None:
    one = Beside(user.root, tmp_path / "state")
    one.provider.branch(one.take(), "b", "worktree")
    user.root.rename(tmp_path / "moved away")
    one.clean()
    assert [path for path in one.state.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_a_repository_that_has_lost_objects_is_an_error(user: User, beside: Make) -> None:
    tree = user.git("rev-parse", "HEAD^{tree}")
    path = user.git_dir / "objects" / tree[:2] / tree[2:]
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(StorageError) as failed:
        beside(user).take()
    assert failed.value.code == "git_failed"
    path.write_bytes(kept)
