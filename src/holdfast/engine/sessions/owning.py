"""Whose a session is. Names, not authentication: whoever can write the home can call themselves anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError

if TYPE_CHECKING:
    from holdfast.store.session_rows import SessionRecord


def check_owner(record: SessionRecord, agent: str) -> None:
    """Raise `RefusedError` (code ``not_owner``) if ``agent`` may not use the session."""
    if agent != record.owner and agent not in record.shared:
        raise RefusedError(
            f"the session {record.id} is {record.owner}'s, and not shared with {agent}",
            hint=f"{record.owner} can share it: holdfast session share {agent}; or name yourself with HOLDFAST_AGENT",
            code="not_owner",
        )


def check_owned(record: SessionRecord, agent: str) -> None:
    """Raise `RefusedError` (code ``not_owner``) if the session is not ``agent``'s own."""
    if agent != record.owner:
        raise RefusedError(
            f"the session {record.id} is {record.owner}'s: nobody else can share or delete it",
            hint="name yourself with HOLDFAST_AGENT if that is you",
            code="not_owner",
        )
