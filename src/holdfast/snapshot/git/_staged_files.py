"""Copies of changed files for Git to read: a process in the work tree can put a link into the path of any of them
between Git's check and its opening, and the content behind it would be in a commit.

Each is copied through its directory, which is opened without links. Files of attributes are copied as well; Git reads
the rest from the index.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux.reflink import copy_content
from holdfast.files.write.rooted_access import Root
from holdfast.model.errors import NotFoundError, RefusedError, StorageError
from holdfast.model.paths import display
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_ATTRIBUTES = b".gitattributes"
_TAKEN = (FileExistsError, NotADirectoryError)
"""Another of the paths has the place of this one, or of its directory: one of them has changed its type since."""
_GONE = (NotFoundError, RefusedError, *_TAKEN)
"""It is missing, or only reachable through a link: it has changed again since it was found changed."""


@contextmanager
def staged(work_tree: bytes, paths: Iterable[bytes], place: bytes) -> Generator[set[bytes]]:
    """Have copies of ``paths``, files and links in ``work_tree``, in the directory ``place`` under the same names,
    until the block ends; yields those that are directories, which are not copied. Missing ones are left out. Raises
    `StorageError` (``git_failed``) if one cannot be read, `OSError`.
    """
    remove_whole(place)
    make_private(place)
    try:
        with Root(work_tree) as root:
            try:
                directories = _copied(root, paths, place)
            except StorageError as error:
                why = f"a file in {display(work_tree)} cannot be captured: {error.message}"
                raise StorageError(why, hint=error.hint, code="git_failed") from error.__cause__
        yield directories
    finally:
        remove_whole(place)


def _copied(root: Root, paths: Iterable[bytes], place: bytes) -> set[bytes]:
    """Files first, with all directories, then links: so no name in ``place`` is ever reached through one of these
    links, even if a link becomes a directory meanwhile that contains another of the paths.
    """
    directories: set[bytes] = set()
    looked: set[bytes] = set()
    links: list[tuple[bytes, bytes]] = []
    for path in paths:
        above = os.path.dirname(path)
        with suppress(*_GONE):
            mode = root.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                directories.add(path)
                continue
            os.makedirs(os.path.join(place, above), exist_ok=True)
            if stat.S_ISLNK(mode):
                links.append((path, root.readlink(path)))
            else:
                _copy_file(root, path, os.path.join(place, path))
        while above not in looked:
            looked.add(above)
            with suppress(*_GONE):
                _copy_file(root, attributes := os.path.join(above, _ATTRIBUTES), os.path.join(place, attributes))
            above = os.path.dirname(above)
    for path, target in links:
        with suppress(*_TAKEN):
            os.symlink(target, os.path.join(place, path))
    return directories


def _copy_file(root: Root, path: bytes, target: bytes) -> None:
    fd = root.open_file(path)
    try:
        mode = 0o600 | os.fstat(fd).st_mode & 0o100
        with suppress(*_TAKEN):
            copy = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                copy_content(fd, copy)
            finally:
                os.close(copy)
    finally:
        os.close(fd)
