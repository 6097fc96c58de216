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
