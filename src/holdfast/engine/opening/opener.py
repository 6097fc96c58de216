"""Finding, making and opening workspaces: the home, the store in it, the settings, the tree.

This is the one place of the library that looks at the environment, and only at ``environ``, which callers may replace.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from functools import partial

from holdfast.engine.opening import identity
from holdfast.engine.opening.context import Context, HomeContext, ReadSettings
from holdfast.engine.opening.current_run import (
    OVERLAID_VARIABLE,
    forbid_inside_run,
    refuse_hidden_home,
    refuse_overlaid,
)
from holdfast.engine.opening.home import (
    DIRECTORIES,
    FORK_NOTE,
    INDEX,
    check_root,
    default_home,
    forks_directory,
    make_private,
    own_directories,
    refuse_own,
    workspace_folder,
)
from holdfast.model.clock import SystemClock
from holdfast.model.config.settings import Settings
from holdfast.model.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    RefusedError,
    StorageError,
    room_hint,
)
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.model.ids import new_workspace_id
from holdfast.model.log import Log
from holdfast.model.paths import MERGED, PROMOTION_PREFIX, display, under
from holdfast.store import disk_reserve
from holdfast.store.catalog_records import WorkspaceRow, last_seen_path
from holdfast.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.files.local_tree import LocalTree
    from holdfast.files.scan.overlay_layer import UpperLayer
    from holdfast.files.tree import Tree
    from holdfast.model.clock import Clock
    from holdfast.model.ids import CheckpointId, Hash, WorkspaceId


# Where settings are read: flags, the environment, the workspace's file, the home's file, then defaults.
#
# This is the one place that does. Only files that exist cost anything.

WORKSPACE_FILE = b"holdfast.toml"
HOME_FILE = b"config.toml"
MAX_WORKSPACE_FILE_BYTES = 8 << 10
"""The most that a workspace's file may have. Reading a key takes time with the square of its length: this bounds it."""
MAX_HOME_FILE_BYTES = 64 << 10
"""The most that the home's file may have."""

_VARIABLE = "HOLDFAST_"
_OTHER_VARIABLES = frozenset(
    (
        "HOLDFAST_HOME",
        "HOLDFAST_MESSAGE",
        "HOLDFAST_COMMAND",
        "HOLDFAST_RUN",
        "HOLDFAST_SESSION",
        "HOLDFAST_AGENT",
        "HOLDFAST_HOOK",
        "HOLDFAST_PAGER",
        "HOLDFAST_OVERLAID",
        "HOLDFAST_NATIVE",
        *(f"HOLDFAST_HELD_{name}" for name in ("WORKSPACE", "RUN", "STEP", "TICKET", "KIND", "PATH", "FILES")),
        *("HOLDFAST_HELD_UNTIL", "HOLDFAST_HELD_MESSAGE"),
    )
)
"""Variables that are no settings."""


class SettingsFiles(NamedTuple):
    """The contents of the settings files; None for a missing one."""

    workspace: bytes | None
    home: bytes | None


def read_settings_files(root: bytes | None, home: bytes) -> SettingsFiles:
    """The present contents of the files. Raises `ConfigError` for one that cannot be read."""
    return SettingsFiles(
        None if root is None else _read(root + b"/" + WORKSPACE_FILE, foreign=True),
        _read(home + b"/" + HOME_FILE, foreign=False),
    )


def load_settings(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    root: bytes | None,
    home: bytes,
    files: SettingsFiles | None = None,
) -> Settings:
    """The settings in force for the workspace at ``root``, or (None) for the home alone.

    ``files`` replaces the files' present contents. ``flags`` are values by ``section.key``. The environment has
    ``HOLDFAST_SECTION_KEY``. Missing files and directories are skipped. The workspace's file is not trusted: it may not
    be a link, and some keys are forbidden in it. Raises `ConfigError` with the place, the key and the reason.
    """
    places: list[tuple[str, Mapping[str, object], bool]] = [
        ("the command line", _from_flags(flags), False),
        ("the environment", _from_environment(environ), False),
    ]
    files = read_settings_files(root, home) if files is None else files
    if root is not None:
        places += _parsed(root + b"/" + WORKSPACE_FILE, files.workspace, foreign=True)
    places += _parsed(home + b"/" + HOME_FILE, files.home, foreign=False)
    if not any(values for _, values, _ in places):
        return Settings()
    from holdfast.model.config.layers import Layer, resolve

    return resolve([Layer(*place) for place in places])


def _from_flags(flags: Mapping[str, object]) -> dict[str, dict[str, object]]:
    values: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = value
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Settings from variables that name a section and a key. Raises `ConfigError` for an unknown section, except for
    `_OTHER_VARIABLES`.
    """
    values: dict[str, dict[str, object]] = {}
    for variable, text in environ.items():
        if not variable.startswith(_VARIABLE) or variable in _OTHER_VARIABLES:
            continue
        section, separator, key = variable[len(_VARIABLE) :].lower().partition("_")
        if not separator or section not in Settings._fields:
            raise ConfigError(
                f"the environment: {variable} names no section and key of the settings",
                hint=f"the sections are {', '.join(Settings._fields)}; unset the variable if it is for another program",
            )
        values.setdefault(section, {})[key] = _from_text(f"{section}.{key}", text)
    return values


def _from_text(name: str, text: str) -> object:
    from holdfast.model.config.keys import KEYS

    kind = KEYS[name].kind if name in KEYS else "text"
    if kind in ("patterns", "texts"):
        return [line for line in text.split("\n") if line]
    if kind in ("integer", "ratio"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            return text
    return text


def _parsed(path: bytes, data: bytes | None, *, foreign: bool) -> list[tuple[str, dict[str, object], bool]]:
    if data is None:
        return []
    import tomllib

    origin = display(path)
    try:
        return [(origin, cast("dict[str, object]", tomllib.loads(data.decode())), foreign)]
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{origin}: it is not TOML: {reason[:200]}") from None


def _read(path: bytes, *, foreign: bool) -> bytes | None:
    """The content of the file ``path``, or None if it is missing. A foreign one may not be a link. Never blocks."""
    origin = display(path)
    links, limit = (os.O_NOFOLLOW, MAX_WORKSPACE_FILE_BYTES) if foreign else (0, MAX_HOME_FILE_BYTES)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | links)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{origin}: it cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{origin}: it is not a file")
        data = b""
        while len(data) <= limit and (piece := os.read(fd, limit + 1 - len(data))):
            data += piece
    except OSError as error:
        raise ConfigError(f"{origin}: it cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ConfigError(f"{origin}: it is longer than {limit} bytes")
    return data


_LOG = Log(__name__)
_MOST_NAMED = 3
_LOOKED_BACK = 50
"""Checkpoints in which a workspace's file is looked for when the present one cannot be obeyed."""


class Opener:
    """Knows the home, the environment and the flags; opens the store once and workspaces in it."""

    def __init__(
        self,
        *,
        home: bytes | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        random: Callable[[int], bytes] = os.urandom,
        lenient: bool = False,
        freeing: bool = False,
        nearby: bool = False,
    ) -> None:
        """``nearby``: search a missing workspace for milliseconds instead of seconds, for commands on which a person
        waits; other commands search further.
        """
        self._environ = os.environ if environ is None else environ
        self.home = os.path.abspath(home) if home is not None else default_home(self._environ)
        self._flags = dict(flags or {})
        self._clock: Clock = SystemClock() if clock is None else clock
        self._random = random
        self._lenient = lenient
        self._freeing = freeing
        self._nearby = nearby
        self._store: Store | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that this process was given."""
        return self._environ

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        return self._clock

    @property
    def flags(self) -> Mapping[str, object]:
        """Settings of the caller's, by ``section.key``."""
        return self._flags

    def settings(self, root: bytes | None) -> Settings:
        """The settings in force for a workspace at ``root``, or (None) for the home alone."""
        return load_settings(flags=self._flags, environ=self._environ, root=root, home=self.home)

    def read_settings_of(self, workspace: WorkspaceRow, files: SettingsFiles | None) -> ReadSettings:
        """The settings in force for a workspace whose files hold ``files`` (None: they are read)."""
        try:
            found = load_settings(
                flags=self._flags, environ=self._environ, root=workspace.path, home=self.home, files=files
            )
            return ReadSettings(found, None, None)
        except ConfigError as error:
            try:
                self.settings(None)
            except ConfigError as of_home:  # where that is wrong, nothing goes on
                return ReadSettings(None, of_home, of_home)
            settings, saved = self._as_saved(workspace)
            stead = "the last saved version applies" if saved else "no rules apply in its place"
            wrong = ConfigError(f"{error.message}; {stead}", hint=error.hint)
            if self._lenient:
                return ReadSettings(settings, wrong, None)
            hint = "correct it; commands that read or bring back saved states work without it"
            return ReadSettings(settings, wrong, ConfigError(error.message, hint=error.hint or hint))

    def _as_saved(self, workspace: WorkspaceRow) -> tuple[Settings, bool]:
        """The settings with the last correct saved version of the workspace's file, and True; without it, if none is
        correct.

        Otherwise one mistake in the file would capture the files that it excludes, and a restore could delete them.
        """
        from holdfast.store.manifests import manifest

        store = self.store()
        at = store.catalog.cursor(workspace.id).head
        looked_at: set[Hash] = set()
        with suppress(IntegrityError, StorageError, NotFoundError):
            for _ in range(_LOOKED_BACK):
                if at is None:
                    break
                checkpoint = store.catalog.checkpoint(at)
                at = checkpoint.parent
                entry = manifest.get(store.pages, checkpoint.root, WORKSPACE_FILE)
                if entry is None:
                    break
                if entry.hash in looked_at or entry.is_symlink or entry.size > MAX_WORKSPACE_FILE_BYTES:
                    continue
                looked_at.add(entry.hash)
                with suppress(ConfigError):
                    return load_settings(
                        flags=self._flags,
                        environ=self._environ,
                        root=workspace.path,
                        home=self.home,
                        files=SettingsFiles(store.reader.read(entry.hash), read_settings_files(None, self.home).home),
                    ), True
        return self.settings(None), False

    def store(self) -> Store:
        """The store of the home, opened on first use (and made, mode 0700, if it is missing)."""
        if self._store is None:
            refuse_hidden_home(self.home)
            make_private(self.home)
            try:
                self._store = self._open_store()
            except StorageError:
                if not self._freeing or not disk_reserve.release(self.home):
                    raise
                self._store = self._open_store()
                self._store.save_space()
        return self._store

    def _open_store(self) -> Store:
        return self.open_store()

    def open_store(self, *, claim: bool = True) -> Store:
        """The store of the home once more, for the caller to close: see `Store.open`."""
        return Store.open(self.home, self.settings(None), clock=self._clock, random=self._random, claim=claim)

    def close(self) -> None:
        """Close the store. Harmless a second time."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def init(self, path: bytes, *, force: bool = False, source: CheckpointId | None = None) -> tuple[Context, bool]:
        """Make the directory ``path`` a workspace; returns its context and whether it is new. Idempotent.

        Raises `RefusedError` for an unusual root (see `check_root`), one that is mounted over a workspace
        (``mounted_over``), and the mount point of an unmounted one (``not_mounted``). ``force`` accepts all of them:
        the present directory is the workspace from now on.
        """
        root = check_root(path, home=self.home, user_home=_bytes(self._environ.get("HOME")), force=force)
        store = self.store()
        known = self._known(root, anew=force)
        if known is not None:
            self._refuse_unmounted(known)
            if force:
                identity.remember_own_mount(self._folder(known), root)
            return self._context(known), False
        forbid_inside_run(self.open_home(), "beginning to remember a directory")
        workspace = self._new(root, source)
        try:
            store.catalog.add_workspace(workspace)
        except RefusedError as error:
            if error.code != "exists" or source is not None or (known := self._known(root)) is None:
                raise
            return self._context(known), False  # another process has just begun to
        context = self._context(workspace)
        identity.remember_own_mount(context.folder, root)
        identity.remember_root(context.folder, root)
        _warn_of_workspaces_inside(root, [one.path for one in store.catalog.workspaces() if one.live])
        return context, True

    def open_or_init(self, path: bytes) -> tuple[Context, bool]:
        """`open`; else `init` of ``path``, which is logged. The bool tells whether it is new. Raises as both do."""
        try:
            return self.open(path), False
        except NotFoundError as error:
            if error.code != "no_workspace":
                raise
        context, new = self.init(path)
        if new:
            _LOG.warning(
                "%s was in no workspace: now it is one, as by `holdfast init`", display(context.workspace.path)
            )
        return context, new

    def open(self, path: bytes) -> Context:
        """Open the workspace at ``path`` or at the nearest directory above it; raises `NotFoundError` if there is none.

        A moved directory is recognised by device and inode; a workspace without its directory is found by its former
        path.
        """
        start: bytes = os.path.realpath(path)
        if os.path.isdir(self.home):
            at: bytes = start
            while True:
                known = self._known(at)
                if known is not None:
                    self._refuse_unmounted(known)
                    return self._context(known)
                if at == b"/":
                    break
                at = os.path.dirname(at)
        replaced = b"/" + PROMOTION_PREFIX in start
        raise NotFoundError(
            f"{display(start)} is not in a workspace",
            hint="a promotion has put another directory in the place of this one; `cd .` gets a shell there"
            if replaced
            else "`holdfast init` makes a directory a workspace",
            code="no_workspace",
        )

    def open_known(self, name: WorkspaceId) -> Context:
        """Open a workspace by its id, even without its directory; raises `NotFoundError` if there is none, or another
        workspace has its place.

        A moved directory is searched for. If the workspace had released its checkpoints, it holds them again.
        """
        catalog = self.store().catalog
        record = catalog.workspace(name)
        if not record.live and record.path == last_seen_path(record.path):
            catalog.adopt(name)
        path = last_seen_path(record.path)
        if not os.path.lexists(path):
            from holdfast.engine.opening.missing_workspaces import MOST_LOOKED_AT, NEARBY, find_moved

            most = NEARBY if self._nearby else MOST_LOOKED_AT
            path = find_moved([record], self._folder, most=most).get(name, path)
        known = self._known(path)
        if known is None or known.id != name:
            raise NotFoundError(
                f"the directory of the workspace {name} is not at {display(path)} any more",
                hint="run any command there, and Holdfast knows the new place",
                code="no_workspace",
            )
        self._refuse_unmounted(known)
        return self._context(known)

    def open_as_noted(self, name: WorkspaceId) -> Context:
        """Open a workspace by its id if its path still has the recorded directory. Searches for nothing, and mounts
        and records nothing. Raises `RefusedError` (``not_as_noted``, ``not_mounted``).
        """
        record = self.store().catalog.workspace(name)
        self._refuse_unmounted(record)
        if not record.live or not (self._is_by_mount(record) or identity.is_unchanged(self._folder(record), record)):
            raise RefusedError(
                f"{display(last_seen_path(record.path))} is gone, or is another directory now",
                hint="move it back, or run any command in its new place",
                code="not_as_noted",
            )
        return self._context(record)

    def context_of(self, name: WorkspaceId) -> Context:
        """The workspace of an id for work on its folder in the home, wherever its directory is. Reads no file in the
        directory. Raises `NotFoundError`.
        """
        return self._context(self.store().catalog.workspace(name), (self.settings(None), None))

    def register(self, path: bytes, source: CheckpointId, *, within: bytes) -> Context:
        """Make ``path``, a directory that Holdfast has created, a workspace as a fork of ``source``; an existing
        workspace is opened.

        It may lie in the home. Raises `RefusedError` for a link in the path, which would lead to a foreign directory
        (I7); only components up to ``within``, whose place its owner chooses, may be links.
        """
        root = os.path.realpath(path)
        made = os.path.join(os.path.realpath(within), os.path.relpath(path, within)) if under(path, within) else path
        if root != made:
            raise RefusedError(
                f"{display(path)} leads to {display(root)}, which is no directory of a fork",
                hint="a fork's directory may not be a link; fork again, or by another provider (--provider)",
                code="fork_leads_away",
            )
        known = self._known(root)
        if known is not None:
            return self._context(known)
        workspace = self._new(root, source)
        self.store().catalog.add_workspace(workspace)
        context = self._context(workspace)
        identity.remember_root(context.folder, root)
        return context

    def open_home(self) -> HomeContext:
        """Open the home without any of its workspaces; raises `NotFoundError` if it does not exist yet."""
        if not os.path.isdir(self.home):
            raise NotFoundError(
                f"{display(self.home)} holds no data",
                hint="`holdfast init` makes a directory a workspace; HOLDFAST_HOME and --home name another home",
                code="no_home",
            )
        return HomeContext(self.store(), self.settings(None), self.home)

    def make_fork(self, path: bytes, source: CheckpointId, beside: WorkspaceRow) -> Context:
        """Make the directory ``path`` a workspace, as a fork of ``source``, a checkpoint of ``beside``.

        A directory in which a fork of the same checkpoint was cut short is opened instead. Raises `RefusedError` if it
        has other contents, or if it lies in the workspace ``beside``, which would capture it.
        """
        root = os.path.realpath(path)
        if root == beside.path or root.startswith(beside.path.rstrip(b"/") + b"/"):
            raise RefusedError(
                f"{display(root)} lies in the workspace {display(beside.path)}, which would capture the fork",
                hint="fork into a directory outside of it",
            )
        refuse_own(root, self.home)
        known = self._known(root)
        if known is not None and known.source == source and self._is_half_done(known):
            if not os.path.lexists(root):
                self._make_root(root, beside)
                known = self._known(root) or known
            return self._context(known)
        if known is not None and not os.path.lexists(root):
            raise RefusedError(
                f"{display(root)} is a workspace whose directory is gone",
                hint="`holdfast forget --gone` lets go of all such; or fork into another directory",
            )
        try:
            with os.scandir(root) as inside:
                empty = next(inside, None) is None
        except FileNotFoundError:
            self._make_root(root, beside)
            empty = True
        except OSError as error:
            raise RefusedError(f"cannot fork into {display(root)}: {error.strerror}") from error
        if not empty or known is not None:
            raise RefusedError(
                f"{display(root)} is {'a workspace already' if known is not None else 'not empty'}",
                hint="fork into a directory that does not exist or is empty",
            )
        return self.init(root, source=source)[0]

    def open_fork(self, path: bytes) -> Context:
        """Open the fork by mount with the directory ``path``, whether it is mounted or not.

        Raises `NotFoundError` if there is none.
        """
        real = os.path.realpath(path)
        known = self._known(real) if os.path.isdir(self.home) else None
        if known is None or not self._is_by_mount(known):
            raise NotFoundError(f"{display(real)} is no fork by mount", code="no_fork")
        # Its own settings file does not matter here, and cannot be read while no process serves the mount.
        return self._context(known, (self.settings(None), None))

    def _new(self, root: bytes, source: CheckpointId | None) -> WorkspaceRow:
        """A workspace in the directory ``root`` that is not known yet."""
        about = os.stat(root)
        return WorkspaceRow(
            id=new_workspace_id(self._random),
            path=root,
            device=about.st_dev,
            inode=about.st_ino,
            created_at=self._clock.now(),
            source=source,
            live=True,
        )

    def _is_by_mount(self, workspace: WorkspaceRow) -> bool:
        return os.path.lexists(os.path.join(self._folder(workspace), FORK_NOTE))

    def _refuse_unmounted(self, workspace: WorkspaceRow) -> None:
        if self._is_by_mount(workspace):
            from holdfast.engine.opening.fork_layers import refuse_unmounted

            refuse_unmounted(self._folder(workspace), workspace.path)
        elif os.path.basename(workspace.path) == MERGED and under(workspace.path, os.path.realpath(self.home)):
            from holdfast.snapshot.overlay.layers import refuse_unmounted as refuse_without_layers

            refuse_without_layers(workspace.path)

    def _is_half_done(self, forked: WorkspaceRow) -> bool:
        """True if the fork is without its first checkpoint, or was killed between that and its end."""
        from holdfast.engine.opening.operation_journal import read_operation

        operation = read_operation(self._folder(forked))
        return self.store().catalog.cursor(forked.id).head is None if operation is None else operation.kind == "fork"

    def _make_root(self, root: bytes, beside: WorkspaceRow) -> None:
        """Make a fork's directory with the owner and permissions of its source workspace, if that exists, so that
        private files stay private.
        """
        try:
            from holdfast.files.write.ownership import make_directories

            make_directories(os.path.dirname(root))
            if not os.path.isdir(beside.path):
                make_directories(root)
                return
            about = os.stat(beside.path)
            os.mkdir(root, 0o700)
            if os.geteuid() == 0:
                os.chown(root, about.st_uid, about.st_gid)
            os.chmod(root, os.stat(root).st_mode & 0o7000 | about.st_mode & 0o777)
        except OSError as error:
            raise StorageError(f"cannot make {display(root)}: {error.strerror}", hint=room_hint(error)) from error

    def _known(self, root: bytes, *, anew: bool = False) -> WorkspaceRow | None:
        catalog = self.store().catalog
        found = catalog.find_workspace(root)
        if found is not None and catalog.database.read_only:
            from holdfast.bridge.mount.fuse_device import is_mounted as is_bridged

            if is_bridged(root):
                return found  # inside of a run whose changes come by a mount, which is over the directory itself
        if found is not None and self._is_by_mount(found):
            from holdfast.engine.opening.fork_layers import is_mounted

            if is_mounted(self._folder(found), root):
                return found  # its record is of the directory under the mount
        return identity.recognise_workspace(catalog, self._folder, root, check=partial(self._check_made, anew=anew))

    def _check_made(self, workspace: WorkspaceRow, *, anew: bool) -> None:
        by_mount = self._is_by_mount(workspace)
        identity.check_fork_directory(
            self.store().catalog, self._folder(workspace), workspace, by_mount=by_mount, anew=anew
        )
        if not by_mount:
            self._refuse_unmounted(workspace)

    def _folder(self, workspace: WorkspaceRow) -> bytes:
        return workspace_folder(self.home, workspace)

    def _context(self, workspace: WorkspaceRow, given: tuple[Settings, ConfigError | None] | None = None) -> Context:
        refuse_overlaid(workspace.path, self._environ.get(OVERLAID_VARIABLE))
        folder = self._folder(workspace)
        make_private(os.path.dirname(folder))
        make_private(folder)
        if given is None:
            configuration = _Configuration(self, workspace)
            settings, misconfigured = configuration.read_first()
        else:
            configuration, (settings, misconfigured) = None, given
        context = Context(
            workspace=workspace,
            make_tree=lambda: self._tree(workspace, folder, context.settings),
            store=self.store(),
            settings=settings,
            folder=folder,
            clock=self._clock,
            random=self._random,
            misconfigured=misconfigured,
            configuration=configuration,
        )
        return context

    def _tree(self, workspace: WorkspaceRow, folder: bytes, settings: Settings) -> Tree:
        layer = None
        if self._is_by_mount(workspace):
            from holdfast.engine.opening import fork_layers
            from holdfast.engine.opening.fork_layers import fork_layer, refuse_unmounted

            refuse_unmounted(folder, workspace.path)
            note = fork_layers.read_note(folder)
            layer = None if note is None else fork_layer(self.store(), folder, note)
        return self.tree_at(workspace.path, folder, settings, layer=layer)

    def tree_at(self, path: bytes, folder: bytes, settings: Settings, *, layer: UpperLayer | None = None) -> LocalTree:
        """The tree in the directory ``path`` of any kind, by the rules of ``settings``; its index is in ``folder``."""
        from holdfast.files.git.configuration import GitUser
        from holdfast.files.local_tree import LocalTree

        return LocalTree(
            path,
            index=os.path.join(folder, INDEX),
            modes=os.path.join(folder, DIRECTORIES),
            never=self.never_captured(path, settings),
            capture=settings.capture,
            files=settings.files,
            user=GitUser(_bytes(self._environ.get("HOME")), _bytes(self._environ.get("XDG_CONFIG_HOME"))),
            layer=layer,
        )

    def never_captured(self, path: bytes, settings: Settings) -> list[bytes]:
        """Holdfast's own directories, which no tree in ``path`` captures."""
        own = (*own_directories(self.home, settings), os.path.realpath(forks_directory(self.home, settings)))
        # A snapshot provider's tree may lie in the home; excluding the home would exclude all of it.
        return [one for one in own if not under(path, one)]


_TICK = 2_000_000_000
"""Nanoseconds between two times that any file system tells apart."""


class _Configuration:
    """The files of one workspace; see `holdfast.engine.opening.context.Configuration`.

    Their contents are compared only after `stat` shows a change, so the check is cheap for every operation.
    """

    def __init__(self, opener: Opener, workspace: WorkspaceRow) -> None:
        self._opener = opener
        self._workspace = workspace
        self._known: SettingsFiles | None = None
        self._seen: tuple[tuple[int, ...], ...] | None = None
        """The `stat` results before they were read; None if a later write could leave them the same."""

    def read_first(self) -> tuple[Settings, ConfigError | None]:
        """The settings for opening the workspace, and the error in its file if it is opened leniently. Raises
        `ConfigError`.
        """
        found = self._read(self._held())
        if found.settings is None or found.refusal is not None:
            assert found.refusal is not None
            raise found.refusal
        return found.settings, found.wrong

    def read_changed(self) -> ReadSettings | None:
        """See `Configuration.read_changed`."""
        if self._seen is not None and self._seen == self._look():
            return None
        held = self._held()
        return None if held is not None and held == self._known else self._read(held)

    def configure(self, tree: Tree, settings: Settings) -> None:
        """See `Configuration.configure`."""
        from holdfast.files.local_tree import LocalTree

        assert isinstance(tree, LocalTree)  # an opener makes no others
        never = self._opener.never_captured(self._workspace.path, settings)
        tree.configure(capture=settings.capture, files=settings.files, never=never)

    def _held(self) -> SettingsFiles | None:
        """The contents of the files; None if one cannot be read."""
        seen, now = self._look(), time.time_ns()
        # A file that was changed just now may change again within the same clock tick.
        self._seen = None if any(about and max(about[-2:]) + _TICK > now for about in seen) else seen
        try:
            return read_settings_files(self._workspace.path, self._opener.home)
        except ConfigError:
            self._seen = None
            return None

    def _look(self) -> tuple[tuple[int, ...], ...]:
        """The `stat` results of the files; empty for one that is missing or inaccessible."""
        found: list[tuple[int, ...]] = []
        for directory, name in ((self._workspace.path, WORKSPACE_FILE), (self._opener.home, HOME_FILE)):
            try:
                about = os.stat(directory + b"/" + name, follow_symlinks=name == HOME_FILE)
            except OSError:
                found.append(())
            else:
                found.append(
                    (about.st_dev, about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
                )
        return tuple(found)

    def _read(self, held: SettingsFiles | None) -> ReadSettings:
        found = self._opener.read_settings_of(self._workspace, held)
        self._known = held
        return found


def _bytes(text: str | None) -> bytes | None:
    return os.fsencode(text) if text else None


def _warn_of_workspaces_inside(root: bytes, known: Sequence[bytes]) -> None:
    inside = [path for path in known if path != root and under(path, root)]
    if inside:
        more = f", and {len(inside) - _MOST_NAMED} more" if len(inside) > _MOST_NAMED else ""
        _LOG.warning(
            "%s holds other workspaces, whose files are saved with it too: %s%s; a line in .checkpointignore leaves "
            "one out",
            display(root),
            ", ".join(map(display, inside[:_MOST_NAMED])),
            more,
        )
