"""The pack format, byte by byte and as a whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import FormatError, IntegrityError, NotFoundError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.blobs import pack_format
from holdfast.store.codecs import compression
from holdfast.store.codecs.compression import Encoded
from holdfast.store.objects.remote_store import open_bucket

if TYPE_CHECKING:
    from holdfast.store.objects.object_store import ObjectStore

A, B, C = (hash_bytes(bytes([n])) for n in b"abc")
RECORDS: list[tuple[Hash, int, Encoded, Hash | None]] = [
    (A, 3, Encoded(compression.RAW, b"one"), None),
    (B, 100, Encoded(compression.ZSTD, b"some bytes"), None),
    (C, 200, Encoded(compression.DELTA, b"difference"), A),
    (hash_bytes(b""), 0, Encoded(compression.RAW, b""), None),
]


@pytest.fixture
def objects() -> ObjectStore:
    return open_bucket("memory://")


def test_the_bytes_are_as_the_document_says() -> None:
    data = pack_format.encode_pack([RECORDS[0], RECORDS[2]])
    heads = [
        bytes([0]) + (3).to_bytes(4, "little") + (3).to_bytes(4, "little") + A,
        bytes([3]) + (200).to_bytes(4, "little") + (10).to_bytes(4, "little") + C + A,
    ]
    index = heads[0] + heads[1]
    count = (2).to_bytes(4, "little")
    length = (66).to_bytes(8, "little")
    checksum = hash_bytes(b"HFPACK\x01\x00" + index + count + length)
    assert data == (
        b"HFPACK\x01\x00"
        + heads[0]
        + b"one"
        + heads[1]
        + b"difference"
        + b"\xff"
        + index
        + count
        + length
        + checksum
        + b"HFPE"
    )
    assert len(pack_format.encode_pack([])) == 41


def test_index_and_sequence_agree(objects: ObjectStore) -> None:
    data = pack_format.encode_pack(RECORDS)
    objects.put("p", [data])
    records = pack_format.read_index(objects, "p")
    assert [(r.hash, r.size, r.codec, r.base) for r in records] == [(h, s, e.codec, b) for h, s, e, b in RECORDS]
    assert [data[r.offset : r.offset + r.length] for r in records] == [e.data for _, _, e, _ in RECORDS]
    for step in (1, 7, 1000):
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        assert list(pack_format.read_sequence(pieces)) == [
            (r, e.data) for r, (_, _, e, _) in zip(records, RECORDS, strict=True)
        ]


def test_an_index_larger_than_the_first_read(objects: ObjectStore) -> None:
    many = [(hash_bytes(n.to_bytes(4, "big")), 1, Encoded(compression.RAW, b"x"), None) for n in range(5000)]
    objects.put("p", [pack_format.encode_pack(many)])
    assert [record.hash for record in pack_format.read_index(objects, "p")] == [record[0] for record in many]


def test_every_truncation_and_extension_is_found(objects: ObjectStore) -> None:
    """Case 5."""
    data = pack_format.encode_pack(RECORDS)
    for cut in range(len(data)):
        for damaged in (data[:cut], data[:cut] + b"\0" + data[cut:]):
            objects.put("p", [damaged])
            with pytest.raises(IntegrityError):
                pack_format.read_index(objects, "p")
            with pytest.raises(IntegrityError):
                list(pack_format.read_sequence([damaged]))
    with pytest.raises(FormatError, match="follow"):
        list(pack_format.read_sequence([data, b"x"]))
    with pytest.raises(NotFoundError):
        pack_format.read_index(objects, "absent")


def test_every_flipped_bit_outside_of_stored_bytes_is_found(objects: ObjectStore) -> None:
    """Case 5: stored bytes themselves are covered by the hash of what they decode to."""
    data = pack_format.encode_pack(RECORDS)
    objects.put("p", [data])
    stored = {at for r in pack_format.read_index(objects, "p") for at in range(r.offset, r.offset + r.length)}
    index_at = data.index(b"\xff", max(stored)) if stored else 0
    for at, bit in itertools.product(range(len(data)), range(8)):
        if at in stored:
            continue
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        with pytest.raises(IntegrityError):
            list(pack_format.read_sequence([bytes(damaged)]))
        if at >= index_at or at < len(pack_format.HEADER):
            objects.put("p", [bytes(damaged)])
            with pytest.raises(IntegrityError):
                pack_format.read_index(objects, "p")


@pytest.mark.parametrize(
    ("records", "field"),
    [
        ([RECORDS[0], RECORDS[0]], "hash"),
        ([(A, compression.MAX_SIZE + 1, Encoded(compression.ZSTD, b"x"), None)], "size"),
        ([(A, 3, Encoded(compression.ZSTD, b"four"), None)], "length"),
        ([(A, 4, Encoded(compression.ZSTD, b"four"), None)], "length"),
        ([(A, 4, Encoded(compression.RAW, b"one"), None)], "length"),
        ([(A, 4, Encoded(compression.LARGE, b"one"), None)], "codec"),
        ([(A, 100, Encoded(compression.DELTA, b"one"), A)], "base"),
    ],
)
def test_a_pack_that_says_what_cannot_be_is_refused(
    objects: ObjectStore, records: list[tuple[Hash, int, Encoded, Hash | None]], field: str
) -> None:
    data = pack_format.encode_pack(records)
    objects.put("p", [data])
    with pytest.raises(FormatError, match=field):
        pack_format.read_index(objects, "p")
    with pytest.raises(FormatError, match=field):
        list(pack_format.read_sequence([data]))


def test_a_newer_version_says_so(objects: ObjectStore) -> None:
    data = bytearray(pack_format.encode_pack(RECORDS))
    data[6] = 2
    objects.put("p", [bytes(data)])
    with pytest.raises(FormatError, match="version: 2"):
        pack_format.read_index(objects, "p")
