"""Bringing what another session has done into this one: all of it, or what one command of it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.merge import merge_into, parted_at, provenance, still_there
from holdfast.engine.sessions.owning import check_owner
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.merge import Merged
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.sessions import Sessions
    from holdfast.engine.threeway import Prefer
    from holdfast.model.session import CommandEntry, SessionCheckpoint, SessionId

MERGED = "merged"
MERGED_TREE = "merged_tree"
MERGED_AS = "merged_as"
"""In the metadata of the state after a merge: the session that was merged, its tree at that time, and the checkpoint
that came of it.
"""


class SessionMerged(NamedTuple):
    """What merging a session, or picking a command, did, or (dry run) would do."""

    source: SessionId
    merged: Merged
    checkpoint: SessionCheckpoint | None
    """The session's state with what was merged; None if nothing has changed."""


def merge(
    make: Callable[[], Sessions],
    session: Session,
    other: str,
    *,
    prefer: Prefer | None = None,
    dry_run: bool = False,
) -> SessionMerged:
    """Bring what the session ``other`` has done since the two parted into ``session``: files, and nothing of the shell.

    Where it was merged before, only what it has done since. If anything is in conflict, nothing is changed. Raises
    `RefusedError` (``unrelated``, ``not_owner``, ``changed_meanwhile``) and as `Sessions.open`.
    """
    if other == session.id:
        raise UsageError("a session cannot be merged into itself")
    with make() as sessions, sessions.open(other) as source:
        theirs = source.workspace.checkpoint(kind="auto").checkpoint.id
        name = source.id
    ours = session.workspace.checkpoint(kind="auto").checkpoint.id
    base = _merged_before(session, name, ours) or parted_at(session.context, ours, theirs)
    why = provenance(session.agent, f"merged the session {name}")
    merged = merge_into(session.workspace, session.context, base, theirs, why, prefer=prefer, dry_run=dry_run)
    came = ours if merged.restored is None else merged.restored.checkpoint
    saved = _saved(session, merged, dry_run, why.message, {MERGED: name, MERGED_TREE: theirs, MERGED_AS: came})
    return SessionMerged(name, merged, saved)


def pick(
    session: Session,
    source: SessionId,
    entry: CommandEntry,
    *,
    prefer: Prefer | None = None,
    dry_run: bool = False,
) -> SessionMerged:
    """Bring what one command of another session, or of this one, has changed into ``session``.

    Where the session has changed the same, that is a conflict, and nothing is changed. Raises `NotFoundError` (code
    ``state_gone``) if the tree before or after it is not kept any more, `RefusedError` (``nothing_changed``,
    ``changed_meanwhile``).
    """
    if entry.before is None or entry.after is None:
        raise NotFoundError(
            f"nobody knows what the command {entry.seq} of {source} has changed",
            hint="it was running when its session was killed, or its tree could not be saved",
            code="state_gone",
        )
    base = still_there(session.context, entry.before, f"the tree before the command {entry.seq} of {source}")
    theirs = still_there(session.context, entry.after, f"the tree after the command {entry.seq} of {source}")
    if base == theirs:
        raise RefusedError(f"the command {entry.seq} of {source} has changed no file", code="nothing_changed")
    why = provenance(session.agent, f"picked the command {entry.seq} of the session {source}", entry.command)
    merged = merge_into(session.workspace, session.context, base, theirs, why, prefer=prefer, dry_run=dry_run)
    return SessionMerged(source, merged, _saved(session, merged, dry_run, why.message, {}))


def history_of(sessions: Sessions, name: str) -> tuple[SessionId, list[CommandEntry]]:
    """A session's id and its commands, the last first, if whoever asks may use it; takes no lock.

    Raises `NotFoundError` (``no_session``), `RefusedError` (``not_owner``).
    """
    info = sessions.info(name)
    check_owner(info, sessions.agent)
    return info.id, sessions.history(info.id)


def find_command(history: Sequence[CommandEntry], name: str) -> CommandEntry:
    """The command that ``name`` means: its number, or the beginning of its id (4 digits at least).

    Raises `NotFoundError` (code ``no_command``), `UsageError` if several begin so.
    """
    by_number = [entry for entry in history if str(entry.seq) == name]
    found = by_number or [entry for entry in history if len(name) >= 4 and entry.id.startswith(name.lower())]
    if not found:
        raise NotFoundError(
            f"there is no command {name!r}", hint="`holdfast session history` numbers them", code="no_command"
        )
    if len(found) > 1:
        raise UsageError(f"several commands begin with {name}", hint="give their number, or more digits")
    return found[0]


def _saved(
    session: Session, merged: Merged, dry_run: bool, message: str, metadata: dict[str, str]
) -> SessionCheckpoint | None:
    """The session's state with what was merged, if anything was, or was settled."""
    if dry_run or not merged.done or (merged.restored is None and not merged.plan.settled):
        return None
    return session.checkpoint(message, metadata=metadata)


def _merged_before(session: Session, other: SessionId, ours: CheckpointId) -> CheckpointId | None:
    """The tree of ``other`` that was merged last, if it was, that was not undone, and both are still kept."""
    line = {ours, *session.context.catalog.ancestors(ours)}
    for point in session.past():
        said = point.metadata
        if said.get(MERGED) == other and said.get(MERGED_AS) in line:
            try:
                return still_there(session.context, CheckpointId(said[MERGED_TREE]), "what was merged before")
            except NotFoundError:
                return None
    return None
