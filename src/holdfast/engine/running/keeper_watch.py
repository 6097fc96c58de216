"""Observes the operations that safeguards hold and release in a workspace, during other work there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.undo.service import TicketInfo

    Look = Callable[[RemoteUndoService, Sequence[TicketInfo], Sequence[TicketInfo]], object]

_LOG = Log(__name__)
_LOOK_SECONDS = 0.2


class KeeperWatch:
    """Polls the keeper of an undo log a few times a second, on a thread of its own; the keeper may change."""

    def __init__(self, undo_log: bytes, look: Look, *, each: Callable[[], object] = lambda: None) -> None:
        """``look`` receives the keeper, the tickets that are new since the last time, and those that were held then and
        are not any more. Each ticket is new once, even if ``look`` raises a `HoldfastError`, which is logged. ``each``
        is called every time, even without a keeper.
        """
        self._undo_log = undo_log
        self._look = look
        self._each = each
        self._over = threading.Event()
        self._looks_again = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no longer. A ``look`` that waits, as for a person, does not delay this."""
        self._over.set()

    def finish(self, *, look_again: bool = False) -> None:
        """As `stop`, and wait for the end; ``look_again`` includes events that have just happened."""
        self._looks_again = look_again
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        from holdfast.supervisor.control.remote_service import connect

        known: dict[int, TicketInfo] = {}
        is_over = False
        while not is_over:
            is_over = self._over.wait(_LOOK_SECONDS)
            if is_over and not self._looks_again:
                return
            self._each()
            try:
                keeper = connect(self._undo_log)
                if keeper is None:
                    known = {}  # the next keeper counts from 1 again
                    continue
                with keeper:
                    before, known = known, {ticket.id: ticket for ticket in keeper.held()}
                    begun = [ticket for number, ticket in known.items() if number not in before]
                    self._look(keeper, begun, [ticket for number, ticket in before.items() if number not in known])
            except HoldfastError as error:
                _LOG.info("%s", error.message)  # the keeper has just ended
