"""What the ladder would do about a file that overlaps, without asking anybody: for dry runs.

The rungs that are computed, and not asked, are tried; of the others it is said that they would be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.engine.merging.reapply.ladder import Ladder, is_for_a_person, settle
from holdfast.engine.merging.reapply.port import Pending
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.merging.classification import Overlap
    from holdfast.engine.merging.reapply.port import Outcome, Rung, RungName, Task
    from holdfast.engine.merging.stacked import MergePlan
    from holdfast.engine.opening.context import Context

_COMPUTED: frozenset[RungName] = frozenset(("structure", "text"))


class Expected(NamedTuple):
    """What one rung would do, if all of the file were its own."""

    rung: RungName
    result: Literal["applies", "declines", "asked"]
    said: str = ""
    """Why it declines."""


class Foreseen(NamedTuple):
    """What is known beforehand of one file."""

    applies: bool
    """Whether all of it would be applied before anybody is asked."""
    rungs: Sequence[Expected]
    """In the ladder's order: the first is the one that would be asked, or tried, first."""

    def to_json(self) -> dict[str, Any]:
        """See docs/reference/json.md."""
        return {
            "applies": self.applies,
            "rungs": [
                {"rung": one.rung, "result": one.result, **({"said": one.said} if one.said else {})}
                for one in self.rungs
            ],
        }


class _Unasked:
    """Stands for a rung that would have to be asked."""

    takes_all = False

    def __init__(self, name: RungName) -> None:
        self.name: RungName = name

    def apply(self, task: Task) -> Outcome:
        """See `Rung.apply`."""
        return Pending(task.version, "would be asked")


def foresee(context: Context, plan: MergePlan, one: Overlap, ladder: Ladder) -> Foreseen:
    """What ``ladder`` would do about one file. Asks nobody and notes nothing. Raises as reading content does."""
    if is_for_a_person(one, ladder):
        return Foreseen(False, [Expected(rung.name, "asked") for rung in ladder.rungs if rung.name == "person"])
    silent = [_silent(rung) for rung in ladder.rungs]
    found: list[Expected] = []
    for rung in silent:
        if rung.name not in _COMPUTED:
            found.append(Expected(rung.name, "asked"))
            continue
        alone = settle(context, plan, one, Ladder([rung], ladder.max_bytes))
        if alone.answered:
            found.append(Expected(rung.name, "applies"))
        else:
            found.append(Expected(rung.name, "declines", alone.record.tried[-1].said if alone.record.tried else ""))
    return Foreseen(settle(context, plan, one, Ladder(silent, ladder.max_bytes)).answered, found)


def _silent(rung: Rung) -> Rung:
    if rung.name in _COMPUTED:
        return rung
    return _Unasked(rung.name)
