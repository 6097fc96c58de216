"""The contract of `SessionRows`, for any database of the catalog: tests that every implementation must pass.

Subclass `SessionRowsContract`, give it a fixture ``store`` (a `Store` over the catalog under test, with an empty
tenant), and run it with pytest.
"""

from __future__ import annotations

import random as randoms
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.ids import WorkspaceId
from holdfast.model.session_types import SessionCheckpoint, SessionHash, SessionId, SessionRef, State, TreeEvent
from holdfast.store.catalog.session_records import (
    JournalRow,
    RefChange,
    SessionCommit,
    SessionRecord,
    StoredCheckpoint,
    UnsavedSession,
    ref_name,
)
from holdfast.store.catalog.session_rows import SessionRows
from holdfast.store.codecs.session_format import encode_checkpoint, encode_journal
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import RefType, SessionKind
    from holdfast.store.store import Store

ONE, TWO = SessionId("one"), SessionId("two")
_WORKSPACE = WorkspaceId("0" * 16)


class SessionRowsContract:
    """Tests; each begins with a workspace that has two checkpoints."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The time that the catalog under test goes by."""
        return ManualClock()

    @pytest.fixture(autouse=True)
    def _prepared(self, store: Store, clock: ManualClock) -> Iterator[None]:
        self.prepare(store, clock)
        yield
        assert self.store.verifier().verify(read_data=True).problems == []

    def prepare(self, store: Store, clock: ManualClock) -> None:
        """Make the workspace."""
        self.store = store
        self.catalog = store.catalog
        self.rows = SessionRows(store.catalog)
        self.time = clock
        saver = Saver(store, _WORKSPACE, clock, randoms.Random(1).randbytes)
        saver.create(b"/tree")
        self.trees = [saver.save({b"f": b"%d" % number}) for number in range(3)]

    def record(self, name: SessionId = ONE, parent: SessionId | None = None) -> SessionRecord:
        """The record of a new session."""
        return SessionRecord(
            name, parent, "me", ("you", "a b"), _WORKSPACE, None, "", "in-place", "", b"\xff", "session", "making", 5
        )

    def commit(
        self,
        tree: CheckpointId,
        *,
        name: SessionId = ONE,
        kind: SessionKind = "auto",
        expected: SessionHash | None = None,
        journal: JournalRow | None = None,
        at: int = 1,
    ) -> tuple[StoredCheckpoint, JournalRow]:
        """Save a state that HEAD names then."""
        state = State(id=name, parent=None, created_at=at, updated_at=at, cwd=".", env={}, unset=(), tree=tree, seq=at)
        point = SessionCheckpoint(
            hash=SessionHash(""),
            session=name,
            parent=expected,
            kind=kind,
            message="m",
            created_at=at,
            state=state,
            history=(),
        )
        called, size, data = encode_checkpoint(point)
        stored = StoredCheckpoint(called, name, expected, kind, "m", at, at, tree, True, "hot", size, len(data))
        row = JournalRow(encode_journal([]), 0, at, at, ()) if journal is None else journal
        head = RefChange(self.ref("head", called, name=name), expected)
        live = self.record(name)._replace(status="live")
        return stored, self.rows.commit(name, SessionCommit(stored, data, [head], row, live))

    def ref(self, kind: RefType, to: SessionHash, label: str = "", name: SessionId = ONE) -> SessionRef:
        """A reference."""
        return SessionRef(
            name=ref_name(kind, name, label), type=kind, session=name, checkpoint=to, updated_at=7, metadata={"ä": "\n"}
        )

    def test_what_is_unsaved_is_told_of_a_workspace_and_of_forks_of_it_alone(self) -> None:
        """Forks of forks, too. Sessions that are saved, belong to an experiment, or are being deleted, are left out."""
        here, side, deep = _WORKSPACE, WorkspaceId("1" * 16), WorkspaceId("2" * 16)
        known = self.record()
        full = JournalRow(encode_journal([TreeEvent(tree=self.trees[0], at=3)]), 1, 3, 3, (self.trees[0],))
        for name, changes in {
            "one": {},
            "two": {"workspace": side, "origin": here, "purpose": "fork"},
            "three": {"workspace": deep, "origin": side, "purpose": "fork"},
            "saved": {"workspace": side},
            "experiment": {"workspace": deep, "origin": side, "purpose": "experiment"},
            "going": {"workspace": side},
            "lost": {"workspace": None},
        }.items():
            session = SessionId(name)
            self.rows.add(known._replace(id=session))
            _, row = self.commit(self.trees[0], name=session, at=len(name))
            if name != "saved":
                self.time.advance(1)
                self.rows.write_journal(session, full._replace(revision=row.revision))
            status = "going" if name == "going" else "live"
            self.rows.put(known._replace(id=session, status=status, **changes))
        first, *_ = found = sorted(self.rows.unsaved((here,)), key=lambda one: one.updated_at)
        assert [one.session for one in found] == ["one", "two", "three"]
        assert first == UnsavedSession(ONE, self.rows.journal(ONE).revision, self.rows.journal(ONE).updated_at)
        assert [one.session for one in self.rows.unsaved((deep,))] == ["three"]
        assert {one.session for one in self.rows.unsaved((deep, side))} == {"two", "three"}
        assert self.rows.unsaved(()) == []

    def test_a_session_is_what_was_said_of_it(self) -> None:
        made = self.record()
        self.rows.add(made)
        self.rows.add(self.record(TWO, ONE)._replace(workspace=None, created_at=4))
        assert self.rows.get(ONE) == made
        assert [one.id for one in self.rows.list()] == [TWO, ONE]
        assert self.rows.list(_WORKSPACE) == [made]
        assert [one.id for one in self.rows.forks_of(ONE)] == [TWO]
        with pytest.raises(RefusedError) as refused:
            self.rows.add(made)
        assert refused.value.code == "session_exists"
        changed = made._replace(shared=(), owner="another", provider="git")
        self.rows.put(changed)
        assert self.rows.get(ONE) == changed
        for missing in (lambda: self.rows.get(SessionId("three")), lambda: self.rows.put(self.record(SessionId("x")))):
            with pytest.raises(NotFoundError) as lost:
                missing()
            assert lost.value.code == "no_session"

    def test_a_state_is_committed_whole_or_not_at_all(self) -> None:
        self.rows.add(self.record())
        first, journal = self.commit(self.trees[0])
        assert self.rows.get(ONE).status == "live"
        assert self.rows.journal(ONE) == journal
        assert self.rows.stored(first.hash) == first
        assert self.rows.ref("sessions/one/HEAD") == self.ref("head", first.hash)
        with pytest.raises(RefusedError) as refused:
            self.commit(self.trees[1], expected=None, journal=journal, at=2)
        assert refused.value.code == "moved"
        with pytest.raises(RefusedError) as refused:
            self.commit(self.trees[1], expected=first.hash, journal=journal._replace(revision=9), at=2)
        assert refused.value.code == "moved"
        self.catalog.forget([self.trees[1]])
        with pytest.raises(RefusedError) as refused:
            self.commit(self.trees[1], expected=first.hash, journal=journal, at=2)
        assert refused.value.code == "tree_gone"
        assert self.rows.checkpoints(ONE) == [first]
        assert self.rows.journal(ONE) == journal
        second, after = self.commit(self.trees[2], expected=first.hash, journal=journal, at=2)
        assert self.rows.checkpoints(ONE) == [first, second]
        assert after.revision == journal.revision + 1
        with pytest.raises(NotFoundError) as lost:
            self.rows.stored(SessionHash("f" * 32))
        assert lost.value.code == "no_session_checkpoint"

    def test_the_oldest_is_first_whatever_the_clock_said(self) -> None:
        self.rows.add(self.record())
        first, journal = self.commit(self.trees[0], at=9)
        second, journal = self.commit(self.trees[1], expected=first.hash, journal=journal, at=5)
        third, _ = self.commit(self.trees[2], expected=second.hash, journal=journal, at=5)
        assert self.rows.checkpoints(ONE) == [first, second, third]

    def test_a_journal_is_written_by_who_has_read_it_last(self) -> None:
        self.rows.add(self.record())
        _, journal = self.commit(self.trees[0])
        data = encode_journal([TreeEvent(tree=self.trees[1], at=1)])
        self.time.advance(1)
        written = self.rows.write_journal(ONE, journal._replace(data=data, entries=1, trees=(self.trees[1],)))
        assert written.updated_at == self.time.now()
        assert self.rows.journal(ONE) == written
        with pytest.raises(RefusedError) as refused:
            self.rows.write_journal(ONE, journal)
        assert refused.value.code == "moved"
        assert self.rows.journal(ONE) == written

    def test_what_sessions_name_is_protected_i11(self) -> None:
        self.rows.add(self.record())
        first, journal = self.commit(self.trees[0])
        data = encode_journal([TreeEvent(tree=self.trees[1], at=1)])
        journal = self.rows.write_journal(ONE, journal._replace(data=data, entries=1, trees=(self.trees[1],)))
        for tree in self.trees[:2]:
            (reason,) = self.catalog.protected_by(tree)
            assert (reason.kind, reason.by, reason.hard) == ("session", "one", True)
            with pytest.raises(RefusedError, match="session one"):
                self.catalog.forget([tree])
        empty = journal._replace(data=encode_journal([]), entries=0, trees=())
        second, _ = self.commit(self.trees[2], expected=first.hash, journal=empty, at=2)
        assert self.catalog.protected_by(self.trees[1]) == []
        assert self.rows.release([second.hash]) == 0, "HEAD names it"
        assert self.rows.release([first.hash]) == 1
        assert self.rows.release([first.hash]) == 0
        assert not self.rows.stored(first.hash).kept
        assert len(self.catalog.forget(self.trees[:2])) == 2

    def test_references_change_by_compare_and_swap(self) -> None:
        self.rows.add(self.record())
        first, journal = self.commit(self.trees[0])
        second, _ = self.commit(self.trees[1], expected=first.hash, journal=journal, at=2)
        ref = self.ref("branch", first.hash, "a/b")
        self.rows.set_ref(RefChange(ref, None))
        assert self.rows.ref("branches/one/a/b") == ref
        assert [one.name for one in self.rows.refs(ONE)] == ["branches/one/a/b", "sessions/one/HEAD"]
        moved = msgspec.structs.replace(ref, checkpoint=second.hash)
        for expected in (None, second.hash):
            with pytest.raises(RefusedError) as refused:
                self.rows.set_ref(RefChange(moved, expected))
            assert refused.value.code == "moved"
        self.rows.set_ref(RefChange(moved, first.hash))
        assert self.rows.ref(ref.name) == moved
        assert not self.rows.remove_ref(ref.name, first.hash)
        assert self.rows.remove_ref(ref.name, second.hash)
        assert self.rows.ref(ref.name) is None

    def test_the_place_of_a_state(self) -> None:
        self.rows.add(self.record())
        first, journal = self.commit(self.trees[0], at=10)
        second, _ = self.commit(self.trees[1], expected=first.hash, journal=journal, at=20)
        assert self.rows.older("hot", 20, 9) == [first]
        assert [one.hash for one in self.rows.older("hot", 21, 1)] == [first.hash]
        content, data = self.rows.content(first.hash)
        assert content == first
        assert data is not None
        self.store.objects.put(f"sessions/{self.catalog.name}/checkpoints/{first.hash}", (data,))
        assert self.rows.move(first.hash, "hot", "warm")
        assert not self.rows.move(first.hash, "hot", "warm")
        assert self.rows.content(first.hash) == (first._replace(tier="warm"), None)
        assert self.rows.tiers([first.hash, second.hash, "f" * 32]) == {first.hash: "warm", second.hash: "hot"}
        assert self.rows.tiers([]) == {}
        assert self.rows.by_prefix(first.hash[:6]) == [first.hash]
        assert len(self.rows.by_prefix("", 1)) == 1

    def test_nothing_is_left_of_a_session_that_is_removed(self) -> None:
        self.rows.add(self.record())
        first, _ = self.commit(self.trees[0])
        self.rows.add(self.record(TWO, ONE))
        other, _ = self.commit(self.trees[1], name=TWO)
        assert self.rows.clear(ONE) == [first]
        assert self.rows.get(ONE).id == ONE
        assert self.rows.remove(ONE) == []
        assert self.rows.remove(ONE) == []
        assert self.catalog.protected_by(self.trees[0]) == []
        assert [one.id for one in self.rows.list()] == [TWO]
        assert self.rows.checkpoints(TWO) == [other]
        self.rows.add(self.record())
