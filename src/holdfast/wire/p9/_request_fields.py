"""Fields common to several requests: numbers, names, targets; each checked before use."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.wire.p9.protocol_constants import (
    HEADER_BYTES,
    NAME_MAX,
    NO_FID,
    NO_ID,
    OFFSET_MAX,
    TARGET_MAX,
    XATTR_NAME_MAX,
    Type,
)
from holdfast.wire.p9.request_errors import BAD_FID, NAME_TOO_LONG

if TYPE_CHECKING:
    from holdfast.wire.p9.framing import Header

_LENGTH: Final = struct.Struct("<H")
_DOTS: Final = (b".", b"..")
_CALLED: Final = {int(kind): f"T{kind.name.lower()}" for kind in Type}
_SHOWN: Final = 64


def describe_request(header: Header) -> str:
    """The request's name, for messages."""
    return _CALLED[header.type]


def unpack(layout: struct.Struct, header: Header, frame: memoryview) -> tuple[int, ...]:
    """The numbers of a request that has nothing else."""
    if len(frame) != HEADER_BYTES + layout.size:
        raise FormatError(f"{describe_request(header)}: {len(frame) - HEADER_BYTES} bytes, expected {layout.size}")
    return layout.unpack_from(frame, HEADER_BYTES)


def unpack_at(layout: struct.Struct, header: Header, frame: memoryview, at: int) -> tuple[int, ...]:
    """The numbers from ``at`` on, with any data after them."""
    if len(frame) < at + layout.size:
        raise FormatError(f"{describe_request(header)}: cut off after {len(frame)} bytes")
    return layout.unpack_from(frame, at)


def string_at(header: Header, frame: memoryview, at: int) -> tuple[bytes, int]:
    """The string at ``at``, and where what follows begins."""
    end = at + _LENGTH.size
    if len(frame) < end:
        raise FormatError(f"{describe_request(header)}: cut off before a string")
    start, end = end, end + _LENGTH.unpack_from(frame, at)[0]
    if len(frame) < end:
        raise FormatError(
            f"{describe_request(header)}: a string of {end - start} bytes, {len(frame) - start} are there"
        )
    return bytes(frame[start:end]), end


def check_end(header: Header, frame: memoryview, at: int) -> None:
    """Raises `FormatError` if more data follows."""
    if len(frame) != at:
        raise FormatError(f"{describe_request(header)}: {len(frame) - at} bytes too many")


def checked_name(header: Header, name: bytes) -> bytes:
    """A name that an entry of a directory can have."""
    if name in _DOTS:
        raise FormatError(f"{describe_request(header)}: {name!r} names no entry")
    return checked_component(header, name)


def checked_component(header: Header, name: bytes) -> bytes:
    """A name, or ``..``."""
    if not name or name == b"." or b"/" in name or b"\0" in name:
        raise FormatError(f"{describe_request(header)}: {name[:_SHOWN]!r} is no name")
    if len(name) > NAME_MAX:
        raise FormatError(f"{describe_request(header)}: a name of {len(name)} bytes is too long", code=NAME_TOO_LONG)
    return name


def checked_target(header: Header, target: bytes) -> bytes:
    """A valid target of a symbolic link."""
    if not target or b"\0" in target:
        raise FormatError(f"{describe_request(header)}: the target {target[:_SHOWN]!r} is none")
    if len(target) > TARGET_MAX:
        raise FormatError(
            f"{describe_request(header)}: a target of {len(target)} bytes is too long", code=NAME_TOO_LONG
        )
    return target


def checked_attribute(header: Header, name: bytes) -> bytes:
    """The name of an extended attribute."""
    if not 0 < len(name) <= XATTR_NAME_MAX or b"\0" in name:
        raise FormatError(f"{describe_request(header)}: {name[:_SHOWN]!r} ({len(name)} bytes) names no attribute")
    return name


def checked_text(header: Header, text: bytes, most: int) -> bytes:
    """The name of a user, of a tree or of a client."""
    if len(text) > most or b"\0" in text:
        raise FormatError(f"{describe_request(header)}: {text[:_SHOWN]!r} ({len(text)} bytes) is no name")
    return text


def checked_new_fid(header: Header, fid: int) -> int:
    """A number that a client can give to a new fid."""
    if fid == NO_FID:
        raise FormatError(f"{describe_request(header)}: NOFID is no fid", code=BAD_FID)
    return fid


def checked_group(header: Header, gid: int) -> int:
    """A group that a file can have."""
    if gid == NO_ID:
        raise FormatError(f"{describe_request(header)}: {gid} is no group")
    return gid


def check_range(header: Header, offset: int, length: int) -> None:
    """Raises `FormatError` if a file cannot reach as far."""
    if offset + length > OFFSET_MAX:
        raise FormatError(f"{describe_request(header)}: {length} bytes at {offset} are beyond any file")
