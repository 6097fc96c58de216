"""The handlers of system calls, by the calls' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.supervisor.operations import (
    attributes,
    create,
    cutting,
    identity,
    limits,
    open,  # noqa: A004
    remove,
    rename,
    special,
    xattrs,
)

if TYPE_CHECKING:
    from holdfast.supervisor.call import Handler

HANDLERS: dict[str, Handler] = (
    attributes.HANDLERS
    | create.HANDLERS
    | cutting.HANDLERS
    | identity.HANDLERS
    | limits.HANDLERS
    | open.HANDLERS
    | remove.HANDLERS
    | rename.HANDLERS
    | special.HANDLERS
    | xattrs.HANDLERS
)
"""Carries out each call that reaches the keeper."""
