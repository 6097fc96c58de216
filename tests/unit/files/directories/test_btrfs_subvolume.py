"""A snapshot of a subvolume has all that the subvolume has, of others inside of it too, and can be removed."""

from __future__ import annotations

import os
import subprocess
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.directories.btrfs_subvolume import (
    has_inner,
    is_subvolume,
    remove_subvolume,
    same_btrfs,
    snapshot_subvolume,
)
from holdfast.testing.tree_state import differences, photograph

from ....disks import mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USER = 12345

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted("btrfs", tmp_path_factory.mktemp("btrfs")) as place:
        yield place


@pytest.fixture
def tree(disk: Path, request: pytest.FixtureRequest) -> Path:
    """A subvolume with one in it, and one in a directory of that."""
    root = disk / request.node.name
    for name in (".", "inner", "inner/a b/deeper"):
        (root / name).parent.mkdir(exist_ok=True)
        create(root / name)
        (root / name / "file").write_text(f"in {name}\n")
    (root / "d/e").mkdir(parents=True)
    (root / "d/e/f").write_text("plain\n")
    os.utime(root, ns=(5, 10**18 + 7))
    os.utime(root / "inner", ns=(5, 10**18 + 8))
    return root


def create(path: Path) -> None:
    subprocess.run(["btrfs", "subvolume", "create", path], check=True, capture_output=True)


def listed(disk: Path) -> list[str]:
    done = subprocess.run(["btrfs", "subvolume", "list", disk], check=True, capture_output=True, text=True)
    return [line.split(" path ", 1)[1] for line in done.stdout.splitlines()]


def beside(tree: Path) -> Path:
    return tree.with_name(f"{tree.name} snapshot")


def as_user(directory: Path, work: Callable[[], object]) -> int:
    """The exit code of a child that does ``work`` in the directory, as nobody in particular."""
    child = os.fork()
    if not child:
        try:
            os.chdir(directory)
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("read_only", [True, False])
def test_a_snapshot_has_everything(disk: Path, tree: Path, read_only: bool) -> None:
    before = photograph(tree)
    target = beside(tree)
    snapshot_subvolume(bytes(tree), bytes(target), read_only=read_only)
    assert differences(before, photograph(target)) == []
    assert has_inner(bytes(target))
    for name in ("file", "inner/file", "inner/a b/deeper/file"):
        assert os.access(target / name, os.W_OK) is not read_only
    remove_subvolume(bytes(target))
    remove_subvolume(bytes(target))
    assert [name for name in listed(disk) if target.name in name] == []
    assert differences(before, photograph(tree)) == []


def test_what_is_left_out_leaves_no_trace(tree: Path) -> None:
    """So that nothing of Holdfast's own is captured (I14)."""
    (tree / "d/own/full").mkdir(parents=True)
    create(tree / "d/own/full/copy")
    create(tree / ".holdfast")
    (tree / ".holdfast/x").write_text("ours\n")
    (tree / "elsewhere").symlink_to("d")
    os.utime(tree / "d", ns=(5, 10**18 + 9))
    before = photograph(tree)
    target = beside(tree)
    out = (b".holdfast", b"d/own", b"nothing/here", b"file/x", b"elsewhere/e")
    snapshot_subvolume(bytes(tree), bytes(target), read_only=True, without=out)
    gone = (b".holdfast", b"d/own")
    kept = {path: about for path, about in before.items() if not path.startswith(gone)}
    assert differences(kept, photograph(target)) == []
    assert differences(before, photograph(tree)) == []
    remove_subvolume(bytes(target))
    assert not target.exists()


def test_more_subvolumes_than_the_kernel_tells_of_at_once(tree: Path) -> None:
    names = {f"n{number:03}" for number in range(300)}
    subprocess.run(["btrfs", "subvolume", "create", *(tree / "d" / name for name in names)], check=False)
    for name in names:
        if not (tree / "d" / name).exists():  # older programs take one at a time
            create(tree / "d" / name)
        (tree / "d" / name / "file").write_text(name)
    target = beside(tree)
    snapshot_subvolume(bytes(tree), bytes(target), read_only=True)
    assert {path.parent.name for path in target.glob("d/n*/file")} == names
    remove_subvolume(bytes(target))
    remove_subvolume(bytes(tree))
    assert not target.exists()
    assert not tree.exists()


def test_what_is_there_already_stays(tree: Path) -> None:
    target = beside(tree)
    target.mkdir()
    (target / "kept").write_text("kept\n")
    with pytest.raises(FileExistsError):
        snapshot_subvolume(bytes(tree), bytes(target), read_only=False)
    assert (target / "kept").read_text() == "kept\n"
    remove_subvolume(bytes(target))
    assert not target.exists(), "a plain directory is removed, too"


def test_what_is_a_subvolume(disk: Path, tree: Path, tmp_path: Path) -> None:
    assert is_subvolume(bytes(tree))
    assert is_subvolume(bytes(disk))
    assert not is_subvolume(bytes(tree / "d"))
    assert not is_subvolume(bytes(tmp_path))
    assert same_btrfs(bytes(tree / "inner"), bytes(disk))
    assert not same_btrfs(bytes(tree), bytes(tmp_path))
    assert not same_btrfs(bytes(tmp_path), bytes(tmp_path))
    assert not has_inner(bytes(tree / "inner/a b/deeper"))


@pytest.mark.parametrize("options", ["", "user_subvol_rm_allowed"])
def test_whoever_owns_the_files_needs_no_privilege(tmp_path: Path, options: str) -> None:
    """What they may not remove as a subvolume (without the option) they remove file by file."""
    with mounted("btrfs", tmp_path, options) as disk:
        for path in (disk / "tree", disk / "tree/inner"):
            create(path)
            (path / "d").mkdir()
            (path / "d/file").write_text("content\n")
        subprocess.run(["chown", "-R", f"{USER}:{USER}", disk], check=True)
        source, target = b"./tree", b"./copy"  # what is above them may be closed to others

        def work() -> None:
            snapshot_subvolume(source, target, read_only=True)
            assert Path(os.fsdecode(target), "inner/d/file").read_text() == "content\n"
            remove_subvolume(target)
            assert not os.path.lexists(target)

        assert as_user(disk, work) == 0
        assert listed(disk) == ["tree", "tree/inner"]
