"""Directories within directories, far deeper than Python's own recursion goes."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

DEPTH = 1_600
DEEP = b"/".join([b"d"] * DEPTH) + b"/"


def at(tree: Path, path: bytes) -> bytes:
    return os.path.join(os.fsencode(tree), path)


def write(tree: Path, path: bytes, content: bytes) -> None:
    parent = os.fsencode(tree)
    for part in path.split(b"/")[:-1]:
        parent += b"/" + part
        if not os.path.isdir(parent):
            os.mkdir(parent)
    with open(at(tree, path), "wb") as file:
        file.write(content)


def read(tree: Path, path: bytes) -> bytes | None:
    try:
        with open(at(tree, path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where trees may be that are too deep for pytest to remove."""
    yield tmp_path
    subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)


def test_a_tree_of_1600_directories_in_each_other_goes_there_and_back(
    place: Path, workspace: Workspace, tree: Path
) -> None:
    write(tree, DEEP + b"f", b"one")
    write(tree, DEEP + b"gone", b"gone")
    assert workspace.checkpoint("first").checkpoint.total_files == 2
    write(tree, DEEP + b"f", b"two")
    os.unlink(at(tree, DEEP + b"gone"))
    write(tree, DEEP + b"e/new", b"new")
    workspace.checkpoint("second")
    diff = workspace.diff("first", "second", renames=False)
    assert {(change.path, change.status) for change in diff.changes} == {
        (DEEP + b"e/new", "A"),
        (DEEP + b"f", "M"),
        (DEEP + b"gone", "D"),
    }
    result = workspace.restore("first")
    assert (set(result.written), result.deleted, result.skipped) == (
        {DEEP + b"f", DEEP + b"gone"},
        [DEEP + b"e/new"],
        [],
    )
    assert (read(tree, DEEP + b"f"), read(tree, DEEP + b"gone"), read(tree, DEEP + b"e/new")) == (b"one", b"gone", None)
    assert not os.path.exists(at(tree, DEEP + b"e"))
    workspace.undo()
    assert (read(tree, DEEP + b"f"), read(tree, DEEP + b"gone"), read(tree, DEEP + b"e/new")) == (b"two", None, b"new")
    fork = place / "fork"
    workspace.fork("first", fork)
    assert (read(fork, DEEP + b"f"), read(fork, DEEP + b"gone")) == (b"one", b"gone")
    os.unlink(at(tree, DEEP + b"f"))
    os.unlink(at(tree, DEEP + b"e/new"))
    workspace.checkpoint("empty")
    workspace.restore("first")
    assert (read(tree, DEEP + b"f"), read(tree, DEEP + b"gone")) == (b"one", b"gone")
    write(tree, b"a", b"a")
    workspace.checkpoint("with a")
    for path in (b"f", b"gone"):
        os.unlink(at(tree, DEEP + path))
    result = workspace.restore("with a")
    assert set(result.written) == {DEEP + b"f", DEEP + b"gone"}
