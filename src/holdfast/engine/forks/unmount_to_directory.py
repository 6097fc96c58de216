"""Making a fork by mount a plain directory, with all that is in it, captured or not."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.bridge.mount.overlayfs import refuse_without_privilege, unmount_overlay
from holdfast.engine.forks._served_fork import ServedFork
from holdfast.engine.opening import fork_layers, identity
from holdfast.engine.opening.fork_layers import is_mounted, is_served, merged_path, overlay_path
from holdfast.engine.opening.home import INDEX, LAYER
from holdfast.model.errors import HoldfastError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import TEMPORARY_PREFIX, display
from holdfast.processes.child import Limits, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.engine.opening.fork_layers import ForkNote
    from holdfast.store.catalog_records import WorkspaceRow

_LOG = Log(__name__)


def materialise(context: Context, note: ForkNote, mount_again: Callable[[], object]) -> None:
    """Put a plain directory with the fork's content in its place. Needs the lock of the workspace.

    Everything is copied, with owners, times, hard links and extended attributes, to a sibling directory, which then
    replaces the mount atomically; after an interruption the fork is unchanged. Raises `RefusedError` while a process
    uses the fork. After a failure ``mount_again`` is called if it was mounted.
    """
    refuse_without_privilege()
    path = context.workspace.path
    was_mounted = is_mounted(context.folder, path)
    if was_mounted:
        unmount_overlay(path)
    elif is_served(context.folder):
        raise RefusedError(f"{display(path)} is mounted, where this process cannot see it", code="in_use")
    for left in _copies(context):  # by a process that was cut short
        shutil.rmtree(left, ignore_errors=True)
    # A new name: the copying process of a killed attempt may still be running.
    copy = _stem(context) + context.random(8).hex().encode()
    try:
        _copy(context, note, copy)
        about = os.stat(copy)
        became = note._replace(became=(about.st_dev, about.st_ino))
        fork_layers.write_note(context.folder, became)
        os.rename(copy, path)  # the mount point is an empty directory
    except (HoldfastError, OSError) as error:
        shutil.rmtree(copy, ignore_errors=True)
        if was_mounted:
            mount_again()
        if isinstance(error, OSError):
            raise StorageError(f"cannot put a copy of the fork in its place: {error.strerror}") from error
        raise
    finish(context, became)


def finish(context: Context, note: ForkNote) -> None:
    """Forget that the workspace, whose directory is a plain one by now, was a fork by mount. Idempotent."""
    for name in (INDEX, LAYER):
        with suppress(OSError):
            os.unlink(os.path.join(context.folder, name))
    discard(context, context.workspace)
    identity.recognise_workspace(context.catalog, context.folder_of, context.workspace.path)
    _LOG.debug("no fork by mount any more", checkpoint=note.checkpoint)


def discard(context: StoreContext, workspace: WorkspaceRow) -> None:
    """Delete a mounted fork's layers and base; nothing for other workspaces. Its changes are lost.

    Idempotent: the note is deleted last, so that after an interruption the next process repeats it.
    """
    folder = context.folder_of(workspace)
    note = fork_layers.read_note(folder)
    if note is None:
        context.store.catalog.unpin_all(
            fork_layers.pin_reason(workspace.path)
        )  # of one that was killed before its note
        return
    shutil.rmtree(overlay_path(folder), ignore_errors=True)
    context.store.catalog.unpin(note.pin)
    fork_layers.remove_note(folder)


def _copy(context: Context, note: ForkNote, copy: bytes) -> None:
    """Copy all that the fork holds into the directory ``copy``, durably."""
    merged = merged_path(context.folder)
    os.makedirs(merged, 0o700, exist_ok=True)
    os.mkdir(copy, 0o700)
    with ServedFork(context, note, merged):
        try:
            for words in (["cp", "-a", "--", merged + b"/.", copy + b"/"], ["sync", "-f", "--", copy]):
                done = run(words, Limits(None))
                if done.code:
                    said = display(done.errors.strip().splitlines()[0]) if done.errors.strip() else "it failed"
                    raise StorageError(f"the fork cannot be copied to {display(copy)}: {said}")
        finally:
            unmount_overlay(merged)
    os.rmdir(merged)


def _stem(context: Context) -> bytes:
    """Prefix of the path of a copy, beside the directory that it replaces."""
    beside = os.path.dirname(context.workspace.path)
    return os.path.join(beside, TEMPORARY_PREFIX + context.workspace.id.encode() + b"-")


def _copies(context: Context) -> list[bytes]:
    beside, stem = os.path.split(_stem(context))
    return [os.path.join(beside, name) for name in os.listdir(beside) if name.startswith(stem)]
