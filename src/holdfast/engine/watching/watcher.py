"""Watching, as a use-case: the service, with a workspace whose tree learns of possible changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.history.status import status
from holdfast.engine.upkeep.forget_checkpoints import forget
from holdfast.engine.upkeep.housekeeping import collect
from holdfast.engine.watching.service import run_service, setup_from_settings
from holdfast.files.local_tree import LocalTree
from holdfast.model.errors import LockedError, UnsupportedError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.watching.service import PeriodicTask
    from holdfast.files.tree import DirtySource
    from holdfast.files.watch import Watcher
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult, Status

_LOG = Log(__name__)


def watch(
    context: Context,
    ready: Callable[[Watcher], None] | None = None,
    sweep: Callable[[], None] | None = None,
    beside: PeriodicTask | None = None,
) -> str | None:
    """Watch the workspace until a request to stop; returns as `holdfast.engine.watching.service.run_service`.

    ``sweep`` is called periodically, for upkeep of the whole home; for ``beside`` see there.
    """
    tree = context.tree
    if not isinstance(tree, LocalTree):
        raise UnsupportedError("only a directory of this machine can be watched")
    setup = setup_from_settings(context, poll_interval=context.settings.watch.poll_interval)

    def open_saver(changes: DirtySource) -> WorkspaceSaver:
        tree.dirty = changes
        return WorkspaceSaver(context, tree, sweep)

    return run_service(setup, open_saver, tree.excluded, context.clock, ready=ready, beside=beside)


class WorkspaceSaver:
    """Does what the service asks for; see `holdfast.engine.watching.service.Saver`."""

    def __init__(self, context: Context, tree: LocalTree, sweep: Callable[[], None] | None = None) -> None:
        self._context = context
        self._tree = tree
        self._sweep = sweep

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        """Save the tree's present state."""
        return create_checkpoint(self._context, request)

    def prepare(self, paths: Sequence[bytes], *, last: bool) -> None:
        """Work ahead for files that have changed: see `holdfast.engine.watching._read_ahead`."""
        from holdfast.engine.watching._read_ahead import prepare

        prepare(self._context, self._tree, paths, last=last)

    def status(self) -> Status:
        """The differences between the tree and the checkpoint that it is at."""
        return status(self._context, watching=True)

    def retention(self) -> None:
        """Remove old checkpoints by the settings' policy, and collect objects that have been unused for long enough."""
        if self._sweep is not None:
            self._sweep()
        removed = forget(self._context, ()).removed
        try:
            freed = collect(self._context)
        except LockedError:
            return  # another process is at it
        _LOG.info("retention: %d checkpoints removed, %d bytes freed", len(removed), freed.bytes_freed)

    def close(self) -> None:
        """Write the index, so that the next command starts from it."""
        self._tree.save_index()
