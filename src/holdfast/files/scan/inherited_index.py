"""The stat index of a whole copy, from that of the directory that it is a copy of: what is known is not read again.

A snapshot of the file system's shows the very same files: what the index says of the one holds of the other, as long as
the signature is the same. A file that was copied is another one. Its content is known if that which it is a copy of
looks now as it did when it was hashed, so that it has not changed in between, and if the copy has its time of
modification, size and mode: whoever writes to it gives it another time.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast.files.index.stat_index import COLUMNS, KNOWN, RACY, Columns, load, numbers, signature_of
from holdfast.files.linux.long_paths import opened_below
from holdfast.files.scan.file_capture import is_racy

if TYPE_CHECKING:
    from holdfast.files.index.stat_index import StatIndex
    from holdfast.model.ids import Hash


def inherit(index: bytes, source: bytes, target: bytes, root: Hash, *, begun: int) -> StatIndex | None:
    """The index for ``target``, which was made as a copy of ``source`` by ourselves just now, after ``root`` was saved;
    None where that would be of no use. ``index`` is the file of the source's; ``begun``, in nanoseconds since 1970, is
    a moment before the copy was begun: of a directory that was moved or changed since, nothing is known, as the copy
    may be one of what was in its place meanwhile. Changes nothing. Raises `OSError`.
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
    """Whether the first file that is known is the very one, which it is in a snapshot. (Of each other one a scan asks
    that again: where this is mistaken, the copy is read.)
    """
    for path, record in index.directories.items():
        columns = Columns(record)
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
        columns = Columns(record)
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


def _forget(columns: Columns) -> None:
    for at, flag in enumerate(columns.flags):
        columns.flags[at] = RACY if flag == KNOWN else flag


def _match(columns: Columns, at: int, name: bytes, old: int, new: int, moment: int) -> None:
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
