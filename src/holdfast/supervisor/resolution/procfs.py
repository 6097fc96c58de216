"""What is the caller's own in ``/proc``, ``/dev`` and ``/sys``, and which process a directory of a ``/proc`` is about.

What a ``/proc`` says of a process leads to what is that process's own. The kernel asks who looks, and lets a process of
a tree see what belongs to its own tree alone (landlock(7)). Asked by the keeper it would let the keeper see: what the
keeper looks after, what is outside, and itself. So the keeper decides here, before it opens anything there, and by the
process that a directory is about, whatever path, mount or number leads to it.
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
"""Types of file systems that may have a server open a file, and cut it short, before a domain is asked about it (the
kernel's ``atomic_open``). On others a file is found first.
"""
_PROC_SUPER_MAGIC = 0x9FA0
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NAMESPACE = "ns/pid"
"""What a ``/proc`` has of every process, and nowhere else."""
_SELF = "self"
"""What it has in its root alone."""


def is_native(fd: int, where: Location, mode: int) -> bool:
    """Whether only the caller itself can open what ``fd`` refers to: its own terminal, a file about itself."""
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return is_below(where.absolute, (b"/dev",))
    return is_below(where.absolute, (b"/sys",)) or is_in_proc(fd)


def is_in_proc(fd: int) -> bool:
    """Whether the object is of a file system in which a path means something else to each process that looks, wherever
    that is mounted.
    """
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
    """A process, by the same words whichever ``/proc`` tells of it."""

    namespace: str
    """Its pid namespace."""
    number: int
    """What it is called in that."""


def identify(process: int) -> ProcessIdentity:
    """The process, or the thread's, that a directory in a ``/proc`` is about. Raises `OSError`."""
    return ProcessIdentity(os.readlink(_NAMESPACE, dir_fd=process), numbers_of(process).processes[-1])


def is_caller_itself(resolver: PathResolver, directory: int) -> bool:
    """Whether the directory is what a ``/proc`` says of the caller itself.

    Raises `OSError`: EACCES if it is what one says of a process, or a thread, that is not of the caller's tree.
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
        # (No other process gets the number of one that is there, from the first look to the last.)
        if resolver.holds(_number(at, found)) and identify(at) == found:
            return False
    finally:
        os.close(at)
    raise _refused()


def own_numbers(resolver: PathResolver, root: int) -> tuple[int, int]:
    """What the caller's process and thread are called in the ``/proc`` whose root directory this is.

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
    """A descriptor, to be closed, of the directory of the process that this one is, or lies in; -1 if there is none.

    Raises `OSError`: EACCES if that cannot be told, because no more than a part of a ``/proc`` is mounted there.
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
    """What the keeper calls the process that is open as ``at``; 0 if it does not see it."""
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
                continue  # or is none of those that the keeper may look at
            finally:
                os.close(other)
    return 0


@cache
def _own_device() -> int:
    return os.stat("/proc").st_dev


def _refused() -> OSError:
    return OSError(errno.EACCES, os.strerror(errno.EACCES))
