"""The continuous work for one export: a watch service of its own, driven by a process that has many of them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from holdfast.engine.exports.named_workspaces import Exports
from holdfast.engine.upkeep.forget_checkpoints import forget
from holdfast.engine.watching.service import WatchService, setup_from_settings
from holdfast.engine.watching.tree_comparison import TreeComparison
from holdfast.engine.watching.watch_lock import hold_watch_lock
from holdfast.engine.watching.watcher import WorkspaceSaver
from holdfast.files.local_tree import LocalTree
from holdfast.files.tree import ROOT_GONE
from holdfast.files.watch import open_watcher
from holdfast.model.errors import NotFoundError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.paths import TEMPORARY_PREFIX, display

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.watching.service import WatchSetup
    from holdfast.files.tree import DirtyPaths, DirtySource
    from holdfast.files.watch import Watcher
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult, Status
    from holdfast.model.config.settings import Settings
    from holdfast.store.catalog.export_rows import ExportRow

_LOG = Log(__name__)

_LOCK_WAIT = 2.0
"""Seconds that saving by itself waits for another process; then it is tried again later."""


class ExportListener(Protocol):
    """Receives the events of exports. Called from any thread; must be quick, and must not raise."""

    def changed(self, tenant: str, export: str, paths: Iterable[bytes] | None) -> None:
        """Its tree has changed, at ``paths``, or (None) at unknown places."""
        ...

    def listens(self, tenant: str, export: str) -> bool:
        """Whether a client listens just now: then a tree without notifications is examined."""
        ...

    def saved(self, tenant: str, export: str, result: CheckpointResult) -> None:
        """A checkpoint was taken."""
        ...


class ExportWorker:
    """The watch service of one export, with a store of its own. For one thread at a time."""

    def __init__(self, opener: Opener, tenant: str, row: ExportRow, told: ExportListener) -> None:
        """Open it and begin. ``opener`` is this object's from now on.

        Raises `LockedError` if another process watches the workspace, `NotFoundError` if its directory is gone.
        """
        with ExitStack() as stack:
            stack.callback(opener.close)
            exports = Exports(opener)
            if not os.path.isdir(path := exports.path_of(row)):
                # Searching for a moved directory takes seconds: `MissingExportFinder` does it for all exports together.
                raise NotFoundError(f"{display(path)} is gone", code=ROOT_GONE)
            context = exports.context(row)
            self._exports, self._row, self.root = exports, row, context.workspace.path
            tree = context.tree
            if not isinstance(tree, LocalTree):
                raise UnsupportedError("only a directory of this machine can be watched")
            stack.enter_context(hold_watch_lock(context.folder))
            # A worker that waits long for the writer of one tree is missing for the others.
            context.adjust_settings(_wait_little)
            setup = setup_from_settings(context, poll_interval=context.settings.serve.poll_interval)
            # Many exports share processor and memory, and most are saved in other ways.
            setup = setup._replace(prepare=False)
            watcher = _watcher(setup, tree, tenant, row, told)
            self._told, self._tenant = told, tenant
            self._clock, self._interval = context.clock, setup.poll_interval
            self._look_at = context.clock.monotonic()
            self._database = context.catalog.database
            self._differing = (
                TreeComparison(context, lambda paths: _tell_changed(told, tenant, row.name, paths))
                if watcher.backend == "polling"
                else None
            )

            def open_saver(changes: DirtySource) -> _ExportSaver:
                tree.dirty = changes
                return _ExportSaver(context, tree, tenant, row.name, told, self._differing)

            try:
                self.service = WatchService(setup, watcher, tree.excluded, open_saver, context.clock)
            except BaseException:
                watcher.close()
                raise
            self.backend = watcher.backend
            try:
                self.service.set_auto_save(row.saves_itself)
                self.service.begin()
            except BaseException:
                self.service.end()
                raise
            self._rest = stack.pop_all()

    def turn(self) -> None:
        """Do the work that is due. While a client listens, changes that the kernel does not report are looked
        for at every interval.
        """
        self.service.turn()
        if self._differing is None or self.service.stopping or self._clock.monotonic() < self._look_at:
            return
        self._look_at = self._clock.monotonic() + self._interval
        if self._told.listens(self._tenant, self._row.name):
            self.service.scan_with(self._differing.compare)
            self._database.save_memory()
        else:
            self._differing.forget()

    def wait_seconds(self) -> float:
        """Seconds until `turn` has work, even if `WatchService.fileno` is not readable."""
        patience = self.service.wait_seconds()
        if self._differing is None:
            return patience
        return max(0.0, min(patience, self._look_at - self._clock.monotonic()))

    def has_moved(self) -> bool:
        """Whether its directory is known to have moved: the process that opened it there has recorded that."""
        return not os.path.isdir(self.root) and self._exports.path_of(self._row) != self.root

    def end(self) -> str | None:
        """Save once more and close everything. None if all is saved that should be, else why not."""
        with self._rest:
            return self.service.end()


def _wait_little(settings: Settings) -> Settings:
    return settings._replace(lock=settings.lock._replace(timeout=min(settings.lock.timeout, _LOCK_WAIT)))


def _watcher(setup: WatchSetup, tree: LocalTree, tenant: str, row: ExportRow, told: ExportListener) -> Watcher:
    """A watcher that reports. fanotify would send each event of a file system to all its exports. So, unless fanotify
    was requested, each export has an inotify instance, or is polled when no instances are left.
    """
    backend = "inotify" if setup.backend == "auto" else setup.backend
    try:
        watcher = open_watcher(setup.root, backend, tree.excluded, poll_interval=setup.poll_interval)
    except UnsupportedError as error:
        if setup.backend != "auto":
            raise
        _LOG.info("%s; looking at it every %g s", error.message, setup.poll_interval)
        watcher = open_watcher(setup.root, "polling", tree.excluded, poll_interval=setup.poll_interval)
    return _NotifyingWatcher(watcher, tenant, row.name, told)


def _tell_changed(told: ExportListener, tenant: str, export: str, paths: Iterable[bytes] | None) -> None:
    """Report changes, except those of a restore in progress."""
    if paths is None:
        told.changed(tenant, export, None)
    elif shown := [path for path in paths if not _is_temporary(path)]:
        told.changed(tenant, export, shown)


def _is_temporary(path: bytes) -> bool:
    """Whether it is a temporary file that a restore renames into place."""
    return path.rpartition(b"/")[2].startswith(TEMPORARY_PREFIX)


class _NotifyingWatcher:
    """A `Watcher` that reports its answers as well, except the first, which is everything."""

    def __init__(self, watcher: Watcher, tenant: str, export: str, told: ExportListener) -> None:
        self._watcher = watcher
        self._told = told
        self._tenant, self._export = tenant, export
        self._first = True

    @property
    def backend(self) -> str:
        return self._watcher.backend

    @property
    def limits(self) -> str | None:
        return self._watcher.limits

    def fileno(self) -> int:
        return self._watcher.fileno()

    def drain(self) -> DirtyPaths:
        answer = self._watcher.drain()
        # Polling always answers "everything": `TreeComparison` reports instead.
        if not self._first and not (answer.everything and self.backend == "polling"):
            _tell_changed(self._told, self._tenant, self._export, None if answer.everything else answer.paths)
        self._first = False
        return answer

    def skim(self) -> None:
        self._watcher.skim()

    def refresh(self) -> bool:
        return self._watcher.refresh()

    def close(self) -> None:
        self._watcher.close()


class _ExportSaver:
    """Does what the service asks for. Collection is about a whole store: it is not done here."""

    def __init__(
        self,
        context: Context,
        tree: LocalTree,
        tenant: str,
        export: str,
        told: ExportListener,
        differing: TreeComparison | None,
    ) -> None:
        self._context = context
        self._differing = differing
        self._saver = WorkspaceSaver(context, tree)
        self._told = told
        self._tenant, self._export = tenant, export

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        try:
            result = self._saver.checkpoint(request)
            if result.created and self._differing is not None:
                self._differing.saved(result.checkpoint)
        finally:
            self._rest()
        if result.created:
            self._told.saved(self._tenant, self._export, result)
        return result

    def status(self) -> Status:
        try:
            return self._saver.status()
        finally:
            self._rest()

    def prepare(self, paths: Sequence[bytes], *, last: bool) -> None:
        self._saver.prepare(paths, last=last)

    def retention(self) -> None:
        try:
            removed = forget(self._context, ()).removed
        finally:
            self._rest()
        if removed:
            _LOG.info("retention of %s: %d checkpoints removed", self._export, len(removed))

    def _rest(self) -> None:
        """Free memory until there is work: each of many exports has a store of its own."""
        self._context.catalog.database.save_memory()

    def close(self) -> None:
        self._saver.close()
