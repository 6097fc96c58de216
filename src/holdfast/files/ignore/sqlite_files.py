"""SQLite's files: a database and its logs, which are one state only together (https://sqlite.org/fileformat2.html).

``NAME-wal`` contains commits that are not in ``NAME`` yet, ``NAME-journal`` the data for rolling ``NAME`` back.
``NAME-shm`` is an index of the former, rebuilt by the first program that opens the database.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from holdfast.files.linux.directory_users import DirectoryUser, command_of
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

MAGIC = b"SQLite format 3\0"
LOGS = (b"-wal", b"-journal")
"""Suffixes of the names of a database's logs."""
INDEX = b"-shm"

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def database_of(name: bytes) -> bytes | None:
    """The name of the database of a log called ``name``; None if that is no name of a log."""
    for end in LOGS:
        if name.endswith(end) and len(name) > len(end):
            return name[: -len(end)]
    return None


def with_companions(path: bytes) -> tuple[bytes, ...]:
    """``path`` and what would belong to the same database, if it were one's."""
    base = database_of(path) or path
    return (path, base, *(base + end for end in LOGS))


def is_database(dir_fd: int, name: bytes) -> bool:
    """True if the regular file ``name`` in the open directory begins as SQLite's files do; no link is followed."""
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            return False
        fd = os.open(name, _OPEN, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        return os.pread(fd, len(MAGIC), 0) == MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


def openers_of(files: Collection[tuple[int, int]], names: Collection[bytes]) -> list[DirectoryUser]:
    """The processes that have open one of ``files``, by device and inode, or a file that had one of the absolute paths
    ``names`` and was removed or replaced: other processes than this, as far as this user may inspect them.

    (A program continues with a removed database, and makes its next journal beside the file that has the name by then.)
    """
    gone = frozenset(name + b" (deleted)" for name in names)
    return sorted(
        DirectoryUser(int(process), command_of(b"/proc/" + process))
        for process in os.listdir(b"/proc")
        if process.isdigit() and int(process) != os.getpid() and _has_open(b"/proc/" + process, files, gone)
    )


def _has_open(process: bytes, files: Collection[tuple[int, int]], gone: Collection[bytes]) -> bool:
    with suppress(OSError):
        for name in os.listdir(process + b"/fd"):
            with suppress(OSError):
                link = process + b"/fd/" + name
                about = os.stat(link)
                ours = (about.st_dev, about.st_ino) in files or (not about.st_nlink and os.readlink(link) in gone)
                if ours and not _is_only_a_place(process, name):
                    return True
    return False


def _is_only_a_place(process: bytes, name: bytes) -> bool:
    """True for an ``O_PATH`` descriptor, by which nothing is read or written."""
    with open(process + b"/fdinfo/" + name, "rb") as file:
        return any(line.startswith(b"flags:") and int(line[6:], 8) & os.O_PATH for line in file)
