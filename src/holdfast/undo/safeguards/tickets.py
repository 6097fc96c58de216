"""The safeguards that are configured, and the tickets of the operations that they hold.

While a ticket waits, all mutations of its step are held. An answer allows the danger for the rest of the step, or
denies it: then the keeper rolls the step back (`holdfast.undo.local_service.undo_service`). A ticket without an answer
in time is denied.

When a hold ends without approval, its step is rolled back completely at that moment: after a denial, without an answer
in time, or if the step ends while it waits. A file system server cannot hold an operation that long, and lets it fail
earlier: the ticket lapses, the step is rolled back then, and the ticket waits on alone. If it is allowed, the next step
of the run that tries the same by the same command continues.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.model.errors import HeldError, NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.undo.safeguards.guard import Danger, count_nothing
from holdfast.undo.safeguards.losses import Losses
from holdfast.undo.safeguards.open_step import Rule
from holdfast.undo.service import OFF, Thresholds, TicketInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.model.clock import Clock
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.safeguards.guard import Loss
    from holdfast.undo.safeguards.open_step import OpenStep

_log = Log(__name__)

_MOST = 1000
_MOST_PASSES = 100

DangerName = Literal["delete", "overwrite", "rename_over", "limit"]
_NAMES: dict[Danger, DangerName] = {
    Danger.DELETE: "delete",
    Danger.OVERWRITE: "overwrite",
    Danger.RENAME_OVER: "rename_over",
    Danger.LIMIT: "limit",
}
_VERBS = {Danger.DELETE: "delete", Danger.OVERWRITE: "overwrite", Danger.RENAME_OVER: "replace"}


class _Ticket(NamedTuple):
    info: TicketInfo
    step: OpenStep
    rule: Rule
    until: float
    has_lapsed: bool = False
    """Its operation has failed meanwhile, and its step was rolled back: it may be tried again."""

    @property
    def about(self) -> _About:
        """The subject of its question, for any step."""
        return _about(self.step, self.rule)


_About: TypeAlias = "tuple[str, tuple[bytes, ...], Rule]"
"""A run, a command of it, and the rule. Not the path, since the file that reaches a threshold is arbitrary."""


class Safeguards:
    """Implements `Guard`. All methods are called under the recorder's gate."""

    def __init__(self, clock: Clock, thresholds: Thresholds = OFF, losses: Losses | None = None) -> None:
        """``losses`` decides which losses count (None: all)."""
        self.thresholds = thresholds
        """May be changed at any time."""
        self.on_held: Callable[[TicketInfo, str, int], object] | None = None
        """Receives each new ticket, its run, and how many files its step would have lost. It must not block."""
        self._losses = losses or Losses()
        self.note_made, self.note_touch = self._losses.note_made, self._losses.note_touch
        self.note_moved = self._losses.note_moved
        self.begin = self._losses.begin
        self._clock = clock
        self._last = 0
        self._tickets: dict[int, _Ticket] = {}
        self._unanswered: list[tuple[str, TicketInfo]] = []
        """By their runs."""
        self._passes: dict[_About, float] = {}
        """Permissions for steps that had ended, with their expiry."""
        self._refused: set[StepId] = set()

    @property
    def is_on(self) -> bool:
        """See `Guard.is_on`."""
        return self.thresholds.asks

    def ask(self, step: OpenStep, loss: Loss) -> Callable[[], None]:
        """See `Guard.ask`."""
        limits = self.thresholds
        weight = self._losses.weigh(step, loss)
        if weight is None:
            return count_nothing
        files, lost = step.lost_files + weight.files, step.lost_bytes + weight.bytes
        if (limits.deletes and files >= limits.deletes) or (limits.overwrite_bytes and lost >= limits.overwrite_bytes):
            about = f"{_VERBS[loss.danger]} its file number {files}: {display(loss.path)} ({lost} bytes in all)"
            self._ask(step, Rule.LOSS, loss.danger, loss.path, about, files)
        if limits.rename_over and loss.danger is Danger.RENAME_OVER:
            about = f"replace {display(loss.path)} by a rename"
            self._ask(step, Rule.RENAME_OVER, loss.danger, loss.path, about, files)
        return lambda: self._losses.count(step, loss, weight)

    def ask_limit(self, step: OpenStep, path: bytes) -> None:
        """See `Guard.ask_limit`."""
        if self.thresholds.limit:
            about = f"change more than can be undone, at {display(path)}"
            self._ask(step, Rule.LIMIT, Danger.LIMIT, path, about, step.lost_files)

    def _ask(self, step: OpenStep, rule: Rule, danger: Danger, path: bytes, what: str, files: int) -> None:
        if rule in step.allowed:
            return
        about = _about(step, rule)
        if self._passes.pop(about, 0.0) > self._clock.monotonic():
            step.allowed.add(rule)
            return
        message = f"{_name(step)} is about to {what}"
        # A new attempt gets a new question, which replaces the former one.
        self._drop(lambda ticket: ticket.has_lapsed and ticket.about == about)
        if len(self._tickets) >= _MOST:
            raise OSError(errno.ENOSPC, "too many operations wait for a person")
        self._last += 1
        now, timeout = self._clock.now() * 1000, self.thresholds.timeout
        info = TicketInfo(
            id=self._last,
            step=step.id,
            danger=_NAMES[danger],
            path=path,
            message=message,
            asked_at=now,
            denied_at=now + int(timeout * 1e9),
        )
        self._tickets[info.id] = _Ticket(info, step, rule, self._clock.monotonic() + timeout)
        step.held = info.id
        _log.info("safeguard triggered", step_id=step.id, ticket=info.id, danger=info.danger, path=path)
        if self.on_held is not None:
            self.on_held(info, step.begin.run, files)
        raise HeldError(info.id, message, step.id)

    def held(self) -> list[TicketInfo]:
        """The tickets that wait, oldest first."""
        return [ticket.info for ticket in self._tickets.values()]

    def keep(self, runs: Iterable[str]) -> None:
        """See `Losses.keep`."""
        self._losses.keep(runs)

    def allow(self, number: int) -> TicketInfo:
        """Let the step continue, past this danger permanently; if it has ended, the next step of its run that tries the
        same.

        Raises `NotFoundError`.
        """
        ticket = self._take(number)
        if ticket.has_lapsed:
            while len(self._passes) >= _MOST_PASSES:
                del self._passes[next(iter(self._passes))]
            self._passes[ticket.about] = self._clock.monotonic() + self.thresholds.timeout
        else:
            ticket.step.allowed.add(ticket.rule)
            ticket.step.held = 0
            ticket.step.last = self._clock.monotonic()  # waiting for the answer was no pause
        _log.info("safeguard confirmed", step_id=ticket.step.id, ticket=number)
        return ticket.info

    def deny(self, number: int) -> TicketInfo:
        """Take the ticket away; its step stays held until it is rolled back. Raises `NotFoundError`."""
        info = self._take(number).info
        _log.info("safeguard denied", step_id=info.step, ticket=number)
        return info

    def denied(self, step: OpenStep) -> None:
        """The step, which is held, has ended."""
        self._losses.note_denied(step)
        self._refused.add(step.id)

    def was_refused(self, step: StepId) -> bool:
        """Whether the step was `denied`."""
        return step in self._refused

    def expired(self) -> list[int]:
        """The tickets whose time is over: to be denied."""
        now = self._clock.monotonic()
        late = [ticket.info for ticket in self._tickets.values() if ticket.until <= now]
        for info in late:
            self._note_unanswered(info.id)
            _log.warning(
                "it was denied, because no answer came in time: %s", info.message, step_id=info.step, ticket=info.id
            )
        return [info.id for info in late]

    def lapse(self, number: int) -> StepId | None:
        """The ticket's operation is about to fail; the ticket waits on. Returns the step to roll back; None if the
        ticket no longer waits.
        """
        ticket = self._tickets.get(number)
        if ticket is None or ticket.has_lapsed:
            return None
        self._note_unanswered(number)
        self._tickets[number] = ticket._replace(has_lapsed=True)
        return ticket.step.id

    def _note_unanswered(self, number: int) -> None:
        ticket = self._tickets[number]
        if not ticket.has_lapsed and len(self._unanswered) < _MOST:
            timeout = (ticket.info.denied_at - ticket.info.asked_at) / 1e9
            waited = timeout - max(0.0, ticket.until - self._clock.monotonic())
            self._unanswered.append((ticket.step.begin.run, msgspec.structs.replace(ticket.info, unanswered=waited)))

    def unanswered(self, run: str) -> tuple[TicketInfo, ...]:
        """Tickets of the ``run``, or without a run, that got no answer in time; each is returned once."""
        told = tuple(info for of, info in self._unanswered if of in (run, ""))
        self._unanswered = [(of, info) for of, info in self._unanswered if of not in (run, "")]
        return told

    def has_lapsed(self, number: int) -> bool:
        """Whether the ticket waits alone: there is nothing to roll back."""
        return number in self._tickets and self._tickets[number].has_lapsed

    def forget(self, step: StepId) -> None:
        """The step has ended: its tickets no longer wait, except lapsed ones."""
        self._drop(lambda ticket: ticket.step.id == step and not ticket.has_lapsed)

    def _drop(self, is_over: Callable[[_Ticket], bool]) -> None:
        self._tickets = {number: ticket for number, ticket in self._tickets.items() if not is_over(ticket)}

    def _take(self, number: int) -> _Ticket:
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            raise NotFoundError(
                f"no operation waits under the number {number}", hint="`holdfast safeguard list` lists those that wait"
            )
        return ticket


def _about(step: OpenStep, rule: Rule) -> _About:
    return step.begin.run, step.begin.command, rule


def _name(step: OpenStep) -> str:
    command = " ".join(os.fsdecode(word) for word in step.begin.command)
    return f"step {step.id}" + (f" ({display(command[:60].encode(errors='surrogateescape'))})" if command else "")
