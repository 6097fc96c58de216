"""Merging another session's changes into this one: all of them, or those of one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from holdfast.engine.merging import fork_merge
from holdfast.engine.merging.fork_merge import merge_provenance
from holdfast.engine.sessions.identifiers import check_may_use
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.merging.fork_merge import ForkMerge
    from holdfast.engine.merging.reapply.resolver import Ladder
    from holdfast.engine.merging.stacked_plan import Resolution
    from holdfast.engine.merging.three_way import MergeConflict, Prefer
    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.sessions.session import Session
    from holdfast.model.checkpoint import Provenance
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import CommandEntry, SessionCheckpoint, SessionId

T = TypeVar("T")

MERGED = "merged"
"""In the metadata of the state after a merge: the session that was merged."""


class SessionMerge(NamedTuple):
    """The result of merging a session, or picking a command, or its preview."""

    source: SessionId
    merged: ForkMerge
    checkpoint: SessionCheckpoint | None
    """The session's merged state; None if nothing has changed."""
    not_captured: Sequence[NotCaptured] = ()
    """Files in the other session's directory that no checkpoint holds: they are not merged."""

    @property
    def conflicts(self) -> Sequence[MergeConflict]:
        """The conflicts that stop it: the files that wait for an agent or a person."""
        return [one.conflict for one in self.merged.waiting]

    @property
    def put_together(self) -> Sequence[bytes]:
        """Of a dry run: the paths whose changes of both sides would be merged without questions."""
        waiting = {one.path for one in self.merged.waiting}
        return [one.path for one in self.merged.plan.overlapping if one.path not in waiting]

    @property
    def settled(self) -> Sequence[MergeConflict]:
        """The conflicts that a person decided, file by file or by preferring a side."""
        decided = {one.path for one in self.merged.prepared.records if one.outcome == "decided"}
        return [one.conflict for one in self.merged.plan.stacked.overlaps if one.path in decided]


def merge_object(kind: type[T], found: SessionMerge) -> T:
    """The answer for a merge: as ``kind``, `answers.experiments.SessionMerge` or a class derived from it."""
    overlaps = fork_merge.open_overlaps(found.merged)
    return encode(kind, found, dry_run=found.merged.dry_run, overlapping_files=overlaps)


def merge(
    make: Callable[[], Sessions],
    session: Session,
    other: str,
    *,
    prefer: Prefer | None = None,
    resolutions: Mapping[bytes, Resolution] | None = None,
    dry_run: bool = False,
) -> SessionMerge:
    """Merge the changes of the session ``other`` since the two parted into ``session``: files only, not the shell's
    state.

    After an earlier merge, only the changes since that. Overlaps go through the ladder of the settings, except those
    that ``resolutions`` decide; with ``prefer`` no agent is asked, and that side decides the rest. If a conflict
    remains, nothing is changed. Raises `RefusedError` (``unrelated``, ``not_owner``, ``changed_meanwhile``), as
    `fork_merge.merge` and `Sessions.open`.
    """
    if other == session.id:
        raise UsageError("a session cannot be merged into itself")
    with make() as sessions, sessions.use(other) as source:
        theirs = source.save_resting().state.tree
        name = source.id
        missed = sessions.only_in(name, session.root)
    assert theirs is not None, "a saved state has a tree"
    why = merge_provenance(session.agent, f"merged the session {name}")
    policy = _policy(session, prefer, resolutions, dry_run=dry_run)
    done = _into(session, name, theirs, why, policy, metadata={MERGED: name})
    return done._replace(not_captured=missed)


def pick(
    session: Session,
    source: SessionId,
    entry: CommandEntry,
    *,
    prefer: Prefer | None = None,
    resolutions: Mapping[bytes, Resolution] | None = None,
    dry_run: bool = False,
) -> SessionMerge:
    """Apply the changes of one command of another session, or of this one, to ``session``.

    Overlaps are decided by ``prefer`` and ``resolutions`` as in `merge`. Raises `NotFoundError` (code ``state_gone``)
    if the tree before or after it is no longer kept, `RefusedError` (``nothing_changed``, ``changed_meanwhile``).
    """
    if entry.before is None or entry.after is None:
        raise NotFoundError(
            f"the changes of the command {entry.seq} of {source} are not known",
            hint="it was running when its session was killed, or its tree could not be saved",
            code="state_gone",
        )
    base = _still_there(session, entry.before, f"the tree before the command {entry.seq} of {source}")
    theirs = _still_there(session, entry.after, f"the tree after the command {entry.seq} of {source}")
    if base == theirs:
        raise RefusedError(f"the command {entry.seq} of {source} has changed no file", code="nothing_changed")
    why = merge_provenance(session.agent, f"picked the command {entry.seq} of the session {source}", entry.command)
    return _into(session, source, theirs, why, _policy(session, prefer, resolutions, dry_run=dry_run), since=base)


def history_of(sessions: Sessions, name: str) -> tuple[SessionId, list[CommandEntry]]:
    """A session's id and its commands, the last first, if the agent may use it; takes no lock.

    Raises `NotFoundError` (``no_session``), `RefusedError` (``not_owner``).
    """
    info = sessions.info(name)
    check_may_use(info, sessions.agent)
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


def _still_there(session: Session, checkpoint: CheckpointId, what: str) -> CheckpointId:
    """``checkpoint``, if it was not forgotten; raises `NotFoundError` that says ``what`` it was."""
    try:
        return session.context.catalog.checkpoint(checkpoint).id
    except NotFoundError:
        raise NotFoundError(
            f"{what} is gone: retention dropped it, or it went with its fork",
            hint="pick from a fork before you delete it; `holdfast session branch` keeps a state",
            code="state_gone",
        ) from None


def _policy(
    session: Session, prefer: Prefer | None, resolutions: Mapping[bytes, Resolution] | None, *, dry_run: bool
) -> fork_merge.OverlapPolicy:
    def ladder() -> Ladder:
        from holdfast.engine.merging.reapply.resolver import ladder_of

        return ladder_of(session.context, prefer=prefer)

    return fork_merge.OverlapPolicy(ladder, resolutions or {}, dry_run)


def _into(
    session: Session,
    source: SessionId,
    theirs: CheckpointId,
    why: Provenance,
    policy: fork_merge.OverlapPolicy,
    *,
    since: CheckpointId | None = None,
    metadata: Mapping[str, str] | None = None,
) -> SessionMerge:
    """Merge into the session's tree, and save its state, with the ``metadata``, if anything was brought in, or
    settled.
    """
    saved: list[SessionCheckpoint] = []
    noted = dict(metadata or {})

    def bring(merged: CheckpointId, ours: CheckpointId) -> RestoreResult:
        restored, point = session.bring(merged, expected=ours, message=why.message, metadata=noted)
        saved.append(point)
        return restored

    merged = fork_merge.merge(session.context, theirs, why, policy, since=since, bring=bring)
    if merged.restored is None and merged.prepared.merged is not None and merged.prepared.records:
        saved.append(session.checkpoint(why.message, metadata=noted))
    return SessionMerge(source, merged, saved[0] if saved else None)
