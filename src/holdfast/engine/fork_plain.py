"""Making a fork by mount a plain directory, with all that is in it, captured or not."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.bridge.overlay import refuse_without_privilege, unmount_overlay
from holdfast.engine import fork_note, identity
from holdfast.engine.folder import INDEX, LAYER
from holdfast.engine.fork_layers import is_mounted, is_served, overlay_of
from holdfast.engine.fork_serving import ServedFork
from holdfast.model.errors import HoldfastError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import TEMPORARY_PREFIX, display

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.context import Context, Shared
    from holdfast.engine.fork_note import ForkNote
    from holdfast.store.records import Workspace

_LOG = Log(__name__)


def materialise(context: Context, note: ForkNote, mount_again: Callable[[], object]) -> None:
    """Put a plain directory with the fork's content in its place. Needs the lock of the workspace.

    All of it is copied, with owners, times, hard links and extended attributes, beside the directory, and takes its
    place at once; cut short, it is a fork as before. Raises `RefusedError` while anybody uses the fork. If anything
    goes wrong, ``mount_again`` is called where it was mounted.
    """
    refuse_without_privilege()
    path = context.workspace.path
    was_mounted = is_mounted(context.folder, path)
    if was_mounted:
        unmount_overlay(path)
    elif is_served(context.folder):
        raise RefusedError(f"{display(path)} is mounted, where this process cannot see it", code="in_use")
    copy = os.path.join(os.path.dirname(path), TEMPORARY_PREFIX + context.workspace.id.encode())
    try:
        _copy(context, note, copy)
        about = os.stat(copy)
        became = msgspec.structs.replace(note, became=(about.st_dev, about.st_ino))
        fork_note.write(context.folder, became)
        os.rename(copy, path)  # the mount point is an empty directory
    except (HoldfastError, OSError) as error:
        shutil.rmtree(copy, ignore_errors=True)
        if was_mounted:
            mount_again()
        if isinstance(error, OSError):
            raise StorageError(f"cannot put a copy of the fork in its place: {error.strerror}") from error
        raise
    finish(context, became)


def has_become(note: ForkNote, path: bytes) -> bool:
    """True if the directory at ``path`` is the plain one that has the fork's content."""
    with suppress(OSError):
        about = os.lstat(path)
        return note.became == (about.st_dev, about.st_ino)
    return False


def finish(context: Context, note: ForkNote) -> None:
    """Forget that the workspace, whose directory is a plain one by now, was a fork by mount. Idempotent."""
    discard(context, context.workspace)
    for name in (INDEX, LAYER):
        with suppress(OSError):
            os.unlink(os.path.join(context.folder, name))
    identity.recognise(context.catalog, context.folder_of, context.workspace.path)
    _LOG.debug("no fork by mount any more", checkpoint=note.checkpoint)


def discard(context: Shared, workspace: Workspace) -> None:
    """Let go of a fork's layers, and of its base, if the workspace is a fork by mount. What was changed is lost."""
    folder = context.folder_of(workspace)
    note = fork_note.read(folder)
    if note is None:
        return
    fork_note.remove(folder)
    context.store.catalog.unpin(note.pin)
    shutil.rmtree(overlay_of(folder), ignore_errors=True)


def _copy(context: Context, note: ForkNote, copy: bytes) -> None:
    """Copy all that the fork holds into the directory ``copy``, durably."""
    merged = os.path.join(overlay_of(context.folder), b"merged")
    if os.path.lexists(copy):
        shutil.rmtree(copy)
    os.makedirs(merged, 0o700, exist_ok=True)
    os.mkdir(copy, 0o700)
    with ServedFork(context, note, merged):
        try:
            for words in (["cp", "-a", "--", merged + b"/.", copy + b"/"], ["sync", "-f", "--", copy]):
                done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
                if done.returncode:
                    said = display(done.stderr.strip().splitlines()[0]) if done.stderr.strip() else "it failed"
                    raise StorageError(f"the fork cannot be copied to {display(copy)}: {said}")
        finally:
            unmount_overlay(merged)
    os.rmdir(merged)
