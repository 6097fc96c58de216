"""The extensions at the end of a request that creates: what the new file is to have from its beginning."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.wire.fuse import kernel
from holdfast.wire.fuse.bodies import NO_EXTRAS, Extras
from holdfast.wire.fuse.fields import called

if TYPE_CHECKING:
    from holdfast.wire.fuse.bodies import Header

_EXTENSION: Final = struct.Struct("=II")
"""Its size, this included; and its type, or how many security contexts it has."""
_CONTEXT: Final = struct.Struct("=I4x")
_COUNT: Final = struct.Struct("=I")


def decode_extras(header: Header, frame: memoryview) -> Extras:
    """What the extensions say; each kind may be there once. Raises `FormatError`."""
    if not header.extension_bytes:
        return NO_EXTRAS
    where = called(header)
    start = len(frame) - header.extension_bytes
    contexts: tuple[tuple[bytes, bytes], ...] | None = None
    groups: tuple[int, ...] | None = None
    while start < len(frame):
        if len(frame) - start < _EXTENSION.size:
            raise FormatError(f"{where}: an extension is cut off")
        size, kind = _EXTENSION.unpack_from(frame, start)
        if size < _EXTENSION.size or size > len(frame) - start or size % 8:
            raise FormatError(f"{where}: an extension of {size} bytes")
        content = frame[start + _EXTENSION.size : start + size]
        if kind <= kernel.MAX_SECURITY_CONTEXTS and contexts is None:
            contexts = _contexts(content, kind, where)
        elif kind == kernel.EXTENSION_GROUPS and groups is None:
            groups = _groups(content, where)
        else:
            raise FormatError(f"{where}: an extension of type {kind}")
        start += size
    return Extras(contexts or (), groups or ())


def _contexts(content: memoryview, count: int, where: str) -> tuple[tuple[bytes, bytes], ...]:
    found: list[tuple[bytes, bytes]] = []
    at = 0
    for _ in range(count):
        if len(content) - at < _CONTEXT.size:
            raise FormatError(f"{where}: a security context is cut off")
        size = _CONTEXT.unpack_from(content, at)[0]
        at += _CONTEXT.size
        length = bytes(content[at : at + kernel.XATTR_NAME_MAX + 1]).find(b"\0")
        value = at + length + 1
        if length <= 0 or size > min(kernel.XATTR_SIZE_MAX, len(content) - value):
            raise FormatError(f"{where}: a security context of {size} bytes, its name of {length}")
        found.append((bytes(content[at : at + length]), bytes(content[value : value + size])))
        at = -(-(value + size) // 8) * 8
    if at != len(content):
        raise FormatError(f"{where}: security contexts of {at} bytes in {len(content)}")
    return tuple(found)


def _groups(content: memoryview, where: str) -> tuple[int, ...]:
    count = _COUNT.unpack_from(content)[0] if content else 0
    size = _COUNT.size * (1 + count)
    if -(-size // 8) * 8 != len(content):
        raise FormatError(f"{where}: {count} groups in {len(content)} bytes")
    return struct.unpack_from(f"={count}I", content, _COUNT.size)
