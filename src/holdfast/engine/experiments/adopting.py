"""Making what an attempt has done the session's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.diffs.diff import diff
from holdfast.engine.history.changed_state import put_together
from holdfast.engine.history.uncaptured import only_uncaptured
from holdfast.engine.merging.merge import provenance
from holdfast.model.errors import RefusedError
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.experiments.attempts import Outcome
    from holdfast.engine.results.results import RestoreResult
    from holdfast.engine.sessions.session import Session
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import SessionCheckpoint


class Adopted(NamedTuple):
    """What adopting did."""

    restored: RestoreResult
    """What happened to the session's tree; it says how that is taken back."""
    checkpoint: SessionCheckpoint
    """The session's state with the adopted tree."""


def adopt(session: Session, began: CheckpointId, outcome: Outcome, message: str) -> Adopted:
    """Bring the session's tree to what an attempt has made of ``began``, and save that as its state.

    The shell stays as it is: its directory, its environment, its history. Files that no checkpoint holds, such as
    ignored ones, stay, too, and so does what the attempt has only begun to ignore. Raises
    `RefusedError` (code ``changed_meanwhile``) if the session's tree is not ``began`` any more: what was changed in it
    would be lost.
    """
    context, workspace = session.context, session.workspace
    assert outcome.after is not None, "somebody has looked at what it has left"
    ours = workspace.checkpoint(kind="auto").checkpoint.id
    if diff(context, began, ours, renames=False).changes:
        raise _changed(session, outcome)
    differing = diff(context, ours, outcome.after, renames=False).changes
    spared = only_uncaptured(context, outcome.after, differing)
    changes = [one for one in differing if one.path not in spared]
    why = provenance(session.agent, message, outcome.attempt.command)
    # (A checkpoint of its own: that of the fork goes with it.)
    with context.lock():
        target = put_together(context, ours, changes, why) if changes else ours
    try:
        restored, point = session.bring(target, expected=ours, message=message)
    except RefusedError as error:
        if error.code != "changed_meanwhile":
            raise
        raise _changed(session, outcome) from None
    return Adopted(restored, point)


def _changed(session: Session, outcome: Outcome) -> RefusedError:
    return RefusedError(
        f"{display(session.root)} has changed since the attempts began; nothing was adopted",
        hint=f"its fork is kept; `holdfast session merge {outcome.fork} -s {session.id}` brings both together",
        code="changed_meanwhile",
    )
