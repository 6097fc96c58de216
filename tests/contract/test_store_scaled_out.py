"""The whole store elsewhere: its catalog on PostgreSQL, its objects on S3, encrypted; moved there, shared, and back."""

from __future__ import annotations

import os
import random
import re
import threading
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.exports import tokens
from holdfast.engine.exports.named_workspaces import Exports
from holdfast.engine.opening.opener import Opener
from holdfast.engine.promotion.manager import Promotions, PromotionSweep
from holdfast.engine.promotion.spec import PromotionFacts, encode_json
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.errors import HoldfastError, LockedError
from holdfast.model.session_types import CommandResult
from holdfast.store.catalog import row_copy
from holdfast.store.catalog.promotion_rows import PromotionRow, PromotionRows

from ..buckets import CUT, Service
from ..proxies import Proxy
from ..sampling import moments, some
from ..stored import configured, copy, copy_killed, fill, looks, new_key

if TYPE_CHECKING:
    from ..postgresql_server import Server

pytest.importorskip("cryptography", reason="needs cryptography (extra dev)")
pytest.importorskip("psycopg", reason="needs psycopg (extra server)")

pytestmark = pytest.mark.usefixtures("credentials")

DONE = CommandResult(exit_code=0, stdout="out", stderr="")

SPEC = """{"path": "%s", "setup": [], "build": [], "start": [], "health": [], "restart": [], "timeout": 1, "memory": 0,
"health_timeout": 1, "health_interval": 1, "max_output_bytes": 1, "isolation": "none", "network": "", "tries": 1,
"author": "", "message": "", "command": ""}"""


@pytest.fixture
def key(tmp_path: Path) -> str:
    return new_key(tmp_path / "key")


def lived(home: Path, tree: Path) -> None:
    """All that a catalog can hold: a history, a merge, a session with a branch, an export, a token."""
    fill(home, tree)
    fork = tree.parent / f"{tree.name}-other"
    with holdfast.open(tree, home=home) as workspace:
        workspace.fork("@", fork)
        (fork / "theirs").write_text("theirs")
        (tree / "ours").write_text("ours")
        assert workspace.merge(str(fork)).restored is not None
    with Sessions(home=os.fsencode(home), agent="me") as sessions, sessions.start(os.fsencode(tree), "one") as session:
        entry = session.begin("touch x", level="changes")
        (tree / "x").write_text("x")
        session.end(entry, DONE, cwd=".", env={**session.environment(), "A": "1"}, duration_ms=1)
        session.branch("kept")
    opener = Opener(home=os.fsencode(home))
    try:
        Exports(opener).create("shop", os.fsencode(tree), project="web")
        tokens.create_token(opener.store().catalog, opener.clock, os.urandom, rights="read", label="ci")
    finally:
        opener.close()
    with holdfast.open(tree, home=home) as workspace:
        workspace.checkpoint()


def all_of(home: Path, tree: Path) -> object:
    """`looks`, and what else there is."""
    seen = looks(home, tree)
    with Sessions(home=os.fsencode(home), agent="me") as sessions:
        told = [info.id for info in sessions.list()]
        history = sessions.history("one")
        branches = [(ref.name, ref.checkpoint) for ref in sessions.branches("one")]
    opener = Opener(home=os.fsencode(home))
    try:
        exports = Exports(opener).rows.list()
        catalog = opener.store().catalog
        with catalog.database.reading() as transaction:
            counts = row_copy.count(transaction, catalog.tenant)
            merges = transaction.all(
                "SELECT id, base, record FROM merges WHERE tenant = ? ORDER BY id", (catalog.tenant,)
            )
            known = transaction.all("SELECT id, digest, label FROM tokens WHERE tenant = ?", (catalog.tenant,))
    finally:
        opener.close()
    return seen, told, history, branches, exports, merges, known, counts


def test_a_store_with_everything_in_it_goes_to_postgresql_and_s3_and_back(
    tmp_path: Path, service: Service, key: str, catalog_url: str
) -> None:
    first, far, back, tree = (tmp_path / name for name in ("first", "far", "back", "tree"))
    lived(first, tree)
    seen = all_of(first, tree)
    configured(far, service, encryption_key=key, catalog=catalog_url, url=f"s3://{service.bucket()}/p")
    done = copy(first, to_home=os.fsencode(far))
    assert done.copied.copied_objects == done.copied.objects > 0
    assert all(done.copied.rows[name] for name in ("merges", "sessions", "session_refs", "exports", "tokens"))
    assert not (far / "catalog.db").exists()
    assert all_of(far, tree) == seen
    with Sessions(home=os.fsencode(far), agent="me") as sessions, sessions.open("one") as session:
        assert session.environment()["A"] == "1"
    assert copy(far, to_home=os.fsencode(back), to_key="").copied.objects == done.copied.objects
    assert all_of(back, tree) == seen
    assert all_of(first, tree) == seen
    for home in (far, back):
        with holdfast.open(tree, home=home) as workspace:
            workspace.gc(grace=0)
            assert workspace.verify(read_data=True).problems == []


@pytest.mark.parametrize("killed", some([str(at) for at in range(26)], 4))
def test_i3_a_copy_killed_anywhere_is_opened_by_nobody_and_goes_on(
    tmp_path: Path, service: Service, key: str, catalog_url: str, killed: str
) -> None:
    """Neither by the home that is made, nor by another one that names the same catalog and bucket."""
    home, far, other, tree = (tmp_path / name for name in ("home", "far", "other", "tree"))
    lived(home, tree)
    url = f"s3://{service.bucket()}/p"
    for made in (far, other):
        configured(made, service, encryption_key=key, catalog=catalog_url, url=url)
    if (
        copy_killed(int(killed), home, far) and int(killed) > 2
    ):  # before that the catalog says nothing of a copy, and holds nothing
        for made in (far, other):
            with pytest.raises(HoldfastError) as refused:
                holdfast.init(tmp_path / "tree", home=made)
            assert refused.value.code == "half_copied"
    copy(home, to_home=os.fsencode(far))
    assert all_of(far, tree) == all_of(home, tree)


def test_a_copy_whose_connection_is_cut_goes_on(
    tmp_path: Path, service: Service, key: str, catalog_url: str, postgresql_server: Server
) -> None:
    """Wherever it is cut, at the catalog or at the bucket: the same once more makes it whole."""
    home, far, tree = (tmp_path / name for name in ("home", "far", "tree"))
    lived(home, tree)
    proxy = Proxy(postgresql_server.folder, catalog_url.partition("@/")[2].partition("?")[0])
    try:
        configured(far, service, encryption_key=key, catalog=proxy.url, url=f"s3://{service.bucket()}/p")
        failed = 0
        words = b"INTO stores", b"INTO checkpoints", b"INTO blobs", b"UPDATE tenants", b"COMMIT", b"UPDATE stores"
        cuts = moments(product(words, ("before", "after")), 7)
        for word, how in cuts:
            left = [3 if word == b"COMMIT" else 1]

            def judge(said: bytes, word: bytes = word, how: str = how, left: list[int] = left) -> str | None:
                if word not in said or not left[0]:
                    return None
                left[0] -= 1
                return None if left[0] else how

            proxy.judge = judge  # type: ignore[assignment]
            service.proxy.before = lambda _: None if random.random() < 0.8 else CUT
            try:
                copy(home, to_home=os.fsencode(far))
            except HoldfastError as error:
                assert error.code in ("connection_lost", "commit_unknown"), error
                failed += 1
            service.proxy.reset()
        proxy.judge = lambda _: None
        copy(home, to_home=os.fsencode(far))
        assert failed > len(cuts) // 2
        assert all_of(far, tree) == all_of(home, tree)
    finally:
        proxy.close()


def test_a_copy_is_refused_where_another_store_is_and_with_another_key(
    tmp_path: Path, service: Service, key: str, catalog_url: str
) -> None:
    """I11: nothing of what is there is touched, and what was refused is not half there."""
    home, far, stranger, tree, its = (tmp_path / name for name in ("home", "far", "stranger", "tree", "its"))
    lived(home, tree)
    url = f"s3://{service.bucket()}/p"
    configured(stranger, service, encryption_key=key, catalog=catalog_url, url=url)
    lived(stranger, its)
    seen = all_of(stranger, its)
    # A catalog in use; a bucket of another store's.
    configured(far, service, encryption_key=key, catalog=catalog_url, url=f"s3://{service.bucket()}/p")
    with pytest.raises(HoldfastError) as refused:
        copy(home, to_home=os.fsencode(far))
    assert (refused.value.code, refused.value.exit_code) == ("not_empty", 4)
    claimed = tmp_path / "claimed"
    configured(claimed, service, encryption_key=key, url=url)
    with pytest.raises(HoldfastError) as refused:
        copy(home, to_home=os.fsencode(claimed))
    assert (refused.value.code, refused.value.exit_code) == ("claimed", 4)
    assert all_of(stranger, its) == seen
    # The key of what is there is another one, or missing.
    config = stranger / "config.toml"
    text = config.read_text()
    other = new_key(tmp_path / "other key")
    for wrong in (text.replace(key, other), text.replace(f'encryption_key = "{key}"\n', "")):
        config.write_text(wrong)
        with pytest.raises(HoldfastError) as refused:
            holdfast.open(its, home=stranger)
        assert refused.value.code in ("unknown_key", "bad_config")
        with pytest.raises(HoldfastError):
            copy(stranger, to_home=os.fsencode(tmp_path / "nothing"))
        config.write_text(text)
    assert all_of(stranger, its) == seen


def test_a_copy_that_goes_on_with_another_key_is_not_taken_for_sound(
    tmp_path: Path, service: Service, key: str, catalog_url: str
) -> None:
    home, far, tree = (tmp_path / name for name in ("home", "far", "tree"))
    lived(home, tree)
    configured(far, service, encryption_key=key, catalog=catalog_url, url=f"s3://{service.bucket()}/p")
    assert copy_killed(22, home, far)
    config = far / "config.toml"
    text = config.read_text()
    other = new_key(tmp_path / "other key")
    config.write_text(text.replace(key, other))
    with pytest.raises(HoldfastError) as refused:
        copy(home, to_home=os.fsencode(far))
    assert refused.value.code == "unknown_key"
    config.write_text(text)
    copy(home, to_home=os.fsencode(far))
    assert all_of(far, tree) == all_of(home, tree)


# --- two homes, one catalog, one bucket ---


@pytest.fixture
def pair(tmp_path: Path, service: Service, key: str, catalog_url: str) -> list[tuple[Path, Path]]:
    """Two homes that share a catalog and a bucket, each with a tree of its own, called and filled alike."""
    found = []
    url = f"s3://{service.bucket()}/p"
    for name in ("one", "two"):
        home, tree = tmp_path / name / "home", tmp_path / name / "tree"
        home.parent.mkdir()
        configured(home, service, encryption_key=key, catalog=catalog_url, url=url)
        tree.mkdir()
        for at in range(20):
            (tree / f"{at}").write_text(f"{at} is the same in both\n" * 100)
        found.append((home, tree))
    return found


def packs(service: Service) -> int:
    return sum(asked.method == "PUT" and "/packs/" in asked.path for asked in service.proxy.asked)


def test_two_homes_share_content_and_nothing_else(pair: list[tuple[Path, Path]], service: Service) -> None:
    """A file that one has stored is not stored by the other; each finds its own workspaces, sessions and exports."""
    (home, tree), (other, its) = pair
    with holdfast.init(tree, home=home) as workspace:
        first = workspace.checkpoint("first").checkpoint
    before = packs(service)
    with holdfast.init(its, home=other) as workspace:
        second = workspace.checkpoint("second").checkpoint
        assert second.new_blobs == 0
        assert [point.label for point in workspace.log().checkpoints] == ["second"]
        assert b"".join(workspace.cat(first.id, "3")) == (tree / "3").read_bytes()
    assert packs(service) == before
    with pytest.raises(HoldfastError) as refused:
        holdfast.open(tree, home=other)
    assert refused.value.code == "no_workspace"
    for number, (where, root) in enumerate(pair):
        with Sessions(home=os.fsencode(where)) as sessions:
            assert sessions.list() == []
            sessions.start(os.fsencode(root), f"s{number}").close()
        opener = Opener(home=os.fsencode(where))
        exports = Exports(opener)
        exports.create(f"e{number}", os.fsencode(root))
        assert [row.name for row in exports.rows.list()] == [f"e{number}"]
        opener.close()


def test_i11_one_home_collects_while_the_other_saves_what_it_is_collecting(pair: list[tuple[Path, Path]]) -> None:
    (home, tree), (other, its) = pair
    stop = threading.Event()
    failed: list[BaseException] = []

    def collect() -> None:
        try:
            while not stop.is_set():
                with holdfast.open(tree, home=home) as workspace, suppress(LockedError):
                    workspace.gc(grace=0)
        except BaseException as error:
            failed.append(error)

    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    with holdfast.init(its, home=other) as mine, holdfast.open(tree, home=home) as theirs:
        thread = threading.Thread(target=collect)
        thread.start()
        try:
            for turn in range(6):
                for root in (tree, its):
                    (root / "both").write_text(f"{turn} is in both\n" * 200)
                doomed = theirs.checkpoint().checkpoint.id
                (tree / "both").unlink()
                theirs.checkpoint()
                theirs.forget([doomed])
                mine.checkpoint(f"turn {turn}")
        finally:
            stop.set()
            thread.join(60)
        assert failed == []
        for turn in range(6):
            assert b"".join(mine.cat(f"turn {turn}", "both")) == f"{turn} is in both\n".encode() * 200
        assert mine.verify(read_data=True).problems == []


def test_a_home_with_another_key_is_refused_and_one_that_has_both_is_not(
    pair: list[tuple[Path, Path]], tmp_path: Path
) -> None:
    """What it stored, the other could not read; nor could it read what it need not store, as the other has it."""
    (home, tree), (other, its) = pair
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    new = new_key(tmp_path / "new key")
    config = other / "config.toml"
    (old,) = re.findall('encryption_key = "(.*)"', config.read_text())
    config.write_text(config.read_text().replace(old, new))
    for _ in range(2):
        with pytest.raises(HoldfastError) as refused:
            holdfast.init(its, home=other)
        assert refused.value.code == "unknown_key"
    with config.open("a") as file:
        file.write(f'old_keys = ["{old}"]\n')
    with holdfast.init(its, home=other) as workspace:
        (its / "more").write_text("more")
        workspace.checkpoint()
        assert workspace.verify(read_data=True).problems == []
    with (home / "config.toml").open("a") as file:
        file.write(f'old_keys = ["{new}"]\n')
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).problems == []


def test_one_home_neither_lists_nor_touches_the_promotions_of_the_other(pair: list[tuple[Path, Path]]) -> None:
    """What was cut short there is about directories of that machine: here others may be called so."""
    (home, tree), (other, its) = pair
    for where, root in pair:
        with holdfast.init(root, home=where) as workspace:
            workspace.checkpoint()
    opener = Opener(home=os.fsencode(home))
    context = opener.open(os.fsencode(tree))
    row = PromotionRow(
        id="0123456789abcdef",
        workspace=context.workspace.id,
        phase="building",
        result="",
        source="",
        theirs=context.catalog.checkpoints(limit=1)[0].id,
        spec=SPEC % str(tree),
        facts=encode_json(PromotionFacts(container=str(its))),
    )
    PromotionRows(opener.store().catalog).add(row)
    opener.close()
    stranger = Promotions(home=other)
    assert stranger.list() == []
    assert stranger.sweep() == PromotionSweep([], [], [], [])
    with pytest.raises(HoldfastError) as missing:
        stranger.resume()
    assert missing.value.code == "nothing_unfinished"
    with pytest.raises(HoldfastError) as missing:
        stranger.get(row.id)
    assert missing.value.code == "no_promotion"
    assert [found.row.phase for found in Promotions(home=home).list()] == ["building"]
    assert len(os.listdir(its)) == 20
