"""Where no thread can be started, everything is done without."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace


@pytest.fixture
def _no_threads() -> Iterator[None]:
    threading.stack_size(1 << 45)  # there is no such room for one
    with pytest.raises(RuntimeError):
        threading.Thread(target=print).start()
    yield
    threading.stack_size(0)


@pytest.mark.usefixtures("_no_threads")
def test_saving_and_going_back_need_no_thread(workspace: Workspace, tree: Path) -> None:
    def fill() -> dict[str, bytes]:
        contents = {f"f{number}": os.urandom(100_000) for number in range(150)}
        for name, content in contents.items():
            (tree / name).write_bytes(content)
        return contents

    before = fill()
    workspace.checkpoint("one")
    fill()
    workspace.undo()
    assert {path.name: path.read_bytes() for path in tree.iterdir()} == before
    assert workspace.verify(read_data=True).ok
