"""Who goes on with a session's states when that session lets go of them: forks whose history leads through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.checksums import SESSION_CHECKPOINTS, changing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.session import SessionHash, SessionId
    from holdfast.store.database import Session
    from holdfast.store.session_records import StoredCheckpoint


def hand_over(
    session: Session, tenant: int, going: Sequence[StoredCheckpoint], *, began_with: bool
) -> list[StoredCheckpoint]:
    """Of states that their session lets go of, make those another session's that its history leads through, without
    their trees; what is left is nobody's. ``began_with``: only if that session began later than the state was made, so
    that no session gets back what it has let go of itself.
    """
    heirs = _heirs(session, tenant, going, began_with=began_with) if going else {}
    with changing(session, SESSION_CHECKPOINTS, tenant, list(heirs)):
        for name, heir in heirs.items():
            session.run(
                "UPDATE session_checkpoints SET session = ?, kept = 0 WHERE tenant = ? AND hash = ?",
                (heir, tenant, name),
            )
    return [stored for stored in going if stored.hash not in heirs]


def _heirs(
    session: Session, tenant: int, going: Sequence[StoredCheckpoint], *, began_with: bool
) -> dict[SessionHash, SessionId]:
    owners = {stored.session for stored in going}
    others = [
        (name, began)
        for name, began in session.all(
            "SELECT id, created_at FROM sessions WHERE tenant = ? AND status = 'live' ORDER BY created_at, id",
            (tenant,),
        )
        if name not in owners
    ]
    if not others:
        return {}
    wanted = {stored.hash: stored for stored in going}
    parents: dict[SessionHash, SessionHash | None] = {}
    own: dict[SessionId, list[SessionHash]] = {}
    for name, parent, owner in session.all(
        "SELECT hash, parent, session FROM session_checkpoints WHERE tenant = ?", (tenant,)
    ):
        parents[name] = parent
        own.setdefault(owner, []).append(name)
    heirs: dict[SessionHash, SessionId] = {}
    for heir, began in others:
        seen: set[SessionHash] = set()
        for at in own.get(heir, ()):
            while at is not None and at in parents and at not in seen:
                seen.add(at)
                if at in wanted and not (began_with and wanted[at].created_at > began):
                    heirs.setdefault(at, heir)
                at = parents[at]
    return heirs
