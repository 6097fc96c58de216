"""Settling: updating the counts of pages' children, some pages at a time (see `reference_counts`).

The pages of one step are processed together, so that a step is a few statements for any number of pages: a child of
several pages gets all its counts in one statement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from holdfast.model.errors import IntegrityError
from holdfast.model.ids import format_hash
from holdfast.model.log import Log
from holdfast.store.catalog.reference_counts import COUNT, UNCOUNT, chunks, slots
from holdfast.store.catalog.schema import COUNTED, PENDING, UNCOUNTED, UNMARKED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from holdfast.model.ids import Hash
    from holdfast.store.database.sql_database import Database, Row, Transaction

    Children = Callable[[Sequence[Hash]], Mapping[Hash, Sequence[Hash]]]
    """Gives the distinct children of each page; raises `IntegrityError` for one that cannot be read."""

_LOG = Log(__name__)

PAGES_PER_STEP = 48
"""Pages settled in one transaction: some thousands of row updates, well under 100 ms."""

# Also of what another page still holds: that page may have died earlier, and be settled only later.
TOUCH = f"""UPDATE blobs SET dead_since = ?,
    counted = CASE WHEN kind = 1 AND refs = 0 AND counted = {UNCOUNTED} THEN {UNMARKED} ELSE counted END
    WHERE tenant = ? AND hash = ? AND dead_since <= ?"""


class _CountError(Exception):
    """A child of some page is missing, or its count is too low."""


def settle_step(database: Database, tenant: int, children: Children, limit: int = PAGES_PER_STEP) -> int:
    """Bring the children of at most ``limit`` pages up to date in one transaction; how many pages that were, 0 if there
    is nothing to do.

    Live pages come first, so that what hangs below a new root is counted, not taken for dead in between.
    Pages are read before the transaction begins. Raises `IntegrityError` if a page cannot be read and it matters.
    """
    with database.reading(once=True) as transaction:
        found = transaction.all(
            f"SELECT hash FROM blobs WHERE tenant = ? AND {PENDING} ORDER BY refs DESC LIMIT ?", (tenant, limit)
        )
    if not found:
        return 0
    pages: list[Hash] = [row[0] for row in found]
    known, lost = _read(pages, children)
    try:
        return _settle(database, tenant, pages, known, lost)
    except _CountError:
        # Find the page and the child: one by one.
        for page in pages:
            try:
                _settle(database, tenant, [page], known, lost)
            except _CountError:
                raise IntegrityError(
                    f"the page {format_hash(page)} names blobs that the catalog does not know",
                    hint="run: holdfast gc --recount; if that does not help, holdfast verify",
                ) from None
    return len(pages)


def _read(pages: Sequence[Hash], children: Children) -> tuple[dict[Hash, Sequence[Hash]], dict[Hash, IntegrityError]]:
    try:
        return dict(children(pages)), {}
    except IntegrityError:
        known: dict[Hash, Sequence[Hash]] = {}
        lost: dict[Hash, IntegrityError] = {}
        for page in pages:
            try:
                known.update(children([page]))
            except IntegrityError as error:
                lost[page] = error
        return known, lost


def _settle(
    database: Database,
    tenant: int,
    pages: Sequence[Hash],
    known: Mapping[Hash, Sequence[Hash]],
    lost: Mapping[Hash, IntegrityError],
) -> int:
    with database.writing() as transaction:
        # Without pages that another process has settled meanwhile, or that are alive again.
        rows: dict[Hash, Row] = {}
        for part in chunks(pages):
            found = transaction.all(
                f"""SELECT hash, refs, counted, dead_since FROM blobs
                WHERE tenant = ? AND hash IN {slots(len(part))} AND {PENDING}""",
                (tenant, *part),
            )
            rows |= {row[0]: row for row in found}
        _give_up(transaction, tenant, [row for page, row in rows.items() if page in lost], lost)
        # The changes to children in this same batch would come too late for them: they wait for the next step.
        below = {child for page in rows if page in known for child in known[page]}
        batch = [row for page, row in rows.items() if page in known and page not in below]
        live = [row for row in batch if row[1]]
        dying = [row for row in batch if not row[1] and row[2] == COUNTED]
        _count(transaction, tenant, Counter(child for row in live for child in known[row[0]]))
        _uncount(transaction, tenant, dying, known)
        _touch(transaction, tenant, [row for row in batch if not row[1] and row[2] != COUNTED], known)
        for counted, settled in ((COUNTED, live), (UNCOUNTED, [row for row in batch if not row[1]])):
            transaction.many(
                "UPDATE blobs SET counted = ? WHERE tenant = ? AND hash = ?",
                ((counted, tenant, row[0]) for row in settled),
            )
    return len(pages) - len(rows.keys() & below)


def _give_up(transaction: Transaction, tenant: int, rows: Iterable[Row], lost: Mapping[Hash, IntegrityError]) -> None:
    for page, refs, _, _ in rows:
        if refs:
            raise lost[page]
        # No page needs it, so its children need not be known. Their counts from it stay too high, and they stay stored,
        # until verify reports it.
        _LOG.warning("dead page %s cannot be read; what it named may stay", format_hash(page))
        transaction.run("UPDATE blobs SET kind = 2, counted = 0 WHERE tenant = ? AND hash = ?", (tenant, page))


def _count(transaction: Transaction, tenant: int, more: Mapping[Hash, int]) -> None:
    by_number: defaultdict[int, list[Hash]] = defaultdict(list)
    for child, number in more.items():
        by_number[number].append(child)
    for number, named in by_number.items():
        _expect(named, transaction.many(COUNT, ((number, tenant, child) for child in sorted(named))))


def _uncount(transaction: Transaction, tenant: int, rows: Sequence[Row], known: Mapping[Hash, Sequence[Hash]]) -> None:
    fewer = Counter(child for row in rows for child in known[row[0]])
    groups: defaultdict[tuple[int, int], list[Hash]] = defaultdict(list)
    for child, died in _latest(rows, known).items():
        groups[fewer[child], died].append(child)
    for (number, died), named in groups.items():
        changed = transaction.many(
            UNCOUNT, ((number, died, died, number, tenant, child, number) for child in sorted(named))
        )
        _expect(named, changed)


def _touch(transaction: Transaction, tenant: int, rows: Sequence[Row], known: Mapping[Hash, Sequence[Hash]]) -> None:
    groups: defaultdict[int, list[Hash]] = defaultdict(list)
    for child, died in _latest(rows, known).items():
        groups[died].append(child)
    for died, named in groups.items():
        transaction.many(TOUCH, ((died, tenant, child, died) for child in sorted(named)))


def _latest(rows: Sequence[Row], known: Mapping[Hash, Sequence[Hash]]) -> dict[Hash, int]:
    """When the last of the dead pages died that name each child."""
    found: dict[Hash, int] = {}
    for page, _, _, died in rows:
        for child in known[page]:
            found[child] = max(died, found.get(child, died))
    return found


def _expect(named: Collection[Hash], changed: int) -> None:
    if changed != len(named):
        raise _CountError
