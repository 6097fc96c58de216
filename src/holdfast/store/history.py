"""The catalog's rows of history: what happened to each workspace, and where it stands in that (its cursor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.store.checksums import HISTORY, WORKSPACES, changing, set_checksum
from holdfast.store.records import Cursor, HistoryEvent

if TYPE_CHECKING:
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.database import Session


def cursor(session: Session, tenant: int, workspace: WorkspaceId) -> Cursor:
    """Where a workspace stands; raises `NotFoundError` if there is no such workspace."""
    row = session.one(
        "SELECT head, position, redo_tip FROM workspaces WHERE tenant = ? AND id = ?", (tenant, workspace)
    )
    if row is None:
        raise NotFoundError(f"no workspace {workspace}")
    return Cursor(*row)


def check_cursor(session: Session, tenant: int, workspace: WorkspaceId, expected: Cursor) -> None:
    """Raise `RefusedError` with code ``moved`` if the workspace stands elsewhere by now."""
    if cursor(session, tenant, workspace) != expected:
        raise RefusedError(
            "the workspace's history has moved on: another command was there first",
            code="moved",
            hint="run the command again",
        )


def set_cursor(session: Session, tenant: int, workspace: WorkspaceId, new: Cursor) -> None:
    """Put a workspace somewhere else in its history."""
    with changing(session, WORKSPACES, tenant, [workspace]):
        session.run(
            "UPDATE workspaces SET head = ?, position = ?, redo_tip = ? WHERE tenant = ? AND id = ?",
            (*new, tenant, workspace),
        )


def append_event(session: Session, tenant: int, workspace: WorkspaceId, event: HistoryEvent) -> int:
    """Append to a workspace's history; the number that the event got."""
    row = session.one(
        """INSERT INTO history (tenant, workspace, at, operation, checkpoint, previous, ahead, steps, run)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq""",
        (
            tenant,
            workspace,
            event.at,
            event.operation,
            event.checkpoint,
            event.previous,
            event.ahead,
            " ".join(map(str, event.steps)),
            event.run,
        ),
    )
    assert row is not None
    set_checksum(session, HISTORY, tenant, row[0])
    return row[0]


def events(session: Session, tenant: int, rest: str, *values: object) -> list[HistoryEvent]:
    """The events that ``rest`` (``AND …``) leaves, in its order."""
    rows = session.all(
        f"SELECT seq, at, operation, checkpoint, previous, ahead, steps, run FROM history WHERE tenant = ? {rest}",
        (tenant, *values),
    )
    return [
        HistoryEvent(seq, at, operation, checkpoint, previous, ahead, _steps(seq, steps), run)
        for seq, at, operation, checkpoint, previous, ahead, steps, run in rows
    ]


def _steps(seq: int, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split()))
    except (ValueError, AttributeError):
        raise IntegrityError(f"event {seq} of the history is damaged: its steps cannot be read") from None
