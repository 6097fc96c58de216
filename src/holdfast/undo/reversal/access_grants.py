"""Access that a step has taken from its own owner, granted while the step's changes there are reversed.

A user other than root may have closed a directory or a file to themselves. Earlier changes in it are reversed before
its mode is, so it is opened for that time.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import proc_path
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.records import Made, Meta, Move

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterator, Sequence

    from holdfast.undo.journal.records import Mutation
    from holdfast.undo.recorder.recorder import Recorder
    from holdfast.undo.tree.rooted_directories import Directories

_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def grant_access(
    recorder: Recorder, directories: Directories, record: Mutation, described: Container[Identity]
) -> Generator[tuple[bytes, ...]]:
    """For the length of the block, the objects of ``record`` and their parent directories are accessible to their
    owner.

    The grant is recorded in the open step of the same id. Yields the opened paths: none if nothing was closed, or
    belongs to another user. At the end each gets its mode back, except those in ``described``, whose mode a later
    record sets. Raises `OSError`.
    """
    opened: list[tuple[int, int, bool]] = []
    changed: list[bytes] = []
    try:
        for path in _from_the_root(record):
            try:
                fd = _open(directories, path)
            except FileNotFoundError:
                continue
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            opened.append((fd, mode, identity(fd, b"") not in described))
            _open_up(recorder, record, path, fd)
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                changed.append(path)
        yield tuple(changed)
    finally:
        for fd, mode, closes in reversed(opened):
            if closes and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.chmod(proc_path(fd), mode)
            os.close(fd)


def revoke_access(directories: Directories, noted: Sequence[Mutation], described: Container[Identity]) -> None:
    """Restore the modes of paths that a reversal had opened when its keeper was killed.

    ``noted`` are the reversal's records; ``described`` are objects whose mode its reversed records set. Others' changes
    since stay.
    """
    for record in reversed(noted):  # entries of a directory before the directory
        if not isinstance(record, Meta) or record.identity in described:
            continue
        with suppress(OSError):  # it is gone, or not ours to close
            fd = _open(directories, record.path)
            try:
                mode, now = record.metadata.mode, os.fstat(fd).st_mode
                if identity(fd, b"") == record.identity and now == with_access(stat.S_IFMT(now) | mode):
                    os.chmod(proc_path(fd), mode)
            finally:
                os.close(fd)


def _open_up(recorder: Recorder, record: Mutation, path: bytes, fd: int) -> None:
    found = os.fstat(fd)
    needed = with_access(found.st_mode)
    if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode != needed:
        recorder.before_metadata_change(record.step, Place(-1, b"", path), fd)
        os.chmod(proc_path(fd), stat.S_IMODE(needed))


def with_access(mode: int) -> int:
    """The mode, with the file type, of an object during the grant that had ``mode`` before."""
    return mode | (stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR | stat.S_IWUSR)


def _open(directories: Directories, path: bytes) -> int:
    if not path:
        return os.dup(directories.directory(b""))
    place = directories.place(path)
    return os.open(place.name, _OBJECT, dir_fd=place.dir_fd)


def _from_the_root(record: Mutation) -> Iterator[bytes]:
    """The paths of the record, after all that are above them."""
    if isinstance(record, Made):
        return
    yield b""
    for path in (record.path, record.target) if isinstance(record, Move) else (record.path,):
        for at, byte in enumerate(path):
            if byte == ord("/"):
                yield path[:at]
        if path:
            yield path
