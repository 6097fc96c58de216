"""The mounts, as the keeper or another process sees them, and the other paths that they give a directory."""

from __future__ import annotations

import os
import select
import threading
from functools import cache
from typing import TYPE_CHECKING

from holdfast.files.linux import mount_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.files.linux.mount_table import Mount


def mounts() -> tuple[Mount, ...]:
    """All, as the keeper sees them now."""
    table = _thread.table
    if table is None:
        _thread.table = _MountTable()
        _own.cache_clear()  # it does not report earlier mounts, which maybe no other thread has read
    elif table.has_changed():
        _own.cache_clear()
    return _own()


def mounts_of(process: int) -> tuple[Mount, ...]:
    """All that the thread sees whose directory in ``/proc`` is open as ``process``, by their paths for the keeper.

    Raises `OSError`.
    """
    top = os.readlink(b"root", dir_fd=process)
    fd = os.open(b"mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    with open(fd, "rb") as lines:
        shown = mount_table.parse_mounts(lines.read())
    return tuple(mount._replace(point=_joined(top, mount.point)) for mount in shown)


def other_paths(fd: int, path: bytes, shown: Iterable[Mount]) -> Iterator[tuple[bytes, bytes]]:
    """The paths at which the ``shown`` mounts show the directory ``fd`` or a part of it, which the keeper has open at
    ``path``; each with the keeper's path of the shown directory.
    """
    with open(f"/proc/thread-self/fdinfo/{fd}", "rb") as lines:
        number = next(int(line.split()[1]) for line in lines if line.startswith(b"mnt_id:"))
    own = next((mount for mount in mounts() if mount.id == number), None)
    if own is None or (rest := _rest(path, own.point)) is None:
        return  # it was unmounted: there is no telling
    place = _joined(own.root, rest)
    for mount in shown:
        if mount.device == own.device:
            if (rest := _rest(place, mount.root)) is not None:
                yield _joined(mount.point, rest), path
            elif (part := _rest(mount.root, place)) is not None:
                yield mount.point, _joined(path, part)


def _rest(path: bytes, directory: bytes) -> bytes | None:
    """The rest of the path below the directory, with a leading slash; None if it is outside."""
    if directory == b"/":
        return path.rstrip(b"/")
    if path == directory or path.startswith(directory + b"/"):
        return path[len(directory) :]
    return None


def _joined(directory: bytes, rest: bytes) -> bytes:
    return directory.rstrip(b"/") + rest.rstrip(b"/") or b"/"


@cache
def _own() -> tuple[Mount, ...]:
    return tuple(mount_table.mounts())


class _MountTable:
    """Reports whether mounts have changed since the last question (proc_pid_mountinfo(5))."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLPRI | select.POLLERR)

    def __del__(self) -> None:
        os.close(self._fd)

    def has_changed(self) -> bool:
        return bool(self._poll.poll(0))


class _Thread(threading.local):
    """The data of each thread, which ends with it."""

    table: _MountTable | None = None


_thread = _Thread()


def _forget_in_fork() -> None:
    """A fork must close the descriptor of its starter, whose number is soon reused."""
    global _thread  # noqa: PLW0603 - a process has one
    _thread = _Thread()


os.register_at_fork(after_in_child=_forget_in_fork)
