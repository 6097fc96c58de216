"""A store that is copied is the same store: to a bucket and back, encrypted or not, killed on the way or not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep import store_copies
from holdfast.model.errors import HoldfastError, IntegrityError, LockedError
from holdfast.model.ids import CheckpointId
from holdfast.store import store_copy
from holdfast.store.catalog import row_copy
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.database.sql_database import SqliteDatabase, Transaction
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock

from ..buckets import CREDENTIALS, Answer, Asked, Service
from ..sampling import some
from ..stored import MIB, configured, contents, copy, copy_killed, fill, looks, new_key

pytest.importorskip("cryptography", reason="needs cryptography (extra dev)")

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def key(tmp_path: Path) -> str:
    return new_key(tmp_path / "key")


def test_every_table_of_the_schema_is_decided_upon(tmp_path: Path) -> None:
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    with database.reading() as transaction:
        names = transaction.all("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        assert sorted(table.name for table in row_copy.TABLES) == sorted(name for (name,) in names)
        for table in row_copy.TABLES:
            if table.how in ("rows", "numbered"):
                there = [row[1] for row in transaction.all(f"PRAGMA table_info({table.name})")]
                said = [column.strip() for column in table.columns.split(",")]
                own = {"tenant", "checksum", table.number}
                assert said == [column for column in there if column not in own], table.name
    database.close()


def test_a_store_goes_to_a_bucket_and_back(tmp_path: Path, service: Service, key: str) -> None:
    """The embedded one, S3 with encryption, and embedded again: each is the same to its user."""
    first, far, back, tree = (tmp_path / name for name in ("first", "far", "back", "tree"))
    names = fill(first, tree)
    seen = looks(first, tree)
    before = contents(first / "objects")
    configured(far, service, encryption_key=key)
    url = f"s3://{service.bucket()}/prefix"
    done = copy(first, to_home=os.fsencode(far), to_objects=url)
    assert done.copied.copied_objects == done.copied.objects == len(before)
    assert done.copied.rows["checkpoints"] >= len(names)
    assert contents(first / "objects") == before
    with (far / "config.toml").open("a") as file:
        file.write(f'url = "{url}"\n')
    assert looks(far, tree) == seen
    opener = Opener(home=os.fsencode(far))
    about = store_copies.info(opener)
    assert (about.remote, about.claimed, about.conditional_writes) == (True, url, "yes")
    assert about.encryption_key
    assert about.copy_of
    copied = copy(far, to_home=os.fsencode(back), to_key="")
    assert copied.copied.objects == len(before)
    assert looks(back, tree) == seen
    assert looks(first, tree) == seen
    assert contents(back / "objects") == before
    with holdfast.open(tree, home=back) as workspace:
        workspace.undo()
        workspace.redo()
        assert workspace.gc(grace=0).blobs_deleted >= 0


def test_the_same_copy_again_copies_nothing_and_a_used_one_is_refused(tmp_path: Path) -> None:
    home, other, tree = tmp_path / "home", tmp_path / "other", tmp_path / "tree"
    fill(home, tree)
    assert copy(home, to_home=os.fsencode(other)).copied.copied_objects > 0
    assert copy(home, to_home=os.fsencode(other)).copied.copied_objects == 0
    with holdfast.open(tree, home=other) as workspace:
        (tree / "newer").write_text("x")
        workspace.checkpoint()
    for target in (other, home):
        with pytest.raises(HoldfastError) as refused:
            copy(home, to_home=os.fsencode(target))
        assert refused.value.exit_code == 4
    stranger, its_tree = tmp_path / "stranger", tmp_path / "another tree"
    fill(stranger, its_tree)
    seen = looks(stranger, its_tree)
    for source in (home, other):
        with pytest.raises(HoldfastError) as refused:
            copy(source, to_home=os.fsencode(stranger))
        assert refused.value.code == "not_empty"
        assert looks(stranger, its_tree) == seen


def test_a_copy_that_another_process_has_finished_meanwhile_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one was stopped for longer than a lease lasts: what was saved there since is not cleared away."""
    home, other, tree = tmp_path / "home", tmp_path / "other", tmp_path / "tree"
    fill(home, tree)
    real = row_copy.clear

    def late(transaction: Transaction, tenant: int) -> None:
        raise AssertionError("it was cleared")

    def stopped(*_: object) -> Lease:
        monkeypatch.setattr(store_copy, "_lease", taken)
        lease = taken(*_)  # type: ignore[arg-type]
        lease.release()  # it has run out
        copy(home, to_home=os.fsencode(other))
        with holdfast.open(tree, home=other) as workspace:
            (tree / "newer").write_text("x")
            saved.append(workspace.checkpoint().checkpoint.id)
        monkeypatch.setattr(row_copy, "clear", late)
        return taken(*_)  # type: ignore[arg-type]

    saved: list[CheckpointId] = []
    taken = store_copy._lease
    monkeypatch.setattr(store_copy, "_lease", stopped)
    with pytest.raises(HoldfastError) as refused:
        copy(home, to_home=os.fsencode(other))
    assert refused.value.code == "not_empty"
    monkeypatch.setattr(row_copy, "clear", real)
    with holdfast.open(tree, home=other) as workspace:
        assert b"".join(workspace.cat(saved[0], "newer")) == b"x"


def test_objects_alone_go_elsewhere(tmp_path: Path, service: Service) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    configured(home, service)
    fill(home, tree)
    seen = looks(home, tree)
    url = f"s3://{service.bucket()}"
    assert copy(home, to_objects=url).copied.copied_objects > 0
    assert copy(home, to_objects=url).copied.copied_objects == 0
    (home / "objects").rename(tmp_path / "gone")
    with holdfast.open(tree, home=home) as workspace:
        assert not workspace.verify().ok
    with (home / "config.toml").open("a") as file:
        file.write(f'url = "{url}"\n')
    assert looks(home, tree) == seen
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "packs/local").mkdir(parents=True)
    (elsewhere / "packs/local/stranger").write_bytes(b"x")
    with pytest.raises(HoldfastError) as refused:
        copy(home, to_objects=str(elsewhere))
    assert refused.value.code == "not_empty"


def test_a_bucket_of_another_store_is_refused(tmp_path: Path, service: Service) -> None:
    """Two catalogs over the same objects would delete each other's (I11)."""
    one, two, three, tree = (tmp_path / name for name in ("one", "two", "three", "tree"))
    url = f"s3://{service.bucket()}"
    configured(one, service, url=url)
    configured(two, service, url=url)
    configured(three, service)
    names = fill(one, tree)
    seen = looks(one, tree)
    with pytest.raises(HoldfastError, match="belong to another store") as refused:
        fill(two, tmp_path / "its tree")
    assert refused.value.code == "claimed"
    assert refused.value.exit_code == 4
    fill(three, tmp_path / "third tree")
    with pytest.raises(HoldfastError) as refused:
        copy(three, to_objects=url)
    assert refused.value.code == "claimed"
    with holdfast.open(tree, home=one) as workspace:
        workspace.gc(grace=0)
    assert looks(one, tree) == seen
    opener = Opener(home=os.fsencode(two))
    store_copies.claim(opener, take=True)
    with holdfast.open(tree, home=one) as workspace:
        with pytest.raises(HoldfastError) as refused:
            workspace.gc(grace=0)
        assert refused.value.code == "claimed"
        assert b"".join(workspace.cat(names[0], "3.txt"))
    opener.close()


def test_a_bucket_with_objects_that_nobody_has_claimed_is_refused(tmp_path: Path, service: Service) -> None:
    home = tmp_path / "home"
    bucket = service.bucket()
    configured(home, service, url=f"s3://{bucket}")
    service.ask("PUT", f"/{bucket}/packs/local/{'a' * 32}", b"x")
    with pytest.raises(HoldfastError, match="knows nothing of"):
        fill(home, tmp_path / "tree")


def test_what_is_damaged_in_the_source_is_named_and_the_copy_stays_closed(tmp_path: Path) -> None:
    home, other, tree = tmp_path / "home", tmp_path / "other", tmp_path / "tree"
    fill(home, tree)
    pack = max((home / "objects" / "packs").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    raw = bytearray(pack.read_bytes())
    raw[len(raw) // 2] ^= 1
    pack.write_bytes(bytes(raw))
    with pytest.raises(IntegrityError, match="not sound"):
        copy(home, to_home=os.fsencode(other))
    with pytest.raises(HoldfastError) as refused:
        holdfast.open(tree, home=other)
    assert refused.value.code == "half_copied"
    raw[len(raw) // 2] ^= 1
    pack.write_bytes(bytes(raw))
    for path in (other / "objects").rglob(pack.name):
        path.unlink()
    assert copy(home, to_home=os.fsencode(other)).copied.copied_objects == 1
    assert looks(other, tree) == looks(home, tree)


def test_encryption_is_neither_turned_on_nor_off_over_objects_that_are_there(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    fill(home, tree)
    monkeypatch.setenv("HOLDFAST_STORE_ENCRYPTION_KEY", key)
    with pytest.raises(HoldfastError, match="not encrypted"):
        holdfast.open(tree, home=home)
    other, its_tree = tmp_path / "other", tmp_path / "its"
    fill(other, its_tree)
    assert all(raw.startswith(b"HFCRYP") for raw in contents(other / "objects").values())
    monkeypatch.delenv("HOLDFAST_STORE_ENCRYPTION_KEY")
    with pytest.raises(HoldfastError, match="are encrypted"):
        holdfast.open(its_tree, home=other)
    holdfast.open(tree, home=home).close()


def test_rows_are_copied_beside_another_tenant(tmp_path: Path) -> None:
    """I10: numbers of the other catalog, checksums made anew, and nothing of the tenant that is there is touched."""
    clock = ManualClock()
    fill(tmp_path / "home", tmp_path / "tree")
    target_db = SqliteDatabase(os.fsencode(tmp_path / "target.db"), MIGRATIONS, application_id=APPLICATION_ID)
    fill(tmp_path / "other home", tmp_path / "other tree")
    objects = open_objects(str(tmp_path / "home/objects"))
    theirs = open_objects(str(tmp_path / "other home/objects"))
    counts: dict[str, dict[str, int]] = {}
    for home, name, kept in (("other home", "other", theirs), ("home", "local", objects)):
        path = os.fsencode(tmp_path / home / "catalog.db")
        source = Catalog(SqliteDatabase(path, MIGRATIONS, application_id=APPLICATION_ID), "local", clock)
        target = Catalog(target_db, name, clock)
        with source.database.reading() as ours, target_db.writing() as transaction:
            counts[name] = row_copy.copy(ours, source.tenant, transaction, target.tenant)
            assert row_copy.count(ours, source.tenant) == counts[name] == row_copy.count(transaction, target.tenant)
        source.database.close()
        del kept
    found = Store(objects, Catalog(target_db, "local", clock)).verifier().verify(read_data=True)
    assert found.problems == []
    with target_db.reading() as transaction:
        assert row_copy.count(transaction, Catalog(target_db, "other", clock).tenant) == counts["other"]
    target_db.close()


def test_two_tenants_share_a_bucket_and_not_a_byte(tmp_path: Path, service: Service) -> None:
    """I10, I11: each claims its own part; what one collects and cleans is never the other's."""
    bucket = service.bucket()
    homes = [tmp_path / name for name in ("one", "two")]
    trees = [tmp_path / f"tree {name}" for name in ("one", "two")]
    for number, (home, tree) in enumerate(zip(homes, trees, strict=True)):
        configured(home, service, url=f"s3://{bucket}/p", tenant=f"tenant{number}")
        fill(home, tree)
    seen = [looks(home, tree) for home, tree in zip(homes, trees, strict=True)]
    with holdfast.open(trees[0], home=homes[0]) as workspace:
        name = workspace.checkpoint("doomed", full_hash=True).checkpoint.id
        assert name
        workspace.gc(grace=0)
    assert looks(homes[1], trees[1]) == seen[1]


def test_saved_states_are_looked_at_and_brought_back_while_the_bucket_cannot_be_reached(
    tmp_path: Path, service: Service
) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    configured(home, service, url=f"s3://{service.bucket()}")
    fill(home, tree)
    service.proxy.before = lambda _: Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
    with holdfast.open(tree, home=home) as workspace:
        log = workspace.log()
        assert log.checkpoints
        (tree / "5.txt").write_text("changed")
        assert workspace.diff().changes
        with pytest.raises(HoldfastError, match="denied"):
            workspace.checkpoint()
        service.proxy.reset()
        workspace.checkpoint()
        assert workspace.verify(read_data=True).ok


# --- killed ---


@pytest.mark.parametrize(
    "killed",
    [*some([f"directory {at}" for at in range(22)], 4), *some([f"bucket {at}" for at in range(26)], 4)],
)
def test_a_copy_killed_anywhere_goes_on(tmp_path: Path, service: Service, killed: str) -> None:
    """I3: until it is whole it is not opened; the same command again makes it whole."""
    to, point = killed.split()
    home, other, tree = tmp_path / "home", tmp_path / "other", tmp_path / "tree"
    fill(home, tree)
    url = ""
    if to == "bucket":
        configured(other, service)
        url = f"s3://{service.bucket()}/p"
        with (other / "config.toml").open("a") as file:
            file.write(f'url = "{url}"\n')
    if copy_killed(int(point), home, other, url) and (other / "catalog.db").exists():
        with pytest.raises(HoldfastError):
            holdfast.open(tree, home=other)
    done = copy(home, to_home=os.fsencode(other), to_objects=url or None)
    assert done.copied.objects >= done.copied.copied_objects
    assert looks(other, tree) == looks(home, tree)


def test_a_checkpoint_killed_while_its_packs_go_out_leaves_nothing_that_counts(
    tmp_path: Path, service: Service
) -> None:
    """I3, I11: between parts, and between a pack and the catalog's commit; collection finds what was begun."""
    home, tree = tmp_path / "home", tmp_path / "tree"
    bucket = service.bucket()
    configured(home, service, url=f"s3://{bucket}/p")
    fill(home, tree)
    seen = looks(home, tree)
    (tree / "huge").write_bytes(random.Random(9).randbytes(17 * MIB))
    (tree / "3.txt").write_text("changed again")
    words = [sys.executable, "-m", "holdfast", "--home", str(home), "-w", str(tree), "checkpoint"]
    for is_the_moment in (
        lambda asked: asked.is_part and "partNumber=2" in asked.path,
        lambda asked: asked.method == "PUT" and "/packs/" in asked.path,
        lambda asked: asked.method == "PUT" and "/checkpoints/" in asked.path,
    ):
        killed: list[int] = []

        def kill(asked: Asked, answer: Answer) -> Answer:
            if is_the_moment(asked) and not killed:  # noqa: B023 - called in this turn only
                killed.append(process.pid)  # noqa: B023
                process.kill()  # noqa: B023
            return answer

        service.proxy.after = kill
        process = subprocess.Popen(words, env=os.environ | CREDENTIALS, stdout=subprocess.DEVNULL)
        process.wait(60)
        assert killed
        assert process.returncode == -signal.SIGKILL
        service.proxy.reset()
        with holdfast.open(tree, home=home) as workspace:
            assert workspace.verify().ok
            assert workspace.log()._replace(events=()) == seen[0]  # type: ignore[index]
    assert len(service.unfinished(bucket)) == 1
    clock = ManualClock(int((time.time() + 10 * 86400) * 1_000_000))
    opener = Opener(home=os.fsencode(home), clock=clock)
    with opener.store() as store:
        store.collector().collect(86400)
    assert service.unfinished(bucket) == []
    with holdfast.open(tree, home=home) as workspace:
        workspace.checkpoint()
        assert workspace.verify(read_data=True).ok
    listed = service.ask("GET", f"/{bucket}?list-type=2&prefix=p/blobs/")[1]
    assert listed.count(b"<Key>") == 2


def test_a_checkpoint_of_a_thousand_files_is_a_few_requests(tmp_path: Path, service: Service) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    configured(home, service, url=f"s3://{service.bucket()}")
    tree.mkdir()
    source = random.Random(3)
    for folder in range(10):
        (tree / str(folder)).mkdir()
        for at in range(100):
            (tree / str(folder) / str(at)).write_bytes(source.randbytes(300))
    proxy = service.proxy
    with holdfast.init(tree, home=home) as workspace:
        proxy.asked.clear()
        first = workspace.checkpoint().checkpoint.id
        assert [(asked.method, asked.path.split("/")[2]) for asked in proxy.asked] == [
            ("PUT", "packs"),
            ("PUT", "checkpoints"),
        ]
        for at in range(100):
            (tree / str(at % 10) / str(at)).write_bytes(source.randbytes(300))
        proxy.asked.clear()
        workspace.checkpoint("second")
        assert proxy.count("PUT") == 2
        assert len(proxy.asked) == 2, [(asked.method, asked.path) for asked in proxy.asked]
    with holdfast.open(tree, home=home) as workspace:
        proxy.asked.clear()
        workspace.diff(first)
        workspace.log()
        workspace.status()
        assert proxy.asked == []
        workspace.restore(first)
        assert proxy.count("GET") == 0
        assert len(proxy.asked) <= 8, [(asked.method, asked.path) for asked in proxy.asked]
    import shutil

    shutil.rmtree(home / "object-cache")
    with holdfast.open(tree, home=home) as workspace:
        proxy.asked.clear()
        workspace.restore("second")
        assert proxy.count("GET") <= 6, [(asked.method, asked.path) for asked in proxy.asked]


def test_a_copy_waits_for_no_collection_and_takes_what_is_saved_meanwhile(tmp_path: Path) -> None:
    home, other, tree = tmp_path / "home", tmp_path / "other", tmp_path / "tree"
    fill(home, tree)
    with holdfast.open(tree, home=home) as workspace:
        saved: list[str] = []

        def progress(phase: str, done: int, total: int) -> None:
            if phase == "copy" and not saved:
                (tree / "meanwhile").write_text("saved while it was copied")
                saved.append(workspace.checkpoint("meanwhile").checkpoint.id)
                with pytest.raises(LockedError):
                    workspace.gc(grace=0)

        copy(home, to_home=os.fsencode(other), progress=progress)
    assert saved
    with holdfast.open(tree, home=other) as copied:
        assert copied.verify(read_data=True).ok
        assert b"".join(copied.cat(saved[0], "meanwhile")) == b"saved while it was copied"
