"""The keeper's sign of life: when it was last alive, the numbers that it has given out, and whether work is unfinished.

docs/formats/undo-log.md specifies the bytes. Every command reads it, so this module imports very little.
"""

from __future__ import annotations

import os
import struct
from zlib import crc32

from holdfast.model.fast_namedtuple import NamedTuple

BEAT = b"beat"
"""The file in the directory of an undo log."""

_JOURNAL, _STEPS = b"journal-", b"steps"
_BODY = struct.Struct("<Qqqq")
_CHECK = struct.Struct("<I")
_TRIES = 3


class Heartbeat(NamedTuple):
    """The keeper's periodic note."""

    at: int
    """When it was last alive: nanoseconds since 1970-01-01 UTC; 0 while no step is open or being reversed."""
    step: int
    """The largest id of a step that was given out."""
    ambient: int
    """The smallest."""
    seq: int
    """The largest sequence number that was given out."""


NONE = Heartbeat(0, 0, 0, 0)


def encode_beat(beat: Heartbeat) -> bytes:
    """The content of the file."""
    data = _BODY.pack(*beat)
    return data + _CHECK.pack(crc32(data))


def decode_beat(data: bytes) -> Heartbeat | None:
    """The beat; None if it is damaged, or half of it is from another moment."""
    body = data[: _BODY.size]
    if len(data) != _BODY.size + _CHECK.size or _CHECK.unpack_from(data, _BODY.size)[0] != crc32(body):
        return None
    return Heartbeat(*_BODY.unpack(body))


def read_beat(directory: bytes) -> Heartbeat | None:
    """The heartbeat of the log in ``directory``; `NONE` without a log. None if it cannot be read, or is missing or
    empty in a log that has a journal or steps: unfinished work in that log shows only when it is opened.
    """
    try:
        fd = os.open(os.path.join(directory, BEAT), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _without(directory)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):  # the keeper may be writing it
            data = os.read(fd, _BODY.size + _CHECK.size)
            if not data:
                return _without(directory)
            if (beat := decode_beat(data)) is not None:
                return beat
            os.lseek(fd, 0, os.SEEK_SET)
        return None
    finally:
        os.close(fd)


def _without(directory: bytes) -> Heartbeat | None:
    try:
        if any(name.startswith(_JOURNAL) for name in os.listdir(directory)):
            return None
        return None if os.listdir(os.path.join(directory, _STEPS)) else NONE
    except FileNotFoundError:
        return NONE
    except OSError:
        return None
