"""The system calls that can change a file system object, or open one for writing: their names and numbers.

A name here is that of an entry in the kernel's table (``openat``, ``fchmodat2``). Every variant is a call of its own:
x86-64 has the old forms without a directory descriptor as well, aarch64 has only the newer ones.

Sources: ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``scripts/syscall.tbl`` of Linux 6.18.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.undo.safeguards.guard import LOSING_MODES

if TYPE_CHECKING:
    from collections.abc import Mapping


class Architecture(NamedTuple):
    """The facts about a machine for the filter."""

    audit: int
    """``AUDIT_ARCH_*``, which identifies the table of a number."""
    numbers: Mapping[str, int]
    """Of every name below that the machine has."""
    foreign_bit: int
    """Set in numbers of another table under the same ``audit`` (x32); 0 if there is none."""


_COMMON: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "openat2": 437,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_setattr": 469,
}

LAST_KNOWN: Final = 470
"""The largest number that was examined for this table (``listns``). A later kernel's calls might change files in
unknown ways: they are refused as unknown, as older kernels would.
"""

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "x86_64": Architecture(
        0xC000003E,
        _COMMON
        | {
            "open": 2,
            "ioctl": 16,
            "bind": 49,
            "fcntl": 72,
            "truncate": 76,
            "ftruncate": 77,
            "rename": 82,
            "mkdir": 83,
            "rmdir": 84,
            "creat": 85,
            "link": 86,
            "unlink": 87,
            "symlink": 88,
            "chmod": 90,
            "fchmod": 91,
            "chown": 92,
            "fchown": 93,
            "lchown": 94,
            "umask": 95,
            "setuid": 105,
            "setgid": 106,
            "setreuid": 113,
            "setregid": 114,
            "setgroups": 116,
            "setresuid": 117,
            "setresgid": 119,
            "setfsuid": 122,
            "setfsgid": 123,
            "capset": 126,
            "utime": 132,
            "mknod": 133,
            "setpriority": 141,
            "sched_setparam": 142,
            "sched_setscheduler": 144,
            "vhangup": 153,
            "pivot_root": 155,
            "prctl": 157,
            "chroot": 161,
            "acct": 163,
            "mount": 165,
            "umount2": 166,
            "swapon": 167,
            "reboot": 169,
            "iopl": 172,
            "ioperm": 173,
            "init_module": 175,
            "delete_module": 176,
            "quotactl": 179,
            "setxattr": 188,
            "lsetxattr": 189,
            "fsetxattr": 190,
            "removexattr": 197,
            "lremovexattr": 198,
            "fremovexattr": 199,
            "sched_setaffinity": 203,
            "exit_group": 231,
            "utimes": 235,
            "kexec_load": 246,
            "ioprio_set": 251,
            "openat": 257,
            "mkdirat": 258,
            "mknodat": 259,
            "fchownat": 260,
            "futimesat": 261,
            "unlinkat": 263,
            "epoll_ctl": 233,
            "renameat": 264,
            "linkat": 265,
            "symlinkat": 266,
            "fchmodat": 268,
            "unshare": 272,
            "utimensat": 280,
            "fallocate": 285,
            "prlimit64": 302,
            "open_by_handle_at": 304,
            "setns": 308,
            "finit_module": 313,
            "sched_setattr": 314,
            "renameat2": 316,
            "kexec_file_load": 320,
            "bpf": 321,
            "fanotify_init": 300,
            "pwritev2": 328,
            "userfaultfd": 323,
        },
        0x40000000,
    ),
    "aarch64": Architecture(
        0xC00000B7,
        _COMMON
        | {
            "setxattr": 5,
            "lsetxattr": 6,
            "fsetxattr": 7,
            "removexattr": 14,
            "lremovexattr": 15,
            "fremovexattr": 16,
            "epoll_ctl": 21,
            "fcntl": 25,
            "ioctl": 29,
            "ioprio_set": 30,
            "mknodat": 33,
            "mkdirat": 34,
            "unlinkat": 35,
            "symlinkat": 36,
            "linkat": 37,
            "renameat": 38,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "truncate": 45,
            "ftruncate": 46,
            "fallocate": 47,
            "chroot": 51,
            "fchmod": 52,
            "fchmodat": 53,
            "fchownat": 54,
            "fchown": 55,
            "openat": 56,
            "vhangup": 58,
            "quotactl": 60,
            "utimensat": 88,
            "acct": 89,
            "capset": 91,
            "exit_group": 94,
            "unshare": 97,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "sched_setparam": 118,
            "sched_setscheduler": 119,
            "sched_setaffinity": 122,
            "setpriority": 140,
            "reboot": 142,
            "setregid": 143,
            "setgid": 144,
            "setreuid": 145,
            "setuid": 146,
            "setresuid": 147,
            "setresgid": 149,
            "setfsuid": 151,
            "setfsgid": 152,
            "setgroups": 159,
            "umask": 166,
            "prctl": 167,
            "bind": 200,
            "swapon": 224,
            "prlimit64": 261,
            "fanotify_init": 262,
            "open_by_handle_at": 265,
            "setns": 268,
            "finit_module": 273,
            "sched_setattr": 274,
            "renameat2": 276,
            "bpf": 280,
            "userfaultfd": 282,
            "pwritev2": 287,
            "kexec_file_load": 294,
        },
        0,
    ),
}

REFUSED: Final[Mapping[str, int]] = {
    # Programs without io_uring read and write as usual; its operations are invisible to a filter.
    **dict.fromkeys(("io_uring_setup", "io_uring_enter", "io_uring_register"), errno.ENOSYS),
    # Memory that answers when its owner likes would hold up the thread that reads a call's arguments.
    "userfaultfd": errno.ENOSYS,
    # Mounts and roots must not change while paths are resolved; the last four calls write files of their own.
    **dict.fromkeys(
        (
            "mount", "umount2", "pivot_root", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig",
            "fsmount", "fspick", "mount_setattr", "swapon", "acct", "quotactl", "quotactl_fd",
        ),
        errno.EPERM,
    ),
    # Calls that change or end the kernel affect our own processes; no domain restricts root.
    **dict.fromkeys(
        ("bpf", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "iopl",
         "ioperm"),
        errno.EPERM,
    ),
    # It would take the terminal away from the person who is asked there.
    "vhangup": errno.EPERM,
    # The keeper's operations are outside of a caller's own domain, so the caller must not rely on one.
    **dict.fromkeys(("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"), errno.EOPNOTSUPP),
}  # fmt: skip
"""Calls that always fail with this error."""

KEPT_IN: Final[Mapping[str, int]] = {
    **{name: error for name, error in REFUSED.items() if not name.startswith(("io_uring_", "userfaultfd"))},
    # Files under a mount could be reached from another namespace, or by a handle.
    **dict.fromkeys(("setns", "open_by_handle_at"), errno.EPERM),
}
"""The same where a mount records changes, which depends on no call: only ways past the mount, and changes to our own
processes.
"""

REFUSED_IOCTLS: Final[Mapping[int, int]] = {
    0x40806685: errno.EOPNOTSUPP,  # FS_IOC_ENABLE_VERITY
    0x800C6613: errno.EOPNOTSUPP,  # FS_IOC_SET_ENCRYPTION_POLICY
    0x50009401: errno.EPERM,  # BTRFS_IOC_SNAP_CREATE
    0x5000940E: errno.EPERM,  # BTRFS_IOC_SUBVOL_CREATE
    0x5000940F: errno.EPERM,  # BTRFS_IOC_SNAP_DESTROY
    0x50009417: errno.EPERM,  # BTRFS_IOC_SNAP_CREATE_V2
    0x50009418: errno.EPERM,  # BTRFS_IOC_SUBVOL_CREATE_V2
    0x4008941A: errno.EPERM,  # BTRFS_IOC_SUBVOL_SETFLAGS
    0x5000943F: errno.EPERM,  # BTRFS_IOC_SNAP_DESTROY_V2
    0xC038586B: errno.EPERM,  # XFS_IOC_OPEN_BY_HANDLE
    0xAA00: errno.EPERM,  # USERFAULTFD_IOC_NEW: like the call userfaultfd
    0x5412: errno.EPERM,  # TIOCSTI: types into the terminal
    0x541C: errno.EPERM,  # TIOCLINUX: pastes into a virtual console
    0x5423: errno.EPERM,  # TIOCSETD: the layer between the terminal and its readers
    0x5437: errno.EPERM,  # TIOCVHANGUP: the terminal is no session's any more
    0x4B47: errno.EPERM,  # KDSKBENT: what a key of a virtual console means; so the next four
    0x4B49: errno.EPERM,  # KDSKBSENT
    0x4B4B: errno.EPERM,  # KDSKBDIACR
    0x4B4D: errno.EPERM,  # KDSETKEYCODE
    0x4BFB: errno.EPERM,  # KDSKBDIACRUC
}
"""Changes of files that no other call makes and nothing here could reverse, on descriptors for reading; memory that
would block the thread that reads it; and calls that could answer a question at the terminal in a person's place.
"""

STOLEN_TERMINAL: Final = (0x540E, 1)
"""The ``ioctl`` (TIOCSCTTY), and its argument, by which an administrator takes a terminal from another session."""

PERMISSION_EVENTS: Final = 0xC
"""Flags of ``fanotify_init`` (FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT) that let the caller delay and refuse each
opening of a file, by the keeper and by every other process of the machine.
"""

NOTIFIED_IOCTLS: Final[Mapping[str, int]] = {
    "FS_IOC_SETFLAGS": 0x40086602,
    "FS_IOC32_SETFLAGS": 0x40046602,
    "FS_IOC_SETVERSION": 0x40087602,
    "EXT4_IOC_SETVERSION": 0x40086604,
    "FS_IOC_FSSETXATTR": 0x401C5820,
    "FAT_IOCTL_SET_ATTRIBUTES": 0x40047211,
}
"""Requests of ``ioctl`` that reach the keeper. Those that write content need a descriptor for writing."""

NOTIFIED_PRCTLS: Final[Mapping[str, int]] = {"PR_CAPBSET_DROP": 24, "PR_SET_SECUREBITS": 28}
"""Of ``prctl``, these reach the keeper: what the caller, or a child of its, executes next may be left with less."""


class TargetArgument(NamedTuple):
    """The argument that names the process which a call changes."""

    pid: int
    """The number of the argument: 0 there is the caller."""
    pointer: int | None = None
    """If this argument is a null pointer, nothing is set."""
    kind: int | None = None
    """This argument says what the number is one of."""
    process: int = 0
    """``kind`` for a process; the next two values are a process group and a user's processes."""


TARGETS: Final[Mapping[str, TargetArgument]] = {
    "prlimit64": TargetArgument(0, pointer=2),
    "sched_setaffinity": TargetArgument(0),
    "sched_setattr": TargetArgument(0),
    "sched_setparam": TargetArgument(0),
    "sched_setscheduler": TargetArgument(0),
    "setpriority": TargetArgument(1, kind=0, process=0),
    "ioprio_set": TargetArgument(1, kind=0, process=1),
}
"""Calls on processes that no domain restricts. On the caller itself they pass, on another process they reach the
keeper, and on a group or a user they fail with EPERM: outsiders may be among these.
"""

WAITED_FOR: Final = ("epoll_ctl", 1, 1)
"""The call by which readiness of a file is waited for, and the argument that says so (EPOLL_CTL_ADD). A file system of
FUSE cannot say that its regular files are always ready, which is EPERM on others: so the process that answers for the
tree does.
"""

F_SETFL: Final = 4
"""Of ``fcntl``: with it a descriptor need not append any more."""

LOSING_FLAGS: Final = {"fallocate": (1, LOSING_MODES), "pwritev2": (5, 0x20)}
"""Of these, calls with any of the flags in the argument of this number: the modes that lose content, RWF_NOAPPEND."""

LOSING: Final = frozenset({"ftruncate", "fcntl", *LOSING_FLAGS})
LOSING_IOCTLS: Final = (0x40305829, 0x4030582B, 0x40305839)
"""Requests that lose content through a descriptor that is open for writing: they reach the keeper if safeguards are on,
and then run natively. (Two numbers of FS_IOC_UNRESVSP, and FS_IOC_ZERO_RANGE, are ``fallocate`` by other names.) The
question about a file opened for overwriting was asked then.
"""

OPEN_FLAGS: Final[Mapping[str, int]] = {"open": 1, "openat": 2}
"""Calls that reach the keeper only for writing or creating, by the number of their flags argument."""

NOTIFIED: Final = frozenset(
    {
        "open", "creat", "openat", "openat2", "open_by_handle_at",
        "truncate",
        "unlink", "unlinkat", "rmdir",
        "rename", "renameat", "renameat2",
        "link", "linkat", "symlink", "symlinkat",
        "mkdir", "mkdirat", "mknod", "mknodat", "bind",
        "chmod", "fchmod", "fchmodat", "fchmodat2",
        "chown", "fchown", "lchown", "fchownat",
        "utime", "utimes", "futimesat", "utimensat",
        "setxattr", "lsetxattr", "fsetxattr", "setxattrat",
        "removexattr", "lremovexattr", "fremovexattr", "removexattrat",
        "file_setattr", "ioctl",
        "umask", "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid",
        "setgroups", "capset", "prctl", "chroot", "unshare", "setns",
        "prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "setpriority",
        "ioprio_set",
        "exit_group",
    }
)  # fmt: skip
"""Calls that reach the keeper, where the machine has them. Writes, mappings and ``ftruncate`` on a descriptor that is
open for writing pass by: the content was captured at its opening. The last five lines change no file, but their
callers' credentials and views, or processes that may be outside of the tree (`TARGETS`). An exit is included because a
process's parent, which determines its step, is lost with it.
"""


def numbers(machine: str, names: frozenset[str] | Mapping[str, int]) -> dict[int, str]:
    """Number → name, of those of ``names`` that the machine has. `KeyError` for a machine that is not supported."""
    return {number: name for name, number in ARCHITECTURES[machine].numbers.items() if name in names}
