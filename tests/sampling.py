"""What is much alike, cases of a test and moments within one: some always run, the others with ``--thorough``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import pytest

T = TypeVar("T")

_thorough = False


def be_thorough(wanted: bool) -> None:
    """Whether this run is a thorough one: said once, before anything is collected."""
    global _thorough  # noqa: PLW0603 - of a run there is one
    _thorough = wanted


def is_thorough() -> bool:
    """Whether all is wanted: every moment, every case, and as many examples as there may be."""
    return _thorough


def spread(step: int) -> int:
    """Of moments that are much alike, every how manieth is tried: each ``step``-th, each one in a thorough run."""
    return 1 if _thorough else step


def examples(most: int, usually: int = 25) -> int:
    """How many examples hypothesis is to try: ``usually`` so many, ``most`` in a thorough run."""
    return most if _thorough else usually


def moments(cases: Iterable[T], most: int) -> list[T]:
    """``cases`` that one test goes through: ``most`` of them, the first, the last, and evenly chosen ones between."""
    found = list(cases)
    return found if _thorough else [found[number] for number in _chosen(len(found), most)]


def some(cases: Iterable[T], most: int) -> list[T]:
    """``cases`` for `pytest.mark.parametrize`, of which ``most`` run always: the first, the last, and evenly chosen
    ones between them.
    """
    found = list(cases)
    always = _chosen(len(found), most)
    return [
        case if number in always else cast("T", pytest.param(case, marks=pytest.mark.thorough))
        for number, case in enumerate(found)
    ]


def _chosen(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    step = (count - 1) / max(most - 1, 1)
    return sorted({round(number * step) for number in range(most)})
