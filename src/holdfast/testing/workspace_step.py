"""Steps in a workspace without a supervisor: recorded in its own undo log, as a run would."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.opening.undo_log import known_numbers, log_limits, prepare_log
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.opening.context import Context
    from holdfast.undo.journal.records import StepId


def do_step(
    context: Context, work: Callable[[InterceptedActor], object], *, run: str = "", ends: bool = True
) -> StepId:
    """Open the log, do ``work`` in a new step, and close both; unless it ``ends``, as if the keeper were killed."""
    root = os.open(context.workspace.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    log = UndoLog(prepare_log(context), root, context.clock, limits=log_limits(context), least=known_numbers(context))
    try:
        recover(log)
        desk = LocalUndoService(log)
        step = desk.open("command", run=run, command=(b"do",))
        with InterceptedActor(log.recorder, context.workspace.path, step) as actor:
            work(actor)
        if ends:
            desk.close(step, 0)
        return step
    finally:
        log.close()
        os.close(root)
