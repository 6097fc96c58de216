"""The catalog's rows of workspaces: where each is, and whether it holds anything back from retention."""

from __future__ import annotations

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import WORKSPACES, changing, set_checksum
from holdfast.store.catalog_records import WorkspaceRow, displaced_path

if TYPE_CHECKING:
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.database.sql_database import Transaction

_COLUMNS = "id, path, device, inode, created_at, source, live"


def add(transaction: Transaction, tenant: int, home_id: str, workspace: WorkspaceRow) -> None:
    """See `Catalog.add_workspace`."""
    _check_path_free(transaction, tenant, home_id, workspace.path)
    transaction.run(
        f"INSERT INTO workspaces (tenant, {_COLUMNS}, machine) VALUES {slots(9)}",
        (tenant, *workspace[:6], int(workspace.live), home_id),
    )
    set_checksum(transaction, WORKSPACES, tenant, workspace.id)


def find(transaction: Transaction, tenant: int, where: str = "", *values: object) -> list[WorkspaceRow]:
    """The workspaces that match ``where`` (``AND …``), oldest first, live or not."""
    rows = transaction.all(
        f"SELECT {_COLUMNS} FROM workspaces WHERE tenant = ? {where} ORDER BY created_at, id", (tenant, *values)
    )
    return [WorkspaceRow(*row[:6], live=bool(row[6])) for row in rows]


def move(
    transaction: Transaction, tenant: int, home_id: str, workspace: WorkspaceId, path: bytes, device: int, inode: int
) -> WorkspaceId | None:
    """See `Catalog.move_workspace`."""
    row = transaction.one(
        "SELECT id FROM workspaces WHERE tenant = ? AND machine = ? AND path = ? AND live = 1 AND id <> ?",
        (tenant, home_id, path, workspace),
    )
    other: WorkspaceId | None = row[0] if row else None
    if other is not None:
        with changing(transaction, WORKSPACES, tenant, [other]):
            transaction.run(
                "UPDATE workspaces SET path = ? WHERE tenant = ? AND id = ?",
                (displaced_path(path, other), tenant, other),
            )
    with changing(transaction, WORKSPACES, tenant, [workspace]):
        changed = transaction.run(
            "UPDATE workspaces SET path = ?, device = ?, inode = ? WHERE tenant = ? AND id = ?",
            (path, device, inode, tenant, workspace),
        )
    if not changed:
        raise NotFoundError(f"no workspace {workspace}")
    return other


def set_live(transaction: Transaction, tenant: int, home_id: str, workspace: WorkspaceId, *, live: bool) -> None:
    """See `Catalog.let_go` and `Catalog.adopt`."""
    found = find(transaction, tenant, "AND id = ?", workspace)
    if not found:
        raise NotFoundError(f"no workspace {workspace}")
    if live:
        _check_path_free(transaction, tenant, home_id, found[0].path, but=workspace)
    with changing(transaction, WORKSPACES, tenant, [workspace]):
        transaction.run("UPDATE workspaces SET live = ? WHERE tenant = ? AND id = ?", (int(live), tenant, workspace))


def _check_path_free(
    transaction: Transaction, tenant: int, home_id: str, path: bytes, but: WorkspaceId | None = None
) -> None:
    row = transaction.one(
        "SELECT id FROM workspaces WHERE tenant = ? AND machine = ? AND path = ? AND live = 1", (tenant, home_id, path)
    )
    if row is not None and row[0] != but:
        raise RefusedError("another workspace has this path", code="exists")
