"""The public API of a whole home: operations on everything in it, across its workspaces."""

from __future__ import annotations

import os

from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.opening.opener import Opener
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from holdfast.engine.forks.mount_server_client import MountServer
    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.command_results import Forgotten, Log
    from holdfast.model.content import Progress
    from holdfast.store.catalog.usage_statistics import Stats
    from holdfast.store.collection.collector import Collected
    from holdfast.store.verification.verifier import Verified


class StoreFace:
    """Common base of an open workspace and an open home: close, collect and verify."""

    def __init__(self, opener: Opener, shared: StoreContext) -> None:
        self._opener = opener
        self._shared = shared

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Harmless a second time."""
        self._opener.close()

    def gc(
        self,
        *,
        grace: float | None = None,
        recount: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Collected:
        """Delete what nothing has needed for ``grace`` seconds (None: ``gc.grace``). Interruptible at any point
        (I11). Every 30 days, and with ``recount``, counts that have drifted are corrected first. ``dry_run`` says what
        would go, and deletes nothing.
        """
        forbid_inside_run(self._shared, "a collection")
        from holdfast.engine.upkeep.housekeeping import collect

        return collect(self._shared, grace=grace, recount=recount, dry_run=dry_run, progress=progress)

    def verify(self, *, read_data: bool = False, progress: Progress | None = None) -> Verified:
        """Verify the store; ``read_data`` reads and hashes every stored byte. Reports what is damaged."""
        from holdfast.engine.upkeep.housekeeping import verify

        return verify(self._shared, read_data=read_data, progress=progress)


class WorkspaceFace(StoreFace):
    """A `StoreFace` that has a workspace. Base of the parts of its public face."""

    def __init__(self, opener: Opener, context: Context) -> None:
        super().__init__(opener, context)
        self._context = context


def context_of(workspace: WorkspaceFace) -> Context:
    """The context of an open workspace, for the packages of the engine above it."""
    return workspace._context  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no part of the public API


def open_home(
    home: str | bytes | os.PathLike[str] | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    freeing: bool = False,
) -> Home:
    """Open the home alone. It needs no workspace.

    ``home`` is the directory that holds everything (default: ``$HOLDFAST_HOME``, else the XDG data directory). Raises
    `NotFoundError` if it does not exist yet. ``freeing`` as in `open`.
    """
    opener = Opener(home=None if home is None else os.fsencode(home), flags=flags, freeing=freeing)
    try:
        return Home(opener)
    except BaseException:
        opener.close()
        raise


class Home(StoreFace):
    """All that is kept. Use it as a context manager, or `close` it. For one thread; see `Workspace` for processes."""

    def __init__(self, opener: Opener) -> None:
        self._context = opener.open_home()
        super().__init__(opener, self._context)

    @property
    def path(self) -> bytes:
        """Where everything is kept."""
        return self._opener.home

    def log(self, limit: int | None = None) -> Log:
        """The checkpoints of all workspaces, newest first. ``limit`` is a number from 0; None means all."""
        from holdfast.engine.history.queries import log_of_home

        return log_of_home(self._context, limit)

    def cat(self, name: str, path: str | bytes) -> Iterator[bytes]:
        """As `Workspace.cat`, by id or a unique prefix."""
        from holdfast.engine.history.queries import cat
        from holdfast.engine.history.revisions import resolve_id

        return cat(self._context, resolve_id(self._context, name), os.fsencode(path))

    def forget_gone(self, *, dry_run: bool = False) -> Forgotten:
        """Drop the workspaces whose directories were deleted, and their checkpoints.

        Checkpoints that others depend on stay. Before this call, a deleted workspace can be brought back by `restore`
        at its path.
        """
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.upkeep.forget_checkpoints import forget_gone

        return forget_gone(self._context, dry_run=dry_run)

    def mount_fork(self, directory: str | bytes | os.PathLike[str], *, server: MountServer | None = None) -> bytes:
        """Mount a fork of ``Workspace.fork(mount=True)`` again. It has all its changes.

        Returns its real path. A process of its own serves it, until `unmount`; ``server`` as in `Workspace.fork`.
        Raises `NotFoundError` if it is no such fork, `RefusedError` if it is mounted already or its directory is no
        longer empty.
        """
        forbid_inside_run(self._context, "a mount")
        from holdfast.engine.forks.mounted_forks import mount_again

        return mount_again(self._opener, os.fsencode(directory), server)

    def unmount(self, directory: str | bytes | os.PathLike[str]) -> bytes:
        """Unmount a fork or a checkpoint. Returns its real path. A fork's changes are kept.

        Raises `RefusedError` while a process uses it, `NotFoundError` if nothing of Holdfast is mounted there.
        """
        forbid_inside_run(self._context, "an unmount")
        from holdfast.engine.forks.mounted_forks import unmount

        return unmount(self._opener, os.fsencode(directory))

    def materialise(self, directory: str | bytes | os.PathLike[str]) -> bytes:
        """Turn a fork by mount into a plain directory, with uncaptured files. Returns its real path.

        Raises `RefusedError` while a process uses it, `StorageError` if there is no room; it is a fork as before then.
        """
        forbid_inside_run(self._context, "a fork")
        from holdfast.engine.forks.mounted_forks import materialise

        return materialise(self._opener, os.fsencode(directory))

    def stats(self) -> Stats:
        """Used space."""
        from holdfast.engine.upkeep.housekeeping import stats_of_home

        return stats_of_home(self._context)
