"""Credentials for file access: a process's ids, groups, capabilities over files, and umask; its own, or, for one thread
and only for files, those of another process that it serves.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

_SYSCALLS = {
    "x86_64": {"setfsuid": 122, "setfsgid": 123, "setgroups": 116, "capset": 126},
    "aarch64": {"setfsuid": 151, "setfsgid": 152, "setgroups": 159, "capset": 91},
}
# CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, SYS_PTRACE (links in /proc), SYS_ADMIN (trusted
# attributes), SYS_RESOURCE (room that is reserved), MKNOD, SETFCAP, MAC_OVERRIDE, CHECKPOINT_RESTORE (links in /proc)
_OVER_FILES = sum(1 << bit for bit in (0, 1, 2, 3, 4, 9, 19, 21, 24, 27, 31, 32, 40))
PAST_CHECKS = sum(1 << bit for bit in (1, 2, 27))
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_MKNOD: for actions that are already known to be permitted."""
FSETID = 1 << 4
"""CAP_FSETID: without it, changing a file takes its set-id bits away."""
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_FS = 0x200
_STATUS_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_thread = threading.local()


class Credentials(NamedTuple):
    """Determines whether a file system permits a process's action."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int
    """The capabilities that matter for files."""


class ThreadStatus(NamedTuple):
    """The content of ``/proc/TID/status``."""

    tgid: int
    umask: int
    credentials: Credentials
    uniform: bool
    """Its real, effective, saved and file system ids are the same, so that executing a program changes none of them."""


def read_status(dir_fd: int) -> ThreadStatus:
    """The status of the thread whose directory in ``/proc`` is ``dir_fd``. Raises `OSError`: ENOENT if it is gone."""
    fields = _status_fields(dir_fd)
    users, groups = fields[b"Uid"].split(), fields[b"Gid"].split()
    return ThreadStatus(
        int(fields[b"Tgid"]),
        int(fields[b"Umask"], 8),
        Credentials(
            int(users[3]),
            int(groups[3]),
            tuple(map(int, fields[b"Groups"].split())),
            int(fields[b"CapEff"], 16) & _OVER_FILES,
        ),
        uniform=len(set(users)) == len(set(groups)) == 1,
    )


class NamespaceIds(NamedTuple):
    """The ids of a thread and its process in each pid namespace, from the one of the ``/proc`` that was read to
    their own.
    """

    processes: tuple[int, ...]
    threads: tuple[int, ...]


def numbers_of(dir_fd: int) -> NamespaceIds:
    """Of the thread whose directory in a ``/proc`` is ``dir_fd``. Raises `OSError`, as `read_status`."""
    fields = _status_fields(dir_fd)
    return NamespaceIds(tuple(map(int, fields[b"NStgid"].split())), tuple(map(int, fields[b"NSpid"].split())))


def _status_fields(dir_fd: int) -> dict[bytes, bytes]:
    fd = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        text = os.read(fd, _STATUS_BYTES)
        while more := os.read(fd, _STATUS_BYTES):
            text += more
    finally:
        os.close(fd)
    return _fields(text)


def own_status() -> ThreadStatus:
    """The calling thread's."""
    fd = os.open("/proc/thread-self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_status(fd)
    finally:
        os.close(fd)


def _fields(status: bytes) -> dict[bytes, bytes]:
    parts = (line.partition(b":\t") for line in status.split(b"\n"))
    return {name: value for name, _, value in parts}


class thread_umask:  # noqa: N801 - used as a function; a generator would take several times as long
    """Create files with another umask; for this thread alone."""

    __slots__ = ("_umask",)

    def __init__(self, umask: int) -> None:
        self._umask = umask

    def __enter__(self) -> None:
        """Set it."""
        if not getattr(_thread, "apart", False):
            # Umask and working directory belong to all threads together until one says otherwise.
            _check(_libc.unshare(_CLONE_FS))
            _thread.apart = True
        self._umask = os.umask(self._umask)

    def __exit__(self, *_: object) -> None:
        """Restore the previous umask."""
        os.umask(self._umask)


@contextmanager
def assume_credentials(credentials: Credentials) -> Generator[None]:
    """Access files in the name of another user; this thread alone, and only towards files."""
    own = _own()
    permitted = _effective()
    # In a box, the keeper's own user merely lacks capabilities: no change of user is needed.
    is_other = credentials[:3] != own[:3]
    if is_other:
        _assume(credentials)
    try:
        _set_effective(permitted & ~_OVER_FILES | permitted & credentials.capabilities)
        yield
    finally:
        _set_effective(permitted)
        if is_other:
            _assume(own)
            _set_effective(permitted)


def _assume(wanted: Credentials) -> None:
    numbers = _numbers()
    groups = (ctypes.c_uint32 * len(wanted.groups))(*wanted.groups)
    _check(_libc.syscall(numbers["setgroups"], len(groups), groups))
    _libc.syscall(numbers["setfsgid"], ctypes.c_uint32(wanted.gid))
    _libc.syscall(numbers["setfsuid"], ctypes.c_uint32(wanted.uid))


def _own() -> Credentials:
    found: Credentials | None = getattr(_thread, "own", None)
    if found is None:
        _thread.own = found = own_status().credentials
    return found


def _effective() -> int:
    found: int | None = getattr(_thread, "effective", None)
    if found is None:
        with open("/proc/thread-self/status", "rb") as file:
            _thread.effective = found = int(_fields(file.read())[b"CapEff"], 16)
    return found


def _set_effective(effective: int) -> None:
    _check(_libc.syscall(_numbers()["capset"], *_capabilities(effective, _effective())))


@lru_cache(maxsize=64)
def _capabilities(
    effective: int, permitted: int
) -> tuple[ctypes.Array[ctypes.c_uint32], ctypes.Array[ctypes.c_uint32]]:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, 0, effective >> 32, permitted >> 32, 0)
    return header, data


@cache
def _numbers() -> dict[str, int]:
    return _SYSCALLS[platform.machine()]


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
