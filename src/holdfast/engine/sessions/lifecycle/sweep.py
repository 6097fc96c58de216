"""Upkeep of sessions, by any command that runs: there is no daemon.

Every command in a session checks whether a sweep is due, and this module imports only what that needs; the sweep
imports deletion and tiers itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.sessions.holder.lock import end_leftovers, holding, is_held, lock_path, remove_lock
from holdfast.engine.sessions.identifiers import PROCESS
from holdfast.engine.sessions.state.repair import open_mounted, resume
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.session_results import Swept
from holdfast.store.catalog.session_records import ref_name
from holdfast.store.catalog.work_lease import Lease, may_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.opening.context import HomeContext
    from holdfast.engine.opening.opener import Opener
    from holdfast.model.session_results import Deleted
    from holdfast.model.session_types import SessionId
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.session_records import SessionRecord

_LOG = Log(__name__)
_SECOND = 1_000_000
LEASE = "sessions"
_MOST_NAMED = 5


def is_due(home: HomeContext, tiers: SessionCheckpointTiers) -> bool:
    """Whether `sweep` would find anything to do. Cheap."""
    return bool(_expired(home, tiers)) or tiers.is_due()


def sweep_if_due(opener: Opener) -> None:
    """`sweep` if it is due; errors are logged."""
    home = opener.open_home()
    tiers = SessionCheckpointTiers(home)
    try:
        if not home.store.catalog.database.read_only and is_due(home, tiers):
            sweep(opener, home, tiers)
    except HoldfastError as error:
        _LOG.warning("old states of sessions are not swept: %s", error.message)


def sweep(opener: Opener, home: HomeContext, tiers: SessionCheckpointTiers) -> Swept:
    """Remove sessions that were cut short or have expired, then move old states to their tiers. A fork with files that
    no checkpoint holds stays, with a warning.

    One sweep runs at a time: a second one does nothing. After a kill, the next one continues.
    """
    catalog = home.store.catalog
    lease = Lease(catalog.database, catalog.tenant, LEASE, catalog.clock)
    try:
        lease.acquire()
    except LockedError:
        return Swept()
    try:
        removed = [record.id for record in _expired(home, tiers) if _remove(opener, home, tiers, record.id)]
        lease.renew()
        warmed, cooled = tiers.sweep()
    finally:
        lease.release()
    return Swept(warmed, cooled, tuple(removed))


def _expired(home: HomeContext, tiers: SessionCheckpointTiers) -> list[SessionRecord]:
    """The expired sessions that no process has open; forks before their origin."""
    known = {record.id: record for record in tiers.rows.list()}
    records = sorted(known.values(), key=lambda record: len(_line(record, known)), reverse=True)
    directory = home.home
    return [
        record
        for record in records
        if _is_expired(home, tiers, record, known) and not is_held(lock_path(directory, home.store.tenant, record.id))
    ]


def _is_expired(
    home: HomeContext, tiers: SessionCheckpointTiers, record: SessionRecord, known: Mapping[SessionId, SessionRecord]
) -> bool:
    if record.status != "live":
        return True
    if record.purpose == "experiment":
        ref = tiers.rows.ref(ref_name("experiment", record.id))
        return ref is None or not may_run(ref.metadata.get(PROCESS, ""))
    if record.purpose == "fork" and _line(record, known)[-1].purpose != "session":
        ref = tiers.rows.ref(ref_name("fork", record.id))
        used = max(tiers.rows.journal(record.id).updated_at, 0 if ref is None else ref.updated_at)
        idle = home.store.catalog.clock.now() - used
        most = home.settings.session.fork_ttl * _SECOND
        return idle > most and not _is_used(home.store.catalog, record, known, most)
    return False


def _is_used(catalog: Catalog, record: SessionRecord, known: Mapping[SessionId, SessionRecord], most: float) -> bool:
    """Whether another session works in a fork's directory, or it was saved recently, or by request."""
    if record.workspace is None:
        return False
    if any(one.workspace == record.workspace and one.id != record.id for one in known.values()):
        return True
    saved = catalog.checkpoints(record.workspace)
    newest = max((one.created_at for one in saved), default=0)
    return catalog.clock.now() - newest <= most or any(one.kind == "manual" or one.labels for one in saved)


def _must_stay(opener: Opener, tiers: SessionCheckpointTiers, record: SessionRecord) -> bool:
    """Whether a fork's directory has files that would be lost with it. Its unsaved changes are saved; if no checkpoint
    can hold them, the fork stays, with a warning. It then counts as used, so it is not checked again before
    ``session.fork_ttl`` has passed.
    """
    from holdfast.engine.sessions.lifecycle.deletion import find_only_in, preview_deletion
    from holdfast.engine.sessions.lifecycle.fork_creation import keep

    if record.status != "live" or record.workspace is None:
        return False
    if record.purpose == "experiment":
        end_leftovers(record.id)
    resume(opener, record)
    if preview_deletion(opener, record, look=False).directory is None:
        return False
    context = open_mounted(opener, record.workspace)
    path = context.workspace.path
    if record.purpose == "fork":
        why = f"found when the fork {record.id} was about to expire"
        if Workspace(opener, context).checkpoint(kind="auto", message=why).created:
            return True
    missed = find_only_in(opener, record)
    if not missed:
        return False
    keep(tiers.rows, record, context.clock.now())
    named = [f"{display(one.path)}: {one.reason}" for one in missed[:_MOST_NAMED]]
    if len(missed) > _MOST_NAMED:
        named.append(f"and {len(missed) - _MOST_NAMED:,} more")
    _LOG.warning(
        "the fork %s stays, because %s holds files that no checkpoint holds (%s): take the files "
        "that you need from there; `holdfast session delete %s` deletes it",
        record.id,
        display(path),
        "; ".join(named),
        record.id,
    )
    return True


def _line(record: SessionRecord, known: Mapping[SessionId, SessionRecord]) -> list[SessionRecord]:
    """A fork, its origin, and so on, as far as they exist."""
    found = [record]
    while len(found) <= len(known) and found[-1].parent is not None and found[-1].parent in known:
        found.append(known[found[-1].parent])
    return found


def _remove(opener: Opener, home: HomeContext, tiers: SessionCheckpointTiers, session: SessionId) -> bool:
    from holdfast.engine.sessions.lifecycle.deletion import delete

    clock = home.store.catalog.clock
    path = lock_path(home.home, home.store.tenant, session)
    try:
        with holding(path, session, timeout=0, clock=clock):
            record = tiers.rows.get(session)
            if not _is_expired(home, tiers, record, {one.id: one for one in tiers.rows.list()}):
                return False
            if _must_stay(opener, tiers, record):
                return False
            gone = delete(opener, tiers, record)
            remove_lock(path)
            _tell_of_moved(gone)
            return True
    except (LockedError, NotFoundError):
        return False
    except HoldfastError as error:
        advice = f" ({error.hint})" if error.hint else ""
        _LOG.warning("the session %s cannot be removed yet: %s%s", session, error.message, advice)
        return False


def _tell_of_moved(gone: Deleted) -> None:
    if gone.now_at is not None and gone.not_found is not None:
        _LOG.warning(
            "the fork %s has expired: Holdfast has forgotten it; its directory "
            "was moved from %s to %s, and stays there",
            gone.id,
            display(gone.not_found),
            display(gone.now_at),
        )
