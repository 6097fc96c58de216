"""The handlers of system calls, by the calls' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.supervisor.operations import create, open, remove, rename  # noqa: A004 - named after the call

if TYPE_CHECKING:
    from holdfast.supervisor.call import Handler

HANDLERS: dict[str, Handler] = create.HANDLERS | open.HANDLERS | remove.HANDLERS | rename.HANDLERS
"""Carries out each call that reaches the keeper."""
