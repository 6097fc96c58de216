"""``/proc``, where the same path means something else to everybody who looks; and what is mounted, which it says."""

from __future__ import annotations

import os
import select
import stat
import threading
from functools import cache
from typing import TYPE_CHECKING

from holdfast.supervisor.territory import absolute

if TYPE_CHECKING:
    from holdfast.supervisor.territory import Where

_BOUNDS = frozenset({b"", b"/"})
_CUTTING = frozenset({b"afs", b"ceph", b"cifs", b"lustre", b"nfs", b"nfs4", b"smb3"})
"""Types of file systems that may have a server open a file, and cut it short, before a domain is asked about it (the
kernel's ``atomic_open``). On others a file is found first.
"""


def is_native(where: Where, mode: int) -> bool:
    """Whether only the caller itself can open what is there: a terminal that is its own, a file about itself."""
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return is_below(where.absolute, (b"/dev",))
    return is_below(where.absolute, (*proc_mounts(), b"/sys"))


def is_in_proc(fd: int) -> bool:
    """Whether the object is of a file system in which a path means something else to everybody who looks."""
    return os.fstat(fd).st_dev in proc_devices() or is_below(absolute(fd), proc_mounts())


def is_below(path: bytes, directories: tuple[bytes, ...]) -> bool:
    """Whether the path is one of the directories, or beneath one."""
    for directory in directories:
        if path.startswith(directory) and path[len(directory) : len(directory) + 1] in _BOUNDS:
            return True
    return False


def proc_mounts() -> tuple[bytes, ...]:
    """Where it is mounted now, as the keeper sees it."""
    _look_again()
    return _mounts(frozenset({b"proc"}))


def proc_devices() -> frozenset[int]:
    """The devices of those mounts. A box has one of its own, which is none of them."""
    proc_mounts()
    return _devices()


def may_cut_unasked() -> bool:
    """Whether a file system is mounted, as the keeper sees it, that may cut short what a domain forbids to open."""
    _look_again()
    return bool(_mounts(_CUTTING))


def _look_again() -> None:
    if _thread.table.has_changed():
        _mounts.cache_clear()
        _devices.cache_clear()


class _MountTable:
    """Tells that something was mounted or unmounted since it was asked last (proc_pid_mountinfo(5))."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLPRI | select.POLLERR)

    def __del__(self) -> None:
        os.close(self._fd)

    def has_changed(self) -> bool:
        return bool(self._poll.poll(0))


class _Thread(threading.local):
    """What each thread has of its own; it goes with the thread."""

    def __init__(self) -> None:
        self.table = _MountTable()


_thread = _Thread()


@cache
def _mounts(types: frozenset[bytes]) -> tuple[bytes, ...]:
    with open("/proc/self/mountinfo", "rb") as file:
        lines = [line.split(b" ") for line in file]
    return tuple(fields[4] for fields in lines if fields[fields.index(b"-") + 1] in types)


@cache
def _devices() -> frozenset[int]:
    return frozenset(os.stat(mount).st_dev for mount in proc_mounts())
