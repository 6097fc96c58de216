"""The catalog's rows of kept answers: a request with a key is done once, however often it is sent (idempotency)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import ANSWERS, changing, is_sound, set_checksum
from holdfast.store.catalog.value_encryption import ValueCipher
from holdfast.store.catalog.work_lease import LASTS, may_run, this_process

if TYPE_CHECKING:
    from holdfast.model.clock import Clock
    from holdfast.model.ids import Hash
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Transaction

_COLUMNS = "name, request, status, body, owner, at"
_ELSEWHERE = 3 * LASTS
"""Microseconds after which work counts as given up if it is unknown whether its process runs."""
_DROPPED = 200
"""Old answers that are dropped at once, at most."""


class StoredAnswer(NamedTuple):
    """The known facts about a key."""

    request: Hash
    status: int | None
    """None while it is being worked on, or if the process that did was killed."""
    body: bytes
    lost: bool
    """True if the process that worked on it is gone without an answer."""


class AnswerRows:
    """The kept answers of one tenant. Every method is one transaction, durable when it returns."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._database = catalog.database
        self._tenant = catalog.tenant
        self._values = ValueCipher(catalog)
        self._clock = clock

    def begin(self, name: str, request: Hash, lasts: float) -> StoredAnswer | None:
        """Claim a key for this process; None if it is new, or older than ``lasts`` seconds; else the known facts.

        A ``lost`` one of the same request is claimed as well.
        """
        now = self._clock.now()
        with self._database.writing() as transaction:
            self._drop_old(transaction, now - int(lasts * 1_000_000))
            row = transaction.one(
                "SELECT request, status, body, owner, at FROM answers WHERE tenant = ? AND name = ?",
                (self._tenant, name),
            )
            found = None
            if row is not None and is_sound(transaction, ANSWERS, self._tenant, name):
                body = self._values.open("answers", "body", name, row[2]) or b""
                found = StoredAnswer(row[0], row[1], body, row[1] is None and self._is_lost(row[3], row[4], now))
                if not found.lost or found.request != request:
                    return found
            transaction.run("DELETE FROM answers WHERE tenant = ? AND name = ?", (self._tenant, name))
            transaction.run(
                f"INSERT INTO answers (tenant, {_COLUMNS}) VALUES {slots(7)}",
                (self._tenant, name, request, None, b"", this_process(), now),
            )
            set_checksum(transaction, ANSWERS, self._tenant, name)
        return found

    def is_in_progress(self, name: str, request: Hash) -> bool:
        """Whether a process is at work on this request for a key. Claims nothing."""
        with self._database.reading(once=True) as transaction:
            row = transaction.one(
                "SELECT request, status, owner, at FROM answers WHERE tenant = ? AND name = ?", (self._tenant, name)
            )
        if row is None or row[0] != request or row[1] is not None:
            return False
        return not self._is_lost(row[2], row[3], self._clock.now())

    def end(self, name: str, status: int, body: bytes) -> None:
        """Keep the answer to a key that this process has claimed."""
        with self._database.writing() as transaction, changing(transaction, ANSWERS, self._tenant, [name]):
            transaction.run(
                "UPDATE answers SET status = ?, body = ? WHERE tenant = ? AND name = ? AND owner = ?",
                (status, self._values.seal("answers", "body", name, body), self._tenant, name, this_process()),
            )

    def drop(self, name: str) -> None:
        """Forget a key that this process has claimed: nothing was done, and the same may be tried again."""
        with self._database.writing() as transaction:
            transaction.run(
                "DELETE FROM answers WHERE tenant = ? AND name = ? AND owner = ? AND status IS NULL",
                (self._tenant, name, this_process()),
            )

    def mark_lost(self, name: str) -> None:
        """Leave a key that this process has claimed as one whose work was cut short: it is unknown how far it came."""
        with self._database.writing() as transaction, changing(transaction, ANSWERS, self._tenant, [name]):
            transaction.run(
                "UPDATE answers SET owner = '' WHERE tenant = ? AND name = ? AND owner = ? AND status IS NULL",
                (self._tenant, name, this_process()),
            )

    def _is_lost(self, owner: str, at: int, now: int) -> bool:
        return not owner or not may_run(owner) or (owner != this_process() and not at <= now < at + _ELSEWHERE)

    def _drop_old(self, transaction: Transaction, before: int) -> None:
        transaction.run(
            """DELETE FROM answers WHERE tenant = ? AND name IN (
            SELECT name FROM answers WHERE tenant = ? AND at < ? ORDER BY at LIMIT ?)""",
            (self._tenant, self._tenant, before, _DROPPED),
        )
