"""Decodes requests.

::

    header = decode_header(frame)           # wrong: the connection is of no more use
    try:
        body = decoder.decode(header, frame)
    except FormatError as error:            # wrong: this request alone fails
        reply = replies.error(header.tag, errno_of(error))

The result has valid names, numbers in the range of system calls, and sizes within ``msize``. `session`, which calls
this, checks whether tags and fids may be used. Memory: at most the size of the message once more.
"""

from __future__ import annotations

import os
import stat
import struct
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.wire.p9 import protocol_constants, request_bodies
from holdfast.wire.p9._request_fields import (
    check_end,
    check_range,
    checked_attribute,
    checked_component,
    checked_group,
    checked_name,
    checked_new_fid,
    checked_target,
    checked_text,
    describe_request,
    string_at,
    unpack,
    unpack_at,
)
from holdfast.wire.p9.protocol_constants import HEADER_BYTES, NO_FID, NO_ID, OFFSET_MAX, Type
from holdfast.wire.p9.request_errors import UNKNOWN_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.wire.p9.framing import Header
    from holdfast.wire.p9.request_bodies import Body

    Decode = Callable[[Header, memoryview], Body]

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_TWO_U32: Final = struct.Struct("<II")
_THREE_U32: Final = struct.Struct("<III")
_FOUR_U32: Final = struct.Struct("<IIII")
_WALK: Final = struct.Struct("<IIH")
_GETATTR: Final = struct.Struct("<IQ")
_SETATTR: Final = struct.Struct("<IIIIIQqQqQ")
_XATTRCREATE: Final = struct.Struct("<QI")
_TRANSFER: Final = struct.Struct("<IQI")
"""READ, READDIR and WRITE: fid, offset, count."""
_LOCK: Final = struct.Struct("<IBIQQI")
_GETLOCK: Final = struct.Struct("<IBQQI")

_AFTER_FID: Final = HEADER_BYTES + _U32.size
_AFTER_TWO: Final = HEADER_BYTES + _TWO_U32.size
_SECOND_NS: Final = 1_000_000_000
_LOCK_KINDS: Final = {
    protocol_constants.LOCK_READ: F_RDLCK,
    protocol_constants.LOCK_WRITE: F_WRLCK,
    protocol_constants.LOCK_UNLOCK: F_UNLCK,
}
_KNOWN_OPEN_FLAGS: Final = (
    protocol_constants.ACCESS_MODE
    | protocol_constants.OPEN_CREATE
    | protocol_constants.OPEN_EXCLUSIVE
    | protocol_constants.OPEN_IGNORED
    | sum(wire for wire, _ in protocol_constants.OPEN_FLAGS)
)
_NODE_TYPES: Final = frozenset({stat.S_IFREG, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK})


class Decoder:
    """Decodes requests of a session. Any thread may use it."""

    __slots__ = ("_decoders", "_most_data")

    def __init__(self, msize: int) -> None:
        self._most_data = msize - protocol_constants.DATA_HEADER_BYTES
        self._decoders: dict[int, Decode] = _DECODERS | {Type.READ: self._read, Type.READDIR: self._read}

    def decode(self, header: Header, frame: memoryview) -> Body:
        """The body of the request. Raises `FormatError`: its message says where, its code the answer (`errno_of`)."""
        decode = self._decoders.get(header.type)
        if decode is None:
            raise FormatError(f"type: {header.type} is none that is known", code=UNKNOWN_TYPE)
        return decode(header, frame)

    def _read(self, header: Header, frame: memoryview) -> Body:
        fid, offset, count = unpack(_TRANSFER, header, frame)
        if count > self._most_data:
            raise FormatError(f"{describe_request(header)} count: {count} where {self._most_data} are agreed")
        if header.type == Type.READ:
            check_range(header, offset, count)
        elif count < protocol_constants.DIRECTORY_ENTRY_MAX:
            # An answer without entries would mean that the directory ends here.
            raise FormatError(f"{describe_request(header)} count: {count} bytes are too few for an entry")
        elif offset > OFFSET_MAX:
            raise FormatError(f"{describe_request(header)} offset: {offset} was never given")
        return request_bodies.Read(fid, offset, count)


def _version(header: Header, frame: memoryview) -> Body:
    (msize,) = unpack_at(_U32, header, frame, HEADER_BYTES)
    version, end = string_at(header, frame, _AFTER_FID)
    check_end(header, frame, end)
    return request_bodies.Version(msize, version)


def _auth(header: Header, frame: memoryview) -> Body:
    (fid,) = unpack_at(_U32, header, frame, HEADER_BYTES)
    return request_bodies.Auth(checked_new_fid(header, fid), *_user(header, frame, _AFTER_FID))


def _attach(header: Header, frame: memoryview) -> Body:
    fid, auth_fid = unpack_at(_TWO_U32, header, frame, HEADER_BYTES)
    return request_bodies.Attach(
        checked_new_fid(header, fid), None if auth_fid == NO_FID else auth_fid, *_user(header, frame, _AFTER_TWO)
    )


def _user(header: Header, frame: memoryview, at: int) -> tuple[bytes, bytes, int | None]:
    user, at = string_at(header, frame, at)
    tree, at = string_at(header, frame, at)
    (uid,) = unpack_at(_U32, header, frame, at)
    check_end(header, frame, at + _U32.size)
    return (
        checked_text(header, user, protocol_constants.NAME_MAX),
        checked_text(header, tree, protocol_constants.TARGET_MAX),
        None if uid == NO_ID else uid,
    )


def _flush(header: Header, frame: memoryview) -> Body:
    return request_bodies.Flush(unpack(_U16, header, frame)[0])


def _walk(header: Header, frame: memoryview) -> Body:
    fid, new_fid, count = unpack_at(_WALK, header, frame, HEADER_BYTES)
    if count > protocol_constants.NAMES_MAX:
        raise FormatError(f"{describe_request(header)}: {count} names, {protocol_constants.NAMES_MAX} are the most")
    at = HEADER_BYTES + _WALK.size
    names: list[bytes] = []
    for _ in range(count):
        name, at = string_at(header, frame, at)
        names.append(checked_component(header, name))
    check_end(header, frame, at)
    return request_bodies.Walk(fid, checked_new_fid(header, new_fid), tuple(names))


def _fid(header: Header, frame: memoryview) -> Body:
    return request_bodies.Fid(unpack(_U32, header, frame)[0])


def _flags(header: Header, flags: int) -> int:
    """Our system's flags of open(2) for those on the wire."""
    if flags & ~_KNOWN_OPEN_FLAGS or flags & protocol_constants.ACCESS_MODE == protocol_constants.ACCESS_MODE:
        raise FormatError(f"{describe_request(header)} flags: {flags:#o}")
    own = flags & protocol_constants.ACCESS_MODE
    for wire, system in protocol_constants.OPEN_FLAGS:
        if flags & wire:
            own |= system
    return own


def _lopen(header: Header, frame: memoryview) -> Body:
    # (Linux passes the program's CREATE and EXCL on even for a file that it has found to exist.)
    fid, flags = unpack(_TWO_U32, header, frame)
    return request_bodies.Open(fid, _flags(header, flags))


def _permissions(header: Header, mode: int, kind: int) -> int:
    """``mode`` without its type, which is ``kind`` or left out."""
    if stat.S_IFMT(mode) not in (0, kind) or mode >> 16:
        raise FormatError(f"{describe_request(header)} mode: {mode:#o}")
    return stat.S_IMODE(mode)


def _lcreate(header: Header, frame: memoryview) -> Body:
    fid, name, at = _entry(header, frame)
    flags, mode, gid = unpack_at(_THREE_U32, header, frame, at)
    check_end(header, frame, at + _THREE_U32.size)
    return request_bodies.Create(
        fid,
        name,
        _flags(header, flags),
        _permissions(header, mode, stat.S_IFREG),
        checked_group(header, gid),
        bool(flags & protocol_constants.OPEN_EXCLUSIVE),
    )


def _entry(header: Header, frame: memoryview) -> tuple[int, bytes, int]:
    """A directory's fid, a name in it, and where what follows begins."""
    (fid,) = unpack_at(_U32, header, frame, HEADER_BYTES)
    name, at = string_at(header, frame, _AFTER_FID)
    return fid, checked_name(header, name), at


def _symlink(header: Header, frame: memoryview) -> Body:
    fid, name, at = _entry(header, frame)
    target, at = string_at(header, frame, at)
    (gid,) = unpack_at(_U32, header, frame, at)
    check_end(header, frame, at + _U32.size)
    return request_bodies.Symlink(fid, name, checked_target(header, target), checked_group(header, gid))


def _mknod(header: Header, frame: memoryview) -> Body:
    fid, name, at = _entry(header, frame)
    mode, major, minor, gid = unpack_at(_FOUR_U32, header, frame, at)
    check_end(header, frame, at + _FOUR_U32.size)
    kind = stat.S_IFMT(mode) or stat.S_IFREG
    if kind not in _NODE_TYPES or mode >> 16:
        raise FormatError(f"{describe_request(header)} mode: {mode:#o}")
    if major > protocol_constants.MAJOR_MAX or minor > protocol_constants.MINOR_MAX:
        raise FormatError(f"{describe_request(header)}: {major}:{minor} is no device")
    return request_bodies.MakeNode(fid, name, kind | stat.S_IMODE(mode), major, minor, checked_group(header, gid))


def _mkdir(header: Header, frame: memoryview) -> Body:
    fid, name, at = _entry(header, frame)
    mode, gid = unpack_at(_TWO_U32, header, frame, at)
    check_end(header, frame, at + _TWO_U32.size)
    return request_bodies.MakeDirectory(fid, name, _permissions(header, mode, stat.S_IFDIR), checked_group(header, gid))


def _two_fids_and_a_name(header: Header, frame: memoryview) -> tuple[int, int, bytes]:
    first, second = unpack_at(_TWO_U32, header, frame, HEADER_BYTES)
    name, at = string_at(header, frame, _AFTER_TWO)
    check_end(header, frame, at)
    return first, second, checked_name(header, name)


def _link(header: Header, frame: memoryview) -> Body:
    return request_bodies.Link(*_two_fids_and_a_name(header, frame))


def _rename(header: Header, frame: memoryview) -> Body:
    return request_bodies.Rename(*_two_fids_and_a_name(header, frame))


def _renameat(header: Header, frame: memoryview) -> Body:
    fid, name, at = _entry(header, frame)
    (new_fid,) = unpack_at(_U32, header, frame, at)
    new_name, at = string_at(header, frame, at + _U32.size)
    check_end(header, frame, at)
    return request_bodies.RenameAt(fid, name, new_fid, checked_name(header, new_name))


def _unlinkat(header: Header, frame: memoryview) -> Body:
    fid, name, at = _entry(header, frame)
    (flags,) = unpack_at(_U32, header, frame, at)
    check_end(header, frame, at + _U32.size)
    if flags & ~protocol_constants.AT_REMOVEDIR:
        raise FormatError(f"{describe_request(header)} flags: {flags:#x}")
    return request_bodies.UnlinkAt(fid, name, bool(flags))


def _getattr(header: Header, frame: memoryview) -> Body:
    fid, mask = unpack(_GETATTR, header, frame)
    return request_bodies.GetAttr(fid, mask & protocol_constants.GETATTR_ALL)


def _setattr(header: Header, frame: memoryview) -> Body:
    fid, valid, mode, uid, gid, size, *times = unpack(_SETATTR, header, frame)
    if valid & ~protocol_constants.SETATTR_ALL:
        raise FormatError(f"{describe_request(header)} valid: {valid:#x}")
    uid = uid if valid & protocol_constants.SETATTR_UID else 0
    gid = gid if valid & protocol_constants.SETATTR_GID else 0
    if NO_ID in (uid, gid):
        raise FormatError(f"{describe_request(header)}: {NO_ID} is no user or group")
    size = size if valid & protocol_constants.SETATTR_SIZE else 0
    check_range(header, size, 0)
    return request_bodies.SetAttr(
        fid,
        valid,
        stat.S_IMODE(mode) if valid & protocol_constants.SETATTR_MODE else 0,
        uid,
        gid,
        size,
        _time(header, valid, protocol_constants.SETATTR_ATIME, protocol_constants.SETATTR_ATIME_SET, times[:2]),
        _time(header, valid, protocol_constants.SETATTR_MTIME, protocol_constants.SETATTR_MTIME_SET, times[2:]),
    )


def _time(header: Header, valid: int, named: int, given: int, time: list[int]) -> int | None:
    if not valid & named:
        return 0
    if not valid & given:
        return None
    seconds, nanoseconds = time
    if nanoseconds >= _SECOND_NS:
        raise FormatError(f"{describe_request(header)}: a time of more nanoseconds than a second has")
    return seconds * _SECOND_NS + nanoseconds


def _xattrwalk(header: Header, frame: memoryview) -> Body:
    fid, new_fid = unpack_at(_TWO_U32, header, frame, HEADER_BYTES)
    name, at = string_at(header, frame, _AFTER_TWO)
    check_end(header, frame, at)
    return request_bodies.XattrWalk(
        fid, checked_new_fid(header, new_fid), checked_attribute(header, name) if name else name
    )


def _xattrcreate(header: Header, frame: memoryview) -> Body:
    (fid,) = unpack_at(_U32, header, frame, HEADER_BYTES)
    name, at = string_at(header, frame, _AFTER_FID)
    size, flags = unpack_at(_XATTRCREATE, header, frame, at)
    check_end(header, frame, at + _XATTRCREATE.size)
    if size > protocol_constants.XATTR_SIZE_MAX:
        raise FormatError(f"{describe_request(header)} size: {size}")
    if flags & ~(os.XATTR_CREATE | os.XATTR_REPLACE):
        raise FormatError(f"{describe_request(header)} flags: {flags:#x}")
    return request_bodies.XattrCreate(fid, checked_attribute(header, name), size, flags)


def _write(header: Header, frame: memoryview) -> Body:
    fid, offset, count = unpack_at(_TRANSFER, header, frame, HEADER_BYTES)
    data = frame[protocol_constants.WRITE_HEADER_BYTES :]
    if count != len(data):
        raise FormatError(f"{describe_request(header)} count: {count}, with {len(data)} bytes of data")
    check_range(header, offset, count)
    return request_bodies.Write(fid, offset, data)


def _fsync(header: Header, frame: memoryview) -> Body:
    if len(frame) == _AFTER_FID:  # as the first clients had it
        return request_bodies.Sync(unpack(_U32, header, frame)[0], data_only=False)
    fid, data_only = unpack(_TWO_U32, header, frame)
    return request_bodies.Sync(fid, bool(data_only))


def _lock(header: Header, frame: memoryview) -> Body:
    fid, kind, flags, start, length, process = unpack_at(_LOCK, header, frame, HEADER_BYTES)
    if flags & ~(protocol_constants.LOCK_BLOCK | protocol_constants.LOCK_RECLAIM):
        raise FormatError(f"{describe_request(header)} flags: {flags:#x}")
    client = _lock_client(header, frame, HEADER_BYTES + _LOCK.size)
    wait = bool(flags & protocol_constants.LOCK_BLOCK)
    return request_bodies.Lock(
        fid, _lock_kind(header, kind), start, _lock_end(header, start, length), process, client, wait
    )


def _getlock(header: Header, frame: memoryview) -> Body:
    fid, kind, start, length, process = unpack_at(_GETLOCK, header, frame, HEADER_BYTES)
    client = _lock_client(header, frame, HEADER_BYTES + _GETLOCK.size)
    kind = _lock_kind(header, kind)
    return request_bodies.Lock(
        fid,
        F_WRLCK if kind == F_UNLCK else kind,
        start,
        _lock_end(header, start, length),
        process,
        client,
        wait=False,
    )


def _lock_kind(header: Header, kind: int) -> int:
    if kind not in _LOCK_KINDS:
        raise FormatError(f"{describe_request(header)} type: {kind}")
    return _LOCK_KINDS[kind]


def _lock_end(header: Header, start: int, length: int) -> int:
    """The last byte; length 0 is up to the end of every file."""
    check_range(header, start, max(length - 1, 0))
    return start + length - 1 if length else OFFSET_MAX


def _lock_client(header: Header, frame: memoryview, at: int) -> bytes:
    client, at = string_at(header, frame, at)
    check_end(header, frame, at)
    return checked_text(header, client, protocol_constants.NAME_MAX)


_DECODERS: Final[dict[int, Decode]] = {
    Type.STATFS: _fid,
    Type.LOPEN: _lopen,
    Type.LCREATE: _lcreate,
    Type.SYMLINK: _symlink,
    Type.MKNOD: _mknod,
    Type.RENAME: _rename,
    Type.READLINK: _fid,
    Type.GETATTR: _getattr,
    Type.SETATTR: _setattr,
    Type.XATTRWALK: _xattrwalk,
    Type.XATTRCREATE: _xattrcreate,
    Type.FSYNC: _fsync,
    Type.LOCK: _lock,
    Type.GETLOCK: _getlock,
    Type.LINK: _link,
    Type.MKDIR: _mkdir,
    Type.RENAMEAT: _renameat,
    Type.UNLINKAT: _unlinkat,
    Type.VERSION: _version,
    Type.AUTH: _auth,
    Type.ATTACH: _attach,
    Type.FLUSH: _flush,
    Type.WALK: _walk,
    Type.WRITE: _write,
    Type.CLUNK: _fid,
    Type.REMOVE: _fid,
}
