"""The numbers of 9P2000.L. Sources: ``include/net/9p/9p.h`` of Linux, and diod's ``protocol.md``."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Final

VERSION: Final = b"9P2000.L"
UNKNOWN_VERSION: Final = b"unknown"
"""The answer to an unsupported version."""

NO_TAG: Final = (1 << 16) - 1
"""The tag of Tversion, and of nothing else."""
NO_FID: Final = (1 << 32) - 1
"""No fid; only Tattach may say so, of the fid for authentication."""
NO_ID: Final = (1 << 32) - 1
"""No user or group: a user who is named by text alone."""

HEADER_BYTES: Final = 7
DATA_HEADER_BYTES: Final = 11
"""Size of Rread and Rreaddir before their data: the header, and the number of bytes that follow."""
WRITE_HEADER_BYTES: Final = 23
IO_HEADER_BYTES: Final = 24
"""Clients subtract this from ``msize`` to get the most data of one message (``P9_IOHDRSZ``)."""
FIRST_FRAME_BYTES: Final = 8192
"""The longest message before a version is agreed upon."""
SMALLEST_MSIZE: Final = 4096
"""Linux accepts no smaller one; every message without data fits except the longest paths."""
LARGEST_MSIZE: Final = 1 << 20
"""Largest size that Linux uses over a socket."""

NAMES_MAX: Final = 16
"""The most components of one Twalk."""
NAME_MAX: Final = 255
TARGET_MAX: Final = 4095
"""The longest target of a symbolic link (``PATH_MAX`` without its NUL)."""
XATTR_NAME_MAX: Final = 255
XATTR_SIZE_MAX: Final = 1 << 16
OFFSET_MAX: Final = (1 << 63) - 1
MAJOR_MAX: Final = (1 << 12) - 1
MINOR_MAX: Final = (1 << 20) - 1
DIRECTORY_ENTRY_MAX: Final = 24 + NAME_MAX
"""The longest entry of an Rreaddir."""


class Type(IntEnum):
    """Requests. The reply to each has the next number, or is `RLERROR`."""

    STATFS = 8
    LOPEN = 12
    LCREATE = 14
    SYMLINK = 16
    MKNOD = 18
    RENAME = 20
    READLINK = 22
    GETATTR = 24
    SETATTR = 26
    XATTRWALK = 30
    XATTRCREATE = 32
    READDIR = 40
    FSYNC = 50
    LOCK = 52
    GETLOCK = 54
    LINK = 70
    MKDIR = 72
    RENAMEAT = 74
    UNLINKAT = 76
    VERSION = 100
    AUTH = 102
    ATTACH = 104
    FLUSH = 108
    WALK = 110
    READ = 116
    WRITE = 118
    CLUNK = 120
    REMOVE = 122


RLERROR: Final = 7

QT_DIRECTORY: Final = 0x80
QT_APPEND: Final = 0x40
QT_EXCLUSIVE: Final = 0x20
QT_AUTH: Final = 0x08
QT_TEMPORARY: Final = 0x04
QT_SYMLINK: Final = 0x02
QT_FILE: Final = 0x00

GETATTR_MODE: Final = 1 << 0
GETATTR_NLINK: Final = 1 << 1
GETATTR_UID: Final = 1 << 2
GETATTR_GID: Final = 1 << 3
GETATTR_RDEV: Final = 1 << 4
GETATTR_ATIME: Final = 1 << 5
GETATTR_MTIME: Final = 1 << 6
GETATTR_CTIME: Final = 1 << 7
GETATTR_INO: Final = 1 << 8
GETATTR_SIZE: Final = 1 << 9
GETATTR_BLOCKS: Final = 1 << 10
GETATTR_BTIME: Final = 1 << 11
GETATTR_GEN: Final = 1 << 12
GETATTR_DATA_VERSION: Final = 1 << 13
GETATTR_BASIC: Final = (1 << 11) - 1
GETATTR_ALL: Final = (1 << 14) - 1

SETATTR_MODE: Final = 1 << 0
SETATTR_UID: Final = 1 << 1
SETATTR_GID: Final = 1 << 2
SETATTR_SIZE: Final = 1 << 3
SETATTR_ATIME: Final = 1 << 4
SETATTR_MTIME: Final = 1 << 5
SETATTR_CTIME: Final = 1 << 6
SETATTR_ATIME_SET: Final = 1 << 7
SETATTR_MTIME_SET: Final = 1 << 8
SETATTR_ALL: Final = (1 << 9) - 1

AT_REMOVEDIR: Final = 0x200

LOCK_READ: Final = 0
LOCK_WRITE: Final = 1
LOCK_UNLOCK: Final = 2
LOCK_BLOCK: Final = 1
LOCK_RECLAIM: Final = 2


class LockStatus(IntEnum):
    """The answer to Tlock."""

    SUCCESS = 0
    BLOCKED = 1
    """Another lock conflicts. A client that waits asks again."""
    ERROR = 2
    GRACE = 3


ACCESS_MODE: Final = 3
OPEN_CREATE: Final = 0o100
OPEN_EXCLUSIVE: Final = 0o200
OPEN_FLAGS: Final = (
    (0o1000, os.O_TRUNC),
    (0o2000, os.O_APPEND),
    (0o4000, os.O_NONBLOCK),
    (0o10000, os.O_DSYNC),
    (0o200000, os.O_DIRECTORY),
    (0o400000, os.O_NOFOLLOW),
    (0o1000000, os.O_NOATIME),
    (0o4000000, os.O_SYNC),
)
"""Flags of Tlopen and Tlcreate, with those of this system. The protocol uses those of x86 on every machine; on ARM
``O_DIRECTORY`` differs.
"""
OPEN_IGNORED: Final = 0o400 | 0o20000 | 0o40000 | 0o100000 | 0o2000000
"""NOCTTY, FASYNC, LARGEFILE, CLOEXEC are the client's own affair, or so anyway. DIRECT would demand buffers here that
are aligned as the client's are.
"""
