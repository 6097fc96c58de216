"""What opening a session mends: what a killed process left, and what has become of the directory meanwhile.

What the directory holds is the truth: no old tree is ever put over files that are there (I3).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.engine import identity
from holdfast.engine.gone import is_missing
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.session import Counted, Found, JournalEntry, Leaving, Ran

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.context import Context
    from holdfast.engine.workspace import Workspace
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import State
    from holdfast.store.session_records import SessionRecord

_LOG = Log(__name__)


class Mended(NamedTuple):
    """What there was to mend."""

    entries: list[JournalEntry]
    """The journal."""
    leaving: Literal["", "done", "never"]
    """What became of a checkout that was cut short: the tree is the other one now, or is as it was before."""


def make_directory_again(context: Context, workspace: Workspace, record: SessionRecord, state: State) -> bool:
    """If the session's directory is gone, or a fork's was emptied, make it again from the last recorded tree.

    False if it is there. Raises `RefusedError` where it may lie on a file system that is not mounted, `NotFoundError`
    if the tree was thinned out.
    """
    root = context.workspace.path
    if os.path.lexists(root):
        if record.purpose == "session" or not _is_empty(root) or state.tree is None:
            return False
        if context.catalog.checkpoint(state.tree).total_files == 0:
            return False
    elif not is_missing(context.workspace, context.folder):
        raise RefusedError(
            f"{display(root)} is not there, nor is the file system that it was on",
            hint="mount it; a session does not begin anew elsewhere",
            code="not_mounted",
        )
    if state.tree is None:
        raise NotFoundError(f"{display(root)} is gone, and no tree of it was ever saved", code="no_tree")
    if workspace.unfinished() is not None:
        workspace.restore_continue()
    else:
        workspace.restore(state.tree)
    # It is another directory than the one that is remembered, and ours: whoever deletes the session has to know.
    about = os.stat(root)
    context.catalog.move_workspace(context.workspace.id, root, about.st_dev, about.st_ino)
    identity.remember(context.folder, root)
    _LOG.warning("%s was gone; it was made again as it was saved last", display(root))
    return True


def mend(
    context: Context,
    workspace: Workspace,
    entries: list[JournalEntry],
    state: State,
    *,
    remade: bool,
    target_tree: Callable[[Leaving], CheckpointId],
    save: Callable[[], CheckpointId],
) -> Mended:
    """Bring the journal up to what has become of the session; the same list if there is nothing to mend.

    ``save`` saves the tree. ``target_tree`` is where a checkout was going.
    """
    mended = list(entries)
    leaving: Literal["", "done", "never"] = ""
    lost = remade
    last = mended[-1] if mended else None
    if isinstance(last, Leaving):
        lost = True
        leaving = _finish_leaving(context, workspace, target_tree(last))
        mended.pop()
    found = state.tree if remade else save()
    if isinstance(last, Ran) and not last.ended:
        lost = True
        _LOG.warning("the session was killed while this ran in it: %s", last.entry.command[:200])
        mended[-1] = msgspec.structs.replace(last, ended=True, entry=msgspec.structs.replace(last.entry, after=found))
    elif found is not None and leaving != "done" and not _same(context, state.tree, found):
        mended.append(Found(tree=found, at=context.clock.now()))
    if lost:
        mended.append(Counted(what="recoveries", at=context.clock.now()))
    return Mended(entries if mended == entries else mended, leaving)


def _finish_leaving(context: Context, workspace: Workspace, target: CheckpointId) -> Literal["done", "never"]:
    """Finish the restore of a checkout, if it had begun: whoever asked for it has saved the state before."""
    unfinished = workspace.unfinished()
    if unfinished is not None and unfinished.target == target:
        workspace.restore_continue()
        return "done"
    return "done" if context.catalog.cursor(context.workspace.id).head == target else "never"


def _same(context: Context, before: CheckpointId | None, after: CheckpointId) -> bool:
    """Whether two checkpoints hold the same tree."""
    if before is None or before == after:
        return before == after
    try:
        return context.catalog.checkpoint(before).root == context.catalog.checkpoint(after).root
    except NotFoundError:
        return False


def _is_empty(path: bytes) -> bool:
    with os.scandir(path) as inside:
        return next(inside, None) is None
