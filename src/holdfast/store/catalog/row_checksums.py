"""Checksums of the catalog's rows whose values nothing else verifies; docs/formats/catalog.md specifies them.

The index of its pack also has a blob's place, and verification recounts every count. But a label, a time, a parent or
an event of the history exists only once: there a checksum reveals a damaged value.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from typing import Any

    from holdfast.model.ids import Hash
    from holdfast.store.database.sql_database import Row, Statement, Transaction


class ChecksummedTable(NamedTuple):
    """A table whose rows have checksums, and what of a row is covered, in this order."""

    table: str
    key: str
    """The column that, with the tenant, names a row."""
    columns: str
    tenant: str = "tenant"
    """The column of the tenant."""

    @property
    def row(self) -> str:
        """The condition of one row; takes the tenant and the key."""
        return f"{self.tenant} = ? AND {self.key} = ?"

    def question(self, tenant: int, key: str | int) -> Statement:
        """The query for a row: its checksum, then the covered columns."""
        return f"SELECT checksum, {self.columns} FROM {self.table} WHERE {self.row}", (tenant, key)

    def checksum(self, row: Sequence[object], more: Iterable[object] = ()) -> Hash:
        """The checksum of a row: its covered columns, and data in other tables (of a checkpoint, see `belonging`)."""
        return hash_bytes(b"".join(map(_encoded, (self.table, *row, *more))))

    def changed(self, found: Sequence[Any], **columns: object) -> Hash:
        """The new checksum of a row that `question` has found when these columns change.

        The checksum of a damaged row stays wrong, so that `verify` keeps reporting it.
        """
        old, *row = found
        if old != self.checksum(row):
            return old
        names = [name.strip() for name in self.columns.split(",")]
        return self.checksum([columns.get(name, value) for name, value in zip(names, row, strict=True)])


CHECKPOINTS = ChecksummedTable(
    "checkpoints",
    "id",
    """number, tenant, id, workspace, parent, root, kind, label, created_at, added, modified, deleted, total_files,
    total_bytes, new_blobs, stored_bytes, not_captured, author, message, command""",
)
"""With its changeset and its uncaptured paths."""

WORKSPACES = ChecksummedTable(
    "workspaces", "id", "tenant, id, path, device, inode, created_at, source, live, head, position, redo_tip, machine"
)

HISTORY = ChecksummedTable(
    "history",
    "seq",
    "seq, tenant, workspace, at, operation, checkpoint, previous, ahead, steps, run, undo_seq, author, text",
)

TENANTS = ChecksummedTable("tenants", "number", "number, name", tenant="number")
"""Without the two numbers that change all the time: a wrong one costs a second try, or some time."""

SESSIONS = ChecksummedTable(
    "sessions",
    "id",
    "tenant, id, parent, owner, shared, workspace, origin, provider, mode, token, place, purpose, status, created_at, "
    "machine",
)

JOURNALS = ChecksummedTable(
    "session_journals", "session", "tenant, session, data, entries, through, last_seq, trees, revision, updated_at"
)

SESSION_CHECKPOINTS = ChecksummedTable(
    "session_checkpoints",
    "hash",
    "tenant, hash, session, parent, kind, message, created_at, seq, tree, kept, tier, size, stored, data",
)

REFS = ChecksummedTable("session_refs", "name", "tenant, name, type, session, checkpoint, updated_at, metadata")

MERGES = ChecksummedTable("merges", "id", "tenant, id, checkpoint, other, base, created_at, record")

REAPPLIES = ChecksummedTable(
    "reapplies",
    "id",
    """tenant, id, workspace, path, about, now, before, after, status, holder, held_until, deadline, answer, said,
    created_at""",
)

PROMOTIONS = ChecksummedTable(
    "promotions",
    "id",
    "tenant, id, workspace, phase, result, source, theirs, spec, facts, revision, created_at, updated_at",
)

COVERED = (TENANTS, CHECKPOINTS, WORKSPACES, HISTORY)
"""The tables of version 2."""

COVERED_4 = (SESSIONS, JOURNALS, SESSION_CHECKPOINTS, REFS)
"""The tables that version 4 added."""

EXPORTS = ChecksummedTable(
    "exports", "name", "tenant, name, kind, workspace, project, auto, mode, created_at, revision"
)

TOKENS = ChecksummedTable("tokens", "id", "tenant, id, digest, rights, exports, roots, label, created_at, expires_at")

ANSWERS = ChecksummedTable("answers", "name", "tenant, name, request, status, body, owner, at")

COVERED_SERVING = (EXPORTS, TOKENS, ANSWERS)
"""The tables for serving that version 5 added."""


COVERED_MERGES = (MERGES, REAPPLIES)
"""The tables for merges that version 5 added."""


def set_checksum(transaction: Transaction, covered: ChecksummedTable, tenant: int, key: str | int) -> None:
    """Give a row that was just written its checksum, and with a checkpoint all that belongs to it."""
    transaction.run(
        f"UPDATE {covered.table} SET checksum = ? WHERE {covered.row}",
        (_looked_up(transaction, covered, tenant, key)[1], tenant, key),
    )


@contextmanager
def changing(
    transaction: Transaction, covered: ChecksummedTable, tenant: int, keys: Sequence[str | int]
) -> Generator[None]:
    """Rows that are there may be changed inside the block; their checksums follow.

    Not that of a row that was damaged before: it stays wrong, so that `verify` goes on naming the row.
    """
    sound = [key for key in keys if _is_sound(transaction, covered, tenant, key)]
    yield
    for key in sound:
        set_checksum(transaction, covered, tenant, key)


def damaged(transaction: Transaction, covered: ChecksummedTable, tenant: int) -> Iterator[str | int]:
    """The keys of all rows of a table whose checksum does not match. Use it up inside the transaction."""
    for (key,) in transaction.all(f"SELECT {covered.key} FROM {covered.table} WHERE {covered.tenant} = ?", (tenant,)):
        if not _is_sound(transaction, covered, tenant, key):
            yield key


def is_sound(transaction: Transaction, covered: ChecksummedTable, tenant: int, key: str | int) -> bool:
    """Whether a row is there, and its checksum matches."""
    return _is_sound(transaction, covered, tenant, key)


def _is_sound(transaction: Transaction, covered: ChecksummedTable, tenant: int, key: str | int) -> bool:
    row, computed = _looked_up(transaction, covered, tenant, key)
    return row is not None and row[0] == computed


def _looked_up(
    transaction: Transaction, covered: ChecksummedTable, tenant: int, key: str | int
) -> tuple[Row | None, Hash]:
    """A row as `ChecksummedTable.question` gives it, and the checksum that it should have."""
    if covered is not CHECKPOINTS:
        row = transaction.one(*covered.question(tenant, key))
        return row, covered.checksum(() if row is None else row[1:])
    rows, changesets, missed = transaction.together(
        [
            covered.question(tenant, key),
            ("SELECT data FROM changesets WHERE tenant = ? AND checkpoint = ?", (tenant, key)),
            (
                "SELECT place, path, reason FROM not_captured WHERE tenant = ? AND checkpoint = ? ORDER BY place",
                (tenant, key),
            ),
        ]
    )
    row = rows[0] if rows else None
    return row, covered.checksum(
        () if row is None else row[1:], belonging(changesets[0][0] if changesets else None, missed)
    )


def belonging(changeset: bytes | None, missed: Iterable[Sequence[object]]) -> list[object]:
    """The data that a checkpoint's checksum covers beside its row: the changeset, and uncaptured paths (place, path,
    reason).
    """
    return [changeset, *chain.from_iterable(missed)]


def _encoded(value: object) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bytes):
        return b"b%d:%b" % (len(value), value)
    if isinstance(value, str):
        text = value.encode()
        return b"t%d:%b" % (len(text), text)
    # A whole number; a damaged row may hold another kind, which then is written as no sound row's is.
    return b"i%b;" % str(value).encode()
