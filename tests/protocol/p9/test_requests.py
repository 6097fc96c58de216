"""What a request is decoded to, held against the published layouts byte by byte; and what is refused (I12)."""

from __future__ import annotations

import errno
import os
import stat
import struct
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK
from typing import Any

import pytest

from holdfast.model.errors import FormatError
from holdfast.testing.p9_client import encode_request
from holdfast.wire.p9 import request_bodies as b
from holdfast.wire.p9.framing import decode_header
from holdfast.wire.p9.protocol_constants import OFFSET_MAX, OPEN_FLAGS, Type
from holdfast.wire.p9.request_bodies import Body
from holdfast.wire.p9.request_errors import errno_of
from holdfast.wire.p9.requests import Decoder

MSIZE = 8192
NO_ID = 0xFFFFFFFF
GOLDEN: list[tuple[Type, str, Body]] = [
    (Type.VERSION, "00200000 0800 39503230 30302e4c", b.Version(8192, b"9P2000.L")),
    (Type.AUTH, "05000000 0100 75 0200 2f61 e8030000", b.Auth(5, b"u", b"/a", 1000)),
    (Type.ATTACH, "01000000 ffffffff 0000 0100 2f ffffffff", b.Attach(1, None, b"", b"/", None)),
    (Type.ATTACH, "01000000 05000000 0100 75 0000 00000000", b.Attach(1, 5, b"u", b"", 0)),
    (Type.FLUSH, "2a00", b.Flush(42)),
    (Type.WALK, "01000000 02000000 0000", b.Walk(1, 2, ())),
    (Type.WALK, "01000000 02000000 0200 0100 61 0200 2e2e", b.Walk(1, 2, (b"a", b".."))),
    (Type.STATFS, "07000000", b.Fid(7)),
    (Type.READLINK, "07000000", b.Fid(7)),
    (Type.CLUNK, "07000000", b.Fid(7)),
    (Type.REMOVE, "07000000", b.Fid(7)),
    (Type.LOPEN, "07000000 02820000", b.Open(7, os.O_RDWR | os.O_TRUNC)),
    (Type.LOPEN, "02000000 00880900", b.Open(2, os.O_DIRECTORY | os.O_NONBLOCK)),
    (
        Type.LCREATE,
        "07000000 0100 6e c1860000 a4810000 64000000",
        b.Create(7, b"n", os.O_WRONLY | os.O_TRUNC | os.O_APPEND, 0o644, 100, exclusive=True),
    ),
    (Type.SYMLINK, "07000000 0100 6e 0300 2e2e2f 64000000", b.Symlink(7, b"n", b"../", 100)),
    (
        Type.MKNOD,
        "07000000 0100 6e b0210000 01000000 03000000 64000000",
        b.MakeNode(7, b"n", stat.S_IFCHR | 0o660, 1, 3, 100),
    ),
    (Type.MKDIR, "07000000 0100 6e ed430000 64000000", b.MakeDirectory(7, b"n", 0o1755, 100)),
    (Type.LINK, "07000000 08000000 0100 6e", b.Link(7, 8, b"n")),
    (Type.RENAME, "07000000 08000000 0100 6e", b.Rename(7, 8, b"n")),
    (Type.RENAMEAT, "07000000 0100 6e 08000000 0200 6e32", b.RenameAt(7, b"n", 8, b"n2")),
    (Type.UNLINKAT, "07000000 0100 6e 00000000", b.UnlinkAt(7, b"n", is_directory=False)),
    (Type.UNLINKAT, "07000000 0100 6e 00020000", b.UnlinkAt(7, b"n", is_directory=True)),
    (Type.GETATTR, "07000000 ff3f000000000080", b.GetAttr(7, 0x3FFF)),
    (
        Type.SETATTR,
        (
            "07000000 ff010000 80810000 01000000 02000000 0300000000000000"
            "feffffffffffffff 0500000000000000 0400000000000000 ffc99a3b00000000"
        ),
        b.SetAttr(7, 0x1FF, 0o600, 1, 2, 3, -1_999_999_995, 4_999_999_999),
    ),
    (
        Type.SETATTR,
        (
            "07000000 70000000 ffffffff ffffffff ffffffff ffffffffffffffff"
            "0100000000000000 ffffffffffffffff 0100000000000000 ffffffffffffffff"
        ),
        b.SetAttr(7, 0x70, 0, 0, 0, 0, None, None),
    ),
    (Type.XATTRWALK, "07000000 08000000 0600 757365722e61", b.XattrWalk(7, 8, b"user.a")),
    (Type.XATTRWALK, "07000000 08000000 0000", b.XattrWalk(7, 8, b"")),
    (
        Type.XATTRCREATE,
        "07000000 0600 757365722e61 0500000000000000 02000000",
        b.XattrCreate(7, b"user.a", 5, os.XATTR_REPLACE),
    ),
    (Type.READ, "07000000 0000010000000000 00100000", b.Read(7, 65536, 4096)),
    (Type.READDIR, "07000000 0000000000000000 f51f0000", b.Read(7, 0, MSIZE - 11)),
    (Type.WRITE, "07000000 0100000000000000 03000000 616263", b.Write(7, 1, memoryview(b"abc"))),
    (Type.FSYNC, "07000000 01000000", b.Sync(7, data_only=True)),
    (Type.FSYNC, "07000000", b.Sync(7, data_only=False)),
    (
        Type.LOCK,
        "07000000 01 01000000 0a00000000000000 0500000000000000 09000000 0100 68",
        b.Lock(7, F_WRLCK, 10, 14, 9, b"h", wait=True),
    ),
    (
        Type.LOCK,
        "07000000 02 00000000 0a00000000000000 0000000000000000 09000000 0000",
        b.Lock(7, F_UNLCK, 10, OFFSET_MAX, 9, b"", wait=False),
    ),
    (
        Type.GETLOCK,
        "07000000 00 0000000000000000 0100000000000000 09000000 0100 68",
        b.Lock(7, F_RDLCK, 0, 0, 9, b"h", wait=False),
    ),
    (
        Type.GETLOCK,
        "07000000 02 0000000000000000 0100000000000000 09000000 0100 68",
        b.Lock(7, F_WRLCK, 0, 0, 9, b"h", wait=False),
    ),
]


def decode(message: bytes, msize: int = MSIZE) -> Body:
    frame = memoryview(message)
    return Decoder(msize).decode(decode_header(frame), frame)


# (Not by the body: where a view of memory is differs from process to process, and the tests' names must not.)
@pytest.mark.parametrize(
    ("kind", "text", "body"), GOLDEN, ids=[f"{kind.name}-{number}" for number, (kind, _, _) in enumerate(GOLDEN)]
)
def test_a_request_is_decoded_as_published(kind: Type, text: str, body: Body) -> None:
    content = bytes.fromhex(text)
    decoded = decode(struct.pack("<IBH", 7 + len(content), kind, 3) + content)
    assert decoded == body
    assert type(decoded) is type(body)


def test_every_type_is_there() -> None:
    assert {kind for kind, _, _ in GOLDEN} == {*Type}


NAMES = (b"", b".", b"..", b"a/b", b"/", b"a\0", b"\0")
SET = (7, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def changed(fields: tuple[Any, ...], **values: Any) -> tuple[Any, ...]:
    """``fields`` with others at the places ``_0``, ``_1``, …"""
    return tuple(values.get(f"_{at}", value) for at, value in enumerate(fields))


BAD: list[tuple[int, Type, tuple[Any, ...]]] = [
    *((errno.EINVAL, Type.WALK, (1, 2, (b"a", name))) for name in NAMES if name != b".."),
    *((errno.EINVAL, Type.LCREATE, (7, name, 0, 0, 0)) for name in NAMES),
    *((errno.EINVAL, Type.SYMLINK, (7, name, b"t", 0)) for name in NAMES),
    *((errno.EINVAL, Type.MKNOD, (7, name, 0, 0, 0, 0)) for name in NAMES),
    *((errno.EINVAL, Type.MKDIR, (7, name, 0, 0)) for name in NAMES),
    *((errno.EINVAL, Type.LINK, (7, 8, name)) for name in NAMES),
    *((errno.EINVAL, Type.RENAME, (7, 8, name)) for name in NAMES),
    *((errno.EINVAL, Type.RENAMEAT, (7, name, 8, b"n")) for name in NAMES),
    *((errno.EINVAL, Type.RENAMEAT, (7, b"n", 8, name)) for name in NAMES),
    *((errno.EINVAL, Type.UNLINKAT, (7, name, 0)) for name in NAMES),
    (errno.ENAMETOOLONG, Type.WALK, (1, 2, (b"a" * 256,))),
    (errno.ENAMETOOLONG, Type.RENAMEAT, (7, b"n", 8, b"a" * 256)),
    (errno.ENAMETOOLONG, Type.SYMLINK, (7, b"n", b"a" * 4096, 0)),
    (errno.EINVAL, Type.WALK, (1, 2, (b"a",) * 17)),
    (errno.EBADF, Type.WALK, (1, NO_ID, ())),
    (errno.EBADF, Type.ATTACH, (NO_ID, NO_ID, b"", b"", 0)),
    (errno.EBADF, Type.AUTH, (NO_ID, b"", b"", 0)),
    (errno.EBADF, Type.XATTRWALK, (7, NO_ID, b"")),
    (errno.EINVAL, Type.ATTACH, (1, NO_ID, b"a\0", b"", 0)),
    (errno.EINVAL, Type.ATTACH, (1, NO_ID, b"a" * 256, b"", 0)),
    (errno.EINVAL, Type.ATTACH, (1, NO_ID, b"", b"a" * 4096, 0)),
    (errno.EINVAL, Type.LOPEN, (7, 3)),
    (errno.EINVAL, Type.LOPEN, (7, 1 << 24)),
    (errno.EINVAL, Type.LCREATE, (7, b"n", 3, 0, 0)),
    (errno.EINVAL, Type.LCREATE, (7, b"n", 0, 0o40644, 0)),
    (errno.EINVAL, Type.LCREATE, (7, b"n", 0, 1 << 16, 0)),
    (errno.EINVAL, Type.LCREATE, (7, b"n", 0, 0, NO_ID)),
    (errno.EINVAL, Type.SYMLINK, (7, b"n", b"", 0)),
    (errno.EINVAL, Type.SYMLINK, (7, b"n", b"a\0b", 0)),
    (errno.EINVAL, Type.SYMLINK, (7, b"n", b"t", NO_ID)),
    (errno.EINVAL, Type.MKNOD, (7, b"n", stat.S_IFDIR, 0, 0, 0)),
    (errno.EINVAL, Type.MKNOD, (7, b"n", stat.S_IFLNK, 0, 0, 0)),
    (errno.EINVAL, Type.MKNOD, (7, b"n", 1 << 16, 0, 0, 0)),
    (errno.EINVAL, Type.MKNOD, (7, b"n", stat.S_IFCHR, 4096, 0, 0)),
    (errno.EINVAL, Type.MKNOD, (7, b"n", stat.S_IFCHR, 0, 1 << 20, 0)),
    (errno.EINVAL, Type.MKNOD, (7, b"n", stat.S_IFCHR, 0, 0, NO_ID)),
    (errno.EINVAL, Type.MKDIR, (7, b"n", stat.S_IFREG, 0)),
    (errno.EINVAL, Type.MKDIR, (7, b"n", 0, NO_ID)),
    (errno.EINVAL, Type.UNLINKAT, (7, b"n", 1)),
    (errno.EINVAL, Type.SETATTR, changed(SET, _1=1 << 9)),
    (errno.EINVAL, Type.SETATTR, changed(SET, _1=2, _3=NO_ID)),
    (errno.EINVAL, Type.SETATTR, changed(SET, _1=4, _4=NO_ID)),
    (errno.EINVAL, Type.SETATTR, changed(SET, _1=8, _5=1 << 63)),
    (errno.EINVAL, Type.SETATTR, changed(SET, _1=0x90, _7=10**9)),
    (errno.EINVAL, Type.SETATTR, changed(SET, _1=0x120, _9=10**9)),
    (errno.EINVAL, Type.XATTRWALK, (7, 8, b"a\0")),
    (errno.EINVAL, Type.XATTRWALK, (7, 8, b"a" * 256)),
    (errno.EINVAL, Type.XATTRCREATE, (7, b"", 0, 0)),
    (errno.EINVAL, Type.XATTRCREATE, (7, b"a", (1 << 16) + 1, 0)),
    (errno.EINVAL, Type.XATTRCREATE, (7, b"a", 0, 4)),
    (errno.EINVAL, Type.READ, (7, 0, MSIZE - 10)),
    (errno.EINVAL, Type.READ, (7, OFFSET_MAX, 1)),
    (errno.EINVAL, Type.READDIR, (7, 0, MSIZE - 10)),
    (errno.EINVAL, Type.READDIR, (7, 0, 278)),
    (errno.EINVAL, Type.READDIR, (7, OFFSET_MAX + 1, 1000)),
    (errno.EINVAL, Type.WRITE, (7, OFFSET_MAX, b"a")),
    (errno.EINVAL, Type.LOCK, (7, 3, 0, 0, 0, 0, b"")),
    (errno.EINVAL, Type.LOCK, (7, 0, 4, 0, 0, 0, b"")),
    (errno.EINVAL, Type.LOCK, (7, 0, 0, OFFSET_MAX, 2, 0, b"")),
    (errno.EINVAL, Type.LOCK, (7, 0, 0, OFFSET_MAX + 1, 0, 0, b"")),
    (errno.EINVAL, Type.LOCK, (7, 0, 0, 0, 0, 0, b"a" * 256)),
    (errno.EINVAL, Type.GETLOCK, (7, 3, 0, 0, 0, b"")),
    (errno.EINVAL, Type.GETLOCK, (7, 0, 0, (1 << 64) - 1, 0, b"")),
]  # fmt: skip


@pytest.mark.parametrize(("number", "kind", "fields"), BAD)
def test_what_cannot_be_is_refused(number: int, kind: Type, fields: tuple[Any, ...]) -> None:
    with pytest.raises(FormatError) as caught:
        decode(encode_request(kind, 3, *fields))
    assert errno_of(caught.value) == number
    assert caught.value.message.startswith(f"T{kind.name.lower()}")


@pytest.mark.parametrize(
    "count", [0, 2, 4, 0xFFFFFFFF], ids=["no data", "too little", "too much", "as much as can be said"]
)
def test_the_count_of_a_write_is_that_of_its_data(count: int) -> None:
    message = bytearray(encode_request(Type.WRITE, 3, 7, 0, b"abc"))
    struct.pack_into("<I", message, 19, count)
    with pytest.raises(FormatError, match="count"):
        decode(bytes(message))


def test_the_data_of_a_write_is_not_copied() -> None:
    message = bytearray(encode_request(Type.WRITE, 3, 7, 0, b"abc"))
    body = decode(message)  # pyright: ignore[reportArgumentType]
    assert isinstance(body, b.Write)
    message[-1] = ord("d")
    assert bytes(body.data) == b"abd"


@pytest.mark.parametrize("kind", [0, 6, 7, 9, 98, 101, 106, 107, 112, 114, 124, 126, 127, 255])
def test_other_types_are_not_supported(kind: int) -> None:
    with pytest.raises(FormatError) as caught:
        decode(struct.pack("<IBH", 7, kind, 3))
    assert errno_of(caught.value) == errno.EOPNOTSUPP


@pytest.mark.parametrize(("wire", "own"), OPEN_FLAGS)
def test_flags_of_the_wire_become_those_of_this_system(wire: int, own: int) -> None:
    body = decode(encode_request(Type.LOPEN, 3, 7, wire | 1))
    assert body == b.Open(7, own | os.O_WRONLY)


def test_linux_opens_what_is_there_with_flags_that_create() -> None:
    """It leaves O_CREAT and O_EXCL in, and what is its own affair; O_DIRECT would need aligned buffers here."""
    assert decode(encode_request(Type.LOPEN, 3, 7, 0o2160702)) == b.Open(7, os.O_RDWR)


@pytest.mark.parametrize("size", [0, 6, 8, 100, 0xFFFFFFFF])
def test_a_frame_is_as_long_as_it_says(size: int) -> None:
    with pytest.raises(FormatError, match="header"):
        decode(struct.pack("<IBH", size, Type.CLUNK, 3))
