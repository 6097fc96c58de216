"""Keeps directories from whoever shares this process's mount namespace: what is in them cannot be changed, by any path
that a mount shows them at, and they cannot be moved, nor can any directory that they lie in.

For a namespace that was made just before, before anybody else is in it, where nobody who comes later may mount or
unmount. Sources: mount_namespaces(7), mount(2), ``is_local_mountpoint`` in ``fs/namespace.c`` of Linux.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from holdfast.bridge.namespaces import KEPT_FLAGS, MS_BIND, MS_RDONLY, MS_REC, MS_REMOUNT, mount
from holdfast.model.paths import under
from holdfast.supervisor.mounts import mounts, other_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OUT_OF_SIGHT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_OBJECT: Final = os.O_PATH | os.O_CLOEXEC


def shut(directories: Sequence[bytes], covered: bytes) -> None:
    """Make ``directories`` read-only, with all that is mounted in them, and have them and all above them stay where
    they are. They are real paths; something is about to be mounted over the directory ``covered``, where nothing else
    will be seen, and which may lie in one of them. Raises `OSError`.
    """
    for path in sorted(_everywhere(directories), key=len):  # (a mount that shows a part may lie in another one)
        if not under(path, covered):
            _make_read_only(path)
    for path in _movable(path for path in directories if not under(path, covered)):
        _pin(path, covered)


def _everywhere(directories: Iterable[bytes]) -> set[bytes]:
    """All paths by which they, or a part of them, are reached; and what is mounted in them, as overlays are."""
    found: set[bytes] = set()
    shown = mounts()
    left = list(directories)
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        try:
            fd = os.open(path, _OBJECT)
        except OSError as error:
            if error.errno not in _OUT_OF_SIGHT:
                raise
            continue  # it lies under another mount, or where this user cannot look
        try:
            left += [at for at, _ in other_paths(fd, path, shown)]
        finally:
            os.close(fd)
        left += [each.point for each in shown if under(each.point, path)]
    return found


def _make_read_only(path: bytes) -> None:
    try:
        mount(path, path, MS_BIND | MS_REC)
        flags = os.statvfs(path).f_flag & KEPT_FLAGS
        mount(b"none", path, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)
    except OSError as error:
        if error.errno not in _OUT_OF_SIGHT:  # (else it lies under another mount, or where this user cannot look)
            raise


def _movable(directories: Iterable[bytes]) -> Iterator[bytes]:
    """They, and all above them that this user may move."""
    seen: set[bytes] = set()
    for path in directories:
        while path not in (b"/", *seen):
            seen.add(path)
            above = os.path.dirname(path)
            if os.access(above, os.W_OK):
                yield path
            path = above


def _pin(path: bytes, covered: bytes) -> None:
    """Let nobody move or remove a directory: nobody can, in whose namespace anything is mounted on it, be it where it
    cannot be seen. (On its own path, what is moved from beside it to beneath it would come to another mount.)
    """
    above, name = os.path.split(path)
    try:
        mount(above, covered, MS_BIND)
        pinned = os.path.join(covered, name)
        mount(pinned, pinned, MS_BIND)
    except OSError as error:
        # (What somebody outside has mounted below it, a user namespace may not uncover: it is pinned by that alone.)
        if error.errno not in (errno.EINVAL, *_OUT_OF_SIGHT):
            raise
