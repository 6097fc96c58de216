"""The numbers of the FUSE protocol. Source: ``include/uapi/linux/fuse.h`` of Linux 6.18 (FUSE 7.45)."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

MAJOR: Final = 7
MINOR: Final = 45
OLDEST_MINOR: Final = 31
"""Linux 5.4, and what every virtio-fs guest speaks."""

ROOT: Final = 1
"""The node id of the root; 0 is no node."""

NAME_MAX: Final = 255
TARGET_MAX: Final = 4095
"""The longest target of a symbolic link (``PATH_MAX`` without its NUL)."""
XATTR_NAME_MAX: Final = 255
XATTR_SIZE_MAX: Final = 1 << 16
"""The longest value, and the longest list of names."""
OFFSET_MAX: Final = (1 << 63) - 1
NO_ID: Final = (1 << 32) - 1
"""An unknown user or group, or one that stays unchanged."""

MIN_READ_BUFFER: Final = 8192
RESEND_BIT: Final = 1 << 63
"""In a request's id: it may have been answered or worked on before."""


class Opcode(IntEnum):
    """The kinds of requests."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52
    COPY_FILE_RANGE_64 = 53


UNANSWERED: Final = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.NOTIFY_REPLY, Opcode.INTERRUPT})
"""No process waits for a reply to these. (Only INTERRUPT may have one: EAGAIN asks for a repetition, ENOSYS for no more
of them.)
"""


class Notice(IntEnum):
    """The kinds of notifications, in the place of a reply's error."""

    POLL = 1
    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RETRIEVE = 5
    DELETE = 6
    RESEND = 7
    INC_EPOCH = 8
    PRUNE = 9


class Init(IntFlag):
    """Features offered and accepted in INIT. The upper half is in a separate field."""

    ASYNC_READ = 1 << 0
    POSIX_LOCKS = 1 << 1
    FILE_OPS = 1 << 2
    ATOMIC_O_TRUNC = 1 << 3
    EXPORT_SUPPORT = 1 << 4
    BIG_WRITES = 1 << 5
    DONT_MASK = 1 << 6
    SPLICE_WRITE = 1 << 7
    SPLICE_MOVE = 1 << 8
    SPLICE_READ = 1 << 9
    FLOCK_LOCKS = 1 << 10
    HAS_IOCTL_DIR = 1 << 11
    AUTO_INVAL_DATA = 1 << 12
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    WRITEBACK_CACHE = 1 << 16
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    HANDLE_KILLPRIV = 1 << 19
    POSIX_ACL = 1 << 20
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24
    EXPLICIT_INVAL_DATA = 1 << 25
    MAP_ALIGNMENT = 1 << 26
    SUBMOUNTS = 1 << 27
    HANDLE_KILLPRIV_V2 = 1 << 28
    SETXATTR_EXT = 1 << 29
    INIT_EXT = 1 << 30
    SECURITY_CTX = 1 << 32
    HAS_INODE_DAX = 1 << 33
    CREATE_SUPP_GROUP = 1 << 34
    HAS_EXPIRE_ONLY = 1 << 35
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    PASSTHROUGH = 1 << 37
    NO_EXPORT_SUPPORT = 1 << 38
    HAS_RESEND = 1 << 39
    ALLOW_IDMAP = 1 << 40
    OVER_IO_URING = 1 << 41
    REQUEST_TIMEOUT = 1 << 42


# SETATTR: which fields count.
FATTR_MODE: Final = 1 << 0
FATTR_UID: Final = 1 << 1
FATTR_GID: Final = 1 << 2
FATTR_SIZE: Final = 1 << 3
FATTR_ATIME: Final = 1 << 4
FATTR_MTIME: Final = 1 << 5
FATTR_FH: Final = 1 << 6
FATTR_ATIME_NOW: Final = 1 << 7
FATTR_MTIME_NOW: Final = 1 << 8
FATTR_LOCKOWNER: Final = 1 << 9
FATTR_CTIME: Final = 1 << 10
FATTR_KILL_SUIDGID: Final = 1 << 11

# Flags in the answers to OPEN, CREATE, TMPFILE and OPENDIR.
FOPEN_DIRECT_IO: Final = 1 << 0
FOPEN_KEEP_CACHE: Final = 1 << 1
FOPEN_NONSEEKABLE: Final = 1 << 2
FOPEN_CACHE_DIR: Final = 1 << 3
FOPEN_STREAM: Final = 1 << 4
FOPEN_NOFLUSH: Final = 1 << 5
FOPEN_PARALLEL_DIRECT_WRITES: Final = 1 << 6
FOPEN_PASSTHROUGH: Final = 1 << 7

# Flags of single requests.
GETATTR_FH: Final = 1 << 0
OPEN_KILL_SUIDGID: Final = 1 << 0
READ_LOCKOWNER: Final = 1 << 1
WRITE_CACHE: Final = 1 << 0
"""Written back from the page cache: neither the process nor the handle need be those of the writer."""
WRITE_LOCKOWNER: Final = 1 << 1
WRITE_KILL_SUIDGID: Final = 1 << 2
RELEASE_FLUSH: Final = 1 << 0
RELEASE_FLOCK_UNLOCK: Final = 1 << 1
FSYNC_DATA_ONLY: Final = 1 << 0
SETXATTR_ACL_KILL_SGID: Final = 1 << 0
LOCK_FLOCK: Final = 1 << 0
POLL_SCHEDULE_NOTIFY: Final = 1 << 0

RENAME_NOREPLACE: Final = 1 << 0
RENAME_EXCHANGE: Final = 1 << 1
RENAME_WHITEOUT: Final = 1 << 2

# In attributes: further properties of a file for the kernel.
ATTR_SUBMOUNT: Final = 1 << 0
ATTR_DAX: Final = 1 << 1

EXPIRE_ONLY: Final = 1 << 0
"""INVAL_ENTRY: ask again at the next lookup, instead of dropping the name and everything below it at once."""

MAX_SECURITY_CONTEXTS: Final = 31
"""An extension's type, up to here, is a number of security contexts."""
EXTENSION_GROUPS: Final = 32
"""An extension's type: supplementary groups."""
