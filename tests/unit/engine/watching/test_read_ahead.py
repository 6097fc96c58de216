"""Working ahead of a checkpoint: what it spares, and that nothing depends on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.watching._read_ahead import prepare
from holdfast.files.local_tree import LocalTree
from holdfast.files.tree import DirtyPaths
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.blobs import content_writer
from holdfast.store.blobs._pack_writer import PackItem
from holdfast.store.blobs.prepared_content import PreparedContent
from holdfast.store.codecs.compression import DELTA, Encoded
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from holdfast.engine.opening.context import Context
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.entries import Entry

LINES = [f"line {number} of some source {number * 7919 % 1000003}\n" for number in range(200)]


class Told:
    """A source of changes that says what it was told; at first, that everything may have changed."""

    def __init__(self) -> None:
        self.answer = DirtyPaths(everything=True, paths=frozenset())

    def drain(self) -> DirtyPaths:
        answer, self.answer = self.answer, DirtyPaths(everything=False, paths=frozenset())
        return answer

    def tell(self, paths: Iterable[bytes]) -> None:
        self.answer = DirtyPaths(everything=False, paths=frozenset(paths))


class Place:
    """A watched workspace with 300 files in 30 directories."""

    def __init__(self, workspace: Workspace, root: Path) -> None:
        self.context: Context = workspace._context
        self.root, self.told = root, Told()
        assert isinstance(self.context.tree, LocalTree)
        self.tree = self.context.tree
        self.tree.dirty = self.told
        self.paths = [f"directory{number // 10}/file{number}".encode() for number in range(300)]
        for number, path in enumerate(self.paths):
            self.write(path, f"file {number}\n" + "".join(LINES))
        create_checkpoint(self.context, CheckpointRequest())

    def write(self, path: bytes, text: str) -> None:
        file = self.root / os.fsdecode(path)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def edit(self, paths: Sequence[bytes], word: str) -> None:
        for path in paths:
            lines = (self.root / os.fsdecode(path)).read_text().splitlines(keepends=True)
            lines[50] = f"edited: {word}\n"
            self.write(path, "".join(lines))
        self.told.tell(paths)

    def save(self) -> Hash:
        """Take a checkpoint, and prove that it holds what is there; its root."""
        made = create_checkpoint(self.context, CheckpointRequest()).checkpoint
        held = dict(manifest.iterate(self.context.store.pages, made.root))
        for path in self.paths:
            there = (self.root / os.fsdecode(path)).read_bytes()
            assert held[path].hash == hash_bytes(there)
            assert self.context.store.reader.read(held[path].hash) == there
        ahead = self.context.store.ahead
        assert not [*ahead.items, *ahead.bases, *ahead.pages, *ahead.entries]
        return made.root


@pytest.fixture
def place(workspace: Workspace, tree: Path) -> Place:
    return Place(workspace, tree)


def test_what_was_prepared_is_not_read_and_encoded_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = place.paths[::7]
    place.edit(edited, "once")
    store = place.context.store
    prepare(place.context, place.tree, edited)
    assert len(store.ahead.items) == len(edited)
    asked: list[Hash] = []
    read_bases = store.reader.read_bases

    def noting(hashes: Sequence[Hash]) -> dict[Hash, tuple[Hash, bytes]]:
        asked.extend(hashes)
        return read_bases(hashes)

    monkeypatch.setattr(store.reader, "read_bases", noting)
    place.save()
    assert asked == []
    place.edit(edited[:3], "twice")
    place.save()
    assert len(asked) >= 3


def test_pages_that_were_foreseen_are_not_made_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = place.paths[::7]
    place.edit(edited, "once")
    prepare(place.context, place.tree, edited[:20], last=False)
    assert not place.context.store.ahead.pages
    prepare(place.context, place.tree, edited[20:])
    foreseen = dict(place.context.store.ahead.pages)
    made: list[Hash] = []
    monkeypatch.setattr(manifest, "update", lambda *_: pytest.fail("it was made already"))
    monkeypatch.setattr(
        content_writer, "encode_pages", lambda pages, _: made.extend(name for name, _, _ in pages) or []
    )
    root = place.save()
    assert root in foreseen
    assert made == []
    for path, number in ((edited[0], 1), (edited[1], 2)):
        entry = manifest.get_many(place.context.store.pages, root, [path])[path]
        assert b"edited: once" in place.context.store.reader.read(entry.hash), number


def test_what_was_foreseen_only_in_part_is_completed(place: Place) -> None:
    """Other permissions, a new file, one that is gone, and one that was changed again: the checkpoint has them all."""
    edited = place.paths[:40]
    place.edit(edited, "once")
    prepare(place.context, place.tree, edited)
    foreseen = set(place.context.store.ahead.pages)
    (place.root / os.fsdecode(edited[0])).chmod(0o755)
    (place.root / os.fsdecode(edited[1])).unlink()
    place.write(b"directory0/new", "new")
    place.edit(edited[2:3], "twice")
    place.told.tell([*edited, b"directory0/new"])
    made = create_checkpoint(place.context, CheckpointRequest()).checkpoint
    held = dict(manifest.iterate(place.context.store.pages, made.root))
    assert made.root not in foreseen
    assert held[edited[0]].permissions == 0o755
    assert edited[1] not in held
    assert place.context.store.reader.read(held[b"directory0/new"].hash) == b"new"
    assert b"edited: twice" in place.context.store.reader.read(held[edited[2]].hash)
    assert b"edited: once" in place.context.store.reader.read(held[edited[3]].hash)


def test_what_was_foreseen_of_another_state_is_not_used(place: Place) -> None:
    """Somebody else has gone back in the meantime: what was foreseen stood on the state before."""
    place.edit(place.paths[:5], "once")
    first = place.save()
    place.edit(place.paths[:5], "twice")
    prepare(place.context, place.tree, place.paths[:5])
    changes = dict(place.context.store.ahead.entries)
    assert place.context.store.ahead.manifest(first, changes) is not None
    assert place.context.store.ahead.manifest(hash_bytes(b"another"), changes) is None
    assert place.context.store.ahead.manifest(first, {**changes, b"another": None}) is None
    place.context.store.ahead.note(hash_bytes(b"another"), {})
    assert not place.context.store.ahead.entries


def test_pages_are_foreseen_again_when_enough_is_new(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a file that changes at every moment does not have all of them made at every moment; and not for many."""
    store, times = place.context.store, 0
    foresee = store.prepare_manifest

    def counting(root: Hash, changes: Mapping[bytes, Entry | None]) -> None:
        nonlocal times
        times += 1
        foresee(root, changes)

    monkeypatch.setattr(store, "prepare_manifest", counting)
    place.edit(place.paths[:100], "once")
    for path in place.paths[:100]:
        prepare(place.context, place.tree, [path])
    assert 5 < times < 30
    before = times
    prepare(place.context, place.tree, [])
    assert times <= before + 1
    place.edit(place.paths, "twice")
    prepare(place.context, place.tree, place.paths[:30])
    before = times
    prepare(place.context, place.tree, place.paths[30:])
    assert times == before
    place.save()


def test_a_base_of_a_foreseen_page_may_be_gone_by_then(place: Place) -> None:
    """The commit notices, and the page is made anew."""
    edited = place.paths[:3]
    place.edit(edited, "once")
    prepare(place.context, place.tree, edited)
    ahead = place.context.store.ahead
    gone = hash_bytes(b"nobody has ever stored this")
    assert ahead.pages
    ahead.pages = {
        name: PackItem(name, item.size, Encoded(DELTA, b"x" * 50), gone) for name, item in ahead.pages.items()
    }
    place.save()


def test_it_is_stored_as_it_would_be_without_that(place: Place) -> None:
    edited = place.paths[::7]
    place.edit(edited, "once")
    place.save()
    place.edit(edited, "without")
    without = place.save()
    place.edit(edited, "prepared")
    prepare(place.context, place.tree, edited)
    prepared = place.save()
    locate = place.context.catalog.locate

    def stored(root: Hash) -> list[tuple[int, Hash | None]]:
        held = dict(manifest.iterate(place.context.store.pages, root))
        found = locate([held[path].hash for path in edited])
        return [(found[held[path].hash].codec, found[held[path].hash].base) for path in edited]

    assert stored(prepared) == stored(without)
    assert {codec for codec, _ in stored(prepared)} == {DELTA}


def test_what_has_changed_since_is_saved_as_it_is(place: Place) -> None:
    edited = place.paths[:20]
    place.edit(edited, "once")
    prepare(place.context, place.tree, edited)
    place.edit(edited, "twice")
    (place.root / os.fsdecode(edited[0])).write_text("short")
    place.save()


def test_what_it_stands_on_may_be_gone_by_then(place: Place) -> None:
    """The commit notices, as with any other base, and the content is read and stored anew."""
    path = place.paths[0]
    place.edit([path], "once")
    data = (place.root / os.fsdecode(path)).read_bytes()
    gone = hash_bytes(b"nobody has ever stored this")
    place.context.store.ahead.add_item(PackItem(hash_bytes(data), len(data), Encoded(DELTA, b"x" * 50), gone))
    place.save()


def test_pages_are_made_against_what_they_would_be_without_that(place: Place) -> None:
    store = place.context.store
    for word in ("once", "twice"):
        place.edit(place.paths[::30], word)
        root = place.save()
    pages = manifest.pages_on_path(store.pages, root, place.paths)
    assert len(pages) > 3
    store.pages._kept.clear()
    with store.caching_bases():
        manifest.get_many(store.pages, root, place.paths)
    assert store.ahead.bases == store.read_bases(pages)
    assert store.page_bases(pages) == store.read_bases(pages)
    store.ahead.forget()
    assert store.page_bases(pages) == store.read_bases(pages)
    assert not store.ahead.bases


def test_on_the_way_are_the_pages_that_are_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    root = place.save()
    store = place.context.store
    read: list[Hash] = []
    read_pages = store.read_pages

    def noting(hashes: Sequence[Hash]) -> dict[Hash, bytes]:
        read.extend(hashes)
        return read_pages(hashes)

    monkeypatch.setattr(store, "read_pages", noting)
    store.pages._kept.clear()
    some = [*place.paths[40:60], b"a path before all others", b"z"]
    manifest.get_many(store.pages, root, some)
    assert sorted(read) == sorted(manifest.pages_on_path(store.pages, root, some))


def test_what_no_checkpoint_holds_is_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(b"new", "x" * 200)
    peeked: list[bytes] = []
    monkeypatch.setattr(place.tree, "peek", lambda path, most: peeked.append(path))
    prepare(place.context, place.tree, [b"new", b"directory1", b"directory1/nothing"])
    assert peeked == []
    prepare(place.context, place.tree, [place.paths[3]])
    assert peeked == [place.paths[3]]


def test_nothing_but_small_regular_files_is_looked_into(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (place.root / "link").symlink_to(outside / "secret")
    (place.root / "way").symlink_to(outside)
    os.mkfifo(place.root / "fifo")
    (place.root / "exact").write_bytes(b"12345")
    (place.root / "large").write_bytes(b"123456")
    assert place.tree.peek(b"exact", 5) == b"12345"
    for path in (b"large", b"link", b"way/secret", b"fifo", b"directory0", b"missing", b"missing/file", b"exact/file"):
        assert place.tree.peek(path, 5) is None, path


def test_there_is_an_end_to_what_is_kept() -> None:
    ahead = PreparedContent()
    large = bytes(1 << 20)
    for number in range(2000):
        name = hash_bytes(b"%d" % number)
        ahead.add_item(PackItem(name, 10, Encoded(0, b"0123456789"), None))
        ahead.add_bases({name: (name, large)})
    assert len(ahead.items) == 1024
    assert len(ahead.bases) == 8
    ahead.forget()
    for number in range(20):
        name = hash_bytes(b"%d" % number)
        ahead.add_item(PackItem(name, 1 << 20, Encoded(0, large), None))
    assert len(ahead.items) == 8
