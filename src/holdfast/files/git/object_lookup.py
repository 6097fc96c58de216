"""Whether a Git repository in a tree holds the content of a file: gitformat-pack(5) and gitrepository-layout(5)."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.files.linux import syscalls
from holdfast.model.paths import parents

if TYPE_CHECKING:
    from collections.abc import Generator

_MOST_BYTES = 16 << 20
_HASH_BYTES = 20
_MAGIC = b"\xfftOc\0\0\0\2"
_FANOUT_BYTES = 256 * 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_RULES = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS


class GitObjects:
    """Asks the nearest repository at or above a path, not above the root. The answer is no where it is unknown: files
    changed by a filter, a repository of SHA-256, a linked worktree, a file larger than 16 MiB. It follows no link, as
    the content of the tree may be hostile (I7).
    """

    def __init__(self, root: bytes) -> None:
        """``root`` is an absolute path."""
        self._root = root

    def hold(self, path: bytes) -> bool:
        """True if the repository has an object with just what the regular file ``path`` holds."""
        with suppress(OSError):
            root = os.open(self._root, _DIRECTORY)
            try:
                return _holds(root, path)
            finally:
                os.close(root)
        return False


def _holds(root: int, path: bytes) -> bool:
    for above in (*parents(path), b""):
        try:
            with _opened(root, os.path.join(above, b".git/objects"), _DIRECTORY) as objects:
                name = _name(root, path)
                return bool(name) and (_is_loose(objects, name) or _is_packed(objects, name))
        except (FileNotFoundError, NotADirectoryError):
            continue  # no repository is there
    return False


@contextmanager
def _opened(directory: int, path: bytes, flags: int) -> Generator[int]:
    """Raises `OSError`; also for anything but a directory or regular file, as others may never end."""
    fd = syscalls.openat2(directory, path, flags, _RULES)
    try:
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError
        yield fd
    finally:
        os.close(fd)


def _name(root: int, path: bytes) -> bytes:
    """The object's; empty if the file is not there, or too large."""
    with suppress(FileNotFoundError, NotADirectoryError), _opened(root, path, _READ) as fd:
        size = os.fstat(fd).st_size
        with open(fd, "rb", closefd=False) as file:
            content = file.read(_MOST_BYTES + 1) if size <= _MOST_BYTES else b""
        if len(content) == size:
            from hashlib import sha1  # (with OpenSSL: most runs remove no content)

            return sha1(b"blob %d\0" % size + content, usedforsecurity=False).digest()
    return b""


def _is_there(directory: int, path: bytes) -> bool:
    with suppress(OSError), _opened(directory, path, _READ):
        return True
    return False


def _is_loose(objects: int, name: bytes) -> bool:
    text = name.hex().encode()
    return _is_there(objects, text[:2] + b"/" + text[2:])


def _is_packed(objects: int, name: bytes) -> bool:
    with suppress(FileNotFoundError), _opened(objects, b"pack", _DIRECTORY) as directory:
        for each in map(os.fsencode, os.listdir(directory)):
            if not each.endswith(b".idx") or not _is_there(directory, each[:-4] + b".pack"):
                continue
            with suppress(OSError), _opened(directory, each, _READ) as fd:
                if _is_listed(fd, name):
                    return True
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
