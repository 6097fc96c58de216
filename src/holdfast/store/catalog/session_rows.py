"""The catalog's rows of sessions: what each is, its journal, its checkpoints and its references, and which fork keeps
a state that a session lets go of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.session_types import SessionHash, SessionRef
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import JOURNALS, REFS, SESSION_CHECKPOINTS, SESSIONS, changing, set_checksum
from holdfast.store.catalog.session_records import JournalRow, SessionRecord, StoredCheckpoint, UnsavedSession
from holdfast.store.catalog.value_encryption import ValueCipher

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.model.ids import WorkspaceId
    from holdfast.model.session_types import SessionId
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.session_records import RefChange, SessionCommit, Tier
    from holdfast.store.database.sql_database import Row, Transaction


def hand_over(
    transaction: Transaction, tenant: int, going: Sequence[StoredCheckpoint], *, began_with: bool
) -> list[StoredCheckpoint]:
    """Give states that their session releases to another session whose history passes through them, without their
    trees; returns the others, which belong to none. ``began_with``: only to a session that began after the state was
    made, so that no session gets its own released states back.
    """
    heirs = _heirs(transaction, tenant, going, began_with=began_with) if going else {}
    with changing(transaction, SESSION_CHECKPOINTS, tenant, list(heirs)):
        for name, heir in heirs.items():
            transaction.run(
                "UPDATE session_checkpoints SET session = ?, kept = 0 WHERE tenant = ? AND hash = ?",
                (heir, tenant, name),
            )
    return [stored for stored in going if stored.hash not in heirs]


def _heirs(
    transaction: Transaction, tenant: int, going: Sequence[StoredCheckpoint], *, began_with: bool
) -> dict[SessionHash, SessionId]:
    owners = {stored.session for stored in going}
    others = [
        (name, began)
        for name, began in transaction.all(
            "SELECT id, created_at FROM sessions WHERE tenant = ? AND status = 'live' ORDER BY created_at, id",
            (tenant,),
        )
        if name not in owners
    ]
    if not others:
        return {}
    wanted = {stored.hash: stored for stored in going}
    parents: dict[SessionHash, SessionHash | None] = {}
    own: dict[SessionId, list[SessionHash]] = {}
    for name, parent, owner in transaction.all(
        "SELECT hash, parent, session FROM session_checkpoints WHERE tenant = ?", (tenant,)
    ):
        parents[name] = parent
        own.setdefault(owner, []).append(name)
    heirs: dict[SessionHash, SessionId] = {}
    for heir, began in others:
        seen: set[SessionHash] = set()
        for at in own.get(heir, ()):
            while at is not None and at in parents and at not in seen:
                seen.add(at)
                if at in wanted and not (began_with and wanted[at].created_at > began):
                    heirs.setdefault(at, heir)
                at = parents[at]
    return heirs


_RECORD = "id, parent, owner, shared, workspace, origin, provider, mode, token, place, purpose, status, created_at"
_STORED = "hash, session, parent, kind, message, created_at, seq, tree, kept, tier, size, stored"

_REPEATED = (
    *("add", "get", "list", "forks_of", "put", "clear", "remove", "journal", "unsaved", "write_journal", "commit"),
    *("stored", "content", "checkpoints", "by_prefix", "older", "move", "tiers", "release", "ref", "refs", "set_ref"),
    "remove_ref",
)
"""The methods that may be called again when the connection was lost and nothing was committed."""


class SessionRows:
    """The sessions of one tenant and home. Every method is one transaction, durable when it returns; it raises what
    `Catalog` does.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._database = catalog.database
        self._tenant = catalog.tenant
        self._home_id = catalog.home_id
        self._clock = catalog.clock
        self._values = ValueCipher(catalog)
        if catalog.again is not None:
            from holdfast.store.database.sql_database import repeat

            repeat(self, _REPEATED, catalog.again)

    def reading(self) -> AbstractContextManager[object]:
        """All reads inside the block see the same moment."""
        return self._database.reading()

    # --- sessions ---

    def add(self, record: SessionRecord) -> None:
        """A new session, without anything else yet. Refused (code ``session_exists``) if there is one of this id."""
        with self._database.writing() as transaction:
            self._add(transaction, record)

    def get(self, name: SessionId) -> SessionRecord:
        """One session; raises `NotFoundError` (code ``no_session``) if there is none with this id."""
        with self._database.reading() as transaction:
            return self._get(transaction, name)

    def has(self, name: SessionId) -> bool:
        """Whether there is a session with that name, even an incomplete one."""
        with self._database.reading() as transaction:
            return (
                transaction.one("SELECT 1 FROM sessions WHERE tenant = ? AND id = ?", (self._tenant, name)) is not None
            )

    def list(self, workspace: WorkspaceId | None = None) -> list[SessionRecord]:
        """All sessions, or those in a workspace, oldest first."""
        where, values = ("", ()) if workspace is None else ("AND workspace = ?", (workspace,))
        return self._find(f"{where} ORDER BY created_at, id", *values)

    def forks_of(self, parent: SessionId) -> list[SessionRecord]:
        """The sessions that were forked from one, oldest first."""
        return self._find("AND parent = ? ORDER BY created_at, id", parent)

    def put(
        self, record: SessionRecord, *, naming: Sequence[RefChange] = (), dropping: Sequence[SessionRef] = ()
    ) -> None:
        """Change the record of a session, and references with it; raises as `get` and `set_ref`."""
        with self._database.writing() as transaction:
            self._get(transaction, record.id)
            self._put(transaction, record)
            for change in naming:
                self._set_ref(transaction, change)
            for ref in dropping:
                self._drop_ref(transaction, ref.name, ref.checkpoint)

    def clear(self, name: SessionId) -> list[StoredCheckpoint]:
        """Delete everything of a session; returns its checkpoints, whose objects may remain. Those in another session's
        history become that one's, without their trees.
        """
        with self._database.writing() as transaction:
            return self._clear(transaction, name)

    def remove(self, name: SessionId) -> list[StoredCheckpoint]:
        """The same, and the session itself."""
        with self._database.writing() as transaction:
            gone = self._clear(transaction, name)
            transaction.run("DELETE FROM sessions WHERE tenant = ? AND id = ?", (self._tenant, name))
        return gone

    # --- journals ---

    def journal(self, name: SessionId) -> JournalRow:
        """A session's journal; raises `NotFoundError` if it has none."""
        with self._database.reading() as transaction:
            return self._journal(transaction, name)

    def unsaved(self, workspaces: Collection[WorkspaceId]) -> list[UnsavedSession]:
        """The sessions, but for those of experiments, with anything in their journals, in the directories of these
        workspaces and of forks of sessions there, and forks of those. No journal is read.
        """
        with self._database.reading() as transaction:
            found = transaction.all(
                """SELECT s.id, s.workspace, j.revision, j.updated_at FROM session_journals j
                JOIN sessions s ON s.tenant = j.tenant AND s.id = j.session
                WHERE j.tenant = ? AND j.entries > 0 AND s.machine = ? AND s.status = 'live'
                AND s.purpose != 'experiment'""",
                (self._tenant, self._home_id),
            )
            forks = (
                transaction.all(
                    "SELECT workspace, origin FROM sessions WHERE tenant = ? AND machine = ? AND origin IS NOT NULL",
                    (self._tenant, self._home_id),
                )
                if found
                else []
            )
        origins = dict(forks)

        def belongs(workspace: WorkspaceId | None) -> bool:
            seen: set[WorkspaceId] = set()
            while workspace is not None and workspace not in workspaces and workspace not in seen:
                seen.add(workspace)
                workspace = origins.get(workspace)
            return workspace in workspaces

        return [UnsavedSession(name, revision, at) for name, workspace, revision, at in found if belongs(workspace)]

    def write_journal(self, name: SessionId, row: JournalRow) -> JournalRow:
        """Replace a journal; as it is then. Raises `RefusedError` (code ``moved``) if its revision is another."""
        with self._database.writing() as transaction:
            return self._write_journal(transaction, name, row)

    # --- checkpoints ---

    def commit(self, name: SessionId, commit: SessionCommit) -> JournalRow:
        """Add a session checkpoint, change references, journal and record: all of it or nothing. The journal then.

        Raises `RefusedError` with the code ``moved`` if a reference or the journal is not as expected any more, and
        with ``tree_gone`` if the tree was forgotten meanwhile.
        """
        point = commit.checkpoint
        with self._database.writing() as transaction:
            if not transaction.one("SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (self._tenant, point.tree)):
                raise RefusedError(f"the checkpoint {point.tree} was forgotten meanwhile", code="tree_gone")
            if commit.record is not None:
                self._get(transaction, name)
                self._put(transaction, commit.record)
            added = transaction.run(
                f"INSERT INTO session_checkpoints (tenant, {_STORED}, data) VALUES {slots(14)} ON CONFLICT DO NOTHING",
                (
                    *(self._tenant, *point[:8], int(point.kept), *point[9:]),
                    self._values.seal("session_checkpoints", "data", point.hash, commit.data),
                ),
            )
            if added:
                set_checksum(transaction, SESSION_CHECKPOINTS, self._tenant, point.hash)
            for change in commit.refs:
                self._set_ref(transaction, change)
            return self._write_journal(transaction, name, commit.journal)

    def stored(self, hash: SessionHash) -> StoredCheckpoint:  # noqa: A002 - the field's own name
        """One session checkpoint; raises `NotFoundError` (code ``no_session_checkpoint``)."""
        return self.content(hash)[0]

    def content(self, hash: SessionHash) -> tuple[StoredCheckpoint, bytes | None]:  # noqa: A002
        """The same, and its bytes while it is hot."""
        with self._database.reading() as transaction:
            row = transaction.one(
                f"SELECT {_STORED}, data FROM session_checkpoints WHERE tenant = ? AND hash = ?", (self._tenant, hash)
            )
        if row is None:
            raise NotFoundError(f"no session checkpoint {hash}", code="no_session_checkpoint")
        return _checkpoint(row[:-1]), self._values.open("session_checkpoints", "data", hash, row[-1])

    def checkpoints(self, name: SessionId) -> list[StoredCheckpoint]:
        """The checkpoints of a session, oldest first: each after its origin, whatever the clock said."""
        with self._database.reading() as transaction:
            found = self._stored(transaction, "AND session = ? ORDER BY created_at, seq, hash", name)
        known = {one.hash: one for one in found}
        ordered: dict[SessionHash, StoredCheckpoint] = {}
        for one in found:
            line: list[StoredCheckpoint] = []
            at: StoredCheckpoint | None = one
            while at is not None and at.hash not in ordered:
                line.append(at)
                at = None if at.parent is None else known.get(at.parent)
            ordered |= {each.hash: each for each in reversed(line)}
        return list(ordered.values())

    def by_prefix(self, prefix: str, limit: int = 16) -> list[SessionHash]:
        """Session checkpoints of all sessions whose hashes begin so (lower-case hex digits), at most ``limit``."""
        with self._database.reading() as transaction:
            rows = transaction.all(
                "SELECT hash FROM session_checkpoints WHERE tenant = ? AND hash >= ? AND hash < ? ORDER BY 1 LIMIT ?",
                (self._tenant, prefix, prefix + "g", limit),
            )
        return [row[0] for row in rows]

    def older(self, tier: Tier, than: int, limit: int) -> list[StoredCheckpoint]:
        """Session checkpoints of a tier that are older than a time, the oldest first."""
        with self._database.reading() as transaction:
            return self._stored(
                transaction, "AND tier = ? AND created_at < ? ORDER BY created_at, hash LIMIT ?", tier, than, limit
            )

    def move(self, hash: SessionHash, before: Tier, after: Tier) -> bool:  # noqa: A002
        """Say that the content is in another tier now, where it has to be already; False if it is not in ``before``."""
        with self._database.writing() as transaction, changing(transaction, SESSION_CHECKPOINTS, self._tenant, [hash]):
            return bool(
                transaction.run(
                    "UPDATE session_checkpoints SET tier = ?, data = NULL WHERE tenant = ? AND hash = ? AND tier = ?",
                    (after, self._tenant, hash, before),
                )
            )

    def tiers(self, hashes: Sequence[str]) -> dict[str, Tier]:
        """Where those of ``hashes`` are that are known."""
        if not hashes:
            return {}
        with self._database.reading() as transaction:
            rows = transaction.all(
                f"SELECT hash, tier FROM session_checkpoints WHERE tenant = ? AND hash IN {slots(len(hashes))}",
                (self._tenant, *hashes),
            )
        return dict(rows)

    def release(self, hashes: Sequence[SessionHash]) -> int:
        """Stop protecting the trees of session checkpoints from retention, if no reference names them; their number."""
        released = 0
        with self._database.writing() as transaction, changing(transaction, SESSION_CHECKPOINTS, self._tenant, hashes):
            for name in hashes:
                released += transaction.run(
                    """UPDATE session_checkpoints SET kept = 0 WHERE tenant = ? AND hash = ? AND kept = 1
                    AND NOT EXISTS (SELECT 1 FROM session_refs r WHERE r.tenant = ? AND r.checkpoint = ?)""",
                    (self._tenant, name, self._tenant, name),
                )
        return released

    def drop(self, hashes: Sequence[SessionHash]) -> list[StoredCheckpoint]:
        """Forget session checkpoints that hold no tree, if no reference names them; returns those. The caller must
        delete their stored data. Those that another session began with become that one's.
        """
        gone: list[StoredCheckpoint] = []
        with self._database.writing() as transaction:
            for name in hashes:
                gone += self._stored(
                    transaction,
                    """AND hash = ? AND kept = 0
                    AND NOT EXISTS (SELECT 1 FROM session_refs r WHERE r.tenant = ? AND r.checkpoint = ?)""",
                    name,
                    self._tenant,
                    name,
                )
            gone = hand_over(transaction, self._tenant, gone, began_with=True)
            for stored in gone:
                transaction.run(
                    "DELETE FROM session_checkpoints WHERE tenant = ? AND hash = ?", (self._tenant, stored.hash)
                )
        return gone

    # --- references ---

    def ref(self, name: str) -> SessionRef | None:
        """The reference of a name."""
        found = self._refs("AND name = ?", name)
        return found[0] if found else None

    def refs(self, name: SessionId) -> list[SessionRef]:
        """The references of a session, by name."""
        return self._refs("AND session = ? ORDER BY name", name)

    def set_ref(self, change: RefChange) -> None:
        """Change a reference; raises `RefusedError` (code ``moved``) if its target is not the expected one."""
        with self._database.writing() as transaction:
            self._set_ref(transaction, change)

    def remove_ref(self, name: str, expected: SessionHash) -> bool:
        """Take a reference away; False if it does not name ``expected``."""
        with self._database.writing() as transaction:
            return self._drop_ref(transaction, name, expected)

    # --- inside of transactions ---

    def _add(self, transaction: Transaction, record: SessionRecord) -> None:
        if transaction.one("SELECT 1 FROM sessions WHERE tenant = ? AND id = ?", (self._tenant, record.id)):
            raise RefusedError(
                f"there is a session {record.id} already", hint="choose another id", code="session_exists"
            )
        transaction.run(
            f"INSERT INTO sessions (tenant, {_RECORD}, machine) VALUES {slots(15)}",
            (self._tenant, *_row(record), self._home_id),
        )
        set_checksum(transaction, SESSIONS, self._tenant, record.id)

    def _clear(self, transaction: Transaction, name: SessionId) -> list[StoredCheckpoint]:
        gone = hand_over(
            transaction, self._tenant, self._stored(transaction, "AND session = ?", name), began_with=False
        )
        # Another session's reference never names them: a fork begins with a checkpoint of its own.
        for table in ("session_refs", "session_journals", "session_checkpoints"):
            transaction.run(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", (self._tenant, name))
        return gone

    def _get(self, transaction: Transaction, name: SessionId) -> SessionRecord:
        row = transaction.one(
            f"SELECT {_RECORD} FROM sessions WHERE tenant = ? AND id = ? AND machine = ?",
            (self._tenant, name, self._home_id),
        )
        if row is None:
            raise NotFoundError(
                f"no session {name}", hint="`holdfast session list` shows those that are there", code="no_session"
            )
        return _record(row)

    def _find(self, rest: str, *values: object) -> list[SessionRecord]:
        with self._database.reading() as transaction:
            rows = transaction.all(
                f"SELECT {_RECORD} FROM sessions WHERE tenant = ? AND machine = ? {rest}",
                (self._tenant, self._home_id, *values),
            )
        return [_record(row) for row in rows]

    def _put(self, transaction: Transaction, record: SessionRecord) -> None:
        columns = ", ".join(f"{column.strip()} = ?" for column in _RECORD.split(",")[1:])
        with changing(transaction, SESSIONS, self._tenant, [record.id]):
            transaction.run(
                f"UPDATE sessions SET {columns} WHERE tenant = ? AND id = ?",
                (*_row(record)[1:], self._tenant, record.id),
            )

    def _journal(self, transaction: Transaction, name: SessionId) -> JournalRow:
        row = transaction.one(
            """SELECT data, entries, through, last_seq, trees, revision, updated_at FROM session_journals
            WHERE tenant = ? AND session = ?""",
            (self._tenant, name),
        )
        if row is None:
            raise NotFoundError(f"the session {name} has no journal", code="no_session")
        stored, entries, through, last, trees, revision, at = row
        data = self._values.open("session_journals", "data", name, stored)
        assert data is not None, "the column is NOT NULL"
        return JournalRow(data, entries, through, last, tuple(trees.split()), revision, at)

    def _write_journal(self, transaction: Transaction, name: SessionId, row: JournalRow) -> JournalRow:
        written = row._replace(revision=row.revision + 1, updated_at=self._clock.now())
        sealed = self._values.seal("session_journals", "data", name, written.data)
        values = (sealed, *written[1:4], " ".join(written.trees), *written[5:])
        if row.revision == 0:
            transaction.run(
                f"""INSERT INTO session_journals
                (tenant, session, data, entries, through, last_seq, trees, revision, updated_at) VALUES {slots(9)}""",
                (self._tenant, name, *values),
            )
            set_checksum(transaction, JOURNALS, self._tenant, name)
            return written
        with changing(transaction, JOURNALS, self._tenant, [name]):
            changed = transaction.run(
                """UPDATE session_journals SET data = ?, entries = ?, through = ?, last_seq = ?, trees = ?,
                revision = ?, updated_at = ? WHERE tenant = ? AND session = ? AND revision = ?""",
                (*values, self._tenant, name, row.revision),
            )
        if not changed:
            raise RefusedError(
                f"the session {name} has moved on: another process has used it meanwhile",
                hint="open it again",
                code="moved",
            )
        return written

    def _stored(self, transaction: Transaction, rest: str, *values: object) -> list[StoredCheckpoint]:
        rows = transaction.all(
            f"SELECT {_STORED} FROM session_checkpoints WHERE tenant = ? {rest}", (self._tenant, *values)
        )
        return [_checkpoint(row) for row in rows]

    def _refs(self, rest: str, *values: object) -> list[SessionRef]:
        with self._database.reading() as transaction:
            rows = transaction.all(
                f"""SELECT name, type, session, checkpoint, updated_at, metadata FROM session_refs
                WHERE tenant = ? {rest}""",
                (self._tenant, *values),
            )
        return [_ref(row) for row in rows]

    def _drop_ref(self, transaction: Transaction, name: str, expected: SessionHash) -> bool:
        return bool(
            transaction.run(
                "DELETE FROM session_refs WHERE tenant = ? AND name = ? AND checkpoint = ?",
                (self._tenant, name, expected),
            )
        )

    def _set_ref(self, transaction: Transaction, change: RefChange) -> None:
        import msgspec

        ref = change.ref
        row = transaction.one(
            "SELECT checkpoint FROM session_refs WHERE tenant = ? AND name = ?", (self._tenant, ref.name)
        )
        if (None if row is None else row[0]) != change.expected:
            what = "is there already" if change.expected is None else "names another state by now"
            raise RefusedError(f"the reference {ref.name} {what}", hint="look at it, and try again", code="moved")
        metadata = msgspec.json.encode(dict(ref.metadata), order="deterministic").decode()
        values = (ref.type, ref.session, ref.checkpoint, ref.updated_at, metadata)
        if row is None:
            transaction.run(
                f"""INSERT INTO session_refs (tenant, name, type, session, checkpoint, updated_at, metadata)
                VALUES {slots(7)}""",
                (self._tenant, ref.name, *values),
            )
            set_checksum(transaction, REFS, self._tenant, ref.name)
            return
        with changing(transaction, REFS, self._tenant, [ref.name]):
            transaction.run(
                """UPDATE session_refs SET type = ?, session = ?, checkpoint = ?, updated_at = ?, metadata = ?
                WHERE tenant = ? AND name = ?""",
                (*values, self._tenant, ref.name),
            )


def _row(record: SessionRecord) -> tuple[object, ...]:
    shared = "".join(f"{name}\n" for name in record.shared)
    return (*record[:3], shared, *record[4:])


def _record(row: Row) -> SessionRecord:
    name, parent, owner, shared, workspace, origin, provider, mode, token, place, purpose, status, at = row
    others = tuple(shared.split("\n")[:-1])
    return SessionRecord(
        name, parent, owner, others, workspace, origin, provider, mode, token, place, purpose, status, at
    )


def _checkpoint(row: Row) -> StoredCheckpoint:
    name, session, parent, kind, message, at, seq, tree, kept, tier, size, stored = row
    return StoredCheckpoint(name, session, parent, kind, message, at, seq, tree, bool(kept), tier, size, stored)


def _ref(row: Row) -> SessionRef:
    import msgspec

    name, kind, session, checkpoint, at, metadata = row
    try:
        found: Mapping[str, str] = json_decoder(dict[str, str]).decode(metadata)
        return SessionRef(
            name=name,
            type=kind,
            session=session,
            checkpoint=SessionHash(checkpoint),
            updated_at=at,
            metadata=found,
        )
    except (msgspec.MsgspecError, TypeError):
        raise IntegrityError(f"the reference {name} is damaged: its metadata cannot be read") from None
