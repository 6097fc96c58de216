"""What a look at the whole tree notices."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from holdfast.files.watch import open_watcher
from holdfast.files.watch._polling import TreeComparison

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "a/b/file").write_text("1")
    return tmp_path


@pytest.fixture(autouse=True)
def _without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.files.watch._polling._REST", 0)


def look(root: Path) -> TreeComparison:
    return TreeComparison(os.fsencode(root), lambda path: path == b"out")


@pytest.mark.parametrize(
    "edit",
    [
        lambda root: (root / "a/b/file").write_text("22"),
        lambda root: (root / "a/b/file").chmod(0o600),
        lambda root: (root / "a/b/file").unlink(),
        lambda root: (root / "a/b/file").rename(root / "a/file"),
        lambda root: (root / "a/b").rename(root / "a/c"),
        lambda root: (root / "a/b/link").symlink_to("file"),
        shutil.rmtree,
    ],
)
def test_a_change_is_noticed_once(root: Path, edit: Callable[[Path], object]) -> None:
    tree = look(root)
    assert tree.changed()
    assert not tree.changed()
    edit(root)
    assert tree.changed()
    assert not tree.changed()


def test_what_is_excluded_is_not_looked_at(root: Path) -> None:
    tree = look(root)
    assert tree.changed()
    (root / "out/file").write_text("1")
    assert not tree.changed()


def test_a_long_look_is_followed_by_a_rest_and_what_came_meanwhile_is_noticed_after_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.files.watch._polling._REST", 9)
    now = [0.0]

    def passing() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(time, "monotonic", passing)
    tree = look(root)
    assert tree.changed()
    (root / "a/b/file").write_text("22")
    for _ in range(8):
        assert not tree.changed()
    assert tree.changed()


def test_an_answer_between_two_looks_is_everything_and_no_news(root: Path) -> None:
    with closing(open_watcher(os.fsencode(root), "polling", poll_interval=3600)) as watcher:
        assert watcher.drain() == (True, frozenset(), True)
        (root / "a/b/file").write_text("22")
        assert watcher.drain() == (True, frozenset(), False)
