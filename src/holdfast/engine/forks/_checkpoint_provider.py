"""The engine's part of the snapshot provider `holdfast.snapshot.checkpoints`: see `Checkpoints` there.

Nothing stays open between two calls, so any thread and any process can make them.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.bridge.mount import fuse_device
from holdfast.bridge.mount.overlayfs import detach_overlays
from holdfast.engine.forks.fork import fork
from holdfast.engine.forks.mount_server_client import MountOrder, MountServer
from holdfast.engine.forks.mounted_forks import fork_mounted, mount_again
from holdfast.engine.forks.unmount_to_directory import discard
from holdfast.engine.history.checkpoint import create_checkpoint_locked
from holdfast.engine.history.mount_pins import release_dead_pins
from holdfast.engine.opening.context import retry_with_reserve
from holdfast.engine.opening.current_run import current_run
from holdfast.engine.opening.fork_layers import claim_layers
from holdfast.engine.opening.opener import Opener
from holdfast.files.directories.removal_obstacles import refuse_others
from holdfast.files.directories.replication import make_read_only, remove_whole
from holdfast.model.checkpoint import Provenance
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import NotFoundError, RefusedError, UnsupportedError
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.snapshot.checkpoints import KEEPER, CheckpointSupport
from holdfast.snapshot.copied_repositories import keep_apart
from holdfast.snapshot.private_directories import make_private
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.opening.context import Context, HomeContext
    from holdfast.model.clock import Clock
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog_records import WorkspaceRow

_LOG = Log(__name__)
_TREE: Final = b"tree"
"""The working directory, inside one that is made and removed around it: a removed directory cannot be mounted on."""
_SECONDS: Final = 5.0
"""Time for a mount's server to end after the unmount."""
_PAUSE: Final = 0.005
_TRIES: Final = 10


class OwnCheckpoints:
    """See `holdfast.snapshot.checkpoints.Checkpoints`."""

    def __init__(
        self,
        workspace: WorkspaceRow,
        *,
        home: bytes,
        directory: bytes,
        clock: Clock,
        random: Callable[[int], bytes],
        mounts: bool = True,
    ) -> None:
        """For ``workspace``; ``directory`` is where forks of all workspaces lie. Without ``mounts`` everything is
        written out. Makes nothing.
        """
        self._workspace = workspace
        self._home = home
        self._directory = os.path.join(os.path.realpath(directory), workspace.id.encode())
        self._clock = clock
        self._random = random
        self._mounts = mounts

    def detect(self) -> CheckpointSupport:
        """See `Checkpoints.detect`."""
        with self._opened() as home:
            run = current_run(home)
            if run is not None:
                return CheckpointSupport(f"a supervised process, in the run {run}, makes no snapshots")
            if home.store.catalog.database.read_only:
                return CheckpointSupport("the home can only be read here")
        if under(self._directory, self._workspace.path):
            where = display(os.path.dirname(self._directory))
            return CheckpointSupport(
                f"forks would lie in the workspace, in {where}, unless snapshot.directory names another place"
            )
        why_not = self._lacking()
        return CheckpointSupport(mounts=not why_not, why_not=why_not)

    def directory(self) -> bytes:
        """See `Checkpoints.directory`."""
        return self._directory

    def where_to_work(self, place: bytes) -> bytes:
        """See `Checkpoints.where_to_work`."""
        return os.path.join(place, _TREE)

    def take(self, place: bytes | None, keeper: str, message: str) -> str:
        """See `Checkpoints.take`."""
        with self._opener() as opener:
            context = opener.open(self._workspace.path) if place is None else self._fork(opener, place)
            request = CheckpointRequest(kind="auto", provenance=Provenance(message=message or keeper))
            with context.lock():  # until the pin exists, the checkpoint is safe as the workspace's own
                checkpoint = create_checkpoint_locked(context, request).checkpoint
                context.catalog.pin(checkpoint.root, keeper, checkpoint=checkpoint.id)
            return checkpoint.id

    def fork(self, checkpoint: str, place: bytes) -> None:
        """See `Checkpoints.fork`."""
        self._make(checkpoint, place, mounted=self._mounts)

    def make_view(self, checkpoint: str, place: bytes) -> None:
        """See `Checkpoints.make_view`."""
        if self._mounts:
            make_private(place)
            keep_apart(place)
            order = MountOrder(self._home, self._workspace.path, self.where_to_work(place), checkpoint)
            try:
                with MountServer() as server:
                    server.mount(order)
                return
            except UnsupportedError as error:
                _LOG.info("%s is written out, as it cannot be mounted: %s", display(place), error.message)
        forked = self._make(checkpoint, place, mounted=False)
        with self._opened() as home:
            _forget_fork(home, forked)
        make_read_only(forked.path)

    def resume(self, place: bytes) -> None:
        """See `Checkpoints.resume`."""
        with self._opener() as opener:
            self._fork(opener, place)

    def remove(self, place: bytes) -> None:
        """See `Checkpoints.remove`."""
        path = self.where_to_work(place)
        with self._opened() as home:
            known = home.store.catalog.find_workspace(path)
            served = None
            try:
                if known is None:
                    _unmount(path)
                else:
                    served = _end(home.folder_of(known), path)
                    _forget_fork(home, known)
                _wait_for_view(home, path)
                _remove(place, path)
            finally:
                if served is not None:
                    os.close(served)
            self._forget_unused(home)
        for empty in (self._directory, os.path.dirname(self._directory)):
            with suppress(OSError):  # there are others in it; or a process that was killed here had removed it
                os.rmdir(empty)

    def release(self, keeper: str) -> None:
        """See `Checkpoints.release`."""
        with self._opened() as home:
            retry_with_reserve(home, partial(home.store.catalog.unpin_all, keeper))
            # Also without a pin: the process that removed it may have been killed.
            self._forget_unused(home)

    def release_all(self) -> None:
        """See `Checkpoints.release_all`."""
        with self._opened() as home:
            catalog = home.store.catalog
            for checkpoint, reasons in catalog.protections().items():
                keepers = [reason.by for reason in reasons if reason.kind == "pin" and KEEPER.match(reason.by)]
                if keepers and self._is_in_ours(catalog, checkpoint):
                    for keeper in keepers:
                        retry_with_reserve(home, partial(catalog.unpin_all, keeper))
            self._forget_unused(home)

    # -- the rest -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _opener(self) -> Generator[Opener]:
        opener = Opener(home=self._home, clock=self._clock, random=self._random)
        try:
            yield opener
        finally:
            opener.close()

    @contextmanager
    def _opened(self) -> Generator[HomeContext]:
        with self._opener() as opener:
            yield opener.open_home()

    def _lacking(self) -> str:
        """Why forks cannot be mounted, as far as that is known without trying; else empty."""
        if not self._mounts:
            return "they are not to be mounted"
        if os.geteuid():
            return "mounting them needs root, or a namespace in which you are"
        if not os.access(fuse_device.DEVICE, os.R_OK | os.W_OK):
            return f"there is no access to {fuse_device.DEVICE}"
        with open("/proc/filesystems", encoding="ascii") as file:
            if not any(line.split()[-1] == "overlay" for line in file):
                return "the kernel has no overlayfs loaded"
        return ""

    def _make(self, checkpoint: str, place: bytes, *, mounted: bool) -> WorkspaceRow:
        source = CheckpointId(checkpoint)
        with self._opener() as opener:
            context = opener.open(self._workspace.path)
            make_private(place)
            keep_apart(place)

            def open_fork() -> Context:
                return opener.make_fork(self.where_to_work(place), source, context.workspace)

            if mounted:
                try:
                    return opener.store().catalog.workspace(fork_mounted(context, source, open_fork).workspace)
                except UnsupportedError as error:
                    _LOG.info("%s is written out, as it cannot be mounted: %s", display(place), error.message)
            return opener.store().catalog.workspace(fork(context, source, open_fork).workspace)

    def _fork(self, opener: Opener, place: bytes) -> Context:
        path = self.where_to_work(place)
        try:
            context = opener.open(path)
        except RefusedError as error:
            if error.code != "not_mounted":
                raise
            mount_again(opener, path)
            context = opener.open(path)
        if context.workspace.path != path:
            raise NotFoundError(f"{display(path)} is no fork any more", hint="prepare it again")
        return context

    def _forget_unused(self, home: HomeContext) -> None:
        """Forget the checkpoints of deleted forks, except those that others depend on."""
        catalog = home.store.catalog
        gone = [one for one in catalog.workspaces() if not one.live and self._is_ours(one)]
        if not gone:
            return
        release_dead_pins(home)
        protected = catalog.protections()
        for workspace in gone:
            for checkpoint in catalog.checkpoints(workspace.id):
                if not any(reason.hard for reason in protected.get(checkpoint.id, ())):
                    with suppress(RefusedError):  # something came to depend on it just now
                        retry_with_reserve(home, partial(catalog.forget, (checkpoint.id,)))

    def _is_in_ours(self, catalog: Catalog, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint is the workspace's, or of a fork or a view of this provider."""
        try:
            of = catalog.workspace(catalog.checkpoint(checkpoint).workspace)
        except NotFoundError:  # another process has forgotten it just now, as one that deletes another fork
            return False
        return of.id == self._workspace.id or self._is_ours(of)

    def _is_ours(self, workspace: WorkspaceRow) -> bool:
        """True for a fork or a view of this provider, wherever it was made."""
        parts = last_seen_path(workspace.path).split(b"/")
        return parts[-1] == _TREE and parts[-3:-2] == [self._workspace.id.encode()]


def _forget_fork(home: HomeContext, forked: WorkspaceRow) -> None:
    """Delete everything of an unserved fork except its checkpoints. Its record goes last, so that after a kill the next
    process finds it and repeats this.
    """
    retry_with_reserve(home, partial(discard, home, forked))
    remove_whole(home.folder_of(forked))
    retry_with_reserve(home, partial(home.store.catalog.let_go, forked.id))


def _unmount(path: bytes) -> None:
    """Detach our mount on ``path``, so that no new process sees it. Raises `RefusedError` (``mounted_over``) if another
    file system is mounted there.
    """
    refuse_others(path)
    fuse_device.detach(path, helped=os.geteuid() != 0)
    if os.geteuid() == 0:
        detach_overlays(path)


def _remove(place: bytes, path: bytes) -> None:
    """Remove the directory of a fork or a view, also while its mount server starts or ends."""
    for left in reversed(range(_TRIES)):
        _unmount(path)
        try:
            remove_whole(place)
            return
        except OSError:
            if not left:
                raise
        time.sleep(_PAUSE)


def _end(folder: bytes, path: bytes) -> int | None:
    """Unmount a fork, and keep other processes from serving it while the returned descriptor is open.

    None if its folder is gone, or a process uses the mount: that process goes on, with the files that the kernel still
    has.
    """
    _unmount(path)
    deadline = time.monotonic() + _SECONDS  # unmounting writes all of a disk back, which may have taken longer
    while os.path.isdir(folder):
        lock = claim_layers(folder)
        if lock is not None:
            _unmount(path)
            return lock
        if time.monotonic() > deadline:
            _LOG.warning(
                "%s was removed while its mount is still in use, by a process inside it or in "
                "another mount namespace, such as a container",
                display(path),
            )
            return None
        _unmount(path)
    return None


def _wait_for_view(home: HomeContext, path: bytes) -> None:
    """Wait until the process that served a view has released its checkpoint, unless another one still uses it."""
    reason = f"mounted on {display(path)}"
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        protections = home.store.catalog.protections().values()
        if not any(one.by == reason for reasons in protections for one in reasons):
            return
        release_dead_pins(home)
        time.sleep(_PAUSE)
    _LOG.info("the process that serves %s continues: another process still uses the mount", display(path))
