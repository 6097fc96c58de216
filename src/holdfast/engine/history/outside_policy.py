"""The policy `undo.outside`: whether undo and redo stop at changes by others, or overwrite and report them."""

from __future__ import annotations

import os

from holdfast.model.errors import RefusedError
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.undo.journal.forgotten_runs import ForgottenRuns
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_SHOWN = 5

_POLICY_FILE = b"outside-warn"
"""In the workspace's folder: the runs that began with `warn`. docs/formats/undo-log.md specifies it."""

WHY_NO_LOCK = (
    "the kernel asks a watcher before a file is opened, but not before a name is made, removed or moved; and a mount "
    "that is read-only for others leaves out a process that has a file or a directory of the workspace open already"
)
LOCK_HINT = "set it to barrier (undo stops at edits by other processes) or warn (undo only lists them)"


def check_policy(policy: str) -> None:
    """Raise `RefusedError` for what cannot be had."""
    if policy == "lock":
        raise RefusedError(f"undo.outside is lock, which is impossible: {WHY_NO_LOCK}", hint=LOCK_HINT)


def remember_policy(context: Context, run: str, policy: str) -> None:
    """A run begins with this policy. Raises `StorageError`."""
    if policy == "warn":
        _permissive_runs(context).add(run)


def _allows_overwriting(context: Context, service: UndoService, steps: Sequence[int]) -> bool:
    """Whether the undo or redo of these steps may overwrite what others have changed."""
    if context.settings.undo.outside == "warn":
        return True
    if not os.path.exists(os.path.join(context.folder, _POLICY_FILE)):
        return False
    runs = _permissive_runs(context).runs
    return all(step.run in runs for step in service.steps() if step.id in steps)


def warn_of_overwriting(error: RefusedError, what: str) -> None:
    """Warn of others' changes, and of their fate."""
    _LOG.warning("%s; that %s", error.message, what, paths=_paths(error))


def _paths(error: RefusedError) -> list[str]:
    return cast("list[str]", (error.data or {}).get("paths", []))


def where_kept(
    context: Context, service: UndoService, steps: Sequence[int], error: RefusedError, *, forward: bool
) -> str:
    """Where the content that ``error`` is about is kept, in words, if the undo or redo of these steps may overwrite it;
    otherwise raises ``error``.
    """
    if error.code != "barrier" or not _allows_overwriting(context, service, steps):
        raise error
    head = context.catalog.cursor(context.workspace.id).head
    back = "undo" if forward else "redo"
    named = [parse_display(shown) for shown in _paths(error)]
    held = {} if head is None else manifest.get_many(context.store.pages, context.catalog.checkpoint(head).root, named)
    alone = [path for path in named if path not in held and context.tree.is_there(path)]
    if not alone:
        return f"the checkpoint before holds it, and `holdfast {back}` brings it back"
    shown = ", ".join(map(display, alone[:_SHOWN])) + (", …" if len(alone) > _SHOWN else "")
    only = f"no checkpoint holds {shown}: `holdfast {back}` brings that back while the undo log holds the step"
    return f"the checkpoint before holds the rest, and {only}" if held else only


def _permissive_runs(context: Context) -> ForgottenRuns:
    from holdfast.undo.journal.forgotten_runs import ForgottenRuns

    return ForgottenRuns(os.path.join(context.folder, _POLICY_FILE))
