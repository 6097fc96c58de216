"""Where the file system lacks the flags of renameat2(2), as many of those over FUSE do."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.files.linux import syscalls
from holdfast.files.linux.exclusive_rename import rename_to_free
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.recovery.keeper_recovery import recover

from ..conftest import Bench, redo, undo


@pytest.fixture(params=["refused", "bindfs"])
def base(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory without them."""
    if request.param == "refused":

        def refuse(src_fd: int, src: bytes, dst_fd: int, dst: bytes, flags: int) -> int:
            if flags:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
            return 0

        monkeypatch.setattr(syscalls, "_renameat2", refuse)
        yield tmp_path
        return
    if shutil.which("bindfs") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs bindfs and FUSE")
    (tmp_path / "behind").mkdir()
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run(["bindfs", tmp_path / "behind", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def rearrange(actor: InterceptedActor) -> None:
    """What takes a name, gives one, or replaces what has one."""
    actor.unlink(b"file")
    actor.rename(b"d/other", b"d/moved")
    actor.rename(b"d/over", b"d/replaced")
    actor.rename(b"d", b"e")
    actor.rename(b"full", b"empty")
    actor.rmdir(b"gone")
    actor.unlink(b"link")
    actor.write(b"new", b"new")


def set_out(bench: Bench) -> None:
    for name in "d", "full", "empty", "gone":
        (bench.tree / name).mkdir()
    for name in "file", "d/other", "d/over", "d/replaced", "full/f":
        (bench.tree / name).write_text(name)
    (bench.tree / "link").symlink_to("nowhere")


def test_a_step_is_undone_and_redone(base: Path) -> None:
    bench = Bench(base)
    set_out(bench)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, rearrange)
        after = bench.photograph()
        for _ in range(2):
            assert undo(log, [step]).conflicts == ()
            bench.assert_as(before)
            assert redo(log, [step]).conflicts == ()
            bench.assert_as(after)


def test_a_step_that_was_cut_off_is_rolled_back(base: Path) -> None:
    bench = Bench(base)
    set_out(bench)
    before = bench.photograph()
    bench.abandon(rearrange)
    with bench.keeper() as log:
        recover(log)
    bench.assert_as(before)


def test_what_is_there_is_not_replaced(base: Path) -> None:
    bench = Bench(base)
    set_out(bench)
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: (actor.unlink(b"file"), actor.rename(b"d/other", b"d/moved")))
        for name in "file", "d/other":
            (bench.tree / name).write_bytes(b"by hand")
        conflicts = undo(log, [step], force=True).conflicts
    assert {one.path for one in conflicts} == {b"file", b"d/other"}
    for name in "file", "d/other":
        assert (bench.tree / name).read_bytes() == b"by hand"


def test_a_name_that_is_not_free_is_not_taken(base: Path) -> None:
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in "a", "b":
            (base / name).write_text(name)
        os.symlink("nowhere", base / "link")
        for taken in b"b", b"link":
            with pytest.raises(FileExistsError):
                rename_to_free(fd, b"a", fd, taken)
        assert [(base / name).read_text() for name in ("a", "b")] == ["a", "b"]
        rename_to_free(fd, b"a", fd, b"c")
        assert (base / "c").read_text() == "a"
        assert not (base / "a").exists()
    finally:
        os.close(fd)
