"""The catalog's rows of history: the events of each workspace, and its position in them (its cursor)."""

from __future__ import annotations

from holdfast.model.checkpoint import HistoryEvent
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog.row_checksums import HISTORY, WORKSPACES
from holdfast.store.catalog.text_encryption import event_name
from holdfast.store.catalog_records import Cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.ids import WorkspaceId
    from holdfast.store.catalog.text_encryption import TextCipher
    from holdfast.store.database.sql_database import Row, Statement, Transaction


def cursor(transaction: Transaction, tenant: int, workspace: WorkspaceId) -> Cursor:
    """The position of a workspace; raises `NotFoundError` if there is no such workspace."""
    row = transaction.one(
        "SELECT head, position, redo_tip FROM workspaces WHERE tenant = ? AND id = ?", (tenant, workspace)
    )
    if row is None:
        raise NotFoundError(f"no workspace {workspace}")
    return Cursor(*row)


def check_cursor(workspace: WorkspaceId, rows: Sequence[Row], expected: Cursor) -> Row:
    """The row of a workspace, from the ``rows`` of its query (`ChecksummedTable.question`).

    Raises `NotFoundError` if there is none, `RefusedError` with code ``moved`` if its position is another by now.
    """
    if not rows:
        raise NotFoundError(f"no workspace {workspace}")
    if rows[0][1 + _HEAD : 1 + _HEAD + len(expected)] != expected:
        raise RefusedError(
            "the workspace's history has moved on: another command was there first",
            code="moved",
            hint="run the command again",
        )
    return rows[0]


_HEAD = WORKSPACES.columns.split(", ").index("head")
"""Where in a row the cursor begins."""


def set_cursor(transaction: Transaction, tenant: int, workspace: WorkspaceId, found: Row, new: Cursor) -> None:
    """Set the position of a workspace, whose row was ``found``, in its history. Needs no result."""
    checksum = WORKSPACES.changed(found, head=new.head, position=new.position, redo_tip=new.redo_tip)
    transaction.run(
        "UPDATE workspaces SET head = ?, position = ?, redo_tip = ?, checksum = ? WHERE tenant = ? AND id = ?",
        (*new, checksum, tenant, workspace),
    )


def appending(tenant: int, workspace: WorkspaceId, event: HistoryEvent, texts: TextCipher) -> Statement:
    """Appends to a workspace's history, and gives the row for `seal_event`; its first column is its number."""
    return (
        f"""INSERT INTO history
        (tenant, workspace, at, operation, checkpoint, previous, ahead, steps, run, undo_seq, author, text)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {HISTORY.columns}""",
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
            event.undo_seq,
            event.author,
            texts.seal("history", "text", event_name(workspace, event.at), event.text),
        ),
    )


def seal_event(transaction: Transaction, tenant: int, row: Row) -> None:
    """Give an event its checksum. Needs no answer."""
    transaction.run(f"UPDATE history SET checksum = ? WHERE {HISTORY.row}", (HISTORY.checksum(row), tenant, row[0]))


def events(transaction: Transaction, tenant: int, texts: TextCipher, rest: str, *values: object) -> list[HistoryEvent]:
    """The events that ``rest`` (``AND …``) leaves, in its order."""
    rows = transaction.all(
        f"""SELECT workspace, seq, at, operation, checkpoint, previous, ahead, steps, run, undo_seq, author, text
        FROM history WHERE tenant = ? {rest}""",
        (tenant, *values),
    )
    return [
        HistoryEvent(
            *(seq, at, operation, checkpoint, previous, ahead, _steps(seq, steps), run, undo_seq, author),
            text=texts.open("history", "text", event_name(workspace, at), text),
        )
        for workspace, seq, at, operation, checkpoint, previous, ahead, steps, run, undo_seq, author, text in rows
    ]


def _steps(seq: int, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split()))
    except (ValueError, AttributeError):
        raise IntegrityError(f"event {seq} of the history is damaged: its steps cannot be read") from None
