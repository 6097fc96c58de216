"""Tells the user of a session what safeguards hold meanwhile, and what of it did not happen."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.sessions.session import Session
    from holdfast.undo.service import StepInfo, TicketInfo

_LOG = Log(__name__)
_LOOK_SECONDS = 0.2


class HeldNotices(NamedTuple):
    """What is called, on a thread of its own."""

    held: Callable[[TicketInfo], object]
    """An operation in the workspace waits for a person."""
    denied: Callable[[StepInfo], object]
    """It was not allowed: its step was taken back."""


@contextmanager
def report_held(
    session: Session, undo_log: bytes, notices: HeldNotices | None, *, guarded: bool = False
) -> Generator[None]:
    """Call the ``notices`` for the length of the block, if safeguards are configured, or hold by another's wish
    (``guarded``); nothing happens where nothing is recorded (no ``undo_log``).
    """
    if notices is None or not undo_log or not (guarded or _asks(session)):
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_look_on, args=(undo_log, notices, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _asks(session: Session) -> bool:
    from holdfast.engine.running.run import configured_thresholds  # (loaded by what records already)

    return configured_thresholds(session.context.settings.safeguard, guard=False).asks


def _look_on(undo_log: bytes, notices: HeldNotices, over: threading.Event) -> None:
    from holdfast.supervisor.control.remote_service import connect

    known: dict[int, TicketInfo] = {}
    is_last = False
    while not is_last:
        is_last = over.wait(_LOOK_SECONDS)  # (what was denied just now is told, too)
        try:
            keeper = connect(undo_log)
            if keeper is None:
                known.clear()  # (the next one counts anew)
                continue
            with keeper:
                held = {ticket.id: ticket for ticket in keeper.held()}
                for number in held.keys() - known.keys():
                    notices.held(held[number])
                settled = {known[number].step for number in known.keys() - held.keys()}
                for step in keeper.steps() if settled else ():
                    if step.id in settled and step.state in ("undone", "partly"):
                        notices.denied(step)
                known = held
        except HoldfastError as error:
            _LOG.info("%s", error.message)  # the keeper has just ended
