"""What the program's log says of the undo log, where that takes more than a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.wording import named_steps
from holdfast.undo.records import Content, Move, Remove
from holdfast.undo.views import shown_conflict

if TYPE_CHECKING:
    from holdfast.undo.quarantine import Aside
    from holdfast.undo.records import Mutation
    from holdfast.undo.recovery import Outstanding, Recovered
    from holdfast.undo.steps import OpenStep

_log = Log(__name__)

_SHOWN = 10
_NEAR = 0.9
"""How full a step is when that is said, of what it may copy."""


def tell_capture(step: OpenStep, record: Mutation) -> None:
    """What was there is kept for the step, before it changes."""
    match record:
        case Remove() | Content():
            keeping, path = record.keeping, record.path
        case Move(replaced=lost) if lost is not None:
            keeping, path = lost.keeping, record.target
        case _:
            return
    _log.debug("preimage captured", step_id=step.id, path=path, how=keeping.how.name.lower())


def tell_room(step: OpenStep, size: int, most: int) -> None:
    """``size`` more bytes, for which there is room, are going to be copied for the step."""
    if step.copied < most * _NEAR <= step.copied + size:
        _log.warning(
            "step %d comes near its limit: %d of %d bytes of preimages; beyond that it is not protected",
            step.id,
            step.copied + size,
            most,
            step_id=step.id,
            current_bytes=step.copied + size,
            max_bytes=most,
        )


def tell_outstanding(left: Outstanding) -> None:
    """Say what a killed keeper had left undone, and is left so as somebody only looks."""
    if left.rolled_back:
        _log.warning(
            "the process that recorded changes here was killed in the middle of %s: the next command that changes "
            "anything rolls back what is open first",
            named_steps(left.rolled_back),
            steps=left.rolled_back,
        )
    if left.finished:
        _log.warning(
            "an undo or redo of %s was cut short: the next command that changes anything finishes it first",
            named_steps(left.finished),
            steps=left.finished,
        )


def tell_recovery(recovered: Recovered, aside: Aside) -> Recovered:
    """Say what a killed keeper had left undone, and what lies ``aside`` since; returns the former."""
    back = recovered.rolled_back
    if back is not None and back.steps:
        _log.warning(
            "the process that recorded changes here was killed in the middle of %s: what was open was rolled back "
            "(%d changes); `holdfast redo --step ID` brings a step forward again",
            named_steps(back.steps),
            back.paths,
            steps=back.steps,
        )
    for done in recovered.finished:
        _log.warning(
            "an undo or redo of %s that was cut short has been finished", named_steps(done.steps), steps=done.steps
        )
    conflicts = [one for done in (*recovered.finished, *filter(None, [back])) for one in done.conflicts]
    for conflict in conflicts[:_SHOWN]:
        _log.warning(
            "%s was left as it is: %s",
            display(conflict.path),
            shown_conflict(aside, conflict).account,
            step_id=conflict.step,
            path=conflict.path,
        )
    if len(conflicts) > _SHOWN:
        _log.warning("and %d more paths were left as they are", len(conflicts) - _SHOWN)
    return recovered
