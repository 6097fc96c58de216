"""Making what an attempt has done the session's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.results import RestoreResult
    from holdfast.engine.sessions.session import Session
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import SessionCheckpoint


class Adopted(NamedTuple):
    """What adopting did."""

    restored: RestoreResult
    """What happened to the session's tree; it says how that is taken back."""
    checkpoint: SessionCheckpoint
    """The session's state with the adopted tree."""


def adopt(session: Session, began: CheckpointId, tree: CheckpointId, message: str) -> Adopted:
    """Bring the session's tree to ``tree``, which others have made of ``began``, and save that as its state.

    The shell stays as it is: its directory, its environment, its history. Files that no checkpoint holds, such as
    ignored ones, stay, too. Raises `RefusedError` (code ``changed_meanwhile``) if the session's tree is not ``began``
    any more: what was changed in it would be lost.
    """
    context = session.workspace
    try:
        restored = context.restore(tree, expected=began)
    except RefusedError as error:
        if error.code != "changed_meanwhile":
            raise
        raise RefusedError(
            f"{display(session.root)} has changed since the attempts began; nothing was adopted",
            hint="run it with --keep and bring both together: `holdfast session merge FORK`",
            code=error.code,
        ) from None
    return Adopted(restored, session.checkpoint(message))
