"""Makes the stat index of a whole copy from that of its source, so that a scan does not read the copy.

A snapshot of the file system shows the very same files: the source's index holds for it, as long as the signatures are
the same. A copied file is another file. Its content is known if two things hold. The source file still looks as it did
when it was hashed, so it has not changed in between. And the copy has its modification time, size and mode: a write to
the copy would have changed that time.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast.files.index.stat_index import COLUMNS, KNOWN, RACY, DirectoryColumns, load, numbers, signature_of
from holdfast.files.linux.long_paths import opened_below
from holdfast.files.scan.file_capture import is_racy

if TYPE_CHECKING:
    from holdfast.files.index.stat_index import StatIndex
    from holdfast.model.ids import Hash


def inherit(index: bytes, source: bytes, target: bytes, root: Hash, *, begun: int) -> StatIndex | None:
    """The index for ``target``, a new copy of ``source`` that Holdfast made after ``root`` was saved; None if the
    source's index is of another root. Changes nothing. Raises `OSError`.

    ``index`` is the source's index file, and ``begun`` (nanoseconds since 1970) a moment before the copying began. For
    a directory that was moved or changed since, no content is taken over: the copy may be of another directory, which
    was in its place for a time.
    """
    found = load(index)
    if found.root != root or found.delta:
        return None
    source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return found if _are_the_same(found, target_fd) else _matched(found, source_fd, target_fd, begun)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def _are_the_same(index: StatIndex, target: int) -> bool:
    """Whether the target is a snapshot: the first file with known content is the same file there. (A scan compares each
    of the others itself. If this is wrong, it reads them.)
    """
    for path, record in index.directories.items():
        columns = DirectoryColumns(record)
        for at, name in enumerate(columns.names):
            if columns.flags[at] == KNOWN:
                try:
                    with opened_below(target, path) as fd:
                        about = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError:
                    return False
                return numbers(signature_of(about)) == columns.row(at)
    return False


def _matched(index: StatIndex, source: int, target: int, begun: int) -> StatIndex:
    moment = time.time_ns()
    moved: set[bytes] = set()
    for path, record in sorted(index.directories.items()):
        columns = DirectoryColumns(record)
        try:
            with opened_below(source, path) as old, opened_below(target, path) as new:
                above = path.rpartition(b"/")[0]
                if is_racy(signature_of(os.fstat(old)), begun) or (path and above in moved):
                    moved.add(path)
                    _forget(columns)
                for at, name in enumerate(columns.names):
                    if columns.flags[at] == KNOWN:
                        _match(columns, at, name, old, new, moment)
        except OSError:
            continue  # it is gone, or was never copied: a scan finds that out
        index.directories[path] = columns.record()
    return index


def _forget(columns: DirectoryColumns) -> None:
    for at, flag in enumerate(columns.flags):
        columns.flags[at] = RACY if flag == KNOWN else flag


def _match(columns: DirectoryColumns, at: int, name: bytes, old: int, new: int, moment: int) -> None:
    try:
        before = signature_of(os.stat(name, dir_fd=old, follow_symlinks=False))
        after = signature_of(os.stat(name, dir_fd=new, follow_symlinks=False))
    except OSError:
        return
    same = (after.mtime_ns, after.size, after.mode) == (before.mtime_ns, before.size, before.mode)
    if same and numbers(before) == columns.row(at):
        flag = RACY if is_racy(after, moment) else KNOWN
        columns.stats[at * COLUMNS : (at + 1) * COLUMNS] = numbers(after)
        columns.flags[at] = flag
