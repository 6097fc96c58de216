"""The directories that sessions work in: opened, wherever they are, and what is in them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.uncaptured import only_there
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.log import Log
from holdfast.store.records import seen_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opening import Opener
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.session_records import SessionRecord

_LOG = Log(__name__)


def open_mounted(opener: Opener, name: WorkspaceId) -> Context:
    """Open a workspace; a fork by mount that is not mounted, as after a restart of the machine, is mounted again."""
    try:
        return opener.open_known(name)
    except RefusedError as error:
        if error.code != "not_mounted":
            raise
        from holdfast.engine.forks.mounted import mount_again

        mount_again(opener, seen_at(opener.store().catalog.workspace(name).path))
        return opener.open_known(name)


def only_in(opener: Opener, record: SessionRecord, here: bytes | None = None) -> Sequence[NotCaptured]:
    """What the directory of a session holds now that no checkpoint does, and that the directory ``here`` has not.

    (None: the one that it was made of, if that is known.) Where it cannot be looked at, what its newest checkpoint says
    of that. Changes nothing.
    """
    if record.workspace is None:
        return []
    catalog = opener.store().catalog
    try:
        return sure_only_in(opener, record, here)
    except (HoldfastError, OSError) as error:
        _LOG.debug("a directory could not be looked at: %s", error)
    head = catalog.cursor(record.workspace).head
    missed = [] if head is None else catalog.not_captured(head)
    return only_there(seen_at(catalog.workspace(record.workspace).path), here or _origin(opener, record), missed)


def sure_only_in(opener: Opener, record: SessionRecord, here: bytes | None = None) -> Sequence[NotCaptured]:
    """`only_in` of a live session; raises `HoldfastError` or `OSError` where it cannot be looked at."""
    from holdfast.engine.history.status import present

    assert record.workspace is not None, "it is live"
    context = open_mounted(opener, record.workspace)
    with context.lock():
        missed = present(context).not_captured
    return only_there(context.workspace.path, here or _origin(opener, record), missed)


def _origin(opener: Opener, record: SessionRecord) -> bytes | None:
    """The directory that a fork was made of, wherever it was seen last."""
    try:
        return None if record.origin is None else seen_at(opener.store().catalog.workspace(record.origin).path)
    except NotFoundError:
        return None
