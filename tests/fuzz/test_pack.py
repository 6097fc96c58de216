"""I12: whatever the bytes, the decoders of packs and large blobs raise `IntegrityError` or give what the hashes say."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import IntegrityError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.blobs import _large_format as large_format
from holdfast.store.blobs import pack_format
from holdfast.store.blobs.damage_check import check_pack
from holdfast.store.codecs import compression
from holdfast.store.objects.remote_store import open_bucket

TEXTS = [(f"line {n} of a file\n" * (n * 20)).encode() for n in range(1, 5)]
EDITED = TEXTS[3] + b"edited"


def sound_pack() -> bytes:
    records = [(hash_bytes(text), len(text), compression.compress(text), None) for text in TEXTS[:2]]
    records += [(hash_bytes(text), len(text), compression.compress_quick(text), None) for text in TEXTS[2:]]
    delta = compression.difference(EDITED, TEXTS[3])
    assert delta is not None
    return pack_format.encode_pack([*records, (hash_bytes(EDITED), len(EDITED), delta, hash_bytes(TEXTS[3]))])


def sound_large() -> bytes:
    parts = [large_format.HEADER]
    for text in (b"\0" * (1 << 20), TEXTS[0]):
        encoded = compression.compress(text)
        parts += [large_format.encode_chunk(len(text), encoded), encoded.data]
    content = b"\0" * (1 << 20) + TEXTS[0]
    return b"".join([*parts, large_format.encode_trailer(len(content), hash_bytes(content))])


PACK = sound_pack()
LARGE = sound_large()
LARGE_HASH = hash_bytes(b"\0" * (1 << 20) + TEXTS[0])


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(["flip", "cut", "insert", "number", "repeat"]))
        if action == "flip" and at < len(data):
            data[at] ^= draw(st.integers(1, 255))
        elif action == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif action == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=64))
        elif action == "number":
            data[at : at + 4] = struct.pack(
                "<I", draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 23]))
            )
        elif action == "repeat":
            data[at:at] = data[at : at + 40]
    return bytes(data)


def read_pack(data: bytes) -> None:
    objects = open_bucket("memory://")
    objects.put("p", [data])

    def no_base(name: Hash) -> bytes:
        raise IntegrityError(f"no {name.hex()}")

    damage = list(check_pack(objects, "p", no_base))
    found: dict[Hash, bytes] = {}
    try:
        for record, stored in pack_format.read_sequence([data]):
            base = None if record.base is None else found.get(record.base)
            content = compression.decompress(record.codec, stored, record.size, base)
            assert len(content) == record.size
            found[record.hash] = content
    except IntegrityError:
        assert damage, "what the sequence refuses, the check finds"
        return
    wrong = {name for name, content in found.items() if hash_bytes(content) != name}
    assert wrong <= {item.hash for item in damage}


@settings(max_examples=150, deadline=None)
@given(damaged(PACK))
def test_damaged_packs(data: bytes) -> None:
    read_pack(data)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300).map(lambda rest: pack_format.HEADER + rest) | st.binary(max_size=200))
def test_packs_of_noise(data: bytes) -> None:
    read_pack(data)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 255), st.integers(0, 1 << 24), st.binary(max_size=40), st.binary(min_size=16, max_size=16)
        ),
        max_size=5,
    )
)
def test_packs_with_a_right_checksum_and_wrong_contents(records: list[tuple[int, int, bytes, bytes]]) -> None:
    """A stranger can make the checksum right."""
    read_pack(
        pack_format.encode_pack(
            [
                (Hash(name), size, compression.Encoded(number, data), Hash(name[::-1]))
                for number, size, data, name in records
            ]
        )
    )


@settings(max_examples=150, deadline=None)
@given(damaged(LARGE), st.sampled_from([1, 100, 1 << 20]))
def test_damaged_large_blobs(data: bytes, step: int) -> None:
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    try:
        content = b"".join(large_format.decode(pieces, LARGE_HASH))
    except IntegrityError:
        return
    assert hash_bytes(content) == LARGE_HASH
    assert len(data) > 100


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([compression.RAW, compression.LZ4, compression.ZSTD, compression.DELTA, 4, 200]),
    st.binary(max_size=200)
    | damaged(compression.compress(TEXTS[3]).data)
    | damaged(compression.compress_quick(TEXTS[3]).data),
    st.sampled_from([0, 1, 100, len(TEXTS[3]), compression.MAX_SIZE, compression.MAX_SIZE + 1]),
    st.none() | st.binary(max_size=50),
)
def test_codecs(number: int, stored: bytes, size: int, base: bytes | None) -> None:
    try:
        assert len(compression.decompress(number, stored, size, base)) == size
    except IntegrityError:
        return


def test_the_sound_ones_are_sound() -> None:
    read_pack(PACK)
    assert hash_bytes(b"".join(large_format.decode([LARGE], LARGE_HASH))) == LARGE_HASH
    objects = open_bucket("memory://")
    objects.put("p", [PACK])
    assert list(check_pack(objects, "p", lambda name: b"")) == []
