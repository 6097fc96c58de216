"""The bytes of pages: what they are, and everything that a decoder refuses, by the field's name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.entries import file_entry, symlink_entry
from holdfast.model.errors import EscapeError, FormatError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.manifests.page_codec import (
    MAX_ITEMS,
    MAX_PAGE_BYTES,
    Child,
    Inner,
    Leaf,
    children,
    decode_known_page,
    decode_page,
    encode_inner,
    encode_leaf,
    encode_page,
)

ONE, TWO = hash_bytes(b"1"), hash_bytes(b"2")
PATHS = [b"src/a", b"src/b", b"src/c"]
ENTRIES = [file_entry(ONE, 1, 0o644), symlink_entry(TWO, 300), file_entry(ONE, 1, 0o755)]


def page(*columns: Any, header: bytes = b"HFP\1") -> bytes:
    return header + msgspec.msgpack.encode(columns)


def test_a_leaf_is_the_documented_bytes() -> None:
    expected = page(0, b"src/", b"a\0b\0c", ONE + TWO + ONE, [1, 300, 1], [0o100644, 1, 0o120000, 1, 0o100755, 1])
    assert encode_leaf(PATHS, ENTRIES) == expected
    leaf = decode_page(expected)
    assert isinstance(leaf, Leaf)
    assert leaf.keys == PATHS
    assert leaf.entries() == ENTRIES
    assert [leaf.entry(at) for at in range(3)] == ENTRIES
    assert leaf.totals == (3, 302)
    assert children(leaf) == [ONE, TWO]
    assert encode_page(leaf) == expected


def test_an_inner_page_is_the_documented_bytes() -> None:
    nodes = [Child(ONE, 5, 100), Child(TWO, 6, 0)]
    expected = page(2, b"a", b"\0b", ONE + TWO, [5, 6], [100, 0])
    assert encode_inner(2, [b"a", b"ab"], nodes) == expected
    inner = decode_page(expected)
    assert isinstance(inner, Inner)
    assert (inner.level, inner.keys, inner.children(), inner.totals) == (2, [b"a", b"ab"], nodes, (11, 100))
    assert children(inner) == [ONE, TWO]


def test_replacing_items_is_encoding_anew() -> None:
    leaf = decode_page(encode_leaf(PATHS, ENTRIES))
    other = file_entry(TWO, 7, 0o600)
    assert isinstance(leaf, Leaf)
    assert encode_page(leaf.replaced({1: other})) == encode_leaf(PATHS, [ENTRIES[0], other, ENTRIES[2]])
    assert leaf.entries() == ENTRIES
    inner = decode_page(encode_inner(1, [b"a", b"b"], [Child(ONE, 5, 1), Child(TWO, 6, 2)]))
    assert isinstance(inner, Inner)
    changed = encode_page(inner.replaced({0: Child(TWO, 1, 9)}))
    assert changed == encode_inner(1, [b"a", b"b"], [Child(TWO, 1, 9), Child(TWO, 6, 2)])


MODE = [0o100644, 1]
BAD = {
    "no page at all": (b"", "magic"),
    "another format": (b"HFC\1\x90", "magic"),
    "a newer version": (page(0, b"a", b"", ONE, [1], MODE, header=b"HFP\2"), "version"),
    "no version": (b"HFP", "version"),
    "nothing behind the header": (b"HFP\1", "columns"),
    "a column less": (page(0, b"a", b"", ONE, [1]), "columns"),
    "bytes behind the end": (page(0, b"a", b"", ONE, [1], MODE) + b"\0", "columns"),
    "text for bytes": (page(0, "a", b"", ONE, [1], MODE), "columns"),
    "a negative size": (page(0, b"a", b"", ONE, [-1], MODE), "columns"),
    "an endless size": (page(0, b"a", b"", ONE, [1 << 60], MODE), "columns"),
    "a length without end": (b"HFP\1\x96\0\xc4\0\xc4\0\xc4\0\xdd\xff\xff\xff\xff", "columns"),
    "half a hash": (page(0, b"a", b"", ONE[:8], [1], MODE), "hashes"),
    "more sizes than hashes": (page(0, b"a", b"", ONE, [1, 1], MODE), "sizes"),
    "more paths than hashes": (page(0, b"", b"a\0b", ONE, [1], MODE), "paths"),
    "paths without hashes": (page(0, b"a", b"", b"", [], []), "paths"),
    "a directory's mode": (page(0, b"a", b"", ONE, [1], [0o040755, 1]), "modes"),
    "a set-id mode": (page(0, b"a", b"", ONE, [1], [0o104755, 1]), "modes"),
    "a mode for too many": (page(0, b"a", b"", ONE, [1], [0o100644, 2]), "modes"),
    "a mode without a count": (page(0, b"a", b"", ONE, [1], [0o100644]), "modes"),
    "a run of none": (page(0, b"a", b"", ONE, [1], [0o100644, 1, 0o100755, 0]), "modes"),
    "one mode in two runs": (page(0, b"", b"a\0b", ONE * 2, [1, 1], [*MODE, *MODE]), "modes"),
    "an empty path": (page(0, b"", b"", ONE, [1], MODE), "paths"),
    "an absolute path": (page(0, b"/etc/passwd", b"", ONE, [1], MODE), "paths"),
    "a way out": (page(0, b"../x", b"", ONE, [1], MODE), "paths"),
    "a way out at the end": (page(0, b"x/..", b"", ONE, [1], MODE), "paths"),
    "a repository": (page(0, b"x/.git", b"", ONE, [1], MODE), "paths"),
    "a long name": (page(0, b"x" * 256, b"", ONE, [1], MODE), "paths"),
    "descending paths": (page(0, b"", b"b\0a", ONE * 2, [1, 1], [0o100644, 2]), "paths"),
    "a path twice": (page(0, b"a", b"\0", ONE * 2, [1, 1], [0o100644, 2]), "paths"),
    "a prefix too short": (page(0, b"s", b"rc/a\0rc/b", ONE * 2, [1, 1], [0o100644, 2]), "prefix"),
    "a file that is a directory": (page(0, b"a", b"\0-b\0/b", ONE * 3, [1, 1, 1], [0o100644, 3]), "directory"),
    "a prefix that unfolds": (
        page(0, b"a/" * 1000, b"\0".join([b"a"] * 200), ONE * 200, [1] * 200, [0o100644, 200]),
        "paths",
    ),
    "too many paths": (page(0, b"", b"\0" * 299, ONE * 300, [1] * 300, [0o100644, 300]), "hashes"),
    "paths too long together": (page(0, b"a" * 2000, b"\0" * 99, ONE * 100, [1] * 100, [0o100644, 100]), "paths"),
    "a page too long": (b"HFP\1" + bytes(MAX_PAGE_BYTES), "more than"),
    "a negative level": (page(-1, b"a", b"", ONE, [1], [1]), "columns"),
    "an absurd level": (page(99, b"a", b"", ONE, [1], [1]), "level"),
    "no children": (page(1, b"", b"", b"", [], []), "files"),
    "a child without entries": (page(1, b"a", b"", ONE, [0], [0]), "files"),
    "children without counts": (page(1, b"a", b"", ONE, [], []), "files"),
    "a bad key": (page(1, b"..", b"", ONE, [1], [1]), "paths"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_encoder_writes_is_refused_by_name(name: str) -> None:
    data, field = BAD[name]
    with pytest.raises(FormatError, match=field):
        decode_page(data)


def test_encoding_refuses_what_decoding_would() -> None:
    with pytest.raises(EscapeError):
        encode_leaf([b"a/../b"], ENTRIES[:1])
    with pytest.raises(EscapeError):
        encode_leaf([b"a\0b"], ENTRIES[:1])
    with pytest.raises(FormatError, match="ascending"):
        encode_leaf([b"b", b"a"], ENTRIES[:2])
    with pytest.raises(FormatError, match="directory"):
        encode_leaf([b"a", b"a/b"], ENTRIES[:2])
    with pytest.raises(FormatError, match="modes"):
        encode_leaf([b"a"], [ENTRIES[0]._replace(mode=0o040755)])
    with pytest.raises(FormatError, match="sizes"):
        encode_leaf([b"a"], [ENTRIES[0]._replace(size=-1)])
    with pytest.raises(FormatError, match="bytes of hashes"):
        encode_leaf([b"a"], [ENTRIES[0]._replace(hash=Hash(b"short"))])
    with pytest.raises(FormatError, match="at most"):
        encode_leaf([b"%05d" % at for at in range(MAX_ITEMS + 1)], ENTRIES[:1] * (MAX_ITEMS + 1))
    with pytest.raises(FormatError, match="files"):
        encode_inner(1, [], [])
    with pytest.raises(FormatError, match="sizes"):
        encode_inner(1, [b"a"], [Child(ONE, 1, 1 << 60)])


def test_a_known_page_is_checked_in_all_but_its_paths() -> None:
    for name, (data, field) in BAD.items():
        try:
            decoded = decode_known_page(data)
        except FormatError:
            continue
        assert field in ("paths", "prefix", "directory"), name
        assert len(decoded.keys) * 16 == len(b"".join(decoded.hashes) if isinstance(decoded, Inner) else decoded.hashes)
