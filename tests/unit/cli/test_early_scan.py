"""Where a scan is started before the catalog is open, and where none is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.cli import early_scan
from holdfast.engine.opening.home import FORK_NOTE, INDEX, WATCH_SOCKET
from holdfast.files.scan import parallel_scan
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

Started = list[tuple[bytes, bytes]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The roots that early scans were started on, each with the index."""
    found: Started = []
    monkeypatch.setattr(parallel_scan, "start_early", lambda root, index: found.append((root, index)))
    return found


@pytest.fixture
def folder(workspace: Workspace, tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The folder of a workspace at ``tree`` that the home has noted."""
    monkeypatch.setattr(parallel_scan, "MIN_FILES", 2)
    (tree / "inner").mkdir()
    for name in ("one", "inner/two"):
        (tree / name).write_text(name)
    workspace.checkpoint()
    return bytes(home / "workspaces" / workspace.id)


def link(home: Path, root: Path) -> Path:
    return home / "places" / hash_bytes(bytes(root)).hex()


def test_the_workspace_around_a_directory_is_scanned(folder: bytes, tree: Path, home: Path, started: Started) -> None:
    (tree.parent / "link").symlink_to("tree/inner")
    for directory in (tree, tree / "inner", tree.parent / "link"):
        early_scan.start(str(directory), str(home), {})
    early_scan.start(str(tree), None, {"HOLDFAST_HOME": str(home)})
    assert started == [(bytes(tree), os.path.join(folder, INDEX))] * 4


def test_none_is_started_where_nothing_is_noted(folder: bytes, tree: Path, home: Path, started: Started) -> None:
    early_scan.start(str(tree.parent), str(home), {})
    early_scan.start(str(tree), str(tree.parent / "other"), {})
    early_scan.start(str(tree), None, {})
    assert not started


def test_none_is_started_from_inside_of_a_run(folder: bytes, tree: Path, home: Path, started: Started) -> None:
    early_scan.start(str(tree), str(home), {"HOLDFAST_RUN": "1"})
    assert not started


@pytest.mark.parametrize("name", [WATCH_SOCKET, FORK_NOTE])
def test_none_is_started_where_a_watcher_knows_what_has_changed(
    folder: bytes, tree: Path, home: Path, started: Started, name: bytes
) -> None:
    there = os.path.join(folder, name)
    os.mkfifo(there)
    early_scan.start(str(tree), str(home), {})
    os.unlink(there)
    assert not started


@pytest.mark.parametrize("target", ["..", "../workspaces", "/", "0123456789ABCDEF", "x" * 200])
def test_a_note_that_is_none_leads_nowhere(
    folder: bytes, tree: Path, home: Path, started: Started, target: str
) -> None:
    link(home, tree).unlink()
    link(home, tree).symlink_to(target)
    early_scan.start(str(tree), str(home), {})
    assert not started


def test_a_workspace_that_was_moved_is_noted_anew(
    folder: bytes, tree: Path, home: Path, workspace: Workspace, started: Started
) -> None:
    workspace.close()
    moved = tree.rename(tree.with_name("moved"))
    (moved / "one").write_text("edited")
    with holdfast.open(moved, home=home) as again:
        again.checkpoint()
    early_scan.start(str(moved), str(home), {})
    assert started == [(bytes(moved), os.path.join(folder, INDEX))]
    moved.rename(tree)


@pytest.mark.parametrize("directory", ["\0", "\ud800"])
def test_what_can_be_no_directory_is_refused_when_it_is_opened(directory: str, home: Path, started: Started) -> None:
    early_scan.start(directory, str(home), {})
    assert not started
