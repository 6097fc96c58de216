"""Directories that are made again: what is known of their permissions comes back, and nothing private gets public."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.write import directory_modes
from holdfast.files.write.directory_modes import DirectoryModes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.engine.workspace.workspace import Workspace


@pytest.fixture(params=[0o022, 0o077], ids=["umask-022", "umask-077"], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make(path: Path, bits: int) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"x")
    path.chmod(bits)


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o2775, 0o1777, 0o3711])
def test_i6_a_directory_that_a_restore_removed_comes_back_with_its_permissions(
    workspace: Workspace, tree: Path, bits: int
) -> None:
    (tree / "other").write_bytes(b"x")
    first = workspace.checkpoint("first").checkpoint
    make(tree / "made", bits)
    make(tree / "made/inner", bits)
    workspace.restore(first.id)
    assert not (tree / "made").exists()
    workspace.undo()
    assert (mode(tree / "made"), mode(tree / "made/inner")) == (bits, bits)
    workspace.redo()
    workspace.undo()
    assert (mode(tree / "made"), mode(tree / "made/inner")) == (bits, bits)


def test_a_directory_that_took_a_files_place_comes_back_with_its_permissions(workspace: Workspace, tree: Path) -> None:
    (tree / "path").write_bytes(b"x")
    first = workspace.checkpoint("first").checkpoint
    (tree / "path").unlink()
    make(tree / "path", 0o700)
    workspace.restore(first.id)
    workspace.undo()
    assert mode(tree / "path") == 0o700


@pytest.mark.parametrize(
    ("above", "expected"), [(0o700, 0o700), (0o755, 0o755), (0o2770, 0o2770), (0o1777, 0o755), (0o555, 0o755)]
)
def test_a_directory_of_which_nothing_is_known_is_like_the_one_above(
    workspace: Workspace, tree: Path, above: int, expected: int
) -> None:
    (tree / "above/a/b").mkdir(parents=True)
    (tree / "above/a/b/file").write_bytes(b"x")
    workspace.checkpoint("first")
    (tree / "above/a").chmod(0o777)
    shutil.rmtree(tree / "above/a")
    (tree / "above").chmod(above)
    workspace.undo()
    assert (mode(tree / "above/a"), mode(tree / "above/a/b")) == (expected, expected)


def test_permissions_that_changed_since_are_not_brought_back(workspace: Workspace, tree: Path) -> None:
    first = workspace.checkpoint("first").checkpoint
    make(tree / "made", 0o777)
    workspace.restore(first.id)
    make(tree / "made", 0o700)
    workspace.checkpoint("private now")
    tree.chmod(0o700)
    shutil.rmtree(tree / "made")
    workspace.undo()
    assert mode(tree / "made") == 0o700


def test_a_fork_is_as_private_as_what_it_comes_from(workspace: Workspace, tree: Path, tmp_path: Path) -> None:
    make(tree / "inner", 0o755)
    saved = workspace.checkpoint("first").checkpoint
    tree.chmod(0o700)
    workspace.fork(saved.id, tmp_path / "forks/one")
    assert (mode(tmp_path / "forks/one"), mode(tmp_path / "forks/one/inner")) == (0o700, 0o700)
    tree.chmod(0o775)
    workspace.fork(saved.id, tmp_path / "forks/two")
    assert (mode(tmp_path / "forks/two"), mode(tmp_path / "forks/two/inner")) == (0o775, 0o775)


def test_a_root_that_is_made_again_is_as_private_as_the_directory_above(
    open_workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    above = tmp_path / "above"
    make(above, 0o700)
    make(above / "root", 0o777)
    workspace = open_workspace(above / "root")
    workspace.checkpoint("first")
    shutil.rmtree(above / "root")
    workspace.undo()
    assert mode(above / "root") == 0o700


def test_the_newest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_modes, "MOST", 2)
    path = bytes(tmp_path / "directories")
    remembered = DirectoryModes(path)
    for name, bits in ((b"a", 0o700), (b"b\n\xff c", 0o2750), (b"a", 0o701), (b"c", 0o7777), (b".holdfast.tmp-1", 0o7)):
        remembered.removed(name, stat.S_IFDIR | bits)
    remembered.save()
    again = DirectoryModes(path)
    assert [again.get(name) for name in (b"a", b"b\n\xff c", b"c")] == [0o701, None, 0o7777]
    again.forget({b"a"})
    again.save()
    assert [DirectoryModes(path).get(name) for name in (b"a", b"c")] == [None, 0o7777]


@pytest.mark.parametrize("damage", [b"", b"HFDM 2 ", b"\0"])
def test_a_damaged_file_is_not_used(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "directories"
    remembered = DirectoryModes(bytes(path))
    remembered.removed(b"a", 0o777)
    remembered.save()
    path.write_bytes(damage + path.read_bytes()[len(damage) : -1])
    assert DirectoryModes(bytes(path)).get(b"a") is None
    assert caplog.messages == [f"{path} is damaged, or of another version: it is not used"]
    caplog.clear()
