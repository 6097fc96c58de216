"""The caller's own parts of ``/proc``, ``/dev`` and ``/sys``, and the process of a directory in a ``/proc``.

A process's directory in a ``/proc`` leads to that process's own objects. The kernel checks the reader, and shows a
process of a tree only its own tree (landlock(7)). It would show the keeper more: other trees, outside processes, and
the keeper itself. So the keeper decides here, before it opens anything there, by the process of a directory, whatever
path, mount or number leads to it.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import cache
from typing import TYPE_CHECKING

from holdfast.files.linux.process_credentials import numbers_of
from holdfast.files.linux.syscalls import file_system
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.supervisor.resolution.mount_table import mounts

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.path_resolver import PathResolver
    from holdfast.supervisor.resolution.territory import Location

_BOUNDS = frozenset({b"", b"/"})
_CUTTING = frozenset({b"afs", b"ceph", b"cifs", b"lustre", b"nfs", b"nfs4", b"smb3"})
"""Types of file systems whose server may open and truncate a file before a domain is checked (the kernel's
``atomic_open``). Others look the file up first.
"""
_PROC_SUPER_MAGIC = 0x9FA0
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NAMESPACE = "ns/pid"
"""An entry that only a process's directory in a ``/proc`` has."""
_SELF = "self"
"""An entry that only its root has."""


def is_native(fd: int, where: Location, mode: int) -> bool:
    """Whether only the caller itself can open what ``fd`` refers to: its own terminal, a file about itself."""
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return is_below(where.absolute, (b"/dev",))
    return is_below(where.absolute, (b"/sys",)) or is_in_proc(fd)


def is_in_proc(fd: int) -> bool:
    """Whether the object is in a file system whose paths mean another object to each process, wherever mounted."""
    return file_system(fd) == _PROC_SUPER_MAGIC


def is_setting(fd: int, where: Location) -> bool:
    """Whether the object is a file in ``/proc`` that is about no process: a setting of the kernel's, for the whole
    machine.
    """
    if not is_in_proc(fd):
        return False
    parts = where.absolute.split(b"/")[1:]
    return not parts[1].isdigit() if parts[0] == b"proc" and parts[1:] else not any(part.isdigit() for part in parts)


def is_below(path: bytes, directories: tuple[bytes, ...]) -> bool:
    """Whether the path is one of the directories, or beneath one."""
    for directory in directories:
        if path.startswith(directory) and path[len(directory) : len(directory) + 1] in _BOUNDS:
            return True
    return False


def may_cut_unasked() -> bool:
    """Whether a file system is mounted, as the keeper sees it, that may cut short what a domain forbids to open."""
    return any(mount.type in _CUTTING for mount in mounts())


class ProcessIdentity(NamedTuple):
    """Identifies a process, by the same values in every ``/proc``."""

    namespace: str
    """Its pid namespace."""
    number: int
    """Its number there."""


def identify(process: int) -> ProcessIdentity:
    """The process, or the thread's, that a directory in a ``/proc`` is about. Raises `OSError`."""
    return ProcessIdentity(os.readlink(_NAMESPACE, dir_fd=process), numbers_of(process).processes[-1])


def is_caller_itself(resolver: PathResolver, directory: int) -> bool:
    """Whether the directory is the caller's own in a ``/proc``.

    Raises `OSError`: EACCES if it is that of a process, or a thread, outside of the caller's tree.
    """
    if not is_in_proc(directory):
        return False
    at = _find_process(directory)
    if at < 0:
        return False
    try:
        found = identify(at)
        if found == resolver.caller.process:
            return True
        # The number of a living process is not reused, from the first check to the last.
        if resolver.holds(_number(at, found)) and identify(at) == found:
            return False
    finally:
        os.close(at)
    raise _refused()


def own_numbers(resolver: PathResolver, root: int) -> tuple[int, int]:
    """The numbers of the caller's process and thread in the ``/proc`` with this root directory.

    Raises `OSError`: ENOENT if they are not in there.
    """
    if os.fstat(root).st_dev == _own_device():
        return resolver.caller.tgid, resolver.caller.tid
    own = resolver.caller.process
    for numbers in zip(*numbers_of(resolver.caller.fd), strict=True):
        try:
            at = os.open(b"%d" % numbers[0], _DIRECTORY, dir_fd=root)
        except FileNotFoundError:
            continue
        try:
            if identify(at) == own:
                return numbers
        finally:
            os.close(at)
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _find_process(directory: int) -> int:
    """A descriptor, to be closed, of the process's directory that this one is, or is in; -1 if there is none.

    Raises `OSError`: EACCES if that is unknown, because only a part of a ``/proc`` is mounted there.
    """
    at = os.dup(directory)
    try:
        while not _exists(_NAMESPACE, at):
            if _exists(_SELF, at):
                os.close(at)
                return -1
            above = os.open(b"..", _DIRECTORY, dir_fd=at)
            os.close(at)
            at = above
            if not is_in_proc(at):
                raise _refused()
    except BaseException:
        os.close(at)
        raise
    return at


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _number(at: int, process: ProcessIdentity) -> int:
    """The keeper's number of the process that is open as ``at``; 0 if it does not see it."""
    if os.fstat(at).st_dev == _own_device():
        return numbers_of(at).processes[0]
    for name in os.listdir(b"/proc"):
        if name.isdigit():
            try:
                other = os.open(b"/proc/" + name, _DIRECTORY)
            except OSError:
                continue  # it has ended
            try:
                if identify(other) == process:
                    return int(name)
            except OSError:
                continue  # or is not visible to the keeper
            finally:
                os.close(other)
    return 0


@cache
def _own_device() -> int:
    return os.stat("/proc").st_dev


def _refused() -> OSError:
    return OSError(errno.EACCES, os.strerror(errno.EACCES))
