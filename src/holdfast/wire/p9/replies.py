"""Encodes replies: to ``tag``, the one of the request.

A reply is one message. Where it carries data it comes in pieces for ``sendmsg``, so that data is not copied here.
"""

from __future__ import annotations

import errno
import stat
import struct
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK
from typing import TYPE_CHECKING, Final

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.p9 import protocol_constants
from holdfast.wire.p9.protocol_constants import NAME_MAX, OFFSET_MAX, RLERROR, Type

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_HEAD: Final = struct.Struct("<IBH")
_QID_FIELDS: Final = "BIQ"
_QID_BYTES: Final = 13
_QID: Final = struct.Struct("<IBH" + _QID_FIELDS)
_WALK: Final = struct.Struct("<IBHH")
_QIDS: Final = tuple(struct.Struct("<" + _QID_FIELDS * count) for count in range(protocol_constants.NAMES_MAX + 1))
_OPENED: Final = struct.Struct("<IBH" + _QID_FIELDS + "I")
_STRING: Final = struct.Struct("<IBHH")
_U8: Final = struct.Struct("<IBHB")
_U32: Final = struct.Struct("<IBHI")
_U64: Final = struct.Struct("<IBHQ")
_VERSION: Final = struct.Struct("<IBHIH")
_GETATTR: Final = struct.Struct("<IBHQ" + _QID_FIELDS + "IIIQQQQQqQqQqQqQQQ")
_STATFS: Final = struct.Struct("<IBHIIQQQQQQI")
_GETLOCK: Final = struct.Struct("<IBHBQQIH")
_ENTRY: Final = struct.Struct("<" + _QID_FIELDS + "QBH")
_SECOND_NS: Final = 1_000_000_000
_MAX_ERRNO: Final = 512
"""From here on numbers are the kernel's own."""
_LOCK_TYPES: Final = {
    F_RDLCK: protocol_constants.LOCK_READ,
    F_WRLCK: protocol_constants.LOCK_WRITE,
    F_UNLCK: protocol_constants.LOCK_UNLOCK,
}
_QID_TYPES: Final = {stat.S_IFDIR: protocol_constants.QT_DIRECTORY, stat.S_IFLNK: protocol_constants.QT_SYMLINK}
_TYPE_SHIFT: Final = 12
"""From a mode to ``DT_*``."""
_FS_MAGIC: Final = 0x01021997
"""The type of a file system in statfs(2); Linux passes it on."""


class Qid(NamedTuple):
    """Identifies an object: ``path`` alone is unique while the server runs. Linux makes the inode number of it.
    ``version`` changes with the content, or is always 0 for unknown.
    """

    type: int
    """``QT_*``"""
    version: int
    path: int


class Attributes(NamedTuple):
    """The answer to GETATTR. Times are nanoseconds since 1970, and may be below 0."""

    mode: int
    uid: int
    gid: int
    links: int
    rdev: int
    """As the kernel packs a device: `os.makedev`, within 32 bits."""
    size: int
    block_bytes: int
    blocks: int
    """Of 512 bytes."""
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int = 0
    generation: int = 0
    data_version: int = 0
    valid: int = protocol_constants.GETATTR_BASIC
    """``GETATTR_*`` of the fields that are filled in."""


def qid(mode: int, path: int, version: int = 0) -> Qid:
    """The qid of an object with the type that ``mode`` has."""
    return Qid(_QID_TYPES.get(stat.S_IFMT(mode), protocol_constants.QT_FILE), version, path)


def attributes(status: os.stat_result, *, links: int | None = None) -> Attributes:
    """The attributes from `os.stat`, with another count of links if given."""
    return Attributes(
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_nlink if links is None else links,
        status.st_rdev & 0xFFFFFFFF,
        status.st_size,
        status.st_blksize,
        status.st_blocks,
        status.st_atime_ns,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def error(tag: int, number: int) -> bytes:
    """Rlerror: the request failed with this errno of Linux. Any other number becomes EIO: Linux would take 0
    for success.
    """
    if not 0 < number < _MAX_ERRNO:
        number = errno.EIO
    return _U32.pack(_U32.size, RLERROR, tag, number)


def done(tag: int, kind: int) -> bytes:
    """The request of this type succeeded, and there is nothing more to say: SETATTR, XATTRCREATE, RENAME, RENAMEAT,
    LINK, UNLINKAT, FSYNC, FLUSH, CLUNK, REMOVE.
    """
    return _HEAD.pack(_HEAD.size, kind + 1, tag)


def version(tag: int, msize: int, name: bytes) -> bytes:
    """VERSION."""
    return _VERSION.pack(_VERSION.size + len(name), Type.VERSION + 1, tag, msize, len(name)) + name


def found(tag: int, kind: int, object_qid: Qid) -> bytes:
    """AUTH, ATTACH, SYMLINK, MKNOD, MKDIR: what there is now."""
    return _QID.pack(_QID.size, kind + 1, tag, *object_qid)


def walked(tag: int, qids: Sequence[Qid]) -> bytes:
    """WALK: the qid for each name; if fewer than requested, the next name does not exist, and the new fid is not made.
    (If the first does not exist, the answer is an error.)
    """
    count = len(qids)
    numbers: list[int] = []
    for each in qids:
        numbers += each
    return _WALK.pack(_WALK.size + count * _QID_BYTES, Type.WALK + 1, tag, count) + _QIDS[count].pack(*numbers)


def opened(tag: int, kind: int, object_qid: Qid, io_unit: int = 0) -> bytes:
    """LOPEN, LCREATE. ``io_unit``: the most data in one request, 0 for what the size of a message allows."""
    return _OPENED.pack(_OPENED.size, kind + 1, tag, *object_qid, io_unit)


def target(tag: int, path: bytes) -> bytes:
    """READLINK."""
    return _STRING.pack(_STRING.size + len(path), Type.READLINK + 1, tag, len(path)) + path


def attr(tag: int, object_qid: Qid, has: Attributes) -> bytes:
    """GETATTR."""
    (mode, uid, gid, links, rdev, size, block_bytes, blocks,
     atime, mtime, ctime, btime, generation, data_version, valid) = has  # fmt: skip
    return _GETATTR.pack(
        _GETATTR.size,
        Type.GETATTR + 1,
        tag,
        valid,
        *object_qid,
        mode,
        uid,
        gid,
        links,
        rdev,
        size,
        block_bytes,
        blocks,
        *divmod(atime, _SECOND_NS),
        *divmod(mtime, _SECOND_NS),
        *divmod(ctime, _SECOND_NS),
        *divmod(btime, _SECOND_NS),
        generation,
        data_version,
    )


def statfs(tag: int, status: os.statvfs_result) -> bytes:
    """STATFS, from `os.statvfs`. 9P has one size of a block, the unit in which blocks are counted."""
    return _STATFS.pack(
        _STATFS.size,
        Type.STATFS + 1,
        tag,
        _FS_MAGIC,
        status.f_frsize or status.f_bsize,
        status.f_blocks,
        status.f_bfree,
        status.f_bavail,
        status.f_files,
        status.f_ffree,
        status.f_fsid & (1 << 64) - 1,
        min(status.f_namemax, NAME_MAX),
    )


def attribute(tag: int, size: int) -> bytes:
    """XATTRWALK: the number of bytes that can be read."""
    return _U64.pack(_U64.size, Type.XATTRWALK + 1, tag, size)


def data(tag: int, kind: int, *pieces: bytes | bytearray | memoryview) -> tuple[bytes | bytearray | memoryview, ...]:
    """READ, READDIR: the data, in pieces that follow each other. No piece means the end."""
    count = sum(map(len, pieces))
    return (_U32.pack(_U32.size + count, kind + 1, tag, count), *pieces)


def written(tag: int, count: int) -> bytes:
    """WRITE: the number of bytes."""
    return _U32.pack(_U32.size, Type.WRITE + 1, tag, count)


def locked(tag: int, status: int) -> bytes:
    """LOCK, with a `LockStatus`."""
    return _U8.pack(_U8.size, Type.LOCK + 1, tag, status)


def lock(tag: int, kind: int, start: int = 0, end: int = OFFSET_MAX, process: int = 0, client: bytes = b"") -> bytes:
    """GETLOCK: the conflicting lock; F_UNLCK if there is none. Kind and range as in `request_bodies.Lock`."""
    length = 0 if end >= OFFSET_MAX else end - start + 1
    size = _GETLOCK.size + len(client)
    return _GETLOCK.pack(size, Type.GETLOCK + 1, tag, _LOCK_TYPES[kind], start, length, process, len(client)) + client


class DirectoryListing:
    """The entries from one offset on, never larger than requested: the answer to READDIR. ``offset`` of an entry is the
    place of the *next* one: a READDIR continues there, even much later, so it must mean the same place even if entries
    were removed meanwhile; from 1 to 2⁶³ − 1.

    Each `add` returns whether the entry fitted; if not, the reply is complete. An empty reply is the end of the
    directory; a request has room for at least one entry.
    """

    __slots__ = ("_data", "_size")

    def __init__(self, size: int) -> None:
        """At most ``size`` bytes."""
        self._size = size
        self._data = bytearray()

    @property
    def data(self) -> bytearray:
        """The data of the answer; not a copy."""
        return self._data

    def add(self, name: bytes, object_qid: Qid, mode: int, offset: int) -> bool:
        """``mode`` has the type, in an inode's or with its type alone."""
        length = len(name)
        if not 0 < length <= NAME_MAX or b"/" in name or b"\0" in name:
            # Linux fails the whole directory, or copies a longer one than it has room for.
            raise ValueError(f"{name!r} is no name")
        if len(self._data) + _ENTRY.size + length > self._size:
            return False
        self._data += _ENTRY.pack(*object_qid, offset, mode >> _TYPE_SHIFT & 15, length)
        self._data += name
        return True
