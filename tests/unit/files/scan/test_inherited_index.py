"""The index of a copy: what is known of it is not read again, and only what is surely the same is known."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.files.directories.btrfs_subvolume import snapshot_subvolume
from holdfast.files.directories.replication import replicate
from holdfast.files.local_tree import LocalTree
from holdfast.files.protected_directories import find_protected
from holdfast.files.scan.inherited_index import inherit
from holdfast.model.content import HashSink
from holdfast.model.ids import Hash, hash_bytes

from ....disks import mounted
from ....waiting import wait_until

ROOT = Hash(b"0123456789abcdef")


class Copied:
    """A directory that is known, and a copy that is to be."""

    def __init__(self, place: Path) -> None:
        self.source, self.copy = place / "tree", place / "copy"
        self.begun = 0
        self.index, self.copied_index = place / "index", place / "copied"

    def fill(self) -> None:
        (self.source / "sub").mkdir()
        for name in ("one", "two", "sub/three"):
            (self.source / name).write_text(f"content of {name}\n")
        (self.source / "link").symlink_to("one")
        self.look(self.source, self.index)

    def look(self, root: Path, index: Path) -> None:
        """Have all of it known for certain: when it is old enough for that."""
        wait_until_old(root)
        tree = LocalTree(bytes(root), index=bytes(index))
        tree.scan(HashSink())
        tree.settle(ROOT)

    def begin(self) -> None:
        wait_until_old(self.source)
        self.begun = time.time_ns()

    def replicate(self) -> None:
        self.begin()
        replicate(bytes(self.source), bytes(self.copy), without=find_protected([]))
        wait_until_old(self.copy)

    def read(self) -> int:
        """Inherit, and look at the copy: how many files are read for that. What is found is what a look that knows
        nothing finds.
        """
        found = inherit(bytes(self.index), bytes(self.source), bytes(self.copy), ROOT, begun=self.begun)
        assert found is not None
        found.save(bytes(self.copied_index))
        tree = LocalTree(bytes(self.copy), index=bytes(self.copied_index))
        scan = tree.scan(HashSink(), base=ROOT)
        whole = LocalTree(bytes(self.copy))
        whole.scan(HashSink())
        assert dict(tree.index.entries()) == dict(whole.index.entries())
        return scan.files_read


def wait_until_old(root: Path) -> None:
    newest = max(path.lstat().st_ctime_ns for path in root.rglob("*"))
    wait_until(lambda: time.time_ns() > newest + 60_000_000, "times to be past")


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    found = Copied(tmp_path)
    found.source.mkdir()
    found.fill()
    return found


def test_nothing_of_a_copy_is_read_that_is_known(copied: Copied) -> None:
    copied.replicate()
    assert copied.read() == 0


def test_what_was_changed_before_or_after_it_was_copied_is_read(copied: Copied) -> None:
    old = (copied.source / "one").stat()
    (copied.source / "one").write_text("CONTENT of one\n")  # of the same size
    os.utime(copied.source / "one", ns=(old.st_atime_ns, old.st_mtime_ns))
    copied.replicate()
    (copied.copy / "two").write_text("CONTENT of two\n")
    (copied.copy / "sub/three").chmod(0o755)
    (copied.copy / "new").write_text("new")
    (copied.copy / "link").unlink()
    assert copied.read() == 4


def test_what_the_source_has_lost_or_got_since_says_nothing_of_the_copy(copied: Copied) -> None:
    copied.replicate()
    (copied.source / "one").unlink()
    (copied.source / "two").write_text("CONTENT of two\n")
    shutil.rmtree(copied.source / "sub")
    assert copied.read() == 4


def test_what_was_copied_of_another_directory_in_its_place_is_read(copied: Copied, tmp_path: Path) -> None:
    """It is back, and all of its files look as they did; those of the copy have the same times and sizes."""
    (copied.source / "sub/in").mkdir()
    (copied.source / "sub/in/four").write_text("content of four\n")
    copied.look(copied.source, copied.index)
    copied.begin()
    (copied.source / "sub").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", copied.source / "sub")
    for name in ("three", "in/four"):
        shown, old = copied.source / "sub" / name, (tmp_path / "away" / name).stat()
        shown.write_text(shown.read_text().upper())
        os.utime(shown, ns=(old.st_atime_ns, old.st_mtime_ns))
    replicate(bytes(copied.source), bytes(copied.copy), without=find_protected([]))
    shutil.rmtree(copied.source / "sub")
    (tmp_path / "away").rename(copied.source / "sub")
    wait_until_old(copied.copy)
    copied.read()


def test_what_was_copied_a_moment_ago_is_read_once_more(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.replicate()
    copied_at = (copied.copy / "one").lstat().st_ctime_ns
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: copied_at)
        found = inherit(bytes(copied.index), bytes(copied.source), bytes(copied.copy), ROOT, begun=copied.begun)
    assert found is not None
    assert found.get(b"one") is None


def test_an_index_of_another_state_is_of_no_use(copied: Copied) -> None:
    copied.replicate()
    other = hash_bytes(b"other")
    assert inherit(bytes(copied.index), bytes(copied.source), bytes(copied.copy), other, begun=copied.begun) is None
    copied.index.write_bytes(b"damaged")
    assert inherit(bytes(copied.index), bytes(copied.source), bytes(copied.copy), ROOT, begun=copied.begun) is None


@pytest.mark.root
def test_a_snapshot_shows_the_same_files_and_what_was_changed_since_is_read(tmp_path: Path) -> None:
    with mounted("btrfs", tmp_path) as disk:
        copied = Copied(disk)
        subprocess.run(["btrfs", "subvolume", "create", copied.source], check=True, capture_output=True)
        copied.fill()
        (copied.source / "sub/three").write_text("CONTENT of sub/three\n")
        copied.begin()
        snapshot_subvolume(bytes(copied.source), bytes(copied.copy), read_only=False, without=[])
        (copied.source / "two").write_text("no more")
        (copied.copy / "one").write_text("CONTENT of one\n")
        assert copied.read() == 2
