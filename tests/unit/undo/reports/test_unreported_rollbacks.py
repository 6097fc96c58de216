"""Reports that wait for somebody to be told: kept in bounds, taken once, and never in anybody's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.model.ids import hash_bytes
from holdfast.undo.reports.unreported_rollbacks import (
    MOST_CONFLICTS,
    MOST_REPORTS,
    UNREPORTED,
    note_rollback,
    take_rollbacks,
)
from holdfast.undo.service import ConflictInfo, UndoReport


def report(step: int, conflicts: int = 0) -> UndoReport:
    found = tuple(ConflictInfo(path=b"f\xff", reason="changed", kept=None) for _ in range(conflicts))
    return UndoReport(steps=(step,), paths=1, conflicts=found)


def test_what_was_noted_is_taken_once_and_in_order(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path)
    assert take_rollbacks(place) == []
    note_rollback(place, report(1, 2))
    note_rollback(place, report(-2))
    assert take_rollbacks(place) == [report(1, 2), report(-2)]
    assert take_rollbacks(place) == []
    assert os.listdir(tmp_path) == []


def test_there_is_room_for_so_much(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path)
    for step in range(MOST_REPORTS + 5):
        note_rollback(place, report(step, MOST_CONFLICTS + 1))
    taken = take_rollbacks(place)
    assert [one.steps[0] for one in taken] == list(range(5, MOST_REPORTS + 5))
    assert {len(one.conflicts) for one in taken} == {MOST_CONFLICTS}


def noted(body: bytes) -> bytes:
    return b"HFUR 1 " + hash_bytes(body).hex().encode() + b"\n" + body


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"HFUR 2 ",
        noted(b"\x90")[:-1],
        *(noted(body) for body in (b"\xc1", b"\x91\x80", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff")),
    ],
)
def test_a_damaged_note_is_left_out_and_said(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """I12."""
    (tmp_path / UNREPORTED.decode()).write_bytes(damage)
    assert take_rollbacks(os.fsencode(tmp_path)) == []
    assert "is damaged" in caplog.text
    caplog.clear()
    note_rollback(os.fsencode(tmp_path), report(1))
    assert take_rollbacks(os.fsencode(tmp_path)) == [report(1)]


def test_where_it_cannot_be_noted_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note_rollback(os.fsencode(tmp_path / "missing"), report(1))
    assert "cannot note a rollback" in caplog.text
    caplog.clear()
