"""Codecs: what goes in comes out, small where it can be, and nothing that is damaged passes."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest
import zstandard

from holdfast.model.errors import FormatError, IntegrityError
from holdfast.store.codecs import compression

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "".join(f"def function_{n}(value: int) -> int:\n    return value * {n}\n\n" for n in range(2000)).encode()
NOISE = random.Random(1).randbytes(100_000)
CONTENTS = [b"", b"a", b"a" * 47, b"a" * 48, b"\0" * 1_000_000, TEXT, TEXT[:200], NOISE, NOISE[:60], NOISE + TEXT]


@pytest.mark.parametrize("encode", [compression.compress, compression.compress_quick])
def test_content_comes_back(encode: Callable[[bytes], compression.Encoded]) -> None:
    for content in CONTENTS:
        encoded = encode(content)
        assert len(encoded.data) <= len(content)
        assert (len(encoded.data) == len(content)) == (encoded.codec == compression.RAW)
        assert compression.decompress(encoded.codec, encoded.data, len(content)) == content
        assert compression.decompress(encoded.codec, memoryview(encoded.data), len(content)) == content


def test_many_at_once_are_as_each_alone() -> None:
    assert compression.compress_many(CONTENTS) == [compression.compress(content) for content in CONTENTS]
    assert compression.compress_many([]) == []
    assert compression.compress_many([b"", b"x"]) == [
        compression.Encoded(compression.RAW, b""),
        compression.Encoded(compression.RAW, b"x"),
    ]


def test_what_does_not_compress_stays_raw() -> None:
    assert compression.compress(NOISE).codec == compression.RAW
    assert compression.compress_quick(NOISE).codec == compression.RAW
    assert compression.compress(TEXT).codec == compression.ZSTD
    assert compression.compress_quick(TEXT).codec == compression.LZ4


@pytest.mark.parametrize(
    "base",
    [NOISE.hex().encode(), NOISE, random.Random(2).randbytes(1 << 20)],
    ids=["200 KB of digits", "100 KB of noise", "1 MiB of noise"],
)
def test_a_small_edit_costs_little(base: bytes) -> None:
    at = len(base) // 2
    edited = base[:at] + b"an edit of a few words" + base[at + 3 :]
    delta = compression.difference(edited, base)
    assert delta is not None
    assert delta.codec == compression.DELTA
    assert compression.smaller(delta, compression.compress(edited)) is delta
    assert len(delta.data) < 100 + len(base) // 500
    assert compression.decompress(compression.DELTA, delta.data, len(edited), base) == edited


def test_a_delta_that_does_not_pay_is_not_kept() -> None:
    plain = compression.compress(TEXT)
    unlike = compression.difference(TEXT, NOISE)
    assert unlike is not None
    assert compression.smaller(unlike, plain) is plain
    assert compression.difference(TEXT, b"") is None
    assert compression.difference(b"short content", b"short content.") is None
    assert compression.smaller(None, plain) is plain
    little = compression.compress(b"little" * 99)
    assert compression.smaller(compression.Encoded(compression.DELTA, b""), little) is little


def test_a_delta_that_surely_pays_is_one_that_pays() -> None:
    edited = NOISE[:500] + b"an edit" + NOISE[500:]
    small = compression.difference(edited, NOISE)
    assert small is not None
    assert compression.pays_surely(small, edited)
    assert compression.smaller(small, compression.compress(edited)) is small
    # What compresses by itself is not known to take more than the delta until it was compressed.
    zeros = bytes(100_000)
    alone = compression.difference(zeros, NOISE)
    assert alone is not None
    assert len(alone.data) * 100 < len(zeros)
    assert not compression.pays_surely(alone, zeros)
    unlike = compression.difference(NOISE, TEXT)
    assert unlike is not None
    assert not compression.pays_surely(unlike, NOISE)


def test_a_delta_against_the_wrong_base_is_damage_or_other_content() -> None:
    edited = TEXT + b"more"
    delta = compression.difference(edited, TEXT)
    assert delta is not None
    with pytest.raises(IntegrityError):
        compression.decompress(compression.DELTA, delta.data, len(edited))
    with pytest.raises(IntegrityError):
        compression.decompress(compression.DELTA, delta.data, len(edited), b"short")
    assert compression.decompress(compression.DELTA, delta.data, len(edited), TEXT[::-1]) != edited


@pytest.mark.parametrize("change", [-1, 1, 1000])
@pytest.mark.parametrize("number", [compression.RAW, compression.LZ4, compression.ZSTD])
def test_another_size_than_declared_is_damage(number: int, change: int) -> None:
    encode = {
        compression.RAW: lambda data: compression.Encoded(compression.RAW, data),
        compression.LZ4: compression.compress_quick,
        compression.ZSTD: compression.compress,
    }
    encoded = encode[number](TEXT)
    assert encoded.codec == number
    with pytest.raises(IntegrityError):
        compression.decompress(number, encoded.data, len(TEXT) + change)


def test_a_frame_that_declares_a_huge_size_is_refused_before_it_is_decoded() -> None:
    """I12."""
    bomb = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + b"\0\0\0"
    for size in (0, 10, compression.MAX_SIZE):
        with pytest.raises(IntegrityError):
            compression.decompress(compression.ZSTD, bomb, size)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 1000)
    with pytest.raises(IntegrityError):
        compression.decompress(compression.ZSTD, unsized, 1000)
    with pytest.raises(FormatError):
        compression.decompress(compression.RAW, b"", compression.MAX_SIZE + 1)
    with pytest.raises(FormatError):
        compression.decompress(compression.RAW, b"", -1)
    for unknown in (compression.LARGE, 5, 255, -1):
        with pytest.raises(FormatError):
            compression.decompress(unknown, b"", 0)


def test_bytes_behind_a_frame_are_damage() -> None:
    with pytest.raises(IntegrityError):
        compression.decompress(compression.ZSTD, compression.compress(TEXT).data + b"x", len(TEXT))
