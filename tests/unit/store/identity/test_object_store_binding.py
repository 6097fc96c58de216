"""A catalog and the store that it speaks of belong together."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep import store_copies
from holdfast.model.errors import ConfigError, StorageError


@pytest.fixture(name="saved")
def _saved(tree: Path, home: Path) -> None:
    (tree / "file").write_text("kept\n")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()


def opened(tree: Path, home: Path, url: Path | str) -> holdfast.Workspace:
    return holdfast.open(tree, home=home, flags={"store.url": str(url)})


@pytest.mark.usefixtures("saved")
def test_a_url_where_the_objects_are_not_is_refused_and_both_places_are_named(
    tree: Path, home: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            opened(tree, home, tmp_path / "elsewhere")
        assert caught.value.message == (f"the objects of {home} are in {home}/objects, and not in {tmp_path}/elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).ok


@pytest.mark.usefixtures("saved")
def test_objects_may_be_moved(tree: Path, home: Path, tmp_path: Path) -> None:
    shutil.move(home / "objects", tmp_path / "elsewhere")
    with opened(tree, home, f"file://{tmp_path}/elsewhere/") as workspace:
        assert workspace.verify(read_data=True).ok
        (tree / "file").write_text("more\n")
        workspace.checkpoint()
    with opened(tree, home, tmp_path / "elsewhere") as workspace:
        assert workspace.verify(read_data=True).ok
    with pytest.raises(ConfigError, match=f"are in {tmp_path}/elsewhere, and not in {home}/objects"):
        holdfast.open(tree, home=home)


@pytest.mark.usefixtures("saved")
def test_a_home_may_be_moved_with_its_objects(tree: Path, home: Path, tmp_path: Path) -> None:
    home.rename(tmp_path / "moved")
    with holdfast.open(tree, home=tmp_path / "moved") as workspace:
        assert workspace.verify(read_data=True).ok


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("note", [None, b"", b"/damaged\xff"])
def test_a_note_that_is_lost_or_damaged_is_written_anew(tree: Path, home: Path, note: bytes | None) -> None:
    path = home / "objects.url"
    if note is None:
        path.unlink()
    else:
        path.write_bytes(note)
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.status().clean
    assert path.read_bytes() in (b"\n", b"")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("saved")
def test_no_copy_is_begun_that_could_not_be_told_from_a_store(home: Path, tmp_path: Path) -> None:
    """Killed half-way, it would be opened as if it were whole."""
    other = tmp_path / "other"
    (other / "objects.url").mkdir(parents=True)
    opener = Opener(home=os.fsencode(home))
    try:
        with pytest.raises(StorageError, match="cannot write"):
            store_copies.copy(opener, to_home=os.fsencode(other))
    finally:
        opener.close()
    assert not [path for path in (other / "objects").rglob("*") if path.is_file()]
