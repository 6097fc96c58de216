"""What a request is decoded to, held against C's layout of it; and what is refused. (I12, cases 9, 12 and 13.)"""

from __future__ import annotations

import errno
import os
import stat
import struct
import tracemalloc

import pytest

from holdfast.model.errors import FormatError
from holdfast.wire.fuse import protocol_constants, request_bodies
from holdfast.wire.fuse.negotiation import WANTED, Terms, Wishes, negotiate
from holdfast.wire.fuse.protocol_constants import OFFSET_MAX, Init, Opcode
from holdfast.wire.fuse.request_bodies import Body, Extras, Offer
from holdfast.wire.fuse.request_errors import errno_of
from holdfast.wire.fuse.requests import Decoder, decode_header

from . import structures as c
from .structures import request


def terms(flags: Init = WANTED, max_write: int = 1 << 20) -> Terms:
    agreed = negotiate(Offer(7, 45, 1 << 17, Init((1 << 43) - 1)), Wishes(flags, max_write))
    assert agreed is not None
    return agreed


DECODER = Decoder(terms())


def decode(frame: memoryview, decoder: Decoder = DECODER) -> Body:
    return decoder.decode(decode_header(frame), frame)


def secctx(name: bytes, value: bytes, *, size: int | None = None) -> bytes:
    data = bytes(c.SecCtx(len(value) if size is None else size)) + name + b"\0" + value
    return data + bytes(-len(data) % 8)


def extension(kind: int, content: bytes, *, size: int | None = None) -> bytes:
    return bytes(c.ExtHeader(8 + len(content) if size is None else size, kind)) + content


GROUP = extension(32, struct.pack("=II", 1, 4321))
LABEL = extension(2, secctx(b"security.a", b"label") + secctx(b"security.bc", b""))
WHOLE = 0xFFFFFFFFFFFFFFF0

GOOD: list[tuple[Opcode, bytes, Body]] = [
    (Opcode.LOOKUP, b"name\0", request_bodies.Name(b"name")),
    (Opcode.LOOKUP, b"...\xff\n\0", request_bodies.Name(b"...\xff\n")),
    (Opcode.LOOKUP, b"n" * 255 + b"\0", request_bodies.Name(b"n" * 255)),
    (Opcode.UNLINK, b"name\0", request_bodies.Name(b"name")),
    (Opcode.RMDIR, b"name\0", request_bodies.Name(b"name")),
    (Opcode.REMOVEXATTR, b"user.a/b\0", request_bodies.Name(b"user.a/b")),
    (Opcode.FORGET, bytes(c.ForgetIn(WHOLE)), request_bodies.Forget(((1, WHOLE),))),
    (Opcode.BATCH_FORGET, bytes(c.BatchForgetIn(2)) + bytes(c.ForgetOne(2, 3)) + bytes(c.ForgetOne(4, WHOLE)),
     request_bodies.Forget(((2, 3), (4, WHOLE)))),
    (Opcode.BATCH_FORGET, bytes(c.BatchForgetIn(0)), request_bodies.Forget(())),
    (Opcode.GETATTR, bytes(c.GetAttrIn(1, 9, 2)), request_bodies.GetAttr(2)),
    (Opcode.GETATTR, bytes(c.GetAttrIn(0, 9, 2)), request_bodies.GetAttr(None)),
    (Opcode.STATX, bytes(c.StatXIn(1, 9, 2, 3, 4)), request_bodies.StatX(2, 3, 4)),
    (Opcode.STATX, bytes(c.StatXIn(0, 9, 2, 3, 4)), request_bodies.StatX(None, 3, 4)),
    (Opcode.SETATTR, bytes(c.SetAttrIn(0xFFF, 1, 2, 3, 4, -5, 6, 7, 8, 9, 10, 0o104755, 12, 13, 14, 15)),
     request_bodies.SetAttr(0xFFF, 2, 4, 3, -4999999992, 6000000009, 7000000010, 0o4755, 13, 14)),
    (Opcode.SETATTR, bytes(c.SetAttrIn(0, 1, 2, WHOLE, 4, 5, 6, 7, 8, 9, 10, 11, 12, 2**32 - 1, 2**32 - 1, 15)),
     request_bodies.SetAttr(0, None, None, 0, 0, 0, 0, 0, 0, 0)),
    (Opcode.READLINK, b"", request_bodies.Nothing()),
    (Opcode.STATFS, b"", request_bodies.Nothing()),
    (Opcode.DESTROY, b"", request_bodies.Nothing()),
    (Opcode.SYNCFS, bytes(c.SyncFsIn(1)), request_bodies.Nothing()),
    (Opcode.SYMLINK, b"name\0../any/where\0", request_bodies.Symlink(b"name", b"../any/where", Extras())),
    (Opcode.MKNOD, bytes(c.MkNodIn(stat.S_IFBLK | 0o4644, 2, 0o22, 9)) + b"name\0",
     request_bodies.MakeNode(b"name", stat.S_IFBLK | 0o4644, 2, 0o22, Extras())),
    (Opcode.MKDIR, bytes(c.MkDirIn(0o1777, 0o77)) + b"name\0",
     request_bodies.MakeDirectory(b"name", 0o1777, 0o77, Extras())),
    (Opcode.CREATE, bytes(c.CreateIn(1, 0o100644, 3, 4)) + b"name\0",
     request_bodies.Create(b"name", 1, 0o644, 3, 4, Extras())),
    (Opcode.TMPFILE, bytes(c.CreateIn(1, 0o100600, 3, 4)) + b"/\0",
     request_bodies.Create(b"", 1, 0o600, 3, 4, Extras())),
    (Opcode.RENAME, bytes(c.RenameIn(2)) + b"old\0new\0", request_bodies.Rename(b"old", 2, b"new", 0)),
    (Opcode.RENAME2, bytes(c.Rename2In(2, 5, 9)) + b"old\0new\0", request_bodies.Rename(b"old", 2, b"new", 5)),
    (Opcode.LINK, bytes(c.LinkIn(2)) + b"name\0", request_bodies.Link(2, b"name")),
    (Opcode.OPEN, bytes(c.OpenIn(os.O_RDWR | os.O_TRUNC, 1)), request_bodies.Open(os.O_RDWR | os.O_TRUNC, 1)),
    (Opcode.OPENDIR, bytes(c.OpenIn(os.O_DIRECTORY, 0)), request_bodies.Open(os.O_DIRECTORY, 0)),
    (Opcode.READ, bytes(c.ReadIn(1, 2, 3, 2, 5, 6, 9)), request_bodies.Read(1, 2, 3, 5, 6)),
    (Opcode.READ, bytes(c.ReadIn(1, 2, 3, 0, 5, 6, 9)), request_bodies.Read(1, 2, 3, None, 6)),
    (Opcode.READDIR, bytes(c.ReadIn(1, WHOLE, 3, 0, 5, 6, 9)), request_bodies.Read(1, WHOLE, 3, None, 6)),
    (Opcode.READDIRPLUS, bytes(c.ReadIn(1, 2, 3, 0, 5, 6, 9)), request_bodies.Read(1, 2, 3, None, 6)),
    (Opcode.WRITE, bytes(c.WriteIn(1, 2, 4, 7, 5, 6, 9)) + b"data",
     request_bodies.Write(1, 2, memoryview(b"data"), 7, 5, 6)),
    (Opcode.WRITE, bytes(c.WriteIn(1, 2, 0, 1, 5, 6, 9)), request_bodies.Write(1, 2, memoryview(b""), 1, None, 6)),
    (Opcode.RELEASE, bytes(c.ReleaseIn(1, 2, 3, 4)), request_bodies.Release(1, 2, 3, 4)),
    (Opcode.RELEASEDIR, bytes(c.ReleaseIn(1, 2, 3, 4)), request_bodies.Release(1, 2, 3, 4)),
    (Opcode.FLUSH, bytes(c.FlushIn(1, 9, 9, 2)), request_bodies.Flush(1, 2)),
    (Opcode.FSYNC, bytes(c.FSyncIn(1, 1, 9)), request_bodies.Sync(1, True)),
    (Opcode.FSYNCDIR, bytes(c.FSyncIn(1, 0, 9)), request_bodies.Sync(1, False)),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(2, 1, 1, 9)) + b"user.a\0\0v",
     request_bodies.SetXattr(b"user.a", memoryview(b"\0v"), 1, 1)),
    (Opcode.GETXATTR, bytes(c.GetXattrIn(100, 9)) + b"user.a\0", request_bodies.GetXattr(b"user.a", 100)),
    (Opcode.GETXATTR, bytes(c.GetXattrIn(2**32 - 1)) + b"user.a\0", request_bodies.GetXattr(b"user.a", 65536)),
    (Opcode.LISTXATTR, bytes(c.GetXattrIn(0, 9)), request_bodies.GetXattr(b"", 0)),
    (Opcode.LISTXATTR, bytes(c.GetXattrIn(2**32 - 1)), request_bodies.GetXattr(b"", 65536)),
    *((opcode, bytes(c.LkIn(1, 2, c.FileLock(3, OFFSET_MAX, 1, 4), 1, 9)),
       request_bodies.Lock(1, 2, 3, OFFSET_MAX, 1, 4, True)) for opcode in (Opcode.GETLK, Opcode.SETLK, Opcode.SETLKW)),
    (Opcode.SETLK, bytes(c.LkIn(1, 2, c.FileLock(3, 3, 2, 4), 0, 9)), request_bodies.Lock(1, 2, 3, 3, 2, 4, False)),
    (Opcode.ACCESS, bytes(c.AccessIn(7, 9)), request_bodies.Access(7)),
    (Opcode.INTERRUPT, bytes(c.InterruptIn(1)), request_bodies.Interrupt(1)),
    (Opcode.BMAP, bytes(c.BMapIn(1, 2, 9)), request_bodies.BlockMap(1, 2)),
    (Opcode.IOCTL, bytes(c.IoctlIn(1, 2, 3, 4, 5, 6)) + b"12345",
     request_bodies.Ioctl(1, 2, 3, 4, memoryview(b"12345"), 6)),
    (Opcode.POLL, bytes(c.PollIn(1, 2, 3, 4)), request_bodies.Poll(1, 2, 3, 4)),
    (Opcode.NOTIFY_REPLY, bytes(c.RetrieveIn(9, 1, 2, 9, 9, 9)) + b"ab",
     request_bodies.Retrieved(1, memoryview(b"ab"))),
    (Opcode.FALLOCATE, bytes(c.FallocateIn(1, 2, 3, 4, 9)), request_bodies.Allocate(1, 2, 3, 4)),
    (Opcode.LSEEK, bytes(c.LSeekIn(1, -2, os.SEEK_HOLE, 9)), request_bodies.Seek(1, -2, os.SEEK_HOLE)),
    (Opcode.COPY_FILE_RANGE, bytes(c.CopyIn(1, 2, 3, 4, 5, 6, 0)), request_bodies.CopyRange(1, 2, 3, 4, 5, 6)),
    (Opcode.COPY_FILE_RANGE_64, bytes(c.CopyIn(1, 2, 3, 4, 5, WHOLE, 0)),
     request_bodies.CopyRange(1, 2, 3, 4, 5, 0x7FFFF000)),
    (Opcode.SETUPMAPPING, bytes(c.SetupMappingIn(1, 2, 3, 4, 5)), request_bodies.Map(1, 2, 3, 4, 5)),
    (Opcode.REMOVEMAPPING, bytes(c.RemoveMappingIn(2)) + bytes(c.RemoveMappingOne(1, 2)) + bytes(
        c.RemoveMappingOne(3, 4)), request_bodies.Unmap(((1, 2), (3, 4)))),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "body", "expected"), GOOD, ids=lambda value: getattr(value, "name", ""))
def test_every_number_comes_where_it_belongs(opcode: Opcode, body: bytes, expected: Body) -> None:
    found = decode(request(opcode, body))
    assert type(found) is type(expected)
    assert found == expected


def test_there_is_an_example_of_every_request() -> None:
    assert {opcode for opcode, _, _ in GOOD} == set(Opcode) - {Opcode.INIT}


def test_the_header() -> None:
    header = c.InHeader(48, Opcode.SYNCFS, 1 << 63 | 2, 3, 4, 5, 6, 1, 9)
    assert decode_header(memoryview(bytes(header) + bytes(8))) == (50, 1 << 63 | 2, 3, 4, 5, 6, 8)


def test_data_is_not_copied() -> None:
    frame = bytearray(request(Opcode.WRITE, bytes(c.WriteIn(1, 0, 4)) + b"data"))
    written = decode(memoryview(frame))
    assert isinstance(written, request_bodies.Write)
    frame[-1] = ord("X")
    assert bytes(written.data) == b"datX"


CREATIONS = [
    (opcode, body)
    for opcode, body, _ in GOOD
    if opcode in (Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.CREATE, Opcode.TMPFILE)
]


@pytest.mark.parametrize(("opcode", "body"), CREATIONS, ids=lambda value: getattr(value, "name", ""))
def test_what_a_creation_is_to_have_from_its_beginning(opcode: Opcode, body: bytes) -> None:
    contexts = ((b"security.a", b"label"), (b"security.bc", b""))
    for data, expected in (
        (GROUP, Extras((), (4321,))),
        (LABEL, Extras(contexts, ())),
        (LABEL + GROUP, Extras(contexts, (4321,))),
        (GROUP + LABEL, Extras(contexts, (4321,))),
        (extension(0, b""), Extras()),
        (extension(32, struct.pack("=IIII", 3, 1, 2, 3)), Extras((), (1, 2, 3))),
    ):
        assert decode(request(opcode, body, extensions=data)).extras == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "data",
    [
        extension(33, b""),
        GROUP + GROUP,
        LABEL + LABEL,
        extension(0, b"", size=0),
        extension(0, b"", size=16),
        extension(32, bytes(8), size=9),
        extension(32, b"", size=2**32 - 8),
        extension(32, struct.pack("=II", 2**32 - 1, 1)),
        extension(32, struct.pack("=IIII", 1, 1, 0, 0)),
        extension(32, b""),
        extension(1, b""),
        extension(31, secctx(b"security.a", b"label")),
        extension(1, secctx(b"security.a", b"label") + bytes(8)),
        extension(1, secctx(b"security.a", b"label", size=2**32 - 1)),
        extension(1, secctx(b"", b"label")),
        extension(1, secctx(b"n" * 256, b"label")),
        extension(1, bytes(c.SecCtx(0)) + b"no end!!"),
        GROUP + bytes(8),
    ],
)
def test_extensions_that_cannot_be(data: bytes) -> None:
    frame = request(Opcode.MKDIR, bytes(c.MkDirIn(0o755, 0)) + b"name\0", extensions=data)
    with pytest.raises(FormatError, match=r"^MKDIR: "):
        decode(frame)


LK = (1, 2, c.FileLock(3, 3, 2, 4), 0)
BAD: list[tuple[Opcode, bytes, int]] = [
    *(
        (opcode, before + name + after, number)
        for opcode, before, after in (
            (Opcode.LOOKUP, b"", b""),
            (Opcode.UNLINK, b"", b""),
            (Opcode.RMDIR, b"", b""),
            (Opcode.SYMLINK, b"", b"target\0"),
            (Opcode.MKNOD, bytes(c.MkNodIn(stat.S_IFREG)), b""),
            (Opcode.MKDIR, bytes(c.MkDirIn(0o755)), b""),
            (Opcode.CREATE, bytes(c.CreateIn(1, 0o644)), b""),
            (Opcode.RENAME, bytes(c.RenameIn(2)), b"new\0"),
            (Opcode.RENAME, bytes(c.RenameIn(2)) + b"old\0", b""),
            (Opcode.RENAME2, bytes(c.Rename2In(2)), b"new\0"),
            (Opcode.RENAME2, bytes(c.Rename2In(2)) + b"old\0", b""),
            (Opcode.LINK, bytes(c.LinkIn(2)), b""),
        )
        for name, number in (
            (b"\0", errno.EINVAL),
            (b".\0", errno.EINVAL),
            (b"..\0", errno.EINVAL),
            (b"/\0", errno.EINVAL),
            (b"a/b\0", errno.EINVAL),
            (b"/etc\0", errno.EINVAL),
            (b"../x\0", errno.EINVAL),
            (b"a\0b\0", errno.EINVAL),
            (b"no end", errno.EINVAL),
            (b"n" * 256 + b"\0", errno.ENAMETOOLONG),
        )
        if not (after and name == b"no end")  # then the next string is its end
    ),
    (Opcode.SYMLINK, b"name\0\0", errno.EINVAL),
    (Opcode.SYMLINK, b"name\0" + b"t" * 4096 + b"\0", errno.ENAMETOOLONG),
    (Opcode.SYMLINK, b"name\0target", errno.EINVAL),
    (Opcode.BATCH_FORGET, bytes(c.BatchForgetIn(2**32 - 1)) + bytes(c.ForgetOne(2, 3)), errno.EINVAL),
    (Opcode.BATCH_FORGET, bytes(c.BatchForgetIn(1)), errno.EINVAL),
    (Opcode.BATCH_FORGET, bytes(c.BatchForgetIn(0)) + bytes(c.ForgetOne(2, 3)), errno.EINVAL),
    (Opcode.REMOVEMAPPING, bytes(c.RemoveMappingIn(2**32 - 1)) + bytes(16), errno.EINVAL),
    (Opcode.SETATTR, bytes(c.SetAttrIn(1 << 12)), errno.EINVAL),
    (Opcode.SETATTR, bytes(c.SetAttrIn(8, size=1 << 63)), errno.EINVAL),
    (Opcode.SETATTR, bytes(c.SetAttrIn(16, atimensec=10**9)), errno.EINVAL),
    (Opcode.SETATTR, bytes(c.SetAttrIn(2, uid=2**32 - 1)), errno.EINVAL),
    (Opcode.SETATTR, bytes(c.SetAttrIn(4, gid=2**32 - 1)), errno.EINVAL),
    (Opcode.MKNOD, bytes(c.MkNodIn(stat.S_IFDIR | 0o755)) + b"name\0", errno.EINVAL),
    (Opcode.MKNOD, bytes(c.MkNodIn(stat.S_IFLNK | 0o755)) + b"name\0", errno.EINVAL),
    (Opcode.MKNOD, bytes(c.MkNodIn(0o644)) + b"name\0", errno.EINVAL),
    (Opcode.MKNOD, bytes(c.MkNodIn(1 << 31 | stat.S_IFREG)) + b"name\0", errno.EINVAL),
    (Opcode.MKNOD, bytes(c.MkNodIn(stat.S_IFREG, 0, 0o1000)) + b"name\0", errno.EINVAL),
    (Opcode.MKDIR, bytes(c.MkDirIn(stat.S_IFREG | 0o755)) + b"name\0", errno.EINVAL),
    (Opcode.CREATE, bytes(c.CreateIn(1, stat.S_IFIFO | 0o644)) + b"name\0", errno.EINVAL),
    (Opcode.TMPFILE, bytes(c.CreateIn(1, stat.S_IFCHR | 0o644)) + b"/\0", errno.EINVAL),
    (Opcode.RENAME2, bytes(c.Rename2In(2, 3)) + b"old\0new\0", errno.EINVAL),
    (Opcode.RENAME2, bytes(c.Rename2In(2, 6)) + b"old\0new\0", errno.EINVAL),
    (Opcode.RENAME2, bytes(c.Rename2In(2, 8)) + b"old\0new\0", errno.EINVAL),
    (Opcode.OPEN, bytes(c.OpenIn(os.O_CREAT | os.O_RDWR)), errno.EINVAL),
    (Opcode.OPEN, bytes(c.OpenIn(os.O_TMPFILE | os.O_RDWR)), errno.EINVAL),
    (Opcode.READ, bytes(c.ReadIn(1, 0, (1 << 20) + 1)), errno.EINVAL),
    (Opcode.READ, bytes(c.ReadIn(1, OFFSET_MAX, 1)), errno.EINVAL),
    (Opcode.READDIR, bytes(c.ReadIn(1, 0, 2**32 - 1)), errno.EINVAL),
    (Opcode.READDIRPLUS, bytes(c.ReadIn(1, 0, 2**32 - 1)), errno.EINVAL),
    (Opcode.WRITE, bytes(c.WriteIn(1, 0, 2**32 - 1)) + b"data", errno.EINVAL),
    (Opcode.WRITE, bytes(c.WriteIn(1, 0, 3)) + b"data", errno.EINVAL),
    (Opcode.WRITE, bytes(c.WriteIn(1, OFFSET_MAX - 3, 4)) + b"data", errno.EINVAL),
    (Opcode.WRITE, bytes(c.WriteIn(1, 0, (1 << 20) + 1)) + bytes((1 << 20) + 1), errno.EINVAL),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(0)) + b"\0", errno.EINVAL),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(0)) + b"no end", errno.EINVAL),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(0)) + b"n" * 256 + b"\0", errno.EINVAL),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(2**32 - 1)) + b"user.a\0v", errno.EINVAL),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(65537)) + b"user.a\0" + bytes(65537), errno.EINVAL),
    (Opcode.SETXATTR, bytes(c.SetXattrIn(1, 4)) + b"user.a\0v", errno.EINVAL),
    (Opcode.GETXATTR, bytes(c.GetXattrIn(0)) + b"\0", errno.EINVAL),
    (Opcode.GETXATTR, bytes(c.GetXattrIn(0)) + b"a\0b\0", errno.EINVAL),
    (Opcode.GETXATTR, bytes(c.GetXattrIn(0)) + b"n" * 256 + b"\0", errno.EINVAL),
    (Opcode.SETLK, bytes(c.LkIn(1, 2, c.FileLock(4, 3, 2, 4))), errno.EINVAL),
    (Opcode.SETLK, bytes(c.LkIn(1, 2, c.FileLock(4, 1 << 63, 2, 4))), errno.EINVAL),
    (Opcode.SETLKW, bytes(c.LkIn(1, 2, c.FileLock(3, 3, 3, 4))), errno.EINVAL),
    (Opcode.ACCESS, bytes(c.AccessIn(8)), errno.EINVAL),
    (Opcode.IOCTL, bytes(c.IoctlIn(1, 2, 3, 4, 2**32 - 1, 6)) + b"12345", errno.EINVAL),
    (Opcode.IOCTL, bytes(c.IoctlIn(1, 2, 3, 4, 5, 2**32 - 1)) + b"12345", errno.EINVAL),
    (Opcode.NOTIFY_REPLY, bytes(c.RetrieveIn(9, 1, 2**32 - 1)) + b"ab", errno.EINVAL),
    (Opcode.NOTIFY_REPLY, bytes(c.RetrieveIn(9, OFFSET_MAX, 2)) + b"ab", errno.EINVAL),
    (Opcode.FALLOCATE, bytes(c.FallocateIn(1, OFFSET_MAX, 1)), errno.EINVAL),
    (Opcode.LSEEK, bytes(c.LSeekIn(1, 0, 5)), errno.EINVAL),
    (Opcode.COPY_FILE_RANGE, bytes(c.CopyIn(1, 2, 3, 4, 5, 6, 1)), errno.EINVAL),
    (Opcode.COPY_FILE_RANGE, bytes(c.CopyIn(1, OFFSET_MAX, 3, 4, 5, 6)), errno.EINVAL),
    (Opcode.COPY_FILE_RANGE, bytes(c.CopyIn(1, 2, 3, 4, OFFSET_MAX, 6)), errno.EINVAL),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "body", "number"), BAD, ids=lambda value: getattr(value, "name", ""))
def test_what_cannot_be_is_refused_by_name(opcode: Opcode, body: bytes, number: int) -> None:
    with pytest.raises(FormatError, match=f"^{opcode.name}\\b") as refused:
        decode(request(opcode, body))
    assert errno_of(refused.value) == number


@pytest.mark.parametrize("opcode", [0, 7, 19, 54, 4096, Opcode.INIT, Opcode.INIT << 24, 2**32 - 1])
def test_what_nobody_knows_is_not_implemented(opcode: int) -> None:
    with pytest.raises(FormatError) as refused:
        decode(request(opcode, bytes(64)))
    assert errno_of(refused.value) == errno.ENOSYS


@pytest.mark.parametrize(("opcode", "body"), [row[:2] for row in GOOD], ids=lambda value: getattr(value, "name", ""))
def test_extensions_are_for_creations(opcode: Opcode, body: bytes) -> None:
    if (opcode, body) not in CREATIONS:
        with pytest.raises(FormatError, match=f"^{opcode.name}"):
            decode(request(opcode, body, extensions=GROUP))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(39),
        bytes(c.InHeader(39, 1)),
        bytes(c.InHeader(41, 1)),
        bytes(c.InHeader(40, 1)) + b"more",
        bytes(c.InHeader(2**32 - 1, 1)),
        bytes(c.InHeader(40, 9, total_extlen=1)),
        bytes(c.InHeader(48, 9, total_extlen=2**16 - 1)) + bytes(8),
    ],
)
def test_a_header_that_cannot_be(frame: bytes) -> None:
    with pytest.raises(FormatError, match=r"^header: "):
        decode_header(memoryview(frame))


def test_what_was_agreed_upon_decides() -> None:
    exporting = Decoder(terms(Init.EXPORT_SUPPORT))
    assert decode(request(Opcode.LOOKUP, b"..\0"), exporting) == request_bodies.Name(b"..")
    assert decode(request(Opcode.LOOKUP, b".\0"), exporting) == request_bodies.Name(b".")
    with pytest.raises(FormatError):
        decode(request(Opcode.LOOKUP, b"../x\0"), exporting)
    with pytest.raises(FormatError):
        decode(request(Opcode.UNLINK, b"..\0"), exporting)
    plain = Decoder(terms(Init(0)))
    short = request(Opcode.SETXATTR, bytes(c.SetXattrShortIn(1, 2)) + b"user.a\0v")
    assert decode(short, plain) == request_bodies.SetXattr(b"user.a", memoryview(b"v"), 2, 0)
    with pytest.raises(FormatError):
        decode(short)
    small = Decoder(terms(Init.MAX_PAGES, 8192))
    decode(request(Opcode.WRITE, bytes(c.WriteIn(1, 0, 8192)) + bytes(8192)), small)
    with pytest.raises(FormatError, match="8192 was agreed"):
        decode(request(Opcode.WRITE, bytes(c.WriteIn(1, 0, 8193)) + bytes(8193)), small)
    with pytest.raises(FormatError, match="8192 was agreed"):
        decode(request(Opcode.READ, bytes(c.ReadIn(1, 0, 8193))), small)


@pytest.mark.parametrize("opcode", [*Opcode])
def test_no_request_takes_much_more_memory_than_it_has(opcode: Opcode) -> None:
    # One body begins with a count that is right, of what takes the most memory.
    pairs = bytes(c.BatchForgetIn(65535)) + b"\xfe" * (16 * 65535)
    for body in (bytes(1 << 20), b"a" * (1 << 20), b"\xff" * (1 << 20), pairs):
        frame = request(opcode, body)
        tracemalloc.start()
        try:
            decode(frame)
        except FormatError as error:
            assert len(error.message) < 2000
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 11 << 20


def test_every_flag_and_opcode_has_a_number_of_its_own() -> None:
    assert len({int(opcode) for opcode in Opcode}) == len(Opcode)
    assert len(Init) == 42
    assert set(Opcode) > protocol_constants.UNANSWERED
