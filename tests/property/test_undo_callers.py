"""I1, I8: what processes of a run do to files that they share is nobody else's, whenever their steps end, are undone,
redone or denied; and what somebody else does is seen all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..callers import Callers, Move, moves
from ..sampling import some

_TOGETHER = 50
"""So many histories share a log: to make one takes longer than a history."""


def _play(base: Path, seed: int, after: Callable[[Callers, Move], object] = lambda _callers, _move: None) -> None:
    callers = Callers(base, is_crowded=seed % 7 == 0)
    try:
        for move in moves(seed):
            callers.make(move)
            after(callers, move)
        callers.finish(seed)
    except Exception as error:
        error.add_note(f"the history is number {seed}")
        raise
    finally:
        callers.close()


@pytest.mark.parametrize("chunk", range(40))
def test_what_callers_do_alone_is_nobody_elses(tmp_path: Path, chunk: int) -> None:
    for seed in range(chunk * _TOGETHER, (chunk + 1) * _TOGETHER):
        _play(tmp_path, seed)


@pytest.mark.parametrize("chunk", some(range(40), 8))
def test_an_edit_beside_callers_is_never_lost(tmp_path: Path, chunk: int) -> None:
    def edit(callers: Callers, move: Move) -> None:
        if move[1] % 9 == 0:
            callers.edit(move[2])

    for seed in range(chunk * _TOGETHER, (chunk + 1) * _TOGETHER):
        _play(tmp_path, seed, edit)


_DENIED: dict[str, list[Move]] = {
    "another step replaced what it had made": [
        ("rename", 1, 2, 0), ("save", 2, 2, 0), ("save", 1, 2, 0), ("exit", 1, 0, 0), ("deny", 1, 5, 0),
    ],
    "another step removed what it had made": [
        ("rename", 0, 1, 3), ("write", 1, 1, 0), ("unlink", 0, 1, 0), ("exit", 0, 0, 0), ("deny", 0, 3, 0),
    ],
    "another step wrote to what it still has open": [
        ("truncate", 0, 1, 3), ("write", 1, 1, 4), ("exit", 1, 0, 1), ("finish", 0, 0, 2), ("open", 0, 1, 2),
        ("deny", 0, 1, 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", _DENIED)
def test_steps_beside_one_that_was_denied_are_taken_back(tmp_path: Path, name: str) -> None:
    callers = Callers(tmp_path)
    try:
        for move in [("start", 0, 0, 0)] * 3 + _DENIED[name]:
            callers.make(move)
        callers.finish(0)
    finally:
        callers.close()
