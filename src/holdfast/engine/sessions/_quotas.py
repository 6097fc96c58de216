"""How much of everything a session may have, and what makes room by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.sessions.identifiers import BEFORE_CHECKOUT, own_id
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.message_text import plural
from holdfast.store.catalog.session_records import ref_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.model.ids import WorkspaceId
    from holdfast.model.session_types import RefType, SessionHash, SessionId, SessionKind, SessionRef
    from holdfast.store.catalog.session_records import StoredCheckpoint
    from holdfast.store.catalog.session_rows import SessionRows

_BY_ITSELF: frozenset[SessionKind] = frozenset(("auto", "fork"))
"""Kinds that no agent asked for."""
_TYPES: tuple[RefType, ...] = ("head", "branch", "fork", "experiment")
_WAYS_BACK = 10
"""How many of the branches that checkouts make are kept."""


def free_id(rows: SessionRows, name: SessionId, workspace: WorkspaceId) -> SessionId:
    """The id for a new session ``name`` of a workspace: ``name``, or `own_id` if another workspace has a session of
    that name. Does not wait for a process that has a session open.

    Raises `RefusedError` (code ``session_exists``) if this workspace has one. Sessions whose creation or deletion was
    interrupted, or is in progress, do not count.
    """
    for session in (name, own_id(name, workspace)):
        try:
            found = rows.get(session)
        except NotFoundError:
            return session
        if found.status != "live":
            return session
        if workspace in (found.workspace, found.origin):
            break
    raise RefusedError(
        f"there is a session {session} already",
        hint="choose another id; `holdfast session list --all` shows those of all workspaces",
        code="session_exists",
    )


def check_room(rows: SessionRows, session: SessionId, most: int) -> None:
    """Raise `RefusedError` (code ``session_limit``) if a state that an agent asks for could not be held."""
    states = rows.checkpoints(session)
    held = [stored for stored in states if stored.kept]
    # HEAD will name another one then.
    released = {stored.hash for stored in _releasable(rows, session, held, ("branch", "fork", "experiment"))}
    released |= {ref.checkpoint for ref in _checkout_branches(rows, session, states)[:-1]}
    stay = sum(stored.hash not in released for stored in held)
    if stay >= most:
        raise RefusedError(
            f"the session {session} holds {stay} states that cannot be dropped; session.max_checkpoints is {most}",
            hint="remove branches that you no longer need, delete the session, or raise the limit in config.toml",
            code="session_limit",
        )


def thin_out(rows: SessionRows, session: SessionId, most: int) -> None:
    """Release the trees of the oldest automatically saved states, beyond ``most``."""
    held = [stored for stored in rows.checkpoints(session) if stored.kept]
    beyond = len(held) - most
    if beyond > 0:
        rows.release([stored.hash for stored in _releasable(rows, session, held)[:beyond]])


def drop_ways_back(rows: SessionRows, session: SessionId, most: int) -> None:
    """Remove the oldest branches of checkouts, beyond the number that is kept, and while more than ``most`` trees are
    held; but never that of the last checkout.
    """
    states = rows.checkpoints(session)
    branches = _checkout_branches(rows, session, states)
    beyond = sum(stored.kept for stored in states) - most
    for ref in branches[: max(len(branches) - _WAYS_BACK, min(beyond, len(branches) - 1), 0)]:
        if rows.remove_ref(ref.name, ref.checkpoint):
            rows.release([ref.checkpoint])


def drop_oldest(rows: SessionRows, session: SessionId, most: int) -> list[StoredCheckpoint]:
    """Drop the oldest states that hold no tree any more, with their part of the history, until at most ``most`` bytes
    of the session are stored (0: no limit); returns the dropped ones.

    These are automatic states, and requested ones whose request no longer exists: states from a deleted session, and
    those of a removed branch.
    """
    states = rows.checkpoints(session) if most else []
    beyond = sum(stored.stored for stored in states) - most
    if beyond <= 0:
        return []
    named = _named(rows, session)
    gone: list[SessionHash] = []
    for stored in states:
        if beyond <= 0:
            break
        if stored.kept or stored.hash in named:
            continue
        gone.append(stored.hash)
        beyond -= stored.stored
    return rows.drop(gone) if gone else []


def check_forks(rows: SessionRows, session: SessionId, most: int) -> None:
    """Raise `RefusedError` (code ``session_limit``) if the session may have no more forks."""
    count = sum(record.status != "going" for record in rows.forks_of(session))
    if count >= most:
        raise RefusedError(
            f"the session {session} has {plural(count, 'fork')}, and session.max_forks is {most}",
            hint="delete some (`holdfast session delete`), or raise the limit in config.toml",
            code="session_limit",
        )


def _releasable(
    rows: SessionRows,
    session: SessionId,
    held: list[StoredCheckpoint],
    naming: Collection[RefType] = _TYPES,
) -> list[StoredCheckpoint]:
    """The automatic states in ``held`` that no reference of a type in ``naming`` names."""
    named = _named(rows, session, naming)
    return [stored for stored in held if stored.kind in _BY_ITSELF and stored.hash not in named]


def _named(rows: SessionRows, session: SessionId, naming: Collection[RefType] = _TYPES) -> set[SessionHash]:
    return {ref.checkpoint for ref in rows.refs(session) if ref.type in naming}


def _checkout_branches(rows: SessionRows, session: SessionId, states: Sequence[StoredCheckpoint]) -> list[SessionRef]:
    """The branches that checkouts made of the states before them, in the order of ``states``, oldest first."""
    prefix = ref_name("branch", session, BEFORE_CHECKOUT)
    age = {stored.hash: at for at, stored in enumerate(states)}
    found = [ref for ref in rows.refs(session) if ref.name.startswith(prefix)]
    return sorted(found, key=lambda ref: (age.get(ref.checkpoint, -1), ref.updated_at, ref.name))
