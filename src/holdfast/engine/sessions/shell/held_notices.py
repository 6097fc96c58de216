"""Tells the user of a session what safeguards hold meanwhile, and what of it did not happen."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.running.keeper_watch import KeeperWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.engine.sessions.session import Session
    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.undo.service import StepInfo, TicketInfo


class HeldNotices(NamedTuple):
    """Functions that are called on a thread of their own."""

    held: Callable[[TicketInfo], object]
    """An operation in the workspace waits for a person."""
    denied: Callable[[StepInfo], object]
    """It was denied: its step was rolled back."""


@contextmanager
def report_held(
    session: Session, undo_log: bytes, notices: HeldNotices | None, *, guarded: bool = False
) -> Generator[None]:
    """Call the ``notices`` for the length of the block, if safeguards are configured or another client has set limits
    (``guarded``); does nothing without recording (no ``undo_log``).
    """
    if notices is None or not undo_log or not (guarded or _asks(session)):
        yield
        return

    def look(keeper: RemoteUndoService, begun: Sequence[TicketInfo], over: Sequence[TicketInfo]) -> None:
        for ticket in begun:
            notices.held(ticket)
        settled = {ticket.step for ticket in over}
        for step in keeper.steps() if settled else ():
            if step.id in settled and step.state in ("undone", "partly"):
                notices.denied(step)

    watch = KeeperWatch(undo_log, look)
    try:
        yield
    finally:
        watch.finish(look_again=True)  # includes the latest denials


def _asks(session: Session) -> bool:
    from holdfast.engine.running.run import configured_thresholds  # recording has imported it already

    return configured_thresholds(session.context.settings.safeguard, guard=False).asks
