"""A session for what can be asked of it at any time: held by this process, or asked of the one that has it open.

Who has it open may let go of it at any moment. What that has not begun by then is done by whoever is next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.engine.sessions.answering import LATER
from holdfast.model.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.sessions.asking import Asking, Usable
    from holdfast.engine.sessions.results import ForkResult
    from holdfast.engine.sessions.session import Session
    from holdfast.model.session import SessionCheckpoint, SessionId, SessionRef

_T = TypeVar("_T")


class Using:
    """See the module, and `Usable`. Use it as a context manager."""

    def __init__(self, reach: Callable[[float], Session | Asking], seconds: float) -> None:
        """``reach(until)`` gives the session, waiting for it to that time (`time.monotonic`) at most, which is
        ``seconds`` from when something is asked for.
        """
        self._reach = reach
        self._seconds = seconds
        self._found: Session | Asking = reach(time.monotonic() + seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it, or hang up. Harmless a second time."""
        self._found.close()

    @property
    def id(self) -> SessionId:
        """See `Usable`."""
        return self._found.id

    @property
    def owner(self) -> str:
        """See `Usable`."""
        return self._found.owner

    @property
    def shared(self) -> tuple[str, ...]:
        """See `Usable`."""
        return self._found.shared

    def checkpoint(self, message: str = "") -> SessionCheckpoint:
        """See `Usable`."""
        return self._do(lambda session: session.checkpoint(message))

    def save_resting(self) -> SessionCheckpoint:
        """See `Usable`."""
        return self._do(lambda session: session.save_resting())

    def branch(self, name: str, *, message: str = "") -> SessionRef:
        """See `Usable`."""
        return self._do(lambda session: session.branch(name, message=message))

    def remove_branch(self, name: str) -> SessionRef:
        """See `Usable`."""
        return self._do(lambda session: session.remove_branch(name))

    def fork(
        self,
        id: str | None = None,  # noqa: A002 - the field's own name
        *,
        checkpoint: str | None = None,
        with_ignored: bool = False,
        provider: str | None = None,
    ) -> ForkResult:
        """See `Usable`."""
        return self._do(
            lambda session: session.fork(id, checkpoint=checkpoint, with_ignored=with_ignored, provider=provider)
        )

    def share(self, agent: str) -> None:
        """See `Usable`."""
        self._do(lambda session: session.share(agent))

    def unshare(self, agent: str) -> None:
        """See `Usable`."""
        self._do(lambda session: session.unshare(agent))

    def _do(self, work: Callable[[Usable], _T]) -> _T:
        until = time.monotonic() + self._seconds
        while True:
            try:
                return work(self._found)
            except LockedError as error:
                if error.code != LATER:
                    raise
            self._found.close()
            self._found = self._reach(until)
