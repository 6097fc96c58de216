"""Leases on files: to ask the kernel whether one has a writer now, memory mappings included, and for exclusive use.

Source: fcntl(2), "Leases". A lease is available only to the file's owner or with CAP_LEASE, and not on every file
system. On some it is incomplete: a file of an overlay passes its mappings on to a file of a layer, and once its
descriptor is closed the file itself does not show the mapping. FUSE may do the same (passthrough).
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from functools import cache

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import ClassVar

_READ = fcntl.F_RDLCK
_WRITE = fcntl.F_WRLCK
_RELEASE = fcntl.F_UNLCK
_SET = fcntl.F_SETLEASE
_SET_SIGNAL = fcntl.F_SETSIG
_SIGURG = 23
_GENERIC = frozenset(("aarch64", "armv7l", "i686", "ppc64le", "riscv64", "s390x", "x86_64"))
"""Machines on which it has that number (asm-generic/signal.h). To load `signal`, and `enum` for it, takes 2 ms."""
_OVERLAYFS, _FUSE = 0x794C7630, 0x65735546
_HAND_ON = frozenset((_OVERLAYFS, _FUSE))
"""Magic numbers of file systems whose files may be mapped through others (linux/magic.h)."""


class WriterStatus:
    """The kernel's answer about a file's writers: one of four."""

    __slots__ = ("meaning",)

    NONE: ClassVar[WriterStatus]
    SOME: ClassVar[WriterStatus]
    FORBIDDEN: ClassVar[WriterStatus]
    UNSUPPORTED: ClassVar[WriterStatus]

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning

    def __repr__(self) -> str:
        return f"<Writer: {self.meaning}>"


WriterStatus.NONE = WriterStatus("no process has it open or mapped for writing")
WriterStatus.SOME = WriterStatus("a process has")
WriterStatus.FORBIDDEN = WriterStatus("we may not know: it belongs to others, and we lack the privilege")
WriterStatus.UNSUPPORTED = WriterStatus("the file system has no leases, or they do not tell of every mapping")


def writer_of(fd: int, handing_on: dict[int, bool] | None = None) -> WriterStatus:
    """Whether a process has the file open or mapped for writing.

    ``fd`` is a regular file opened for reading only. The lease is given back before this returns. ``handing_on``
    contains findings about file systems, by device, and is added to: for calls for many files at about the same time.
    """
    try:
        _take(fd, _READ)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return WriterStatus.SOME
        return WriterStatus.FORBIDDEN if error.errno in (errno.EACCES, errno.EPERM) else WriterStatus.UNSUPPORTED
    fcntl.fcntl(fd, _SET, _RELEASE)
    return WriterStatus.UNSUPPORTED if _hands_on(fd, handing_on) else WriterStatus.NONE


def is_written(fd: int) -> bool:
    """Whether the kernel says that the file is open or mapped for writing: `WriterStatus.SOME`, for half of the system
    calls.

    ``fd`` is a regular file opened for reading only, which the caller closes next: a lease ends with its descriptor.
    """
    try:
        _take(fd, _READ)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return False


@contextmanager
def exclusive_lease(fd: int) -> Generator[bool]:
    """For the length of the block, a process that opens the regular file ``fd`` (open for writing) waits until the
    block ends; a non-blocking open gets EAGAIN.

    False, without effect, if there is no lease: a process has the file open, it belongs to others, or the file system
    has no leases.
    """
    try:
        _take(fd, _WRITE)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # the kernel has taken it back: a process has waited too long
            fcntl.fcntl(fd, _SET, _RELEASE)


def _take(fd: int, kind: int) -> None:
    # The default signal for a broken lease, SIGIO, would kill this process. This one is ignored by default.
    fcntl.fcntl(fd, _SET_SIGNAL, _ignored())
    fcntl.fcntl(fd, _SET, kind)


@cache
def _ignored() -> int:
    if os.uname().machine in _GENERIC:
        return _SIGURG
    from signal import SIGURG

    return int(SIGURG)


def _hands_on(fd: int, known: dict[int, bool] | None) -> bool:
    """True if the file's mappings may be those of another file."""
    device = os.fstat(fd).st_dev
    if os.major(device):
        return False  # the file system has a device of its own, as most have: no need to ask
    found = None if known is None else known.get(device)
    if found is None:
        from holdfast.files.linux import syscalls

        found = syscalls.file_system(fd) in _HAND_ON
        if known is not None:
            known[device] = found
    return found
