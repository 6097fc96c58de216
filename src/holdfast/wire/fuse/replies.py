"""Encodes replies: to `unique`, the id of the request, whatever its opcode.

A reply is one message, written with one call. Where it carries data it comes in pieces for ``writev``, so that data is
not copied here.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Final, cast

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.fuse.protocol_constants import FOPEN_PASSTHROUGH, NAME_MAX

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

_HEAD: Final = struct.Struct("=IiQ")
HEAD_BYTES: Final = _HEAD.size

_ATTRIBUTES: Final = "QQQqqqIIIIIIIIII"
_ENTRY_FIELDS: Final = "QQQQII" + _ATTRIBUTES
_OPENED_FIELDS: Final = "QIi"
ENTRY: Final = struct.Struct("=" + _ENTRY_FIELDS)
_ENTRY: Final = struct.Struct("=IiQ" + _ENTRY_FIELDS)
_NEGATIVE: Final = struct.Struct("=IiQ" + "QQQQII88x")
_ATTR: Final = struct.Struct("=IiQ" + "QI4x" + _ATTRIBUTES)
_STATX: Final = struct.Struct("=IiQ" + "QII16x" + "IIQIIIH2xQQQQ" + "qI4x" * 4 + "IIII112x")
_OPENED: Final = struct.Struct("=IiQ" + _OPENED_FIELDS)
_CREATED: Final = struct.Struct("=IiQ" + _ENTRY_FIELDS + _OPENED_FIELDS)
_U32: Final = struct.Struct("=IiQ" + "I4x")
_U64: Final = struct.Struct("=IiQ" + "Q")
_STATFS: Final = struct.Struct("=IiQ" + "QQQQQIII28x")
_LOCK: Final = struct.Struct("=IiQ" + "QQII")

_SECOND_NS: Final = 1_000_000_000
_NO_ERRNO: Final = 512
"""From here on numbers are the kernel's own; some file systems let them out (524, ENOTSUPP)."""


class Validity(NamedTuple):
    """How long the kernel may cache an answer."""

    seconds: int
    nanoseconds: int = 0


NEVER: Final = Validity(0)
FOREVER: Final = Validity((1 << 32) - 1)
"""Long enough (a century), and within what every kernel can count with."""


class Attributes(NamedTuple):
    """``struct fuse_attr``, in its order. Times are seconds since 1970, with separate nanoseconds."""

    inode: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int
    atime_nanoseconds: int
    mtime_nanoseconds: int
    ctime_nanoseconds: int
    mode: int
    links: int
    uid: int
    gid: int
    rdev: int
    block_bytes: int
    flags: int
    """``ATTR_*``"""


# (A constructor in Python would cost as much as the rest of `attributes`.)
_new_attributes: Final = cast(
    "Callable[[type[Attributes], tuple[int, ...]], Attributes]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)


class NodeEntry(NamedTuple):
    """The node under a name. A reply with it counts as one more lookup by the kernel."""

    node: int
    attributes: Attributes
    entry_valid: Validity
    attributes_valid: Validity
    generation: int = 0
    """Together with ``node`` it never names two things."""


new_entry: Final = cast(
    "Callable[[type[NodeEntry], tuple[int, Attributes, Validity, Validity, int]], NodeEntry]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)
"""Its constructor, which saves the cost of one in Python for each name."""


class OpenedFile(NamedTuple):
    """An open file or directory."""

    handle: int
    flags: int = 0
    """``FOPEN_*``"""
    backing: int = 0
    """With passthrough: what the kernel has called the file that it is to read and write itself."""


class StatX(NamedTuple):
    """``struct statx``: only what ``mask`` names counts. Times are (seconds, nanoseconds), devices (major, minor)."""

    mask: int
    block_bytes: int
    attributes: int
    links: int
    uid: int
    gid: int
    mode: int
    inode: int
    size: int
    blocks: int
    attributes_mask: int
    atime: tuple[int, int]
    btime: tuple[int, int]
    ctime: tuple[int, int]
    mtime: tuple[int, int]
    rdev: tuple[int, int]
    device: tuple[int, int]


def attributes(status: os.stat_result, *, inode: int | None = None, links: int | None = None) -> Attributes:
    """The attributes from `os.stat`, with another inode number or count of links if given."""
    atime_ns, mtime_ns, ctime_ns = status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns
    return _new_attributes(
        Attributes,
        (
            status.st_ino if inode is None else inode,
            status.st_size,
            status.st_blocks,
            atime_ns // _SECOND_NS,
            mtime_ns // _SECOND_NS,
            ctime_ns // _SECOND_NS,
            atime_ns % _SECOND_NS,
            mtime_ns % _SECOND_NS,
            ctime_ns % _SECOND_NS,
            status.st_mode,
            status.st_nlink if links is None else links,
            status.st_uid,
            status.st_gid,
            status.st_rdev & 0xFFFFFFFF,  # as the kernel packs a device, if its numbers fit
            status.st_blksize,
            0,
        ),
    )


def error(unique: int, number: int) -> bytes:
    """The request failed with this errno. (ENOENT for a lookup; `negative` is the same, to be cached.)

    A number that is no errno for the kernel becomes EIO: it would refuse the reply, and the caller would wait for ever.
    """
    if not 0 < number < _NO_ERRNO:
        number = errno.EIO
    return _HEAD.pack(HEAD_BYTES, -number, unique)


def done(unique: int) -> bytes:
    """The request succeeded, and there is nothing more to say."""
    return _HEAD.pack(HEAD_BYTES, 0, unique)


def data(unique: int, *pieces: bytes | bytearray | memoryview) -> Sequence[bytes | bytearray | memoryview]:
    """The content read from a file, directory, link or attribute. The pieces follow each other."""
    return (_HEAD.pack(HEAD_BYTES + sum(map(len, pieces)), 0, unique), *pieces)


def entry(unique: int, found: NodeEntry) -> bytes:
    """LOOKUP, MKNOD, MKDIR, SYMLINK, LINK."""
    return _ENTRY.pack(_ENTRY.size, 0, unique, *entry_fields(found))


def entry_fields(found: NodeEntry) -> tuple[int, ...]:
    """The numbers of `ENTRY`."""
    node, attributes, entry_valid, attributes_valid, generation = found
    return (
        node,
        generation,
        entry_valid[0],
        attributes_valid[0],
        entry_valid[1],
        attributes_valid[1],
        *attributes,
    )


def negative(unique: int, valid: Validity) -> bytes:
    """LOOKUP: there is no such name, which may be remembered. Counts as no lookup."""
    return _NEGATIVE.pack(_NEGATIVE.size, 0, unique, 0, 0, valid.seconds, 0, valid.nanoseconds, 0)


def attr(unique: int, found: Attributes, valid: Validity) -> bytes:
    """GETATTR, SETATTR."""
    return _ATTR.pack(_ATTR.size, 0, unique, *valid, *found)


def statx(unique: int, found: StatX, valid: Validity, flags: int = 0) -> bytes:
    """STATX. ``flags`` as in `Attributes`."""
    numbers, pairs = found[:11], found[11:]
    return _STATX.pack(_STATX.size, 0, unique, *valid, flags, *numbers, *(number for pair in pairs for number in pair))


def opened(unique: int, handle: OpenedFile) -> bytes:
    """OPEN, OPENDIR."""
    return _OPENED.pack(_OPENED.size, 0, unique, *_checked(handle))


def created(unique: int, found: NodeEntry, handle: OpenedFile) -> bytes:
    """CREATE, TMPFILE."""
    return _CREATED.pack(_CREATED.size, 0, unique, *entry_fields(found), *_checked(handle))


def _checked(handle: OpenedFile) -> OpenedFile:
    """The kernel would take a wrong backing id for an error of the file, once it is read: better said here."""
    if (handle.backing > 0) != bool(handle.flags & FOPEN_PASSTHROUGH):
        raise ValueError(f"passthrough and a backing id go together: {handle}")
    return handle


def written(unique: int, count: int) -> bytes:
    """WRITE, COPY_FILE_RANGE: the number of bytes."""
    return _U32.pack(_U32.size, 0, unique, count)


def copied(unique: int, count: int) -> bytes:
    """COPY_FILE_RANGE_64: the number of bytes."""
    return _U64.pack(_U64.size, 0, unique, count)


def size(unique: int, count: int) -> bytes:
    """GETXATTR, LISTXATTR with size 0: the size in bytes."""
    return _U32.pack(_U32.size, 0, unique, count)


def statfs(unique: int, status: os.statvfs_result) -> bytes:
    """STATFS, from what `os.statvfs` said."""
    return _STATFS.pack(
        _STATFS.size,
        0,
        unique,
        status.f_blocks,
        status.f_bfree,
        status.f_bavail,
        status.f_files,
        status.f_ffree,
        status.f_bsize,
        status.f_namemax,
        status.f_frsize,
    )


def lock(unique: int, kind: int, start: int = 0, end: int = 0, pid: int = 0) -> bytes:
    """GETLK: the conflicting lock; F_UNLCK if there is none."""
    return _LOCK.pack(_LOCK.size, 0, unique, start, end, kind, pid)


def ready(unique: int, events: int) -> bytes:
    """POLL: the true events among those asked for."""
    return _U32.pack(_U32.size, 0, unique, events)


def position(unique: int, offset: int) -> bytes:
    """LSEEK."""
    return _U64.pack(_U64.size, 0, unique, offset)


def block(unique: int, number: int) -> bytes:
    """BMAP."""
    return _U64.pack(_U64.size, 0, unique, number)


def again(unique: int) -> bytes:
    """INTERRUPT of a request that has not arrived yet: ask for a repetition."""
    return error(unique, errno.EAGAIN)


def no_ioctl(unique: int) -> bytes:
    """IOCTL: refused, as by every file without this command."""
    return error(unique, errno.ENOTTY)


_DIRENT: Final = struct.Struct("=QQII")
"""Inode, offset, length of the name, type; the name follows, and zeros up to eight bytes."""
_PLUS: Final = struct.Struct(ENTRY.format + _DIRENT.format[1:])
_NO_ENTRY: Final = ENTRY.unpack(bytes(ENTRY.size))
_PADDING: Final = tuple(map(bytes, range(8)))
_TYPE_SHIFT: Final = 12
"""From a mode to ``DT_*``."""


class DirectoryListing:
    """The entries from one offset on, never larger than requested: the answer to READDIR and READDIRPLUS. ``offset`` of
    an entry is the place of the *next* one: a READDIR continues there, even much later, so it must mean the same place
    even if entries were removed meanwhile.

    Each `add` returns whether the entry fitted; if not, the reply is complete. An empty reply is the end of the
    directory, so the first entry must fit: the kernel asks for a page or more.
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

    def fits(self, name: bytes, *, plus: bool) -> bool:
        """Whether this name fits: call this before a lookup is counted."""
        count = (_PLUS if plus else _DIRENT).size + len(name)
        return len(self._data) + count + -count % 8 <= self._size

    def add(self, name: bytes, inode: int, mode: int, offset: int) -> bool:
        """For READDIR: ``mode`` has the type, in an inode's or with its type alone."""
        return self._add(_DIRENT, (), name, inode, mode, offset)

    def add_plus(self, name: bytes, found: NodeEntry | None, inode: int, mode: int, offset: int) -> bool:
        """For READDIRPLUS: with what a lookup would say, which counts as one (only if this returns true).

        Without it (None) the name is listed only: ``.`` and ``..`` must be, and anything may be.
        """
        return self._add(_PLUS, _NO_ENTRY if found is None else entry_fields(found), name, inode, mode, offset)

    def _add(
        self, form: struct.Struct, entry: tuple[int, ...], name: bytes, inode: int, mode: int, offset: int
    ) -> bool:
        # (One call for a name: a directory may have a hundred thousand.)
        length = _length(name)
        count = form.size + length
        padding = -count % 8
        data = self._data
        if len(data) + count + padding > self._size:
            return False
        data += form.pack(*entry, inode, offset, length, mode >> _TYPE_SHIFT & 15)
        data += name
        data += _PADDING[padding]
        return True


def _length(name: bytes) -> int:
    """The kernel fails the whole directory for a name that cannot be."""
    if not 0 < len(name) <= NAME_MAX or b"/" in name:
        raise ValueError(f"{name!r} is no name")
    return len(name)
