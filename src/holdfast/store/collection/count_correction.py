"""Counts that drifted are settled from a full mark, beside savers (docs/formats/catalog.md, "Counting anew").

Every operation changes a row's count and its real references alike. So a difference that the mark has found at one
moment stays correct later, as long as the row is the same; while ``tenants.swept`` is unchanged, no deleted row has
come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.reference_counts import COUNT, RAISE, UNCOUNT, chunks, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.ids import Hash
    from holdfast.store.database.sql_database import Database, Transaction

EVERY: Final = 30 * 24 * 3600 * 1_000_000
"""Microseconds from one comparison to the next."""
_DUE: Final = "recount"
"""The row of ``leases`` that says when the next one is due."""

_COUNT_DELTAS = "UPDATE blobs SET deltas = deltas + ? WHERE tenant = ? AND hash = ?"
# A dead page's own time must not move without its children's: see `reference_counts`.
_UNCOUNT_DELTAS = f"""UPDATE blobs SET deltas = deltas - ?,
    dead_since = CASE WHEN kind <> 1 THEN {RAISE.removeprefix("dead_since = ")} ELSE dead_since END
    WHERE tenant = ? AND hash = ? AND deltas >= ?"""


class CountDrift(NamedTuple):
    """A wrong count."""

    hash: Hash
    counted: Literal["references", "deltas"]
    was: int
    now: int
    """How many there are."""


class CountMark(NamedTuple):
    """The result of a full mark."""

    drifts: Sequence[CountDrift]
    swept: int
    """``tenants.swept`` as of the mark."""
    is_whole: bool
    """False if damage hides what some page counts: then a count may be too high for all that is known, or not."""

    @property
    def sure(self) -> list[CountDrift]:
        """Those that can be corrected without danger to content that may be needed (I11)."""
        return [drift for drift in self.drifts if self.is_whole or drift.was < drift.now]


def correct(
    database: Database, tenant: int, mark: CountMark, clock: Callable[[], int], rows: int
) -> list[CountDrift] | None:
    """Correct the sure ones, ``rows`` in a transaction; returns the corrected ones. None if a row may have been deleted
    since the mark, so that the rest must be marked again.

    After a kill, the next mark finds the rest.
    """
    done: list[CountDrift] = []
    for part in chunks(mark.sure, rows):
        with database.writing() as transaction:
            row = transaction.one("SELECT swept FROM tenants WHERE number = ?", (tenant,))
            if row is None or row[0] != mark.swept:
                return None
            now = moment(transaction, tenant, clock())
            done += [drift for drift in part if _correct(transaction, tenant, drift, now)]
    return done


def _correct(transaction: Transaction, tenant: int, drift: CountDrift, now: int) -> bool:
    name, number = drift.hash, abs(drift.was - drift.now)
    if drift.was < drift.now:
        sql = COUNT if drift.counted == "references" else _COUNT_DELTAS
        return transaction.run(sql, (number, tenant, name)) == 1
    if drift.counted == "references":
        return transaction.run(UNCOUNT, (number, now, now, number, tenant, name, number)) == 1
    return transaction.run(_UNCOUNT_DELTAS, (number, now, now, tenant, name, number)) == 1


def is_due(transaction: Transaction, tenant: int, now: int) -> bool:
    """Whether a recount is due."""
    row = transaction.one("SELECT expires_at FROM leases WHERE tenant = ? AND name = ?", (tenant, _DUE))
    # A clock that was far ahead and was corrected must not delay it for years.
    return row is None or not now < row[0] <= now + EVERY


def note_done(transaction: Transaction, tenant: int, now: int) -> None:
    """Note that counts were compared."""
    transaction.run(
        """INSERT INTO leases (tenant, name, owner, expires_at) VALUES (?, ?, '', ?)
        ON CONFLICT (tenant, name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at""",
        (tenant, _DUE, now + EVERY),
    )
