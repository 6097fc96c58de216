"""What replies are encoded to, held against the published layouts written out byte by byte."""

from __future__ import annotations

import errno
import os
import stat
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK

import pytest

from holdfast.testing import p9_client
from holdfast.wire.p9 import replies
from holdfast.wire.p9.protocol_constants import DIRECTORY_ENTRY_MAX, LockStatus, Type
from holdfast.wire.p9.replies import Attributes, DirectoryListing, Qid

QID = Qid(0x80, 3, 0x0102030405060708)
QID_HEX = "80 03000000 0807060504030201"
STATUS = os.statvfs_result((4096, 1024, 100, 50, 40, 30, 20, 10, 0, 255, 0x1122))


def test_every_reply_is_encoded_as_published() -> None:
    attributes = Attributes(0o40755, 1, 2, 3, 4, 5, 4096, 6, -1, 10**9, 7, 8, 9, 10, 0x3FFF)
    for encoded, text in (
        (replies.error(5, errno.ENOENT), "0b000000 07 0500 02000000"),
        (replies.version(0xFFFF, 8192, b"9P2000.L"), "15000000 65 ffff 00200000 0800 39503230 30302e4c"),
        (replies.found(5, Type.AUTH, QID), f"14000000 67 0500 {QID_HEX}"),
        (replies.found(5, Type.ATTACH, QID), f"14000000 69 0500 {QID_HEX}"),
        (replies.found(5, Type.SYMLINK, QID), f"14000000 11 0500 {QID_HEX}"),
        (replies.found(5, Type.MKNOD, QID), f"14000000 13 0500 {QID_HEX}"),
        (replies.found(5, Type.MKDIR, QID), f"14000000 49 0500 {QID_HEX}"),
        (replies.walked(5, []), "09000000 6f 0500 0000"),
        (replies.walked(5, [QID, QID]), f"23000000 6f 0500 0200 {QID_HEX} {QID_HEX}"),
        (replies.opened(5, Type.LOPEN, QID), f"18000000 0d 0500 {QID_HEX} 00000000"),
        (replies.opened(5, Type.LCREATE, QID, 4096), f"18000000 0f 0500 {QID_HEX} 00100000"),
        (replies.target(5, b"a/b"), "0c000000 17 0500 0300 612f62"),
        (
            replies.attr(5, QID, attributes),
            (
                f"a0000000 19 0500 ff3f000000000000 {QID_HEX} ed410000 01000000 02000000"
                "0300000000000000 0400000000000000 0500000000000000 0010000000000000 0600000000000000"
                "ffffffffffffffff ffc99a3b00000000 0100000000000000 0000000000000000"
                "0000000000000000 0700000000000000 0000000000000000 0800000000000000"
                "0900000000000000 0a00000000000000"
            ),
        ),
        (
            replies.statfs(5, STATUS),
            (
                "43000000 09 0500 97190201 00040000 6400000000000000 3200000000000000 2800000000000000"
                "1e00000000000000 1400000000000000 2211000000000000 ff000000"
            ),
        ),
        (replies.attribute(5, 6), "0f000000 1f 0500 0600000000000000"),
        (b"".join(replies.data(5, Type.READ, b"ab", b"c")), "0e000000 75 0500 03000000 616263"),
        (b"".join(replies.data(5, Type.READDIR)), "0b000000 29 0500 00000000"),
        (replies.written(5, 6), "0b000000 77 0500 06000000"),
        (replies.locked(5, LockStatus.BLOCKED), "08000000 35 0500 01"),
        (
            replies.lock(5, F_WRLCK, 10, 14, 9, b"h"),
            "1f000000 37 0500 01 0a00000000000000 0500000000000000 09000000 0100 68",
        ),
        (replies.lock(5, F_UNLCK), "1e000000 37 0500 02 0000000000000000 0000000000000000 00000000 0000"),
        (replies.lock(5, F_RDLCK, 1), "1e000000 37 0500 00 0100000000000000 0000000000000000 00000000 0000"),
        (replies.done(5, Type.SETATTR), "07000000 1b 0500"),
        (replies.done(5, Type.XATTRCREATE), "07000000 21 0500"),
        (replies.done(5, Type.RENAME), "07000000 15 0500"),
        (replies.done(5, Type.RENAMEAT), "07000000 4b 0500"),
        (replies.done(5, Type.LINK), "07000000 47 0500"),
        (replies.done(5, Type.UNLINKAT), "07000000 4d 0500"),
        (replies.done(5, Type.FSYNC), "07000000 33 0500"),
        (replies.done(5, Type.FLUSH), "07000000 6d 0500"),
        (replies.done(5, Type.CLUNK), "07000000 79 0500"),
        (replies.done(5, Type.REMOVE), "07000000 7b 0500"),
    ):  # fmt: skip
        assert encoded == bytes.fromhex(text)
        assert p9_client.decode_reply(encoded)


@pytest.mark.parametrize("number", [0, -2, 512, 1 << 40])
def test_what_is_no_errno_becomes_one(number: int) -> None:
    assert replies.error(5, number) == replies.error(5, errno.EIO)


def test_data_is_not_copied() -> None:
    content = bytearray(b"abc")
    reply = replies.data(5, Type.READ, content)
    assert reply[1] is content


def test_attributes_are_those_of_the_system(tmp_path: os.PathLike[str]) -> None:
    os.utime(tmp_path, ns=(-1_500_000_000, 1_234_567_891))
    status = os.stat(tmp_path)
    reply = replies.attr(5, replies.qid(status.st_mode, status.st_ino), replies.attributes(status, links=7))
    seen = p9_client.decode_stat(p9_client.decode_reply(reply).fields)
    assert seen.qid == (0x80, 0, status.st_ino)
    assert (seen.atime_ns, seen.mtime_ns) == (-1_500_000_000, 1_234_567_891)
    assert (seen.mode, seen.uid, seen.size, seen.links) == (status.st_mode, status.st_uid, status.st_size, 7)
    assert (seen.valid, seen.btime_ns, seen.generation, seen.data_version) == (0x7FF, 0, 0, 0)


@pytest.mark.parametrize(
    ("mode", "kind"), [(stat.S_IFDIR, 0x80), (stat.S_IFLNK, 2), (stat.S_IFREG, 0), (stat.S_IFIFO, 0)]
)
def test_a_qid_says_what_has_to_be_told_apart(mode: int, kind: int) -> None:
    assert replies.qid(mode | 0o777, 9, 4) == (kind, 4, 9)


def test_a_listing_is_never_larger_than_was_asked_for() -> None:
    names = [b"n" * length for length in (1, 100, 255)]
    added: list[bytes] = []
    for size in range(DIRECTORY_ENTRY_MAX, 500):
        listing = DirectoryListing(size)
        added = [name for at, name in enumerate(names) if listing.add(name, QID, stat.S_IFDIR | 0o755, at + 1)]
        assert len(listing.data) <= size
        assert added
        assert p9_client.decode_entries(bytes(listing.data)) == [
            (QID, names.index(name) + 1, 4, name) for name in added
        ]
    assert added == names


@pytest.mark.parametrize("name", [b"", b"a/b", b"a\0", b"a" * 256])
def test_what_would_fail_the_whole_directory_is_not_listed(name: bytes) -> None:
    with pytest.raises(ValueError, match="no name"):
        DirectoryListing(1000).add(name, QID, 0, 1)
