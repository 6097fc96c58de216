"""The journal: records framed in segment files, appended before their operations.

docs/formats/undo-log.md specifies the bytes. An appended record is in the kernel and survives a kill of the process; it
survives a power loss only with ``sync``.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from typing import TYPE_CHECKING
from zlib import crc32

from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.undo.journal.records import AnyRecord, JournalRestart, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast._hot import Log

_MAGIC = b"HFUJ\x00\x00\x00\x01"
_FRAME = struct.Struct("<II")
_NUMBER = struct.Struct("<Q")
_HEAD_BYTES = len(_MAGIC) + _NUMBER.size
_MAX_BODY = 16 << 20
_SEGMENT_BYTES = 64 << 20
_MAX_SEGMENT = 4 << 30
_FULL_BYTES = 2 << 30
"""The rest is reserved for a reversal of the segment's records. (``MOST_WRITTEN`` in ``native/hot.h`` is the same.)"""
_NAME = re.compile(r"journal-([0-9]{8})")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_SCAN = 1 << 16
_MAX_USUAL = 1 << 16
_MAX_SUMMED = 1 << 28


class Journal:
    """The journal in a directory, open for appending. For one thread at a time."""

    def __init__(self, directory: bytes, *, sync: bool = False) -> None:
        """Begin a new segment behind the existing ones, which stay until `restart`. Raises `StorageError`."""
        self._directory = directory
        self._sync = sync
        self._number = max(segments(directory), default=0)
        self._fd = -1
        self._bytes = 0
        self._broken = False
        self._native: Log | None = None
        self._begin(())

    def write_by(self, native: Log) -> None:
        """Append natively from now on: calls that are carried out natively have records there, too."""
        self._native = native
        native.set_journal(self._fd, self._bytes)

    def append(self, record: AnyRecord) -> None:
        """Write a record, with one call. Raises `StorageError`: nothing that needs it may then happen."""
        data = _frame(record)
        if self._native is not None:
            if number := self._native.append(data):
                error = OSError(number, os.strerror(number))
                raise _failure(self._path(self._number), error) from error
            return
        # Records behind a failed write or sync could not be trusted.
        if self._broken:
            raise StorageError(
                "an earlier write to the undo log failed, and it is closed",
                hint="free space and start again: recovery restores the recorded steps",
            )
        try:
            written = os.write(self._fd, data)
            if written != len(data) or self._sync:
                self._settle(written, len(data))
        except OSError as error:
            raise _failure(self._path(self._number), error) from error
        self._bytes += written

    @property
    def is_long(self) -> bool:
        """True if it is time to `restart`."""
        return (self._bytes if self._native is None else self._native.written) > _SEGMENT_BYTES

    @property
    def is_full(self) -> bool:
        """True if only a reversal may be recorded before `restart`: a larger journal could not be read any more."""
        return (self._bytes if self._native is None else self._native.written) > _FULL_BYTES

    def restart(self, records: Iterable[AnyRecord] = ()) -> None:
        """Continue in a new segment that begins with ``records``, and remove the older ones. Atomic: after a kill, the
        rest of the old ones is ignored.
        """
        old = self._fd
        self._begin((JournalRestart(0), *records))
        os.close(old)
        for number in segments(self._directory):
            if number != self._number:
                os.unlink(self._path(number))

    def close(self) -> None:
        """Close the segment; harmless a second time."""
        if self._fd >= 0:
            if self._native is not None:
                self._native.set_journal(-1, 0)
            os.close(self._fd)
            self._fd = -1

    def withdraw(self) -> None:
        """Close the segment, in which nothing was written, and leave the journal as it was found."""
        if self._fd >= 0:
            self.close()
            os.unlink(self._path(self._number))

    def _path(self, number: int) -> bytes:
        return os.path.join(self._directory, b"journal-%08d" % number)

    def _begin(self, records: Iterable[AnyRecord | JournalRestart]) -> None:
        number = self._number + 1
        path = self._path(number)
        temporary = path + b".new"
        data = _MAGIC + _NUMBER.pack(number) + b"".join([_frame(record) for record in records])
        fd = -1
        try:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            fd = os.open(temporary, _CREATE, 0o600)
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._sync:
                os.fdatasync(fd)
            os.rename(temporary, path)
        except OSError as error:
            if fd >= 0:
                os.close(fd)  # the old segment continues
            raise _failure(path, error) from error
        self._fd, self._number, self._bytes, self._broken = fd, number, len(data), False
        if self._native is not None:
            self._native.set_journal(fd, len(data))

    def _settle(self, written: int, size: int) -> None:
        """Remove a record that was only partly written, or make a complete one durable. Raises `OSError`."""
        self._broken = True
        if written != size:
            os.ftruncate(self._fd, self._bytes)
        else:
            os.fdatasync(self._fd)
        self._broken = False
        if written != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class JournalContents(NamedTuple):
    """The contents of a journal."""

    records: list[AnyRecord]
    torn: bool
    """True if its last record was cut short, as by a killed process: that operation did not happen."""


def read_journal(directory: bytes) -> JournalContents:
    """All records of the segments in ``directory``, in order. Raises `FormatError` for damage that is no torn end."""
    records: list[AnyRecord] = []
    torn = False
    for number in sorted(segments(directory)):
        path = os.path.join(directory, b"journal-%08d" % number)
        with open(path, "rb") as file:
            data = file.read(_MAX_SEGMENT + 1)
        if len(data) > _MAX_SEGMENT:
            raise FormatError(f"{display(path)} is too long for a journal")
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : _HEAD_BYTES] != _NUMBER.pack(number):
            raise FormatError(f"{display(path)} is not a journal of this version")
        at = _HEAD_BYTES
        for body in _bodies(data, at):
            record = decode(body)
            if isinstance(record, JournalRestart):
                records.clear()
            else:
                records.append(record)
            at += _FRAME.size + len(body)
        if at != len(data):
            if _goes_on(data, at + 1):
                raise FormatError(f"{display(path)} is damaged at byte {at}: records follow that can be read")
            torn = True
    return JournalContents(records, torn)


def segments(directory: bytes) -> list[int]:
    """The numbers of the segments in ``directory``, unsorted."""
    found = (_NAME.fullmatch(os.fsdecode(name)) for name in os.listdir(directory))
    return [int(match[1]) for match in found if match]


def _frame(record: AnyRecord | JournalRestart) -> bytes:
    body = encode(record)
    size = len(body)
    if size > _MAX_BODY:
        raise StorageError(f"a record of {size} bytes is too long for the undo log")
    head = size.to_bytes(4, "little")
    return head + crc32(body, crc32(head)).to_bytes(4, "little") + body


def _check(size: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(size.to_bytes(4, "little")))


def _bodies(data: bytes, at: int) -> Iterator[memoryview]:
    view = memoryview(data)
    while at + _FRAME.size <= len(data):
        size, check = _FRAME.unpack_from(data, at)
        body = view[at + _FRAME.size : at + _FRAME.size + size]
        if not 0 < size <= _MAX_BODY or len(body) != size or _check(size, body) != check:
            return
        yield body
        at += _FRAME.size + size


def _goes_on(data: bytes, start: int) -> bool:
    """True if a complete record begins anywhere behind ``start``: then the data before it is damaged, and not torn.

    Examines a bounded part, and records of usual length only, so that no content makes it slow.
    """
    budget = _MAX_SUMMED
    for at in range(start, min(len(data) - _FRAME.size, start + _MAX_SCAN)):
        size, check = _FRAME.unpack_from(data, at)
        if 0 < size <= _MAX_USUAL and at + _FRAME.size + size <= len(data) and budget >= size:
            budget -= size
            if _check(size, memoryview(data)[at + _FRAME.size : at + _FRAME.size + size]) == check:
                return True
    return False


def _failure(path: bytes, error: OSError) -> StorageError:
    return StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error))
