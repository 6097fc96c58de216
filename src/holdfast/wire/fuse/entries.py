"""Decodes the requests that make, remove or move entries of directories."""

from __future__ import annotations

import stat
import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.wire.fuse import bodies, kernel
from holdfast.wire.fuse.extensions import decode_extras
from holdfast.wire.fuse.fields import HEADER_BYTES, called, checked_name, checked_target, one, two, unpack_with
from holdfast.wire.fuse.kernel import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.wire.fuse.bodies import Body, Header

_MKNOD: Final = struct.Struct("=III4x")
_MKDIR: Final = struct.Struct("=II")
_CREATE: Final = struct.Struct("=IIII")
_RENAME: Final = struct.Struct("=Q")
_RENAME2: Final = struct.Struct("=QI4x")
_LINK: Final = struct.Struct("=Q")

_NODE_TYPES: Final = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)
_RENAMES: Final = (
    0,
    kernel.RENAME_NOREPLACE,
    kernel.RENAME_EXCHANGE,
    kernel.RENAME_WHITEOUT,
    kernel.RENAME_NOREPLACE | kernel.RENAME_WHITEOUT,
)


def _permissions(header: Header, mode: int, kind: int) -> int:
    if stat.S_IFMT(mode) not in (0, kind) or mode >> 16:
        raise FormatError(f"{called(header)} mode: {mode:#o}")
    return stat.S_IMODE(mode)


def _umask(header: Header, umask: int) -> int:
    if umask > 0o777:
        raise FormatError(f"{called(header)} umask: {umask:#o}")
    return umask


def _entry(header: Header, data: memoryview) -> bytes:
    where = called(header)
    return checked_name(one(bytes(data), where), where)


def _name(header: Header, frame: memoryview) -> Body:
    return bodies.Name(_entry(header, frame[HEADER_BYTES:]))


def _symlink(header: Header, frame: memoryview) -> Body:
    name, target = two(bytes(frame[HEADER_BYTES : len(frame) - header.extension_bytes]), "SYMLINK")
    return bodies.Symlink(
        checked_name(name, "SYMLINK"), checked_target(target, "SYMLINK"), decode_extras(header, frame)
    )


def _mknod(header: Header, frame: memoryview) -> Body:
    (mode, rdev, umask), rest = unpack_with(_MKNOD, header, frame)
    if stat.S_IFMT(mode) not in _NODE_TYPES or mode >> 16:
        raise FormatError(f"MKNOD mode: {mode:#o}")
    return bodies.MakeNode(_entry(header, rest), mode, rdev, _umask(header, umask), decode_extras(header, frame))


def _mkdir(header: Header, frame: memoryview) -> Body:
    (mode, umask), rest = unpack_with(_MKDIR, header, frame)
    permissions = _permissions(header, mode, stat.S_IFDIR)
    return bodies.MakeDirectory(_entry(header, rest), permissions, _umask(header, umask), decode_extras(header, frame))


def _create(header: Header, frame: memoryview) -> Body:
    (flags, mode, umask, open_flags), rest = unpack_with(_CREATE, header, frame)
    permissions = _permissions(header, mode, stat.S_IFREG)
    # The kernel's own name for what has none is "/".
    name = b"" if header.opcode == Opcode.TMPFILE else _entry(header, rest)
    return bodies.Create(name, flags, permissions, _umask(header, umask), open_flags, decode_extras(header, frame))


def _rename(header: Header, frame: memoryview) -> Body:
    where = called(header)
    layout = _RENAME if header.opcode == Opcode.RENAME else _RENAME2
    (parent, *more), rest = unpack_with(layout, header, frame)
    flags = more[0] if more else 0
    if flags not in _RENAMES:
        raise FormatError(f"{where} flags: {flags:#x}")
    old, new = two(bytes(rest), where)
    return bodies.Rename(checked_name(old, where), parent, checked_name(new, where), flags)


def _link(header: Header, frame: memoryview) -> Body:
    (node,), rest = unpack_with(_LINK, header, frame)
    return bodies.Link(node, _entry(header, rest))


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
