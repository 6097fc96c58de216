"""A checkpoint, served to a 9P client: all of it can be read, and nothing changed."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from holdfast.vfs.checkpoint_appearance import CheckpointAppearance
from holdfast.vfs.checkpoint_tree import CheckpointTree
from holdfast.wire.p9 import protocol_constants as c

from ...vfs.checkpoint_content import FakeContent
from .served import connected

_CHANGED_AT = 1_700_000_000_123_456
_FILES = {b"a": b"0123456789", b"d-x": b"", b"d/e/f": b"content", b"d/g": b"g" * 100_000, b"l": b"d/g"}


def _tree() -> CheckpointTree:
    looks = CheckpointAppearance(11, 22, _CHANGED_AT, 0o750, 0o700)
    return CheckpointTree(FakeContent(_FILES, frozenset({b"l"})), looks)


def test_a_checkpoint_is_read() -> None:
    with connected(_tree(), msize=8192) as (_, client):
        root = client.attach()
        for path, content in _FILES.items():
            fid = client.walk(root, *path.split(b"/"))
            found = client.stat(fid)
            assert (found.size, found.uid, found.gid, found.mtime_ns) == (len(content), 11, 22, _CHANGED_AT * 1000)
            if path == b"l":
                assert client.readlink(fid) == content
                continue
            client.open(fid)
            read = b""
            while piece := client.read(fid, len(read), 8000):
                read += piece
            assert read == content
        assert client.stat(root).mode == stat.S_IFDIR | 0o750
        listed = client.walk(root, b"d")
        client.open(listed)
        entries = {entry.name: entry.qid for entry in client.list(listed, 4000)}
        assert entries.keys() == {b".", b"..", b"e", b"g"}
        assert entries[b"e"] == client.stat(client.walk(root, b"d", b"e")).qid
        assert entries[b".."] == client.stat(client.walk(root, b"d", b"..")).qid == client.stat(root).qid
        assert client.get_xattr(root, b"") == b""


def test_a_checkpoint_is_not_changed() -> None:
    with connected(_tree()) as (_, client):
        root = client.attach()
        file = client.walk(root, b"a")
        for change in (
            lambda: client.create(client.walk(root), b"n"),
            lambda: client.mkdir(root, b"n"),
            lambda: client.unlinkat(root, b"a"),
            lambda: client.renameat(root, b"a", root, b"b"),
            lambda: client.set_attributes(file, c.SETATTR_MODE, mode=0),
            lambda: client.set_xattr(file, b"user.x", b"y"),
            lambda: client.open(client.walk(file), os.O_WRONLY),
            lambda: client.remove(client.walk(file)),
        ):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is looked at
                change()
            assert caught.value.errno == errno.EROFS
