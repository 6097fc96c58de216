"""Bundles that are hostile, damaged or cut short take nothing in."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest
import zstandard

from holdfast.engine.upkeep import _bundle_check as bundle_check
from holdfast.engine.upkeep._bundle_format import (
    END_MAGIC,
    BundleHead,
    BundleReader,
    CheckpointRecord,
    decode_head,
    encode_head,
    encode_member,
)
from holdfast.engine.upkeep.bundle_import import import_bundle
from holdfast.model.entries import Entry, file_entry, symlink_entry
from holdfast.model.errors import (
    FormatError,
    HoldfastError,
    IntegrityError,
)
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.blobs.pack_format import encode_pack
from holdfast.store.codecs.compression import Encoded
from holdfast.store.manifests.page_codec import EMPTY_PAGE, EMPTY_ROOT, Child, encode_inner, encode_leaf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

from .bundle_home import ID, Home, Member, forged, head, leaf, pack, record, small, write

A = leaf(a=b"1")

ROOT = hash_bytes(A)


def raw_leaf(*paths: bytes, mode: int = 0o100644) -> bytes:
    """A page as nobody should write it: `encode_leaf` without what it refuses."""
    import msgspec

    count = len(paths)
    prefix = paths[0] if count > 1 and paths[1].startswith(paths[0]) else b""
    rest = b"\0".join(path[len(prefix) :] for path in paths)
    columns = (0, prefix, rest, hash_bytes(b"1") * count, [1] * count, [mode, count])
    return b"HFP\x01" + msgspec.msgpack.encode(columns)


def inner(*children: tuple[bytes, bytes, int, int]) -> bytes:
    """An inner page over encoded leaves: key, page, files, bytes."""
    return encode_inner(1, [key for key, *_ in children], [Child(hash_bytes(p), n, s) for _, p, n, s in children])


def split_tree() -> tuple[bytes, bytes, bytes]:
    """Two leaves that should be one."""
    one, other = leaf(a=b"1"), leaf(b=b"1")
    return one, other, inner((b"a", one, 1, 1), (b"b", other, 1, 1))


B, B2, SPLIT = split_tree()

FILE_ABOVE = leaf(a=b"1")

FILE_BELOW = leaf(**{"a/b": b"1"})

LONG = b"x" * ((1 << 20) + 1)

LONG_PAGE = encode_leaf([b"l"], [file_entry(hash_bytes(LONG), len(LONG), 0o644)])

HOSTILE: dict[str, list[Member]] = {
    "dot dot": small([record(hash_bytes(raw_leaf(b"../a")))], [raw_leaf(b"../a")], [b"1"]),
    "absolute": small([record(hash_bytes(raw_leaf(b"/etc/x")))], [raw_leaf(b"/etc/x")], [b"1"]),
    "inside .git": small([record(hash_bytes(raw_leaf(b".git/config")))], [raw_leaf(b".git/config")], [b"1"]),
    "empty part": small([record(hash_bytes(raw_leaf(b"a//b")))], [raw_leaf(b"a//b")], [b"1"]),
    "path twice": small([record(hash_bytes(raw_leaf(b"a", b"a")))], [raw_leaf(b"a", b"a")], [b"1"]),
    "file and directory": small([record(hash_bytes(raw_leaf(b"a", b"a/b")))], [raw_leaf(b"a", b"a/b")], [b"1"]),
    "device": small([record(hash_bytes(raw_leaf(b"a", mode=0o060644)))], [raw_leaf(b"a", mode=0o060644)], [b"1"]),
    "setuid": small([record(hash_bytes(raw_leaf(b"a", mode=0o104755)))], [raw_leaf(b"a", mode=0o104755)], [b"1"]),
    "not a page": small([record(hash_bytes(b"page"))], [b"page"], []),
    "root missing": small([record(hash_bytes(b"?"))], [A], [b"1"]),
    "page missing": small([record(hash_bytes(SPLIT))], [B, SPLIT], [b"1"]),
    "parent page first": small([record(hash_bytes(SPLIT))], [SPLIT, B, B2], [b"1"]),
    "cut elsewhere": small([record(hash_bytes(SPLIT))], [B, B2, SPLIT], [b"1"]),
    "cut elsewhere, below a sound parent": small(
        [record(ROOT, "f" * 24), record(hash_bytes(SPLIT), ID, "f" * 24)], [B, B2, SPLIT], [b"1"]
    ),
    "file and directory in two pages": small(
        [record(hash_bytes(inner((b"a", FILE_ABOVE, 1, 1), (b"a/b", FILE_BELOW, 1, 1))))],
        [FILE_ABOVE, FILE_BELOW, inner((b"a", FILE_ABOVE, 1, 1), (b"a/b", FILE_BELOW, 1, 1))],
        [b"1"],
    ),
    "false totals": small([record(hash_bytes(inner((b"a", A, 9, 1))))], [A, inner((b"a", A, 9, 1))], [b"1"]),
    "false key": small([record(hash_bytes(inner((b"0", A, 1, 1))))], [A, inner((b"0", A, 1, 1))], [b"1"]),
    "the same page twice below one": small(
        [record(hash_bytes(inner((b"a", A, 1, 1), (b"b", A, 1, 1))))],
        [A, inner((b"a", A, 1, 1), (b"b", A, 1, 1))],
        [b"1"],
    ),
    "page nobody needs": small([record(ROOT)], [A, leaf(z=b"1")], [b"1"]),
    "page in two packs": [
        head([record(ROOT)], [A, A], [b"1"]),
        (b"pages/000000.pack", pack(A)),
        (b"pages/000001.pack", pack(A)),
        (b"blobs/000000.pack", pack(b"1")),
    ],
    "content missing": small([record(ROOT)], [A], []),
    "content nobody needs": small([record(ROOT)], [A], [b"1", b"2"]),
    "content in two packs": [
        *small([record(ROOT)], [A], [b"1", b"1"])[:2],
        (b"blobs/000000.pack", pack(b"1")),
        (b"blobs/000001.pack", pack(b"1")),
    ],
    "content of another hash": [
        *small([record(ROOT)], [A], [b"1"])[:2],
        (b"blobs/000000.pack", encode_pack([(hash_bytes(b"1"), 1, Encoded(0, b"2"), None)])),
    ],
    "content of another size": small(
        [record(hash_bytes(encode_leaf([b"a"], [Entry(hash_bytes(b"1"), 7, 0o100644)])))],
        [encode_leaf([b"a"], [Entry(hash_bytes(b"1"), 7, 0o100644)])],
        [b"1"],
    ),
    "two sizes of one content": small(
        [record(ROOT), record(hash_bytes(encode_leaf([b"b"], [Entry(hash_bytes(b"1"), 7, 0o100644)])), "e" * 24)],
        [A, encode_leaf([b"b"], [Entry(hash_bytes(b"1"), 7, 0o100644)])],
        [b"1"],
    ),
    "a delta": [
        *small([record(ROOT)], [A], [b"1"])[:2],
        (b"blobs/000000.pack", encode_pack([(hash_bytes(b"1"), 40, Encoded(3, b"x"), hash_bytes(b"base"))])),
    ],
    "large content of another hash": [
        *small([record(hash_bytes(LONG_PAGE))], [LONG_PAGE], [LONG])[:2],
        (b"large/" + hash_bytes(LONG).hex().encode(), LONG[:-1] + b"y"),
    ],
    "large content that is small": [
        *small([record(ROOT)], [A], [b"1"])[:2],
        (b"large/" + hash_bytes(b"1").hex().encode(), b"1"),
    ],
    "more than the head says": [
        head([record(ROOT)], [A], []),
        *small([record(ROOT)], [A], [b"1"])[1:],
    ],
    "less than the head says": [
        head([record(ROOT)], [A], [b"1", b"2"]),
        *small([record(ROOT)], [A], [b"1"])[1:],
    ],
    "another member": [*forged({b"a": b"1"}), (b"etc/passwd", b"x")],
    "a name with dots": [*forged({b"a": b"1"})[:2], (b"../../blobs/000000.pack", pack(b"1"))],
    "members out of order": [*forged({b"a": b"1"})[:1], *forged({b"a": b"1"})[:0:-1]],
    "a number left out": [*forged({b"a": b"1"})[:2], (b"blobs/000001.pack", pack(b"1"))],
    "two heads": [forged({b"a": b"1"})[0], *forged({b"a": b"1"})],
    "no head": forged({b"a": b"1"})[1:],
    "a pack that is none": [*forged({b"a": b"1"})[:2], (b"blobs/000000.pack", b"pack")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_bundle_takes_nothing_in(
    members: list[Member], make_home: Callable[[str], Home], tmp_path: Path
) -> None:
    """Case 8; I7, I12: refused with a typed error; nothing is in the catalog, nothing lies about."""
    target = make_home("target")
    listed = sorted(os.listdir(tmp_path))
    with pytest.raises((FormatError, IntegrityError)):
        import_bundle(target.context, write(tmp_path, members))
    assert target.ids() == []
    assert sorted(os.listdir(tmp_path)) == sorted([*listed, "hostile"])


def test_the_forgeries_differ_from_good_bundles_only_in_what_they_forge(
    make_home: Callable[[str], Home], tmp_path: Path
) -> None:
    """The same helpers make a bundle that is taken in, so the tests above fail for the reason they name."""
    target = make_home("target")
    state = {b"a": b"1", b"b/c": b"2"}
    import_bundle(target.context, write(tmp_path, forged(state)))
    assert target.state(ID) == state
    large = [*small([record(hash_bytes(LONG_PAGE), "a" * 24)], [LONG_PAGE], [LONG])[:2]]
    import_bundle(target.context, write(tmp_path, [*large, (b"large/" + hash_bytes(LONG).hex().encode(), LONG)]))
    link = encode_leaf([b"link"], [symlink_entry(hash_bytes(b"/etc"), 4)])
    import_bundle(target.context, write(tmp_path, small([record(hash_bytes(link), "b" * 24)], [link], [b"/etc"])))
    empty = small([record(EMPTY_ROOT, "c" * 24)], [EMPTY_PAGE], [])
    import_bundle(target.context, write(tmp_path, empty))
    assert len(target.ids()) == 4


def test_a_link_and_a_path_through_it_cannot_be_said(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    """I7: the strict decoder refuses a file below a link, in one page as in two."""
    one = encode_leaf([b"l"], [symlink_entry(hash_bytes(b"1"), 1)])
    two = encode_leaf([b"l/x"], [file_entry(hash_bytes(b"1"), 1, 0o644)])
    top = inner((b"l", one, 1, 1), (b"l/x", two, 1, 1))
    with pytest.raises(FormatError):
        import_bundle(
            make_home("target").context, write(tmp_path, small([record(hash_bytes(top))], [one, two, top], [b"1"]))
        )


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(ROOT, "xyz")],
        [record(ROOT, "A" * 24)],
        [record(ROOT), record(ROOT)],
        [record(ROOT, ID, ID)],
        [record(ROOT, ID, "f" * 24)],
        [record(ROOT, ID, "f" * 24), record(ROOT, "f" * 24, ID)],
        [record(Hash(b"short"))],
        [record(ROOT, kind="other")],
        [record(ROOT, created_at=-1)],
        [record(ROOT, created_at=1 << 60)],
        [record(ROOT, labels=["x" * 201])],
        [record(ROOT, labels=["x", ""])],
        [record(ROOT, labels=["x\ny"])],
        [record(ROOT, labels="x")],
        [record(ROOT, labels=["702c62d445eb"])],
        [record(ROOT, labels=["@"])],
        [record(ROOT, labels=["-rf"])],
        [record(ROOT, labels=["x\x1b[2J"])],
        [record(ROOT, labels=["x", "x"])],
        [record(ROOT, labels=[f"x{number}" for number in range(1001)])],
        [record(ROOT, message="x" * 70_000)],
        [record(ROOT, not_captured=[(b"", "reason")])],
        [record(ROOT, not_captured=[(b"a\0b", "reason")])],
    ],
)
def test_a_head_that_cannot_be_is_refused(records: list[CheckpointRecord]) -> None:
    with pytest.raises(FormatError, match="bundle head"):
        decode_head(encode_head(BundleHead(records, [ID], 1, 1, 1, 1)))


@pytest.mark.parametrize("wanted", [[], ["f" * 24], [ID, ID]])
def test_wanted_checkpoints_must_be_there(wanted: list[str]) -> None:
    with pytest.raises(FormatError, match="wanted"):
        decode_head(encode_head(BundleHead([record(ROOT)], wanted, 1, 1, 1, 1)))


def test_a_head_of_another_version_or_checksum_is_refused() -> None:
    good = encode_head(BundleHead([record(ROOT)], [ID], 1, 1, 1, 1))
    assert decode_head(good).wanted == [ID]
    with pytest.raises(FormatError, match="'version': 3"):
        decode_head(good[:8] + b"\x03\0" + good[10:])
    with pytest.raises(FormatError, match="'labels'"):
        decode_head(good[:8] + b"\x01\0" + good[10:])
    with pytest.raises(FormatError, match="'magic'"):
        decode_head(b"X" + good[1:])
    with pytest.raises(IntegrityError, match="'checksum'"):
        decode_head(good[:-1] + bytes((good[-1] ^ 1,)))


@pytest.mark.parametrize(("label", "labels"), [("", []), ("one", ["one"])])
def test_a_bundle_of_version_1_is_taken_in(
    label: str, labels: list[str], make_home: Callable[[str], Home], tmp_path: Path
) -> None:
    target = make_home("target")
    (name, data), *rest = forged({b"a": b"1"})
    head = decode_head(data)
    old = encode_head(head._replace(checkpoints=[head.checkpoints[0]._replace(labels=label)]))
    import_bundle(target.context, write(tmp_path, [(name, old[:8] + b"\x01\0" + old[10:]), *rest]))
    assert target.store.catalog.checkpoint(ID).labels == tuple(labels)


def test_every_cut_and_what_follows_the_end_is_noticed(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    target = make_home("target")
    members = forged({b"a": b"1", b"b": b"22"})
    for failing in (
        write(tmp_path, members, end=False),
        write(tmp_path, members, tail=b"junk"),
        write(tmp_path, members, tail=zstandard.ZstdCompressor().compress(b"more")),
        write(tmp_path, [*members, (b"end", END_MAGIC + hash_bytes(b"?"))], end=False),
    ):
        with pytest.raises((FormatError, IntegrityError)):
            import_bundle(target.context, failing)
    file = tmp_path / "hostile"
    write(tmp_path, members)
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises((FormatError, IntegrityError)):
            import_bundle(target.context, os.fsencode(file))
    assert target.ids() == []


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"5", b"6", b"x", b"g", b"L", b"S"])
def test_members_that_are_no_plain_files_are_refused(kind: bytes, tmp_path: Path) -> None:
    """Links, devices, directories, fifos and every extension header."""
    block = bytearray(encode_member(b"bundle", 0))
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    reader = BundleReader(io.BytesIO(zstandard.ZstdCompressor().compress(bytes(block) + bytes(1024))))
    with pytest.raises(FormatError, match="no plain file"):
        reader.head()


def test_a_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    """I12: neither a member that claims a huge size nor a window of gigabytes makes the reader allocate them."""
    compressed = zstandard.ZstdCompressor().compress(encode_member(b"bundle", 8 << 40) + bytes(1 << 20))
    with pytest.raises(FormatError, match="right size"):
        BundleReader(io.BytesIO(compressed)).head()
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    huge = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(IntegrityError):
        BundleReader(io.BytesIO(huge.compress(bytes(1000)) + huge.flush())).head()


def test_what_would_take_hours_to_check_is_refused(
    make_home: Callable[[str], Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_check, "MAX_CHECKED", 3)
    with pytest.raises(FormatError, match="more than 3 entries"):
        import_bundle(
            make_home("target").context, write(tmp_path, forged({b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}))
        )


def test_every_error_is_one_of_ours(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    target = make_home("target")
    file = tmp_path / "hostile"
    for data in (b"", b"\x28\xb5\x2f\xfd", os.urandom(5000), b"\0" * 5000):
        file.write_bytes(data)
        with pytest.raises(HoldfastError):
            import_bundle(target.context, os.fsencode(file))
