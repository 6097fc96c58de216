"""Upkeep of sessions, by whoever comes by: there is no daemon."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.sessions.deleting import delete, resume
from holdfast.engine.sessions.forking import PROCESS
from holdfast.engine.sessions.holding import holding, is_held, lock_path
from holdfast.engine.sessions.holding import remove as remove_lock
from holdfast.engine.sessions.keeping import Shelf
from holdfast.engine.sessions.results import Swept
from holdfast.engine.workspace import Workspace
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError
from holdfast.model.log import Log
from holdfast.store.lease import Lease, may_run
from holdfast.store.session_records import ref_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.context import HomeContext
    from holdfast.engine.opening import Opener
    from holdfast.model.session import SessionId
    from holdfast.store.catalog import Catalog
    from holdfast.store.session_records import SessionRecord

_LOG = Log(__name__)
_SECOND = 1_000_000
LEASE = "sessions"


def is_due(home: HomeContext, shelf: Shelf) -> bool:
    """Whether `sweep` would find anything to do. Cheap."""
    return bool(_expired(home, shelf)) or shelf.is_due()


def sweep_if_due(opener: Opener) -> None:
    """`sweep` if there is anything to do; what goes wrong is logged."""
    home = opener.open_home()
    shelf = Shelf(home)
    try:
        if not home.store.catalog.database.read_only and is_due(home, shelf):
            sweep(opener, home, shelf)
    except HoldfastError as error:
        _LOG.warning("old states of sessions are not swept: %s", error.message)


def sweep(opener: Opener, home: HomeContext, shelf: Shelf) -> Swept:
    """Remove sessions that were cut short or have expired, then move old states to their tiers.

    One sweep runs at a time: while another does, nothing happens. Killed anywhere, the next one goes on.
    """
    catalog = home.store.catalog
    lease = Lease(catalog.database, catalog.tenant, LEASE, catalog.clock)
    try:
        lease.acquire()
    except LockedError:
        return Swept()
    try:
        removed = [record.id for record in _expired(home, shelf) if _remove(opener, home, shelf, record.id)]
        lease.renew()
        warmed, cooled = shelf.sweep()
    finally:
        lease.release()
    return Swept(warmed, cooled, tuple(removed))


def _expired(home: HomeContext, shelf: Shelf) -> list[SessionRecord]:
    """The sessions that nobody will miss, and nobody has open; a fork before what it was forked from."""
    known = {record.id: record for record in shelf.rows.list()}
    records = sorted(known.values(), key=lambda record: len(_line(record, known)), reverse=True)
    directory = home.home
    return [
        record
        for record in records
        if _is_expired(home, shelf, record, known) and not is_held(lock_path(directory, home.store.tenant, record.id))
    ]


def _is_expired(
    home: HomeContext, shelf: Shelf, record: SessionRecord, known: Mapping[SessionId, SessionRecord]
) -> bool:
    if record.status != "live":
        return True
    if record.purpose == "experiment":
        ref = shelf.rows.ref(ref_name("experiment", record.id))
        return ref is None or not may_run(ref.metadata.get(PROCESS, ""))
    if record.purpose == "fork" and _line(record, known)[-1].purpose != "session":
        idle = home.store.catalog.clock.now() - shelf.rows.journal(record.id).updated_at
        most = home.settings.session.fork_ttl * _SECOND
        return idle > most and not _is_used(home.store.catalog, record, known, most)
    return False


def _is_used(catalog: Catalog, record: SessionRecord, known: Mapping[SessionId, SessionRecord], most: float) -> bool:
    """Whether another session works in a fork's directory, or anybody saves that, or has saved something by request."""
    if record.workspace is None:
        return False
    if any(one.workspace == record.workspace and one.id != record.id for one in known.values()):
        return True
    saved = catalog.checkpoints(record.workspace)
    newest = max((one.created_at for one in saved), default=0)
    return catalog.clock.now() - newest <= most or any(one.kind == "manual" or one.label for one in saved)


def _has_news(opener: Opener, record: SessionRecord) -> bool:
    """Whether a fork's directory holds what nobody has saved; it is saved then, and the fork is not idle any more."""
    if record.status != "live" or record.purpose != "fork" or record.workspace is None:
        return False
    resume(opener, record)
    context = opener.context_of(record.workspace)
    if not os.path.isdir(context.workspace.path):
        return False
    why = f"found when the fork {record.id} was about to expire"
    return Workspace(opener, context).checkpoint(kind="auto", message=why).created


def _line(record: SessionRecord, known: Mapping[SessionId, SessionRecord]) -> list[SessionRecord]:
    """A fork, what it was made from, and so on, as far as that is there."""
    found = [record]
    while len(found) <= len(known) and found[-1].parent is not None and found[-1].parent in known:
        found.append(known[found[-1].parent])
    return found


def _remove(opener: Opener, home: HomeContext, shelf: Shelf, session: SessionId) -> bool:
    clock = home.store.catalog.clock
    path = lock_path(home.home, home.store.tenant, session)
    try:
        with holding(path, session, timeout=0, clock=clock):
            record = shelf.rows.get(session)
            if not _is_expired(home, shelf, record, {one.id: one for one in shelf.rows.list()}):
                return False
            if _has_news(opener, record):
                return False
            delete(opener, shelf, record)
            remove_lock(path)
            return True
    except (LockedError, NotFoundError):
        return False
    except HoldfastError as error:
        advice = f" ({error.hint})" if error.hint else ""
        _LOG.warning("the session %s cannot be removed yet: %s%s", session, error.message, advice)
        return False
