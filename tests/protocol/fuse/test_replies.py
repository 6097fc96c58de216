"""What is said to the kernel, held against C's layout of it: every number where it belongs, every length right."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.fuse import notifications, protocol_constants, replies
from holdfast.wire.fuse.protocol_constants import Notice
from holdfast.wire.fuse.replies import NEVER, Attributes, DirectoryListing, NodeEntry, OpenedFile, StatX, Validity

from . import structures as c

HEAD = ctypes.sizeof(c.OutHeader)
U64 = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
ATTRIBUTES = st.builds(Attributes, U64, U64, U64, SIGNED, SIGNED, SIGNED, *[U32] * 10)
VALID = st.builds(Validity, U64, U32)
ENTRIES = st.builds(NodeEntry, U64, ATTRIBUTES, VALID, VALID, U64)
PAIR = st.tuples(U32, U32)
TIME = st.tuples(SIGNED, U32)
STATX = st.builds(
    StatX,
    U32,
    U32,
    U64,
    U32,
    U32,
    U32,
    st.integers(0, 2**16 - 1),
    U64,
    U64,
    U64,
    U64,
    TIME,
    TIME,
    TIME,
    TIME,
    PAIR,
    PAIR,
)
ATTR_NAMES = [name for name, *_ in c.Attr._fields_]


def opened(message: bytes, layout: type[ctypes.Structure], *, error: int = 0, unique: int = 7) -> dict[str, object]:
    """The numbers of a message that is its header and ``layout``."""
    assert c.values(c.OutHeader.from_buffer_copy(message)) == {"len": len(message), "error": error, "unique": unique}
    assert len(message) == HEAD + ctypes.sizeof(layout)
    return c.values(layout.from_buffer_copy(message, HEAD))


def attr(found: Attributes, prefix: str = "attr.") -> dict[str, object]:
    return {prefix + name: value for name, value in zip(ATTR_NAMES, found, strict=True)}


def entry(found: NodeEntry, prefix: str = "") -> dict[str, object]:
    return {
        prefix + "nodeid": found.node,
        prefix + "generation": found.generation,
        prefix + "entry_valid": found.entry_valid.seconds,
        prefix + "entry_valid_nsec": found.entry_valid.nanoseconds,
        prefix + "attr_valid": found.attributes_valid.seconds,
        prefix + "attr_valid_nsec": found.attributes_valid.nanoseconds,
    } | attr(found.attributes, prefix + "attr.")


@given(ENTRIES, U64, U32)
def test_entries(found: NodeEntry, handle: int, flags: int) -> None:
    assert opened(replies.entry(7, found), c.EntryOut) == entry(found)
    flags &= ~protocol_constants.FOPEN_PASSTHROUGH
    numbers = opened(replies.created(7, found, OpenedFile(handle, flags)), c.CreateOut)
    of_open = {"open.fh": handle, "open.open_flags": flags, "open.backing_id": 0}
    assert numbers == entry(found, "entry.") | of_open


@given(VALID)
def test_no_entry(valid: Validity) -> None:
    numbers = opened(replies.negative(7, valid), c.EntryOut)
    assert {name: value for name, value in numbers.items() if value} == {
        name: value
        for name, value in (("entry_valid", valid.seconds), ("entry_valid_nsec", valid.nanoseconds))
        if value
    }


@given(ATTRIBUTES, VALID, STATX, U32)
def test_attributes(found: Attributes, valid: Validity, extended: StatX, flags: int) -> None:
    head = {"attr_valid": valid.seconds, "attr_valid_nsec": valid.nanoseconds}
    assert opened(replies.attr(7, found, valid), c.AttrOut) == head | {"dummy": 0} | attr(found)
    x = extended
    expected = {
        "mask": x.mask, "blksize": x.block_bytes, "attributes": x.attributes, "nlink": x.links, "uid": x.uid,
        "gid": x.gid, "mode": x.mode, "spare0": 0, "ino": x.inode, "size": x.size, "blocks": x.blocks,
        "attributes_mask": x.attributes_mask, "rdev_major": x.rdev[0], "rdev_minor": x.rdev[1],
        "dev_major": x.device[0], "dev_minor": x.device[1], "spare2": [0] * 14,
    }  # fmt: skip
    for name in ("atime", "btime", "ctime", "mtime"):
        expected |= zip((f"{name}.tv_sec", f"{name}.tv_nsec", f"{name}.reserved"), (*getattr(x, name), 0), strict=True)
    numbers = opened(replies.statx(7, extended, valid, flags), c.StatXOut)
    stats = {f"stat.{name}": value for name, value in expected.items()}
    assert numbers == head | {"flags": flags, "spare": [0, 0]} | stats


def test_attributes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    os.utime(path, ns=(-1, 1_500_000_000_123_456_789))
    status = path.stat()
    found = replies.attributes(status)
    assert (found.inode, found.size, found.mode, found.links) == (status.st_ino, 5, status.st_mode, 1)
    assert (found.atime, found.atime_nanoseconds) == (-1, 999_999_999)
    assert (found.mtime, found.mtime_nanoseconds) == (1_500_000_000, 123_456_789)
    assert (found.uid, found.gid, found.block_bytes) == (status.st_uid, status.st_gid, status.st_blksize)
    assert replies.attributes(status, inode=3, links=2)[::10] == (3, 2)
    null = os.stat("/dev/null")
    assert replies.attributes(null).rdev == null.st_rdev


@given(U64, U64, U64, U32, U32)
def test_numbers(a: int, b: int, d: int, e: int, f: int) -> None:
    lock = opened(replies.lock(7, e, a, b, f), c.LkOut)
    assert lock == {"lk.start": a, "lk.end": b, "lk.type": e, "lk.pid": f}
    for encode in (replies.written, replies.size, replies.ready):
        assert opened(encode(7, e), c.WriteOut) == {"size": e, "padding": 0}
    for encode in (replies.copied, replies.position, replies.block):
        assert opened(encode(7, a), c.U64Out) == {"value": a}
    handle = opened(replies.opened(7, OpenedFile(a, protocol_constants.FOPEN_PASSTHROUGH, f % 2**31 or 1)), c.OpenOut)
    assert handle == {"fh": a, "open_flags": protocol_constants.FOPEN_PASSTHROUGH, "backing_id": f % 2**31 or 1}
    status = os.statvfs_result((e, f, a, b, d, a, b, b, 0, 255))
    assert opened(replies.statfs(7, status), c.StatFsOut) == {
        "blocks": a, "bfree": b, "bavail": d, "files": a, "ffree": b, "bsize": e, "frsize": f, "namelen": 255,
        "padding": 0, "spare": [0] * 6,
    }  # fmt: skip


@pytest.mark.parametrize("handle", [OpenedFile(1, protocol_constants.FOPEN_PASSTHROUGH), OpenedFile(1, 0, 3)])
def test_passthrough_needs_what_is_passed_through_to(handle: OpenedFile) -> None:
    with pytest.raises(ValueError, match="go together"):
        replies.opened(7, handle)


def test_without_a_body() -> None:
    for message, error in (
        (replies.done(7), 0),
        (replies.error(7, errno.ENOENT), -errno.ENOENT),
        (replies.again(7), -errno.EAGAIN),
        (replies.no_ioctl(7), -errno.ENOTTY),
    ):
        assert message == bytes(c.OutHeader(16, error, 7))


@pytest.mark.parametrize("number", [0, -2, 512, 524])
def test_an_error_that_the_kernel_would_not_take_is_another(number: int) -> None:
    """It would refuse the reply, and whoever asked would wait for ever. (524 comes out of some file systems.)"""
    assert replies.error(7, number) == bytes(c.OutHeader(16, -errno.EIO, 7))
    assert replies.error(7, 511) == bytes(c.OutHeader(16, -511, 7))


def test_data_comes_in_pieces_that_are_not_copied() -> None:
    content = bytearray(b"content")
    pieces = replies.data(7, memoryview(content)[3:], b"more")
    content[3:] = b"!!!!"
    assert b"".join(pieces) == bytes(c.OutHeader(24, 0, 7)) + b"!!!!more"
    assert b"".join(replies.data(7)) == bytes(c.OutHeader(16, 0, 7))


def entries_of(data: bytes, *, plus: bool) -> list[tuple[bytes, int, int, int, int | None]]:
    """Name, inode, offset, type and node, as the kernel reads them."""
    found: list[tuple[bytes, int, int, int, int | None]] = []
    layout = c.DirEntPlus if plus else c.DirEnt
    at = 0
    while at < len(data):
        record = layout.from_buffer_copy(data, at)
        dirent = record.dirent if plus else record
        at += ctypes.sizeof(layout)
        name = data[at : at + dirent.namelen]
        assert len(name) == dirent.namelen > 0
        node = record.entry_out.nodeid if plus else None
        found.append((name, dirent.ino, dirent.off, dirent.type, node))
        at += -(-dirent.namelen // 8) * 8
    assert at == len(data)
    return found


NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name)


@given(st.integers(0, 2000), st.lists(st.tuples(NAMES, U64, SIGNED.map(abs)), max_size=20), st.booleans(), ENTRIES)
def test_a_listing_is_never_larger_than_was_asked_for(
    size: int, wanted: list[tuple[bytes, int, int]], plus: bool, found: NodeEntry
) -> None:
    listing = DirectoryListing(size)
    added: list[tuple[bytes, int, int, int, int | None]] = []
    for at, (name, inode, offset) in enumerate(wanted):
        child = None if at % 3 == 0 else found
        fits = listing.fits(name, plus=plus)
        if plus:
            assert listing.add_plus(name, child, inode, stat.S_IFDIR | 0o755, offset) == fits
        else:
            assert listing.add(name, inode, stat.S_IFDIR | 0o755, offset) == fits
        assert len(listing.data) <= size
        if not fits:
            assert len(listing.data) + (160 if plus else 32) + len(name) > size
            break
        added.append((name, inode, offset, 4, (child.node if child else 0) if plus else None))
    assert entries_of(bytes(listing.data), plus=plus) == added


@given(ENTRIES)
def test_a_listing_says_what_a_lookup_says(found: NodeEntry) -> None:
    listing = DirectoryListing(4096)
    listing.add_plus(b"name", found, 9, stat.S_IFSOCK, 5)
    numbers = c.values(c.DirEntPlus.from_buffer_copy(listing.data))
    of_dirent = {"dirent.ino": 9, "dirent.off": 5, "dirent.namelen": 4, "dirent.type": 12}
    assert numbers == entry(found, "entry_out.") | of_dirent


@pytest.mark.parametrize("name", [b"", b"a/b", b"n" * 256])
def test_a_listing_takes_no_name_that_would_spoil_it(name: bytes) -> None:
    with pytest.raises(ValueError, match="is no name"):
        DirectoryListing(4096).add(name, 1, 0, 1)
    with pytest.raises(ValueError, match="is no name"):
        DirectoryListing(4096).add_plus(name, None, 1, 0, 1)


@given(U64, SIGNED, SIGNED, U64, NAMES)
def test_notifications(node: int, offset: int, length: int, other: int, name: bytes) -> None:
    def said(message: bytes, layout: type[ctypes.Structure], notice: Notice, tail: bytes) -> dict[str, object]:
        assert message.endswith(tail)
        header = c.values(c.OutHeader.from_buffer_copy(message))
        assert header == {"len": len(message), "error": notice, "unique": 0}
        assert len(message) == HEAD + ctypes.sizeof(layout) + len(tail)
        return c.values(layout.from_buffer_copy(message, HEAD))

    assert said(
        notifications.invalidate_inode(node, offset, length), c.InvalInodeOut, Notice.INVAL_INODE, b""
    ) == {"ino": node, "off": offset, "len": length}  # fmt: skip
    for expire_only in (False, True):
        message = notifications.invalidate_entry(node, name, expire_only=expire_only)
        assert said(message, c.InvalEntryOut, Notice.INVAL_ENTRY, name + b"\0") == {
            "parent": node, "namelen": len(name), "flags": int(expire_only),
        }  # fmt: skip
    assert said(notifications.delete(node, other, name), c.DeleteOut, Notice.DELETE, name + b"\0") == {
        "parent": node, "child": other, "namelen": len(name), "padding": 0,
    }  # fmt: skip
    assert said(b"".join(notifications.store(node, other, name)), c.StoreOut, Notice.STORE, name) == {
        "nodeid": node, "offset": other, "size": len(name), "padding": 0,
    }  # fmt: skip
    assert said(notifications.retrieve(5, node, other, 6), c.RetrieveOut, Notice.RETRIEVE, b"") == {
        "notify_unique": 5, "nodeid": node, "offset": other, "size": 6, "padding": 0,
    }  # fmt: skip
    assert said(notifications.wake(node), c.U64Out, Notice.POLL, b"") == {"value": node}
    assert notifications.resend() == bytes(c.OutHeader(16, Notice.RESEND, 0))
    assert notifications.new_epoch() == bytes(c.OutHeader(16, Notice.INC_EPOCH, 0))
    pruned = notifications.prune([node, other])
    assert said(pruned, c.PruneOut, Notice.PRUNE, struct.pack("=QQ", node, other)) == {
        "count": 2, "padding": 0, "spare": 0,
    }  # fmt: skip


def test_never_is_at_once() -> None:
    assert NEVER == (0, 0)
