"""`doctor --repair`: a damaged or lost catalog comes back from a spare and from headers, with all that they say."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from contextlib import closing

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep.doctor import repair_catalog
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import IntegrityError, LockedError, StorageError
from holdfast.store import catalog_repair, catalog_spare
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog_records import VanishedError
from holdfast.testing.clocks import ManualClock

FILES = 90


def damage(home):
    path = home / "catalog.db"
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"garbage" * 1200)


def empty(home):
    for path in home.glob("catalog.db*"):
        path.write_bytes(b"")


def lose(home):
    for path in home.glob("catalog.db*"):
        path.unlink()


def overwrite_header(home):
    with (home / "catalog.db").open("r+b") as file:
        file.write(b"not a database at all")


def said(workspace):
    """All that is known of each checkpoint, but for what is counted anew."""
    log = workspace.log().checkpoints
    return [one._replace(new_blobs=0, stored_bytes=0) for one in log]


def spare(home):
    with holdfast.open_home(home) as opened:
        opened.gc()
    assert catalog_spare.spares(os.fsencode(home))


@pytest.fixture
def saved(tree, home):
    """Checkpoints of every kind of change, and what was known of them."""
    for number in range(FILES):
        (tree / f"f{number:02d}").write_text(f"text {number}\n" * 20)
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("first")
        (tree / "f00").write_text("changed")
        (tree / "f01").unlink()
        workspace.checkpoint("second", message="why", author="me")
    return tree


def more(tree, home):
    """A new state, and one that there was before: of the latter no page is new."""
    with holdfast.open(tree, home=home) as workspace:
        (tree / "f02").write_text("later")
        workspace.checkpoint("third", message="later", command="make")
        (tree / "f02").write_text("text 2\n" * 20)
        workspace.checkpoint("fourth")
        return said(workspace)


def content(home, tree, name):
    with holdfast.open(tree, home=home) as workspace:
        return {path: workspace.cat(name, path) for path in (b"f00", b"f02") if path}


@pytest.mark.parametrize("hurt", [damage, empty, lose, overwrite_header])
@pytest.mark.parametrize("with_spare", [True, False])
def test_everything_that_headers_and_the_spare_say_comes_back(saved, home, hurt, with_spare):
    if with_spare:
        spare(home)
    before = more(saved, home)
    hurt(home)
    with pytest.raises(IntegrityError) as error:
        holdfast.open(saved, home=home)
    assert "doctor --repair" in (error.value.hint or "")
    repaired = repair_catalog(home)
    assert repaired is not None
    assert (repaired.checkpoints, repaired.lost, repaired.problems) == (4, 0, 0)
    assert repaired.brought_back == (2 if with_spare else 4)
    assert (repaired.spare is not None) == with_spare
    assert stat.S_IMODE(os.stat(home / "catalog.db").st_mode) == 0o600
    with holdfast.open(saved, home=home) as workspace:
        assert said(workspace) == before
        assert workspace.status().clean
        assert workspace.verify(read_data=True).problems == []
        workspace.gc(grace=0, recount=True)
        workspace.restore("third")
        assert (saved / "f02").read_text() == "later"
        workspace.undo()
        assert (saved / "f02").read_text() == "text 2\n" * 20
        (saved / "f05").write_text("goes on")
        workspace.checkpoint("fifth")
        assert workspace.verify(read_data=True).problems == []
    assert repair_catalog(home) is None, "it is whole"


def test_checkpoints_that_are_equal_all_come_back(saved, home, monkeypatch):
    """As a commit that is tried again leaves them: any of them may be the one that is known."""
    commit, tries = Catalog.commit, []

    def vanish(self, asked):
        tries.append(asked.checkpoint.id)
        if len(tries) < 3:
            raise VanishedError(())
        return commit(self, asked)

    opener = Opener(home=os.fsencode(home), clock=ManualClock())
    with closing(Workspace(opener, opener.open(os.fsencode(saved)))) as workspace:
        monkeypatch.setattr(Catalog, "commit", vanish)
        (saved / "f02").write_text("later")
        known = workspace.checkpoint("third").checkpoint
        monkeypatch.undo()
    lose(home)
    repaired = repair_catalog(home)
    assert repaired is not None
    assert (repaired.checkpoints, repaired.brought_back, repaired.lost, repaired.problems) == (5, 5, 0, 0)
    with holdfast.open(saved, home=home) as workspace:
        assert {known.id, *tries} <= {one.id for one in said(workspace)}
        assert workspace.resolve("third") in tries


def test_without_anything_damaged_nothing_is_done(saved, home):
    before = {path: path.read_bytes() for path in home.rglob("*.db")}
    assert repair_catalog(home) is None
    assert {path: path.read_bytes() for path in home.rglob("*.db")} == before


def test_what_was_collected_and_forgotten_since_the_spare_stays_gone(saved, home):
    with holdfast.open(saved, home=home) as workspace:
        (saved / "large").write_bytes(os.urandom(2 << 20))
        workspace.checkpoint("large")
        (saved / "large").unlink()
        workspace.checkpoint("without it")
    spare(home)
    more(saved, home)
    with holdfast.open(saved, home=home) as workspace:
        workspace.forget(["large"])
        workspace.gc(grace=0)
        before = said(workspace)
    damage(home)
    repaired = repair_catalog(home)
    assert repaired is not None
    with holdfast.open(saved, home=home) as workspace:
        assert workspace.verify(read_data=True).problems == []
        labels = [one.label for one in said(workspace)]
        assert labels == [one.label for one in before]
        assert "large" not in labels
        assert [one.parent for one in said(workspace)] == [one.parent for one in before]


def test_a_spare_that_is_damaged_is_passed_over(saved, home, caplog):
    spare(home)
    more(saved, home)
    (newest,) = catalog_spare.spares(os.fsencode(home))
    younger = newest.path.replace(b"/0", b"/1")
    with open(newest.path, "rb") as source, open(younger, "wb") as cut:
        cut.write(source.read()[:20_000])
    damage(home)
    repaired = repair_catalog(home)
    assert repaired is not None
    assert repaired.spare == newest.at
    assert "is damaged as well" in caplog.text
    caplog.clear()


def test_a_spare_of_an_older_schema_is_brought_forward(saved, home):
    spare(home)
    before = more(saved, home)
    (newest,) = catalog_spare.spares(os.fsencode(home))
    with closing(sqlite3.connect(newest.path)) as database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
    lose(home)
    repair_catalog(home)
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == version
    with holdfast.open(saved, home=home) as workspace:
        assert said(workspace) == before


def test_trees_and_times_of_a_former_version_come_back(saved, home, monkeypatch):
    """Objects without headers, and no spare: one line of states in the order of their times."""
    from holdfast.store.manifests import checkpoint_header

    monkeypatch.setattr(checkpoint_header, "MAGIC", b"old\x01")
    lose(home)
    monkeypatch.setattr("holdfast.store._object_scan.MAGIC", b"HFX\x01")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.store._object_scan.ObjectScan.root_of", _root_without_header)
        repaired = repair_catalog(home)
    assert repaired is not None
    assert repaired.brought_back == 2


def _root_without_header(self, pack):
    from holdfast.model.errors import HoldfastError
    from holdfast.store.manifests.page_codec import children

    pages = {}
    for name in pack.hashes:
        try:
            (pages[name],) = self.pages.load([name])
        except HoldfastError:
            continue
    named = {child for page in pages.values() if page.level for child in children(page)}
    (top,) = pages.keys() - named
    return top


def test_what_has_the_catalog_open_is_not_put_out(saved, home):
    spare(home)
    with holdfast.open(saved, home=home) as workspace:
        workspace.log()
        # (By another process: to close the file in this one would let go of SQLite's locks.)
        size = os.path.getsize(home / "catalog.db")
        words = f"of={home / 'catalog.db'} bs=4096 seek={size // 4096 - 2} count=2 conv=notrunc".split()
        subprocess.run(["dd", "if=/dev/urandom", *words], check=True, capture_output=True)
        assert catalog_repair.damage_of(os.fsencode(home))
        with pytest.raises(LockedError, match="has the catalog open"):
            repair_catalog(home)
    assert repair_catalog(home) is not None


def test_two_repairs_are_not_at_work_at_once(saved, home):
    damage(home)
    with catalog_spare.locked(os.fsencode(home)), pytest.raises(LockedError):
        repair_catalog(home)
    assert repair_catalog(home) is not None


def test_a_checkpoint_that_lacks_something_is_not_brought_back(saved, home):
    with holdfast.open(saved, home=home) as workspace:
        (saved / "large").write_bytes(os.urandom(2 << 20))
        workspace.checkpoint("with a large file")
    (large,) = [path for path in (home / "objects/blobs").rglob("*") if path.is_file()]
    large.unlink()
    lose(home)
    repaired = repair_catalog(home)
    assert repaired is not None
    assert (repaired.checkpoints, repaired.lost, repaired.problems) == (2, 1, 0)


def test_a_failure_leaves_all_as_it_was(saved, home, monkeypatch):
    damage(home)
    before = (home / "catalog.db").read_bytes()

    def fail(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(catalog_repair, "_sync", fail)
    with pytest.raises(StorageError, match="as it was"):
        repair_catalog(home)
    monkeypatch.undo()
    assert (home / "catalog.db").read_bytes() == before
    assert not list(home.glob("catalog.db.repaired*"))
    assert repair_catalog(home) is not None


def test_the_header_survives_collection_of_what_it_lies_beside(saved, home):
    before = more(saved, home)
    with holdfast.open(saved, home=home) as workspace:
        for _ in range(3):
            workspace.gc(grace=0)
    lose(home)
    repair_catalog(home)
    with holdfast.open(saved, home=home) as workspace:
        assert said(workspace) == before


def test_verification_reads_headers_too(saved, home):
    """By the fourth checkpoint no page is new: its object is its header alone."""
    more(saved, home)
    objects = sorted((home / "objects" / "checkpoints" / "local").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with holdfast.open(saved, home=home) as workspace:
        assert workspace.stats().dead_bytes == 0
        for _ in range(2):  # also when what lies beside it was collected
            assert workspace.verify(read_data=True).problems == []
            workspace.gc(grace=0)
    path = objects[-1]
    data = path.read_bytes()
    path.chmod(0o600)
    at = data.index(b"HFH\x01") + 30
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with holdfast.open(saved, home=home) as workspace:
        assert workspace.verify().problems == []
        (found,) = workspace.verify(read_data=True).problems
    assert (found.kind, path.name in found.object) == ("damaged", True)
