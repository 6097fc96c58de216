"""What is swapped for a link between a look at it and its reading shows nothing of what is hidden from runs (I7)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import RefusedError, StorageError
from holdfast.snapshot.git import _capture as capture
from holdfast.snapshot.git._read_access import ReadAccess
from holdfast.snapshot.git._user_repository import UserRepository
from holdfast.snapshot.git.fork_objects import ForkObjects
from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.provider_context import ProviderContext

from .conftest import Beside, User

Make = Callable[..., Beside]


def refused(user: User, state: Path, hidden: Path) -> RefusedError:
    """What a fork is refused by while a directory is hidden; nothing is left of the fork."""
    provider = git_provider(ProviderContext(bytes(user.root), bytes(state), "s"), GitOptions(hidden=(bytes(hidden),)))
    with pytest.raises(RefusedError) as caught:
        provider.prepare("worktree")
    assert list(provider.tokens()) == []
    return caught.value


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A directory with a file that no fork may show."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/key").write_text("sesame\n")
    return tmp_path / "hidden"


def test_no_line_of_what_is_hidden_is_in_an_error(user: User, hidden: Path, tmp_path: Path) -> None:
    """Git names each directory that is borrowed from and is not there, as soon as anything fails."""
    (user.git_dir / "objects/info").mkdir(exist_ok=True)
    (user.git_dir / "objects/info/alternates").symlink_to(hidden / "key")
    (user.git_dir / "HEAD").write_text("1" * 40 + "\n")
    error = refused(user, tmp_path / "state", hidden)
    assert error.code == "git_hidden"
    assert "sesame" not in error.message


@pytest.fixture
def swap(user: User, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """Has a file of the repository be a link, from the moment on in which it was looked at."""

    def make(name: str, target: Path) -> None:
        looked = ReadAccess.refuse_hidden
        looks = [True, False]  # (before anything is meant, and again before it is made)

        def then(reach: ReadAccess, source: UserRepository) -> list[bytes]:
            found = looked(reach, source)
            if looks.pop():
                path = user.git_dir / name
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)
                path.symlink_to(target)
            return found

        monkeypatch.setattr(ReadAccess, "refuse_hidden", then)

    return make


@pytest.mark.parametrize(
    "name",
    [
        "config", "index", "info/attributes", "info/exclude", "info/sparse-checkout", "objects/info/alternates",
        "shallow",
    ],
)  # fmt: skip
def test_what_is_swapped_for_a_link_after_the_look_at_it_is_not_read(
    user: User, hidden: Path, tmp_path: Path, swap: Callable[[str, Path], None], name: str
) -> None:
    """Whatever file it leads to would be in the fork, byte for byte."""
    swap(name, hidden / "key")
    assert refused(user, tmp_path / "state", hidden).code == "git_hidden"


def test_what_git_quotes_of_what_was_swapped_is_in_no_error(
    user: User, hidden: Path, beside: Make, swap: Callable[[str, Path], None]
) -> None:
    one = beside(user, hidden=(bytes(hidden),))
    swap("packed-refs", hidden / "key")
    with pytest.raises(StorageError) as failed:
        one.provider.prepare("worktree")
    assert failed.value.code == "git_failed"
    assert "sesame" not in str(failed.value)
    (user.git_dir / "packed-refs").unlink()


def test_refs_of_another_repository_that_were_swapped_in_are_not_in_a_fork(
    user: User, hidden: Path, beside: Make, swap: Callable[[str, Path], None]
) -> None:
    """Who knows the name of an object is closer to having it."""
    (hidden / "refs").write_text(f"# pack-refs with: sorted \n{'12' * 20} refs/heads/theirs\n")
    one = beside(user, hidden=(bytes(hidden),))
    swap("packed-refs", hidden / "refs")
    fork = User(Path(os.fsdecode(one.provider.prepare("worktree").path)))
    assert fork.git("for-each-ref", "--format=%(refname)") == "refs/heads/main"
    (user.git_dir / "packed-refs").unlink()


@pytest.mark.parametrize("name", ["d", "d/x"])
def test_what_is_swapped_for_a_link_while_it_is_captured_is_not_in_a_commit(
    user: User, beside: Make, hidden: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Git looks at what leads to a file before it opens it, and not at what it has opened."""
    (hidden / "x").write_text("sesame\n")
    user.write("d/x", "changed\n")
    user.write("b", "changed\n")
    one = beside(user, hidden=(bytes(hidden),))
    real = capture.staged

    @contextmanager
    def swapped(work_tree: bytes, paths: list[bytes], place: bytes) -> Generator[set[bytes]]:
        with real(work_tree, paths, place) as found:
            (user.root / name).rename(user.root.parent / "was")
            (user.root / name).symlink_to(hidden if name == "d" else hidden / "x")
            try:
                yield found
            finally:
                (user.root / name).unlink()
                (user.root.parent / "was").rename(user.root / name)

    monkeypatch.setattr(capture, "staged", swapped)
    fork = User(Path(os.fsdecode(one.provider.prepare("worktree").path)))
    assert fork.git("show", "HEAD:d/x") == "changed"
    assert fork.git("show", "HEAD:b") == "changed"


@pytest.mark.parametrize("name", ["d", "d/x"])
def test_what_is_a_link_by_the_time_that_it_is_captured_is_taken_for_that(
    user: User, beside: Make, hidden: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (hidden / "x").write_text("sesame\n")
    user.write("d/x", "changed\n")
    one = beside(user, hidden=(bytes(hidden),))
    real = capture.staged

    def swapped(work_tree: bytes, paths: list[bytes], place: bytes) -> AbstractContextManager[set[bytes]]:
        (user.root / name).rename(user.root.parent / "was")
        (user.root / name).symlink_to(hidden if name == "d" else hidden / "x")
        return real(work_tree, paths, place)

    monkeypatch.setattr(capture, "staged", swapped)
    fork = User(Path(os.fsdecode(one.provider.prepare("worktree").path)))
    assert "sesame" not in fork.git("log", "-p", "-1")
    listed = fork.git("ls-tree", "-r", "HEAD", "d/x")
    assert listed.startswith("120000") if name == "d/x" else listed == ""


@pytest.fixture
def after_keeping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something happen once all objects that a fork may borrow are kept, before anything is captured."""

    def make(happens: Callable[[], object]) -> None:
        take = ForkObjects.take
        left = [happens]

        def then(kept: ForkObjects, *words: Any, **options: Any) -> int:
            copied = take(kept, *words, **options)
            if left:
                left.pop()()
            return copied

        monkeypatch.setattr(ForkObjects, "take", then)

    return make


def test_objects_that_are_borrowed_from_what_is_hidden_meanwhile_are_in_no_fork(
    user: User,
    hidden: Path,
    beside: Make,
    after_keeping: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Git follows what the store says as it reads it; and an index may name any object."""
    run = capture.Capture.run

    def then(one: capture.Capture, **options: Any) -> capture.Captured:
        try:
            return run(one, **options)
        finally:
            alternates.unlink(missing_ok=True)

    monkeypatch.setattr(capture.Capture, "run", then)
    user.git("init", "--quiet", "--bare", hidden / "repository")
    secret = user.git("--git-dir", hidden / "repository", "hash-object", "-w", hidden / "key")
    user.git("update-index", "--add", "--cacheinfo", f"100644,{secret},stolen")
    user.git("update-index", "--skip-worktree", "stolen")
    alternates = user.git_dir / "objects/info/alternates"
    after_keeping(lambda: alternates.write_text(f"{hidden}/repository/objects\n"))
    one = beside(user, hidden=(bytes(hidden),))
    with pytest.raises(RefusedError, match="while it was captured") as refused:
        one.provider.prepare("worktree")
    assert refused.value.code == "git_objects"
    assert list(one.provider.tokens()) == []
    user.git("update-index", "--force-remove", "stolen")
    assert one.provider.prepare("worktree")


def test_what_is_staged_while_a_fork_is_made_is_in_it(
    user: User, beside: Make, after_keeping: Callable[[Callable[[], object]], None]
) -> None:
    def happens() -> None:
        user.write("staged", "meanwhile\n")
        user.git("add", "staged")

    after_keeping(happens)
    fork = User(Path(os.fsdecode(beside(user).provider.prepare("worktree").path)))
    assert fork.git("show", "HEAD:staged") == "meanwhile"
