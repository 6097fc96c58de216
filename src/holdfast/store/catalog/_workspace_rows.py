"""The catalog's rows of workspaces: where each is, and whether it holds anything back from retention."""

from __future__ import annotations

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import WORKSPACES, changing, set_checksum
from holdfast.store.catalog_records import Workspace, aside

if TYPE_CHECKING:
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.database.sql_database import Session

_COLUMNS = "id, path, device, inode, created_at, source, live"


def add(session: Session, tenant: int, machine: str, workspace: Workspace) -> None:
    """See `Catalog.add_workspace`."""
    _check_path_free(session, tenant, machine, workspace.path)
    session.run(
        f"INSERT INTO workspaces (tenant, {_COLUMNS}, machine) VALUES {slots(9)}",
        (tenant, *workspace[:6], int(workspace.live), machine),
    )
    set_checksum(session, WORKSPACES, tenant, workspace.id)


def find(session: Session, tenant: int, where: str = "", *values: object) -> list[Workspace]:
    """Those of which ``where`` (``AND …``) holds, oldest first, whether live or not."""
    rows = session.all(
        f"SELECT {_COLUMNS} FROM workspaces WHERE tenant = ? {where} ORDER BY created_at, id", (tenant, *values)
    )
    return [Workspace(*row[:6], live=bool(row[6])) for row in rows]


def move(
    session: Session, tenant: int, machine: str, workspace: WorkspaceId, path: bytes, device: int, inode: int
) -> WorkspaceId | None:
    """See `Catalog.move_workspace`."""
    row = session.one(
        "SELECT id FROM workspaces WHERE tenant = ? AND machine = ? AND path = ? AND live = 1 AND id <> ?",
        (tenant, machine, path, workspace),
    )
    other: WorkspaceId | None = row[0] if row else None
    if other is not None:
        with changing(session, WORKSPACES, tenant, [other]):
            session.run(
                "UPDATE workspaces SET path = ? WHERE tenant = ? AND id = ?", (aside(path, other), tenant, other)
            )
    with changing(session, WORKSPACES, tenant, [workspace]):
        changed = session.run(
            "UPDATE workspaces SET path = ?, device = ?, inode = ? WHERE tenant = ? AND id = ?",
            (path, device, inode, tenant, workspace),
        )
    if not changed:
        raise NotFoundError(f"no workspace {workspace}")
    return other


def set_live(session: Session, tenant: int, machine: str, workspace: WorkspaceId, *, live: bool) -> None:
    """See `Catalog.let_go` and `Catalog.adopt`."""
    found = find(session, tenant, "AND id = ?", workspace)
    if not found:
        raise NotFoundError(f"no workspace {workspace}")
    if live:
        _check_path_free(session, tenant, machine, found[0].path, but=workspace)
    with changing(session, WORKSPACES, tenant, [workspace]):
        session.run("UPDATE workspaces SET live = ? WHERE tenant = ? AND id = ?", (int(live), tenant, workspace))


def _check_path_free(session: Session, tenant: int, machine: str, path: bytes, but: WorkspaceId | None = None) -> None:
    row = session.one(
        "SELECT id FROM workspaces WHERE tenant = ? AND machine = ? AND path = ? AND live = 1", (tenant, machine, path)
    )
    if row is not None and row[0] != but:
        raise RefusedError("another workspace has this path", code="exists")
