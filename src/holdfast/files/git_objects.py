"""Whether a Git repository in a tree holds the content of a file: gitformat-pack(5) and gitrepository-layout(5)."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress

from holdfast.model.paths import parents

_MOST_BYTES = 16 << 20
_HASH_BYTES = 20
_MAGIC = b"\xfftOc\0\0\0\2"
_FANOUT_BYTES = 256 * 4
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class GitObjects:
    """Asks the nearest repository at or above a path, not above the root. What it cannot tell it says no to: what a
    filter has changed, a repository of SHA-256, a linked worktree, a file larger than 16 MiB.
    """

    def __init__(self, root: bytes) -> None:
        """``root`` is an absolute path."""
        self._root = root

    def hold(self, path: bytes) -> bool:
        """True if the repository has an object with just what the regular file ``path`` holds."""
        for above in (*parents(path), b""):
            objects = os.path.join(self._root, above, b".git", b"objects")
            if os.path.isdir(objects):
                with suppress(OSError):
                    name = _name(os.path.join(self._root, path))
                    return bool(name) and (_is_loose(objects, name) or _is_packed(os.path.join(objects, b"pack"), name))
                return False
        return False


def _open(path: bytes) -> tuple[int, int]:
    """A descriptor, and the size. Raises `OSError`, also if it is no regular file."""
    fd = os.open(path, _READ)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise OSError
    return fd, found.st_size


def _name(path: bytes) -> bytes:
    """The object's; empty if the file is too large."""
    fd, size = _open(path)
    with open(fd, "rb") as file:
        content = file.read(_MOST_BYTES + 1) if size <= _MOST_BYTES else b""
    if len(content) != size:
        return b""
    return hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False).digest()


def _is_loose(objects: bytes, name: bytes) -> bool:
    text = name.hex().encode()
    return os.path.isfile(os.path.join(objects, text[:2], text[2:]))


def _is_packed(directory: bytes, name: bytes) -> bool:
    for each in os.listdir(directory):
        if each.endswith(b".idx") and os.path.isfile(os.path.join(directory, each[:-4] + b".pack")):
            fd, _ = _open(os.path.join(directory, each))
            try:
                if _is_listed(fd, name):
                    return True
            finally:
                os.close(fd)
    return False


def _is_listed(fd: int, name: bytes) -> bool:
    """Whether a pack's index, of version 2, has the object: after a table of how many begin with at most each byte,
    the sorted names.
    """
    head = os.pread(fd, len(_MAGIC) + _FANOUT_BYTES, 0)
    if len(head) != len(_MAGIC) + _FANOUT_BYTES or not head.startswith(_MAGIC):
        return False
    ends = memoryview(head)[len(_MAGIC) :]
    first = int.from_bytes(ends[name[0] * 4 - 4 : name[0] * 4]) if name[0] else 0
    end = int.from_bytes(ends[name[0] * 4 : name[0] * 4 + 4])
    while first < end:
        middle = (first + end) // 2
        found = os.pread(fd, _HASH_BYTES, len(head) + middle * _HASH_BYTES)
        if found == name:
            return True
        first, end = (middle + 1, end) if found < name else (first, middle)
    return False
