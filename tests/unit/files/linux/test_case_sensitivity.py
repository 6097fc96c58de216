"""What a file system takes for the same name, found out without writing anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.linux.case_sensitivity import ignores_case
from holdfast.model.clock import SystemClock
from holdfast.testing.bridged import Bridged
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog

from ....fuse import ONLY_WITH_FUSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(name="caseless")
def _caseless(tmp_path: Path) -> Iterator[Path]:
    """A mounted tree whose file system looks up every name in small letters."""
    for name in ("tree", "log", "mounted"):
        (tmp_path / name).mkdir()
    root = os.open(tmp_path / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(tmp_path / "log"), root, SystemClock())
    step = LocalUndoService(log, intercepts=True).open("command", command=(b"x",))
    with Bridged(log, root, step, bytes(tmp_path / "mounted")) as bridged:
        names = bridged.caches.directory.names
        lookup = names.lookup
        names.lookup = lambda parent, name: lookup(parent, name.lower())
        yield tmp_path
    log.close()
    os.close(root)


@ONLY_WITH_FUSE
@pytest.mark.parametrize("names", [["readme"], ["1", "2", "some-file"]])
def test_a_file_system_that_ignores_case_is_known_by_what_is_there(caseless: Path, names: list[str]) -> None:
    for name in names:
        (caseless / "tree" / name).touch()
    assert ignores_case(bytes(caseless / "mounted"))


@ONLY_WITH_FUSE
def test_an_empty_directory_of_one_is_known_by_its_own_name(caseless: Path) -> None:
    (caseless / "tree" / "empty").mkdir()
    assert ignores_case(bytes(caseless / "mounted" / "empty"))


def test_names_that_differ_in_case_alone_are_told_apart(tmp_path: Path) -> None:
    assert not ignores_case(bytes(tmp_path))
    (tmp_path / "readme").touch()
    assert not ignores_case(bytes(tmp_path))
    os.link(tmp_path / "readme", tmp_path / "README")
    assert not ignores_case(bytes(tmp_path)), "one file may have both names"
    (tmp_path / "empty").mkdir()
    (tmp_path / "EMPTY").mkdir()
    assert not ignores_case(bytes(tmp_path / "empty"))
