"""Running the commands of one session again in another, from another state."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.sessions.session import Session
    from holdfast.model.session_types import CommandEntry


class RepeatedCommand(NamedTuple):
    """A command that was run again."""

    before: CommandEntry
    """As it was the first time."""
    now: CommandEntry

    @property
    def same_end(self) -> bool:
        """True if it has ended with the same exit code, or it is not known how it did the first time."""
        first, second = self.before.result, self.now.result
        return first is None or (second is not None and first.exit_code == second.exit_code)

    @property
    def same_output(self) -> bool:
        """True if it has printed the same."""
        first, second = self.before.result, self.now.result
        return first is None or (second is not None and (first.stdout, first.stderr) == (second.stdout, second.stderr))


class ReplayResult(NamedTuple):
    """The result of a replay."""

    repeated: Sequence[RepeatedCommand]
    left: Sequence[CommandEntry]
    """The commands after the first that ended differently, which were not run."""
    stopped: bool = False
    """Whether it was stopped by that."""


def commands_between(history: Sequence[CommandEntry], first: int, last: int | None) -> list[CommandEntry]:
    """The commands from number ``first`` to ``last`` (None: the newest), oldest first. Raises `NotFoundError`."""
    chosen = sorted(
        (entry for entry in history if entry.seq >= first and (last is None or entry.seq <= last)),
        key=lambda entry: entry.seq,
    )
    if not chosen:
        raise NotFoundError(
            "there is no such command", hint="`holdfast session history` numbers them", code="no_command"
        )
    return chosen


def replay(
    session: Session,
    commands: Sequence[CommandEntry],
    *,
    keep_going: bool = False,
    timeout: float | None = None,
    tell: Callable[[RepeatedCommand], None] | None = None,
    stop: threading.Event | None = None,
) -> ReplayResult:
    """Run ``commands`` in ``session``, one after another, from the state that it is in.

    They run in the session's shell, with its directory and environment. It stops after the first with another exit code
    than recorded, unless ``keep_going``. ``stop`` cancels: `HoldfastError` (code ``cancelled``); the effects until then
    stay.
    """
    stop = threading.Event() if stop is None else stop
    repeated: list[RepeatedCommand] = []
    for at, entry in enumerate(commands):
        now = execute(session, entry.command, input=entry.input, generated=entry.generated, timeout=timeout, stop=stop)
        if stop.is_set():
            raise HoldfastError("the replay was cancelled; the commands that ran stay in effect", code="cancelled")
        repeated.append(RepeatedCommand(entry, now))
        if tell is not None:
            tell(repeated[-1])
        if not repeated[-1].same_end and not keep_going:
            return ReplayResult(repeated, commands[at + 1 :], stopped=True)
    return ReplayResult(repeated, ())
