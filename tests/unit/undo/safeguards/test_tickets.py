"""What holds where several ask for safeguards."""

from __future__ import annotations

import pytest

from holdfast.undo.service import OFF, PRESET, Thresholds, strictest


@pytest.mark.parametrize(
    ("asked_for", "holds"),
    [
        ([], OFF),
        ([OFF, Thresholds(timeout=1.0)], OFF),
        ([PRESET, Thresholds(timeout=1.0)], PRESET),
        (
            [
                Thresholds(deletes=9, overwrite_bytes=5),
                Thresholds(deletes=3, timeout=60.0),
                Thresholds(rename_over=True),
            ],
            Thresholds(deletes=3, overwrite_bytes=5, rename_over=True, timeout=30.0),
        ),
        ([PRESET, Thresholds(deletes=80, limit=True, timeout=5.0)], PRESET._replace(timeout=5.0)),
    ],
)
def test_of_each_the_strictest_holds(asked_for: list[Thresholds], holds: Thresholds) -> None:
    assert strictest(asked_for) == strictest(reversed(asked_for)) == holds
