"""Case 5: whatever of the store is flipped, cut or removed, `verify` names it, and what needs it is refused untouched.

What does not need the damaged part goes on working.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.write import applier
from holdfast.model.errors import IntegrityError, NotFoundError
from holdfast.testing.crash_points import run_killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from crash.conftest import Place, State
    from holdfast.engine.workspace.workspace import Workspace


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def cut(file: Path) -> None:
    with file.open("r+b") as it:
        it.truncate(file.stat().st_size // 2)


def remove(file: Path) -> None:
    file.unlink()


HURTS: dict[str, Callable[[Path], None]] = {"flipped": flip, "cut": cut, "removed": remove}


def verify(place: Place) -> tuple[int, list[dict[str, str]]]:
    """What the command says: its exit code and the problems."""
    where = ["--home", place.home, "-w", place.tree]
    command = [sys.executable, "-m", "holdfast", *where, "verify", "--read-data", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)["problems"] if done.stdout else []


def objects(place: Place, kind: str) -> list[Path]:
    return sorted(one for one in (place.home / "objects" / kind).rglob("*") if one.is_file())


@pytest.fixture
def own(place: Place) -> Place:
    """Three checkpoints; only the first needs its own pack and its own large blob."""
    with place.init() as workspace:
        place.path(b"only-first").write_bytes(b"needed by the first alone\n" * 40)
        place.path(b"large").write_bytes(place.large)
        _save(place, workspace, "first")
        place.path(b"only-first").unlink()
        place.path(b"large").unlink()
        place.path(b"other").write_bytes(b"needed by the others")
        _save(place, workspace, "second")
        place.path(b"third").write_bytes(b"and this by the third")
        _save(place, workspace, "third")
    return place


def _save(place: Place, workspace: Workspace, label: str) -> None:
    place.known[workspace.checkpoint(label).checkpoint.id] = place.look()


def refused(place: Place, label: str) -> str:
    """A restore of ``label`` is refused, and touches nothing."""
    before = place.look()
    with place.open() as workspace:
        with pytest.raises(IntegrityError) as caught:
            workspace.restore(label)
        assert caught.value.exit_code == 5
        assert workspace.unfinished() is None
    assert place.look() == before
    return caught.value.message


def restored(place: Place, label: str) -> State:
    with place.open() as workspace:
        workspace.restore(label)
    return place.look()


@pytest.mark.parametrize("hurt", HURTS)
@pytest.mark.parametrize("kind", ["packs", "blobs"])
def test_a_fork_that_cannot_be_whole_leaves_nothing(
    own: Place, monkeypatch: pytest.MonkeyPatch, kind: str, hurt: str
) -> None:
    monkeypatch.setattr(applier, "_BATCH_FILES", 1)  # what is written is in place before the damage shows
    damaged = next(one for one in objects(own, kind) if kind == "blobs" or b"by the first" in one.read_bytes())
    whole, target = damaged.read_bytes(), own.root / "fork"
    with own.open() as workspace:
        (own.tree / "a-early").write_bytes(b"written out before")
        own.path(b"large").write_bytes(own.large)
        own.path(b"only-first").write_bytes(b"needed by the first alone\n" * 40)
        saved = workspace.checkpoint("all").checkpoint.id
        known = len(workspace.log(everything=True).checkpoints)
        state = own.look()
        HURTS[hurt](damaged)
        with pytest.raises(IntegrityError):
            workspace.fork("all", target)
        assert target.exists() == (hurt == "flipped")
        assert hurt != "flipped" or list(target.iterdir()) == []
        assert len(workspace.log(everything=True).checkpoints) == known
        damaged.write_bytes(whole)
        assert workspace.fork("all", target).source == saved
    assert own.look(target) == state
    with own.open(target) as forked:
        assert forked.unfinished() is None
        assert forked.status().clean


@pytest.mark.parametrize("hurt", HURTS)
@pytest.mark.parametrize("kind", ["packs", "blobs"])
def test_damaged_content(own: Place, kind: str, hurt: str) -> None:
    first, second, third = own.known.values()
    pack = next(one for one in objects(own, kind) if kind == "blobs" or b"by the first" in one.read_bytes())
    files = objects(own, kind)
    HURTS[hurt](pack)
    code, problems = verify(own)
    assert code == 5
    assert any(pack.name in problem["object"] for problem in problems), problems
    assert len(files) == (1 if kind == "blobs" else 3)
    hit = [problem["object"] for problem in problems if problem["object"] in own.known]
    assert hit == [next(iter(own.known))], "the checkpoint that needs it is named, and no other"
    for checkpoint, label, state in zip(own.known, ("first", "second", "third"), (first, second, third), strict=True):
        if checkpoint in hit:
            refused(own, label)
        else:
            assert restored(own, label) == state


@pytest.mark.parametrize("hurt", HURTS)
def test_damaged_pages(own: Place, hurt: str) -> None:
    name = next(iter(own.known))
    (page,) = [one for one in objects(own, "checkpoints") if one.name.startswith(name)]
    if hurt != "removed":
        # (Behind the pages lies the checkpoint's header, which no restore needs.)
        whole = page.read_bytes()
        at = len(whole) // 4
        page.chmod(0o600)
        page.write_bytes(whole[:at] + (bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] if hurt == "flipped" else b""))
    else:
        HURTS[hurt](page)
    code, problems = verify(own)
    assert code == 5
    assert any(page.name in problem["object"] for problem in problems), problems
    hit = {problem["object"] for problem in problems}
    refused(own, "first")
    for checkpoint, label in list(zip(own.known, ("first", "second", "third"), strict=True))[1:]:
        if checkpoint in hit:
            refused(own, label)  # a page of it is a difference against the damaged one
        else:
            assert restored(own, label) == own.known[checkpoint]


ROWS = {
    "a blob is gone": "DELETE FROM blobs WHERE hash = (SELECT hash FROM blobs WHERE kind = 0 AND pack IS NULL)",
    "a blob is elsewhere": "UPDATE blobs SET place = place + 7 WHERE kind = 0 AND pack IS NOT NULL",
    "a pack is gone": "DELETE FROM packs WHERE number = (SELECT pack FROM blobs WHERE kind = 0 AND pack IS NOT NULL)",
    "a count is wrong": "UPDATE blobs SET refs = refs + 1 WHERE kind = 0 AND pack IS NULL",
    "a root is gone": "UPDATE checkpoints SET root = zeroblob(16) WHERE label = 'first'",
    "a changeset is cut": "UPDATE changesets SET data = substr(data, 1, length(data) - 3)",
    "a changeset is flipped": "UPDATE changesets SET data = zeroblob(length(data))",
    "a reason is another": "UPDATE checkpoints SET message = 'x' WHERE label = 'first'",
    "a workspace's birth is another": "UPDATE workspaces SET created_at = created_at + 1",
    "an event's time is another": "UPDATE history SET at = at + 1",
}


@pytest.mark.parametrize("what", ROWS)
def test_damaged_rows_of_the_catalog(own: Place, what: str) -> None:
    connection = sqlite3.connect(own.home / "catalog.db")
    try:
        assert connection.execute(ROWS[what]).rowcount >= 1
        connection.commit()
    finally:
        connection.close()
    before = own.look()
    code, problems = verify(own)
    assert code == 5, problems
    assert problems
    with own.open() as workspace:
        if what.startswith(("a blob", "a pack", "a root")):
            with pytest.raises(IntegrityError):
                workspace.restore("first")
            assert own.look() == before
            assert workspace.unfinished() is None
        else:
            workspace.restore("first")
            assert own.look() == next(iter(own.known.values()))


@pytest.mark.parametrize("hurt", ["flipped", "cut", "zeros", "another file"])
def test_a_damaged_catalog_file_is_named(own: Place, hurt: str) -> None:
    catalog = own.home / "catalog.db"
    content = catalog.read_bytes()
    damaged = {
        "flipped": content[:100] + bytes(300) + content[400:],
        "cut": content[: len(content) // 3],
        "zeros": bytes(len(content)),
        "another file": b"something else altogether" * 500,
    }[hurt]
    catalog.write_bytes(damaged)
    before = own.look()
    for words in (["verify"], ["status"], ["checkpoint"], ["restore", "first"]):
        command = [sys.executable, "-m", "holdfast", "--home", own.home, "-w", own.tree, *words]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert done.returncode == 5, (words, done)
        assert "catalog" in done.stderr
        assert "Traceback" not in done.stderr
        assert "bug" not in done.stderr
    assert own.look() == before


@pytest.mark.parametrize("hurt", HURTS)
def test_a_damaged_index_is_rebuilt(own: Place, hurt: str) -> None:
    (index,) = (own.home / "workspaces").rglob("index")
    HURTS[hurt](index)
    with own.open() as workspace:
        assert workspace.status().clean
        assert not workspace.checkpoint().created
        own.path(b"other").write_bytes(b"an edit")
        assert [change.path for change in workspace.status().changes] == [b"other"]
        assert workspace.checkpoint().created
    own.sound()


@pytest.mark.parametrize("hurt", ["flipped", "cut"])
def test_i3_a_damaged_journal_is_named_and_nothing_is_touched(own: Place, hurt: str) -> None:
    with own.open() as workspace:
        folder = Path(workspace.folder.decode())

    def work() -> None:
        with own.open() as workspace:
            workspace.restore("first")

    for step in range(60, 1, -1):
        own.keep("start")
        run_killed(work, step)
        if (folder / "operation").exists():
            break
        own.put_back("start")
    HURTS[hurt](folder / "operation")
    at = own.look()
    with own.open() as workspace:
        for refused_call in (
            workspace.undo,
            workspace.restore_continue,
            workspace.restore_abort,
            lambda: workspace.restore("second"),
        ):
            with pytest.raises(IntegrityError, match="operation") as caught:
                refused_call()
            assert caught.value.hint
            assert str(folder / "operation") in caught.value.message + caught.value.hint
    for command, code in (("log", 0), ("checkpoint", 0), ("status", 5), ("undo", 5)):
        words = [sys.executable, "-m", "holdfast", "--home", own.home, "-w", own.tree, command]
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert (done.returncode, str(folder / "operation") in done.stderr) == (code, True), command
    assert own.look() == at
    (folder / "operation").unlink()
    with own.open() as workspace:
        workspace.restore("third")
    assert {path for path in own.look() if b".holdfast.tmp-" not in path} == set(list(own.known.values())[2])
    own.sound()


@pytest.mark.parametrize("hurt", ["cut", "removed"])
@pytest.mark.parametrize("difference", [False, True])
def test_a_checkpoint_with_full_hash_stores_anew_what_was_lost(
    place: Place, caplog: pytest.LogCaptureFixture, hurt: str, difference: bool
) -> None:
    with place.init() as workspace:
        place.path(b"small").write_bytes(b"a line of it\n" * 500)
        place.path(b"copy").write_bytes(b"a line of it\n" * 500)
        place.path(b"large").write_bytes(place.large)
        place.path(b"d").mkdir()
        _save(place, workspace, "first")
        before = set(objects(place, "packs"))
        if difference:
            place.path(b"small").write_bytes(b"a line of it\n" * 499 + b"another\n")
            _save(place, workspace, "second")
    for target in (*(set(objects(place, "packs")) - (before if difference else set())), *objects(place, "blobs")):
        HURTS[hurt](target)
    assert verify(place)[0] == 5
    with place.open() as workspace:
        assert not workspace.checkpoint().created
        assert not workspace.checkpoint(full_hash=True).created
        caplog.clear()  # it says that something was missing
        assert not workspace.checkpoint(full_hash=True).created
        assert caplog.records == [], "once is enough"
        for path, item in place.look().items():
            if item.mode >= 0:
                assert b"".join(workspace.cat("@", path)) == item.content
    place.known = {name: place.saved(state) for name, state in place.known.items()}
    with place.open() as workspace:
        workspace.gc(grace=0)
    place.sound()


@pytest.mark.parametrize("hurt", HURTS)
@pytest.mark.parametrize("kind", ["packs", "blobs"])
def test_what_a_checkpoint_does_about_damage_to_what_is_still_in_the_tree(
    own: Place, caplog: pytest.LogCaptureFixture, kind: str, hurt: str
) -> None:
    """With full_hash, what is gone or cut short is stored anew; what is there is not read again. It lies about nothing:
    `verify` says so.
    """
    assert restored(own, "first") == next(iter(own.known.values()))
    if kind == "packs":
        targets = objects(own, "packs")
    else:
        targets = objects(own, "blobs")
    for target in targets:
        HURTS[hurt](target)
    with own.open() as workspace:
        for full in (False, True):
            assert not workspace.checkpoint(full_hash=full).created
    caplog.clear()  # it says what was missing
    healed = hurt != "flipped"
    code, _ = verify(own)
    assert code == (0 if healed and kind == "blobs" else 5), "the packs of what only older checkpoints hold stay lost"
    own.path(b"new").write_bytes(b"new content is saved all the same")
    with own.open() as workspace:
        made = workspace.checkpoint()
        assert made.created
        assert b"".join(workspace.cat("@", b"new")) == b"new content is saved all the same"
        own.path(b"new").unlink()
        workspace.restore("@", [b"new"])
        assert own.path(b"new").read_bytes() == b"new content is saved all the same"
        name = b"large" if kind == "blobs" else b"only-first"
        if healed:
            assert b"".join(workspace.cat("@", name)) == own.path(name).read_bytes()
        else:
            with pytest.raises((IntegrityError, NotFoundError)):
                b"".join(workspace.cat("@", name))
