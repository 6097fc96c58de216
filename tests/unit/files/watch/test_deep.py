"""Watching directories within directories, deeper than Python's recursion and than any path of a system call."""

from __future__ import annotations

import os
import re
import select
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.local_tree import LocalTree
from holdfast.files.watch import open_watcher
from holdfast.model.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.files.watch import Backend

NAME = b"directory"
LEVELS = 4095 // (len(NAME) + 1)
"""So many levels have paths that a system call takes, with a file in the last of them."""
TOO_MANY = LEVELS + 200


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    # Not on the file system of the other tests: what happens in paths that no system call takes makes every fanotify
    # watcher there doubt.
    shared = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else tmp_path))
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)  # too deep for pytest


def make_deep(root: Path, levels: int, name: bytes = NAME) -> int:
    """Make directories within each other; returns a descriptor of the innermost."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=at)
        os.close(at)
        at = inner
    return at


def watches() -> int:
    """How many inotify watches this process has."""
    found = 0
    for info in Path("/proc/self/fdinfo").iterdir():
        try:
            found += len(re.findall(r"^inotify wd:", info.read_text(), re.MULTILINE))
        except OSError:
            continue
    return found


def test_what_is_too_deep_to_be_captured_is_not_watched(root: Path) -> None:
    os.close(make_deep(root, TOO_MANY))
    before = watches()
    watcher = open_watcher(bytes(root), "inotify")
    try:
        assert watches() - before <= LEVELS + 2  # and the root, and what is above it
        assert watches() - before >= LEVELS
    finally:
        watcher.close()


@pytest.mark.parametrize("backend", ["inotify", "fanotify"])
def test_a_change_far_below_is_noticed_when_the_rules_are_to_be_asked_anew(root: Path, backend: Backend) -> None:
    tree = LocalTree(bytes(root))
    levels = 1_400
    innermost = make_deep(root, levels, b"d")
    try:
        watcher = open_watcher(bytes(root), backend, tree.excluded)
    except UnsupportedError as error:
        pytest.skip(f"needs {backend}: {error.message}")
    try:
        watcher.drain()
        tree.excluded.refresh()
        os.mkdir(b"new", dir_fd=innermost)
        assert select.select([watcher], [], [], 10)[0]
        assert b"d/" * levels + b"new" in watcher.drain().paths
    finally:
        watcher.close()
        os.close(innermost)
