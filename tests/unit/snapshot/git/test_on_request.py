"""What is there on request: conflicts of the index, branches that are checked out; and the logs of refs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError, UnsupportedError, UsageError
from holdfast.snapshot.full_copy import copy_provider
from holdfast.snapshot.port import Mode, Provider
from holdfast.snapshot.provider_context import ProviderContext

from .conftest import IDENTITY, Beside, User

Make = Callable[..., Beside]


def git_in(path: bytes, *words: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *words], cwd=path, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def merge_with_conflicts(user: User) -> None:
    """Leave ``user`` in the middle of a merge, with conflicts: d/x was changed twice, b changed and removed."""
    user.git("checkout", "--quiet", "-b", "other")
    user.write("d/x", "theirs\n")
    user.git("rm", "--quiet", "b")
    user.write("c", "theirs\n")
    user.commit()
    user.git("checkout", "--quiet", "main")
    user.write("d/x", "ours\n")
    user.write("b", "ours\n")
    user.commit()
    user.git("merge", "other", ok=False)


def test_a_ref_of_a_snapshot_has_a_log_that_says_when_and_why(user: User, beside: Make) -> None:
    one = beside(user)
    taken = one.take("before the upgrade")
    ref = f"refs/holdfast/sessions/s/snapshots/{taken.id}"
    (line,) = one.shadow("reflog", "show", "--date=unix", ref).splitlines()
    assert f"holdfast: snapshot s/{taken.id} before the upgrade" in line
    assert f"@{{{taken.created_at // 1_000_000}}}" in line
    branch = one.provider.branch(taken, "b", "worktree")
    assert f"holdfast: workspace s/{branch.token} b" in one.shadow("reflog", "show", "refs/holdfast/branches/s/b")
    one.provider.discard(taken)
    (shadow,) = one.state.glob("shadow-*.git")
    assert not list(shadow.glob("logs/**/" + taken.id)), "a log goes with its ref"


@pytest.mark.parametrize("untracked", [False, True])
def test_conflicts_are_captured_and_come_back(user: User, beside: Make, untracked: bool) -> None:
    merge_with_conflicts(user)
    listed = user.git("ls-files", "--unmerged")
    assert {line.split()[2] for line in listed.splitlines()} == {"1", "2", "3"}
    one = beside(user, include_conflicts=True, include_untracked=untracked)
    assert not one.provider.detect().not_now
    taken, again = one.take(), one.take()
    markers = (user.root / "d/x").read_text()
    assert "<<<<<<<" in markers
    for snapshot in (taken, again):
        assert one.texts(snapshot) == {"a": "a\n", "b": "ours\n", "c": "theirs\n", "d/x": markers, "d/y": "d/y\n"}
    forks = [one.provider.branch(again, "b", "worktree"), one.provider.prepare("worktree")]
    # What the conflicts are made of is nowhere but in the user's index.
    user.git("merge", "--abort")
    user.git("branch", "--quiet", "-D", "other")
    user.git("reflog", "expire", "--expire=now", "--all")
    user.git("gc", "--quiet", "--prune=now")
    for fork in forks:
        one.provider.settle(fork.token)
        assert git_in(fork.path, "ls-files", "--unmerged") == listed
        assert git_in(fork.path, "show", ":3:d/x") == "theirs"
        assert Path(os.fsdecode(fork.path), "d/x").read_text() == markers
        git_in(fork.path, "checkout", "--theirs", "d/x")
        git_in(fork.path, "add", "--all")
        git_in(fork.path, "commit", "--quiet", "-m", "resolved")
        assert git_in(fork.path, "show", "HEAD:d/x") == "theirs"
        git_in(fork.path, "fsck", "--strict")
    assert one.provider.snapshot(forks[0], "resolved")
    # What is resolved is no conflict any more.
    user.write("d/x", "resolved\n")
    assert one.texts()["d/x"] == "resolved\n"


def test_a_file_that_is_a_directory_now_is_not_in_the_way(user: User, beside: Make) -> None:
    merge_with_conflicts(user)
    (user.root / "b").unlink()
    user.write("b/new", "new\n")
    taken = beside(user, include_conflicts=True, include_untracked=True)
    assert taken.texts()["b/new"] == "new\n"


def test_a_branch_is_checked_out_by_its_name(user: User, beside: Make) -> None:
    user.git("checkout", "--quiet", "-b", "other")
    user.commit()
    user.git("checkout", "--quiet", "main")
    user.write("a", "changed\n")
    one = beside(user)
    new = one.provider.prepare("worktree", on_branch="try/it")
    assert git_in(new.path, "symbolic-ref", "HEAD") == "refs/heads/try/it"
    assert git_in(new.path, "status", "--porcelain") == ""
    assert (
        git_in(new.path, "rev-parse", "HEAD^") == user.git("rev-parse", "HEAD") == git_in(new.path, "rev-parse", "main")
    )
    same = one.provider.prepare("worktree", base=one.take(), on_branch="main")
    assert git_in(same.path, "branch", "--show-current") == "main"
    assert git_in(same.path, "log", "--format=%s", "main^") == "m"
    assert git_in(same.path, "show", "main:a") == "changed"
    with pytest.raises(RefusedError) as refused:
        one.provider.prepare("worktree", on_branch="other")
    assert refused.value.code == "branch_exists"
    for name in ("-x", "a..b", "HEAD", "a b", "x.lock", "nul\0"):
        with pytest.raises(UsageError):
            one.provider.prepare("worktree", on_branch=name)
    assert user.git("branch", "--list", "--format=%(refname:short)").split() == ["main", "other"]


def test_what_has_no_branches_checks_none_out(user: User, beside: Make, tmp_path: Path) -> None:
    copies = copy_provider(ProviderContext(bytes(user.root), bytes(tmp_path / "copies"), "s"))
    cases: tuple[tuple[Provider, Mode], ...] = ((beside(user).provider, "in-place"), (copies, "worktree"))
    for provider, mode in cases:
        with pytest.raises(UnsupportedError):
            provider.prepare(mode, on_branch="b")
        assert not provider.tokens()
