"""Decodes the events of fanotify; pure: bytes in, events out. Source: fanotify(7), "Reading fanotify events"."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity_of
from holdfast.files.watch.event_masks import DELETE, MOVED_FROM, MOVED_TO, WRITTEN
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from holdfast.files.linux.file_handle import Identity

ONDIR = 0x40000000

_INFO_FID, _INFO_DFID_NAME, _INFO_DFID = 1, 2, 3
_EVENT = struct.Struct("=IBBHQii")
_INFO = struct.Struct("=BxH")
_SIZE = struct.Struct("=I")
_FILE_SYSTEM_ID = 8

Handle = bytes
"""The file system's id (8 bytes) and the ``struct file_handle`` that follows it in an event."""


class Event(NamedTuple):
    """One event as the kernel gave it, merged with others of the same name."""

    mask: int
    directory: Handle | None
    """The directory that ``name`` is in; None where the kernel knows none."""
    name: bytes
    """``.`` for the directory itself."""
    target: Handle | None
    """The object with that name, at the time of the event."""
    pid: int = 0
    """Of the process that did it; 0 if it is in a pid namespace that this one does not see."""


def object_of(handle: Handle) -> Identity:
    """The identity of the object that an event names."""
    return identity_of(handle[_FILE_SYSTEM_ID:])


def without(buffer: bytes, passed: Container[int]) -> bytes:
    """The result of one read, without events of the processes ``passed``, except moves and deletions of directories."""
    kept: list[bytes] = []
    at, start, end = 0, 0, len(buffer)
    last, is_passed = -1, False
    while end - at >= _EVENT.size:
        length, _, _, _, mask, _, pid = _EVENT.unpack_from(buffer, at)
        if length < _EVENT.size or at + length > end:
            break  # (`decode` says so)
        if pid != last:  # (One process makes many changes in a row.)
            last, is_passed = pid, pid in passed
        if is_passed and not (mask & ONDIR and mask & (MOVED_FROM | MOVED_TO | DELETE)):
            kept.append(buffer[start:at])
            start = at + length
        at += length
    return b"".join((*kept, buffer[start:]))


def decode(
    buffer: bytes, boring: Container[Handle] = (), wanted: Callable[[Handle], bool] | None = None
) -> Iterator[Event]:
    """The events in the result of one read (fanotify(7), "Reading fanotify events"); raises `ValueError` on other data.

    Leaves out events about files in ``boring`` directories, which are nearly all on a busy file system; but not writes
    to ``wanted`` objects.
    """
    at, end = 0, len(buffer)
    while at < end:
        if end - at < _EVENT.size:
            raise ValueError("an event is cut short")
        length, version, _, header, mask, _, pid = _EVENT.unpack_from(buffer, at)
        if version != 3 or header < _EVENT.size or length < header or at + length > end:
            raise ValueError("an event of a form that is not known")
        if not mask & ONDIR and length >= header + 20 and buffer[at + header] == _INFO_DFID_NAME:
            first = at + header + 4
            if buffer[first : first + 16 + _SIZE.unpack_from(buffer, first + 8)[0]] in boring:
                written = _target(buffer, at + header, at + length) if wanted and mask & WRITTEN else None
                if wanted is None or written is None or not wanted(written):
                    at += length
                    continue
        directory: Handle | None = None
        target: Handle | None = None
        name = b""
        info, stop = at + header, at + length
        while info < stop:
            if stop - info < 20:
                raise ValueError("a record of an event is cut short")
            kind, size = _INFO.unpack_from(buffer, info)
            tail = info + 20 + _SIZE.unpack_from(buffer, info + 12)[0]
            if size < 20 or tail > info + size or info + size > stop:
                raise ValueError("a record of an event has a wrong length")
            if kind in (_INFO_DFID_NAME, _INFO_DFID):
                directory = buffer[info + 4 : tail]
                if kind == _INFO_DFID_NAME:
                    name = buffer[tail : info + size].split(b"\0", 1)[0]
            elif kind == _INFO_FID:
                target = buffer[info + 4 : tail]
            info += size
        yield Event(mask, directory, name, target, pid)
        at += length


def _target(buffer: bytes, info: int, stop: int) -> Handle | None:
    """The object of an event whose first record, at ``info``, names its directory; None if it has no other record."""
    second = info + _INFO.unpack_from(buffer, info)[1]
    if stop - second < 20 or buffer[second] != _INFO_FID:
        return None
    return buffer[second + 4 : second + 20 + _SIZE.unpack_from(buffer, second + 12)[0]]
