"""Exports: workspaces that are served, each under a name, and access to their trees.

Access is a port (`ExportTree`): a local directory needs nothing else; another kind, as in a guest, has an agent for it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol

from holdfast.engine.opening.home import forks_directory
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.command_results import ForkResult
from holdfast.model.errors import (
    EscapeError,
    NotFoundError,
    RefusedError,
    StorageError,
    UsageError,
    room_hint,
)
from holdfast.model.paths import PROMOTION_PREFIX, display
from holdfast.store.catalog.export_rows import ExportRow, ExportRows
from holdfast.store.catalog.token_rows import TokenRows
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opener import Opener
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.content import Progress
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.store.catalog.export_rows import Kind, Mode

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?|")
_SYSTEM = (b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib64", b"/etc", b"/dev", b"/proc", b"/sys")
"""Without which nothing runs."""
NAME_PATTERN = f"^{_NAME.pattern}$"


class ExportTree(Protocol):
    """How the tree of an export is reached."""

    def open(self, opener: Opener, workspace: WorkspaceId) -> Context:
        """The workspace, opened. Raises `NotFoundError` if it is not where it was."""
        ...


class DirectoryTree:
    """A directory of this machine."""

    def open(self, opener: Opener, workspace: WorkspaceId) -> Context:
        """See `ExportTree.open`. A deleted directory can be opened: a restore makes it anew."""
        return opener.open_known(workspace)


TREES: Mapping[Kind, ExportTree] = {"directory": DirectoryTree()}


class Exports:
    """The exports of one tenant: those of the store that ``opener`` opens. For one thread at a time."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._catalog = opener.store().catalog
        self.rows = ExportRows(self._catalog)

    # -- which there are ----------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        path: bytes | None = None,
        *,
        roots: Sequence[bytes] | None = None,
        project: str = "",
        auto: bool = True,
        mode: Mode = "development",
    ) -> ExportRow:
        """Serve the directory ``path`` under ``name``; it becomes a workspace if it is none. Without ``path`` an empty
        directory is made (`own_directory`).

        ``roots``: it must be in one of these (None: anywhere), after links are resolved. Raises `EscapeError` if it is
        not, `RefusedError` for an unusual directory, or one that another tenant serves, and as `ExportRows.add`.
        """
        check_name(name)
        check_project(project)
        self._refuse_taken(name)
        if path is None:
            real = self._make_directory(name)
        else:
            real = self._existing_directory(path, roots)
        return self._add(name, self._workspace_at(real), project, auto=auto, mode=mode)

    def get(self, name: str) -> ExportRow:
        """One of them; raises `NotFoundError`."""
        return self.rows.get(name)

    def configure(
        self,
        name: str,
        *,
        path: bytes | None = None,
        roots: Sequence[bytes] | None = None,
        project: str | None = None,
        auto: bool | None = None,
        mode: Mode | None = None,
    ) -> ExportRow:
        """Change the given properties; returns the new row. ``path`` and ``roots`` as in `create`: its directory from
        now on. The former directory's checkpoints stay, and belong to no export. Raises as `ExportRows.put`, and with
        ``path`` as `create`.
        """
        row = self.rows.get(name)
        new = row._replace(
            workspace=row.workspace if path is None else self._workspace_at(self._existing_directory(path, roots)),
            project=row.project if project is None else check_project(project),
            auto=row.auto if auto is None else auto,
            mode=row.mode if mode is None else mode,
        )
        return row if new == row else self.rows.put(new)

    def remove(self, name: str) -> ExportRow:
        """Serve it no more. The directory, and all that is saved of it, stay."""
        return self.rows.remove(name)

    def path_of(self, row: ExportRow) -> bytes:
        """Where its directory was last seen."""
        return last_seen_path(self._catalog.workspace(row.workspace).path)

    # -- one of them --------------------------------------------------------------------------------------------

    def context(self, row: ExportRow) -> Context:
        """The context of the use-cases. Raises as `ExportTree.open`, and `RefusedError` if another tenant serves it."""
        self._refuse_link(self.path_of(row))
        context = TREES[row.kind].open(self._opener, row.workspace)
        # A moved directory may overlap another tenant's.
        self._refuse_overlapping(context.workspace.path)
        return context

    def open(self, row: ExportRow) -> Workspace:
        """The workspace; it is closed with the ``opener``, and not by itself. Raises as `context`."""
        return Workspace(self._opener, self.context(row))

    def hidden_from(self, row: ExportRow, names: Sequence[str]) -> list[bytes]:
        """The directories that commands in ``row`` must not see if they run for ``names`` alone (empty: for any export
        of the tenant): those of other tenants, served or not, and of this one's other exports (I10). Directories in
        ``row`` itself are its own.
        """
        own = [self.path_of(one) for one in self.rows.list() if one.name not in names] if names else []
        at = self.path_of(row)
        found = [*map(last_seen_path, self.rows.other_tenants_roots()), *own]
        return [path for path in found if path != at and not _below(path, at)]

    def future_roots(self, row: ExportRow, names: Sequence[str]) -> list[bytes]:
        """The directories in which later exports could be made that `hidden_from` would then name, as far as they can
        be hidden from commands in ``row``: directories with programs cannot.
        """
        at = self.path_of(row)
        # For a missing directory, its nearest existing parent: only an existing one can be hidden.
        found = {_existing(os.path.realpath(root)) for root in TokenRows(self._catalog).roots(own=bool(names))}
        return [
            root for root in sorted(found) if root not in (b"/", at) and not _below(root, at) and not _is_system(root)
        ]

    def roots_of_others(self, row: ExportRow, roots: Sequence[bytes]) -> list[bytes]:
        """The directories below which only other tenants may make exports, and that have contents other than this
        tenant's: though not served, these are the others' to serve. ``roots`` are the places where the client may make
        exports as well. Directories with programs belong to all.
        """
        at = self.path_of(row)
        allowed = [os.path.realpath(root) for root in roots]
        mine = [self.made_at, self._opener.home, *map(self.path_of, self.rows.list())]
        found = {os.path.realpath(root) for root in TokenRows(self._catalog).roots(own=False)}
        return [
            root
            for root in sorted(found)
            if root not in (b"/", at)
            and not _is_system(root)
            and not any(root == one or _below(root, one) for one in (*allowed, at))
            and _holds_more(root, mine)
        ]

    @property
    def made_at(self) -> bytes:
        """The directory of all directories that Holdfast has made, of all tenants, including deleted exports'."""
        return forks_directory(self._opener.home, self._opener.settings(None))

    def fork(
        self,
        row: ExportRow,
        checkpoint: str,
        name: str,
        path: bytes | None = None,
        *,
        roots: Sequence[bytes] | None = None,
        project: str | None = None,
        auto: bool = True,
        progress: Progress | None = None,
    ) -> tuple[ExportRow, ForkResult]:
        """Write a checkpoint out as an export of its own, called ``name``; ``path`` and ``roots`` as in `create`.

        After an interruption, the same call finishes it. Raises as `create` and `Workspace.fork`.
        """
        check_name(name)
        self._refuse_taken(name)
        real = self.own_directory(name) if path is None else self._allowed(path, roots)
        self._refuse_overlapping(real)
        done = self.open(row).fork(checkpoint, real, progress=progress)
        belongs = row.project if project is None else check_project(project)
        return self._add(name, done.workspace, belongs, auto=auto, mode="development"), done

    def finished_fork(self, row: ExportRow, checkpoint: str, name: str) -> ForkResult | None:
        """The export ``name``, if it is a fork of this checkpoint that was just made, for who was not told."""
        try:
            forked = self._catalog.workspace(self.rows.get(name).workspace)
        except NotFoundError:
            return None
        source = self.open(row).resolve(checkpoint)
        line = self._catalog.checkpoints(forked.id)
        if forked.source != source or not line:
            return None
        return ForkResult(forked.id, last_seen_path(forked.path), line[-1].id, source, line[-1].total_files)

    def own_directory(self, name: str) -> bytes:
        """Where the directory of an export is made if no place was given."""
        forks = forks_directory(self._opener.home, self._opener.settings(None))
        return os.path.join(forks, b"exports", self._catalog.name.encode(), name.encode())

    # -- checkpoints --------------------------------------------------------------------------------------------

    def of_checkpoint(self, checkpoint: CheckpointId) -> tuple[Checkpoint, ExportRow]:
        """A checkpoint, by its complete id, with the export of its workspace: checkpoints of unserved workspaces are
        hidden. Raises the same `NotFoundError` for them as for a missing one.
        """
        missing = NotFoundError(f"there is no checkpoint {checkpoint}", code="no_checkpoint")
        try:
            found = self._catalog.checkpoint(checkpoint)
        except NotFoundError:
            raise missing from None
        row = self.rows.of_workspace(found.workspace)
        if row is None:
            raise missing
        return found, row

    # -- helpers ------------------------------------------------------------------------------------------------

    def _add(self, name: str, workspace: WorkspaceId, project: str, *, auto: bool, mode: Mode) -> ExportRow:
        now = self._opener.clock.now()
        row = ExportRow(name, "directory", workspace, project, auto, mode, now)
        self.rows.add(row)
        return row

    def _refuse_taken(self, name: str) -> None:
        try:
            self.rows.get(name)
        except NotFoundError:
            return
        raise RefusedError(f"there is an export {name}", hint="choose another name", code="export_exists")

    def _refuse_overlapping(self, real: bytes) -> None:
        if self.rows.overlapping(real):
            raise RefusedError(
                f"{display(real)} cannot be served: it belongs to another user",
                code="not_yours",
                hint="name a directory of your own",
            )

    def _refuse_link(self, path: bytes) -> None:
        """Raise `EscapeError` if a link is now where the directory was, or on the way to it (I7).

        A link that is put there later is stopped where the tree is opened, by what follows no link.
        """
        if os.path.lexists(path) and os.path.realpath(path) != path:
            raise EscapeError(f"{display(path)} is reached by a link now; that is not followed", code="linked")

    def _allowed(self, path: bytes, roots: Sequence[bytes] | None) -> bytes:
        """The real path, if it lies below one of ``roots``."""
        if not path.startswith(b"/") or b"\0" in path:
            raise EscapeError(f"refused path {display(path)!r}: it is not absolute", hint="begin it with /")
        real: bytes = os.path.realpath(path)
        if roots is not None and not any(_below(real, os.path.realpath(root)) for root in roots):
            raise EscapeError(
                f"refused path {display(path)!r}: this token may serve nothing there",
                hint="leave the path out, and Holdfast makes a directory; or use a token with that root",
                code="outside_roots",
            )
        return real

    def _existing_directory(self, path: bytes, roots: Sequence[bytes] | None) -> bytes:
        real = self._allowed(path, roots)
        if not os.path.isdir(real):
            raise NotFoundError(f"{display(path)} is not a directory", hint="name one that exists", code="no_path")
        return real

    def _workspace_at(self, real: bytes) -> WorkspaceId:
        """The workspace in this directory; a directory that is none becomes one."""
        self._refuse_overlapping(real)
        context, _ = self._opener.init(real)
        return context.workspace.id

    def _make_directory(self, name: str) -> bytes:
        from holdfast.files.write.ownership import make_directories

        path = self.own_directory(name)
        if os.path.lexists(path):
            raise RefusedError(
                f"{display(path)} is there already: an export of this name was deleted",
                hint="name it by its path, or choose another name",
                code="exists",
            )
        try:
            make_directories(os.path.dirname(path))
            os.mkdir(path, 0o700)
        except OSError as error:
            raise StorageError(f"cannot make {display(path)}: {error.strerror}", hint=room_hint(error)) from error
        return os.path.realpath(path)


def check_name(name: str) -> str:
    """``name`` if an export may have it; raises `UsageError`."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"an export cannot be called {name[:80]!r}", hint="1 to 64 letters, digits, _, -, and . between others"
        )
    return name


def check_project(project: str) -> str:
    """``project`` if it may be one; raises `UsageError`."""
    if not _PROJECT.fullmatch(project):
        raise UsageError(
            f"a project cannot be called {project[:80]!r}", hint="1 to 128 letters, digits, _, -, and . between others"
        )
    return project


def _existing(path: bytes) -> bytes:
    return path if os.path.isdir(path) else _existing(os.path.dirname(path))


def _holds_more(root: bytes, known: Sequence[bytes]) -> bool:
    """Whether a directory has contents other than ``known`` and the directories that lead to them."""
    try:
        names = os.listdir(root)
    except OSError:
        return False  # missing or unreadable
    paths = [os.path.join(root, name) for name in names if not name.startswith(PROMOTION_PREFIX)]
    return any(
        _holds_more(path, known) if any(_below(one, path) for one in known) else path not in known for path in paths
    )


def _is_system(path: bytes) -> bool:
    return any(path == top or _below(path, top) or _below(top, path) for top in _SYSTEM)


def _below(path: bytes, root: bytes) -> bool:
    return path.startswith(root.rstrip(b"/") + b"/")
