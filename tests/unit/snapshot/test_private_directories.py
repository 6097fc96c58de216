"""Directories that are the user's alone are made whatever others remove meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.snapshot import private_directories
from holdfast.snapshot.private_directories import make_private


def test_what_another_session_removes_as_it_tidies_up_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes directories that are empty: one may be so between two steps of somebody else."""
    real = os.mkdir
    removed: list[bytes] = []

    def mkdir(path: bytes, mode: int) -> None:
        if os.path.basename(path) == b"inner" and len(removed) < 3:
            os.rmdir(os.path.dirname(path))
            removed.append(path)
        real(path, mode)

    monkeypatch.setattr(private_directories.os, "mkdir", mkdir)
    wanted = os.fsencode(tmp_path / "above" / "inner")
    make_private(wanted)
    assert len(removed) == 3
    assert os.stat(wanted).st_mode & 0o777 == 0o700
    assert os.stat(os.path.dirname(wanted)).st_mode & 0o777 == 0o700


def test_where_nothing_can_be_made_it_is_said(tmp_path: Path) -> None:
    os.symlink("nowhere", tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        make_private(os.fsencode(tmp_path / "link" / "inner"))
