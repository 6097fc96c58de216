"""I3: a spare, and a repair of the catalog, killed at every step, and on a disk that has no room for them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.upkeep.doctor import repair_catalog
from holdfast.model.errors import IntegrityError, StorageError
from holdfast.store import catalog_repair, catalog_spare
from holdfast.testing.crash_points import count_steps, run_killed

from ..disks import mounted

DAY = 24 * 3600 * 1_000_000


def history(tree: Path, home: Path) -> list[tuple[str, str, str | None]]:
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).problems == []
        return [(one.id, one.label, one.parent) for one in workspace.log().checkpoints]


def begin(tree: Path, home: Path) -> list[tuple[str, str, str | None]]:
    """A home with a spare and a checkpoint after it, whose catalog is damaged; what its history was."""
    tree.mkdir(exist_ok=True)
    for number in range(30):
        (tree / f"f{number}").write_text(f"{number}\n" * 30)
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("first")
        workspace.gc()
        (tree / "f1").write_text("changed")
        workspace.checkpoint("second")
    known = history(tree, home)
    with (home / "catalog.db").open("r+b") as file:
        file.write(b"no database" * 2000)
    (home / "catalog.db-wal").write_bytes(b"what was left of a log")
    return known


def copied(home: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(home, place)
    return place


def test_a_repair_that_is_killed_anywhere_is_done_by_the_next(tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "home"
    known = begin(tree, home)
    place = tmp_path / "copy"
    copied(home, place)
    steps = count_steps(lambda: repair_catalog(place))
    assert {"rename", "fsync", "commit", "mkdir"} <= set(steps)
    for fatal in range(1, len(steps) + 1):
        copied(home, place)
        assert run_killed(lambda: repair_catalog(place), fatal).killed
        # What comes in between begins no other catalog, and sees either nothing or all.
        with suppress(IntegrityError):
            assert history(tree, place) == known, steps[fatal - 1]
        repair_catalog(place)
        assert history(tree, place) == known, steps[fatal - 1]
        assert not list(place.glob("catalog.db.repaired*"))
        assert not list(place.glob("spares/unfinished"))


def test_a_spare_that_is_killed_anywhere_costs_no_other(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with holdfast.init(_tree(tmp_path), home=home) as workspace:
        workspace.checkpoint("first")
    template = os.fsencode(home)
    now = catalog_spare.EVERY * 99
    catalog_spare.take(template, template + b"/catalog.db", now)
    catalog_spare.take(template, template + b"/catalog.db", now + DAY)
    place = tmp_path / "copy"
    there = os.fsencode(place)

    def take() -> None:
        assert catalog_spare.take(there, there + b"/catalog.db", now + 2 * DAY)

    copied(home, place)
    own = count_steps(take)
    assert {"fsync", "rename", "unlink"} <= set(own)
    for fatal in range(1, len(own) + 1):
        copied(home, place)
        assert run_killed(take, fatal).killed
        left = catalog_spare.spares(there)
        assert len(left) >= 2, own[fatal - 1]
        assert [catalog_spare.damage(one.path) for one in left] == [[]] * len(left)
        take()
        assert [one.at for one in catalog_spare.spares(there)] == [now + 2 * DAY, now + DAY]
        assert sorted(os.listdir(there + b"/spares"))[2:] == [b"lock"]


def _tree(folder: Path) -> Path:
    tree = folder / "tree"
    tree.mkdir()
    (tree / "f").write_text("content\n")
    return tree


def test_on_a_full_disk_a_repair_changes_nothing_and_a_spare_is_not_begun(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted("tmpfs", disk):
        subprocess.run(["mount", "-o", "remount,size=24m", str(disk)], check=True)
        home = disk / "home"
        known = begin(tree, home)
        (home / "ballast").unlink()
        for spare in (home / "spares").glob("*.db"):
            shutil.copy(spare, tmp_path / spare.name)
        before = [(home / name).read_bytes() for name in ("catalog.db", "catalog.db-wal")]
        about = os.statvfs(disk)
        with (disk / "filler").open("wb") as file:
            file.write(bytes(about.f_bavail * about.f_frsize - (100 << 10)))
        with pytest.raises(StorageError):
            repair_catalog(home)
        assert [(home / name).read_bytes() for name in ("catalog.db", "catalog.db-wal")] == before
        assert not list(home.glob("catalog.db.repaired*"))
        path = os.fsencode(home)
        assert catalog_spare.take(path, path + b"/catalog.db", catalog_spare.EVERY * 99_999) is None
        assert len(catalog_spare.spares(path)) == 1
        (disk / "filler").unlink()
        assert repair_catalog(home) is not None
        assert history(tree, home) == known


def test_a_spare_that_meets_the_end_of_the_disk_is_not_left_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted("tmpfs", disk):
        home = disk / "home"
        with holdfast.init(_tree(tmp_path), home=home) as workspace:
            workspace.checkpoint("first")
        path = os.fsencode(home)
        # (Others have taken the room since it was looked for.)
        monkeypatch.setattr(catalog_spare, "_free", lambda _: 1 << 40)
        about = os.statvfs(disk)
        with (disk / "filler").open("wb") as file:
            file.write(bytes(about.f_bavail * about.f_frsize - (64 << 10)))
        with pytest.raises(StorageError, match="spare"):
            catalog_spare.take(path, path + b"/catalog.db", DAY)
        assert sorted(os.listdir(path + b"/spares")) == [b"lock"]
        with closing(sqlite3.connect(home / "catalog.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_a_repair_begins_with_is_never_written_to(tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "home"
    begin(tree, home)
    spares = {path: path.read_bytes() for path in (home / "spares").glob("*.db")}
    objects = {path: path.read_bytes() for path in (home / "objects").rglob("*") if path.is_file()}
    repaired = repair_catalog(home)
    assert repaired is not None
    assert {path: path.read_bytes() for path in (home / "spares").glob("*.db")} == spares
    assert {path: path.read_bytes() for path in (home / "objects").rglob("*") if path.is_file()} == objects
    assert repaired.kept_as is not None
    assert os.listdir(repaired.kept_as)
    assert catalog_repair.damage_of(os.fsencode(home)) is None
