"""The files that a change removes: moved aside at once, removed at the end, and found again after a crash."""

from __future__ import annotations

import errno
import os
import stat

from holdfast.files.linux import syscalls
from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.files.linux.file_writers import files_being_written
from holdfast.files.write import atomic_replacement
from holdfast.files.write.displaced_file import read_entry
from holdfast.files.write.rooted_access import open_regular
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.files.write.atomic_replacement import TemporaryMarks, TemporaryNames
    from holdfast.files.write.displaced_file import DisplacedFile
    from holdfast.files.write.rooted_access import Root

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
_WRITTEN = "was written to while it was taken away"
_LEFT = "another process wrote it while a restore was cut short; it is kept under this name"


class _Waiting(NamedTuple):
    parent: bytes
    temporary: bytes
    path: bytes
    """The path that it had."""
    taken: DisplacedFile


class Trash:
    """The files that one call has moved aside and not yet deleted. For one thread."""

    def __init__(self, root: Root, names: TemporaryNames) -> None:
        """Creates nothing before the first removal."""
        self._root = root
        self._names = names
        self._waiting: list[_Waiting] = []
        self._directory: bytes | None = None
        """The temporary directory in the root for removed files; empty if none can be made there, None if none is made
        yet.
        """

    def add(self, parent: bytes, temporary: bytes, path: bytes, taken: DisplacedFile) -> None:
        """Take over the file ``temporary`` in the directory ``parent``, which was ``path``; it may be gone already."""
        self._waiting.append(_Waiting(parent, temporary, path, taken))

    def take(self, path: bytes, taken: DisplacedFile) -> str | None:
        """Remove the file or link at ``path`` if it is still the one to be ``taken``; otherwise return the reason."""
        dir_fd, name = self._root.locate(path)
        aside = self._names.aside(taken)
        directory = self._moved_to()
        if directory:
            try:
                reason = atomic_replacement.move_aside(dir_fd, name, self._root.directory(directory), aside, taken)
                if reason is None:
                    self.add(directory, aside, path, taken)
                return reason
            except OSError as error:
                if error.errno != errno.EXDEV and error.errno not in _NO_ROOM:
                    raise
        # It is on another file system than the root, or there is no room for one more name. So it is moved aside in its
        # own directory, and removed at once: the directory may have to be removed, too.
        reason = atomic_replacement.move_aside(dir_fd, name, dir_fd, aside, taken)
        if reason is None and not taken.certain:
            reason = self._lost(_Waiting(path.rpartition(b"/")[0], aside, path, taken), dir_fd, files_being_written())
        if reason is None:
            _unlink(dir_fd, aside)
        return reason

    def holds_room(self) -> bool:
        """True if files wait to be removed."""
        return bool(self._waiting)

    def empty(self) -> tuple[set[bytes], list[NotCaptured]]:
        """Remove all files. Returns the changed directories, and the files that were written to since they were taken:
        they stay beside their places, under names that show this. Ignores files that are gone.
        """
        touched: set[bytes] = set()
        kept: list[NotCaptured] = []
        written: set[tuple[int, int]] | None = None
        while self._waiting:
            item = self._waiting.pop()
            try:
                dir_fd = self._root.directory(item.parent)
                if not item.taken.certain:
                    written = files_being_written() if written is None else written
                    if (reason := self._lost(item, dir_fd, written)) is not None:
                        kept.append(NotCaptured(item.path, reason))
                        touched.add(item.path.rpartition(b"/")[0])
                        continue
                _unlink(dir_fd, item.temporary)
            except HoldfastError:
                continue  # the directory was moved away or swapped: `clean` finds the rest still in the tree
            if item.parent != self._directory:
                touched.add(item.parent)
        if self._directory:
            try:
                self._root.rmdir(self._directory)
            except NotFoundError:
                pass
            touched.add(b"")
        self._directory = None
        return touched, kept

    def _lost(self, item: _Waiting, dir_fd: int, written: set[tuple[int, int]]) -> str | None:
        """Keep a file with unknown writers if it has changed since it was taken, or a process has it open for writing;
        returns the reason. None if it may be removed.
        """
        try:
            info = os.stat(item.temporary, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        item.taken.doubtful = True
        reason = item.taken.reason_to_keep(dir_fd, item.temporary)
        if reason is None and (info.st_nlink > 1 or (info.st_dev, info.st_ino) not in written):
            return None
        try:
            target_fd, name = self._root.locate(item.path)
            shown = display(item.path)
        except NotFoundError:
            target_fd, name = self._root.fd, item.path.rpartition(b"/")[2]
            shown = display(name)
        kept = atomic_replacement.keep_beside(target_fd, item.temporary, name, src_fd=dir_fd)
        return f"{_WRITTEN}: the written file is kept as {(shown.rpartition('/')[0] + '/').lstrip('/')}{display(kept)}"

    def _moved_to(self) -> bytes:
        if self._directory is None and syscalls.only_grows(self._root.fd):
            self._directory = b""  # it would stay for ever
        if self._directory is None:
            name = self._names.new()
            try:
                os.mkdir(name, 0o700, dir_fd=self._root.fd)
            except FileExistsError:
                return self._moved_to()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    return b""  # the next one may find the space that this one frees
                if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
                    raise
                name = b""
            self._directory = name
        return self._directory


class Leftovers:
    """Removes what a killed call has left, and keeps what another process put there at the last moment."""

    def __init__(self, root: Root, names: TemporaryNames) -> None:
        """Nothing is touched yet."""
        self._root = root
        self._names = names
        self._written: set[tuple[int, int]] | None = None
        self.removed = 0
        """How many files and links were removed."""
        self.kept: list[NotCaptured] = []
        """Files with a name that no cleaning removes."""

    def remove(self, path: bytes, info: os.stat_result) -> None:
        """Remove the temporary ``path`` of the killed call, or keep it, beside its exchange partner if that exists."""
        dir_fd, name = self._root.locate(path)
        beside = path.rpartition(b"/")[0]
        if not stat.S_ISDIR(info.st_mode) or self._names.marks(name) is not None:
            self._remove_one(dir_fd, name, dir_fd, beside, info)
            return
        for inner in self._root.list(path):
            if self._names.owns(inner):
                about = self._root.lstat(path + b"/" + inner)
                self._remove_one(self._root.directory(path), inner, dir_fd, beside, about)
        self.removed += remove_tree(self._root, path)

    def _remove_one(self, dir_fd: int, name: bytes, beside_fd: int, beside: bytes, info: os.stat_result) -> None:
        """Remove a file or link that is ours; keep any other, and a directory that took the place of one, whole."""
        marks = self._names.marks(name)
        if marks is None or self._is_ours(dir_fd, name, info, marks):
            self.removed += _unlink(dir_fd, name)
            return
        kept = atomic_replacement.keep_beside(beside_fd, name, self._exchanged_with(beside, marks), src_fd=dir_fd)
        self.kept.append(NotCaptured(beside + b"/" + kept if beside else kept, _LEFT))

    def _is_ours(self, dir_fd: int, name: bytes, info: os.stat_result, marks: TemporaryMarks) -> bool:
        """True if it is what the call made, or what the call was to take away and no process can write to any more."""
        try:
            found = read_entry(dir_fd, name, info)
            if found is None:
                return False
            mark = atomic_replacement.digest(found)
            return mark == marks.made or (mark == marks.taken and not self._has_writer(dir_fd, name, info))
        except PermissionError:
            return False

    def _has_writer(self, dir_fd: int, name: bytes, info: os.stat_result) -> bool:
        fd = open_regular(dir_fd, name)
        if fd is None:
            return False  # a link
        try:
            writer = writer_of(fd)
        finally:
            os.close(fd)
        if writer in (WriterStatus.FORBIDDEN, WriterStatus.UNSUPPORTED):
            self._written = files_being_written() if self._written is None else self._written
            return (info.st_dev, info.st_ino) in self._written
        return writer is WriterStatus.SOME

    def _exchanged_with(self, directory: bytes, marks: TemporaryMarks) -> bytes:
        """The name in ``directory`` of the file that the call made and exchanged with it."""
        for name in self._root.list(directory) if marks.made else ():
            try:
                dir_fd, _ = self._root.locate(directory + b"/" + name if directory else name)
                found = read_entry(dir_fd, name, os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
            except (HoldfastError, OSError):
                continue
            if found is not None and atomic_replacement.digest(found) == marks.made:
                return name
        return b"found"


def remove_tree(root: Root, path: bytes) -> int:
    """Remove the directory ``path`` with its content, following no link; returns the number of files and links.

    Raises `NotFoundError` if it is missing, and the error of any path that cannot be removed.
    """
    removed = 0
    todo = [(path, False)]
    while todo:
        at, emptied = todo.pop()
        if emptied:
            root.rmdir(at)
            continue
        todo.append((at, True))
        for name in root.list(at):
            inner = at + b"/" + name
            if stat.S_ISDIR(root.lstat(inner).st_mode):
                todo.append((inner, False))
            else:
                root.unlink(inner)
                removed += 1
    return removed


def remove_hollow(root: Root, path: bytes) -> bool:
    """Remove the directory ``path`` if only directories are in it, at any depth; False, and all stays, otherwise."""
    found = [path]
    for at in found:  # grows while it is walked
        try:
            inside = [at + b"/" + name for name in root.list(at)]
            if not all(stat.S_ISDIR(root.lstat(inner).st_mode) for inner in inside):
                return False
        except RefusedError:
            return False  # reserved, or a name that no path of ours may have, such as .git
        found += inside
    root.remember_modes(found)
    return all(root.rmdir(at) for at in reversed(found))


def _unlink(dir_fd: int, name: bytes) -> int:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return 0
    return 1
