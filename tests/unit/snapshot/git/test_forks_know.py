"""A fork knows the branches and tags that were there when it was made, and what the user has configured for it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import StorageError
from holdfast.snapshot.git import _command as command

from .conftest import Beside, User
from .test_fork_objects import collect
from .test_forks_stay_whole import check, work_in

Make = Callable[..., Beside]


def test_branches_and_tags_can_be_compared_and_merged(user: User, beside: Make) -> None:
    user.git("tag", "light")
    user.git("tag", "-a", "-m", "annotated", "v1.0")
    user.git("tag", "-a", "-m", "of a tag", "outer", "v1.0")
    user.git("notes", "add", "-m", "a note")
    user.git("checkout", "--quiet", "-b", "topic/one")
    user.write("topic", "of the topic\n")
    topic = user.commit()
    user.git("update-ref", "refs/remotes/origin/main", topic)
    user.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    user.write("topic", "stashed\n")
    user.git("stash", "--quiet")
    user.git("checkout", "--quiet", "main")
    user.git("replace", "HEAD", topic)
    one = beside(user)
    fork = work_in(one)
    mine, theirs = (
        {
            line.split()[1]: line.split()[0]
            for line in each.git("show-ref", "--dereference").splitlines()
            if not line.split()[1].startswith(("refs/holdfast", "refs/stash", "refs/replace"))
        }
        for each in (fork, user)
    )
    assert mine == theirs
    assert len(mine) == 10
    assert fork.git("rev-parse", "--symbolic-full-name", "HEAD") == "HEAD", "no branch of the user's is checked out"
    assert fork.git("diff", "--name-only", "v1.0", "topic/one") == "topic"
    assert fork.git("log", "-1", "--format=%H", "origin") == topic
    assert "a note" in fork.git("log", "light", "-1")
    user.git("replace", "-d", "HEAD")
    user.git("stash", "clear")
    for name in ("refs/heads/topic/one", "refs/remotes/origin/main", "refs/tags/v1.0", "refs/tags/outer"):
        user.git("update-ref", "--no-deref", "-d", name)
    user.git("symbolic-ref", "--delete", "refs/remotes/origin/HEAD")
    collect(user)
    fork.git("merge", "--quiet", "-m", "merged", "topic/one")
    assert (fork.root / "topic").read_text() == "of the topic\n"
    fork.git("branch", "mine")
    fork.git("branch", "-D", "main")
    check(fork)
    assert "mine" not in user.git("branch", "--list")
    assert user.git("branch", "--list", "main")
    inner = work_in(beside(fork))
    assert "mine" in inner.git("branch", "--list")
    check(inner)


def test_thousands_of_tags_are_one_file(user: User, beside: Make) -> None:
    head = user.git("rev-parse", "HEAD")
    lines = "".join(f"{head} refs/tags/t{number:05}\n" for number in range(20_000))
    (user.git_dir / "packed-refs").write_text("# pack-refs with: sorted \n" + lines)
    fork = work_in(beside(user))
    assert len(fork.git("tag").splitlines()) == 20_000
    assert not [path for path in (fork.root / ".git/refs").rglob("*") if path.is_file()]
    assert (fork.root / ".git/packed-refs").read_text().startswith("# pack-refs with: peeled fully-peeled sorted")


def test_a_branch_that_comes_to_be_while_the_fork_is_made_is_left_out(user: User, beside: Make) -> None:
    """Some of its objects may have been collected meanwhile, had it been deleted."""
    one = beside(user)
    theirs = one.provider._technique  # type: ignore[attr-defined]
    take = theirs._kept
    looks = [True, False]  # (the objects are kept before anything is captured, and again with the refs)

    def then(entry: object) -> object:
        kept = take(entry)
        real = kept.take

        def taken(*words: object, **options: object) -> None:
            real(*words, **options)
            if looks.pop():
                user.git("branch", "late")
                user.git("branch", "-D", "gone")

        kept.take = taken
        return kept

    theirs._kept = then
    user.git("branch", "gone")
    user.git("branch", "stays")
    try:
        fork = work_in(one)
    finally:
        theirs._kept = take
    assert fork.git("branch", "--list", "--format=%(refname:short)").splitlines()[1:] == ["main", "stays"]


def test_a_lock_that_was_left_keeps_a_pin_for_longer_and_no_fork_from_being_made(
    user: User, beside: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(command._OVERRIDDEN, "core.packedRefsTimeout", "0")
    one = beside(user)
    lock = user.git_dir / "packed-refs.lock"
    lock.write_bytes(b"")
    fork = one.provider.prepare("worktree")
    check(User(Path(os.fsdecode(fork.path))))
    assert "stays referenced until the fork is removed" in caplog.text
    assert user.git("for-each-ref", "refs/holdfast")
    with pytest.raises(StorageError, match=r"packed-refs\.lock"):
        one.provider.cleanup(fork.token)
    lock.unlink()
    one.provider.cleanup(fork.token)
    assert not user.git("for-each-ref", "refs/holdfast")


def test_what_the_user_has_configured_for_the_place_of_the_repository(user: User, beside: Make, tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Me\n\temail = me@home\n[include]\n\tpath = always\n"
        f'[includeIf "gitdir:{user.root}/"]\n\tpath = at work\n'
        f'[includeIf "gitdir:{tmp_path}/elsewhere/"]\n\tpath = elsewhere\n'
    )
    (home / "always").write_text("[alias]\n\tone = status\n")
    (home / "elsewhere").write_text("[user]\n\temail = me@elsewhere\n")
    (home / "at work").write_text(
        '[user]\n\temail = me@work\n[filter "up"]\n\tclean = tr a-z A-Z\n[include]\n\tpath = in\n'
    )
    (home / "in").write_text("[alias]\n\ttwo = status\n")
    user.write(".gitattributes", "a filter=up\n")
    user.write("a", "some text\n")
    one = beside(user)
    fork = work_in(one)
    assert fork.git("config", "user.email") == "u@example.org", "as the test says on each command line"
    listed = fork.git("config", "--includes", "--get-regexp", r"^(user\.email|alias\.)").splitlines()
    assert listed == [
        "user.email me@home",
        "alias.one status",
        "user.email me@work",
        "alias.two status",
        "user.email u@example.org",
    ]
    assert fork.git("show", "HEAD:a") == "SOME TEXT", "as git add in the user's repository"
    assert (fork.root / ".git/config").read_text().count("path = ") == 1
    user.git("config", "user.email", "me@repository")
    assert "user.email me@repository" in work_in(one).git("config", "--get-regexp", r"^user\.email")


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", subprocess.getoutput("git version"))[:2])) < (2, 36),
    reason="needs Git 2.36, which knows hasconfig",
)
def test_what_the_user_has_configured_for_where_the_repository_comes_from(user: User, beside: Make) -> None:
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text(
        "[user]\n\temail = me@home\n"
        '[includeIf "hasconfig:remote.*.url:https://work.example/**"]\n\tpath = at work\n'
        '[includeIf "hasconfig:remote.*.url:https://elsewhere.example/**"]\n\tpath = elsewhere\n'
    )
    (home / "at work").write_text('[user]\n\temail = me@work\n[filter "up"]\n\tclean = tr a-z A-Z\n')
    (home / "elsewhere").write_text("[user]\n\temail = me@elsewhere\n")
    (home / "theirs").write_text("[user]\n\temail = me@theirs\n")
    user.git("remote", "add", "origin", "https://work.example/some/where.git")
    user.git("config", "include.path", str(home / "theirs"))
    user.write(".gitattributes", "a filter=up\n")
    user.write("a", "some text\n")
    fork = work_in(beside(user))
    assert fork.git("config", "--includes", "--get-all", "user.email").splitlines()[:-1] == ["me@home", "me@work"]
    assert fork.git("show", "HEAD:a") == "SOME TEXT"
    assert "example" not in (fork.root / ".git/config").read_text(), "it has no remotes"
