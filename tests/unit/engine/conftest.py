"""What the tests of several modules about bundles, or about the watcher, share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.schedule import Pace
from holdfast.engine.watching import Setup

from .bundle_home import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_home(tmp_path: Path) -> Iterator[Callable[[str], Home]]:
    homes: list[Home] = []

    def make(name: str) -> Home:
        homes.append(Home(tmp_path / name))
        return homes[-1]

    yield make
    for one in homes:
        one.assert_sound()
        one.store.close()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    root, folder = tmp_path / "root", tmp_path / "folder"
    root.mkdir()
    (root / "sub").mkdir()
    folder.mkdir(mode=0o700)
    # Nothing is saved by itself unless a test wants it.
    slow = Pace(debounce=1000, latest=1000)
    return Setup(os.fsencode(root), os.fsencode(folder), "inotify", slow, rest=0.0)
