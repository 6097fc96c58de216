"""Operations that wait for a person: the effect of each, its deadline, and the answers to it.

The keeper decides who may answer: no supervised process, and so no server that was started inside a run (I9).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.web.acts import ChangedPath, Outcome
from holdfast.api.web.words import moment, path_text
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.log import Log
from holdfast.model.message_text import first_line, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.web.addresses import Addresses
    from holdfast.api.web.words import Moment
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.undo.service import TicketInfo

_LOG = Log(__name__)

_DANGERS: Final = {
    "delete": "deletes",
    "overwrite": "overwrites",
    "rename_over": "replaces",
    "limit": "changes more than undo can hold",
}
_MOST_OF_COMMAND: Final = 240


class Held(NamedTuple):
    """An operation that waits."""

    number: int
    message: str
    danger: str
    path: str
    command: str
    """The command that caused it."""
    step: int
    changed: int
    """How many paths its step has changed so far."""
    until: Moment
    """When it is denied by itself."""
    fingerprint: str
    """Of the operation: the next keeper gives the same numbers again."""
    step_address: str
    address: str
    """Where the answer is sent to."""


class HeldOperations(NamedTuple):
    """The operations that wait now."""

    operations: Sequence[Held]
    digest: str
    """Changes with the set of waiting operations."""


def held(workspace: Workspace, addresses: Addresses) -> HeldOperations:
    """The waiting operations; none if the keeper cannot be asked, which is logged."""
    try:
        tickets = workspace.held()
        found = [_held(workspace, addresses, ticket) for ticket in tickets]
    except HoldfastError as error:
        _LOG.warning("it is not known what waits for a person: %s", error.message)
        return HeldOperations((), "")
    return HeldOperations(found, digest_of(tickets))


def digest_of(tickets: Sequence[TicketInfo]) -> str:
    """A text that changes with the set of waiting operations; empty without any."""
    return ".".join(map(_fingerprint, tickets))


def _held(workspace: Workspace, addresses: Addresses, ticket: TicketInfo) -> Held:
    command, changed = b"", 0
    try:
        step, changes = workspace.step(ticket.step)
        command, changed = b" ".join(step.command), len(changes)
    except NotFoundError:
        pass  # (answered meanwhile)
    return Held(
        number=ticket.id,
        message=visible(ticket.message),
        danger=_DANGERS[ticket.danger],
        path=path_text(ticket.path),
        command=visible(first_line(command.decode("utf-8", "surrogateescape"), _MOST_OF_COMMAND)),
        step=ticket.step,
        changed=changed,
        until=moment(ticket.denied_at // 1000),
        fingerprint=_fingerprint(ticket),
        step_address=addresses.page(f"step/{ticket.step}"),
        address=addresses.page(f"held/{ticket.id}"),
    )


def _fingerprint(ticket: TicketInfo) -> str:
    said = f"{ticket.id} {ticket.step} {ticket.asked_at} {ticket.message}"
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def answer(workspace: Workspace, number: str, fingerprint: str, *, allow: bool) -> TicketInfo:
    """Allow the operation that was shown, or deny it. Raises `NotFoundError` where it does not wait any more, and
    `RefusedError` where this server belongs to a run.
    """
    shown = next((one for one in workspace.held() if str(one.id) == number), None)
    if shown is None or _fingerprint(shown) != fingerprint:
        raise NotFoundError(
            "this operation does not wait any more: it was answered, or denied as no answer came in time",
            code="no_such_ticket",
        )
    return workspace.answer(shown.id, allow=allow)


def answered(ticket: TicketInfo, *, allow: bool) -> Outcome:
    """The outcome of an answer."""
    if allow:
        return Outcome(f"Allowed; step {ticket.step} goes on.")
    left = [ChangedPath("", path_text(one.path), visible(one.account)) for one in ticket.conflicts]
    return Outcome(f"Denied; step {ticket.step} was taken back.", left=left, is_refusal=bool(left))
