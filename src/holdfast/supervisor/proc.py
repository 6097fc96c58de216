"""``/proc``, where the same path means something else to everybody who looks; and what is mounted, which it says."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from holdfast.files.kernel import file_system
from holdfast.supervisor.mounts import mounts

if TYPE_CHECKING:
    from holdfast.supervisor.territory import Where

_BOUNDS = frozenset({b"", b"/"})
_CUTTING = frozenset({b"afs", b"ceph", b"cifs", b"lustre", b"nfs", b"nfs4", b"smb3"})
"""Types of file systems that may have a server open a file, and cut it short, before a domain is asked about it (the
kernel's ``atomic_open``). On others a file is found first.
"""
_PROC_SUPER_MAGIC = 0x9FA0


def is_native(fd: int, where: Where, mode: int) -> bool:
    """Whether only the caller itself can open what ``fd`` refers to: its own terminal, a file about itself."""
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return is_below(where.absolute, (b"/dev",))
    return is_below(where.absolute, (b"/sys",)) or is_in_proc(fd)


def is_in_proc(fd: int) -> bool:
    """Whether the object is of a file system in which a path means something else to everybody who looks, wherever and
    for whomever that is mounted.
    """
    return file_system(fd) == _PROC_SUPER_MAGIC


def is_setting(fd: int, where: Where) -> bool:
    """Whether the object is a file in ``/proc`` that is about no process: a setting of the kernel's, for everybody."""
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
