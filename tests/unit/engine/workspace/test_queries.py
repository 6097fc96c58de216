"""What a checkpoint asks the catalog costs what has changed, not what is stored."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from holdfast.store.store import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

_QUERIES = ("SELECT", "UPDATE", "INSERT", "DELETE")
_WHOLE = ("SCAN blobs", "SEARCH blobs USING PRIMARY KEY (tenant=?)")
"""As SQLite's plans call it when every row of the largest table, or of a tenant's share of it, is looked at."""


def test_no_query_of_a_checkpoint_looks_at_every_blob(
    open_workspace: Callable[..., Workspace], tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    connect = sqlite3.connect

    def traced(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)  # type: ignore[arg-type]
        connection.set_trace_callback(asked.add)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    workspace = open_workspace()
    for number in range(3):
        (tree / "changed").write_text(f"{number}\n" * 99)
        (tree / f"new {number}").write_text(f"{number}\n")
        workspace.checkpoint()
    workspace.checkpoint()
    workspace.status()
    monkeypatch.undo()

    queries = [text for text in asked if text.lstrip().startswith(_QUERIES)]
    assert len(queries) > 20
    plans = sqlite3.connect(home / CATALOG.decode())
    try:
        for text in queries:
            steps = [str(row[3]) for row in plans.execute(f"EXPLAIN QUERY PLAN {text}")]
            # A plan may begin like this and go on with a condition on the next column.
            assert not [step for step in steps if step == _WHOLE[1] or step.startswith(_WHOLE[0])], text
    finally:
        plans.close()
