"""Cases of one parametrized test that are much alike: some of them always run, the others with ``--thorough``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import pytest

T = TypeVar("T")


def some(cases: Iterable[T], most: int) -> list[T]:
    """``cases`` for `pytest.mark.parametrize`, of which ``most`` run always: the first, the last, and evenly chosen
    ones between them.
    """
    found = list(cases)
    if len(found) <= most:
        return found
    step = (len(found) - 1) / max(most - 1, 1)
    always = {round(number * step) for number in range(most)}
    return [
        case if number in always else cast("T", pytest.param(case, marks=pytest.mark.thorough))
        for number, case in enumerate(found)
    ]
