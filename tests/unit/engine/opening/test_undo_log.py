"""What happens before the undo log of a workspace is reached."""

from __future__ import annotations

import pytest

from holdfast.engine.opening import undo_log
from holdfast.supervisor.control import remote_service


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When an early scan ends, and when a keeper is looked for, in this order."""
    found: list[str] = []
    visit = remote_service.visit
    monkeypatch.setattr(undo_log, "end_early", lambda: found.append("ended"))
    monkeypatch.setattr(remote_service, "visit", lambda directory: found.append("visited") or visit(directory))
    return found


def test_an_early_scan_ends_before_steps_are_reversed(bench, told: list[str]) -> None:
    """A keeper reverses them in its own process, and cannot end it."""
    bench.step(lambda actor: actor.write(b"f", b"1"))
    for reverse in (bench.workspace.undo, bench.workspace.redo):
        told.clear()
        reverse()
        assert told[0] == "ended"
        assert "visited" in told
    bench.check(1)


def test_an_early_scan_goes_on_where_the_log_is_only_looked_at(bench, told: list[str]) -> None:
    bench.step(lambda actor: actor.write(b"f", b"1"))
    told.clear()
    bench.workspace.undo(dry_run=True)
    bench.workspace.steps()
    assert "ended" not in told
    assert "visited" in told
