"""Decodes the requests that make, remove or move entries of directories.

A request that creates may end with extensions: initial properties of the new file.
"""

from __future__ import annotations

import stat
import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.wire.fuse import protocol_constants, request_bodies
from holdfast.wire.fuse._request_fields import (
    HEADER_BYTES,
    checked_name,
    checked_target,
    describe_request,
    entry_name,
    two_names,
    unpack_with,
)
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.request_bodies import NO_EXTRAS, Extras

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.wire.fuse.request_bodies import Body, Header


_EXTENSION: Final = struct.Struct("=II")
"""Its size, this included; and its type, or how many security contexts it has."""
_CONTEXT: Final = struct.Struct("=I4x")
_COUNT: Final = struct.Struct("=I")


def decode_extras(header: Header, frame: memoryview) -> Extras:
    """Decode the extensions; each kind may occur once. Raises `FormatError`."""
    if not header.extension_bytes:
        return NO_EXTRAS
    where = describe_request(header)
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
        if kind <= protocol_constants.MAX_SECURITY_CONTEXTS and contexts is None:
            contexts = _contexts(content, kind, where)
        elif kind == protocol_constants.EXTENSION_GROUPS and groups is None:
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
        length = bytes(content[at : at + protocol_constants.XATTR_NAME_MAX + 1]).find(b"\0")
        value = at + length + 1
        if length <= 0 or size > min(protocol_constants.XATTR_SIZE_MAX, len(content) - value):
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


_MKNOD: Final = struct.Struct("=III4x")
_MKDIR: Final = struct.Struct("=II")
_CREATE: Final = struct.Struct("=IIII")
_RENAME: Final = struct.Struct("=Q")
_RENAME2: Final = struct.Struct("=QI4x")
_LINK: Final = struct.Struct("=Q")

_NODE_TYPES: Final = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)
_RENAMES: Final = (
    0,
    protocol_constants.RENAME_NOREPLACE,
    protocol_constants.RENAME_EXCHANGE,
    protocol_constants.RENAME_WHITEOUT,
    protocol_constants.RENAME_NOREPLACE | protocol_constants.RENAME_WHITEOUT,
)


def _permissions(header: Header, mode: int, kind: int) -> int:
    if stat.S_IFMT(mode) not in (0, kind) or mode >> 16:
        raise FormatError(f"{describe_request(header)} mode: {mode:#o}")
    return stat.S_IMODE(mode)


def _umask(header: Header, umask: int) -> int:
    if umask > 0o777:
        raise FormatError(f"{describe_request(header)} umask: {umask:#o}")
    return umask


def _name(header: Header, frame: memoryview) -> Body:
    return request_bodies.Name(entry_name(header, bytes(frame[HEADER_BYTES:])))


def _symlink(header: Header, frame: memoryview) -> Body:
    name, target = two_names(bytes(frame[HEADER_BYTES : len(frame) - header.extension_bytes]), "SYMLINK")
    return request_bodies.Symlink(
        checked_name(name, "SYMLINK"), checked_target(target, "SYMLINK"), decode_extras(header, frame)
    )


def _mknod(header: Header, frame: memoryview) -> Body:
    (mode, rdev, umask), rest = unpack_with(_MKNOD, header, frame)
    if stat.S_IFMT(mode) not in _NODE_TYPES or mode >> 16:
        raise FormatError(f"MKNOD mode: {mode:#o}")
    return request_bodies.MakeNode(
        entry_name(header, bytes(rest)), mode, rdev, _umask(header, umask), decode_extras(header, frame)
    )


def _mkdir(header: Header, frame: memoryview) -> Body:
    (mode, umask), rest = unpack_with(_MKDIR, header, frame)
    permissions = _permissions(header, mode, stat.S_IFDIR)
    return request_bodies.MakeDirectory(
        entry_name(header, bytes(rest)), permissions, _umask(header, umask), decode_extras(header, frame)
    )


def _create(header: Header, frame: memoryview) -> Body:
    (flags, mode, umask, open_flags), rest = unpack_with(_CREATE, header, frame)
    permissions = _permissions(header, mode, stat.S_IFREG)
    # The kernel's own name for a file without one is "/".
    name = b"" if header.opcode == Opcode.TMPFILE else entry_name(header, bytes(rest))
    return request_bodies.Create(
        name, flags, permissions, _umask(header, umask), open_flags, decode_extras(header, frame)
    )


def _rename(header: Header, frame: memoryview) -> Body:
    where = describe_request(header)
    layout = _RENAME if header.opcode == Opcode.RENAME else _RENAME2
    (parent, *more), rest = unpack_with(layout, header, frame)
    flags = more[0] if more else 0
    if flags not in _RENAMES:
        raise FormatError(f"{where} flags: {flags:#x}")
    old, new = two_names(bytes(rest), where)
    return request_bodies.Rename(checked_name(old, where), parent, checked_name(new, where), flags)


def _link(header: Header, frame: memoryview) -> Body:
    (node,), rest = unpack_with(_LINK, header, frame)
    return request_bodies.Link(node, entry_name(header, bytes(rest)))


DECODERS: Final[dict[int, Callable[[Header, memoryview], Body]]] = {
    Opcode.SYMLINK: _symlink,
    Opcode.MKNOD: _mknod,
    Opcode.MKDIR: _mkdir,
    Opcode.UNLINK: _name,
    Opcode.RMDIR: _name,
    Opcode.RENAME: _rename,
    Opcode.RENAME2: _rename,
    Opcode.LINK: _link,
    Opcode.CREATE: _create,
    Opcode.TMPFILE: _create,
}
