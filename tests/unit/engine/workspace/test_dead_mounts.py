"""A single path that nobody can look at keeps what was saved of it, and keeps nothing beside it from being saved."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

import holdfast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

KEPT = "unreadable: Transport endpoint is not connected; its last saved state stays"
MNT_DETACH = 2


@pytest.fixture
def make_dead() -> Iterator[Callable[[Path], Callable[[], None]]]:
    """Puts the mount of a file server that has died over a path, which then cannot be looked at; and takes it away."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted: list[bytes] = []

    def mend(path: bytes) -> None:
        mounted.remove(path)
        assert not libc.umount2(path, MNT_DETACH)

    def make(path: Path) -> Callable[[], None]:
        try:
            server = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            pytest.skip(f"needs /dev/fuse: {error.strerror}")
        try:
            options = b"fd=%d,rootmode=%o,user_id=0,group_id=0" % (server, stat.S_IFMT(os.stat(path).st_mode))
            if libc.mount(b"dead", bytes(path), b"fuse", 0, options):
                pytest.skip(f"needs the right to mount: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(server)
        mounted.append(bytes(path))
        return lambda: mend(bytes(path))

    yield make
    for path in mounted[:]:
        mend(path)


@pytest.mark.parametrize("at", ["", "inside"], ids=["root", "directory"])
@pytest.mark.parametrize("lost", [False, True], ids=["index", "no-index"])
def test_i5_one_file_that_cannot_be_looked_at_is_as_it_was_saved(
    open_workspace: Callable[..., Workspace],
    tree: Path,
    home: Path,
    make_dead: Callable[[Path], Callable[[], None]],
    at: str,
    lost: bool,
) -> None:
    directory = tree / at
    directory.mkdir(exist_ok=True)
    for name in ("bad", "good", "other"):
        (directory / name).write_bytes(b"one")
    workspace = open_workspace()
    first = workspace.checkpoint("first").checkpoint
    (directory / "bad").write_bytes(b"two")
    workspace.checkpoint("second")
    bad = bytes(directory / "bad")[len(bytes(tree)) + 1 :]
    if lost:
        os.unlink(os.path.join(workspace.folder, b"index"))
        workspace.close()
        workspace = holdfast.open(tree, home=home)
    mend = make_dead(directory / "bad")
    with workspace:
        (directory / "good").write_bytes(b"edited")
        (directory / "other").unlink()
        (directory / "new").write_bytes(b"new")
        made = workspace.checkpoint()
        assert dict(made.not_captured) == {bad: KEPT}
        assert tuple(made.checkpoint.changes) == (1, 1, 1)
        assert b"".join(workspace.cat("@", bad)) == b"two"
        assert not workspace.status().changes
        assert dict(workspace.status().not_captured) == {bad: KEPT}
        result = workspace.restore(first.id)
        assert [item.path for item in result.skipped] == [bad]
        assert (directory / "good").read_bytes() == b"one"
        assert not (directory / "new").exists()
        mend()
        assert (directory / "bad").read_bytes() == b"two"
        assert not workspace.status().not_captured
        assert [change.path for change in workspace.diff(first.id).changes] == [bad]


def test_a_file_that_was_never_looked_at_is_only_said(
    workspace: Workspace, tree: Path, make_dead: Callable[[Path], Callable[[], None]]
) -> None:
    (tree / "bad").write_bytes(b"one")
    mend = make_dead(tree / "bad")
    (tree / "good").write_bytes(b"one")
    assert dict(workspace.checkpoint().not_captured) == {b"bad": "unreadable: Transport endpoint is not connected"}
    assert dict(workspace.status().not_captured) == {b"bad": "unreadable: Transport endpoint is not connected"}
    mend()
    assert [change.path for change in workspace.status().changes] == [b"bad"]


def test_i5_a_directory_that_cannot_be_looked_at_is_as_it_was_saved(
    workspace: Workspace, tree: Path, make_dead: Callable[[Path], Callable[[], None]]
) -> None:
    (tree / "dead").mkdir()
    (tree / "dead/file").write_bytes(b"one")
    (tree / "good").write_bytes(b"one")
    workspace.checkpoint("first")
    mend = make_dead(tree / "dead")
    shutil.move(tree / "good", tree / "moved")
    made = workspace.checkpoint()
    assert dict(made.not_captured) == {b"dead": KEPT}
    assert tuple(made.checkpoint.changes) == (1, 0, 1)
    mend()
    assert not workspace.status().changes
