"""The catalog's rows of promotions: the request and the progress of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from holdfast.model.errors import LockedError, NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import PROMOTIONS, changing, set_checksum

if TYPE_CHECKING:
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.store.catalog.catalog import Catalog

Phase = Literal["building", "swapping", "swapped", "ended"]
Result = Literal["", "promoted", "unchanged", "needs_reapply", "build_failed", "failed"]

_HERE = (
    "EXISTS (SELECT 1 FROM workspaces w WHERE w.tenant = promotions.tenant AND w.id = promotions.workspace "
    "AND w.machine = ?)"
)

_COLUMNS = "id, workspace, phase, result, source, theirs, spec, facts, revision, created_at, updated_at"


class PromotionRow(NamedTuple):
    """One promotion."""

    id: str
    workspace: WorkspaceId
    phase: Phase
    result: Result
    source: str
    theirs: CheckpointId
    spec: str
    facts: str
    revision: int = 0
    created_at: int = 0
    updated_at: int = 0


class PromotionRows:
    """The promotions of one tenant, of the catalog's home: those of other homes are for directories that are not
    available here, even with equal names. Every method is one transaction, durable when it returns; errors as in
    `Catalog`.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._database = catalog.database
        self._tenant = catalog.tenant
        self._home_id = catalog.home_id
        self._clock = catalog.clock
        if catalog.again is not None:
            from holdfast.store.database.sql_database import repeat

            repeat(self, ("add", "change", "_find"), catalog.again)

    def add(self, row: PromotionRow) -> None:
        """A new one; its revision and times are filled in."""
        now = self._clock.now()
        with self._database.writing() as transaction:
            transaction.run(
                f"INSERT INTO promotions (tenant, {_COLUMNS}) VALUES {slots(12)}", (self._tenant, *row[:8], 1, now, now)
            )
            set_checksum(transaction, PROMOTIONS, self._tenant, row.id)

    def get(self, name: str) -> PromotionRow:
        """A promotion; raises `NotFoundError` (code ``no_promotion``) if there is none with this id."""
        found = self._find("AND id = ?", name)
        if not found:
            raise NotFoundError(f"no promotion {name}", hint="list them: holdfast promote --list", code="no_promotion")
        return found[0]

    def by_prefix(self, prefix: str) -> list[PromotionRow]:
        """Those with this prefix of their ids, oldest first."""
        return self._find("AND id >= ? AND id < ? ORDER BY created_at, id", prefix, prefix + "g")

    def list(self, workspace: WorkspaceId | None = None, *, unfinished: bool = False) -> list[PromotionRow]:
        """All promotions, or those of one production, oldest first; with ``unfinished`` only unfinished ones."""
        where, values = ("", ()) if workspace is None else ("AND workspace = ?", (workspace,))
        if unfinished:
            where += " AND phase <> 'ended'"
        return self._find(f"{where} ORDER BY created_at, id", *values)

    def change(self, row: PromotionRow) -> PromotionRow:
        """Write phase, result and facts; the new row. Raises `LockedError` (code ``taken_over``) if its revision is
        another by now: then another process is at work on it.
        """
        with self._database.writing() as transaction, changing(transaction, PROMOTIONS, self._tenant, [row.id]):
            changed = transaction.run(
                "UPDATE promotions SET phase = ?, result = ?, theirs = ?, facts = ?, revision = revision + 1, "
                "updated_at = ? WHERE tenant = ? AND id = ? AND revision = ?",
                (
                    row.phase,
                    row.result,
                    row.theirs,
                    row.facts,
                    self._clock.now(),
                    self._tenant,
                    row.id,
                    row.revision,
                ),
            )
        if not changed:
            raise LockedError(
                f"another process has taken the promotion {row.id} over",
                hint="nothing is lost; it goes on there",
                code="taken_over",
            )
        return row._replace(revision=row.revision + 1)

    def _find(self, where: str, *values: object) -> list[PromotionRow]:
        with self._database.reading(once=True) as transaction:
            rows = transaction.all(
                f"SELECT {_COLUMNS} FROM promotions WHERE tenant = ? AND {_HERE} {where}",
                (self._tenant, self._home_id, *values),
            )
        return [PromotionRow(*cast("tuple[str, ...]", row)) for row in rows]  # pyright: ignore[reportArgumentType]
