"""The contract of `Catalog`, for any database: tests that every implementation must pass.

Subclass `CatalogContract`, give it a fixture ``store`` (a `Store` over the catalog under test, with an empty tenant),
and run it with pytest.
"""

from __future__ import annotations

import itertools
import random as randoms
from typing import TYPE_CHECKING

import pytest

from holdfast.model.checkpoint import HistoryEvent, Provenance
from holdfast.model.entries import NotCaptured, count_changes
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.ids import CheckpointId, Hash, PackId, WorkspaceId, hash_bytes
from holdfast.store.blobs.content_writer import write_pages
from holdfast.store.catalog.merge_parents import newest_common
from holdfast.store.catalog.reapply_rows import ReapplyRow, ReapplyRows
from holdfast.store.catalog_records import (
    Cursor,
    MergeParent,
    NewBlob,
    NewPack,
    VanishedError,
    WorkspaceRow,
    large_blob_key,
    last_seen_path,
    pack_key,
    pages_key,
)
from holdfast.store.codecs.changeset import decode_changeset
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.store import Store

_FILES = {b"a": b"one", b"b/c": b"two", b"b/d": b"three"}
_NOWHERE = CheckpointId("f" * 24)


class CatalogContract:
    """Tests; each begins with an empty tenant."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The time that the catalog under test goes by."""
        return ManualClock()

    @pytest.fixture(autouse=True)
    def _prepared(self, store: Store, clock: ManualClock) -> Iterator[None]:
        self.store = store
        self.catalog = store.catalog
        self.time = clock
        self.random = randoms.Random(1).randbytes
        self._numbers = itertools.count()
        yield
        assert self.store.verifier().verify(read_data=True).problems == []

    def workspace(self, path: bytes = b"", source: CheckpointId | None = None) -> Saver:
        """A new workspace."""
        number = next(self._numbers)
        saver = Saver(self.store, WorkspaceId(f"{number:016x}"), self.time, self.random)
        saver.create(path or b"/projects/%d" % number, source)
        return saver

    # --- workspaces ---

    def test_a_workspace_is_found_by_path_and_by_identity(self) -> None:
        made = WorkspaceRow(WorkspaceId("1" * 16), b"/home/\xff/x", 7, 9, 5, None, live=True)
        self.catalog.add_workspace(made)
        assert self.catalog.find_workspace(b"/home/\xff/x") == made
        assert self.catalog.find_workspace(b"/home") is None
        assert self.catalog.find_workspace_by_identity(7, 9) == made
        assert self.catalog.find_workspace_by_identity(9, 7) is None
        assert self.catalog.workspace(made.id) == made
        assert self.catalog.workspaces() == [made]
        assert self.catalog.cursor(made.id) == Cursor(None, None, None)

    def test_a_path_belongs_to_one_live_workspace(self) -> None:
        first, second = self.workspace(b"/a"), self.workspace(b"/b")
        with pytest.raises(RefusedError) as refused:
            self.workspace(b"/a")
        assert refused.value.code == "exists"
        assert self.catalog.move_workspace(first.workspace, b"/a", 3, 4) is None  # where it is already
        self.catalog.let_go(first.workspace)
        assert self.catalog.find_workspace(b"/a") is None
        self.catalog.move_workspace(second.workspace, b"/a", 1, 2)
        with pytest.raises(RefusedError):
            self.catalog.adopt(first.workspace)
        self.catalog.let_go(second.workspace)
        self.catalog.adopt(first.workspace)
        found = self.catalog.find_workspace(b"/a")
        assert found is not None
        assert found.id == first.workspace

    def test_a_workspace_that_comes_to_the_path_of_another_sets_it_aside(self) -> None:
        first, second = self.workspace(b"/a"), self.workspace(b"/b")
        base = first.save(_FILES)
        self.catalog.move_workspace(first.workspace, b"/a", 3, 4)
        assert self.catalog.move_workspace(second.workspace, b"/a", 1, 2) == first.workspace
        found, other = self.catalog.find_workspace(b"/a"), self.catalog.find_workspace_by_identity(3, 4)
        assert found is not None
        assert other is not None
        assert (found.id, other.id, last_seen_path(other.path)) == (second.workspace, first.workspace, b"/a")
        assert other.path != b"/a"
        assert [str(reason) for reason in self.catalog.protected_by(base)] == ["the state that /a stands on"]
        assert self.catalog.move_workspace(first.workspace, b"/a", 3, 4) == second.workspace
        assert self.catalog.workspace(first.workspace).path == b"/a"
        assert self.catalog.move_workspace(second.workspace, b"/c", 1, 2) is None

    @pytest.mark.parametrize("method", ["workspace", "cursor", "let_go", "adopt"])
    def test_an_unknown_workspace_is_not_found(self, method: str) -> None:
        with pytest.raises(NotFoundError):
            getattr(self.catalog, method)(WorkspaceId("0" * 16))
        with pytest.raises(NotFoundError):
            self.catalog.move_workspace(WorkspaceId("0" * 16), b"/x", 1, 1)

    # --- checkpoints ---

    def test_a_checkpoint_reads_back_as_it_was_committed(self) -> None:
        saver = self.workspace()
        commit = saver.prepare(_FILES, label="first")
        missed = [NotCaptured(b"run/\xfe.sock", "socket"), NotCaptured(b"x", "too large")]
        point = commit.checkpoint._replace(not_captured=2)
        cursor = self.catalog.commit(commit._replace(not_captured=missed, checkpoint=point))
        assert self.catalog.checkpoint(point.id) == point
        assert self.catalog.not_captured(point.id) == missed
        assert self.catalog.changeset(point.id) is None
        assert cursor == self.catalog.cursor(saver.workspace)
        assert cursor.head == point.id
        assert cursor.position == cursor.redo_tip is not None
        assert load(self.store, point.id) == _FILES
        with pytest.raises(NotFoundError):
            self.catalog.checkpoint(_NOWHERE)
        assert self.catalog.not_captured(_NOWHERE) == []

    def test_checkpoints_are_listed_newest_first_whatever_the_clock_did(self) -> None:
        one, two = self.workspace(), self.workspace()
        names: list[CheckpointId] = []
        for number in range(4):
            names.append((one, two)[number % 2].save({b"f": b"%d" % number}))
            self.time.advance(-7)
        assert [point.id for point in self.catalog.checkpoints()] == names[::-1]
        assert [point.id for point in self.catalog.checkpoints(one.workspace)] == [names[2], names[0]]
        assert [point.id for point in self.catalog.checkpoints(limit=1)] == names[3:]
        assert [point.id for point in self.catalog.checkpoints(before=names[2])] == [names[1], names[0]]
        assert self.catalog.checkpoints(two.workspace, limit=5, before=names[1]) == []

    def test_names(self) -> None:
        saver, other = self.workspace(), self.workspace()
        names = [saver.save({b"f": b"1"}, label="good"), saver.save({b"f": b"2"}), other.save({}, label="good")]
        for name in names:
            assert self.catalog.by_prefix(name) == [name]
            assert name in self.catalog.by_prefix(name[:1], limit=100)
        assert self.catalog.by_prefix("") == names[::-1]
        assert [point.id for point in self.catalog.by_label("good")] == [names[2], names[0]]
        assert [point.id for point in self.catalog.by_label("good", saver.workspace)] == [names[0]]
        assert self.catalog.by_label("bad") == self.catalog.by_label("") == []
        why = Provenance("ada", "why", "make")
        claimed = self.catalog.claim(names[1], ["better", "é 100%_!", "good"], why)
        assert (claimed.labels, claimed.kind, claimed.provenance) == (("better", "é 100%_!", "good"), "manual", why)
        assert self.catalog.checkpoint(names[1]) == claimed
        for label in claimed.labels[:2]:
            assert [point.id for point in self.catalog.by_label(label)] == [names[1]]
        assert [point.id for point in self.catalog.by_label("good", saver.workspace)] == [names[1], names[0]]
        for wrong in ("bette", "etter", "Better", "100%_!", "better\né 100%_!", "é 100_%!", "%", "é 100%__"):
            assert self.catalog.by_label(wrong) == [], wrong
        with pytest.raises(NotFoundError):
            self.catalog.claim(_NOWHERE, ["x"], why)

    def test_ancestors_and_children_cross_a_fork(self) -> None:
        saver = self.workspace()
        names = [saver.save({b"f": b"%d" % number}) for number in range(3)]
        fork = self.workspace(source=names[1])
        forked = fork.save({b"f": b"1"}, kind="fork", parent=names[1])
        assert self.catalog.ancestors(forked) == [names[1], names[0]]
        assert self.catalog.ancestors(names[0]) == []
        assert self.catalog.children(names[1]) == [names[2], forked]

    # --- commits ---

    def test_a_commit_is_refused_when_another_was_first(self) -> None:
        saver = self.workspace()
        late = saver.prepare({b"f": b"late"})
        saver.save({b"f": b"early"})
        with pytest.raises(RefusedError) as refused:
            self.catalog.commit(late)
        assert refused.value.code == "moved"
        assert len(self.catalog.checkpoints()) == 1
        again = late._replace(expected=saver.cursor())  # the same packs once more
        self.catalog.commit(again)
        assert load(self.store, again.checkpoint.id) == {b"f": b"late"}

    def test_a_commit_needs_its_parent_and_its_workspace(self) -> None:
        saver = self.workspace()
        commit = saver.prepare(_FILES)
        with pytest.raises(NotFoundError):
            self.catalog.commit(commit._replace(checkpoint=commit.checkpoint._replace(parent=_NOWHERE)))
        with pytest.raises(NotFoundError):
            self.catalog.commit(commit._replace(checkpoint=commit.checkpoint._replace(workspace=WorkspaceId("e" * 16))))
        assert self.catalog.checkpoints() == []

    def test_a_commit_that_relies_on_nothing_real_vanishes_whole(self) -> None:
        saver = self.workspace()
        commit = saver.prepare(_FILES)
        ghost = hash_bytes(b"nobody stored this")
        with pytest.raises(VanishedError) as vanished:
            self.catalog.commit(commit._replace(relied_on=frozenset((ghost,))))
        assert vanished.value.hashes == {ghost}
        with pytest.raises(VanishedError) as vanished:
            self.catalog.commit(commit._replace(blobs=[blob for blob in commit.blobs if blob.kind == "blob"]))
        assert vanished.value.hashes == {commit.checkpoint.root}
        assert self.catalog.known(blob.hash for blob in commit.blobs) == set()

    def test_a_blob_keeps_its_first_location(self) -> None:
        one, two = self.workspace(), self.workspace()
        first, second = one.prepare(_FILES), two.prepare({**_FILES, b"new": b"four"})
        self.catalog.commit(first)
        names = [blob.hash for blob in first.blobs if blob.kind == "blob"]
        before = self.catalog.locate(names)
        self.catalog.commit(second)
        assert self.catalog.locate(names) == before
        assert load(self.store, second.checkpoint.id)[b"new"] == b"four"

    def test_without_an_event_only_the_head_moves(self) -> None:
        saver = self.workspace()
        saver.save(_FILES)
        before = saver.cursor()
        commit = saver.prepare({b"f": b"1"})._replace(event=None)
        assert self.catalog.commit(commit) == before._replace(head=commit.checkpoint.id)
        before = saver.cursor()
        assert self.catalog.commit(saver.prepare({b"f": b"2"}, kind="import")._replace(event=None)) == before

    def test_a_large_commit_is_laid_in_ahead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.store.catalog._checkpoint_commit.AHEAD", 5)
        saver = self.workspace()
        files = {b"%03d" % number: b"text %d" % number for number in range(64)}
        name = saver.save(files)
        edited = {path: content + b"!" for path, content in files.items()}
        commit = saver.prepare(edited)
        with pytest.raises(RefusedError):
            self.catalog.commit(commit._replace(expected=Cursor(None, None, None)))
        assert self.store.collector().collect(0).blobs_deleted == 0, "what was laid in is spared"
        self.catalog.commit(commit)
        assert load(self.store, name) == files
        assert load(self.store, commit.checkpoint.id) == edited

    def test_what_was_laid_in_for_nothing_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.store.catalog._checkpoint_commit.AHEAD", 5)
        saver = self.workspace()
        commit = saver.prepare({b"%03d" % number: b"text %d" % number for number in range(20)})
        with pytest.raises(RefusedError):
            self.catalog.commit(commit._replace(expected=Cursor(_NOWHERE, None, None)))
        self.time.advance(25 * 3600)
        self.store.collector().collect(0)
        assert self.catalog.stats().blobs == self.catalog.used_bytes() == 0
        with pytest.raises(VanishedError):
            self.catalog.commit(commit)

    # --- blobs ---

    def test_known_and_locate(self) -> None:
        saver = self.workspace()
        commit = saver.prepare(_FILES)
        self.catalog.commit(commit)
        content = {hash_bytes(data) for data in _FILES.values()}
        pages = {commit.checkpoint.root}
        ghost = hash_bytes(b"ghost")
        assert self.catalog.known(content | pages | {ghost}) == content | pages
        assert self.catalog.known(content | pages | {ghost}, pages=True) == pages
        assert self.catalog.locate([ghost]) == {}
        many = [hash_bytes(b"%d" % number) for number in range(1500)]
        assert self.catalog.known([*many, *content]) == content
        assert set(self.catalog.locate([*many, *content])) == content

    def test_a_large_blob_is_never_written_to_a_key_that_was_deleted(self) -> None:
        saver = self.workspace()
        large = b"x" * ((1 << 20) + 1)
        name = hash_bytes(large)
        seen: set[str] = set()
        for _ in range(3):
            old = saver.save({b"f": large})
            key = self.catalog.locate([name])[name].key
            assert key == large_blob_key(self.catalog.name, name, len(seen))
            assert key not in seen
            seen.add(key)
            saver.save({})
            self.catalog.forget([old])
            self.store.collector().collect(0)
            assert self.store.objects.size(key) is None
            assert self.catalog.generation_of(name) == len(seen)
        self.time.advance(8 * 86_400)
        self.store.collector().collect(0)
        assert self.catalog.generation_of(name) == 0

    @pytest.mark.parametrize("files", [_FILES, {b"large": b"y" * ((1 << 20) + 1)}], ids=["pack", "large"])
    def test_a_commit_into_a_condemned_object_vanishes(self, files: dict[bytes, bytes]) -> None:
        saver = self.workspace()
        commit = saver.prepare(files)
        self.time.advance(200 * 365 * 86_400)  # objects carry the time of the machine
        self.store.collector().collect(0)
        with pytest.raises(VanishedError) as vanished:
            self.catalog.commit(commit)
        assert vanished.value.hashes <= {blob.hash for blob in commit.blobs}
        assert self.catalog.checkpoints() == []
        again = saver.prepare(files)
        self.catalog.commit(again)
        assert load(self.store, again.checkpoint.id) == files

    def test_a_commit_whose_header_alone_was_condemned_vanishes(self) -> None:
        # I11: the pack of a state without its own page lists no blob.
        saver = self.workspace()
        saver.save(_FILES)
        commit = saver.prepare(_FILES)
        assert commit.packs == []
        key = pages_key(self.catalog.name, commit.checkpoint.id)
        written = write_pages(
            self.store.objects, key, PackId("c" * 32), [], self.store.read_bases, header=b"a header and no page"
        )
        commit = commit._replace(packs=written.packs)
        self.time.advance(200 * 365 * 86_400)  # objects carry the time of the machine
        self.store.collector().collect(0)
        assert self.store.objects.size(key) is None
        with pytest.raises(VanishedError):
            self.catalog.commit(commit)
        assert len(self.catalog.checkpoints()) == 1

    def test_a_delta_must_not_stand_on_a_delta(self) -> None:
        saver = self.workspace()
        lines = b"".join(b"line %d of a text\n" % number for number in range(200))
        saver.save({b"f": lines})
        commit = saver.prepare({b"f": lines + b"more"})
        delta = next(blob for blob in commit.blobs if blob.kind == "blob")
        assert delta.base == hash_bytes(lines)
        self.catalog.commit(commit)
        pack = PackId("d" * 32)
        bad = NewBlob(Hash(b"\1" * 16), "blob", 9, delta.codec, delta.hash, pack, 50, 3)
        new = NewPack(pack, pack_key(self.catalog.name, pack), 99)
        late = saver.prepare({b"f": lines + b"again"})
        with pytest.raises(VanishedError) as vanished:
            self.catalog.commit(late._replace(packs=[*late.packs, new], blobs=[*late.blobs, bad]))
        assert vanished.value.hashes == {bad.hash}

    def test_a_pin_keeps_what_is_forgotten(self) -> None:
        saver = self.workspace()
        old = saver.save(_FILES)
        root = self.catalog.checkpoint(old).root
        pin = self.catalog.pin(root, "a restore", expires_at=self.time.now() + 10_000_000)
        saver.save({})
        self.catalog.forget([old])
        self.store.collector().collect(0)
        assert self.catalog.known([root], pages=True) == {root}
        assert self.catalog.extend_pin(pin, self.time.now() + 20_000_000)
        self.time.advance(11)
        assert self.catalog.unpin_expired() == 0
        self.time.advance(10)
        assert self.catalog.unpin_expired() == 1
        assert not self.catalog.extend_pin(pin, self.time.now() + 20_000_000)
        self.catalog.unpin(pin)
        self.store.collector().collect(0)
        assert self.catalog.known([root]) == set()
        with pytest.raises(NotFoundError):
            self.catalog.pin(root, "too late")

    def test_several_are_pinned_together_or_not_at_all(self) -> None:
        saver = self.workspace()
        names = [saver.save(_FILES), saver.save({})]
        gone, kept = map(self.catalog.checkpoint, names)
        self.catalog.pin_all([gone, kept], "a restore")
        with pytest.raises(RefusedError):
            self.catalog.forget([gone.id])
        assert self.catalog.unpin_all("a restore") == 2
        self.catalog.forget([gone.id])
        self.store.collector().collect(0)
        with pytest.raises(NotFoundError):
            self.catalog.pin_all([kept, gone], "a restore")
        assert self.catalog.unpin_all("a restore") == 0

    def test_a_checkpoint_that_was_forgotten_is_not_pinned(self) -> None:
        saver = self.workspace()
        gone, kept = map(self.catalog.checkpoint, [saver.save(_FILES), saver.save({})])
        self.catalog.forget([gone.id])
        assert self.catalog.known([gone.root], pages=True) == {gone.root}, "what it stood for is stored still"
        with pytest.raises(NotFoundError, match=gone.id) as caught:
            self.catalog.pin(gone.root, "a restore", checkpoint=gone.id)
        assert caught.value.hint
        with pytest.raises(NotFoundError, match=gone.id):
            self.catalog.pin_all([kept, gone], "a restore")
        assert self.catalog.unpin_all("a restore") == 0

    def test_what_was_pinned_of_a_checkpoint_is_known(self) -> None:
        saver = self.workspace()
        one = self.catalog.checkpoint(saver.save(_FILES))
        assert self.catalog.pinned_root(one.id) is None
        self.catalog.pin(one.root, "of nothing by name")
        assert self.catalog.pinned_root(one.id) is None
        pin = self.catalog.pin(one.root, "a mount", checkpoint=one.id)
        assert self.catalog.pinned_root(one.id) == one.root
        self.catalog.unpin(pin)
        assert self.catalog.pinned_root(one.id) is None

    # --- history ---

    def test_history_is_appended_to_and_the_cursor_moves(self) -> None:
        saver = self.workspace()
        first, second = saver.save({b"f": b"1"}), saver.save({b"f": b"2"})
        events = self.catalog.events(saver.workspace)
        assert [(event.operation, event.checkpoint) for event in events] == [
            ("checkpoint", second),
            ("checkpoint", first),
        ]
        assert events[0].previous == events[1].seq
        cursor = saver.cursor()
        undo = HistoryEvent(0, self.time.now(), "undo", first, None)
        moved = self.catalog.record_event(
            saver.workspace, undo, expected=cursor, head=first, position=events[1].seq, redo_tip=cursor.redo_tip
        )
        assert moved == saver.cursor() == Cursor(first, events[1].seq, events[0].seq)
        with pytest.raises(RefusedError) as refused:
            self.catalog.record_event(saver.workspace, undo, expected=cursor, head=first)
        assert refused.value.code == "moved"
        restore = HistoryEvent(0, self.time.now(), "restore", second, events[1].seq)
        after = self.catalog.record_event(saver.workspace, restore, expected=moved, head=second)
        newest = self.catalog.events(saver.workspace, limit=1)[0]
        assert after == Cursor(second, newest.seq, newest.seq)
        assert newest == restore._replace(seq=newest.seq) == self.catalog.event(newest.seq)
        back = HistoryEvent(0, self.time.now(), "undo", first, events[1].seq, ahead=newest.seq, steps=(7, -2), run="r")
        after = self.catalog.record_event(saver.workspace, back, expected=after, head=first)
        assert self.catalog.event(after.position or 0) == back._replace(seq=after.position or 0)
        asked = HistoryEvent(
            0, self.time.now(), "prompt", first, None, ahead=back.previous, author="c", text="a\n\0\x1a"
        )
        after = self.catalog.record_event(
            saver.workspace, asked, expected=after, head=first, position=after.position, redo_tip=after.redo_tip
        )
        (newest,) = self.catalog.events(saver.workspace, limit=1)
        assert newest == asked._replace(seq=newest.seq)
        assert newest.seq > (after.position or 0)
        with pytest.raises(NotFoundError):
            self.catalog.event(10_000)

    def test_a_part_of_the_history_is_given(self) -> None:
        saver, other = self.workspace(b"/one"), self.workspace(b"/two")
        names = [saver.save({b"f": b"%d" % number}) for number in range(3)]
        other.save({b"f": b"0"})
        cursor = saver.cursor()
        restore = HistoryEvent(0, self.time.now(), "restore", names[0], cursor.position)
        self.catalog.record_event(saver.workspace, restore, expected=cursor, head=names[0])
        every = self.catalog.events(saver.workspace)
        assert self.catalog.events(saver.workspace, before=every[0].seq) == every[1:]
        assert self.catalog.events(saver.workspace, before=every[1].seq, limit=1) == [every[2]]
        assert self.catalog.events(saver.workspace, before=0) == []
        assert self.catalog.events(saver.workspace, checkpoint=names[0]) == [every[0], every[3]]
        assert self.catalog.events(saver.workspace, checkpoint=names[0], before=every[0].seq) == [every[3]]
        assert self.catalog.events(saver.workspace, checkpoint=_NOWHERE) == []

    # --- forgetting ---

    def test_forgetting_composes_changesets(self) -> None:
        saver = self.workspace()
        trees = [{b"a": b"1", b"b": b"1"}, {b"a": b"2", b"c": b"1"}, {b"a": b"1", b"c": b"1"}, {b"z": b""}]
        names = [saver.save(tree) for tree in trees]
        assert [gone.id for gone in self.catalog.forget([names[1], _NOWHERE])] == [names[1]]
        point, data = self.catalog.checkpoint(names[2]), self.catalog.changeset(names[2])
        assert point.parent == names[0]
        assert data is not None
        changes = decode_changeset(data)
        assert [(change.path, change.status) for change in changes] == [(b"b", "D"), (b"c", "A")]
        assert point.changes == count_changes(changes)
        self.catalog.forget([names[0]])
        point = self.catalog.checkpoint(names[2])
        assert (point.parent, self.catalog.changeset(names[2])) == (None, None)
        assert point.changes == (2, 0, 0)
        assert len(self.catalog.events(saver.workspace)) == 4, "history is appended to, never truncated"
        assert load(self.store, names[2]) == trees[2]

    def test_what_something_stands_on_is_not_forgotten(self) -> None:
        saver = self.workspace(b"/main")
        names = [saver.save({b"f": b"%d" % number}) for number in range(3)]
        fork = self.workspace(b"/fork", source=names[1])
        line = [fork.save({b"f": b"1"}, kind="fork", parent=names[1]), fork.save({b"g": b"2"})]
        pin = self.catalog.pin(self.catalog.checkpoint(names[0]).root, "a mount", checkpoint=names[0])
        found = self.catalog.protections()
        assert {name: [(reason.kind, reason.by) for reason in reasons] for name, reasons in found.items()} == {
            names[0]: [("pin", "a mount")],
            names[1]: [("fork", "/fork")],
            names[2]: [("head", "/main")],
            line[0]: [("chain", "/fork")],
            line[1]: [("head", "/fork")],
        }
        for name in (*names, line[1]):
            with pytest.raises(RefusedError) as refused:
                self.catalog.forget([name])
            assert refused.value.code == "protected"
            assert str(self.catalog.protected_by(name)[0]) in str(refused.value)
        assert len(self.catalog.forget([line[0]])) == 1, "a chain is composed"
        assert self.catalog.ancestors(line[1]) == [names[1], names[0]]
        self.catalog.unpin(pin)
        self.catalog.let_go(fork.workspace)
        self.catalog.let_go(saver.workspace)
        assert self.catalog.protections() == {}
        assert len(self.catalog.forget([*names, line[1]])) == 4
        assert saver.cursor().head is None

    # --- merges ---

    def test_what_was_taken_in_is_passed_on(self) -> None:
        saver = self.workspace(b"/main")
        base = saver.save({b"f": b"0"})
        fork = self.workspace(b"/fork", source=base)
        theirs = [fork.save({b"f": b"0"}, kind="fork", parent=base), fork.save({b"f": b"1"}), fork.save({b"f": b"2"})]
        ours = [saver.save({b"g": b"1"}), saver.save({b"g": b"2"}), saver.save({b"g": b"3"})]
        taken_in = MergeParent(theirs[1], base, '{"files": []}')
        for _ in range(2):
            self.catalog.add_merge_parents(ours[0], taken_in)
        assert self.catalog.merge_parents(ours[0]) == [taken_in]
        line = self.catalog.lineage(ours[2])
        assert line.keys() == {base, *theirs[:2], *ours}
        assert (line[ours[0]].parent, line[ours[0]].others) == (base, (theirs[1],))
        assert newest_common(line, self.catalog.lineage(theirs[2])) == [theirs[1]]
        assert [(reason.kind, reason.by) for reason in self.catalog.protected_by(theirs[1])][-1] == ("merged", "/main")
        self.catalog.forget([ours[0]])
        assert self.catalog.merge_parents(ours[1]) == [MergeParent(theirs[1], base)]
        self.catalog.let_go(fork.workspace)
        self.catalog.forget([theirs[1]])
        assert self.catalog.merge_parents(ours[1]) == [MergeParent(theirs[0], base)]
        with pytest.raises(NotFoundError):
            self.catalog.add_merge_parents(ours[1], MergeParent(theirs[1], base))

    def test_a_change_that_waits_is_asked_once_held_by_one_and_answered_once(self) -> None:
        waiting = ReapplyRows(self.catalog)
        here, there = WorkspaceId("a" * 16), WorkspaceId("b" * 16)
        asked = ReapplyRow("1" * 32, here, b"f", "{}", b"now", None, b"after", deadline=100, created_at=1)
        assert waiting.ask(asked) == waiting.ask(asked._replace(now=b"other")) == asked
        waiting.ask(asked._replace(id="2" * 32, workspace=there, created_at=2))
        assert [one.id[0] for one in waiting.open(50, 10)] == ["1", "2"]
        assert waiting.open(100, 10) == []
        held = waiting.take(10, 20, "me", here)
        assert held == asked._replace(holder="me", held_until=20)
        assert waiting.take(10, 20, "you", here) is None
        assert waiting.settle(asked.id, "you", 15, "answered", b"x", "") == held
        assert waiting.settle(asked.id, "me", 20, "answered", b"x", "") == held, "its time is over"
        assert waiting.take(20, 30, "you", here) == asked._replace(holder="you", held_until=30)
        assert waiting.settle(asked.id, "you", 25, "answered", None, "gone") is None
        answered = waiting.get(asked.id)
        assert answered is not None
        assert (answered.status, answered.answer, answered.said, answered.holder) == ("answered", None, "gone", "")
        assert waiting.settle(asked.id, "you", 26, "declined", None, "") == answered
        assert waiting.sweep(2) == 1
        assert [one.id[0] for one in waiting.open(50, 10)] == ["2"]

    def test_changes_that_wait_are_bounded_and_what_is_overdue_makes_room(self) -> None:
        waiting = ReapplyRows(self.catalog)
        here = WorkspaceId("a" * 16)

        def ask(number: int, most: int = 3, most_bytes: int = 1000, size: int = 100, deadline: int = 1000) -> bool:
            asked = ReapplyRow(f"{number:032}", here, b"f", "{}", b"x" * (size - 3), None, None, deadline=deadline)
            return waiting.ask(asked._replace(created_at=number), 500, most=most, most_bytes=most_bytes) is not None

        def there() -> list[int]:
            return [number for number in range(10) if waiting.get(f"{number:032}")]

        waiting.note_shown(ReapplyRow("s" * 32, here, b"f", "shown", b"x" * 999, None, None, "shown"))
        assert [ask(number) for number in (1, 2, 3, 4)] == [True, True, True, False]
        assert ask(3, most=1), "it is there already"
        assert ask(4, most=9, most_bytes=399) is False
        assert ask(4, most=9, most_bytes=400) is True
        for number, status in ((1, "answered"), (2, "declined")):
            waiting.take(1, 900, "me")
            assert waiting.settle(f"{number:032}", "me", 2, status, b"y" * 900, "") is None  # type: ignore[arg-type]
        assert ask(5, deadline=500), "what was answered does not wait, and stays for who has asked"
        assert there() == [1, 2, 3, 4, 5]
        assert ask(6)
        assert there() == [1, 2, 3, 4, 6], "what nobody has answered in time makes room"
        assert ask(7, most=9, most_bytes=350, size=200) is False
        assert ask(7) is False
        assert there() == [1, 2, 3, 4, 6], "nothing is dropped for nothing"
        assert waiting.get("s" * 32) is not None

    # --- counts that drifted ---

    def test_drifted_counts_are_corrected(self) -> None:
        saver = self.workspace()
        point = saver.save({b"a": b"one", b"b": b"two" * 900})
        saver.save({b"a": b"one", b"b": b"two" * 900 + b"and more"})
        self.store.collector().settle()
        with self.catalog.database.writing() as transaction:
            transaction.run("UPDATE blobs SET refs = 0, deltas = deltas + 2 WHERE tenant = ?", (self.catalog.tenant,))
        mark = self.store.verifier().mark_counts()
        assert mark.is_whole
        saver.save({b"a": b"one", b"c": b"three"})
        corrected = self.store.collector().collect(0, recount="now").corrected
        assert {drift.counted for drift in corrected} == {"references", "deltas"}
        assert self.store.verifier().verify().problems == []
        assert load(self.store, point) == {b"a": b"one", b"b": b"two" * 900}
        assert self.store.collector().collect(0, recount="due").corrected == (), "that is for a month"

    # --- numbers ---

    def test_stats(self) -> None:
        saver = self.workspace()
        old = saver.save({**_FILES, b"large": b"z" * ((1 << 20) + 1)})
        new = saver.save(_FILES)
        self.store.collector().settle()
        counted = self.catalog.stats()
        assert (counted.workspaces, counted.checkpoints, counted.blobs, counted.pages) == (1, 2, 4, 2)
        assert counted.content_bytes == sum(map(len, _FILES.values())) + (1 << 20) + 1
        listed = sum(info.size for info in self.store.objects.list("") if f"/{self.catalog.name}/" in info.key)
        assert counted.stored_bytes == self.catalog.used_bytes() == listed
        assert counted.catalog_bytes > 0
        assert counted.dead_bytes == 0
        self.catalog.forget([old])
        self.store.collector().settle()
        assert self.catalog.stats().dead_bytes > 0
        freed = self.store.collector().collect(0).bytes_freed
        assert freed == listed - self.catalog.used_bytes() > 0
        assert load(self.store, new) == _FILES
