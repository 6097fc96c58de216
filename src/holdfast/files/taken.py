"""What is taken away from the tree: the proof that it is what a checkpoint holds, and that nobody writes to it.

Asked once the file has lost its name, so that nobody new can open it: what then has no writer will never change again.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.lease import Writer, writer_of
from holdfast.model.ids import Hasher
from holdfast.model.sinks import CHUNK_BYTES

if TYPE_CHECKING:
    from holdfast.model.ids import Hash

CHANGED = "changed since it was looked at"
IN_USE = "a program has it open for writing"

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Identity(NamedTuple):
    """What tells that a name still holds the same, unchanged file, link or directory. A rename leaves it as it is."""

    inode: int
    mode: int
    size: int
    mtime_ns: int


def identity(info: os.stat_result) -> Identity:
    """The identity of what ``info`` describes."""
    return Identity(info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns)


class Taken:
    """A file or link that is to be replaced or removed."""

    __slots__ = ("certain", "doubtful", "expected", "hash")

    def __init__(self, expected: Identity, hash: Hash, *, doubtful: bool) -> None:  # noqa: A002 - the field's own name
        """``doubtful``: it may have changed without another `Identity` since it was found to hold ``hash``."""
        self.expected = expected
        self.hash = hash
        self.doubtful = doubtful
        self.certain = False
        """True once the kernel has said that nobody can write to it."""

    def problem(self, dir_fd: int, name: bytes) -> str | None:
        """Why what is called ``name`` now must not be lost; None if a checkpoint holds all of it. Raises `OSError`."""
        info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if identity(info) != self.expected:
            return CHANGED
        if not stat.S_ISREG(info.st_mode):
            self.certain = True  # a link never gets another target
            return None
        if info.st_nlink > 1:
            return None  # its other names hold what is written to it
        try:
            fd = os.open(name, _READ, dir_fd=dir_fd)
        except PermissionError:
            return None
        try:
            writer = writer_of(fd)
            if writer is Writer.SOME:
                return IN_USE
            self.certain = writer is Writer.NONE
            return CHANGED if self.doubtful and hash_of(fd) != self.hash else None
        finally:
            os.close(fd)


def hash_of(fd: int) -> Hash:
    """The hash of all that the open file holds from its present offset on."""
    hasher = Hasher()
    while piece := os.read(fd, CHUNK_BYTES):
        hasher.update(piece)
    return hasher.hash()
