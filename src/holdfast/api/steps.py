"""How both faces let steps be named: one, or several that go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def named(step: int | None, steps: Sequence[int] | None) -> Sequence[int] | None:
    """All the steps that a request names; None if it names none."""
    found = [*(() if step is None else (step,)), *(steps or ())]
    return found or None
