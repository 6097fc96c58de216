"""Everything that undo must bring back, of every path of a tree: to compare before and after (I1)."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class PathState(NamedTuple):
    """One path."""

    mode: int
    """Type and the 12 mode bits."""
    uid: int
    gid: int
    mtime: int
    xattrs: tuple[tuple[str, bytes], ...]
    content: bytes
    """Of a file; of a link, its target; of a device, its number."""
    names: tuple[bytes, ...]
    """Every path in the tree that is the same object."""


def photograph(root: bytes | str | os.PathLike[str]) -> dict[bytes, PathState]:
    """The state of every path below ``root``, and (as the empty path) of the root itself."""
    top = os.fsencode(root)
    paths = list(_walk(top))
    groups: dict[tuple[int, int], list[bytes]] = {}
    for path in paths:
        found = os.lstat(os.path.join(top, path))
        groups.setdefault((found.st_dev, found.st_ino), []).append(path)
    return {path: _look(top, path, groups) for path in paths}


def differences(before: dict[bytes, PathState], after: dict[bytes, PathState]) -> list[str]:
    """One line for each path at which the two differ, and how."""
    lines: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            lines.append(f"{path!r}: {'appeared' if old is None else 'is gone'}")
        elif old != new:
            fields = [
                f"{name} {was!r:.80} -> {now!r:.80}"
                for name, was, now in zip(PathState._fields, old, new, strict=True)
                if was != now
            ]
            lines.append(f"{path!r}: {', '.join(fields)}")
    return lines


def _walk(top: bytes) -> Iterator[bytes]:
    waiting = [b""]
    while waiting:
        at = waiting.pop()
        yield at
        if stat.S_ISDIR(os.lstat(os.path.join(top, at)).st_mode):
            waiting += [os.path.join(at, name) for name in sorted(os.listdir(os.path.join(top, at)))]


def _look(top: bytes, path: bytes, groups: dict[tuple[int, int], list[bytes]]) -> PathState:
    full = os.path.join(top, path)
    found = os.lstat(full)
    content = b""
    if stat.S_ISREG(found.st_mode):
        with open(full, "rb") as file:
            content = file.read()
    elif stat.S_ISLNK(found.st_mode):
        content = os.readlink(full)
    elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        content = str(found.st_rdev).encode()
    xattrs = tuple(
        (name, os.getxattr(full, name, follow_symlinks=False))
        for name in sorted(os.listxattr(full, follow_symlinks=False))
    )
    names = () if stat.S_ISDIR(found.st_mode) else tuple(groups[found.st_dev, found.st_ino])
    return PathState(found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, xattrs, content, names)
