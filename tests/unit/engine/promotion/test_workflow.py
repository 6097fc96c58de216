"""The way of a promotion where it is interrupted, and where another process has taken it over."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from holdfast.engine.promotion.manager import Promotions
from holdfast.model.errors import HoldfastError
from holdfast.store.catalog.promotion_rows import PromotionRows

from ....contexts import context_of
from ....promoted import Ground, make_app


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    ground = Ground(tmp_path, isolation="none")
    make_app(ground.root, sys.executable)
    (ground.root / "holdfast.toml").write_text('[promote]\nbuild = ["true"]\n')
    return ground.begin()


def changed_fork(ground: Ground) -> Path:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    return fork


@pytest.mark.parametrize("step", ["copy", "build", "finish"])
def test_who_was_taken_over_does_no_further_step_and_removes_nothing(ground: Ground, step: str) -> None:
    steps: list[str] = []

    def tell(name: str) -> None:
        steps.append(name)
        if name == step:
            with ground.opened() as workspace, context_of(workspace) as context:
                rows = PromotionRows(context.catalog)
                (row,) = rows.list()
                rows.change(row)

    with pytest.raises(HoldfastError, match="another process has taken") as stopped:
        Promotions(home=ground.home, flags=ground.flags, tell=tell).promote(changed_fork(ground))
    assert stopped.value.code == "promotion_stopped"
    assert steps[-1] == step
    (found,) = ground.promotions.list()
    assert found.row.phase != "ended"
    assert ground.leftovers() or step != "build", "what another process works on stays"
    assert ground.promotions.resume().answer.result == "promoted"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert ground.leftovers() == []
    ground.sound()


def test_an_interrupt_ends_the_build_and_is_raised_when_that_is_cleared_away(ground: Ground) -> None:
    def tell(name: str) -> None:
        if name == "build":
            os.kill(os.getpid(), signal.SIGINT)

    flags = {**ground.flags, "promote.build": ["sleep", "600"]}
    with pytest.raises(KeyboardInterrupt):
        Promotions(home=ground.home, flags=flags, tell=tell).promote(changed_fork(ground))
    (found,) = ground.promotions.list()
    assert (found.answer.result, found.answer.code, found.facts.failure) == ("failed", "interrupted", None)
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
    assert ground.leftovers() == []
