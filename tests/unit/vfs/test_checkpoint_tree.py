"""A checkpoint as a file system, asked by the codec alone: no kernel, no store."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bridge.fuse.frozen_caches import FrozenCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.vfs.checkpoint_appearance import CheckpointAppearance
from holdfast.vfs.checkpoint_tree import CheckpointTree
from holdfast.wire.fuse.negotiation import negotiate
from holdfast.wire.fuse.protocol_constants import Init, Opcode
from holdfast.wire.fuse.request_bodies import Offer
from holdfast.wire.fuse.requests import Decoder, decode_header

from ...protocol.fuse import structures as c
from ...protocol.fuse.structures import request
from .checkpoint_content import FakeContent

if TYPE_CHECKING:
    pass

TIME = 1_700_000_000_123_456
Numbers = dict[str, Any]
EVERYTHING = Init((1 << 43) - 1)


def numbers(structure: type[ctypes.Structure], data: bytes) -> Numbers:
    """What a structure that is all of ``data`` says, by name."""
    return c.values(structure.from_buffer_copy(data))


class Asked:
    """Asks a tree as a kernel does."""

    def __init__(self, content: FakeContent, offered: Init = EVERYTHING) -> None:
        tree = CheckpointTree(content, CheckpointAppearance(11, 22, TIME, 0o750, 0o700))
        served = ServedFileSystem(tree, FrozenCaches())
        terms = negotiate(Offer(7, 45, 1 << 17, offered), served.wishes())
        assert terms is not None
        self.decoder = Decoder(terms)
        self.operations = served.operations(terms)

    def __call__(self, opcode: Opcode, body: bytes = b"", node: int = 1) -> bytes:
        """The body of the reply; `OSError` if that is an error."""
        frame = request(opcode, body, node=node)
        header = decode_header(frame)
        if opcode not in self.operations:
            raise OSError(errno.ENOSYS, "not there")
        reply = self.operations[opcode](header, self.decoder.decode(header, frame))
        assert reply is not None
        whole = reply if isinstance(reply, bytes) else b"".join(reply)
        length, error, unique = struct.unpack_from("=IiQ", whole)
        assert (length, unique) == (len(whole), 7)
        if error:
            raise OSError(-error, os.strerror(-error))
        return whole[16:]

    def lookup(self, path: bytes) -> Numbers:
        """What the last part of a path leads to, part by part."""
        found: Numbers = {"nodeid": 1}
        for name in path.split(b"/"):
            found = numbers(c.EntryOut, self(Opcode.LOOKUP, name + b"\0", found["nodeid"]))
            if not found["nodeid"]:
                raise FileNotFoundError(path)
        return found

    def node(self, path: bytes) -> int:
        return self.lookup(path)["nodeid"]

    def attributes(self, node: int) -> Numbers:
        return numbers(c.AttrOut, self(Opcode.GETATTR, bytes(c.GetAttrIn()), node))

    def read(self, node: int, offset: int, size: int, opcode: Opcode = Opcode.READ) -> bytes:
        return self(opcode, bytes(c.ReadIn(fh=0, offset=offset, size=size)), node)

    def names(self, node: int, size: int, *, plus: bool = False) -> list[tuple[bytes, int]]:
        """The names and inodes of a directory, asked for in pieces of ``size``."""
        found: list[tuple[bytes, int]] = []
        offset = 0
        while data := self.read(node, offset, size, Opcode.READDIRPLUS if plus else Opcode.READDIR):
            assert len(data) <= size
            at = 0
            while at < len(data):
                at += 128 if plus else 0
                inode, offset, length, _ = struct.unpack_from("=QQII", data, at)
                found.append((data[at + 24 : at + 24 + length], inode))
                at += -(-(24 + length) // 8) * 8
        return found


FILES = {
    b"a-b": b"before the slash",
    b"a/1": b"one",
    b"a/2/deep/er": b"deep",
    b"a/2/x": b"",
    b"a/link": b"1",
    b"a0": b"after it",
    b"b\xff\n/\xfe": b"no UTF-8",
    b"z": b"0123456789",
}
TREE = FakeContent(FILES, frozenset((b"a/link",)))


@pytest.mark.parametrize("path", sorted(FILES))
def test_every_file_is_found_as_it_was_saved(path: bytes) -> None:
    ask = Asked(TREE)
    found = ask.lookup(path)
    content = FILES[path]
    mode = stat.S_IFLNK | 0o777 if path == b"a/link" else stat.S_IFREG | 0o640
    about = {name.removeprefix("attr."): value for name, value in found.items() if name.startswith("attr.")}
    node = found["nodeid"]
    expected = {"ino": node, "size": len(content), "mode": mode, "uid": 11, "gid": 22, "nlink": 1}
    assert about.items() >= expected.items()
    assert about["mtime"] * 1_000_000 + about["mtimensec"] // 1000 == TIME
    assert ask.attributes(node).items() >= {f"attr.{name}": value for name, value in about.items()}.items()
    if path == b"a/link":
        assert ask(Opcode.READLINK, node=node) == content
    else:
        assert ask.read(node, 0, 4096) == content
        assert ask.read(node, 3, 4) == content[3:7]
        assert ask.read(node, len(content), 4096) == b""


def test_directories_are_what_paths_say() -> None:
    ask = Asked(TREE)
    assert ask.attributes(1)["attr.mode"] == stat.S_IFDIR | 0o750
    for path in (b"a", b"a/2", b"a/2/deep", b"b\xff\n"):
        assert ask.lookup(path).items() >= {"attr.mode": stat.S_IFDIR | 0o700, "attr.nlink": 1}.items()
    for path in (b"a/3", b"a/2/d", b"a/2/deep/er2", b"zz", b"a-", b"0"):
        with pytest.raises(FileNotFoundError):
            ask.lookup(path)
    with pytest.raises(NotADirectoryError):
        ask.lookup(b"z/x")


def test_what_is_not_there_may_be_remembered() -> None:
    missing = numbers(c.EntryOut, Asked(TREE)(Opcode.LOOKUP, b"missing\0"))
    assert missing["nodeid"] == 0
    assert missing["entry_valid"] > 3600


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("size", [176, 300, 4096])
def test_listings_are_whole_in_pieces_of_any_size(size: int, plus: bool) -> None:
    ask = Asked(TREE)
    tops = [(name, ask.node(name)) for name in (b"a-b", b"a", b"a0", b"b\xff\n", b"z")]
    assert ask.names(1, size, plus=plus) == [(b".", 1), (b"..", 1), *tops]
    a = ask.node(b"a")
    below = [(name, ask.node(b"a/" + name)) for name in (b"1", b"2", b"link")]
    assert ask.names(a, size, plus=plus) == [(b".", a), (b"..", 1), *below]
    assert ask.names(ask.node(b"a/2"), size, plus=plus)[1] == (b"..", a)


@given(
    st.lists(st.lists(st.sampled_from([b"a", b"a-", b"a0", b"b", b"\xff", b" "]), min_size=1, max_size=5), max_size=30)
)
def test_any_tree_is_listed_as_its_paths_say(parts: list[list[bytes]]) -> None:
    paths = {b"/".join(path) for path in parts}
    paths = {path for path in paths if not any(other.startswith(path + b"/") for other in paths)}
    ask = Asked(FakeContent({path: path for path in paths}))

    def walk(node: int, above: bytes) -> set[bytes]:
        found: set[bytes] = set()
        for name, inode in ask.names(node, 200)[2:]:
            path = above + name
            assert ask.node(path) == inode
            if stat.S_ISDIR(ask.attributes(inode)["attr.mode"]):
                found |= walk(inode, path + b"/")
            else:
                assert ask.read(inode, 0, 100) == path
                found.add(path)
        return found

    assert walk(1, b"") == paths


def test_nobody_changes_anything() -> None:
    ask = Asked(TREE)
    changes = {
        Opcode.UNLINK: b"z\0",
        Opcode.RMDIR: b"a\0",
        Opcode.MKDIR: bytes(c.MkDirIn(0o755, 0)) + b"new\0",
        Opcode.SYMLINK: b"new\0target\0",
        Opcode.RENAME: bytes(c.RenameIn(1)) + b"z\0y\0",
        Opcode.SETATTR: bytes(c.SetAttrIn(valid=1)),
        Opcode.WRITE: bytes(c.WriteIn(size=1)) + b"x",
    }
    for opcode, body in changes.items():
        with pytest.raises(OSError, match="Read-only"):
            ask(opcode, body)


@pytest.mark.parametrize("offered", [EVERYTHING, Init(0)])
def test_nothing_is_asked_at_an_open_where_the_kernel_can_do_without(offered: Init) -> None:
    ask = Asked(TREE, offered)
    z = ask.node(b"z")
    for opcode, node in ((Opcode.OPEN, z), (Opcode.OPENDIR, 1)):
        if offered:
            with pytest.raises(OSError, match="not there"):
                ask(opcode, bytes(c.OpenIn()), node)
        else:
            assert len(ask(opcode, bytes(c.OpenIn()), node)) == 16
    if not offered:
        with pytest.raises(OSError, match="Read-only"):
            ask(Opcode.OPEN, bytes(c.OpenIn(flags=os.O_RDWR)), z)


@pytest.mark.parametrize(
    "node", [2, 4095, 1 << 12 | 5, (len(FILES) + 1) << 12, 99 << 12 | 1, 2**64 - 1, 1 << 12 | 1], ids=hex
)
@pytest.mark.parametrize("opcode", [Opcode.GETATTR, Opcode.READ, Opcode.READDIR, Opcode.LOOKUP])
def test_a_node_that_is_none_is_stale(node: int, opcode: Opcode) -> None:
    """(Case 12. The last one is a directory in a path that has none.)"""
    bodies = {
        Opcode.GETATTR: bytes(c.GetAttrIn()),
        Opcode.READ: bytes(c.ReadIn(size=100)),
        Opcode.READDIR: bytes(c.ReadIn(size=100)),
        Opcode.LOOKUP: b"x\0",
    }
    with pytest.raises(OSError, match="Stale"):
        Asked(TREE)(opcode, bodies[opcode], node)


@pytest.mark.parametrize("offset", [1, 2, 7, 2**40, 2**63 - 1])
def test_any_offset_in_a_directory_is_answered(offset: int) -> None:
    ask = Asked(TREE)
    a = ask.node(b"a")
    assert len(ask.read(a, offset, 4096, Opcode.READDIR)) <= 4096


def test_a_file_is_no_directory_and_the_other_way_round() -> None:
    ask = Asked(TREE)
    with pytest.raises(IsADirectoryError):
        ask.read(1, 0, 100)
    with pytest.raises(NotADirectoryError):
        ask.read(ask.node(b"z"), 0, 100, Opcode.READDIR)
    with pytest.raises(OSError, match="Invalid argument"):
        ask(Opcode.READLINK, node=1)


def test_an_empty_checkpoint_is_an_empty_directory() -> None:
    ask = Asked(FakeContent({}))
    assert ask.names(1, 4096) == [(b".", 1), (b"..", 1)]
    with pytest.raises(FileNotFoundError):
        ask.lookup(b"x")


def test_how_much_there_is() -> None:
    status = numbers(c.StatFsOut, Asked(TREE)(Opcode.STATFS))
    assert status.items() >= {"files": len(FILES), "ffree": 0, "bavail": 0, "namelen": 255}.items()
