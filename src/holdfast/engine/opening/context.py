"""The context of every use-case: one workspace's tree, the store, the settings, time and randomness."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress

from holdfast.engine.opening.home import LOCK, UNDO_LOG, WATCH_SOCKET, workspace_folder
from holdfast.files.linux.process_lock import exclusive
from holdfast.model.errors import HoldfastError, LockedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol, TypeVar
from holdfast.model.log import Log
from holdfast.model.paths import UNDO_LOG_IN_TREE, display

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from holdfast.engine.opening.watch_client import WatchClient
    from holdfast.files.tree import Tree
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.clock import Clock
    from holdfast.model.config.settings import Settings
    from holdfast.model.entries import Change, Entry
    from holdfast.model.errors import ConfigError
    from holdfast.model.ids import Hash
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog_records import WorkspaceRow
    from holdfast.store.store import Store
    from holdfast.undo.service import UndoService


class StoreContext(Protocol):
    """The context of use-cases about a whole home. A `Context` is one, too."""

    @property
    def store(self) -> Store:
        """The home's store."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings in force; what concerns a home, no workspace's own file can set."""
        ...

    def folder_of(self, workspace: WorkspaceRow) -> bytes:
        """The folder in the home that belongs to a workspace."""
        ...


class ReadSettings(NamedTuple):
    """The settings of a workspace as its files have them now."""

    settings: Settings | None
    """None: the home's file is wrong, so there are no settings."""
    wrong: ConfigError | None
    """The error in a file that is ignored."""
    refusal: ConfigError | None
    """The error for commands that save by the settings."""


class Configuration(Protocol):
    """The files that the settings of a workspace come from, which may change as long as it is open."""

    def read_changed(self) -> ReadSettings | None:
        """The settings in the files; None if the files are unchanged since the last call or the opening."""
        ...

    def configure(self, tree: Tree, settings: Settings) -> None:
        """Let ``tree`` go by ``settings`` from now on."""
        ...


class HomeContext(NamedTuple):
    """A home, opened, without any of its workspaces."""

    store: Store
    settings: Settings
    home: bytes

    def folder_of(self, workspace: WorkspaceRow) -> bytes:
        """See `Shared.folder_of`."""
        return workspace_folder(self.home, workspace)


class Context:
    """One workspace, opened. Use-cases are functions over it; it holds no logic of its own."""

    __slots__ = (
        *("_adjust", "_configuration", "_make_tree", "_refusal", "_tree", "clock", "folder", "history_index"),
        *("misconfigured", "random", "recovery_failed", "settings", "store", "undo_log", "workspace"),
    )

    def __init__(
        self,
        *,
        workspace: WorkspaceRow,
        make_tree: Callable[[], Tree],
        store: Store,
        settings: Settings,
        folder: bytes,
        clock: Clock,
        random: Callable[[int], bytes],
        misconfigured: ConfigError | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        """``configuration``: the files that ``settings`` come from (None: from none that may change)."""
        self.workspace = workspace
        self._make_tree = make_tree
        self._tree: Tree | None = None
        self.store = store
        self.settings = settings
        """The settings when the operation began: see `renew_settings`."""
        self._configuration = configuration
        self._adjust: Callable[[Settings], Settings] | None = None
        self._refusal: ConfigError | None = None
        self.folder = folder
        """The workspace's own folder in the home: index, lock, journal, socket."""
        self.clock = clock
        self.random = random
        self.misconfigured = misconfigured
        """The error in the workspace's own file, if it is ignored: then retention rules must not delete anything."""
        self.history_index: object = None
        """The cache of `holdfast.engine.history.timeline.history_index`."""
        self.undo_log: UndoService | None = None
        """The undo log, for as long as this process has reached it (`holdfast.engine.opening.undo_log.open_service`).
        """
        self.recovery_failed = False
        """Recovery from a killed keeper failed and was reported (`holdfast.engine.opening.undo_log.recover_log`)."""

    @property
    def tree(self) -> Tree:
        """The workspace's tree, made on first use: commands that a watcher answers need none and load nothing."""
        if self._tree is None:
            self._tree = self._make_tree()
        return self._tree

    def renew_settings(self) -> None:
        """Read the settings and the tree's rules again from files that have changed.

        `lock` calls it: every operation on the tree uses the files at its beginning, however long the workspace has
        been open. A caller that needs settings earlier calls it itself. While a file is wrong, operations that must
        work use the last saved version of the workspace's file, as a lenient opening does; see `require_configured`.
        """
        found = None if self._configuration is None else self._configuration.read_changed()
        if found is None or self._configuration is None:
            return
        if found.wrong is not None and (
            self.misconfigured is None or self.misconfigured.message != found.wrong.message
        ):
            _LOG.warning("%s", found.wrong.message)
        self.misconfigured, self._refusal = found.wrong, found.refusal
        if found.settings is None:
            return
        store = self.settings.store._replace(max_bytes=found.settings.store.max_bytes)
        if store != found.settings.store:
            _LOG.warning("store.* has changed: this process uses the store that it has opened until it ends")
        settings = found.settings._replace(store=store)
        self.settings = settings if self._adjust is None else self._adjust(settings)
        if self._tree is not None:
            self._configuration.configure(self._tree, self.settings)

    def adjust_settings(self, adjust: Callable[[Settings], Settings]) -> None:
        """Change the settings by ``adjust``, now and after each later reading of the files."""
        self._adjust = adjust
        self.settings = adjust(self.settings)

    def require_configured(self) -> None:
        """Raise `ConfigError` if a settings file has become wrong since, unless the workspace was opened leniently: a
        requested or automatic checkpoint must not use other rules.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    @property
    def catalog(self) -> Catalog:
        """The store's catalog."""
        return self.store.catalog

    @property
    def home(self) -> bytes:
        """The home that the workspace is remembered in."""
        return os.path.dirname(os.path.dirname(self.folder))

    def folder_of(self, workspace: WorkspaceRow) -> bytes:
        """See `Shared.folder_of`."""
        return os.path.join(os.path.dirname(self.folder), workspace.id.encode())

    @contextmanager
    def lock(self, timeout: float | None = None, *, as_found: bool = False) -> Generator[None]:
        """Hold the workspace's lock: one checkpoint, restore or fork at a time. Waits ``timeout`` seconds (None: the
        settings').

        Its holder looks at the tree or changes it. So the settings are read again (`renew_settings`), and the
        unfinished steps of a killed keeper are rolled back first (I3) and noted for the next session. ``as_found``
        skips the rollback: the caller recovers by opening the undo log.
        """
        with exclusive(
            os.path.join(self.folder, LOCK),
            timeout=self.settings.lock.timeout if timeout is None else timeout,
            clock=self.clock,
            what=f"the workspace {display(self.workspace.path)}",
        ):
            self.renew_settings()
            if not as_found and self.undo_log is None and (log := self._half_done()) is not None:
                from holdfast.engine.opening.undo_log import recover_log

                recover_log(self, log, noted=True)
            yield

    def recover(self) -> None:
        """Roll back and report the unfinished changes of a killed keeper in the tree (I3). To be called before anything
        is built on the tree: where nothing is half done that costs one look. Nothing while the keeper lives, or another
        process has the workspace's lock.
        """
        if (log := self._half_done()) is not None:
            from holdfast.engine.opening.undo_log import recover_log

            with suppress(LockedError), self.lock(0, as_found=True):
                recover_log(self, log, noted=False)

    def undo_seq(self) -> int | None:
        """The largest sequence number that the undo log has given out, 0 without a log; None if it cannot be read.
        Events record it, so that their order never depends on a clock.
        """
        logs = self._logs()
        if not logs:
            return 0
        from holdfast.undo.journal.heartbeat import read_beat

        if len(logs) > 1:
            from holdfast.engine.opening.undo_log import log_directory

            logs = [log_directory(self)]
        beat = read_beat(logs[0])
        return None if beat is None else beat.seq

    def _half_done(self) -> bytes | None:
        """The directory of an undo log in which a step, or its reversal, is unfinished."""
        logs = self._logs()
        if not logs:
            return None
        from holdfast.undo.journal.heartbeat import read_beat

        # An unreadable heartbeat may hide an unfinished step.
        return next((log for log in logs if (beat := read_beat(log)) is None or beat.at), None)

    def _logs(self) -> list[bytes]:
        """The directories of undo logs: nearly always one or none."""
        places = os.path.join(self.folder, UNDO_LOG), os.path.join(self.workspace.path, UNDO_LOG_IN_TREE)
        return [place for place in places if os.path.lexists(place)]


# The disk reserve, given up for operations that must not fail on a full disk.

T = TypeVar("T")

_LOG = Log(__name__)


def retry_with_reserve(context: StoreContext, work: Callable[[], T]) -> T:
    """Do ``work``, which frees room; if the disk is too full for it, once more with the ballast given up."""
    try:
        done = work()
    except StorageError:
        if not context.store.release_reserve():
            raise
        _LOG.info("the disk is full: using the reserve")
        done = work()
    context.store.restore_reserve()
    return done


@contextmanager
def with_disk_reserve(context: StoreContext) -> Generator[None]:
    """For operations that must not fail because of a full disk and cannot simply be repeated (a restore, an undo): on a
    full disk the ballast file is deleted before them, and its remaining room is taken back afterwards.
    """
    gave_way = context.store.release_reserve()
    if gave_way:
        _LOG.info("the disk is full: using the reserve")
    try:
        yield
    finally:
        if gave_way:
            context.store.restore_reserve()


# A checkpoint's changes against its parent, and the parent's entries for paths that cannot be read now.


def checkpoint_changes(context: Context, checkpoint: Checkpoint) -> list[Change]:
    """The changeset of ``checkpoint``, sorted by path; for one without a parent, everything it holds as added."""
    from holdfast.store.codecs.changeset import decode_changeset
    from holdfast.store.manifests import manifest

    stored = context.catalog.changeset(checkpoint.id)
    return manifest.diff(context.store.pages, None, checkpoint.root) if stored is None else decode_changeset(stored)


class SavedState:
    """The contents of the stored manifest ``root``: see `holdfast.files.tree.SavedManifest`."""

    def __init__(self, context: Context, root: Hash) -> None:
        self._store = context.store
        self._root = root

    def entries(self, path: bytes) -> Iterator[tuple[bytes, Entry]]:
        """See `SavedManifest.entries`."""
        from holdfast.store.manifests import manifest

        return manifest.iterate(self._store.pages, self._root, path)

    def read(self, path: bytes, limit: int) -> bytes | None:
        """See `SavedManifest.read`."""
        return read_saved(self._store, self._root, path, limit)


def read_saved(store: Store, root: Hash, path: bytes, limit: int) -> bytes | None:
    """At most ``limit`` bytes of the file at ``path`` in the manifest ``root``; None if there is no file."""
    from holdfast.store.manifests import manifest

    entry = manifest.get(store.pages, root, path)
    if entry is None or entry.is_symlink:
        return None
    content = next(store.reader.fetch((entry,)))
    found = bytearray()
    for piece in (content,) if isinstance(content, bytes) else content:
        found += piece
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def saved_state(context: Context, checkpoint: Checkpoint | None) -> SavedState | None:
    """For `Tree.scan`: what ``checkpoint`` holds; None if there is no checkpoint."""
    return None if checkpoint is None else SavedState(context, checkpoint.root)


# A command's use of the running watcher: its answers, and pausing it. Without a watcher's socket this costs one system
# call, and imports nothing.

_UNANSWERED = frozenset(("watcher_gone", "too_long", "workspace_gone"))
"""Error codes after which a command does the work itself: it may find a moved directory that the watcher misses."""


def connect_watcher(context: Context) -> WatchClient | None:
    """The watcher of a workspace, for the caller to close; None if none runs, or it does not respond."""
    if not os.path.lexists(os.path.join(context.folder, WATCH_SOCKET)):
        return None
    from holdfast.engine.opening.watch_client import connect_answering

    return connect_answering(context.folder, context.settings.watch.answer_timeout)


def ask_watcher(context: Context, ask: Callable[[WatchClient], T]) -> T | None:
    """A running watcher's answer; None if there is none, or the command must do the work itself."""
    watcher = connect_watcher(context)
    if watcher is None:
        return None
    try:
        with watcher:
            return ask(watcher)
    except HoldfastError as error:
        if error.code not in _UNANSWERED:
            raise
        return None


@contextmanager
def pause_watcher(context: Context) -> Generator[None]:
    """Keep a watcher from saving the half-way states of a change to the tree, for the length of the block."""
    watcher = connect_watcher(context)
    if watcher is None:
        yield
        return
    with watcher, watcher.pause():
        yield
