"""What is brought from one tree to another, entry by entry, and how it is told what somebody has touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.files.directories.directory_exchange import directory_identity, exchange, hindrance
from holdfast.files.directories.transplant import transplant
from holdfast.files.directories.tree_stamps import changed_paths, stamps
from holdfast.files.linux.directory_users import users_of
from holdfast.files.protected_directories import find_protected

NOTHING = find_protected([])


@pytest.fixture(name="trees")
def _trees(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one", tmp_path / "other"
    for tree in (one, other):
        (tree / "d/e").mkdir(parents=True)
        (tree / "d/file").write_text("old")
        (tree / "same").write_text("same")
    return one, other


def bring(one: Path, other: Path, *paths: str) -> list[bytes]:
    return transplant(os.fsencode(one), os.fsencode(other), map(os.fsencode, paths), nonce="abc")


def test_entries_of_every_kind_arrive_with_what_belongs_to_them(trees: tuple[Path, Path]) -> None:
    one, other = trees
    (one / "d/file").write_text("new")
    os.chmod(one / "d/file", 0o4751)
    os.utime(one / "d/file", ns=(1, 10**18))
    os.setxattr(one / "d/file", "user.a", b"b")
    (one / "n/e/w").mkdir(parents=True)
    os.chmod(one / "n", 0o750)
    (one / "n/e/w/file").write_text("x")
    (one / "link").symlink_to("../../etc/passwd")
    os.mkfifo(one / "fifo")
    (one / "same").unlink()
    (other / "d/e/gone").write_text("gone")
    assert bring(one, other, "d/file", "n/e/w/file", "n", "link", "fifo", "same", "d/e/gone") == []
    about = os.stat(other / "d/file")
    assert ((other / "d/file").read_text(), about.st_mode & 0o7777, about.st_mtime_ns) == ("new", 0o4751, 10**18)
    assert os.getxattr(other / "d/file", "user.a") == b"b"
    assert os.stat(other / "n").st_mode & 0o777 == 0o750
    assert (other / "n/e/w/file").read_text() == "x"
    assert os.readlink(other / "link") == "../../etc/passwd"
    assert stat.S_ISFIFO(os.lstat(other / "fifo").st_mode)
    assert not (other / "same").exists()
    assert not (other / "d/e/gone").exists()
    assert not [path for path in other.rglob("*") if path.name.startswith(".holdfast")]


def test_what_is_in_the_way_stays_and_is_told(trees: tuple[Path, Path]) -> None:
    one, other = trees
    (one / "a").write_text("a file")
    (other / "a").mkdir()
    (one / "b").mkdir()
    (one / "b/c").write_text("c")
    (other / "b").write_text("a file")
    (other / "g").mkdir()
    (other / "g/kept").write_text("kept")
    assert bring(one, other, "a", "b", "b/c", "g") == [b"a", b"b", b"b/c", b"g"]
    assert (other / "b").read_text() == "a file"
    assert (other / "g/kept").exists()


def test_i7_no_link_is_followed_on_either_side(trees: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = trees
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (one / "in").symlink_to(outside)
    (one / "d/out").mkdir()
    (one / "d/out/secret").write_text("not it")
    (other / "d/out").symlink_to(outside)
    assert bring(one, other, "in/secret") == []
    assert not (other / "in").exists()
    assert bring(one, other, "d/out/secret") == [b"d/out/secret"]
    assert bring(other, one, "d/out/secret") == []
    assert (outside / "secret").read_text() == "secret"


def test_stamps_tell_what_was_touched_across_a_swap(trees: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = map(os.fsencode, trees)
    before = stamps(one, without=NOTHING)
    exchange(one, other)
    assert changed_paths(before, stamps(other, without=NOTHING)) == []
    held = os.open(other + b"/d/file", os.O_WRONLY)
    os.write(held, b"now")
    os.close(held)
    os.unlink(other + b"/same")
    os.rmdir(other + b"/d/e")
    Path(os.fsdecode(other), "new").mkdir()
    assert changed_paths(before, stamps(other, without=NOTHING)) == [b"d/e", b"d/file", b"new", b"same"]
    ours = find_protected([other + b"/d"])
    assert b"d" not in stamps(other, without=ours)


def test_two_directories_change_places_and_are_known_by_what_they_are(trees: tuple[Path, Path]) -> None:
    one, other = map(os.fsencode, trees)
    first, second = directory_identity(one), directory_identity(other)
    exchange(one, other)
    assert (directory_identity(one), directory_identity(other)) == (second, first)
    assert directory_identity(one + b"/nothing") is None


def test_what_hinders_an_exchange_is_named(trees: tuple[Path, Path]) -> None:
    one = os.fsencode(trees[0])
    assert hindrance(one, [], []) is None
    assert hindrance(one, [one], []) == "it is a mount point"
    assert hindrance(one, [one + b"/d"], []) == "something is mounted in it"
    assert hindrance(one, [one + b"-d"], []) is None
    assert hindrance(one, [], [one + b"/d"]) == "Holdfast keeps its undo log in it"


def test_who_uses_a_tree_is_found(trees: tuple[Path, Path]) -> None:
    one, other = map(os.fsencode, trees)
    with open(one + b"/d/file", "rb"):
        assert [user.pid for user in users_of(one)] == [os.getpid()]
        assert users_of(other) == []
