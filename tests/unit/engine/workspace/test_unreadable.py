"""What cannot be read was not deleted: what was saved of it stays, is said, and is neither overwritten nor removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import holdfast
from holdfast.files.local_tree import LocalTree
from holdfast.files.tree import DirtyPaths
from holdfast.model.content import HashSink
from holdfast.model.errors import HoldfastError, RefusedError
from holdfast.model.ids import Hash
from holdfast.testing.permissions import permissions_hold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.entries import Entry

KEPT = "unreadable: Permission denied; its last saved state stays"


class Ground(NamedTuple):
    """A workspace of somebody who may not read everything."""

    workspace: Workspace
    tree: Path

    def missed(self) -> dict[bytes, str]:
        return dict(self.workspace.status().not_captured)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory of somebody who may not read everything."""
    with permissions_hold():
        yield tmp_path
    for at, names, _ in os.walk(tmp_path):
        for name in names:
            os.chmod(os.path.join(at, name), 0o700)


@pytest.fixture
def ground(place: Path) -> Iterator[Ground]:
    tree = place / "tree"
    (tree / "locked/deep").mkdir(parents=True)
    (tree / "locked/deep/inside").write_bytes(b"inside")
    (tree / "locked/file").write_bytes(b"file")
    (tree / "secret").write_bytes(b"secret")
    (tree / "open").write_bytes(b"open")
    with holdfast.init(tree, home=place / "home") as workspace:
        workspace.checkpoint("first")
        yield Ground(workspace, tree)
    with holdfast.open(tree, home=place / "home") as workspace:
        assert workspace.verify(read_data=True).ok


@pytest.mark.parametrize("mode", [0, 0o100, 0o400], ids=["closed", "no-list", "no-search"])
@pytest.mark.parametrize("lost", [False, True], ids=["index", "no-index"])
def test_i5_a_directory_that_cannot_be_read_is_as_it_was_saved(ground: Ground, mode: int, lost: bool) -> None:
    (ground.tree / "locked").chmod(mode)
    (ground.tree / "secret").chmod(0)
    if lost:
        (Path(os.fsdecode(ground.workspace.folder)) / "index").unlink()
        reopened = holdfast.open(ground.tree, home=os.fsdecode(ground.workspace.home))
        ground = Ground(reopened, ground.tree)
    with ground.workspace:
        assert ground.missed() == {b"locked": KEPT, b"secret": KEPT}
        assert not ground.workspace.status().changes
        assert not ground.workspace.checkpoint().created
        (ground.tree / "open").write_bytes(b"edited")
        made = ground.workspace.checkpoint()
        assert tuple(made.checkpoint.changes) == (0, 1, 0)
        assert dict(made.not_captured) == {b"locked": KEPT, b"secret": KEPT}
        assert b"".join(ground.workspace.cat("@", "locked/deep/inside")) == b"inside"
        (ground.tree / "locked").chmod(0o700)
        (ground.tree / "secret").chmod(0o644)
        (ground.tree / "locked/deep/inside").unlink()
        (ground.tree / "locked/file").write_bytes(b"more")
        found = ground.workspace.checkpoint()
        assert [change.path for change in ground.workspace.show().changes] == [b"locked/deep/inside", b"locked/file"]
        assert not found.not_captured


def test_what_was_never_saved_is_only_said(ground: Ground) -> None:
    (ground.tree / "new").mkdir()
    (ground.tree / "new").chmod(0)
    (ground.tree / "fresh").touch(0)
    assert ground.missed() == dict.fromkeys((b"fresh", b"new"), "unreadable: Permission denied")
    assert not ground.workspace.checkpoint().created


def test_changes_that_were_seen_and_not_saved_are_not_claimed(ground: Ground) -> None:
    (ground.tree / "locked/file").write_bytes(b"seen by status, stored by nobody")
    (ground.tree / "locked/another").write_bytes(b"as well")
    assert len(ground.workspace.status().changes) == 2
    (ground.tree / "locked").chmod(0)
    (ground.tree / "open").write_bytes(b"edited")
    assert tuple(ground.workspace.checkpoint().checkpoint.changes) == (0, 1, 0)
    (ground.tree / "locked").chmod(0o700)
    assert tuple(ground.workspace.checkpoint().checkpoint.changes) == (1, 1, 0)


def test_a_directory_in_place_of_a_file_and_the_other_way_round(ground: Ground) -> None:
    (ground.tree / "secret").unlink()
    (ground.tree / "secret").mkdir(0)
    (ground.tree / "locked").rename(ground.tree / "away")
    (ground.tree / "locked").touch(0)
    changes = {(change.path, change.after is None) for change in ground.workspace.status().changes}
    assert {(b"secret", True), (b"locked/file", True), (b"locked/deep/inside", True)} <= changes


@pytest.mark.parametrize("mode", [0, 0o100, 0o400], ids=["closed", "no-list", "no-search"])
def test_i5_a_workspace_that_is_closed_itself_is_as_it_was_saved(
    ground: Ground, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    workspace, tree = ground
    (tree / "open").write_bytes(b"nobody has seen this")
    tree.chmod(mode)
    assert ground.missed() == {b"": KEPT}
    assert not workspace.status().changes
    assert not workspace.checkpoint().created
    assert {record.message for record in caplog.records} >= {
        "the workspace's directory cannot be read: Permission denied; Holdfast uses its last saved state"
    }
    tree.chmod(0o700)
    assert tuple(workspace.checkpoint().checkpoint.changes) == (0, 1, 0)


@pytest.mark.parametrize("mode", [0, 0o100, 0o400], ids=["closed", "no-list", "no-search"])
def test_i5_a_restore_into_a_workspace_that_is_closed_overwrites_nothing(ground: Ground, mode: int) -> None:
    workspace, tree = ground
    (tree / "open").write_bytes(b"second")
    workspace.checkpoint("second")
    (tree / "open").write_bytes(b"nobody has seen this")
    tree.chmod(mode)
    try:
        workspace.restore("first")
    except HoldfastError as error:
        assert error.code in ("storage", "refused", "left_alone")
    tree.chmod(0o700)
    assert (tree / "open").read_bytes() == b"nobody has seen this"


@pytest.mark.parametrize("mode", [0, 0o100, 0o400], ids=["closed", "no-list", "no-search"])
def test_i5_a_restore_leaves_alone_what_nobody_has_seen(ground: Ground, mode: int) -> None:
    workspace, tree = ground
    shutil.rmtree(tree / "locked")
    (tree / "secret").unlink()
    workspace.checkpoint("without")
    workspace.restore("first")
    (tree / "locked/file").write_bytes(b"nobody has seen this")
    (tree / "secret").write_bytes(b"nor this")
    (tree / "locked").chmod(mode)
    (tree / "secret").chmod(0)
    with pytest.raises(RefusedError) as refused:
        workspace.restore("without")
    (tree / "locked").chmod(0o700)
    (tree / "secret").chmod(0o600)
    assert (tree / "locked/file").read_bytes() == b"nobody has seen this"
    assert (tree / "secret").read_bytes() == b"nor this"
    assert refused.value.code == "left_alone"
    assert "locked/file" in refused.value.message
    assert "secret" in refused.value.message


class Named:
    """A source of dirty paths that says what it was told."""

    def __init__(self) -> None:
        self.paths: set[bytes] = set()

    def drain(self) -> DirtyPaths:
        paths, self.paths = self.paths, set()
        return DirtyPaths(False, frozenset(paths))


def test_a_scan_of_what_is_dirty_keeps_it_too(place: Path) -> None:
    root = place / "tree"
    (root / "a/b").mkdir(parents=True)
    for path in ("a/b/f", "a/g", "h"):
        (root / path).write_bytes(b"x")
    tree = LocalTree(bytes(root))
    tree.dirty = dirty = Named()
    base = Hash(b"0123456789abcdef")
    first = {path: entry for path, entry in tree.scan(HashSink()).changes.items() if entry is not None}
    tree.settle(base)

    class Saved:
        def entries(self, path: bytes) -> list[tuple[bytes, Entry]]:
            return [item for item in first.items() if item[0] == path or item[0].startswith(path + b"/")]

        def read(self, path: bytes, limit: int) -> bytes | None:
            raise AssertionError((path, limit))

    def look(*paths: bytes) -> tuple[dict[bytes, Entry | None], dict[bytes, str]]:
        dirty.paths.update(paths)
        scan = tree.scan(HashSink(), base=base, saved=Saved())
        return scan.changes, dict(scan.not_captured)

    (root / "a/b").chmod(0)
    (root / "h").chmod(0)
    assert look(b"a/b", b"h") == ({}, {b"a/b": KEPT, b"h": KEPT})
    assert look() == ({}, {b"a/b": KEPT, b"h": KEPT})
    (root / "a").chmod(0)
    assert look(b"a", b"a/b/f") == ({}, {b"a": KEPT, b"h": KEPT})
    (root / "a").chmod(0o700)
    assert look(b"a") == ({}, {b"a/b": KEPT, b"h": KEPT})
    (root / "a/b").chmod(0o700)
    (root / "a/b/f").unlink()
    (root / "h").chmod(0o644)
    assert look() == ({b"a/b/f": None}, {})


@pytest.mark.parametrize("at", ["", "inside"], ids=["root", "directory"])
@pytest.mark.parametrize("name", [".gitignore", ".checkpointignore"])
@pytest.mark.parametrize("lost", [False, True], ids=["index", "no-index"])
def test_i5_rules_that_cannot_be_read_hold_as_they_were_saved(ground: Ground, at: str, name: str, lost: bool) -> None:
    directory = ground.tree / at
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(b"*.key\n")
    (directory / "my.key").write_bytes(b"private")
    ground.workspace.checkpoint("with rules")
    (directory / name).chmod(0)
    if lost:
        (Path(os.fsdecode(ground.workspace.folder)) / "index").unlink()
        reopened = holdfast.open(ground.tree, home=os.fsdecode(ground.workspace.home))
        ground = Ground(reopened, ground.tree)
    with ground.workspace:
        rules = os.fsencode(os.path.join(at, name))
        assert ground.missed() == {rules: f"{KEPT}, and its rules apply"}
        (directory / "new").write_bytes(b"new")
        (directory / "new.key").write_bytes(b"private as well")
        assert tuple(ground.workspace.checkpoint().checkpoint.changes) == (1, 0, 0)
        ground.workspace.restore("with rules")
        assert not (directory / "new").exists()
        ground.workspace.undo()
        assert (directory / "my.key").read_bytes() == b"private"
        assert (directory / "new.key").read_bytes() == b"private as well"


def test_rules_that_nobody_has_read_are_said_not_to_hold(ground: Ground) -> None:
    (ground.tree / ".gitignore").touch(0)
    said = "unreadable: Permission denied; its rules do not apply"
    assert ground.missed() == {b".gitignore": said}


def test_rules_from_outside_that_cannot_be_read_are_named_once(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    global_rules = Path(os.environ["XDG_CONFIG_HOME"]) / "git/ignore"
    global_rules.parent.mkdir(parents=True)
    global_rules.touch(0)
    for _ in range(2):
        assert not ground.missed()
    assert caplog.messages == [f"the ignore rules in {global_rules} are not obeyed: Permission denied"]
    caplog.clear()
