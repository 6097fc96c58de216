"""Committing a checkpoint to the catalog: one write transaction, with the rows of large ones laid in ahead of it.

With a remote database, round trips are the cost. So a commit first makes all its queries at once, then adds rows whose
numbers the database assigns, and then the rest, without waiting for results.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from operator import itemgetter

from holdfast.model.errors import NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog._history_rows import appending, check_cursor, seal_event, set_cursor
from holdfast.store.catalog.reference_counts import (
    HASHES_PER_QUERY,
    RAISE,
    chunks,
    count_root,
    moment_after,
    note_moment,
    slots,
)
from holdfast.store.catalog.row_checksums import CHECKPOINTS, WORKSPACES, belonging
from holdfast.store.catalog.schema import BASE, BLOB, PAGE, UNCOUNTED, UNMARKED
from holdfast.store.catalog_records import Cursor, VanishedError, join_labels, large_blob_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.model.ids import Hash, PackId
    from holdfast.store.catalog.text_encryption import TextCipher
    from holdfast.store.catalog_records import CheckpointCommit, NewBlob
    from holdfast.store.database.sql_database import Database, Row, Statement, Transaction

AHEAD = 4000
"""A commit with more new blobs lays them in ahead, this many in a transaction, so that it blocks no process for long.
"""
SPARED = 24 * 3600 * 1_000_000
"""Microseconds for which collection leaves rows that were added ahead alone, whatever its grace time."""

_INSERT = """INSERT INTO blobs
    (tenant, hash, kind, size, codec, base, pack, place, length, generation, refs, deltas, counted, dead_since)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?) ON CONFLICT DO NOTHING"""

_KINDS = {"blob": (BLOB, UNCOUNTED), "page": (PAGE, UNMARKED)}

_Known = dict["Hash", tuple[int, bool]]
"""Stored hashes: the kind (`schema.BLOB`, …), and whether it may be the base of a delta: it is none itself."""

_Write = tuple[str, "Sequence[Sequence[object]]"]
"""For `Transaction.many`."""


class _CommitState(NamedTuple):
    """The facts that a commit needs, valid during the transaction."""

    latest: int
    """See `reference_counts.moment`."""
    workspace: Sequence[Row]
    """As `_history_rows.check_cursor` takes it."""
    parent: bool
    """Whether the parent exists."""
    packs: Mapping[PackId, tuple[int, int]]
    """Existing packs: the number, and the time until which they are spared."""
    known: _Known
    """Of all that is relied on or may have to be added, but for new content if there is much of it."""


class Committer:
    """Commits checkpoints of one tenant. ``tenant`` is its number, ``name`` its name in object keys."""

    __slots__ = ("_database", "_name", "_now", "_tenant", "_texts")

    def __init__(self, database: Database, tenant: int, name: str, now: Callable[[], int], texts: TextCipher) -> None:
        self._database = database
        self._tenant = tenant
        self._name = name
        self._now = now
        self._texts = texts

    def commit(self, commit: CheckpointCommit) -> Cursor:
        """See `Catalog.commit`."""
        ahead: list[NewBlob] = []
        rest = list(commit.blobs)
        if len(rest) > AHEAD:
            # Blobs without a base first, so that a base's row precedes its delta's. Pages and objects of their own are
            # few and wait: a page's row must never exist without its children's.
            small = sorted([blob for blob in rest if blob.kind == "blob" and blob.pack], key=itemgetter(0))
            ahead = [blob for blob in small if blob.base is None] + [blob for blob in small if blob.base is not None]
            rest = [blob for blob in rest if blob.kind != "blob" or not blob.pack]
        swept: int | None = None
        if ahead or len(commit.relied_on) > HASHES_PER_QUERY:
            # Rows that are alive now, or added from now on, are alive at the end if no collection happened meanwhile.
            with self._database.reading() as transaction:
                swept = self._swept(transaction)
                self._check_alive(transaction, commit.relied_on)
        for start in range(0, len(ahead), AHEAD):
            self._lay_in(commit, ahead[start : start + AHEAD])
        with self._database.writing() as transaction:
            if swept is None:
                return self._finish(transaction, commit, rest, commit.relied_on)
            if self._swept(transaction) != swept:
                self._check_alive(transaction, commit.relied_on.union(blob.hash for blob in ahead))
            return self._finish(transaction, commit, rest, frozenset())

    def _lay_in(self, commit: CheckpointCommit, blobs: Sequence[NewBlob]) -> None:
        with self._database.writing() as transaction:
            found = self._look(transaction, commit, blobs, frozenset())
            asked = self._now()
            now = moment_after(found.latest, asked)
            numbers = self._add(transaction, commit, found, now, now + SPARED)[0]
            self._add_content(transaction, blobs, found.known, numbers, now)
            writes = self._deltas(blobs, found.known, numbers, now)
            with transaction.unawaited():
                note_moment(transaction, self._tenant, found.latest, asked)
                _write(transaction, writes)

    def _finish(
        self, transaction: Transaction, commit: CheckpointCommit, blobs: Sequence[NewBlob], relied_on: frozenset[Hash]
    ) -> Cursor:
        """Add everything that was not added ahead; raises `VanishedError` unless ``relied_on`` is alive."""
        tenant, point = self._tenant, commit.checkpoint
        found = self._look(transaction, commit, blobs, relied_on)
        workspace = check_cursor(point.workspace, found.workspace, commit.expected)
        if point.parent is not None and not found.parent:
            raise NotFoundError(f"the parent checkpoint {point.parent} is gone")
        known = found.known
        missing = {name for name in relied_on if name not in known or known[name][0] == BASE}
        if missing:
            raise VanishedError(missing)
        asked = self._now()
        now = moment_after(found.latest, asked)
        statements = [_checkpoint(tenant, commit, self._texts)]
        if commit.event is not None:
            statements.append(appending(tenant, point.workspace, commit.event, self._texts))
        numbers, (row, *events) = self._add(transaction, commit, found, now, 0, *statements)
        content, pages = (
            [blob for blob in blobs if blob.kind == "blob"],
            [blob for blob in blobs if blob.kind == "page"],
        )
        self._add_content(transaction, content, known, numbers, now)
        writes = [*self._deltas(content, known, numbers, now), *self._pages(pages, known, numbers, now)]
        if known.get(point.root, (BASE, True))[0] != PAGE:
            raise VanishedError([point.root])
        cursor = _advanced(commit, events)
        with transaction.unawaited():
            note_moment(transaction, tenant, found.latest, asked)
            _write(transaction, writes)
            transaction.many(
                "UPDATE packs SET spared_until = 0 WHERE number = ?",
                ((number,) for number, spared in found.packs.values() if spared),
            )
            count_root(transaction, tenant, point.root)
            self._add_what_belongs(transaction, commit, row)
            for event in events:
                seal_event(transaction, tenant, event)
            if cursor != commit.expected:
                set_cursor(transaction, tenant, point.workspace, workspace, cursor)
        if commit.merge_parents is not None:
            from holdfast.store.catalog.merge_parents import add

            add(transaction, tenant, point.id, commit.merge_parents, point.created_at)
        return cursor

    # --- queries ---

    def _look(
        self, transaction: Transaction, commit: CheckpointCommit, blobs: Sequence[NewBlob], relied_on: frozenset[Hash]
    ) -> _CommitState:
        """Everything at once; raises `VanishedError` for objects that collection has condemned."""
        tenant, point = self._tenant, commit.checkpoint
        names = {point.root, *relied_on}
        names.update(blob.base for blob in blobs if blob.base is not None)
        # For much new content, adding it shows which of it was known.
        much = len(blobs) > HASHES_PER_QUERY
        names.update(blob.hash for blob in blobs if not much or blob.base is not None or blob.kind == "page")
        alone = {large_blob_key(self._name, blob.hash, blob.generation): blob.hash for blob in blobs if not blob.pack}
        lists = (
            _listed("SELECT id, number, spared_until FROM packs WHERE tenant = ? AND id", tenant, _ids(commit)),
            _listed(
                "SELECT key FROM tombstones WHERE tenant = ? AND key",
                tenant,
                [*alone, *(pack.key for pack in commit.packs)],
            ),
            _listed("SELECT hash, kind, base IS NULL FROM blobs WHERE tenant = ? AND hash", tenant, sorted(names)),
        )
        answers = iter(
            transaction.together(
                [
                    ("SELECT latest FROM tenants WHERE number = ?", (tenant,)),
                    WORKSPACES.question(tenant, point.workspace),
                    ("SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, point.parent or "")),
                    *chain.from_iterable(lists),
                ]
            )
        )
        latest, workspace, parent = next(answers), next(answers), next(answers)
        packs, condemned, known = ([row for _ in listed for row in next(answers)] for listed in lists)
        found = _CommitState(
            latest[0][0] if latest else 0,
            workspace,
            bool(parent),
            {name: (number, spared) for name, number, spared in packs},
            {name: (kind, bool(whole)) for name, kind, whole in known},
        )
        gone = {alone[row[0]] for row in condemned if row[0] in alone}
        condemned_keys = {row[0] for row in condemned}
        # A pack that collection has condemned or sealed takes no more rows: it may be on its way out. One may hold a
        # checkpoint's header alone, and no blob.
        lost = {
            pack.id
            for pack in commit.packs
            if pack.key in condemned_keys or (pack.id in found.packs and not found.packs[pack.id][1])
        }
        gone.update(blob.hash for blob in commit.blobs if blob.pack in lost)
        if gone or lost:
            raise VanishedError(gone)
        return found

    def _swept(self, transaction: Transaction) -> int:
        row = transaction.one("SELECT swept FROM tenants WHERE number = ?", (self._tenant,))
        return row[0] if row else 0

    def _check_alive(self, transaction: Transaction, hashes: frozenset[Hash]) -> None:
        missing = hashes - known(transaction, self._tenant, hashes)
        if missing:
            raise VanishedError(missing)

    # --- additions ---

    def _add(
        self,
        transaction: Transaction,
        commit: CheckpointCommit,
        found: _CommitState,
        now: int,
        spared: int,
        *more: Statement,
    ) -> tuple[dict[PackId, int], list[Row]]:
        """Add the packs that are new; the numbers of all, and the row that each of ``more`` gives."""
        new = [pack for pack in commit.packs if pack.id not in found.packs]
        rows = transaction.together(
            [
                *(
                    (
                        """INSERT INTO packs (tenant, id, key, size, created_at, spared_until)
                        VALUES (?, ?, ?, ?, ?, ?) RETURNING number""",
                        (self._tenant, pack.id, pack.key, pack.size, now, spared),
                    )
                    for pack in new
                ),
                *more,
            ]
        )
        numbers = {name: number for name, (number, _) in found.packs.items()}
        numbers |= {pack.id: given[0][0] for pack, given in zip(new, rows, strict=False)}
        return numbers, [given[0] for given in rows[len(new) :]]

    def _add_content(
        self, transaction: Transaction, blobs: Sequence[NewBlob], known: _Known, numbers: Mapping[PackId, int], now: int
    ) -> None:
        """Add content without a base, and note in ``known`` that it exists."""
        # In the order of the table's key: a thousand pages of it are then written once each.
        plain = sorted([blob for blob in blobs if blob.base is None], key=itemgetter(0))
        new = [blob for blob in plain if blob.hash not in known]
        if transaction.many(_INSERT, self._rows(new, numbers, now)) != len(plain):
            # Some were known: one of them perhaps as a former page, which does not count as stored content.
            transaction.many(
                f"UPDATE blobs SET kind = {BLOB} WHERE tenant = ? AND hash = ? AND kind = {BASE}",
                ((self._tenant, name) for name in dict.fromkeys(blob.hash for blob in plain)),
            )
        for blob in plain:
            was, whole = known.get(blob.hash, (BLOB, True))
            known[blob.hash] = (BLOB if was == BASE else was), whole

    def _deltas(self, blobs: Sequence[NewBlob], known: _Known, numbers: Mapping[PackId, int], now: int) -> list[_Write]:
        """The writes for deltas; notes in ``known`` what exists then."""
        deltas = [blob for blob in blobs if blob.base is not None]
        new = {blob.hash: blob for blob in deltas if blob.hash not in known}
        homeless = [blob.hash for blob in new.values() if blob.base is None or not known.get(blob.base, (0, False))[1]]
        if homeless:
            raise VanishedError(homeless)
        revived = [blob.hash for blob in deltas if blob.kind == "blob" and known.get(blob.hash, (BLOB,))[0] == BASE]
        bases: defaultdict[int, list[Hash]] = defaultdict(list)
        for base, count in Counter(blob.base for blob in new.values() if blob.base is not None).items():
            bases[count].append(base)
        for blob in deltas:
            was, whole = known.get(blob.hash, (_KINDS[blob.kind][0], False))
            known[blob.hash] = (BLOB if was == BASE and blob.kind == "blob" else was), whole
        tenant = self._tenant
        return [
            (f"UPDATE blobs SET kind = {BLOB} WHERE tenant = ? AND hash = ?", [(tenant, name) for name in revived]),
            (_INSERT, self._rows(list(new.values()), numbers, now)),
            *(
                (
                    "UPDATE blobs SET deltas = deltas + ? WHERE tenant = ? AND hash = ?",
                    [(count, tenant, base) for base in named],
                )
                for count, named in bases.items()
            ),
        ]

    def _pages(self, pages: Sequence[NewBlob], known: _Known, numbers: Mapping[PackId, int], now: int) -> list[_Write]:
        """The same for pages, with or without a base."""
        # A page may have been known before as a user's file of the same bytes, or as a former page.
        others = [page.hash for page in pages if known.get(page.hash, (PAGE,))[0] != PAGE]
        plain = {page.hash: page for page in sorted(pages, key=itemgetter(0)) if page.base is None}
        new = [page for name, page in plain.items() if name not in known]
        for name in plain:
            known.setdefault(name, (PAGE, True))
        writes = [(_INSERT, self._rows(new, numbers, now)), *self._deltas(pages, known, numbers, now)]
        for page in pages:
            known[page.hash] = PAGE, known[page.hash][1]
        return [
            *writes,
            (
                f"UPDATE blobs SET kind = {PAGE}, counted = {UNMARKED}, {RAISE} WHERE tenant = ? AND hash = ?",
                [(now, now, self._tenant, name) for name in dict.fromkeys(others)],
            ),
        ]

    def _rows(self, blobs: Sequence[NewBlob], numbers: Mapping[PackId, int], now: int) -> list[tuple[object, ...]]:
        # One comprehension, no call per row: a first checkpoint has as many rows as files.
        tenant = self._tenant
        places: dict[PackId | None, int | None] = {None: None, **numbers}
        kinds = _KINDS
        return [
            (tenant, name, kinds[kind][0], size, codec, base, places[pack], at, length, generation, kinds[kind][1], now)
            for name, kind, size, codec, base, pack, at, length, generation in blobs
        ]

    def _add_what_belongs(self, transaction: Transaction, commit: CheckpointCommit, row: Row) -> None:
        """Add the data of a checkpoint beside its own ``row``, and the checksum of all of it."""
        tenant, name = self._tenant, commit.checkpoint.id
        missed = [(place, *one) for place, one in enumerate(commit.not_captured)]
        if commit.changeset is not None:
            transaction.run("INSERT INTO changesets VALUES (?, ?, ?)", (tenant, name, commit.changeset))
        transaction.many("INSERT INTO not_captured VALUES (?, ?, ?, ?, ?)", ((tenant, name, *one) for one in missed))
        transaction.run(
            f"UPDATE checkpoints SET checksum = ? WHERE {CHECKPOINTS.row}",
            (CHECKPOINTS.checksum(row, belonging(commit.changeset, missed)), tenant, name),
        )


def _checkpoint(tenant: int, commit: CheckpointCommit, texts: TextCipher) -> Statement:
    point = commit.checkpoint
    return (
        f"""INSERT INTO checkpoints (tenant, id, workspace, parent, root, kind, label, created_at, added, modified,
        deleted, total_files, total_bytes, new_blobs, stored_bytes, not_captured, author, message, command)
        VALUES {slots(19)} RETURNING {CHECKPOINTS.columns}""",
        (
            tenant,
            *point[:5],
            join_labels(point.labels),
            point.created_at,
            *point.changes,
            *point[8:12],
            len(commit.not_captured),
            *texts.seal_provenance(point.id, point.provenance),
        ),
    )


def _advanced(commit: CheckpointCommit, events: Sequence[Row]) -> Cursor:
    """The workspace's new position; ``events`` is the row of the commit's event, if it has one."""
    point = commit.checkpoint
    if events:
        seq = events[0][0]
        return Cursor(point.id, seq, seq if commit.redo_tip is None else commit.redo_tip)
    if commit.is_apart or point.kind in ("import", "merge"):
        return commit.expected
    return commit.expected._replace(head=point.id)


def _write(transaction: Transaction, writes: Iterable[_Write]) -> None:
    for sql, rows in writes:
        transaction.many(sql, rows)


def _ids(commit: CheckpointCommit) -> list[PackId]:
    return [pack.id for pack in commit.packs]


def _listed(sql: str, tenant: int, values: Iterable[object]) -> list[Statement]:
    return [(f"{sql} IN {slots(len(part))}", (tenant, *part)) for part in chunks(values)]


def known(transaction: Transaction, tenant: int, hashes: Iterable[Hash], *, pages: bool = False) -> set[Hash]:
    """Those of ``hashes`` that are stored: as content or page, or only as ``pages``."""
    where = f"kind = {PAGE}" if pages else f"kind <> {BASE}"
    statements = _listed(f"SELECT hash FROM blobs WHERE tenant = ? AND {where} AND hash", tenant, sorted(hashes))
    return {row[0] for rows in transaction.together(statements) for row in rows}
