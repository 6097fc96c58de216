"""Directories at any depth: also where the path is longer than the kernel takes one (``PATH_MAX``, 4096 bytes)."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from holdfast.files.linux import syscalls
from holdfast.files.linux.metadata import proc_path
from holdfast.processes.forked_process import open_for_good

if TYPE_CHECKING:
    from collections.abc import Generator

MOST: Final = 4095
"""Bytes of the longest path that the kernel takes."""
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES: Final = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_TO_MAP: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOATIME | os.O_CLOEXEC
_MAP_PRIVATE: Final = 2
_ESCAPED_NEWLINE: Final = rb"\012"
DELETED: Final = b" (deleted)"
"""Appended by the kernel to the path of a removed file."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_top = open_for_good("/")

_MOST_PATHS: Final = 64
_paths: dict[tuple[int | None, int, int], bytes] = {}
"""The last directories that were looked up, by mount, device and inode: in ``mkdir d; cd d``, again and again, one step
is looked up each time and not all.
"""


def open_below(top: int, path: bytes, flags: int, rules: int) -> int:
    """`syscalls.openat2` of ``path``, relative to ``top`` and without ``..``, however long it is; empty is ``top``."""
    if len(path) <= MOST:
        return syscalls.openat2(top, path or b".", flags, rules)
    at = -1
    try:
        while len(path) > MOST:
            cut = path.rindex(b"/", 0, MOST + 1)
            inner = syscalls.openat2(top if at < 0 else at, path[:cut], _STEP, rules)
            if at >= 0:
                os.close(at)
            at, path = inner, path[cut + 1 :]
        return syscalls.openat2(at, path, flags, rules)
    finally:
        if at >= 0:
            os.close(at)


@contextmanager
def opened_below(top: int, path: bytes) -> Generator[int]:
    """The directory ``path`` below ``top``, to be read; through no link. Raises as `open_below`."""
    fd = open_below(top, path, _DIRECTORY, _RULES)
    try:
        yield fd
    finally:
        os.close(fd)


def path_of(fd: int) -> bytes:
    """The path of the object of ``fd``, of any length; readlink(2) gives only shorter ones.

    A directory is searched for in those above it; a file is mapped, as ``/proc/self/maps`` contains paths of any
    length. The time grows with the size of those directories, and it is not atomic: if another process changes the path
    meanwhile the result may never have existed. Raises `OSError`: ENAMETOOLONG for other or unreadable objects.
    """
    if path := _said_or_recalled(fd):
        return path
    try:
        path = _by_listing(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else _by_mapping(fd)
    except OSError:
        path = b""
    if not path:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return path


def _by_listing(fd: int) -> bytes:
    names: list[bytes] = []
    at = os.dup(fd)
    try:
        while True:
            above = os.open(b"..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
            found = os.fstat(at)
            os.close(at)
            at = above
            name = _name_of(found, above)
            if not name and (names or found.st_nlink):
                return b""  # another process has moved it meanwhile
            names.append(name or DELETED)
            if path := _said_or_recalled(above):
                path = b"/".join((path, *reversed(names)))
                if name:
                    _remember(fd, path)
                return path
    finally:
        os.close(at)


def _said_or_recalled(directory: int) -> bytes:
    try:
        return os.fsencode(os.readlink(proc_path(directory)))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    path = _paths.get(key := _key(directory), b"")
    if path:
        try:
            found = open_below(_top, path[1:], _STEP, _RULES)
        except OSError:
            return b""
        is_there = _key(found) == key
        os.close(found)
        return path if is_there else b""
    return b""


def _remember(directory: int, path: bytes) -> None:
    _paths.pop(key := _key(directory), None)
    _paths[key] = path
    if len(_paths) > _MOST_PATHS:
        _paths.pop(next(iter(_paths)), None)


def _key(fd: int) -> tuple[int | None, int, int]:
    found = os.fstat(fd)
    return syscalls.mount_id(fd), found.st_dev, found.st_ino


def _name_of(wanted: os.stat_result, directory: int) -> bytes:
    with os.scandir(directory) as found:
        # (The entry of a mount point has the inode number of the directory under the mount.)
        entries = sorted(found, key=lambda entry: entry.inode() != wanted.st_ino)
        for entry in entries:
            with suppress(FileNotFoundError):
                if os.path.samestat(entry.stat(follow_symlinks=False), wanted):
                    return os.fsencode(entry.name)
    return b""


def _by_mapping(fd: int) -> bytes:
    file = os.open(proc_path(fd), _TO_MAP)
    try:
        address = _libc.mmap(None, ctypes.c_size_t(1), 0, _MAP_PRIVATE, file, ctypes.c_long(0))
        if address == ctypes.c_void_p(-1).value:
            return b""
        try:
            with open("/proc/self/maps", "rb") as maps:
                line = next(line for line in maps if int(line.partition(b"-")[0], 16) == address)
        finally:
            _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(1))
    finally:
        os.close(file)
    path = line[line.index(b"/") : -1]
    # (A backslash is not escaped, so a name with these four characters looks the same as one with a newline.)
    return b"" if _ESCAPED_NEWLINE in path else path
