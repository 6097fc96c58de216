"""The forks of an experiment: several are made at once, and all of them are deleted at its end, except kept ones."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.experiments.attempts import Attempt, Order
    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.sessions.session import Session
    from holdfast.model.session_results import ForkResult
    from holdfast.model.session_types import SessionCheckpoint, SessionId

_LOG = Log(__name__)
_MOST_AT_ONCE = 4
"""More only wait for the same disk, and for the lock of the workspace."""
_MOST_SAID = 500
"""Characters."""


class AttemptForks:
    """Makes a fork of a session for each attempt, from one state of it, and parts with all of them."""

    def __init__(
        self,
        make: Callable[[], Sessions],
        session: Session,
        order: Order,
        identity: str,
        point: SessionCheckpoint,
        parallel: int,
    ) -> None:
        """``point`` is the state that was just saved. ``parallel`` attempts are to run at once."""
        self._sessions = make
        self._session = session
        self._order = order
        self._identity = identity
        self._point = point
        self._made: list[tuple[Attempt, ForkResult]] = []
        self._lock = threading.Lock()
        self.at_once = 0 if session.has_hooks("fork") else min(_MOST_AT_ONCE, parallel)
        """How many are made at once, each on its own thread; 0: one after the other, on the thread that holds the
        session, which answers the requests of hooks.
        """

    def make(self, attempt: Attempt) -> ForkResult:
        """Make the fork for ``attempt``. Raises as `Session.fork`; then nothing of it remains."""
        name = f"try-{self._identity}-{attempt.number}"
        order = self._order
        fork = self._session.fork
        with ExitStack() as stack:
            if self.at_once:
                sessions = stack.enter_context(self._sessions())
                fork = partial(sessions.fork_beside, self._session.record, self._point)
            made = fork(
                name,
                with_ignored=order.with_ignored,
                provider=order.provider,
                type="experiment",
                metadata=self._metadata(attempt),
            )
        with self._lock:
            self._made.append((attempt, made))
        return made

    def _metadata(self, attempt: Attempt) -> dict[str, str]:
        """The facts about a fork that `experiments.records` reads, during and after the experiment."""
        order = self._order
        score = order.score
        tree = self._point.state.tree
        assert tree is not None, "a saved state has a tree"
        return {
            "experiment": self._identity,
            "attempt": clipped(attempt.name),
            "command": clipped(attempt.command),
            "number": str(attempt.number),
            "attempts": str(len(order.attempts)),
            "began": tree,
            "measure": order.measure,
            "best": "highest" if order.highest else "lowest",
            "setup": clipped(order.setup),
            "score": clipped(score) if isinstance(score, str) else "",
        }

    def count_made(self) -> None:
        """Record in the session's journal the forks that other threads made. For the thread that holds it."""
        if self.at_once:
            self._session.count_forks(len(self._made))

    def keep(self, only: SessionId | None = None) -> None:
        """Keep all forks, or only the fork ``only``: `delete` leaves them. Failures are logged."""
        kept = [(attempt, fork) for attempt, fork in self._made if only in (None, fork.id)]
        self._made = [made for made in self._made if made not in kept]
        self._each(kept, keep=True)

    def delete(self) -> None:
        """Delete all forks that are not kept. Failures are logged; the next sweep tries again."""
        self._each(self._made, keep=False)

    def _each(self, made: Sequence[tuple[Attempt, ForkResult]], *, keep: bool) -> None:
        with ThreadPoolExecutor(max(1, self.at_once), thread_name_prefix="fork") as pool:
            list(pool.map(partial(self._release, keep=keep), made))

    def _release(self, made: tuple[Attempt, ForkResult], *, keep: bool) -> None:
        attempt, fork = made
        try:
            with self._sessions() as sessions:
                if not keep:
                    sessions.delete(fork.id, look=False)  # it was scanned at the end of the attempt
                    return
                with sessions.open(fork.id) as session:
                    session.keep()
        except (HoldfastError, OSError) as error:
            what = "is not kept for good" if keep else "is not deleted yet"
            _LOG.warning("the fork %s of the attempt %s %s: %s", fork.id, attempt.name, what, error)


def clipped(text: str) -> str:
    """A name or a command in the length that a state's metadata allows."""
    return display(os.fsencode(text))[:_MOST_SAID]


def unclipped(text: str) -> str:
    """The argument of `clipped`, as far as it was kept."""
    try:
        return os.fsdecode(parse_display(text))
    except UsageError:
        return text  # it was cut inside an escape
