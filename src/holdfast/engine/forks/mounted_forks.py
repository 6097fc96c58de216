"""Forks by mount: made in the time of a mount, mounted again, unmounted, and made plain directories."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.bridge.mount.overlayfs import attributes_for, refuse_without_privilege, unmount_overlay
from holdfast.engine.forks._file_ownership import shown_ownership
from holdfast.engine.forks.mount_server_client import MountOrder, MountServer, given_or_started
from holdfast.engine.history.tree_copy import create_first_checkpoint
from holdfast.engine.opening import fork_layers
from holdfast.engine.opening.fork_layers import ForkNote, is_mounted, is_served, make_layers
from holdfast.files.write.ownership import make_directories
from holdfast.model.command_results import ForkResult
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opener import Opener
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId

_LOG = Log(__name__)
_SECONDS: Final = 10.0
"""Time for a server to end when nothing is mounted any more."""
_PAUSE: Final = 0.005


def fork_mounted(
    context: Context, source: CheckpointId, open_fork: Callable[[], Context], server: MountServer | None = None
) -> ForkResult:
    """Make ``source`` a writable workspace without writing it out, in the directory that ``open_fork`` makes.

    Changes are stored in the home, and are as durable as that; a process of its own serves the other files until the
    unmount. Raises `UnsupportedError`, and leaves nothing, where it cannot be mounted. After an interruption, the same
    call finishes it. ``server`` is one that was started early, if any.
    """
    refuse_without_privilege()
    with given_or_started(server) as serving:
        taken_from = context.catalog.checkpoint(source)
        forked = open_fork()
        with forked.lock():
            note = fork_layers.read_note(forked.folder)
            made = note is None
            if note is None:
                note = _begin(forked, taken_from)
            if not (is_mounted(forked.folder, forked.workspace.path) and is_served(forked.folder)):
                try:
                    serving.mount(_order(forked))
                except HoldfastError:
                    if made:
                        _take_back(forked)
                    raise
            first = create_first_checkpoint(forked, taken_from)
    return ForkResult(forked.workspace.id, forked.workspace.path, first, source, 0, mounted=True)


def mount_again(opener: Opener, directory: bytes, server: MountServer | None = None) -> bytes:
    """Mount a fork again, with all its changes; its real path. Raises `NotFoundError` if it is no fork."""
    context = opener.open_fork(directory)
    with context.lock():
        path = context.workspace.path
        note = _note(context)
        if fork_layers.is_plain_directory(note, path):
            from holdfast.engine.forks import unmount_to_directory

            unmount_to_directory.finish(context, note)
            raise RefusedError(f"{display(path)} is a plain directory now: there is nothing to mount")
        refuse_without_privilege()
        if is_mounted(context.folder, path):
            if is_served(context.folder):
                raise RefusedError(f"{display(path)} is mounted already", code="is_mounted")
            unmount_overlay(path)
        _make_mount_point(path, note)
        with given_or_started(server) as serving:
            serving.mount(_order(context))
        return path


def unmount(opener: Opener, directory: bytes) -> bytes:
    """Unmount a fork or a checkpoint; its real path. A fork's changes are kept.

    Raises `RefusedError` while a process uses it, `NotFoundError` without one of our mounts there.
    """
    from holdfast.bridge.mount import fuse_device

    # Not its own real path: looking at a dead mount fails.
    above, name = os.path.split(os.path.abspath(directory))
    path = os.path.join(os.path.realpath(above), name)
    if fuse_device.is_mounted(path):
        fuse_device.unmount(path)
        return path
    with suppress(NotFoundError):
        context = opener.open_fork(path)
        path = context.workspace.path
        if is_mounted(context.folder, path):
            unmount_overlay(path)
            _wait_for_end(context.folder)
            return path
    raise NotFoundError(f"Holdfast has mounted nothing on {display(path)}", code="not_mounted")


def materialise(opener: Opener, directory: bytes) -> bytes:
    """Make a fork a plain directory, with all that is in it: `unmount_to_directory.materialise`. Its real path."""
    from holdfast.engine.forks import unmount_to_directory

    context = opener.open_fork(directory)
    path = context.workspace.path
    with context.lock():
        note = _note(context)
        if fork_layers.is_plain_directory(note, path):
            unmount_to_directory.finish(context, note)
            return path

        def back() -> None:
            with MountServer() as server:
                server.mount(_order(context))

        unmount_to_directory.materialise(context, note, back)
    return path


def _begin(forked: Context, source: Checkpoint) -> ForkNote:
    """Write down what the fork is made of, and see to it that this stays."""
    with os.scandir(forked.workspace.path) as inside:
        if next(inside, None) is not None:
            raise RefusedError(
                f"{display(forked.workspace.path)} is not empty: a fork that was written out lies there, unfinished",
                hint="finish it with `holdfast fork`, as it was begun",
            )
    looks = shown_ownership(forked, source)
    reason = fork_layers.pin_reason(forked.workspace.path)
    forked.catalog.unpin_all(reason)  # of an attempt that was killed before its note
    pin = forked.catalog.pin(source.root, reason, checkpoint=source.id)
    note = ForkNote(
        checkpoint=source.id,
        root=source.root.hex(),
        pin=pin,
        changed_at=looks.changed_at,
        uid=looks.uid,
        gid=looks.gid,
        root_permissions=looks.root_permissions,
        permissions=looks.permissions,
        attributes=attributes_for(forked.folder),
    )
    make_layers(forked.folder, note)
    fork_layers.write_note(forked.folder, note)
    return note


def _take_back(forked: Context) -> None:
    """Delete everything of a fork that could not be mounted."""
    from holdfast.engine.forks import unmount_to_directory

    forked.catalog.let_go(forked.workspace.id)
    unmount_to_directory.discard(forked, forked.workspace)
    with suppress(OSError):
        os.rmdir(forked.workspace.path)


def _note(context: Context) -> ForkNote:
    note = fork_layers.read_note(context.folder)
    if note is None:
        raise NotFoundError(f"{display(context.workspace.path)} is no fork by mount", code="no_fork")
    return note


def _make_mount_point(path: bytes, note: ForkNote) -> None:
    """See to it that there is an empty directory to mount on."""
    try:
        with os.scandir(path) as inside:
            if next(inside, None) is None:
                return
    except FileNotFoundError:
        try:
            make_directories(path, uid=note.uid, gid=note.gid)
        except OSError as error:
            raise StorageError(f"cannot make {display(path)}: {error.strerror}") from error
        return
    except OSError as error:
        raise StorageError(f"cannot mount on {display(path)}: {error.strerror}") from error
    raise RefusedError(
        f"{display(path)} is not empty: the mount would hide files that were made there while it was unmounted",
        hint="move them elsewhere, and mount again",
        code="not_empty",
    )


def _order(forked: Context) -> MountOrder:
    path = forked.workspace.path
    return MountOrder(home=forked.home, root=path, directory=path)


def _wait_for_end(folder: bytes) -> None:
    deadline = time.monotonic() + _SECONDS
    while is_served(folder):
        if time.monotonic() > deadline:
            _LOG.info("the process that serves the fork continues: another process still uses the mount")
            return
        time.sleep(_PAUSE)
