"""Speaks 9P2000.L as a client, to test servers: messages as bytes, and a client that sends one at a time.

It shares only the numbers with `holdfast.wire.p9`: a message is described by one letter a field, ``B``, ``H``, ``I``,
``q``, ``Q`` as in `struct`, ``s`` a string, ``n`` a list of strings, ``d`` data, ``i`` a qid, ``j`` a list of qids.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.model.errors import FormatError
from holdfast.wire.p9.protocol_constants import GETATTR_BASIC, NO_FID, NO_ID, NO_TAG, RLERROR, VERSION, Type

if TYPE_CHECKING:
    from collections.abc import Callable

REQUESTS: Final[dict[int, str]] = {
    Type.STATFS: "I",
    Type.LOPEN: "II",
    Type.LCREATE: "IsIII",
    Type.SYMLINK: "IssI",
    Type.MKNOD: "IsIIII",
    Type.RENAME: "IIs",
    Type.READLINK: "I",
    Type.GETATTR: "IQ",
    Type.SETATTR: "IIIIIQqQqQ",
    Type.XATTRWALK: "IIs",
    Type.XATTRCREATE: "IsQI",
    Type.READDIR: "IQI",
    Type.FSYNC: "II",
    Type.LOCK: "IBIQQIs",
    Type.GETLOCK: "IBQQIs",
    Type.LINK: "IIs",
    Type.MKDIR: "IsII",
    Type.RENAMEAT: "IsIs",
    Type.UNLINKAT: "IsI",
    Type.VERSION: "Is",
    Type.AUTH: "IssI",
    Type.ATTACH: "IIssI",
    Type.FLUSH: "H",
    Type.WALK: "IIn",
    Type.READ: "IQI",
    Type.WRITE: "IQd",
    Type.CLUNK: "I",
    Type.REMOVE: "I",
}
REPLIES: Final[dict[int, str]] = {
    Type.STATFS: "IIQQQQQQI",
    Type.LOPEN: "iI",
    Type.LCREATE: "iI",
    Type.SYMLINK: "i",
    Type.MKNOD: "i",
    Type.RENAME: "",
    Type.READLINK: "s",
    Type.GETATTR: "QiIIIQQQQQqQqQqQqQQQ",
    Type.SETATTR: "",
    Type.XATTRWALK: "Q",
    Type.XATTRCREATE: "",
    Type.READDIR: "d",
    Type.FSYNC: "",
    Type.LOCK: "B",
    Type.GETLOCK: "BQQIs",
    Type.LINK: "",
    Type.MKDIR: "i",
    Type.RENAMEAT: "",
    Type.UNLINKAT: "",
    Type.VERSION: "Is",
    Type.AUTH: "i",
    Type.ATTACH: "i",
    Type.FLUSH: "",
    Type.WALK: "j",
    Type.READ: "d",
    Type.WRITE: "I",
    Type.CLUNK: "",
    Type.REMOVE: "",
}
_SECOND_NS: Final = 1_000_000_000


class Qid(NamedTuple):
    """``type`` is ``QT_*``."""

    type: int
    version: int
    path: int


class Reply(NamedTuple):
    """``type`` is that of the request, or `RLERROR` with the errno as the only field."""

    type: int
    tag: int
    fields: tuple[Any, ...]


class Stat(NamedTuple):
    """The answer to GETATTR."""

    valid: int
    qid: Qid
    mode: int
    uid: int
    gid: int
    links: int
    rdev: int
    size: int
    block_bytes: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    generation: int
    data_version: int


class Entry(NamedTuple):
    """One of READDIR. ``offset`` is where the next one is, ``type`` is ``DT_*``."""

    qid: Qid
    offset: int
    type: int
    name: bytes


def encode_fields(layout: str, fields: tuple[Any, ...]) -> bytes:
    """Any values that the layout has room for, whether or not a server may take them."""
    parts: list[bytes] = []
    for letter, value in zip(layout, fields, strict=True):
        match letter:
            case "s":
                parts += [struct.pack("<H", len(value)), value]
            case "n":
                parts.append(struct.pack("<H", len(value)))
                parts += [encode_fields("s", (name,)) for name in value]
            case "d":
                parts += [struct.pack("<I", len(value)), value]
            case "i":
                parts.append(struct.pack("<BIQ", *value))
            case "j":
                parts.append(struct.pack("<H", len(value)))
                parts += [struct.pack("<BIQ", *qid) for qid in value]
            case _:
                parts.append(struct.pack("<" + letter, value))
    return b"".join(parts)


def decode_fields(layout: str, data: bytes) -> tuple[Any, ...]:
    """Raises `FormatError` if there are too few bytes, or too many."""
    at = 0

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        size = struct.calcsize("<" + form)
        if len(data) < at + size:
            raise FormatError(f"{len(data)} bytes, where {at + size} were expected")
        at += size
        return struct.unpack_from("<" + form, data, at - size)

    fields: list[Any] = []
    for letter in layout:
        match letter:
            case "s":
                fields += take(f"{take('H')[0]}s")
            case "n":
                fields.append(tuple(take(f"{take('H')[0]}s")[0] for _ in range(take("H")[0])))
            case "d":
                fields += take(f"{take('I')[0]}s")
            case "i":
                fields.append(Qid(*take("BIQ")))
            case "j":
                fields.append(tuple(Qid(*take("BIQ")) for _ in range(take("H")[0])))
            case _:
                fields += take(letter)
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes too many")
    return tuple(fields)


def frame(kind: int, tag: int, body: bytes) -> bytes:
    """A message of any type."""
    return struct.pack("<IBH", 7 + len(body), kind, tag) + body


def encode_request(kind: int, tag: int, *fields: Any) -> bytes:
    """A request; ``fields`` as `REQUESTS` has them."""
    return frame(kind, tag, encode_fields(REQUESTS[kind], fields))


def decode_reply(data: bytes) -> Reply:
    """One whole reply. Raises `FormatError`."""
    size, kind, tag = struct.unpack_from("<IBH", data)
    if size != len(data):
        raise FormatError(f"a reply of {len(data)} bytes that says {size}")
    if kind == RLERROR:
        return Reply(RLERROR, tag, decode_fields("I", data[7:]))
    if kind - 1 not in REPLIES:
        raise FormatError(f"a reply of type {kind}")
    return Reply(kind - 1, tag, decode_fields(REPLIES[kind - 1], data[7:]))


def decode_stat(fields: tuple[Any, ...]) -> Stat:
    """The fields of a reply to GETATTR."""
    times = [fields[at] * _SECOND_NS + fields[at + 1] for at in range(10, 18, 2)]
    return Stat(*fields[:10], *times, *fields[18:])


def decode_entries(data: bytes) -> list[Entry]:
    """The data of a reply to READDIR. Raises `FormatError`."""
    entries: list[Entry] = []
    while data:
        length = struct.unpack_from("<H", data, 22)[0] if len(data) >= 24 else 0
        entries.append(Entry(*decode_fields("iQBs", data[: 24 + length])))
        data = data[24 + length :]
    return entries


class P9Client:
    """Sends one request at a time, by ``exchange``, which is given a message and returns the whole reply to it.

    Each method raises `OSError` with the server's errno. A fid is a new number each time.
    """

    def __init__(self, exchange: Callable[[bytes], bytes], msize: int = 1 << 16) -> None:
        """Agrees upon the version, with messages of ``msize`` bytes at most."""
        self._exchange = exchange
        self._next_fid = 0
        self.msize, version = self._ask(Type.VERSION, msize, VERSION, tag=NO_TAG)
        if version != VERSION:
            raise FormatError(f"the server speaks {version!r}")

    def _ask(self, kind: int, *fields: Any, tag: int = 1) -> tuple[Any, ...]:
        reply = decode_reply(self._exchange(encode_request(kind, tag, *fields)))
        if reply.tag != tag or reply.type not in (kind, RLERROR):
            raise FormatError(f"to {kind} with tag {tag}: {reply}")
        if reply.type == RLERROR:
            raise OSError(reply.fields[0], Type(kind).name)
        return reply.fields

    def new_fid(self) -> int:
        """A number that is unused yet."""
        self._next_fid += 1
        return self._next_fid

    def attach(self, tree: bytes = b"", uid: int = NO_ID, user: bytes = b"") -> int:
        """The root."""
        fid = self.new_fid()
        self._ask(Type.ATTACH, fid, NO_FID, user, tree, uid)
        return fid

    def walk(self, fid: int, *names: bytes) -> int:
        """The object at the names. Raises `FileNotFoundError` if one of them does not exist."""
        new_fid = self.new_fid()
        (qids,) = self._ask(Type.WALK, fid, new_fid, names)
        if len(qids) != len(names):
            raise FileNotFoundError(names[len(qids)])
        return new_fid

    def open(self, fid: int, flags: int = 0) -> Qid:
        """``flags`` as the wire has them."""
        return self._ask(Type.LOPEN, fid, flags)[0]

    def create(self, fid: int, name: bytes, flags: int = 0o102, mode: int = 0o100644, gid: int = 0) -> Qid:
        """``fid`` becomes the open file."""
        return self._ask(Type.LCREATE, fid, name, flags, mode, gid)[0]

    def read(self, fid: int, offset: int, count: int) -> bytes:
        """At most ``count`` bytes."""
        return self._ask(Type.READ, fid, offset, count)[0]

    def write(self, fid: int, offset: int, data: bytes) -> int:
        """How many bytes were written."""
        return self._ask(Type.WRITE, fid, offset, data)[0]

    def list(self, fid: int, count: int = 8192) -> list[Entry]:
        """All entries of an open directory, read in parts of ``count`` bytes."""
        entries: list[Entry] = []
        while more := decode_entries(self._ask(Type.READDIR, fid, entries[-1].offset if entries else 0, count)[0]):
            entries += more
        return entries

    def stat(self, fid: int, mask: int = GETATTR_BASIC) -> Stat:
        """GETATTR."""
        return decode_stat(self._ask(Type.GETATTR, fid, mask))

    def set_attributes(
        self,
        fid: int,
        valid: int,
        *,
        mode: int = 0,
        uid: int = 0,
        gid: int = 0,
        size: int = 0,
        atime_ns: int = 0,
        mtime_ns: int = 0,
    ) -> None:
        """SETATTR, of what ``valid`` names."""
        times = (*divmod(atime_ns, _SECOND_NS), *divmod(mtime_ns, _SECOND_NS))
        self._ask(Type.SETATTR, fid, valid, mode, uid, gid, size, *times)

    def statfs(self, fid: int) -> tuple[int, ...]:
        """The fields of the reply."""
        return self._ask(Type.STATFS, fid)

    def symlink(self, fid: int, name: bytes, target: bytes, gid: int = 0) -> Qid:
        """In the directory ``fid``."""
        return self._ask(Type.SYMLINK, fid, name, target, gid)[0]

    def readlink(self, fid: int) -> bytes:
        """The target."""
        return self._ask(Type.READLINK, fid)[0]

    def mkdir(self, fid: int, name: bytes, mode: int = 0o40755, gid: int = 0) -> Qid:
        """In the directory ``fid``."""
        return self._ask(Type.MKDIR, fid, name, mode, gid)[0]

    def mknod(self, fid: int, name: bytes, mode: int, major: int = 0, minor: int = 0, gid: int = 0) -> Qid:
        """In the directory ``fid``."""
        return self._ask(Type.MKNOD, fid, name, mode, major, minor, gid)[0]

    def link(self, directory_fid: int, fid: int, name: bytes) -> None:
        """``fid`` gets another name."""
        self._ask(Type.LINK, directory_fid, fid, name)

    def rename(self, fid: int, directory_fid: int, name: bytes) -> None:
        """Give ``fid`` this name in place of its own."""
        self._ask(Type.RENAME, fid, directory_fid, name)

    def renameat(self, fid: int, name: bytes, new_fid: int, new_name: bytes) -> None:
        """From one directory to another."""
        self._ask(Type.RENAMEAT, fid, name, new_fid, new_name)

    def unlinkat(self, fid: int, name: bytes, flags: int = 0) -> None:
        """In the directory ``fid``."""
        self._ask(Type.UNLINKAT, fid, name, flags)

    def get_xattr(self, fid: int, name: bytes) -> bytes:
        """The value, or with an empty name the names, each with a NUL after it."""
        new_fid = self.new_fid()
        (size,) = self._ask(Type.XATTRWALK, fid, new_fid, name)
        try:
            return self.read(new_fid, 0, size)
        finally:
            self.clunk(new_fid)

    def set_xattr(self, fid: int, name: bytes, value: bytes, flags: int = 0) -> None:
        """Uses a separate fid; the answer to its clunk shows whether the attribute was set."""
        new_fid = self.walk(fid)
        try:
            self._ask(Type.XATTRCREATE, new_fid, name, len(value), flags)
            if value:
                self.write(new_fid, 0, value)
        finally:
            self.clunk(new_fid)

    def lock(
        self,
        fid: int,
        kind: int,
        start: int = 0,
        length: int = 0,
        process: int = 1,
        client: bytes = b"",
        flags: int = 0,
    ) -> int:
        """The status."""
        return self._ask(Type.LOCK, fid, kind, flags, start, length, process, client)[0]

    def get_lock(
        self, fid: int, kind: int, start: int = 0, length: int = 0, process: int = 1, client: bytes = b""
    ) -> tuple[int, int, int, int, bytes]:
        """Kind, start, length, process and client of the conflicting lock."""
        kind, start, length, process, client = self._ask(Type.GETLOCK, fid, kind, start, length, process, client)
        return kind, start, length, process, client

    def fsync(self, fid: int, *, data_only: bool = False) -> None:
        """FSYNC."""
        self._ask(Type.FSYNC, fid, int(data_only))

    def clunk(self, fid: int) -> None:
        """Release the fid, even if this raises."""
        self._ask(Type.CLUNK, fid)

    def remove(self, fid: int) -> None:
        """Removed, and clunked, also if this raises."""
        self._ask(Type.REMOVE, fid)
