"""Proves that a checkpoint contains all of a removed file, and that no process writes to it.

This is checked once the file has lost its name. No process can open it by that any more, so a file without a writer
then never changes again.
"""

from __future__ import annotations

import os
import stat

from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.files.write.rooted_access import open_regular
from holdfast.model.content import CHUNK_BYTES
from holdfast.model.entries import file_entry, symlink_entry
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import Hasher, hash_bytes

if TYPE_CHECKING:
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash

CHANGED = "changed since it was looked at"
IN_USE = "a program has it open for writing"

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class FileIdentity(NamedTuple):
    """Identifies an unchanged file, link or directory under a name. A rename does not change it."""

    inode: int
    mode: int
    size: int
    mtime_ns: int


def identity_of(info: os.stat_result) -> FileIdentity:
    """The identity of what ``info`` describes."""
    return FileIdentity(info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns)


class DisplacedFile:
    """A file or link to be replaced or removed."""

    __slots__ = ("certain", "doubtful", "entry", "expected")

    def __init__(self, expected: FileIdentity, entry: Entry, *, doubtful: bool) -> None:
        """``doubtful``: it may have changed without another `FileIdentity` since it was found to be ``entry``."""
        self.expected = expected
        self.entry = entry
        self.doubtful = doubtful
        self.certain = False
        """True once the kernel has said that no process can write to it."""

    def reason_to_keep(self, dir_fd: int, name: bytes, *, stays: bool = False) -> str | None:
        """Why the file that is called ``name`` now must not be lost; None if a checkpoint holds all of it. ``stays``:
        it is not removed but written over, and so are its other names. Raises `OSError`.
        """
        info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if identity_of(info) != self.expected:
            return CHANGED
        if not stat.S_ISREG(info.st_mode):
            self.certain = True  # a link never gets another target
            return None
        if info.st_nlink > 1 and not stays:
            return None  # its other names show what is written to it
        try:
            fd = os.open(name, _READ, dir_fd=dir_fd)
        except PermissionError:
            return None
        try:
            writer = writer_of(fd)
            if writer is WriterStatus.SOME:
                return IN_USE
            self.certain = writer is WriterStatus.NONE
            return CHANGED if self.doubtful and _hash_of(fd) != self.entry.hash else None
        finally:
            os.close(fd)


def read_entry(dir_fd: int, name: bytes, info: os.stat_result) -> Entry | None:
    """The entry of the file or link by its content; None if it is neither or changes while it is read."""
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(name, dir_fd=dir_fd)
        return symlink_entry(hash_bytes(target), len(target))
    fd = open_regular(dir_fd, name)
    if fd is None:
        return None
    try:
        content, after = _hash_of(fd), os.fstat(fd)
        if identity_of(after) != identity_of(info) or after.st_ctime_ns != info.st_ctime_ns:
            return None
        return file_entry(content, info.st_size, info.st_mode)
    finally:
        os.close(fd)


def _hash_of(fd: int) -> Hash:
    hasher = Hasher()
    while piece := os.read(fd, CHUNK_BYTES):
        hasher.update(piece)
    return hasher.hash()
