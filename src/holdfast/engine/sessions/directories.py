"""The directories that sessions work in: opened, wherever they are, and what is in them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, RefusedError
from holdfast.model.log import Log
from holdfast.store.records import seen_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.engine.opening import Opener
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import WorkspaceId

_LOG = Log(__name__)


def open_mounted(opener: Opener, name: WorkspaceId) -> Context:
    """Open a workspace; a fork by mount that is not mounted, as after a restart of the machine, is mounted again."""
    try:
        return opener.open_known(name)
    except RefusedError as error:
        if error.code != "not_mounted":
            raise
        from holdfast.engine.fork_mount import mount_again

        mount_again(opener, seen_at(opener.store().catalog.workspace(name).path))
        return opener.open_known(name)


def only_in(opener: Opener, name: WorkspaceId, here: bytes | None) -> Sequence[NotCaptured]:
    """What the directory of a workspace holds now that no checkpoint does, and that the directory ``here`` has not.

    (None: there is nothing to compare with.) Where it cannot be looked at, what its newest checkpoint says of that.
    Changes nothing.
    """
    from holdfast.engine.status import present
    from holdfast.engine.uncaptured import only_there

    catalog = opener.store().catalog
    try:
        context = open_mounted(opener, name)
        with context.lock():
            missed = present(context).not_captured
    except (HoldfastError, OSError) as error:
        _LOG.debug("a directory could not be looked at: %s", error)
        head = catalog.cursor(name).head
        missed = [] if head is None else catalog.not_captured(head)
    there = seen_at(catalog.workspace(name).path)
    return only_there(there, here, missed)
