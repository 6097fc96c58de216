"""Where a scout is sent before the catalog is asked, and where none is."""

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

Sent = list[tuple[bytes, bytes]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The roots that scouts were sent to, each with the index."""
    found: Sent = []
    monkeypatch.setattr(early_scan, "send_ahead", lambda root, index: found.append((root, index)))
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


def test_a_scout_goes_through_the_workspace_around(folder: bytes, tree: Path, home: Path, sent: Sent) -> None:
    (tree.parent / "link").symlink_to("tree/inner")
    for directory in (tree, tree / "inner", tree.parent / "link"):
        early_scan.send(str(directory), str(home), {})
    early_scan.send(str(tree), None, {"HOLDFAST_HOME": str(home)})
    assert sent == [(bytes(tree), os.path.join(folder, INDEX))] * 4


def test_none_is_sent_where_nothing_is_noted(folder: bytes, tree: Path, home: Path, sent: Sent) -> None:
    early_scan.send(str(tree.parent), str(home), {})
    early_scan.send(str(tree), str(tree.parent / "other"), {})
    early_scan.send(str(tree), None, {})
    assert not sent


def test_none_is_sent_from_inside_of_a_run(folder: bytes, tree: Path, home: Path, sent: Sent) -> None:
    early_scan.send(str(tree), str(home), {"HOLDFAST_RUN": "1"})
    assert not sent


@pytest.mark.parametrize("name", [WATCH_SOCKET, FORK_NOTE])
def test_none_is_sent_where_others_know_what_has_changed(
    folder: bytes, tree: Path, home: Path, sent: Sent, name: bytes
) -> None:
    there = os.path.join(folder, name)
    os.mkfifo(there)
    early_scan.send(str(tree), str(home), {})
    os.unlink(there)
    assert not sent


@pytest.mark.parametrize("target", ["..", "../workspaces", "/", "0123456789ABCDEF", "x" * 200])
def test_a_note_that_is_none_leads_nowhere(folder: bytes, tree: Path, home: Path, sent: Sent, target: str) -> None:
    link(home, tree).unlink()
    link(home, tree).symlink_to(target)
    early_scan.send(str(tree), str(home), {})
    assert not sent


def test_a_workspace_that_was_moved_is_noted_anew(
    folder: bytes, tree: Path, home: Path, workspace: Workspace, sent: Sent
) -> None:
    workspace.close()
    moved = tree.rename(tree.with_name("moved"))
    (moved / "one").write_text("edited")
    with holdfast.open(moved, home=home) as again:
        again.checkpoint()
    early_scan.send(str(moved), str(home), {})
    assert sent == [(bytes(moved), os.path.join(folder, INDEX))]
    moved.rename(tree)


@pytest.mark.parametrize("directory", ["\0", "\ud800"])
def test_what_can_be_no_directory_is_for_whoever_opens_it_to_refuse(directory: str, home: Path, sent: Sent) -> None:
    early_scan.send(directory, str(home), {})
    assert not sent
