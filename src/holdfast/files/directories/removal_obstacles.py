"""Why something cannot be removed, for people: what is mounted there, and what chattr(1) protects."""

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
    """Where something is mounted: right at the real path ``path``, once for each mount; or there and ``below`` it. What
    has to be unmounted first comes first.
    """
    points = [mount.point for mount in mounts()]
    return [point for point in reversed(points) if point == path or (below and under(point, path))]


def type_mounted_at(path: bytes) -> bytes | None:
    """The type of the file system that is mounted right at the real path ``path``, of the last if several are; None if
    there is none.
    """
    found = [mount.type for mount in mounts() if mount.point == path]
    return found[-1] if found else None


def refuse_others(path: bytes, *, below: int = 0) -> None:
    """Raise `RefusedError` (``mounted_over``) if something is mounted right at the real path ``path`` that Holdfast has
    not mounted there itself: it would be taken away with what is below it, and a tmpfs with all that is in it. The
    first ``below`` mounts there may belong to any user.
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
    """What has to be done before what failed so can be removed, by the path that ``error`` names; None if that is not
    known.
    """
    path = error.filename
    if not isinstance(path, bytes) or not path.startswith(b"/"):
        return None
    try:
        if error.errno == errno.EBUSY:
            return _unmounting(mounted_at(path, below=True))
        if error.errno == errno.EPERM:
            return _unprotecting(path)
    except OSError:
        pass  # it has gone meanwhile, or cannot be looked at
    return None


def _unmounting(points: Sequence[bytes]) -> str | None:
    if not points:
        return None
    return (
        f"`{' && '.join(f'umount {_word(point)}' for point in points)}` first; the mounted file system is not touched"
    )


def _unprotecting(path: bytes) -> str | None:
    """What is protected itself, or is in a directory that is."""
    for at in (path, os.path.dirname(path)):
        found = syscalls.protection(at)
        if found:
            return f"`chattr -{found} {_word(at)}` first, which lets it be removed"
    return None


def _word(path: bytes) -> str:
    return shlex.quote(display(path))
