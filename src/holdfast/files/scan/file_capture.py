"""Reads one file or link so that the hashed content is that of one moment."""

from __future__ import annotations

import errno
import os
import stat
import time

from holdfast.files.ignore.sqlite_files import MAGIC
from holdfast.files.index.stat_index import FAILED, KNOWN, NOT_CAPTURED, RACY, Signature, signature_of
from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.errors import StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.files.scan._write_quiescence import WriteQuiescence
    from holdfast.model.content import BlobSink
    from holdfast.model.ids import Hash

TRIES = 3
UNSTABLE = "unstable: it changed each time it was read"

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TICK_NS = 20_000_000
"""Longer than the interval of the kernel's coarse clock, which stamps files: 10 ms at the lowest timer frequency."""
_SECOND_NS = 1_000_000_000
_COARSE_TICK_NS = 2 * _SECOND_NS
"""Of file systems that keep whole seconds, or every second one."""
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))

_KINDS = {
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class CaptureResult(NamedTuple):
    """The result of capturing one path."""

    signature: Signature
    flag: int
    """One of the flags of the index."""
    hash: Hash | None
    reason: str | None
    """Why there is no hash."""
    database: bool = False
    """Whether it is a database of SQLite, by its first bytes."""


class _StoppedError(Exception):
    """The file changed (``cause`` is None) or became unreadable while it was streamed."""

    def __init__(self, cause: OSError | None = None) -> None:
        self.cause = cause


def is_racy(signature: Signature, moment: int) -> bool:
    """True if a change after ``moment`` (nanoseconds since 1970) might leave the same signature.

    That is possible while the file system's clock may still show the time of the file's last change.
    """
    mtime, ctime = signature[:2]
    tick = _TICK_NS if ctime % _SECOND_NS or mtime % _SECOND_NS else _COARSE_TICK_NS
    return ctime >= moment - tick or abs(moment - mtime) <= tick


def failure(error: OSError) -> str:
    """The reason to give for an unreadable path. Raises `StorageError` if this process lacks a resource: then nothing
    is known about the path.
    """
    if error.errno in _EXHAUSTED:
        raise StorageError(f"the tree cannot be read: {error.strerror}") from error
    return f"unreadable: {error.strerror}"


def capture(
    dir_fd: int,
    name: bytes,
    seen: Signature,
    moment: int,
    sink: BlobSink,
    previous: Hash | None,
    max_file_bytes: int,
    stillness: WriteQuiescence,
) -> CaptureResult | None:
    """Look at ``name`` in the open directory, which looked like ``seen`` at ``moment`` or later; None if it is gone.

    A mode of 0 in ``seen`` means that it was not examined yet. No link is followed, and only a regular file is opened.
    Errors of the sink are passed on.
    """
    try:
        for attempt in range(TRIES):
            if attempt or not seen.mode:
                moment = time.time_ns()
                seen = signature_of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
            kind = stat.S_IFMT(seen.mode)
            if kind == stat.S_IFREG:
                found = _capture_file(dir_fd, name, seen, moment, sink, previous, max_file_bytes, stillness)
            elif kind == stat.S_IFLNK:
                found = _capture_link(dir_fd, name, seen, moment, sink, previous)
            else:
                return CaptureResult(seen, NOT_CAPTURED, None, _KINDS.get(kind, "changed while it was looked at"))
            if found is not None:
                return found
    except FileNotFoundError:
        return None
    except OSError as error:
        return CaptureResult(seen, FAILED, None, failure(error))
    return CaptureResult(seen, FAILED, None, UNSTABLE)


def _capture_link(
    dir_fd: int, name: bytes, seen: Signature, moment: int, sink: BlobSink, previous: Hash | None
) -> CaptureResult | None:
    try:
        target = os.readlink(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
    if signature_of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False)) != seen or len(target) != seen.size:
        return None
    return _captured(seen, moment, _add(sink, target, previous), writer=False)


def _capture_file(
    dir_fd: int,
    name: bytes,
    seen: Signature,
    moment: int,
    sink: BlobSink,
    previous: Hash | None,
    max_file_bytes: int,
    stillness: WriteQuiescence,
) -> CaptureResult | None:
    size = seen.size
    if size > max_file_bytes:
        return too_large(seen, max_file_bytes)
    fd = _open(dir_fd, name)
    if fd is None:
        return None
    try:
        state = writer_of(fd, stillness.handing_on)
        # If it is unknown whether a file has a writer, every scan reads it again: slower, never wrong.
        writer = state in (WriterStatus.SOME, WriterStatus.FORBIDDEN)
        if state in (WriterStatus.SOME, WriterStatus.UNSUPPORTED):
            # Stores through a memory mapping change the file's times when they are written back at the latest, and the
            # next store changes them again.
            if state is WriterStatus.SOME:
                _sync(fd)
            else:
                moment = min(moment, stillness.since(fd))
            seen = signature_of(os.fstat(fd))
            size = seen.size
            if size > max_file_bytes:
                return too_large(seen, max_file_bytes)
        if size <= SMALL_BLOB_BYTES:
            data = os.read(fd, size + 1)
            if len(data) != size or signature_of(os.fstat(fd)) != seen:
                return None
            found = _captured(seen, moment, _add(sink, data, previous), writer)
            return found._replace(database=True) if data.startswith(MAGIC) else found
        database = os.pread(fd, len(MAGIC), 0) == MAGIC
        try:
            value, taken = sink.add_stream(_pieces(fd, seen))
        except _StoppedError as stopped:
            if stopped.cause is not None:
                raise stopped.cause from None
            return None
        except OSError as error:
            raise _sink_error(error) from error
        return _captured(seen, moment, value, writer)._replace(database=database) if taken == size else None
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise


def _add(sink: BlobSink, data: bytes, previous: Hash | None) -> Hash:
    """`BlobSink.add`, with an `OSError` of the sink kept apart from those of the tree."""
    try:
        return sink.add(data, previous)
    except OSError as error:
        raise _sink_error(error) from error


def _sink_error(error: OSError) -> StorageError:
    return StorageError(f"content could not be stored: {error.strerror}", hint=room_hint(error))


def _pieces(fd: int, seen: Signature) -> Iterator[bytes]:
    """The content in pieces; raises `_StoppedError`, at the latest at the end, if the file differs from ``seen``."""
    left = seen.size
    while left:
        try:
            piece = os.read(fd, min(CHUNK_BYTES, left))
        except OSError as error:
            raise _StoppedError(error) from error
        if not piece:
            raise _StoppedError
        left -= len(piece)
        yield piece
    if signature_of(os.fstat(fd)) != seen:
        raise _StoppedError


def peek(dir_fd: int, name: bytes, most: int) -> bytes | None:
    """The present content of the file ``name``, perhaps half written; None if it is no regular file of at most ``most``
    bytes, or cannot be read at once.
    """
    try:
        if not _is_small(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), most):
            return None
        fd = _open(dir_fd, name)
        if fd is None:
            return None
        try:
            if not _is_small(os.fstat(fd), most):
                return None
            data = os.read(fd, most + 1)
            return data if len(data) <= most else None
        finally:
            os.close(fd)
    except OSError:
        return None


def _is_small(about: os.stat_result, most: int) -> bool:
    return stat.S_ISREG(about.st_mode) and about.st_size <= most


def _open(dir_fd: int, name: bytes) -> int | None:
    """A descriptor of the file, or None if it is a link or a socket by now. Leaves the access time, if allowed."""
    try:
        try:
            fd = os.open(name, _OPEN | os.O_NOATIME, dir_fd=dir_fd)
        except PermissionError:
            fd = os.open(name, _OPEN, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    return fd


def _captured(seen: Signature, moment: int, value: Hash, writer: bool) -> CaptureResult:
    return CaptureResult(seen, RACY if writer or is_racy(seen, moment) else KNOWN, value, None)


def too_large(seen: Signature, max_file_bytes: int) -> CaptureResult:
    """The result for a file that is larger than the limit."""
    reason = f"too large: {seen.size} bytes, the limit is {max_file_bytes} (max_file_bytes)"
    return CaptureResult(seen, NOT_CAPTURED, None, reason)
