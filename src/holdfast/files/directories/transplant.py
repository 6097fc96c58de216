"""Copies single entries of any kind from one directory tree to another: those that no checkpoint contains, and that
must be the same in both.

No link is followed on either side (I7). Each entry is replaced atomically; names of temporary files carry a nonce.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import give_metadata
from holdfast.files.linux import syscalls
from holdfast.files.linux.metadata import read_metadata
from holdfast.files.linux.reflink import copy_content

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ITSELF = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))


def transplant(source: bytes, target: bytes, paths: Iterable[bytes], *, nonce: str) -> list[bytes]:
    """Make the entry at each of ``paths`` in ``target`` the same as in ``source``; returns the paths that are
    obstructed.

    Entries missing in the source are removed from the target, a directory only if it is empty by then. Directories
    above a path are made as in the source. A repeated call completes an interrupted one. Nothing is durable before the
    file system is synced. Raises `OSError`.
    """
    source_fd, target_fd = os.open(source, _DIRECTORY), -1
    try:
        target_fd = os.open(target, _DIRECTORY)
        return _Transplant(source_fd, target_fd, nonce.encode()).run(sorted(set(paths)))
    finally:
        os.close(source_fd)
        if target_fd >= 0:
            os.close(target_fd)


class _Transplant:
    def __init__(self, source: int, target: int, nonce: bytes) -> None:
        self._source = source
        self._target = target
        self._temporary = b".holdfast-" + nonce
        self._root = os.geteuid() == 0

    def run(self, paths: list[bytes]) -> list[bytes]:
        left: list[bytes] = []
        gone: list[bytes] = []
        for path in paths:
            above, name = os.path.split(path)
            with self._opened(self._source, above) as source:
                found = None if source < 0 else _look(source, name)
                if found is None:
                    gone.append(path)
                elif not self._bring(source, above, name, found):
                    left.append(path)
        for path in reversed(gone):  # what lies deeper goes first
            above, name = os.path.split(path)
            with self._opened(self._target, above) as target:
                if target >= 0 and not _remove(target, name):
                    left.append(path)
        return sorted(left)

    def _bring(self, source: int, above: bytes, name: bytes, found: os.stat_result) -> bool:
        """Make the entry; False if it is obstructed."""
        if above and not self._directories(above):
            return False
        with self._opened(self._target, above) as target:
            if target < 0:
                return False
            there = _look(target, name)
            if stat.S_ISDIR(found.st_mode):
                if there is None:
                    os.mkdir(name, 0o700, dir_fd=target)
                elif not stat.S_ISDIR(there.st_mode):
                    return False
                self._give(source, target, name, name)
                return True
            if there is not None and stat.S_ISDIR(there.st_mode):
                return False
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=target)
            if stat.S_ISREG(found.st_mode):
                self._file(source, target, name)
            elif stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), self._temporary, dir_fd=target)
                self._give(source, target, name, self._temporary)
            elif stat.S_ISFIFO(found.st_mode) or (self._root and not stat.S_ISSOCK(found.st_mode)):
                os.mknod(self._temporary, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=target)
                self._give(source, target, name, self._temporary)
            else:
                return True  # a socket is part of no tree
            os.rename(self._temporary, name, src_dir_fd=target, dst_dir_fd=target)
            return True

    def _directories(self, path: bytes) -> bool:
        """Ensure that the directory ``path`` exists, as in the source; False if it is obstructed."""
        parts = path.split(b"/")
        for depth in range(1, len(parts) + 1):
            above, name = b"/".join(parts[: depth - 1]), parts[depth - 1]
            with self._opened(self._source, above) as source, self._opened(self._target, above) as target:
                if source < 0 or target < 0:
                    return False
                there = _look(target, name)
                if there is None:
                    os.mkdir(name, 0o700, dir_fd=target)
                    self._give(source, target, name, name)
                elif not stat.S_ISDIR(there.st_mode):
                    return False
        return True

    def _file(self, source: int, target: int, name: bytes) -> None:
        source_fd = os.open(name, _FILE, dir_fd=source)
        try:
            target_fd = os.open(self._temporary, _NEW_FILE, 0o600, dir_fd=target)
            try:
                copy_content(source_fd, target_fd)
                give_metadata(target_fd, read_metadata(source_fd, readable=True), root=self._root)
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def _give(self, source: int, target: int, name: bytes, made: bytes) -> None:
        """Give the new object the metadata of the entry ``name``."""
        source_fd = os.open(name, _ITSELF, dir_fd=source)
        try:
            target_fd = os.open(made, _ITSELF, dir_fd=target)
            try:
                give_metadata(target_fd, read_metadata(source_fd), root=self._root)
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    @contextmanager
    def _opened(self, top: int, path: bytes) -> Generator[int]:
        """The directory ``path``, reached without links; -1 if there is none."""
        try:
            fd = syscalls.openat2(top, path or b".", _DIRECTORY, _RULES)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            yield -1
            return
        try:
            yield fd
        finally:
            os.close(fd)


def _look(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove(directory: int, name: bytes) -> bool:
    """Remove an entry, if it is there; False for a directory that is not empty."""
    found = _look(directory, name)
    if found is None:
        return True
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=directory)
        return True
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True
