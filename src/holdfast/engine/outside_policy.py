"""Whether undo stops at what others have changed (`undo.outside`): as the settings have it, or as a run had it."""

from __future__ import annotations

import os

from holdfast.model.errors import RefusedError
from holdfast.model.log import Log
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.context import Context
    from holdfast.undo.forgotten import Forgotten
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_FILE = b"outside-warn"
"""In the workspace's folder: the runs that began with `warn`. docs/formats/undo-log.md specifies it."""


def check(policy: str) -> None:
    """Raise `RefusedError` for what cannot be had."""
    if policy == "lock":
        raise RefusedError(f"undo.outside is lock, which cannot be had: {WHY_NO_LOCK}", hint=INSTEAD)


WHY_NO_LOCK = (
    "the kernel asks a watcher before a file is opened, but not before a name is made, removed or moved; and a mount "
    "that is read-only for others leaves out whoever has a file or a directory of the workspace open already"
)
INSTEAD = "set it to barrier (undo stops at what others change) or warn (it is only listed)"


def note_run(context: Context, run: str, policy: str) -> None:
    """A run begins with this policy. Raises `StorageError`."""
    if policy == "warn":
        _warned(context).add(run)


def is_warned(context: Context, service: UndoService, steps: Sequence[int]) -> bool:
    """Whether the undo or redo of these steps may overwrite what others have changed."""
    if context.settings.undo.outside == "warn":
        return True
    if not os.path.exists(os.path.join(context.folder, _FILE)):
        return False
    runs = _warned(context).runs
    return all(step.run in runs for step in service.steps() if step.id in steps)


def crossing(
    context: Context, service: UndoService, steps: Sequence[int], change: Callable[..., object], *, force: bool
) -> None:
    """Have ``change(steps, force=…)`` done by the undo log, past what others have changed if that is only to be listed:
    then it is, and the checkpoint before holds it. Raises what the log raises.
    """
    try:
        change(steps, force=force)
    except RefusedError as error:
        # (What stands in the way besides is refused before this is.)
        if error.code != "barrier" or not is_warned(context, service, steps):
            raise
        change(steps, force=True)
        _tell(error, "was overwritten, as undo.outside is warn")


def foresee(context: Context, service: UndoService, steps: Sequence[int], *, forward: bool = False) -> None:
    """`UndoService.foresee`, by the policy."""
    try:
        service.foresee(steps, forward=forward)
    except RefusedError as error:
        if error.code != "barrier" or not is_warned(context, service, steps):
            raise
        _tell(error, "would be overwritten, as undo.outside is warn")


def _tell(error: RefusedError, what: str) -> None:
    paths = error.data.get("paths") if error.data is not None else None
    _LOG.warning("%s; that %s, and the checkpoint before holds it", error.message, what, paths=paths or [])


def _warned(context: Context) -> Forgotten:
    from holdfast.undo.forgotten import Forgotten

    return Forgotten(os.path.join(context.folder, _FILE))
