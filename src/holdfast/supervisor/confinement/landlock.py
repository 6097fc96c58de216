"""The Landlock domain of a supervised tree: nothing on a real file system can be opened for writing, made or removed.

For every allowed write the tree gets a descriptor that the keeper opened, outside of the domain. So a call that the
keeper lets the kernel carry out (for a terminal, or in ``/proc``) cannot change a file, whatever another thread writes
into its arguments meanwhile. A domain also keeps its processes from tracing or reading the memory of outside processes,
and (Linux 6.12) from sending them signals: the tree cannot end its keeper or its parent.

The kernel never carries out calls that no domain can forbid (``chmod``, ``chown``, times, extended attributes). The
same holds for truncation without opening for writing: a domain that forbids it would check all parent directories at
every opening for reading, which takes half as long again. Sources: landlock(7), ``include/uapi/linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # one number on every architecture
_VERSION = 1
_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_REMOVE = 1 << 4 | 1 << 5
_MAKE = 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
_MAKE_DEVICE = 1 << 11
_REFER = 1 << 13
_REFER_SINCE: Final = 2

_SCOPE_ABSTRACT_SOCKETS = 1 << 0
_SCOPE_SIGNALS = 1 << 1
SCOPES_SINCE: Final = 6
"""The version that keeps signals inside, and has `keep_abstract_sockets_apart`."""

_OPEN: Final = (b"/dev", b"/proc")
"""Directories where writing changes no files. Only writing: the keeper makes new entries. Not ``/sys``: it has the
control groups that could stop our own processes, and the kernel's settings.
"""

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's version of Landlock; 0 if it is missing or disabled.

    `limitations` describes the differences before `SCOPES_SINCE`.
    """
    found = _libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    return max(found, 0)


def limitations() -> list[str]:
    """The features and protections that this kernel's Landlock lacks; for people. Ideally empty."""
    found = version()
    missing: list[str] = []
    if not found:
        missing.append(
            "the kernel has no Landlock (Linux 5.13, and landlock among what lsm= names): under supervision, programs "
            "cannot write to /proc"
        )
    if found < SCOPES_SINCE:
        missing.append(
            "the kernel's Landlock keeps no signals in (Linux 6.12): a supervised program can kill "
            "its keeper, which ends its run, and other processes of the user"
        )
    return missing


def confine(closed: Iterable[bytes]) -> bool:
    """Put this process and all its children into a domain that keeps them from changing files directly.

    ``closed`` are the workspace and other directories that stay closed even inside writable ones. Needs
    `holdfast.supervisor.confinement.seccomp_notify.give_up_privileges`. Returns False if the kernel has no Landlock.
    """
    found = version()
    if not found:
        return False
    handled = _WRITE_FILE | _REMOVE | _MAKE
    if found >= _REFER_SINCE:
        handled |= _REFER
    attributes = struct.pack("=Q", handled)
    if found >= SCOPES_SINCE:
        attributes = struct.pack("=QQQ", handled, 0, _SCOPE_SIGNALS)
    ruleset = _check(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        for path in writable([os.path.realpath(path) for path in closed]):
            _allow(ruleset, path, _WRITE_FILE)
        _check(_libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def confine_mounts() -> bool:
    """Put this process and all its children into a domain that does not restrict files: it only forbids to mount and
    unmount, to trace or inspect outside processes, and (Linux 6.12) to signal them. Needs
    `holdfast.supervisor.confinement.seccomp_notify.give_up_privileges`. Returns False if the kernel cannot (Linux
    5.19).
    """
    found = version()
    if found < _REFER_SINCE:
        return False
    # A domain that handles no file access does not restrict mounts either.
    handled = _REFER | _MAKE_DEVICE
    attributes = struct.pack("=Q", handled)
    if found >= SCOPES_SINCE:
        attributes = struct.pack("=QQQ", handled, 0, _SCOPE_SIGNALS)
    ruleset = _check(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        _allow(ruleset, b"/", handled)
        _check(_libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def keep_abstract_sockets_apart() -> bool:
    """Keep this process and all it starts from connecting to abstract Unix sockets of other processes, which a network
    namespace that is shared does not. Needs `holdfast.supervisor.confinement.seccomp_notify.give_up_privileges`.
    Returns False if the kernel cannot (Linux 6.12).
    """
    if version() < SCOPES_SINCE:
        return False
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKETS)
    ruleset = _check(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        _check(_libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def make_ruleset() -> int | None:
    """The descriptor, close-on-exec, of an empty rule set. None without Landlock, and in every supervised tree: its
    filter refuses the call (`holdfast.supervisor.syscalls.table.REFUSED`), and no keeper carries it out.
    """
    ruleset = _libc.syscall(_CREATE, struct.pack("=Q", _WRITE_FILE), ctypes.c_size_t(8), 0)
    return ruleset if ruleset >= 0 else None


def is_ruleset(fd: int) -> bool:
    """Whether a descriptor is what `make_ruleset` gives."""
    return os.readlink(b"/proc/self/fd/%d" % fd) == b"anon_inode:[landlock-ruleset]"


def writable(closed: Sequence[bytes]) -> Iterator[bytes]:
    """The paths that may be opened for writing: `_OPEN`, without the ``closed`` directories inside."""
    waiting = list(_OPEN)
    while waiting:
        path = waiting.pop()
        if any(each == path or path.startswith(each + b"/") for each in closed):
            continue
        if any(each.startswith(path + b"/") for each in closed):
            # A parent of a closed directory: its other entries are open, except links, which lead elsewhere.
            with os.scandir(path) as entries:
                waiting += [entry.path for entry in entries if not entry.is_symlink()]
        else:
            yield path


def _allow(ruleset: int, path: bytes, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it is not there, or went away
    try:
        rule = struct.pack("=Qi", access, fd)
        _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(fd)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
