"""Fields common to several requests: numbers, names, targets; each checked before use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.wire.fuse import protocol_constants
from holdfast.wire.fuse.request_errors import NAME_TOO_LONG

if TYPE_CHECKING:
    import struct

    from holdfast.wire.fuse.request_bodies import Header

HEADER_BYTES: Final = 40
_DOTS: Final = (b".", b"..")
_NO_NAMES: Final = frozenset((b"", *_DOTS))
_CALLED: Final = {int(opcode): opcode.name for opcode in protocol_constants.Opcode}


def describe_request(header: Header) -> str:
    """The request's name, for messages."""
    return _CALLED[header.opcode]


def unpack(layout: struct.Struct, header: Header, frame: memoryview) -> tuple[int, ...]:
    """The numbers of a request that has nothing else."""
    if len(frame) != HEADER_BYTES + layout.size:
        raise FormatError(f"{describe_request(header)}: {len(frame) - HEADER_BYTES} bytes, expected {layout.size}")
    return layout.unpack_from(frame, HEADER_BYTES)


def unpack_with(layout: struct.Struct, header: Header, frame: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """The numbers of a request, and what follows them, extensions not included."""
    start, end = HEADER_BYTES + layout.size, len(frame) - header.extension_bytes
    if end < start:
        raise FormatError(f"{describe_request(header)}: {end - HEADER_BYTES} bytes, expected {layout.size} or more")
    return layout.unpack_from(frame, HEADER_BYTES), frame[start:end]


def check_range(header: Header, offset: int, length: int) -> None:
    """Raises `FormatError` if a file cannot reach as far."""
    if offset + length > protocol_constants.OFFSET_MAX:
        raise FormatError(f"{describe_request(header)} offset: {offset} and {length} bytes more are beyond any file")


def entry_name(header: Header, data: bytes) -> bytes:
    """The name of an entry that is all of ``data`` but the NUL at its end: `one_name` and `checked_name` in one."""
    name = data[:-1]
    if (
        data.find(b"\0") == len(name)
        and b"/" not in name
        and name not in _NO_NAMES
        and len(name) <= protocol_constants.NAME_MAX
    ):
        return name
    where = describe_request(header)
    return checked_name(one_name(data, where), where)


def one_name(data: bytes, where: str) -> bytes:
    """The string that is all of ``data`` but the NUL at its end."""
    if not data or data.find(b"\0") != len(data) - 1:
        raise FormatError(f"{where}: expected one string with a NUL at its end")
    return data[:-1]


def two_names(data: bytes, where: str) -> tuple[bytes, bytes]:
    """The two strings that are all of ``data``."""
    parts = data.split(b"\0", 2)
    if len(parts) != 3 or parts[2]:
        raise FormatError(f"{where}: expected two strings with a NUL at their ends")
    return parts[0], parts[1]


def checked_name(name: bytes, where: str) -> bytes:
    """A name that an entry of a directory can have."""
    if name in _DOTS:
        raise FormatError(f"{where}: {name!r} names no entry")
    return checked_component(name, where)


def checked_component(name: bytes, where: str) -> bytes:
    """A component of a path: a name, or one of the two that every directory has."""
    if not name or b"/" in name:
        raise FormatError(f"{where}: {name[: protocol_constants.NAME_MAX]!r} is no name")
    if len(name) > protocol_constants.NAME_MAX:
        raise FormatError(f"{where}: a name of {len(name)} bytes is too long", code=NAME_TOO_LONG)
    return name


def checked_target(target: bytes, where: str) -> bytes:
    """A valid target of a symbolic link."""
    if not target:
        raise FormatError(f"{where}: an empty target")
    if len(target) > protocol_constants.TARGET_MAX:
        raise FormatError(f"{where}: a target of {len(target)} bytes is too long", code=NAME_TOO_LONG)
    return target


def checked_attribute(name: bytes, where: str) -> bytes:
    """The name of an extended attribute."""
    if not 0 < len(name) <= protocol_constants.XATTR_NAME_MAX:
        raise FormatError(f"{where}: an attribute's name of {len(name)} bytes")
    return name
