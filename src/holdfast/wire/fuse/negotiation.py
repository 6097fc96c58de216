"""INIT: what version and abilities both sides use, and how large a request can be."""

from __future__ import annotations

import struct
from typing import Final

from holdfast.model.errors import FormatError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.fuse import protocol_constants
from holdfast.wire.fuse.protocol_constants import Init
from holdfast.wire.fuse.request_bodies import Offer
from holdfast.wire.fuse.request_errors import OLD_PROTOCOL

_OFFER: Final = struct.Struct("=IIII")
_OFFER_AT: Final = 40
_UPPER: Final = struct.Struct("=I")
_ANSWER: Final = struct.Struct("=IiQIIIIHHIIHHIIH22x")
_HALF: Final = (1 << 32) - 1
_PAGES_WITHOUT_MAX: Final = 32
"""How many pages a request has where that is not negotiated."""
_REQUEST_ROOM: Final = 4096
"""For the bytes before the data of a write."""
_LARGEST_OTHER: Final = protocol_constants.XATTR_SIZE_MAX + _REQUEST_ROOM
_DEEPEST_STACK: Final = 2
"""``FILESYSTEM_MAX_STACK_DEPTH``."""

WANTED: Final = (
    Init.ASYNC_READ
    | Init.POSIX_LOCKS
    | Init.FLOCK_LOCKS
    | Init.ATOMIC_O_TRUNC
    | Init.BIG_WRITES
    | Init.DONT_MASK
    | Init.AUTO_INVAL_DATA
    | Init.DO_READDIRPLUS
    | Init.READDIRPLUS_AUTO
    | Init.ASYNC_DIO
    | Init.PARALLEL_DIROPS
    | Init.ABORT_ERROR
    | Init.MAX_PAGES
    | Init.CACHE_SYMLINKS
    | Init.HANDLE_KILLPRIV_V2
    | Init.SETXATTR_EXT
    | Init.CREATE_SUPP_GROUP
    | Init.HAS_EXPIRE_ONLY
    | Init.DIRECT_IO_ALLOW_MMAP
    | Init.NO_EXPORT_SUPPORT
    | Init.HAS_RESEND
)
"""The default features of servers in this package; docs/internals/fuse-protocol.md gives the reason for each."""


class Wishes(NamedTuple):
    """The features and limits that a server wants, if the kernel supports them."""

    flags: Init = WANTED
    max_write: int = 1 << 20
    """Bytes; for reads they are rounded up to whole pages."""
    max_readahead: int = 1 << 20
    max_background: int = 64
    """Limit of requests at a time for which no process waits, such as readahead; at three quarters the kernel slows."""
    stack_depth: int = 1
    """With `Init.PASSTHROUGH`: the number of stacked file systems below; 1 lets overlayfs be mounted on this one, 2
    allows more below this one and none above.
    """
    page_bytes: int = 4096


class Terms(NamedTuple):
    """The agreed terms, valid until the next INIT."""

    minor: int
    flags: Init
    max_write: int
    """The most bytes that a WRITE brings."""
    max_read: int
    """The most bytes that a READ or READDIR asks for."""
    max_readahead: int
    max_background: int
    max_pages: int
    stack_depth: int
    """0 without passthrough."""

    @property
    def frame_bytes(self) -> int:
        """No request is larger: read with a buffer of this size, or the kernel answers for the server with EIO."""
        return max(protocol_constants.MIN_READ_BUFFER, self.max_write + _REQUEST_ROOM, _LARGEST_OTHER)


def decode_offer(frame: memoryview) -> Offer:
    """The body of an INIT whose header is decoded. Raises `FormatError`."""
    if len(frame) < _OFFER_AT + _OFFER.size:
        raise FormatError(f"INIT: {len(frame)} bytes are too few")
    major, minor, readahead, flags = _OFFER.unpack_from(frame, _OFFER_AT)
    at = _OFFER_AT + _OFFER.size
    if major == protocol_constants.MAJOR and flags & Init.INIT_EXT:
        if len(frame) < at + _UPPER.size:
            raise FormatError("INIT: INIT_EXT without flags2")
        flags |= _UPPER.unpack_from(frame, at)[0] << 32
    return Offer(major, minor, readahead, Init(flags))


def negotiate(offer: Offer, wishes: Wishes) -> Terms | None:
    """The terms from now on. None if the kernel has a newer major version: after an answer with ours
    (`encode_version`), it sends another INIT, for which this is called again.

    Raises `UnsupportedError` (code ``old_protocol``) for a version that is too old.
    """
    if offer.major > protocol_constants.MAJOR:
        return None
    if offer.major < protocol_constants.MAJOR or offer.minor < protocol_constants.OLDEST_MINOR:
        raise UnsupportedError(
            f"this kernel speaks FUSE {offer.major}.{offer.minor}; "
            f"{protocol_constants.MAJOR}.{protocol_constants.OLDEST_MINOR} is needed",
            hint="Linux 5.4 is the oldest that has it",
            code=OLD_PROTOCOL,
        )
    flags = offer.flags & wishes.flags & ~(Init.INIT_EXT | Init.PASSTHROUGH)
    stack_depth = 0
    if offer.flags & wishes.flags & Init.PASSTHROUGH:
        # The kernel has either, and would silently drop passthrough.
        flags = flags & ~Init.WRITEBACK_CACHE | Init.PASSTHROUGH
        stack_depth = min(max(wishes.stack_depth, 1), _DEEPEST_STACK)
    if flags >> 32:
        flags |= Init.INIT_EXT
    pages = max(-(-wishes.max_write // wishes.page_bytes), 1) if flags & Init.MAX_PAGES else _PAGES_WITHOUT_MAX
    pages = min(pages, (1 << 16) - 1)
    return Terms(
        minor=min(offer.minor, protocol_constants.MINOR),
        flags=flags,
        max_write=min(max(wishes.max_write, wishes.page_bytes), pages * wishes.page_bytes),
        max_read=pages * wishes.page_bytes,
        max_readahead=min(offer.max_readahead, wishes.max_readahead),
        max_background=wishes.max_background,
        max_pages=pages,
        stack_depth=stack_depth,
    )


def encode_terms(unique: int, terms: Terms) -> bytes:
    """The reply to INIT."""
    return _ANSWER.pack(
        _ANSWER.size,
        0,
        unique,
        protocol_constants.MAJOR,
        terms.minor,
        terms.max_readahead,
        terms.flags & _HALF,
        terms.max_background,
        terms.max_background * 3 // 4,
        terms.max_write,
        1,  # nanosecond: how exact times are
        terms.max_pages if terms.flags & Init.MAX_PAGES else 0,
        0,
        terms.flags >> 32,
        terms.stack_depth,
        0,
    )


def encode_version(unique: int) -> bytes:
    """The reply to an INIT of a newer major version: ask again with ours."""
    return _ANSWER.pack(_ANSWER.size, 0, unique, protocol_constants.MAJOR, protocol_constants.MINOR, *[0] * 11)
