"""Changes that wait to be applied anew, in the catalog: asked once, taken under a lease, answered once.

Nothing here knows what an answer is worth: the asking process decides that when it comes to use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.row_checksums import REAPPLIES, changing, set_checksum
from holdfast.store.catalog.value_encryption import COLUMNS, ValueCipher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.ids import WorkspaceId
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Row, Transaction

Status = Literal["open", "answered", "declined", "shown", "kept"]
"""``shown`` is no question: what a person was shown of a file last. Nor is ``kept``: what a command has answered."""

_COLUMNS = """id, workspace, path, about, now, before, after, status, holder, held_until, deadline, answer, said,
    created_at"""

_CONTENTS = COLUMNS[REAPPLIES]

_SIZE = " + ".join(f"COALESCE(LENGTH({name}), 0)" for name in ("path", "about", "now", "before", "after"))
"""In bytes, except a few characters, and some dozens for each encrypted content."""


class ReapplyRow(NamedTuple):
    """One change that waits, or has waited."""

    id: str
    workspace: WorkspaceId
    path: bytes
    about: str
    now: bytes | None
    before: bytes | None
    after: bytes | None
    status: Status = "open"
    holder: str = ""
    held_until: int = 0
    deadline: int = 0
    answer: bytes | None = None
    said: str = ""
    created_at: int = 0


class ReapplyRows:
    """The changes to apply anew, of one tenant. Every method is one transaction, durable when it returns. Times are
    microseconds.
    """

    __slots__ = ("_database", "_tenant", "_values")

    def __init__(self, catalog: Catalog) -> None:
        self._database = catalog.database
        self._tenant = catalog.tenant
        self._values = ValueCipher(catalog)

    def ask(
        self, asked: ReapplyRow, now: int = 0, *, most: int | None = None, most_bytes: int | None = None
    ) -> ReapplyRow | None:
        """Let ``asked`` wait, unless it is in the table already; returns its present row.

        None, without a change, if more than ``most`` would wait then, or more than ``most_bytes``. Rows whose deadline
        has passed by ``now`` make room, oldest first. Answered rows do not wait: they stay for the merge that asked,
        until `sweep`.
        """
        with self._database.writing() as transaction:
            if (
                most is not None
                and most_bytes is not None
                and not self._make_room(transaction, asked, now, most, most_bytes)
            ):
                return None
            self._add(transaction, asked)
            row = transaction.one(
                f"SELECT {_COLUMNS} FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, asked.id)
            )
        assert row is not None
        return self._opened(row)

    def _add(self, transaction: Transaction, asked: ReapplyRow) -> None:
        sealed = {column: self._sealed(asked.id, column, getattr(asked, column)) for column in _CONTENTS}
        values = [self._tenant, *asked._replace(**sealed)]
        added = transaction.run(
            f"INSERT INTO reapplies (tenant, {_COLUMNS}) VALUES ({', '.join('?' * len(values))}) "
            "ON CONFLICT DO NOTHING",
            values,
        )
        if added:
            set_checksum(transaction, REAPPLIES, self._tenant, asked.id)

    def _make_room(self, transaction: Transaction, asked: ReapplyRow, now: int, most: int, most_bytes: int) -> bool:
        """Whether there is room for ``asked``, or it is there already; overdue rows are dropped for that."""
        if transaction.one("SELECT 1 FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, asked.id)):
            return True
        size = (
            len(asked.path) + len(asked.about) + sum(len(one or b"") for one in (asked.now, asked.before, asked.after))
        )
        (count, held), *_ = transaction.all(
            f"SELECT COUNT(*), COALESCE(SUM({_SIZE}), 0) FROM reapplies WHERE tenant = ? AND status = 'open'",
            (self._tenant,),
        )
        excess, excess_bytes = int(count) + 1 - most, int(held) + size - most_bytes
        dropped: list[str] = []
        if excess > 0 or excess_bytes > 0:
            over = transaction.all(
                f"""SELECT id, {_SIZE} FROM reapplies WHERE tenant = ? AND status = 'open' AND deadline <= ?
                ORDER BY created_at, id""",
                (self._tenant, now),
            )
            for name, freed in over:
                if excess <= 0 and excess_bytes <= 0:
                    break
                dropped.append(name)
                excess, excess_bytes = excess - 1, excess_bytes - int(freed)
        if excess > 0 or excess_bytes > 0:
            return False
        for name in dropped:
            transaction.run("DELETE FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, name))
        return True

    def note_shown(self, shown: ReapplyRow) -> None:
        """Record the version that a person was shown; replaces one with the same id."""
        with self._database.writing() as transaction:
            transaction.run("DELETE FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, shown.id))
            self._add(transaction, shown)

    def keep(self, kept: ReapplyRow, *, most: int, most_bytes: int) -> None:
        """Keep an answer, which replaces one with its id. The oldest make room: at most ``most`` are kept, and at most
        ``most_bytes``.
        """
        size = "COALESCE(LENGTH(answer), 0) + LENGTH(path) + LENGTH(said)"
        with self._database.writing() as transaction:
            transaction.run("DELETE FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, kept.id))
            self._add(transaction, kept)
            rows = transaction.all(
                f"""SELECT id, {size} FROM reapplies WHERE tenant = ? AND status = 'kept'
                ORDER BY created_at DESC, id""",
                (self._tenant,),
            )
            held = 0
            for number, (name, taken) in enumerate(rows):
                held += int(taken)
                if number >= most or held > most_bytes:
                    transaction.run("DELETE FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, name))

    def forget_kept(self, workspace: WorkspaceId, paths: Iterable[bytes]) -> None:
        """Forget the answers that are kept for these files of a workspace."""
        with self._database.writing() as transaction:
            for path in paths:
                transaction.run(
                    "DELETE FROM reapplies WHERE tenant = ? AND workspace = ? AND status = 'kept' AND path = ?",
                    (self._tenant, workspace, path),
                )

    def get(self, name: str) -> ReapplyRow | None:
        """One of them."""
        with self._database.reading(once=True) as transaction:
            row = transaction.one(f"SELECT {_COLUMNS} FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, name))
        return None if row is None else self._opened(row)

    def open(self, now: int, limit: int, workspace: WorkspaceId | None = None) -> list[ReapplyRow]:
        """Waiting changes whose deadline has not passed, oldest first, held or not; at most ``limit``.

        With ``workspace`` only of merges into that one.
        """
        with self._database.reading(once=True) as transaction:
            rows = transaction.all(
                f"""SELECT {_COLUMNS} FROM reapplies WHERE tenant = ? AND status = 'open' AND deadline > ?
                AND (workspace = ? OR ? = '') ORDER BY created_at, id LIMIT ?""",
                (self._tenant, now, workspace or "", workspace or "", limit),
            )
        return [self._opened(row) for row in rows]

    def take(self, now: int, held_until: int, holder: str, workspace: WorkspaceId | None = None) -> ReapplyRow | None:
        """Give the oldest free one to ``holder``, until ``held_until``; None if there is none.

        With ``workspace`` only of merges into that one.
        """
        with self._database.writing() as transaction:
            row = transaction.one(
                """SELECT id FROM reapplies WHERE tenant = ? AND status = 'open' AND deadline > ? AND held_until <= ?
                AND (workspace = ? OR ? = '') ORDER BY created_at, id LIMIT 1""",
                (self._tenant, now, now, workspace or "", workspace or ""),
            )
            if row is None:
                return None
            with changing(transaction, REAPPLIES, self._tenant, [row[0]]):
                transaction.run(
                    "UPDATE reapplies SET holder = ?, held_until = ? WHERE tenant = ? AND id = ?",
                    (holder, held_until, self._tenant, row[0]),
                )
            found = transaction.one(
                f"SELECT {_COLUMNS} FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, row[0])
            )
        assert found is not None
        return self._opened(found)

    def settle(
        self, name: str, holder: str, now: int, status: Status, answer: bytes | None, said: str
    ) -> ReapplyRow | None:
        """Record an answer, if ``holder`` still holds the change and its deadline has not passed.

        None if that is done; otherwise the present row. Raises nothing for a missing one, which is checked before.
        """
        with self._database.writing() as transaction:
            row = transaction.one(f"SELECT {_COLUMNS} FROM reapplies WHERE tenant = ? AND id = ?", (self._tenant, name))
            found = None if row is None else self._opened(row)
            if (
                found is None
                or found.status != "open"
                or found.holder != holder
                or found.held_until <= now
                or found.deadline <= now
            ):
                return found
            with changing(transaction, REAPPLIES, self._tenant, [name]):
                transaction.run(
                    """UPDATE reapplies SET status = ?, answer = ?, said = ?, holder = '', held_until = 0
                    WHERE tenant = ? AND id = ?""",
                    (status, self._sealed(name, "answer", answer), said, self._tenant, name),
                )
        return None

    def sweep(self, before: int) -> int:
        """Drop rows from before that time; returns their number."""
        with self._database.writing() as transaction:
            return transaction.run("DELETE FROM reapplies WHERE tenant = ? AND created_at < ?", (self._tenant, before))

    def _sealed(self, name: str, column: str, value: bytes | None) -> bytes | None:
        return self._values.seal("reapplies", column, name, value)

    def _opened(self, row: Row) -> ReapplyRow:
        stored = ReapplyRow(*row)
        opened = {
            column: self._values.open("reapplies", column, stored.id, getattr(stored, column)) for column in _CONTENTS
        }
        return stored._replace(**opened)
