"""The handlers of system calls, by the calls' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.supervisor.operations import _attributes as attributes
from holdfast.supervisor.operations import _create as create
from holdfast.supervisor.operations import _credentials as credentials
from holdfast.supervisor.operations import _multiplexed_calls as multiplexed_calls
from holdfast.supervisor.operations import _open as open_calls
from holdfast.supervisor.operations import _remove as remove
from holdfast.supervisor.operations import _rename as rename
from holdfast.supervisor.operations import _truncation as truncation
from holdfast.supervisor.operations import _xattrs as xattrs
from holdfast.supervisor.operations import process_limits

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler

HANDLERS: dict[str, Handler] = (
    attributes.HANDLERS
    | create.HANDLERS
    | truncation.HANDLERS
    | credentials.HANDLERS
    | process_limits.HANDLERS
    | open_calls.HANDLERS
    | remove.HANDLERS
    | rename.HANDLERS
    | multiplexed_calls.HANDLERS
    | xattrs.HANDLERS
)
"""Carries out each call that reaches the keeper."""
