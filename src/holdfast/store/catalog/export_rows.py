"""The catalog's rows of exports: workspaces that are served, each under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import EXPORTS, changing, set_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.ids import WorkspaceId
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Database, Transaction

Mode = Literal["development", "production"]
Kind = Literal["directory"]

_COLUMNS = "name, kind, workspace, project, auto, mode, created_at, revision"

_HERE = (
    "EXISTS (SELECT 1 FROM workspaces w WHERE w.tenant = exports.tenant AND w.id = exports.workspace AND w.machine = ?)"
)


class ExportRow(NamedTuple):
    """One export."""

    name: str
    kind: Kind
    workspace: WorkspaceId
    project: str
    auto: bool
    """Whether it is saved by itself, as far as its mode lets it."""
    mode: Mode
    created_at: int
    revision: int = 0

    @property
    def saves_itself(self) -> bool:
        """Whether it is saved without being asked for."""
        return self.auto and self.mode == "development"


class ExportRows:
    """The exports of one tenant, of the catalog's home: exports of other homes are not available here, except that
    their names are in use. Every method is one transaction, durable when it returns; errors as in `Catalog`.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._database = catalog.database
        self._tenant = catalog.tenant
        self._home_id = catalog.home_id

    def add(self, row: ExportRow) -> None:
        """A new export. Refused (code ``export_exists``) if its name or its workspace has one already."""
        with self._database.writing() as transaction:
            if transaction.all("SELECT 1 FROM exports WHERE tenant = ? AND name = ?", (self._tenant, row.name)):
                raise RefusedError(f"there is an export {row.name}", hint="choose another one", code="export_exists")
            self._refuse_served(transaction, row)
            transaction.run(
                f"INSERT INTO exports (tenant, {_COLUMNS}) VALUES {slots(9)}", (self._tenant, *_values(row))
            )
            set_checksum(transaction, EXPORTS, self._tenant, row.name)

    def get(self, name: str) -> ExportRow:
        """One export; raises `NotFoundError` (code ``no_export``) if there is none with this name."""
        with self._database.reading(once=True) as transaction:
            return self._get(transaction, name)

    def of_workspace(self, workspace: WorkspaceId) -> ExportRow | None:
        """The export of a workspace; None if it has none."""
        found = self._find("AND workspace = ?", workspace)
        return found[0] if found else None

    def list(
        self, *, project: str | None = None, after: str = "", limit: int | None = None, names: Sequence[str] = ()
    ) -> list[ExportRow]:
        """The exports after the name ``after``, by name, at most ``limit``; of a ``project``; of ``names``, if any."""
        where, values = "AND name > ?", [after]
        if project is not None:
            where += " AND project = ?"
            values.append(project)
        if names:
            where += f" AND name IN {slots(len(names))}"
            values += names
        more: tuple[object, ...] = () if limit is None else (limit,)
        return self._find(f"{where} ORDER BY name{'' if limit is None else ' LIMIT ?'}", *values, *more)

    def put(self, row: ExportRow) -> ExportRow:
        """Change the record of an export; returns the new one. Raises `RefusedError` (code ``moved``) if another
        process has changed it since ``row.revision``, or (code ``export_exists``) if its workspace has another export,
        and as `get`.
        """
        new = row._replace(revision=row.revision + 1)
        with self._database.writing() as transaction:
            if self._get(transaction, row.name).revision != row.revision:
                raise RefusedError(
                    f"the export {row.name} has just been changed by another process", hint="try again", code="moved"
                )
            self._refuse_served(transaction, row)
            with changing(transaction, EXPORTS, self._tenant, [row.name]):
                transaction.run(
                    "UPDATE exports SET workspace = ?, project = ?, auto = ?, mode = ?, revision = ? "
                    "WHERE tenant = ? AND name = ?",
                    (new.workspace, new.project, int(new.auto), new.mode, new.revision, self._tenant, new.name),
                )
        return new

    def remove(self, name: str) -> ExportRow:
        """Stop serving a workspace: deletes the record, and nothing else. Raises as `get`."""
        with self._database.writing() as transaction:
            row = self._get(transaction, name)
            transaction.run("DELETE FROM exports WHERE tenant = ? AND name = ?", (self._tenant, name))
        return row

    def overlapping(self, path: bytes) -> bool:
        """Whether another tenant serves ``path`` (a real one), a directory in it, or a parent of it: tenants must never
        see each other's files (I10). Only this and `other_tenants_roots` read other tenants' rows.
        """
        with self._database.reading(once=True) as transaction:
            rows = transaction.all(
                """SELECT w.path FROM exports e JOIN workspaces w ON w.tenant = e.tenant AND w.id = e.workspace
                WHERE e.tenant <> ? AND w.machine = ? AND w.live = 1""",
                (self._tenant, self._home_id),
            )
        return any(_under(path, row[0]) or _under(row[0], path) for row in rows)

    def other_tenants_roots(self) -> list[bytes]:
        """The paths of other tenants' workspaces in this home, served or not: for isolation, and never shown to a
        client.
        """
        with self._database.reading(once=True) as transaction:
            rows = transaction.all(
                "SELECT path FROM workspaces WHERE tenant <> ? AND machine = ? AND live = 1",
                (self._tenant, self._home_id),
            )
        return [row[0] for row in rows]

    def _refuse_served(self, transaction: Transaction, row: ExportRow) -> None:
        """Raise `RefusedError` if the row's workspace has another export."""
        where = "tenant = ? AND workspace = ? AND name <> ?"
        for found in transaction.all(
            f"SELECT name FROM exports WHERE {where}", (self._tenant, row.workspace, row.name)
        ):
            raise RefusedError(
                f"this directory is served already, as {found[0]}", hint="choose another one", code="export_exists"
            )

    def _get(self, transaction: Transaction, name: str) -> ExportRow:
        row = transaction.one(
            f"SELECT {_COLUMNS} FROM exports WHERE tenant = ? AND {_HERE} AND name = ?",
            (self._tenant, self._home_id, name),
        )
        if row is None:
            raise NotFoundError(f"there is no export {name}", hint="GET /api/exports lists them", code="no_export")
        return _row(row)

    def _find(self, where: str, *values: object) -> list[ExportRow]:
        with self._database.reading(once=True) as transaction:
            rows = transaction.all(
                f"SELECT {_COLUMNS} FROM exports WHERE tenant = ? AND {_HERE} {where}",
                (self._tenant, self._home_id, *values),
            )
        return [_row(row) for row in rows]


def tenants_that_serve(database: Database) -> list[str]:
    """The names of the tenants that have exports, for who does all their upkeep."""
    with database.reading(once=True) as transaction:
        rows = transaction.all(
            "SELECT name FROM tenants t WHERE EXISTS (SELECT 1 FROM exports e WHERE e.tenant = t.number) ORDER BY name"
        )
    return [row[0] for row in rows]


def _under(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _values(row: ExportRow) -> tuple[object, ...]:
    return (*row[:4], int(row.auto), *row[5:])


def _row(values: Sequence[object]) -> ExportRow:
    row = ExportRow(*values)  # type: ignore[arg-type]
    return row._replace(auto=bool(row.auto))
