"""The handlers of system calls, by the calls' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.supervisor.operations import (
    _attributes,
    _create,
    _credentials,
    _multiplexed_calls,
    _open,
    _remove,
    _rename,
    _truncation,
    _xattrs,
    process_limits,
)

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler

HANDLERS: dict[str, Handler] = (
    _attributes.HANDLERS
    | _create.HANDLERS
    | _truncation.HANDLERS
    | _credentials.HANDLERS
    | process_limits.HANDLERS
    | _open.HANDLERS
    | _remove.HANDLERS
    | _rename.HANDLERS
    | _multiplexed_calls.HANDLERS
    | _xattrs.HANDLERS
)
"""Carries out each call that reaches the keeper."""
