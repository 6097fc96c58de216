"""Decodes the events of inotify; pure: bytes in, events out. Source: inotify(7), "Reading events"."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

UNMOUNT = 0x2000
IGNORED = 0x8000
ISDIR = 0x40000000

_EVENT = struct.Struct("=iIII")


class Event(NamedTuple):
    """One event as the kernel gave it."""

    wd: int
    mask: int
    cookie: int
    name: bytes


def decode(buffer: bytes) -> Iterator[Event]:
    """The events in what one read returned (inotify(7), "Reading events"); raises `ValueError` if one is cut short."""
    at, end = 0, len(buffer)
    while at < end:
        if end - at < _EVENT.size:
            raise ValueError("an event is cut short")
        wd, mask, cookie, length = _EVENT.unpack_from(buffer, at)
        at += _EVENT.size
        if length > end - at:
            raise ValueError("the name of an event is cut short")
        yield Event(wd, mask, cookie, buffer[at : at + length].rstrip(b"\0") if length else b"")
        at += length
