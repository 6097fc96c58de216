"""Why an entry cannot be removed, for people: mounts there, and protection by chattr(1)."""

from __future__ import annotations

import errno
import os
import shlex
from typing import TYPE_CHECKING

from holdfast.files.linux import syscalls
from holdfast.files.linux.mount_table import mounts
from holdfast.model.errors import RefusedError
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Sequence

_OURS = ((b"overlay", b"holdfast"), (b"fuse.holdfast", b"holdfast"))
"""Type and source of what Holdfast mounts itself."""


def mounted_at(path: bytes, *, below: bool = False) -> Sequence[bytes]:
    """The mount points exactly at the real path ``path``, once for each mount; or there and ``below`` it. In the order
    in which they must be unmounted.
    """
    points = [mount.point for mount in mounts()]
    return [point for point in reversed(points) if point == path or (below and under(point, path))]


def type_mounted_at(path: bytes) -> bytes | None:
    """The type of the last file system mounted exactly at the real path ``path``; None if there is none."""
    found = [mount.type for mount in mounts() if mount.point == path]
    return found[-1] if found else None


def refuse_others(path: bytes, *, below: int = 0) -> None:
    """Raise `RefusedError` (``mounted_over``) if there is a mount exactly at the real path ``path`` that Holdfast has
    not made itself: it would be removed with all mounts below it, and a tmpfs with its content. The first ``below``
    mounts there may belong to any user.
    """
    there = [mount for mount in mounts() if mount.point == path][below:]
    ours = [(mount.type, mount.source) in _OURS for mount in there]
    if not all(ours):
        raise RefusedError(
            f"something is mounted over {display(path)}",
            hint=_unmounting([path] * (len(ours) - ours.index(False))),
            code="mounted_over",
        )


def removal_hint(error: OSError) -> str | None:
    """Advice to make a failed removal possible, by the path in ``error``; None if there is none."""
    path = error.filename
    if not isinstance(path, bytes) or not path.startswith(b"/"):
        return None
    try:
        if error.errno == errno.EBUSY:
            return _unmounting(mounted_at(path, below=True))
        if error.errno == errno.EPERM:
            return _unprotecting(path)
    except OSError:
        pass  # it is gone by now, or inaccessible
    return None


def _unmounting(points: Sequence[bytes]) -> str | None:
    if not points:
        return None
    return (
        f"`{' && '.join(f'umount {_word(point)}' for point in points)}` first; the mounted file system is not touched"
    )


def _unprotecting(path: bytes) -> str | None:
    """The protected entry or directory, if ``path`` is protected itself or by its directory."""
    for at in (path, os.path.dirname(path)):
        found = syscalls.protection(at)
        if found:
            return f"`chattr -{found} {_word(at)}` first, which lets it be removed"
    return None


def _word(path: bytes) -> str:
    return shlex.quote(display(path))
