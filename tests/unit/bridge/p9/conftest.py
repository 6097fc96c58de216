"""A tree for each test, and that nothing is left open of it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from .served import RecordedTree

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Generator[RecordedTree]:
    """Every test ends with the tree as it was, undone, and with no thread, node or descriptor more."""
    top = tmp_path / "tree"
    (top / "d" / "e").mkdir(parents=True)
    (top / "d" / "f").write_bytes(b"content")
    (top / "a").write_bytes(b"0123456789")
    (top / "l").symlink_to("d/f")
    threads, descriptors = threading.active_count(), os.listdir("/proc/self/fd")
    tree = RecordedTree(tmp_path)
    try:
        yield tree
        assert tree.known_nodes() == 1
        assert tree.undo() == []
    finally:
        tree.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
