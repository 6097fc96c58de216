"""Copies the rows of one tenant from a catalog to another, table by table, in one transaction of each.

`TABLES` has the treatment of every table; a test compares that with the schema. Rows with numbers across tenants
(checkpoints, packs, events) get the other catalog's numbers, in the same order; row checksums are made anew, except for
damaged rows, which `verify` still reports.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from holdfast.model.errors import IntegrityError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import (
    CHECKPOINTS,
    EXPORTS,
    HISTORY,
    JOURNALS,
    MERGES,
    REAPPLIES,
    REFS,
    SESSION_CHECKPOINTS,
    SESSIONS,
    TOKENS,
    WORKSPACES,
    damaged,
    set_checksum,
)
from holdfast.store.catalog.text_encryption import TEXTS, TextCipher, row_name
from holdfast.store.catalog.value_encryption import COLUMNS, ValueCipher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.row_checksums import ChecksummedTable
    from holdfast.store.database.sql_database import Row, Transaction

How = Literal["rows", "numbered", "beside", "left"]
"""Copied unchanged; with a number of the other catalog; by code of its own; not copied."""


class Ciphers(NamedTuple):
    """The ciphers of the source catalog, and of the target."""

    values: tuple[ValueCipher, ValueCipher]
    texts: tuple[TextCipher, TextCipher]

    @classmethod
    def of(cls, source: Catalog, target: Catalog) -> Ciphers:
        """The ciphers of two catalogs."""
        return cls((ValueCipher(source), ValueCipher(target)), (TextCipher(source), TextCipher(target)))


class Table(NamedTuple):
    """The treatment of a table."""

    name: str
    how: How
    columns: str = ""
    """Without ``tenant``, ``checksum`` and, of a numbered one, the number."""
    number: str = ""
    """The column that numbers its rows in all tenants."""
    mapped: tuple[tuple[str, str], ...] = ()
    """Columns that hold numbers of another table: (column, table)."""
    covered: ChecksummedTable | None = None
    order: str = ""


TABLES = (
    # tenants: the row is there already, with a number of the other catalog's.
    Table("tenants", "beside"),
    # The target store has its own.
    Table("stores", "beside"),
    Table("object_places", "beside"),
    Table(
        "workspaces",
        "rows",
        "id, path, device, inode, created_at, source, live, head, position, redo_tip, machine",
        # Their events come later: see `_set_cursors`.
        covered=WORKSPACES,
        order="id",
    ),
    Table(
        "checkpoints",
        "numbered",
        """id, workspace, parent, root, kind, label, created_at, added, modified, deleted, total_files, total_bytes,
        new_blobs, stored_bytes, not_captured, author, message, command""",
        number="number",
        covered=CHECKPOINTS,
    ),
    Table("changesets", "rows", "checkpoint, data", order="checkpoint"),
    Table("not_captured", "rows", "checkpoint, place, path, reason", order="checkpoint, place"),
    Table("packs", "numbered", "id, key, size, created_at, spared_until", number="number"),
    Table(
        "blobs",
        "rows",
        "hash, kind, size, codec, base, pack, place, length, generation, refs, deltas, counted, dead_since",
        mapped=(("pack", "packs"),),
        order="hash",
    ),
    Table(
        "history",
        "numbered",
        "workspace, at, operation, checkpoint, previous, ahead, steps, run, undo_seq, author, text",
        number="seq",
        mapped=(("previous", "history"), ("ahead", "history")),
        covered=HISTORY,
    ),
    # Pins count their contents; no process uses them over there, so they are removed after the copy.
    Table("pins", "numbered", "root, checkpoint, reason, expires_at, machine", number="number"),
    # The objects of these were never there.
    Table("tombstones", "left"),
    Table("leases", "left"),
    Table(
        "sessions",
        "rows",
        """id, parent, owner, shared, workspace, origin, provider, mode, token, place, purpose, status, created_at,
        machine""",
        covered=SESSIONS,
        order="id",
    ),
    Table(
        "session_journals",
        "rows",
        "session, data, entries, through, last_seq, trees, revision, updated_at",
        covered=JOURNALS,
        order="session",
    ),
    Table(
        "session_checkpoints",
        "rows",
        "hash, session, parent, kind, message, created_at, seq, tree, kept, tier, size, stored, data",
        covered=SESSION_CHECKPOINTS,
        order="hash",
    ),
    Table(
        "session_refs",
        "rows",
        "name, type, session, checkpoint, updated_at, metadata",
        covered=REFS,
        order="name",
    ),
    Table("merges", "rows", "id, checkpoint, other, base, created_at, record", covered=MERGES, order="id"),
    Table(
        "reapplies",
        "rows",
        """id, workspace, path, about, now, before, after, status, holder, held_until, deadline, answer, said,
        created_at""",
        covered=REAPPLIES,
        order="id",
    ),
    # A process that went on with one over there would swap the same directories as the source.
    Table("promotions", "left"),
    Table(
        "exports",
        "rows",
        "name, kind, workspace, project, auto, mode, created_at, revision",
        covered=EXPORTS,
        order="name",
    ),
    Table(
        "tokens",
        "rows",
        "id, digest, rights, exports, roots, label, created_at, expires_at",
        covered=TOKENS,
        order="id",
    ),
    # Requests to the other server are other requests.
    Table("answers", "left"),
)
"""In an order in which every row's references exist at the target."""


def clear(transaction: Transaction, tenant: int) -> None:
    """Remove what an earlier copy has left; the tenant and its store stay."""
    for table in reversed(TABLES):
        if table.how in ("rows", "numbered"):
            transaction.run(f"DELETE FROM {table.name} WHERE tenant = ?", (tenant,))


def is_empty(transaction: Transaction, tenant: int) -> bool:
    """True if nothing is there that `copy` would write."""
    return not any(
        transaction.one(f"SELECT 1 FROM {table.name} WHERE tenant = ? LIMIT 1", (tenant,))
        for table in TABLES
        if table.how in ("rows", "numbered")
    )


def count(transaction: Transaction, tenant: int) -> dict[str, int]:
    """How many rows of each table that is copied there are."""
    found: dict[str, int] = {}
    for table in TABLES:
        if table.how in ("rows", "numbered"):
            row = transaction.one(f"SELECT count(*) FROM {table.name} WHERE tenant = ?", (tenant,))
            found[table.name] = row[0] if row else 0
    return found


def copy(
    source: Transaction,
    tenant: int,
    target: Transaction,
    to: int,
    home_ids: tuple[str, str] = ("", ""),
    ciphers: Ciphers | None = None,
) -> dict[str, int]:
    """Copy every row of ``tenant`` to the tenant ``to``, which has none; the number for each table. ``home_ids``: the
    home's id in the source and in the target, where several homes share a catalog. ``ciphers``: those of both catalogs,
    if either encrypts values.

    Both are open transactions, of two databases. Memory: some bytes for each checkpoint, pack and event.
    """
    numbers: dict[str, dict[int, int]] = {}
    copied: dict[str, int] = {}
    for table in TABLES:
        if table.how == "numbered":
            copied[table.name] = _numbered(source, tenant, target, to, table, numbers, home_ids, ciphers)
        elif table.how == "rows":
            copied[table.name] = _plain(source, tenant, target, to, table, numbers, home_ids, ciphers)
    _set_cursors(source, tenant, target, to, numbers["history"])
    row = source.one("SELECT swept, latest FROM tenants WHERE number = ?", (tenant,))
    assert row is not None
    target.run("UPDATE tenants SET swept = ?, latest = ? WHERE number = ?", (*row, to))
    # At the end: that of a checkpoint covers rows of other tables.
    for table in TABLES:
        if table.covered is not None:
            _cover(source, tenant, target, to, table.covered, numbers.get(table.name, {}))
    return copied


def _columns(table: Table) -> list[str]:
    return [column.strip() for column in table.columns.split(",")]


def _mapped(table: Table, numbers: dict[str, dict[int, int]]) -> list[tuple[int, dict[int, int]]]:
    """The columns with numbers of another table's rows, each with the mapping to the target's numbers."""
    columns = _columns(table)
    return [(columns.index(column), numbers[other]) for column, other in table.mapped]


def _plain(
    source: Transaction,
    tenant: int,
    target: Transaction,
    to: int,
    table: Table,
    numbers: dict[str, dict[int, int]],
    home_ids: tuple[str, str],
    ciphers: Ciphers | None,
) -> int:
    columns, mapped = _columns(table), _mapped(table, numbers)
    without = {columns.index(name) for name in ("position", "redo_tip") if table.name == "workspaces"}

    def rows() -> Iterator[Row]:
        select = f"SELECT {table.columns} FROM {table.name} WHERE tenant = ? ORDER BY {table.order}"
        for row in source.stream(select, (tenant,)):
            values: list[object] = [None if at in without else value for at, value in enumerate(row)]
            for at, other in mapped:
                values[at] = other.get(row[at], row[at])
            if ciphers is not None and table.covered is not None and table.covered in COLUMNS:
                _recode(table.covered, columns, values, ciphers)
            yield (to, *_renamed(columns, values, home_ids))

    into = f"INSERT INTO {table.name} (tenant, {table.columns}) VALUES {slots(len(columns) + 1)}"
    return target.many(into, rows())


def _recode(covered: ChecksummedTable, columns: list[str], values: list[Any], ciphers: Ciphers) -> None:
    """Encrypt the values of a row as the other catalog's are. One that cannot be read stays so."""
    there, here = ciphers.values
    name = values[columns.index(covered.key)]
    for column in COLUMNS[covered]:
        at = columns.index(column)
        with suppress(IntegrityError):
            values[at] = here.seal(covered.table, column, name, there.open(covered.table, column, name, values[at]))


def _recode_texts(covered: ChecksummedTable, columns: list[str], values: list[Any], ciphers: Ciphers) -> None:
    there, here = ciphers.texts
    name = row_name(covered, columns, values)
    for column in TEXTS[covered]:
        at = columns.index(column)
        with suppress(IntegrityError):
            values[at] = here.seal(covered.table, column, name, there.read(covered.table, column, name, values[at]))


def _numbered(
    source: Transaction,
    tenant: int,
    target: Transaction,
    to: int,
    table: Table,
    numbers: dict[str, dict[int, int]],
    home_ids: tuple[str, str],
    ciphers: Ciphers | None,
) -> int:
    mine = numbers.setdefault(table.name, {})  # rows of a table may refer to others of it
    columns, mapped = _columns(table), _mapped(table, numbers)
    select = f"SELECT {table.number}, {table.columns} FROM {table.name} WHERE tenant = ? ORDER BY {table.number}"
    into = (
        f"INSERT INTO {table.name} (tenant, {table.columns}) VALUES {slots(len(columns) + 1)} RETURNING {table.number}"
    )
    for number, *values in source.stream(select, (tenant,)):
        for at, other in mapped:
            values[at] = other.get(values[at], values[at])
        if ciphers is not None and table.covered is not None and table.covered in TEXTS:
            _recode_texts(table.covered, columns, values, ciphers)
        row = target.one(into, (to, *_renamed(columns, values, home_ids)))
        assert row is not None
        mine[number] = row[0]
    return len(mine)


def _renamed(columns: list[str], values: list[object], home_ids: tuple[str, str]) -> list[object]:
    """The values, with the home called as it is in the other catalog."""
    there, here = home_ids
    return [
        here if name == "machine" and value == there else value for name, value in zip(columns, values, strict=True)
    ]


def _set_cursors(source: Transaction, tenant: int, target: Transaction, to: int, events: dict[int, int]) -> None:
    for name, position, tip in source.all("SELECT id, position, redo_tip FROM workspaces WHERE tenant = ?", (tenant,)):
        target.run(
            "UPDATE workspaces SET position = ?, redo_tip = ? WHERE tenant = ? AND id = ?",
            (events.get(position, position), events.get(tip, tip), to, name),
        )


def _cover(
    source: Transaction, tenant: int, target: Transaction, to: int, covered: ChecksummedTable, numbers: dict[int, int]
) -> None:
    wrong = set(damaged(source, covered, tenant))
    for (key,) in source.all(f"SELECT {covered.key} FROM {covered.table} WHERE tenant = ?", (tenant,)):
        if key not in wrong:
            set_checksum(target, covered, to, numbers[key] if covered.key == "seq" else key)
