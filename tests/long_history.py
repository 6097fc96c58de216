"""A long history in little time: real checkpoints, and between them what the engine notes, in one transaction."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from holdfast.engine.history.history_writer import HistoryEntry
from holdfast.store.catalog import _history_rows as history_rows
from holdfast.store.catalog.row_checksums import WORKSPACES

if TYPE_CHECKING:
    from holdfast import Workspace

_SECOND = 1_000_000


def lengthen_history(workspace: Workspace, rows: int) -> None:
    """Append so many rows to the history: prompts, runs, and restores to states that there are, a second apart until
    now. The tree stays, and the workspace stands where it stood.

    Each is what `holdfast.engine.history.history_writer.record` would append; only the transaction is one.
    """
    context = workspace._context
    catalog = context.catalog
    cursor = catalog.cursor(context.workspace.id)
    assert cursor.head is not None
    ids = [item.checkpoint for item in workspace.log_page(limit=50).items if item.checkpoint is not None]
    now = context.clock.now()
    with catalog.database.writing() as transaction:
        (found,) = transaction.together([WORKSPACES.question(catalog.tenant, context.workspace.id)])
        history_rows.check_cursor(context.workspace.id, found, cursor)
        for number, checkpoint in enumerate(islice(cycle(ids), rows)):
            at = now - (rows - number) * _SECOND
            match number % 3:
                case 0:
                    entry = HistoryEntry(
                        "prompt", ahead=cursor.position, author="claude", text=f"Count the items {number}"
                    )
                case 1:
                    entry = HistoryEntry("run", run=f"{number:012x}", text=f"npm run build -- --target {number}")
                case _:
                    entry = HistoryEntry("restore", previous=cursor.position)
            row = transaction.one(
                *history_rows.appending(
                    catalog.tenant, context.workspace.id, entry.event(context, checkpoint, at), catalog._texts
                )
            )
            assert row is not None
            history_rows.seal_event(transaction, catalog.tenant, row)
