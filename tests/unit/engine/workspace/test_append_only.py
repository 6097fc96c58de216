"""Directories that take new entries and give none away again: nothing of ours is left in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

SAID = "its directory takes new entries and gives none away again (chattr +a)"


@pytest.fixture
def lock() -> Iterator[Callable[[Path], None]]:
    """Lets a directory only grow; until the end of the test."""
    locked: list[Path] = []

    def change(path: Path) -> None:
        if (
            shutil.which("chattr") is None
            or subprocess.run(["chattr", "+a", path], capture_output=True, check=False).returncode
        ):
            pytest.skip("needs chattr, the right to use it and a file system that has it")
        locked.append(path)

    yield change
    for path in locked:
        subprocess.run(["chattr", "-a", path], check=True)


@pytest.mark.parametrize("at", ["", "only"], ids=["root", "directory"])
def test_a_directory_that_only_grows_is_left_alone(
    workspace: Workspace, tree: Path, lock: Callable[[Path], None], at: str
) -> None:
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
    assert skipped.pop("new") == "Operation not permitted"
    assert skipped == dict.fromkeys(("edited", "removed", "inner/file"), SAID)
    assert sorted(os.listdir(directory)) == before
    assert (directory / "edited").read_bytes() == b"two"
    assert (tree / "free/file").read_bytes() == b"one"
