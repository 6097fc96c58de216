"""What the system lets nobody change: it is left alone, named with what helps, and holds nothing of ours."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from holdfast import RefusedError

from ....obstacles import mounted_read_only, protected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

SAID = "its directory takes new entries and gives none away again (chattr +a)"


class Lock(Protocol):
    def __call__(self, path: Path, attribute: str = "a") -> None: ...


@pytest.fixture
def lock() -> Iterator[Lock]:
    """Lets a directory only grow, or gives something another attribute; until the end of the test."""
    with ExitStack() as stack:
        yield lambda path, attribute="a": stack.enter_context(protected(path, attribute))


@pytest.mark.parametrize("at", ["", "only"], ids=["root", "directory"])
def test_a_directory_that_only_grows_is_left_alone(workspace: Workspace, tree: Path, lock: Lock, at: str) -> None:
    directory = tree / at
    (tree / "free").mkdir()
    directory.mkdir(exist_ok=True)
    (directory / "inner").mkdir()
    for path in ("edited", "removed", "inner/file"):
        (directory / path).write_bytes(b"one")
    (tree / "free/file").write_bytes(b"one")
    workspace.checkpoint("one")
    (directory / "edited").write_bytes(b"two")
    (directory / "removed").unlink()
    (directory / "new").write_bytes(b"two")
    shutil.rmtree(directory / "inner")
    (tree / "free/file").write_bytes(b"two")
    workspace.checkpoint("two")
    before = sorted(os.listdir(directory))
    lock(directory)
    result = workspace.restore("one")
    skipped = {os.fsdecode(item.path).removeprefix(f"{at}/"): item.reason for item in result.skipped}
    assert skipped.pop("new") == f"its directory is protected: `chattr -a {at or '.'}` lifts that"
    assert skipped == dict.fromkeys(("edited", "removed", "inner/file"), SAID)
    assert sorted(os.listdir(directory)) == before
    assert (directory / "edited").read_bytes() == b"two"
    assert (tree / "free/file").read_bytes() == b"one"


def test_what_is_immutable_is_named_with_what_helps(workspace: Workspace, tree: Path, lock: Lock) -> None:
    for path in ("f", "d/edited", "free"):
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_bytes(b"one")
    workspace.checkpoint("one")
    for path in ("f", "d/edited", "d/it's new", "free"):
        (tree / path).write_bytes(b"two")
    workspace.checkpoint("two")
    for path in ("f", "d"):
        lock(tree / path, "i")
    result = workspace.restore("one")
    assert {one.path: one.reason for one in result.skipped} == {
        b"f": "it is protected: `chattr -i f` lifts that",
        b"d/edited": "its directory is protected: `chattr -i d` lifts that",
        b"d/it's new": "its directory is protected: `chattr -i d` lifts that",
    }
    assert (tree / "free").read_bytes() == b"one"


@pytest.mark.parametrize("operation", ["restore", "undo", "redo", "merge"])
def test_what_could_not_change_anything_is_refused_and_leaves_no_row(
    workspace: Workspace, tree: Path, lock: Lock, operation: str
) -> None:
    (tree / "f").write_bytes(b"one")
    workspace.checkpoint("one")
    fork = tree.parent / "fork"
    if operation == "merge":
        workspace.fork("@", fork)
        (fork / "f").write_bytes(b"of the fork")
    else:
        (tree / "f").write_bytes(b"two")
        workspace.checkpoint("two")
    if operation == "redo":
        workspace.undo()
    rows, now = [*workspace.log_rows()], (tree / "f").read_bytes()
    lock(tree / "f", "i")
    calls = {
        "restore": lambda: workspace.restore("one"),
        "undo": workspace.undo,
        "redo": workspace.redo,
        "merge": lambda: workspace.merge(str(fork)),
    }
    for _ in range(2):
        with pytest.raises(RefusedError) as refused:
            calls[operation]()
        assert refused.value.message == (
            "could not change 1 path: it is protected: `chattr -i f` lifts that (f); nothing was changed"
        )
        assert [*workspace.log_rows()] == rows
        assert workspace.unfinished() is None
    assert (tree / "f").read_bytes() == now


def test_what_is_mounted_read_only_keeps_nothing_else_back(workspace: Workspace, tree: Path) -> None:
    for path in ("m/edited", "m/d/removed", "free"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(b"one")
    workspace.checkpoint("one")
    (tree / "m/d/removed").unlink()
    for path in ("m/edited", "m/new", "free"):
        (tree / path).write_bytes(b"two")
    workspace.checkpoint("two")
    with mounted_read_only(tree / "m"):
        result = workspace.restore("one")
    assert {one.path for one in result.skipped} == {b"m/edited", b"m/new", b"m/d/removed"}
    assert {one.reason.removeprefix("its directory ").removeprefix("it ") for one in result.skipped} == {
        "is on a read-only mount"
    }
    assert (tree / "free").read_bytes() == b"one"
