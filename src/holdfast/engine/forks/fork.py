"""Writing a checkpoint out as a workspace of its own, with the checkpoint as parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.tree_copy import write_out
from holdfast.engine.opening import fork_layers
from holdfast.engine.opening.operation_journal import new_operation, read_operation, write_operation
from holdfast.model.command_results import ForkResult
from holdfast.model.errors import RefusedError
from holdfast.model.paths import display
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.content import Progress
    from holdfast.model.ids import CheckpointId


def fork(
    context: Context, source: CheckpointId, open_fork: Callable[[], Context], *, progress: Progress | None = None
) -> ForkResult:
    """Write ``source`` out into the workspace that ``open_fork`` registers and opens.

    That workspace's directory must be empty, or hold the rest of a killed fork of the same checkpoint. Durable when it
    returns. Missing content raises `IntegrityError` before anything is made; damage that shows only on reading raises
    it as well, after the written files are removed. After an interruption, `holdfast.engine.history.recovery` in the
    new workspace finishes it, or a repeated call. Retention keeps the checkpoints that the new workspace depends on.
    """
    _require(context, context.catalog.checkpoint(source))
    forked = open_fork()
    with forked.lock():
        if fork_layers.read_note(forked.folder) is not None:
            raise RefusedError(
                f"{display(forked.workspace.path)} is being made as a fork by mount",
                hint="finish it with `holdfast fork --mount`, as it was begun",
            )
        operation = read_operation(forked.folder)
        if operation is not None and (operation.kind != "fork" or operation.target != source):
            raise RefusedError(
                f"{display(forked.workspace.path)} holds an unfinished {operation.kind} of {operation.target[:12]}",
                hint="finish it there with `holdfast restore --continue`, or delete the directory",
            )
        if operation is None:
            operation = new_operation(forked, "fork", source)
            write_operation(forked.folder, operation)
        else:
            forked.tree.clean(operation.nonce)
        applied = write_out(forked, operation, progress, beside=context.tree)
        first = forked.catalog.cursor(forked.workspace.id).head
    assert first is not None, "write_out commits the fork's first checkpoint"
    return ForkResult(forked.workspace.id, forked.workspace.path, first, source, len(applied.written))


def _require(context: Context, source: Checkpoint) -> None:
    """Raise `IntegrityError` if not all that ``source`` holds is stored."""
    context.store.reader.require(entry for _, entry in manifest.iterate(context.store.pages, source.root))
