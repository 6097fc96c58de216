"""What a change takes away: moved aside at once, removed at the end, and found again after a crash."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.files import replace
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError

if TYPE_CHECKING:
    from holdfast.files.replace import Identity, TemporaryNames
    from holdfast.files.rooted import Root


class Trash:
    """The files that one call has taken away and not yet removed. For one thread."""

    def __init__(self, root: Root, names: TemporaryNames) -> None:
        """Nothing is created before something is taken away."""
        self._root = root
        self._names = names
        self._waiting: list[tuple[bytes, bytes]] = []
        self._directory: bytes | None = None
        """The temporary directory in the root that removed files are moved to; empty if the root takes none."""

    def add(self, parent: bytes, temporary: bytes) -> None:
        """Take charge of the file ``temporary`` in the directory ``parent``; it may be gone already."""
        self._waiting.append((parent, temporary))

    def take(self, path: bytes, expected: Identity) -> str | None:
        """Take the file or link at ``path`` away if it still is ``expected``; else return the reason."""
        dir_fd, name = self._root.place(path)
        aside = self._names.aside(expected)
        directory = self._moved_to()
        if directory:
            try:
                reason = replace.take_away(dir_fd, name, self._root.directory(directory), aside, expected)
                if reason is None:
                    self._waiting.append((directory, aside))
                return reason
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        # On another file system than the root: aside in its own directory, which may have to go, so it goes at once.
        reason = replace.take_away(dir_fd, name, dir_fd, aside, expected)
        if reason is None:
            _unlink(dir_fd, aside)
        return reason

    def empty(self) -> set[bytes]:
        """Remove all of it; returns the directories that changed by that. What is gone already is no error."""
        touched: set[bytes] = set()
        while self._waiting:
            parent, name = self._waiting.pop()
            try:
                _unlink(self._root.directory(parent), name)
            except HoldfastError:
                continue  # the directory was moved away or swapped: `clean` finds what is still in the tree
            if parent != self._directory:
                touched.add(parent)
        if self._directory:
            try:
                self._root.rmdir(self._directory)
            except NotFoundError:
                pass
            touched.add(b"")
        self._directory = None
        return touched

    def _moved_to(self) -> bytes:
        if self._directory is None:
            name = self._names.new()
            try:
                os.mkdir(name, 0o700, dir_fd=self._root.fd)
            except FileExistsError:
                return self._moved_to()
            except PermissionError:
                name = b""
            self._directory = name
        return self._directory


def remove_left_over(root: Root, names: TemporaryNames, path: bytes, info: os.stat_result) -> int:
    """Remove the temporary ``path`` that a killed call left; returns how many files and links that were.

    What was taken away but is not what the call meant to take belongs to someone else: it gets a name that stays.
    """
    dir_fd, name = root.place(path)
    if not stat.S_ISDIR(info.st_mode):
        if names.is_strange(name, info):
            replace.keep(dir_fd, name, b"found")
            return 0
        return _unlink(dir_fd, name)
    for inner in root.list(path):
        if names.owns(inner) and names.is_strange(inner, root.lstat(path + b"/" + inner)):
            os.rename(inner, inner, src_dir_fd=root.directory(path), dst_dir_fd=dir_fd)
            replace.keep(dir_fd, inner, b"found")
    return remove_tree(root, path)


def remove_tree(root: Root, path: bytes) -> int:
    """Remove the directory ``path`` with all that is in it, following no link; returns how many files and links that
    were.

    Raises `NotFoundError` if it is not there, and whatever else stops it on the way.
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
    """Remove the directory ``path`` if nothing but directories is in it, however deep; False, and all stays,
    otherwise.
    """
    found = [path]
    for at in found:  # grows while it is walked
        for name in root.list(at):
            inner = at + b"/" + name
            try:
                if not stat.S_ISDIR(root.lstat(inner).st_mode):
                    return False
            except EscapeError:
                return False  # a name that no path of ours may have, such as .git
            found.append(inner)
    return all(root.rmdir(at) for at in reversed(found))


def _unlink(dir_fd: int, name: bytes) -> int:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return 0
    return 1
