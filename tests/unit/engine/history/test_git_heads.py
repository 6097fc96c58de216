"""Where HEAD of a repository stands, as its files say it: whatever they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.engine.history._git_heads import read_head

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = b"1" * 40, b"2" * 40
SHA256 = b"0123456789abcdef" * 4


@pytest.fixture
def git(tmp_path: Path) -> Path:
    """The directory of a repository without commits."""
    path = tmp_path / ".git"
    for inner in ("objects", "refs/heads"):
        (path / inner).mkdir(parents=True)
    (path / "HEAD").write_bytes(b"ref: refs/heads/main\n")
    return path


def head(git: Path) -> tuple[bytes, bytes] | None:
    return read_head(bytes(git.parent))


@pytest.mark.parametrize("commit", [ONE, SHA256])
def test_a_branch_stands_at_its_commit(git: Path, commit: bytes) -> None:
    (git / "refs/heads/main").write_bytes(commit + b"\n")
    assert head(git) == (b"refs/heads/main", commit)


@pytest.mark.parametrize("commit", [ONE, SHA256])
def test_head_may_be_on_no_branch(git: Path, commit: bytes) -> None:
    (git / "HEAD").write_bytes(commit + b"\n")
    assert head(git) == (b"-", commit)


def test_a_branch_without_a_file_of_its_own_is_among_the_packed(git: Path) -> None:
    packed = b"# pack-refs with: peeled fully-peeled sorted \n" + b"".join(
        b"%b refs/%b\n" % line
        for line in (
            (TWO, b"heads/main2"),
            (TWO, b"heads/mai"),
            (TWO, b"heads/refs/heads/main"),
            (ONE, b"heads/main"),
            (TWO, b"tags/v1"),
        )
    )
    (git / "packed-refs").write_bytes(packed + b"^" + TWO + b"\n")
    assert head(git) == (b"refs/heads/main", ONE)
    (git / "packed-refs").write_bytes(ONE + b" refs/heads/main")
    assert head(git) == (b"refs/heads/main", ONE), "the last line of all"
    (git / "refs/heads/main").write_bytes(TWO + b"\n")
    assert head(git) == (b"refs/heads/main", TWO), "its own file is newer"


@pytest.mark.parametrize(
    "packed",
    [b"", b"\n", TWO + b" refs/heads/main2\n", b"peeled refs/heads/main\n", b"# refs/heads/main\n", b"\0" * 99],
)
def test_a_branch_that_is_nowhere_has_no_commit(git: Path, packed: bytes) -> None:
    (git / "packed-refs").write_bytes(packed)
    assert head(git) is None


@pytest.mark.parametrize("commit", [b"", ONE[1:], ONE + b"1", b"g" * 40, b"A" * 40, b"ref: refs/heads/else"])
def test_what_is_no_commit_is_none(git: Path, commit: bytes) -> None:
    (git / "refs/heads/main").write_bytes(commit)
    assert head(git) is None
    (git / "HEAD").write_bytes(commit)
    assert head(git) is None


@pytest.mark.parametrize(
    "ref", [b"refs/tags/v1", b"refs/heads/", b"refs/heads/../../commit", b"refs/heads/a b", b"refs/heads/a\x7fb"]
)
def test_what_is_no_branch_is_none(git: Path, ref: bytes) -> None:
    (git / "HEAD").write_bytes(b"ref: " + ref + b"\n")
    (git / "refs/tags").mkdir()
    for path in ("commit", "refs/tags/v1", "refs/heads/a b", "refs/heads/a\x7fb"):
        (git / path).write_bytes(ONE + b"\n")
    (git / "packed-refs").write_bytes(ONE + b" " + ref + b"\n")
    assert head(git) is None


def test_a_line_that_holds_no_commit_is_passed_over(git: Path) -> None:
    (git / "packed-refs").write_bytes(b"# refs/heads/main\nbroken refs/heads/main\n" + ONE + b" refs/heads/main\n")
    assert head(git) == (b"refs/heads/main", ONE)
