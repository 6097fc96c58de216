"""The preimages: what a step would have lost, kept in the log under the number of its record.

An object is kept by renaming it into the log, by another name for it, or by a copy of its content. The log lies on the
same mount as the tree, so that all three are possible; whether each works is found out by trying.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.files.linux.exclusive_rename import rename_to_free
from holdfast.files.linux.metadata import apply_metadata, proc_path, read_metadata
from holdfast.files.linux.reflink import copy_content
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_log = Log(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_DELETED = " (deleted)"
_BUCKETS = 256
_NAME = re.compile(r"[0-9a-f]{16}")


class NameCounts:
    """The number of names that each object has in the undo log: link counts are shown without these. For any number of
    threads.

    The first question lists the log, so a log whose counts are never shown costs nothing.
    """

    def __init__(self) -> None:
        self.on_first: Callable[[], object] = lambda: None
        """Called before the first listing: from then on `add` has to be called for every name."""
        self._lock = threading.Lock()
        self._inodes: dict[int, int] | None = None
        """By number of the preimage; None before the first question."""
        self._counts: Counter[int] = Counter()

    def count(self, inode: int, listed: Callable[[], dict[int, int]]) -> int:
        """How many. ``listed`` lists all inode numbers, by number of the preimage."""
        if self._inodes is None:
            self.on_first()
            with self._lock:
                if self._inodes is None:
                    inodes = listed()
                    self._counts = Counter(inodes.values())
                    self._inodes = inodes
        return self._counts.get(inode, 0)

    def add(self, number: int, look: Callable[[int], os.stat_result | None]) -> None:
        """Count a name that an object has got there. ``look`` returns its `stat`."""
        if self._inodes is None and not self._lock.locked():  # a thread that is listing them may have passed it
            return
        with self._lock:
            found = look(number)
            if self._inodes is None or found is None or number in self._inodes:
                return
            self._inodes[number] = found.st_ino
            self._counts[found.st_ino] += 1

    def drop(self, number: int) -> None:
        """The name is gone."""
        if self._inodes is None and not self._lock.locked():
            return
        with self._lock:
            inode = None if self._inodes is None else self._inodes.pop(number, None)
            if inode is not None:
                self._counts[inode] -= 1
                if not self._counts[inode]:
                    del self._counts[inode]


class Preimages:
    """The directory of preimages. Every method raises `OSError`; nothing is durable until synced."""

    def __init__(self, directory: bytes) -> None:
        """Open ``directory``, making it and its 256 parts if they are missing."""
        os.makedirs(directory, 0o700, exist_ok=True)
        self._prefix = os.fsdecode(os.path.realpath(directory)) + "/"
        self.fd = os.open(directory, _DIRECTORY)
        found = frozenset(os.listdir(self.fd))
        for part in (f"{bucket:02x}" for bucket in range(_BUCKETS)):
            if part not in found:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=self.fd)
        self._device = os.fstat(self.fd).st_dev
        self._named = NameCounts()

    @property
    def on_count(self) -> Callable[[], object]:
        """Called before it is first asked how many names an object has here: `move_in` and its like have to be called
        for each from then on.
        """
        return self._named.on_first

    @on_count.setter
    def on_count(self, on_count: Callable[[], object]) -> None:
        self._named.on_first = on_count

    def close(self) -> None:
        """Close the directory; harmless a second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def move_in(self, dir_fd: int, name: bytes, number: int) -> None:
        """Rename an object into the log. Its name is gone from the tree at the same moment."""
        rename_to_free(dir_fd, name, self.fd, preimage_path(number))
        self._named.add(number, self.metadata_of)

    def link_in(self, dir_fd: int, name: bytes, number: int) -> None:
        """Give an object a second name, in the log."""
        os.link(name, preimage_path(number), src_dir_fd=dir_fd, dst_dir_fd=self.fd, follow_symlinks=False)
        self._named.add(number, self.metadata_of)

    def copy_in(self, src_fd: int, number: int) -> int:
        """Copy the content of the open file; whole or not there at all. Returns the bytes that were copied."""
        place = preimage_path(number)
        temporary = place + b".new"
        fd = os.open(temporary, _NEW, 0o600, dir_fd=self.fd)
        try:
            copied = copy_content(src_fd, fd)
            os.rename(temporary, place, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            os.unlink(temporary, dir_fd=self.fd)
            raise
        finally:
            os.close(fd)
        return copied

    def break_off(self, number: int) -> int:
        """Put a copy in the place of a file or an empty directory that is kept itself: a process that has it open does
        not change the preimage.

        Atomic. Returns the bytes that were copied.
        """
        source = self.open(number)
        try:
            place = preimage_path(number)
            temporary = place + b".new"
            is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
            if is_directory:
                os.mkdir(temporary, 0o700, dir_fd=self.fd)
            target = os.open(temporary, _DIRECTORY if is_directory else _NEW, 0o600, dir_fd=self.fd)
            try:
                copied = 0 if is_directory else copy_content(source, target)
                apply_metadata(target, read_metadata(source))
                os.rename(temporary, place, src_dir_fd=self.fd, dst_dir_fd=self.fd)
                self._named.drop(number)
            except BaseException:
                _remove(temporary, self.fd)
                raise
            finally:
                os.close(target)
            return copied
        finally:
            os.close(source)

    def number_of(self, fd: int) -> int | None:
        """The number of the preimage that the descriptor was opened as, or has become; None if it is none."""
        try:
            path = os.readlink(proc_path(fd))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return None  # the log's own paths are shorter
            raise
        if path.endswith(_DELETED) and (found := os.fstat(fd)).st_nlink:
            return self._search(found)  # it has lost the name by which it was opened, and has another
        if not path.startswith(self._prefix):
            return None
        _, _, name = path.rpartition("/")
        return int(name, 16) if _NAME.fullmatch(name) else None  # else it was detached before

    def _search(self, wanted: os.stat_result) -> int | None:
        for bucket in range(_BUCKETS):
            fd = os.open(b"%02x" % bucket, _DIRECTORY, dir_fd=self.fd)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        if (
                            entry.inode() == wanted.st_ino
                            and _NAME.fullmatch(entry.name)
                            and os.path.samestat(entry.stat(follow_symlinks=False), wanted)
                        ):
                            return int(entry.name, 16)
            finally:
                os.close(fd)
        return None

    def put_back(self, number: int, dir_fd: int, name: bytes) -> None:
        """Rename a preimage to its place in the tree, which must be free."""
        rename_to_free(self.fd, preimage_path(number), dir_fd, name)
        self._named.drop(number)

    def names_of(self, found: os.stat_result) -> int:
        """How many names of an object are in the log: a process that has the object open, or shows another of its
        names, does not count them.

        From any thread. The first question has the whole log listed; from then on it is known.
        """
        if found.st_dev != self._device:
            return 0
        return self._named.count(found.st_ino, self._listed)

    def _listed(self) -> dict[int, int]:
        inodes: dict[int, int] = {}
        for bucket in range(_BUCKETS):
            fd = os.open(b"%02x" % bucket, _DIRECTORY, dir_fd=self.fd)
            try:
                with os.scandir(fd) as entries:
                    inodes |= {int(entry.name, 16): entry.inode() for entry in entries if _NAME.fullmatch(entry.name)}
            finally:
                os.close(fd)
        return inodes

    def open(self, number: int) -> int:
        """A descriptor for reading a preimage that is a file; the caller closes it."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(preimage_path(number), flags, dir_fd=self.fd)

    def metadata_of(self, number: int) -> os.stat_result | None:
        """The metadata of a preimage; None if it is not there."""
        try:
            return os.stat(preimage_path(number), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_empty(self, number: int) -> bool:
        """Whether the directory that is kept under the number is empty."""
        return is_empty_directory(self.fd, preimage_path(number))

    def discard(self, number: int) -> None:
        """Delete a preimage; a missing one is no error."""
        found = self.metadata_of(number)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            try:
                os.rmdir(preimage_path(number), dir_fd=self.fd)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                # A process that had it open has made an entry in it, which is the process's own.
                _log.warning("the directory %s of the undo log is not empty, and stays", preimage_path(number).decode())
        else:
            os.unlink(preimage_path(number), dir_fd=self.fd)
        self._named.drop(number)

    def numbers(self) -> Iterator[int]:
        """The numbers of all preimages, unsorted; what a copy that was cut short has left is removed on the way."""
        for bucket in range(_BUCKETS):
            fd = os.open(b"%02x" % bucket, _DIRECTORY, dir_fd=self.fd)
            try:
                for name in os.listdir(fd):
                    if name.endswith(".new"):
                        _remove(name, fd)
                    elif _NAME.fullmatch(name):
                        yield int(name, 16)
            finally:
                os.close(fd)


def _remove(name: bytes | str, dir_fd: int) -> None:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except IsADirectoryError:
        os.rmdir(name, dir_fd=dir_fd)


def preimage_path(number: int) -> bytes:
    """Where a preimage lies, relative to the directory of preimages."""
    return b"%02x/%016x" % (number % _BUCKETS, number)


def is_empty_directory(dir_fd: int, name: bytes) -> bool:
    """Whether the directory ``name`` is empty. Raises `OSError`."""
    fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    try:
        with os.scandir(fd) as found:
            return next(found, None) is None
    finally:
        os.close(fd)
