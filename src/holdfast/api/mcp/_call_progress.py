"""The subject of a call in progress: for its progress notifications, and for the safeguards that hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.hosting.monitor import OperationHeld
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.undo.service import TicketInfo


class CallActivity:
    """One call; for the thread of the event loop."""

    def __init__(self, text: str) -> None:
        self._text: Callable[[], str] = lambda: text
        self.held: list[TicketInfo] = []
        """The safeguards that held it, the last one last."""
        self._waits = ""
        self._news = anyio.Event()
        self.concerns: Callable[[OperationHeld], bool] = lambda _held: False
        """Whether an operation that is held is this call's."""

    def tell(self, text: Callable[[], str]) -> None:
        """Report from now on the result of ``text``."""
        self._text = text

    @property
    def text(self) -> str:
        """The present progress message."""
        return self._waits or self._text()

    def hold(self, hosted: HostedDirectory, held: OperationHeld) -> None:
        """A safeguard holds an operation, which may be this call's."""
        if self.concerns(held):
            self.wait_for_person(hosted.path, held.ticket)

    def wait_for_person(self, where: bytes, ticket: TicketInfo) -> None:
        """A safeguard holds an operation of this call in the workspace at ``where``."""
        self.held.append(ticket)
        self._waits = f"waiting for a person: {ticket_question(where, ticket)}"
        self._news.set()

    def go_on(self) -> None:
        """End the message about a safeguard."""
        self._waits = ""

    async def news(self, seconds: float) -> None:
        """Return after ``seconds``, or at once when a safeguard begins to hold the call."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
            self._news = anyio.Event()


def ticket_question(where: bytes, ticket: TicketInfo) -> str:
    """The question of a safeguard, with the commands that answer it."""
    return (
        f"{ticket.message}. `holdfast -w '{display(where)}' safeguard allow {ticket.id}` lets it happen, `safeguard "
        "deny` does not; without an answer in time it is denied"
    )
