"""The kernel's restrictions in sticky directories that others may write to, such as ``/tmp``: no following of another
user's link, and no opening with ``O_CREAT`` of another user's file. The kernel checks this when a name is opened; the
keeper opens the object that it has found, so it must check itself.

Sources: proc_sys_fs(5); ``may_follow_link`` and ``may_create_in_sticky`` in the kernel's ``fs/namei.c``.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

_OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH
_SETTINGS = {stat.S_IFREG: "protected_regular", stat.S_IFIFO: "protected_fifos"}
_GROUPS_TOO = 2


def check_link(directory: int, link: int, uid: int) -> None:
    """Raise `OSError` (EACCES) if ``uid`` may not follow the link that a path ends with in the directory."""
    found = os.fstat(link)
    if found.st_uid == uid:
        return
    above = os.fstat(directory)
    if above.st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL and above.st_uid != found.st_uid and _setting("protected_symlinks"):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def check_found(directory: int, found: os.stat_result, uid: int) -> None:
    """Raise `OSError` (EACCES) if ``uid`` may not open the found object in the directory with ``O_CREAT``."""
    name = _SETTINGS.get(stat.S_IFMT(found.st_mode))
    if name is None or found.st_uid == uid:
        return
    above = os.fstat(directory)
    if not above.st_mode & stat.S_ISVTX or above.st_uid == found.st_uid:
        return
    setting = _setting(name)
    if setting and (above.st_mode & stat.S_IWOTH or (above.st_mode & stat.S_IWGRP and setting >= _GROUPS_TOO)):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _setting(name: str) -> int:
    # Read each time, since it may change, and such directories are rare.
    with suppress(OSError, ValueError), open(f"/proc/sys/fs/{name}") as file:
        return int(file.read())
    return 0
