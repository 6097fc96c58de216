"""Repairs when a session is opened: after a killed process, and after changes of the directory.

The directory's present files always win: no old tree ever replaces them (I3).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.engine.opening import identity
from holdfast.engine.opening.missing_workspaces import is_missing
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.session_types import CheckoutEvent, CommandEvent, JournalEntry, MergeEvent, MetricEvent, TreeEvent
from holdfast.snapshot.port import Token
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.model.session_types import SessionId, State
    from holdfast.snapshot.port import Provider
    from holdfast.store.catalog.session_records import SessionRecord

_LOG = Log(__name__)
_SHOWN = 20


class Repaired(NamedTuple):
    """The repairs."""

    entries: list[JournalEntry]
    """The journal."""
    moved: Literal["", "done", "never"]
    """The result of an interrupted checkout or merge: the tree has the new state, or the old one, or the state that
    another process made of it since.
    """


def open_mounted(opener: Opener, name: WorkspaceId) -> Context:
    """Open a workspace; a fork by mount that is not mounted, as after a restart of the machine, is mounted again."""
    try:
        return opener.open_known(name)
    except RefusedError as error:
        if error.code != "not_mounted":
            raise
        from holdfast.engine.forks.mounted_forks import mount_again

        mount_again(opener, last_seen_path(opener.store().catalog.workspace(name).path))
        return opener.open_known(name)


def resume(opener: Opener, record: SessionRecord) -> None:
    """Let the provider of a fork's directory mount it again if it is unmounted, as after a restart."""
    for provider in provider_of_fork(opener, record):
        try:
            provider.resume(Token(record.token))
        except NotFoundError:
            _LOG.debug("the provider knows nothing of a fork's directory any more", session=record.id)


def provider_of_fork(opener: Opener, record: SessionRecord) -> list[Provider]:
    """The provider of the directory; none if an older version wrote it out, or it is unknown."""
    return [one for one in known_providers(opener, record) if one.name == record.provider]


def known_providers(opener: Opener, record: SessionRecord) -> Sequence[Provider]:
    """All snapshot providers of the workspace that a fork belongs to; none if that is unknown."""
    if record.origin is None:
        return ()  # a session in place has no provider
    from holdfast.engine.forks.workspace_providers import providers_of

    try:
        return providers_of(opener.context_of(record.origin), record.id)
    except NotFoundError:
        return ()


def recreate_directory(context: Context, workspace: Workspace, record: SessionRecord, state: State) -> bool:
    """If the session's directory is gone, or a fork's was emptied, make it again from the last recorded tree.

    False if it exists. Raises `RefusedError` where it may lie on a file system that is not mounted, `NotFoundError` if
    the tree was thinned out.
    """
    root = context.workspace.path
    if os.path.lexists(root):
        if not was_emptied(context, record, state):
            return False
    elif not is_missing(context.workspace, context.folder):
        raise RefusedError(
            f"{display(root)} is not there, nor is the file system that it was on",
            hint="mount it",
            code="not_mounted",
        )
    if state.tree is None:
        raise NotFoundError(f"{display(root)} is gone, and no saved state of it exists", code="no_tree")
    if workspace.unfinished() is not None:
        _tell(workspace.restore_continue())
    else:
        workspace.restore(state.tree)
    # Ours, but another directory than recorded: record it for the process that deletes the session.
    about = os.stat(root)
    context.catalog.move_workspace(context.workspace.id, root, about.st_dev, about.st_ino)
    identity.remember_root(context.folder, root)
    _LOG.warning("%s was gone; it was made again as it was saved last", display(root))
    if record.provider == "git" and record.purpose != "session":
        _LOG.warning("its Git repository is gone with its commits, and Git finds none in it now")
    return True


def was_emptied(context: Context, record: SessionRecord, state: State) -> bool:
    """Whether the existing directory of a fork lacks everything recorded last."""
    if record.purpose == "session" or state.tree is None or not _is_empty(context.workspace.path):
        return False
    return context.catalog.checkpoint(state.tree).total_files > 0


def opening_message(session: SessionId) -> str:
    """The message of the state of an unrecorded tree."""
    return f"found when the session {session} was opened"


def was_cut_short(entries: list[JournalEntry]) -> bool:
    """Whether a process that had the session was killed during an operation."""
    last = entries[-1] if entries else None
    return isinstance(last, CheckoutEvent | MergeEvent) or (isinstance(last, CommandEvent) and not last.ended)


def repair_journal(
    context: Context,
    workspace: Workspace,
    entries: list[JournalEntry],
    state: State,
    *,
    remade: bool,
    target_tree: Callable[[CheckoutEvent], CheckpointId],
    save: Callable[[], CheckpointId],
) -> Repaired:
    """Bring the journal up to date with the session; the same list if nothing needs repair.

    ``save`` saves the tree. ``target_tree`` is the target of a checkout.
    """
    mended = list(entries)
    moved: Literal["", "done", "never"] = ""
    lost = remade
    last = mended[-1] if mended else None
    if isinstance(last, CheckoutEvent | MergeEvent):
        lost = True
        target = last.target if isinstance(last, MergeEvent) else target_tree(last)
        moved = _finish(context, workspace, target, last.event)
        mended.pop()
    found = state.tree if remade else save()
    if isinstance(last, CommandEvent) and not last.ended:
        lost = True
        _LOG.warning("the session was killed while this ran in it: %s", last.entry.command[:200])
        mended[-1] = msgspec.structs.replace(last, ended=True, entry=msgspec.structs.replace(last.entry, after=found))
    elif found is not None and moved != "done" and not same_tree(context, state.tree, found):
        mended.append(TreeEvent(tree=found, at=context.clock.now()))
    if lost:
        mended.append(MetricEvent(what="recoveries", at=context.clock.now()))
    return Repaired(entries if mended == entries else mended, moved)


def warn_unfinished(workspace: Workspace) -> None:
    """Warn if the tree is between two states because of an operation that is not the session's to finish."""
    journal = workspace.unfinished()
    if journal is not None:
        _LOG.warning(
            "%s is incomplete: a %s to %s was cut short there; `holdfast restore --continue` "
            "finishes it, `holdfast restore --abort` goes back to the state before",
            display(workspace.path),
            journal.kind,
            journal.target[:12],
        )


def _finish(context: Context, workspace: Workspace, target: CheckpointId, since: int) -> Literal["done", "never"]:
    """Finish the restore to ``target``, if it had begun: its caller saved the state before it.

    Changes of other processes since the interruption stay, with a warning.
    """
    unfinished = workspace.unfinished()
    if unfinished is not None and (unfinished.target, unfinished.taken_back) == (target, None):
        _tell(workspace.restore_continue())
        return "done"
    from holdfast.engine.history.recovery import has_reached  # operations are rarely interrupted

    return "done" if has_reached(context, target, since) else "never"


def _tell(result: RestoreResult) -> None:
    """Report the paths that finishing a restore has skipped."""
    for path, reason in result.skipped[:_SHOWN]:
        _LOG.warning("%s was left as it is: %s", display(path), reason)
    if len(result.skipped) > _SHOWN:
        more = len(result.skipped) - _SHOWN
        _LOG.warning("%d more were left as they are; `holdfast diff %s` shows them", more, result.checkpoint[:12])


def same_tree(context: Context, before: CheckpointId | None, after: CheckpointId) -> bool:
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
