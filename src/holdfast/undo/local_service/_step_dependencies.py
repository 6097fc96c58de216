"""The steps that must be reversed together because they touch the same paths or objects.

A step cannot be reversed before later ones that touched the same. For two steps that overlap in time this holds in both
directions: neither can be reversed alone.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.message_text import named_steps, step_options
from holdfast.model.paths import display
from holdfast.undo.journal.step_footprint import Footprint, FootprintIndex, footprint_of, objects_by_path
from holdfast.undo.log import no_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.undo.journal.records import StepId
    from holdfast.undo.journal.step_file import State, StepHead
    from holdfast.undo.log import UndoLog

_EVER = float("inf")


class Dependency(NamedTuple):
    """A step that blocks another one."""

    step: StepId
    state: str
    path: bytes
    """A path that both touch."""


def dependencies(log: UndoLog, steps: Iterable[StepId], state: State | None = None) -> list[Dependency]:
    """The steps that block the reversal of finished ones, directly or through other blocking steps.

    Indirectly only through steps in the same state: an open step, or a done one before a redo, must be reversed alone
    first. ``state`` is the state to leave (None: that of the first); a step that has left it is included with the
    records that the system refused (`SealedStep.leaving`), as are the others. Raises as `UndoLog.read`.
    """

    @cache
    def reach_of(step: StepId, state: State) -> Footprint:
        return footprint_of(log.read(step).leaving(state).records, log.recorder.aliases)

    @cache
    def acting_since(step: StepId, state: State) -> int:
        return min((record.seq for record in log.read(step).leaving(state).records), default=log.heads[step].first)

    chosen = list(dict.fromkeys(steps))
    state = state or log.heads[chosen[0]].state
    mine = frozenset(chosen)
    waiting = sorted((one for one in _others(log, reach_of) if one.step not in mine), key=_until)
    met = FootprintIndex[_Other]()
    found: dict[StepId, Dependency] = {}
    while chosen:
        head = msgspec.structs.replace(log.heads[chosen.pop()], state=state)
        # Steps that ended before all these began block none of them, and there may be very many.
        while waiting and _until(waiting[-1]) > head.first:
            other = waiting.pop()
            met.add(other, other.reach())
        if not met:
            continue
        reach_ = reach_of(head.id, state)
        for other in met.find_meeting(reach_):
            if other.step in found or not _is_in_the_way(head, other, partial(acting_since, head.id, state)):
                continue
            if (at := reach_.meets(other.reach())) is not None:
                found[other.step] = Dependency(other.step, other.state, at)
                if other.state == state:
                    chosen.append(other.step)
    return list(found.values())


def refuse_overlaps(log: UndoLog, steps: Sequence[StepId], state: State | None = None) -> None:
    """Raise `RefusedError` if finished steps cannot be reversed together without others; ``state`` as in
    `dependencies`.
    """
    state = state or log.heads[steps[0]].state
    found = dependencies(log, steps, state)
    if not found:
        return
    first = [need for need in found if need.state != state] or found
    message = (
        f"{named_steps(steps)} cannot be {'undone' if state == 'done' else 'redone'} without more: "
        f"{named_steps(need.step for need in first)} {'has' if len(first) == 1 else 'have'} to do with "
        f"{display(first[0].path)} too"
    )
    if first is found:
        verb = "undo" if state == "done" else "redo"
        both = sorted({*steps, *(need.step for need in found)})
        raise RefusedError(
            message,
            hint=f"`holdfast {verb}{step_options(both)}` takes them together",
            code="steps_connected",
            data={"together": both},
        )
    if any(need.state == "open" for need in first):
        raise RefusedError(f"{message}, and still going on", hint="wait until it ends", code="step_open")
    raise RefusedError(
        message,
        hint=f"undo {named_steps(need.step for need in first)} first",
        code="steps_connected",
        data={"first": sorted(need.step for need in first)},
    )


def connected_steps(log: UndoLog, step: StepId) -> list[StepId]:
    """See `UndoService.connected`."""
    if step not in log.heads:
        raise no_step(step)
    state = log.heads[step].state
    together = [step, *(need.step for need in dependencies(log, [step]) if need.state == state)]
    return sorted(together, key=lambda each: log.heads[each].acted, reverse=True)


class _Other(NamedTuple):
    step: StepId
    state: str
    first: int
    last: float
    acted: float
    reach: Callable[[], Footprint]
    was_undone_at: Callable[[int], bool] = lambda _seq: False


def _others(log: UndoLog, reach_of: Callable[[StepId, State], Footprint]) -> Iterator[_Other]:
    for head in log.heads.values():
        reach = partial(reach_of, head.id, head.state)
        yield _Other(head.id, head.state, head.first, _end(head), head.acted, reach, head.was_undone_at)
        if head.refused:
            before: State = "done" if head.state == "undone" else "undone"
            yield _Other(head.id, before, head.first, _end(head), head.acted, partial(reach_of, head.id, before))
        for path, until in head.late if head.state == "done" else ():
            its = partial(_reach_of_file, log, head.id, path)
            yield _Other(head.id, head.state, head.first, until, head.acted, its)
    for step in log.recorder.open_steps:
        yield _Other(
            step.id, "open", step.begin.seq, _EVER, _EVER, partial(footprint_of, step.records, log.recorder.aliases)
        )


def _until(other: _Other) -> float:
    """A step that begins after this number does not depend on it."""
    return max(other.last, other.acted)


def _reach_of_file(log: UndoLog, step: StepId, path: bytes) -> Footprint:
    object_ = objects_by_path(log.read(step).records).get(path)
    return Footprint(frozenset((path,)), frozenset(), {log.recorder.aliases.now(object_): path} if object_ else {})


def _is_in_the_way(head: StepHead, other: _Other, acting_since: Callable[[], int]) -> bool:
    if other.state != "undone":
        # A redone step acted again later, and so may have come after a step that began after it.
        acted_again = head.state == other.state and other.acted > head.first and other.acted > acting_since()
        # This step found the tree without the other's changes.
        came_without = head.state == "undone" and other.was_undone_at(head.first)
        return other.last > head.first or acted_again or came_without
    # A step that began before this one's end, and was undone after it or with it, must be redone before this one can
    # be, unless this one ran while it was undone. If it was running when this one was undone, they had nothing in
    # common by then.
    is_later = other.first < _end(head) < other.acted and acting_since() < other.acted
    went_on = not head.rolled_back and other.last > acting_since()
    return head.state == "undone" and is_later and not went_on and not other.was_undone_at(head.first)


def _end(head: StepHead) -> int:
    """Until it was looked at what the step left, others can have changed that: not only until it last acted itself."""
    return max(head.last, head.looked_at)
