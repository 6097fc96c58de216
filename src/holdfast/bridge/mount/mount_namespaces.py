"""Separate mount namespaces: a mount in one exists only for the processes in it.

Sources: mount_namespaces(7), user_namespaces(7), mount(2), setns(2).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from holdfast.model.paths import display

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18, 1 << 19
KEPT_FLAGS: Final = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
"""The same in mount(2). Of a mount that was made outside, no process in a user namespace may take them away."""
_CAP_SYS_ADMIN = 21
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


def may_mount() -> bool:
    """Whether this process may mount where others see it."""
    with open("/proc/self/status", "rb") as file:
        effective = next((int(line.split()[1], 16) for line in file if line.startswith(b"CapEff:")), 0)
    return bool(effective >> _CAP_SYS_ADMIN & 1)


def separate(*, user: bool) -> None:
    """Give this single-threaded process a separate mount namespace; with ``user`` a user namespace too, in which it
    keeps its user and group. Raises `OSError`.
    """
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER if user else _CLONE_NEWNS), b"")
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def join(process: int, pidfd: int) -> None:
    """Make this single-threaded process see the mounts of ``process``, to which ``pidfd`` refers. Raises `OSError`."""
    ours, theirs = (os.stat(f"/proc/{one}/ns/user") for one in ("self", process))
    flags = _CLONE_NEWNS if os.path.samestat(ours, theirs) else _CLONE_NEWNS | _CLONE_NEWUSER
    _check(_libc.setns(pidfd, flags), b"")


def mount(source: bytes, target: bytes, flags: int, kind: bytes | None = None) -> None:
    """As the system call of this name. Raises `OSError` that names the target."""
    _check(_libc.mount(source, target, kind, flags, None), target)


def _check(result: int, path: bytes) -> None:
    if result:
        number = ctypes.get_errno()
        text = os.strerror(number)
        raise OSError(number, f"{display(path)}: {text}" if path else text)
