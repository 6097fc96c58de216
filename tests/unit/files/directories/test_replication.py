"""A copy of a directory has everything that the directory has, and can be removed whatever its permissions."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.files.directories.replication import make_read_only, remove_whole, replicate
from holdfast.files.linux import syscalls
from holdfast.files.protected_directories import find_protected
from holdfast.testing.tree_state import differences, photograph


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One of everything."""
    root = tmp_path / "tree"
    (root / ".git/objects").mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / "ignored.log").write_text("ignored\n")
    (root / "a").write_bytes(os.urandom(200_000))
    (root / "d").mkdir()
    os.link(root / "a", root / "d/also a")
    (root / "link").symlink_to("../outside")
    os.link(root / "link", root / "d/same link", follow_symlinks=False)
    (root / "to directory").symlink_to("d")
    os.mkfifo(root / "fifo")
    with (root / "sparse").open("wb") as file:
        file.seek(50 << 20)
        file.write(b"end")
    os.setxattr(root / "a", "user.holdfast", b"\0value")
    (root / "d").chmod(0o2750)
    (root / "a").chmod(0o4711)
    (root / os.fsdecode(b"n\xe9\n")).write_bytes(b"")
    (root / "locked").mkdir()
    (root / "locked/in").write_text("in\n")
    (root / "locked/in").chmod(0o400)
    (root / "locked").chmod(0o500)
    for path in (root / "link", root / "d", root / "a", root):
        os.utime(path, ns=(1_000_000_007, 1_234_567_891), follow_symlinks=False)
    return root


def test_a_copy_is_the_same_in_everything(tree: Path, tmp_path: Path) -> None:
    before = photograph(tree)
    replicate(bytes(tree), bytes(tmp_path / "copy"), without=find_protected([]))
    assert differences(before, photograph(tmp_path / "copy")) == []
    assert differences(before, photograph(tree)) == []
    assert (tmp_path / "copy/sparse").stat().st_blocks < 1000, "holes stay holes"


def test_what_is_ours_and_sockets_are_left_out(tree: Path, tmp_path: Path) -> None:
    (tree / "home").mkdir()
    (tree / "home/secret").write_text("s")
    here = os.getcwd()
    os.chdir(tree)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("socket")
    finally:
        os.chdir(here)
    replicate(bytes(tree), bytes(tmp_path / "copy"), without=find_protected([bytes(tree / "home")]))
    left_out = set(os.listdir(tree)) - set(os.listdir(tmp_path / "copy"))
    assert left_out == {"home", "socket"}


def test_a_copy_takes_the_place_of_nothing(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("tree/d", "link"):
        with pytest.raises(FileExistsError):
            replicate(bytes(tree), bytes(tmp_path / name), without=find_protected([]))
    assert not (tmp_path / "elsewhere").exists()


def test_read_only_leaves_nothing_to_write_to_and_keeps_the_rest(tree: Path) -> None:
    make_read_only(bytes(tree))
    for at, about in photograph(tree).items():
        if os.path.islink(tree / os.fsdecode(at)) or at == b"fifo":
            continue
        assert not about.mode & 0o222, at
    assert (tree / "a").stat().st_mode & 0o7777 == 0o4511
    assert not (tree.parent / "outside").exists()


def test_removing_follows_no_link_and_minds_no_permission(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("kept")
    (tree / "way out").symlink_to(tmp_path / "outside")
    make_read_only(bytes(tree))
    remove_whole(bytes(tree))
    remove_whole(bytes(tree))
    assert not tree.exists()
    (tmp_path / "instead").symlink_to(tmp_path / "outside")
    remove_whole(bytes(tmp_path / "instead"))
    assert not (tmp_path / "instead").is_symlink()
    assert (tmp_path / "outside/kept").read_text() == "kept"


def test_a_deep_tree_is_copied_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.mkdir()
    for _ in range(1500):
        path /= "d"
        path.mkdir()
    (path / "f").write_text("deep\n")
    replicate(bytes(tmp_path / "tree"), bytes(tmp_path / "copy"), without=find_protected([]))
    assert (tmp_path / "copy" / path.relative_to(tmp_path / "tree") / "f").read_text() == "deep\n"
    for name in ("copy", "tree"):
        remove_whole(bytes(tmp_path / name))
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("moment", ["stat", "listdir", "rmdir"])
def test_removing_does_nothing_elsewhere_when_a_link_takes_the_place_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """I7: somebody may still be at work in there."""
    victim = tmp_path / "victim"
    inner = tmp_path / "copy" / "inner"
    for directory in (victim, inner):
        for name in ("empty", "nothing"):
            (directory / name).mkdir(parents=True)
    victim.chmod(0o755)
    (victim / "file").touch()
    does, swaps = getattr(os, moment), [True]

    def swap(*args: object, **named: object) -> object:
        result = does(*args, **named)
        is_time = {"stat": args[0] == b"inner", "listdir": result == ["inner"], "rmdir": True}
        if swaps and is_time[moment]:
            swaps.clear()
            inner.rename(tmp_path / "away")
            inner.symlink_to(victim)
        return result

    monkeypatch.setattr(os, moment, swap)
    with suppress(OSError):  # of a link that was seen in time nothing need be said
        remove_whole(os.fsencode(tmp_path / "copy"))
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert sorted(os.listdir(victim)) == ["empty", "file", "nothing"]
    monkeypatch.undo()
    remove_whole(os.fsencode(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
    assert (victim / "file").exists()


@pytest.mark.parametrize("comes", ["nothing", "file", "link"])
def test_a_directory_that_vanishes_meanwhile_is_left_out(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """As when Git packs objects while a copy is made."""
    gone, real = tree / ".git/objects", syscalls.openat2

    def opening(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
        if path == b".git/objects" and gone.is_dir() and not gone.is_symlink():
            gone.rmdir()
            if comes == "file":
                gone.write_text("a file\n")
            elif comes == "link":
                gone.symlink_to("/")
        return real(dir_fd, path, flags, resolve)

    monkeypatch.setattr(syscalls, "openat2", opening)
    copy = tmp_path / "copy"
    replicate(bytes(tree), bytes(copy), without=find_protected(()))
    monkeypatch.undo()
    seen, copied = photograph(tree), photograph(copy)
    seen.pop(b".git/objects", None)
    times = {path: about._replace(mtime=0) for path, about in seen.items() if path == b".git"}
    assert copied[b".git"]._replace(mtime=0) == times[b".git"], "its own time may be the one before"
    assert differences({**seen, b".git": copied[b".git"]}, copied) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts in the file systems of all")
@pytest.mark.parametrize("where", ["copy", "copy/inner", "copy/inner/deeper", "copy/file"])
def test_removing_stops_at_what_is_mounted_there(tmp_path: Path, where: str) -> None:
    """What somebody has bound into a copy is no part of it, though it is on the same file system."""
    (tmp_path / "copy/inner/deeper").mkdir(parents=True)
    (tmp_path / "copy/file").touch()
    mine = tmp_path / "mine"
    if where == "copy/file":
        mine.write_text("mine")
    else:
        (mine / "inside").mkdir(parents=True)
        (mine / "inside/kept").write_text("mine")
        mine.chmod(0o755)
    before = mine.stat()
    subprocess.run(["mount", "--bind", mine, tmp_path / where], check=True)
    try:
        with pytest.raises(OSError, match=r"mounted there|busy") as stopped:
            remove_whole(os.fsencode(tmp_path / "copy"))
        assert stopped.value.errno == errno.EBUSY
        assert mine.stat().st_mode == before.st_mode
        assert mine.is_file() or (mine / "inside/kept").read_text() == "mine"
    finally:
        subprocess.run(["umount", tmp_path / where], check=True)
    remove_whole(os.fsencode(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
