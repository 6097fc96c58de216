"""Writing a checkpoint out as a workspace of its own, whose parent it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.forks.first_checkpoint import first_checkpoint
from holdfast.engine.history.content_source import Stored
from holdfast.engine.history.restore import new_nonce
from holdfast.engine.opening import fork_note
from holdfast.engine.opening import restore_journal as journals
from holdfast.engine.opening.restore_journal import Journal
from holdfast.engine.results.results import ForkResult
from holdfast.model.entries import Change
from holdfast.model.errors import IntegrityError, RefusedError
from holdfast.model.paths import display
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.engine.opening.context import Context
    from holdfast.files.tree import Applied, Tree
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId
    from holdfast.model.sinks import Progress


def fork(
    context: Context, source: CheckpointId, open_fork: Callable[[], Context], *, progress: Progress | None = None
) -> ForkResult:
    """Write ``source`` out into the workspace that ``open_fork`` registers and opens.

    That workspace's directory must be empty, or hold what a killed fork of the same checkpoint left. Durable when it
    returns. Content that is known to be missing is an `IntegrityError` before anything is made; damage that shows only
    when it is read is one too, and what was written by then is removed. Cut short, it is finished by `resuming.resume`
    in the new workspace, or by the same fork again. The new workspace is live: retention keeps what it stands on.
    """
    _require(context, context.catalog.checkpoint(source))
    forked = open_fork()
    with forked.lock():
        if fork_note.read(forked.folder) is not None:
            raise RefusedError(
                f"{display(forked.workspace.path)} is being made as a fork by mount",
                hint="finish it with `holdfast fork --mount`, as it was begun",
            )
        journal = journals.read(forked.folder)
        if journal is not None and (journal.operation != "fork" or journal.target != source):
            raise RefusedError(
                f"{display(forked.workspace.path)} holds an unfinished {journal.operation} of {journal.target[:12]}",
                hint="finish it there with `holdfast restore --continue`, or delete the directory",
            )
        if journal is None:
            journal = Journal("fork", source, None, None, None, (), new_nonce(forked), forked.clock.now())
            journals.write(forked.folder, journal)
        else:
            forked.tree.clean(journal.nonce)
        applied = write_out(forked, journal, progress, beside=context.tree)
        first = forked.catalog.cursor(forked.workspace.id).head
    assert first is not None, "write_out commits the fork's first checkpoint"
    return ForkResult(forked.workspace.id, forked.workspace.path, first, source, len(applied.written))


def write_out(context: Context, journal: Journal, progress: Progress | None, *, beside: Tree | None = None) -> Applied:
    """Write the journal's target into the tree and commit the fork's first checkpoint. Needs the lock; idempotent.

    Large files that ``beside``, the tree that is forked, still holds as they were saved share their blocks with it
    where the file system can do that.
    """
    source = context.catalog.checkpoint(journal.target)
    pages = context.store.pages
    changes = [Change(path, None, entry) for path, entry in manifest.iterate(pages, source.root)]
    supply = Stored(context.store.reader, beside)
    heard = None if progress is None else _with_total(progress, source.total_files)
    try:
        applied = context.tree.apply([], ((change, supply) for change in changes), nonce=journal.nonce, progress=heard)
    except IntegrityError:
        _take_back(context, changes, journal)
        raise
    if applied.skipped:
        path, reason = applied.skipped[0]
        raise RefusedError(
            f"cannot fork into {display(context.workspace.path)}: {display(path)} is in the way ({reason})",
            hint="fork into a directory that does not exist or is empty",
        )
    first_checkpoint(context, source)
    context.tree.settle(source.root)
    journals.remove(context.folder)
    return applied


def _require(context: Context, source: Checkpoint) -> None:
    """Raise `IntegrityError` if not all that ``source`` holds is stored."""
    context.store.reader.require(entry for _, entry in manifest.iterate(context.store.pages, source.root))


def _take_back(context: Context, changes: Iterable[Change], journal: Journal) -> None:
    """Remove what was written of a fork that can never be finished, and nothing else; the directory stays, empty."""
    context.tree.apply([Change(path, after, None) for path, _, after in changes], [], nonce=journal.nonce)
    if context.catalog.cursor(context.workspace.id).head is None:
        journals.remove(context.folder)


def _with_total(progress: Progress, files: int) -> Progress:
    """``progress``, told how many files there are where the tree, which is given them one by one, does not know."""
    return lambda phase, done, total: progress(phase, done, total or files)
