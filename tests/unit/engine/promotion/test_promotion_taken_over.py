"""What a process that was taken over removes, and what it leaves to its successor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.engine.promotion.durable import Flows
from holdfast.store.lease import this_process


def test_the_rows_that_a_successor_waits_for_stay() -> None:
    deleted: list[str] = []
    rows = [
        SimpleNamespace(workflow_id="a.1", executor_id=this_process()),
        SimpleNamespace(workflow_id="a.2", executor_id="other"),
    ]
    dbos: Any = SimpleNamespace(list_workflows=lambda **_: rows, delete_workflows=deleted.extend)
    Flows(dbos, "1.m.").forget("a")
    assert deleted == ["a.1"]
