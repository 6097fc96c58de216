"""What opening a session mends: what a killed process left, and what has become of the directory meanwhile.

What the directory holds is the truth: no old tree is ever put over files that are there (I3).
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
    """What there was to mend."""

    entries: list[JournalEntry]
    """The journal."""
    moved: Literal["", "done", "never"]
    """What became of a checkout or a merge that was cut short: the tree is the other one now, or is as it was before,
    or what another process has made of it since.
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
    """Have the provider that made a fork's directory mount again what is not mounted any more, as after a restart."""
    for provider in provider_of_fork(opener, record):
        try:
            provider.resume(Token(record.token))
        except NotFoundError:
            _LOG.debug("the provider knows nothing of a fork's directory any more", session=record.id)


def provider_of_fork(opener: Opener, record: SessionRecord) -> list[Provider]:
    """The provider that has made the directory; none if an older version wrote it out, or it is not known any more."""
    return [one for one in known_providers(opener, record) if one.name == record.provider]


def known_providers(opener: Opener, record: SessionRecord) -> Sequence[Provider]:
    """All snapshot providers of the workspace that a fork is of; none where that is not known any more."""
    if record.origin is None:
        return ()  # (what works in place was made by no provider)
    from holdfast.engine.forks.workspace_providers import providers_of

    try:
        return providers_of(opener.context_of(record.origin), record.id)
    except NotFoundError:
        return ()


def recreate_directory(context: Context, workspace: Workspace, record: SessionRecord, state: State) -> bool:
    """If the session's directory is gone, or a fork's was emptied, make it again from the last recorded tree.

    False if it is there. Raises `RefusedError` where it may lie on a file system that is not mounted, `NotFoundError`
    if the tree was thinned out.
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
    # It is another directory than the one that is remembered, and ours: the one that deletes the session has to know.
    about = os.stat(root)
    context.catalog.move_workspace(context.workspace.id, root, about.st_dev, about.st_ino)
    identity.remember_root(context.folder, root)
    _LOG.warning("%s was gone; it was made again as it was saved last", display(root))
    if record.provider == "git" and record.purpose != "session":
        _LOG.warning("its Git repository is gone with its commits, and Git finds none in it now")
    return True


def was_emptied(context: Context, record: SessionRecord, state: State) -> bool:
    """Whether the directory of a fork, which is there, is without all that was recorded last."""
    if record.purpose == "session" or state.tree is None or not _is_empty(context.workspace.path):
        return False
    return context.catalog.checkpoint(state.tree).total_files > 0


def opening_message(session: SessionId) -> str:
    """What is said of a tree that was not recorded."""
    return f"found when the session {session} was opened"


def was_cut_short(entries: list[JournalEntry]) -> bool:
    """Whether a process that had the session was killed in the middle of something."""
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
    """Bring the journal up to what has become of the session; the same list if there is nothing to mend.

    ``save`` saves the tree. ``target_tree`` is where a checkout was going.
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
    """Say so if the tree is half way between two states, by something that is not the session's to finish."""
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
    """Finish the restore to ``target``, if it had begun: the one that asked for it has saved the state before.

    What another process has changed since it was cut short stays, and is said.
    """
    unfinished = workspace.unfinished()
    if unfinished is not None and (unfinished.target, unfinished.taken_back) == (target, None):
        _tell(workspace.restore_continue())
        return "done"
    from holdfast.engine.history.recovery import has_reached  # (hardly ever is anything cut short)

    return "done" if has_reached(context, target, since) else "never"


def _tell(result: RestoreResult) -> None:
    """Say what finishing a restore has left alone."""
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
