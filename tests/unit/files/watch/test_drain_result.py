"""When a finding stands for everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.tree import DirtyPaths
from holdfast.files.watch import _drain_result as module
from holdfast.files.watch._drain_result import DrainResult, vanished_or_shared

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = DirtyPaths(everything=True, paths=frozenset())


def test_paths_are_collected() -> None:
    findings = DrainResult()
    findings.add(b"a/b")
    findings.add(b"a/b")
    findings.add(b"c")
    assert findings.dirty() == DirtyPaths(everything=False, paths=frozenset([b"a/b", b"c"]))


@pytest.mark.parametrize("path", [b"", b".git", b".gitignore", b"a/b/.gitignore", b".checkpointignore"])
def test_paths_that_stand_for_everything(path: bytes) -> None:
    findings = DrainResult()
    findings.add(path)
    assert findings.dirty() == EVERYTHING
    assert findings.rules_changed


def test_a_doubt_makes_it_everything() -> None:
    findings = DrainResult()
    findings.add(b"a")
    findings.mark_uncertain("a reason")
    findings.add(b"b")
    assert findings.dirty() == EVERYTHING


def test_too_many_paths_are_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PATHS", 3)
    findings = DrainResult()
    for number in range(4):
        findings.add(b"%d" % number)
    assert findings.dirty() == EVERYTHING


def test_written_files_that_are_gone_or_have_more_names(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    os.link(tmp_path / "two", tmp_path / "three")
    fd = os.open(tmp_path, os.O_RDONLY)
    findings = DrainResult()
    assert vanished_or_shared(fd, [b"one", b"gone", b"one/below"], findings) == [b"gone", b"one/below"]
    assert not findings.everything
    vanished_or_shared(fd, [b"two"], findings)
    assert findings.everything
    os.close(fd)
