"""Decodes requests. A frame is one whole message of the kernel: its only framing is its own length.

::

    header = decode_header(frame)           # wrong: the connection is of no more use
    try:
        body = decoder.decode(header, frame)
    except FormatError as error:            # wrong: this request alone fails
        reply = replies.error(header.unique, errno_of(error))

Decoding costs a few microseconds, and at most about ten times the memory of the frame (a long BATCH_FORGET). The result
has valid names, numbers in the range of system calls, and sizes within the agreed limits; `node_table` checks that
nodes and handles exist.
"""

from __future__ import annotations

import os
import struct
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK
from typing import TYPE_CHECKING, Final, cast

from holdfast.model.errors import FormatError
from holdfast.wire.fuse import _entry_requests, protocol_constants, request_bodies
from holdfast.wire.fuse._request_fields import (
    HEADER_BYTES,
    check_range,
    checked_attribute,
    checked_component,
    describe_request,
    entry_name,
    one_name,
    unpack,
    unpack_with,
)
from holdfast.wire.fuse.protocol_constants import OFFSET_MAX, Init, Opcode
from holdfast.wire.fuse.request_bodies import Header
from holdfast.wire.fuse.request_errors import UNKNOWN_OPCODE

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.request_bodies import Body

    Decode = Callable[[Header, memoryview], Body]

_HEADER: Final = struct.Struct("=IIQQIIIH2x")
# (A constructor in Python would take half as long as all of `decode_header`.)
_new_header: Final = cast(
    "Callable[[type[Header], tuple[int, ...]], Header]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)

_U32: Final = struct.Struct("=I")
_U32_PADDED: Final = struct.Struct("=I4x")
_TWO_U32: Final = struct.Struct("=II")
_U64: Final = struct.Struct("=Q")
_PAIR: Final = struct.Struct("=QQ")
_FLAGS_AND_HANDLE: Final = struct.Struct("=I4xQ")
_STATX: Final = struct.Struct("=I4xQII")
_SETATTR: Final = struct.Struct("=I4xQQQqqqIIIIIII4x")
_TRANSFER: Final = struct.Struct("=QQIIQI4x")
"""READ and WRITE: handle, offset, size, flags of the request, owner of locks, flags of the open file."""
_RELEASE: Final = struct.Struct("=QIIQ")
_FLUSH: Final = struct.Struct("=Q8xQ")
_FSYNC: Final = struct.Struct("=QI4x")
_SETXATTR_EXT: Final = struct.Struct("=III4x")
_LOCK: Final = struct.Struct("=QQQQIII4x")
_BMAP: Final = struct.Struct("=QI4x")
_IOCTL: Final = struct.Struct("=QIIQII")
_POLL: Final = struct.Struct("=QQII")
_RETRIEVED: Final = struct.Struct("=8xQI20x")
_FALLOCATE: Final = struct.Struct("=QQQI4x")
_LSEEK: Final = struct.Struct("=QqI4x")
_COPY: Final = struct.Struct("=7Q")
_MAPPING: Final = struct.Struct("=5Q")

_NOTHING: Final = request_bodies.Nothing()
_SECOND_NS: Final = 1_000_000_000
_KNOWN_ATTRIBUTES: Final = (protocol_constants.FATTR_KILL_SUIDGID << 1) - 1
_CREATING: Final = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY
_IOCTL_MOST: Final = 1 << 16
_COPY_MOST: Final = 0x7FFFF000
"""The most that one call copies, and that the old reply can express."""


def decode_header(frame: memoryview) -> Header:
    """The header of ``frame``. Raises `FormatError` if it is impossible, or its length differs from the frame's."""
    if len(frame) < HEADER_BYTES:
        raise FormatError(f"header: {len(frame)} bytes are too few")
    length, opcode, unique, node, uid, gid, pid, extensions = _HEADER.unpack_from(frame)
    if length != len(frame):
        raise FormatError(f"header: length {length} in a frame of {len(frame)}")
    extensions *= 8
    if extensions > length - HEADER_BYTES:
        raise FormatError(f"header: extensions of {extensions} bytes in a frame of {length}")
    return _new_header(Header, (opcode, unique, node, uid, gid, pid, extensions))


class Decoder:
    """Decodes requests as INIT has settled them; that is for `negotiation`. Any thread may use it."""

    __slots__ = ("_decoders", "_has_dots", "_terms", "_xattr_layout")

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._has_dots = bool(terms.flags & Init.EXPORT_SUPPORT)
        self._xattr_layout = _SETXATTR_EXT if terms.flags & Init.SETXATTR_EXT else _TWO_U32
        self._decoders: dict[int, Decode] = _DECODERS | {
            Opcode.LOOKUP: self._lookup,
            Opcode.READ: self._read,
            Opcode.READDIR: self._read,
            Opcode.READDIRPLUS: self._read,
            Opcode.WRITE: self._write,
            Opcode.SETXATTR: self._setxattr,
            Opcode.NOTIFY_REPLY: self._retrieved,
        }

    def decode(self, header: Header, frame: memoryview) -> Body:
        """The body of the request. Raises `FormatError`: its message says where, its code the answer (`errno_of`)."""
        decode = self._decoders.get(header.opcode)
        if decode is None:
            raise FormatError(f"opcode: {header.opcode} is none that is known", code=UNKNOWN_OPCODE)
        if header.extension_bytes and header.opcode not in _WITH_EXTENSIONS:
            raise FormatError(f"{describe_request(header)}: has no extensions")
        return decode(header, frame)

    def _lookup(self, header: Header, frame: memoryview) -> Body:
        data = bytes(frame[HEADER_BYTES:])
        if not self._has_dots:
            return request_bodies.Name(entry_name(header, data))
        where = describe_request(header)
        return request_bodies.Name(checked_component(one_name(data, where), where))

    def _read(self, header: Header, frame: memoryview) -> Body:
        handle, offset, size, read_flags, owner, flags = unpack(_TRANSFER, header, frame)
        if header.opcode == Opcode.READ:
            check_range(header, offset, size)
        if size > self._terms.max_read:
            raise FormatError(f"{describe_request(header)} size: {size} where {self._terms.max_read} was agreed")
        return request_bodies.Read(
            handle, offset, size, owner if read_flags & protocol_constants.READ_LOCKOWNER else None, flags
        )

    def _write(self, header: Header, frame: memoryview) -> Body:
        (handle, offset, size, write_flags, owner, flags), data = unpack_with(_TRANSFER, header, frame)
        check_range(header, offset, size)
        if size != len(data):
            raise FormatError(f"WRITE size: {size}, with {len(data)} bytes of data")
        if size > self._terms.max_write:
            raise FormatError(f"WRITE size: {size} where {self._terms.max_write} was agreed")
        known = owner if write_flags & protocol_constants.WRITE_LOCKOWNER else None
        return request_bodies.Write(handle, offset, data, write_flags, known, flags)

    def _setxattr(self, header: Header, frame: memoryview) -> Body:
        (size, flags, *more), rest = unpack_with(self._xattr_layout, header, frame)
        length = bytes(rest[: protocol_constants.XATTR_NAME_MAX + 1]).find(b"\0")
        name = checked_attribute(bytes(rest[: max(length, 0)]), "SETXATTR")
        value = rest[length + 1 :]
        if size != len(value) or size > protocol_constants.XATTR_SIZE_MAX:
            raise FormatError(f"SETXATTR size: {size}, with a value of {len(value)} bytes")
        if flags & ~(os.XATTR_CREATE | os.XATTR_REPLACE):
            raise FormatError(f"SETXATTR flags: {flags:#x}")
        return request_bodies.SetXattr(name, value, flags, more[0] if more else 0)

    def _retrieved(self, header: Header, frame: memoryview) -> Body:
        (offset, size), data = unpack_with(_RETRIEVED, header, frame)
        check_range(header, offset, size)
        if size != len(data):
            raise FormatError(f"NOTIFY_REPLY size: {size}, with {len(data)} bytes of data")
        return request_bodies.Retrieved(offset, data)


def _numbers(layout: struct.Struct, make: Callable[..., Body]) -> Decode:
    """Decodes a body of only numbers, without limits on them."""

    def decode(header: Header, frame: memoryview) -> Body:
        return make(*unpack(layout, header, frame))

    return decode


def _nothing(header: Header, frame: memoryview) -> Body:
    if len(frame) != HEADER_BYTES:
        raise FormatError(f"{describe_request(header)}: {len(frame) - HEADER_BYTES} bytes, expected none")
    return _NOTHING


def _syncfs(header: Header, frame: memoryview) -> Body:
    unpack(_U64, header, frame)
    return _NOTHING


def _removexattr(header: Header, frame: memoryview) -> Body:
    where = describe_request(header)
    return request_bodies.Name(checked_attribute(one_name(bytes(frame[HEADER_BYTES:]), where), where))


def _forget(header: Header, frame: memoryview) -> Body:
    return request_bodies.Forget(((header.node, unpack(_U64, header, frame)[0]),))


def _batch_forget(header: Header, frame: memoryview) -> Body:
    (count,), rest = unpack_with(_U32_PADDED, header, frame)
    if count * _PAIR.size != len(rest):
        raise FormatError(f"BATCH_FORGET count: {count}, with {len(rest)} bytes")
    return request_bodies.Forget(tuple(_PAIR.iter_unpack(rest)))


def _getattr(header: Header, frame: memoryview) -> Body:
    flags, handle = unpack(_FLAGS_AND_HANDLE, header, frame)
    return request_bodies.GetAttr(handle if flags & protocol_constants.GETATTR_FH else None)


def _statx(header: Header, frame: memoryview) -> Body:
    which, handle, flags, mask = unpack(_STATX, header, frame)
    return request_bodies.StatX(handle if which & protocol_constants.GETATTR_FH else None, flags, mask)


def _setattr(header: Header, frame: memoryview) -> Body:
    (valid, handle, size, owner, atime, mtime, ctime, atime_ns, mtime_ns, ctime_ns,
     mode, _, uid, gid) = unpack(_SETATTR, header, frame)  # fmt: skip
    if valid & ~_KNOWN_ATTRIBUTES:
        raise FormatError(f"SETATTR valid: {valid:#x}")
    if max(atime_ns, mtime_ns, ctime_ns) >= _SECOND_NS:
        raise FormatError("SETATTR: a time of more nanoseconds than a second has")
    size = size if valid & protocol_constants.FATTR_SIZE else 0
    check_range(header, size, 0)
    uid = uid if valid & protocol_constants.FATTR_UID else 0
    gid = gid if valid & protocol_constants.FATTR_GID else 0
    if protocol_constants.NO_ID in (uid, gid):
        raise FormatError(f"SETATTR: {protocol_constants.NO_ID} is no user or group")
    return request_bodies.SetAttr(
        valid,
        handle if valid & protocol_constants.FATTR_FH else None,
        owner if valid & protocol_constants.FATTR_LOCKOWNER else None,
        size,
        atime * _SECOND_NS + atime_ns if valid & protocol_constants.FATTR_ATIME else 0,
        mtime * _SECOND_NS + mtime_ns if valid & protocol_constants.FATTR_MTIME else 0,
        ctime * _SECOND_NS + ctime_ns if valid & protocol_constants.FATTR_CTIME else 0,
        mode & 0o7777 if valid & protocol_constants.FATTR_MODE else 0,
        uid,
        gid,
    )


def _open(header: Header, frame: memoryview) -> Body:
    flags, open_flags = unpack(_TWO_U32, header, frame)
    if flags & _CREATING:
        raise FormatError(f"{describe_request(header)} flags: {flags:#o} would create")
    return request_bodies.Open(flags, open_flags)


def _fsync(header: Header, frame: memoryview) -> Body:
    handle, flags = unpack(_FSYNC, header, frame)
    return request_bodies.Sync(handle, bool(flags & protocol_constants.FSYNC_DATA_ONLY))


def _getxattr(header: Header, frame: memoryview) -> Body:
    (size,), rest = unpack_with(_U32_PADDED, header, frame)
    name = checked_attribute(one_name(bytes(rest), "GETXATTR"), "GETXATTR")
    return request_bodies.GetXattr(name, min(size, protocol_constants.XATTR_SIZE_MAX))


def _listxattr(header: Header, frame: memoryview) -> Body:
    return request_bodies.GetXattr(b"", min(unpack(_U32_PADDED, header, frame)[0], protocol_constants.XATTR_SIZE_MAX))


def _lock(header: Header, frame: memoryview) -> Body:
    handle, owner, start, end, kind, pid, flags = unpack(_LOCK, header, frame)
    if not start <= end <= OFFSET_MAX:
        raise FormatError(f"{describe_request(header)} range: from {start} to {end}")
    if kind not in (F_RDLCK, F_WRLCK, F_UNLCK):
        raise FormatError(f"{describe_request(header)} type: {kind}")
    return request_bodies.Lock(handle, owner, start, end, kind, pid, bool(flags & protocol_constants.LOCK_FLOCK))


def _access(header: Header, frame: memoryview) -> Body:
    mask = unpack(_U32_PADDED, header, frame)[0]
    if mask & ~(os.R_OK | os.W_OK | os.X_OK):
        raise FormatError(f"ACCESS mask: {mask:#x}")
    return request_bodies.Access(mask)


def _ioctl(header: Header, frame: memoryview) -> Body:
    (handle, flags, command, argument, in_size, out_size), data = unpack_with(_IOCTL, header, frame)
    if in_size != len(data) or max(in_size, out_size) > _IOCTL_MOST:
        raise FormatError(f"IOCTL: {in_size} bytes in and {out_size} out, with {len(data)}")
    return request_bodies.Ioctl(handle, flags, command, argument, data, out_size)


def _fallocate(header: Header, frame: memoryview) -> Body:
    handle, offset, length, mode = unpack(_FALLOCATE, header, frame)
    check_range(header, offset, length)
    return request_bodies.Allocate(handle, offset, length, mode)


def _lseek(header: Header, frame: memoryview) -> Body:
    handle, offset, whence = unpack(_LSEEK, header, frame)
    if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, os.SEEK_DATA, os.SEEK_HOLE):
        raise FormatError(f"LSEEK whence: {whence}")
    return request_bodies.Seek(handle, offset, whence)


def _copy_file_range(header: Header, frame: memoryview) -> Body:
    handle, offset, to_node, to_handle, to_offset, length, flags = unpack(_COPY, header, frame)
    if flags:
        raise FormatError(f"{describe_request(header)} flags: {flags:#x}")
    length = min(length, _COPY_MOST)
    check_range(header, max(offset, to_offset), length)
    return request_bodies.CopyRange(handle, offset, to_node, to_handle, to_offset, length)


def _removemapping(header: Header, frame: memoryview) -> Body:
    (count,), rest = unpack_with(_U32, header, frame)
    if count * _PAIR.size != len(rest):
        raise FormatError(f"REMOVEMAPPING count: {count}, with {len(rest)} bytes")
    return request_bodies.Unmap(tuple(_PAIR.iter_unpack(rest)))


_WITH_EXTENSIONS: Final = frozenset({Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.CREATE, Opcode.TMPFILE})

_DECODERS: Final[dict[int, Decode]] = _entry_requests.DECODERS | {
    Opcode.FORGET: _forget,
    Opcode.GETATTR: _getattr,
    Opcode.SETATTR: _setattr,
    Opcode.READLINK: _nothing,
    Opcode.OPEN: _open,
    Opcode.STATFS: _nothing,
    Opcode.RELEASE: _numbers(_RELEASE, request_bodies.Release),
    Opcode.FSYNC: _fsync,
    Opcode.GETXATTR: _getxattr,
    Opcode.LISTXATTR: _listxattr,
    Opcode.REMOVEXATTR: _removexattr,
    Opcode.FLUSH: _numbers(_FLUSH, request_bodies.Flush),
    Opcode.OPENDIR: _open,
    Opcode.RELEASEDIR: _numbers(_RELEASE, request_bodies.Release),
    Opcode.FSYNCDIR: _fsync,
    Opcode.GETLK: _lock,
    Opcode.SETLK: _lock,
    Opcode.SETLKW: _lock,
    Opcode.ACCESS: _access,
    Opcode.INTERRUPT: _numbers(_U64, request_bodies.Interrupt),
    Opcode.BMAP: _numbers(_BMAP, request_bodies.BlockMap),
    Opcode.DESTROY: _nothing,
    Opcode.IOCTL: _ioctl,
    Opcode.POLL: _numbers(_POLL, request_bodies.Poll),
    Opcode.BATCH_FORGET: _batch_forget,
    Opcode.FALLOCATE: _fallocate,
    Opcode.LSEEK: _lseek,
    Opcode.COPY_FILE_RANGE: _copy_file_range,
    Opcode.SETUPMAPPING: _numbers(_MAPPING, request_bodies.Map),
    Opcode.REMOVEMAPPING: _removemapping,
    Opcode.SYNCFS: _syncfs,
    Opcode.STATX: _statx,
    Opcode.COPY_FILE_RANGE_64: _copy_file_range,
}
