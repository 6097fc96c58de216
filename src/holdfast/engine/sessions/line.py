"""The states that a session has gone through: the one that HEAD names, and what the journal says has happened since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.sessions import replaying
from holdfast.model.errors import IntegrityError, NotFoundError
from holdfast.model.session import SessionCheckpoint, SessionHash, SessionRef
from holdfast.store.session_codec import decode_journal, encode_checkpoint, encode_journal
from holdfast.store.session_records import JournalRow, RefChange, SessionCommit, StoredCheckpoint, ref_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.engine.upkeep.session_shelf import Shelf
    from holdfast.model.clock import Clock
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import CommandEntry, JournalEntry, RefType, SessionId, SessionKind, State
    from holdfast.store.session_records import SessionRecord

NO_HASH = SessionHash("")
"""Of what is not saved yet."""


class Line:
    """Where one session stands. For whoever holds it; `look` is for all others."""

    def __init__(self, shelf: Shelf, record: SessionRecord, clock: Clock) -> None:
        self.record = record
        self._shelf = shelf
        self._clock = clock
        self._head: SessionCheckpoint | None = None
        self._state: State | None = None
        self._row = JournalRow(b"", 0, 0, 0, ())
        self.entries: list[JournalEntry] = []
        """What has happened since HEAD."""

    @property
    def head(self) -> SessionCheckpoint:
        """The session checkpoint that HEAD names."""
        assert self._head is not None, "it was loaded, or its first checkpoint committed"
        return self._head

    @property
    def state(self) -> State:
        """The state now."""
        assert self._state is not None, "it was loaded, or its first checkpoint committed"
        return self._state

    @property
    def done(self) -> Sequence[JournalEntry]:
        """What has happened since HEAD, without a command that runs."""
        return self.entries if replaying.running(self.entries) is None else self.entries[:-1]

    @property
    def resting(self) -> State:
        """The state that what is `done` has come to: that of the shell before a command that runs."""
        return self.state if replaying.running(self.entries) is None else replaying.replay(self.head.state, self.done)

    @property
    def journal(self) -> JournalRow:
        """The journal as it is written."""
        return self._row

    def load(self) -> Line:
        """Read HEAD and the journal, as of one moment; itself. Raises `IntegrityError`, `NotFoundError`."""
        rows = self._shelf.rows
        name = ref_name("head", self.record.id)
        with rows.reading():
            ref = rows.ref(name)
            if ref is None:
                raise NotFoundError(f"the session {self.record.id} has no state yet", code="no_session")
            self._row = rows.journal(self.record.id)
            stored, data = rows.content(ref.checkpoint)
        self._head = self._shelf.load(stored.hash, data)
        self.entries = decode_journal(self._row.data)
        if len(self.entries) != self._row.entries:
            raise IntegrityError(f"the journal of the session {self.record.id} is damaged: it is not as long as it was")
        self._state = replaying.replay(self._head.state, self.entries)
        return self

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Have the journal hold ``entries``, durably. Raises `RefusedError` (code ``moved``), `StorageError`."""
        state = replaying.replay(self.head.state, entries)
        row = self._row._replace(
            data=encode_journal(entries), entries=len(entries), last_seq=state.seq, trees=replaying.trees(entries)
        )
        self._row = self._shelf.rows.write_journal(self.record.id, row)
        self.entries, self._state = list(entries), state

    def commit(
        self,
        kind: SessionKind,
        state: State,
        tree: CheckpointId,
        *,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        naming: Sequence[RefChange] = (),
        parent: SessionHash | None = None,
        history: Sequence[CommandEntry] = (),
        record: SessionRecord | None = None,
    ) -> SessionCheckpoint:
        """Save ``state``, with that tree, and let HEAD name it; the journal is empty then, but for a command that runs,
        which is none of ``state``. All of it or nothing.

        Its parent is ``parent``, the commands in between are ``history``. ``naming`` are
        references that name it, too, from then on, and ``record`` is what the session is.
        """
        now = self._clock.now()
        metrics = msgspec.structs.replace(
            state.metrics, checkpoints=state.metrics.checkpoints + 1, last_checkpoint_at=now
        )
        state = msgspec.structs.replace(state, tree=tree, metrics=metrics, updated_at=now)
        point = SessionCheckpoint(
            hash=NO_HASH,
            session=self.record.id,
            parent=parent,
            kind=kind,
            message=message,
            created_at=now,
            state=state,
            history=tuple(history),
            metadata=dict(metadata or {}),
        )
        name, size, data = encode_checkpoint(point)
        point = msgspec.structs.replace(point, hash=name)
        stored = StoredCheckpoint(
            name, self.record.id, parent, kind, message, now, state.seq, tree, True, "hot", size, len(data)
        )
        changes = [
            RefChange(msgspec.structs.replace(change.ref, checkpoint=name, updated_at=now), change.expected)
            for change in (self._head_change(), *naming)
        ]
        running = self.entries[len(self.done) :]
        now_at = replaying.replay(state, running)
        self._row = self._shelf.rows.commit(
            self.record.id,
            SessionCommit(
                checkpoint=stored,
                data=data,
                refs=changes,
                journal=JournalRow(
                    encode_journal(running),
                    len(running),
                    state.seq,
                    now_at.seq,
                    replaying.trees(running),
                    self._row.revision,
                ),
                record=record,
            ),
        )
        self._head, self._state, self.entries = point, now_at, running
        self.record = record or self.record
        return point

    def past(self) -> Iterator[SessionCheckpoint]:
        """HEAD's checkpoint, its parent, and so on, as far as they are kept."""
        return self._shelf.past(self.head)

    def history(self, limit: int | None = None) -> list[CommandEntry]:
        """The commands, the last first, at most ``limit``: as far back as the states are kept."""
        found = replaying.commands(self.entries)[::-1]
        for point in self.past():
            if limit is not None and len(found) >= limit:
                break
            found += point.history[::-1]
        return found if limit is None else found[:limit]

    def _head_change(self) -> RefChange:
        ref = new_ref("head", self.record.id)
        return RefChange(ref, None if self._head is None else self._head.hash)


def new_ref(kind: RefType, session: SessionId, name: str = "", metadata: Mapping[str, str] | None = None) -> SessionRef:
    """A reference that is to name the next session checkpoint."""
    return SessionRef(
        name=ref_name(kind, session, name),
        type=kind,
        session=session,
        checkpoint=NO_HASH,
        updated_at=0,
        metadata=dict(metadata or {}),
    )
