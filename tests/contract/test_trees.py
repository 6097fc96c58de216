"""The contract of the tree port, over every implementation."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.local_tree import LocalTree
from holdfast.model.entries import SYMLINK_MODE
from holdfast.testing.memory_tree import MemoryTree
from holdfast.testing.tree_contract import TreeContract
from holdfast.testing.trees import EditableTree

if TYPE_CHECKING:
    from holdfast.files.tree import Tree


class EditableMemory(MemoryTree):
    """The memory tree is edited by its own methods."""

    @property
    def tree(self) -> Tree:
        return self


class EditableDirectory:
    """A directory, edited as any program would."""

    def __init__(self, path: Path, index: Path) -> None:
        path.mkdir()
        self.root = bytes(path)
        self.tree: Tree = LocalTree(self.root, index=bytes(index))

    def at(self, path: bytes) -> bytes:
        return self.root + b"/" + path

    def write(self, path: bytes, content: bytes, permissions: int = 0o644) -> None:
        self._make_way(path)
        with open(self.at(path), "wb") as file:
            file.write(content)
        os.chmod(self.at(path), permissions)

    def symlink(self, path: bytes, target: bytes) -> None:
        self._make_way(path)
        if os.path.lexists(self.at(path)):
            os.unlink(self.at(path))
        os.symlink(target, self.at(path))

    def special(self, path: bytes) -> None:
        self._make_way(path)
        os.mkfifo(self.at(path))

    def chmod(self, path: bytes, permissions: int) -> None:
        os.chmod(self.at(path), permissions)

    def mkdir(self, path: bytes) -> None:
        os.makedirs(self.at(path), exist_ok=True)

    def delete(self, path: bytes) -> None:
        if os.path.isdir(self.at(path)) and not os.path.islink(self.at(path)):
            shutil.rmtree(self.at(path))
        else:
            os.unlink(self.at(path))

    def contents(self) -> dict[bytes, tuple[int, bytes]]:
        found: dict[bytes, tuple[int, bytes]] = {}
        for parent, directories, files in os.walk(self.root):
            for name in [*directories, *files]:
                path = parent + b"/" + name
                inner = os.path.relpath(path, self.root)
                if os.path.islink(path):
                    found[inner] = (SYMLINK_MODE, os.readlink(path))
                elif os.path.isfile(path):
                    found[inner] = (os.stat(path).st_mode, Path(os.fsdecode(path)).read_bytes())
        return found

    def _make_way(self, path: bytes) -> None:
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        if os.path.islink(self.at(path)):
            os.unlink(self.at(path))


class TestMemoryTree(TreeContract):
    @pytest.fixture
    def space(self) -> EditableTree:
        return EditableMemory()


class TestLocalTree(TreeContract):
    @pytest.fixture
    def space(self, tmp_path: Path) -> EditableTree:
        return EditableDirectory(tmp_path / "tree", tmp_path / "index")
