"""Whether undo stops at what others have changed (`undo.outside`): as the settings have it, or as a run had it."""

from __future__ import annotations

import os

from holdfast.model.errors import RefusedError
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display
from holdfast.model.typed import TYPE_CHECKING, cast
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.undo.run_marks import Forgotten
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_SHOWN = 5

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
    then it is, with where it is kept. Raises what the log raises.
    """
    try:
        change(steps, force=force)
    except RefusedError as error:
        # (What stands in the way besides is refused before this is.)
        if error.code != "barrier" or not is_warned(context, service, steps):
            raise
        kept = _kept(context, error, forward=change == service.redo)
        change(steps, force=True)
        _tell(error, f"was overwritten, as undo.outside is warn; {kept}")


def foresee(context: Context, service: UndoService, steps: Sequence[int], *, forward: bool = False) -> None:
    """`UndoService.foresee`, by the policy."""
    try:
        service.foresee(steps, forward=forward)
    except RefusedError as error:
        if error.code != "barrier" or not is_warned(context, service, steps):
            raise
        kept = _kept(context, error, forward=forward)
        _tell(error, f"would be overwritten, as undo.outside is warn; {kept}")


def _tell(error: RefusedError, what: str) -> None:
    _LOG.warning("%s; that %s", error.message, what, paths=_paths(error))


def _paths(error: RefusedError) -> list[str]:
    return cast("list[str]", (error.data or {}).get("paths", []))


def _kept(context: Context, error: RefusedError, *, forward: bool) -> str:
    """What holds the content that the ``error`` is about, in words: it is about to be overwritten."""
    head = context.catalog.cursor(context.workspace.id).head
    back = "undo" if forward else "redo"
    named = [parse_display(shown) for shown in _paths(error)]
    held = {} if head is None else manifest.get_many(context.store.pages, context.catalog.checkpoint(head).root, named)
    alone = [path for path in named if path not in held and context.tree.is_there(path)]
    if not alone:
        return f"the checkpoint before holds it, and `holdfast {back}` brings it back"
    shown = ", ".join(map(display, alone[:_SHOWN])) + (", …" if len(alone) > _SHOWN else "")
    only = f"no checkpoint holds {shown}: `holdfast {back}` brings that back, as long as the undo log has the step"
    return f"the checkpoint before holds the rest, and {only}" if held else only


def _warned(context: Context) -> Forgotten:
    from holdfast.undo.run_marks import Forgotten

    return Forgotten(os.path.join(context.folder, _FILE))
