"""Codecs: what goes in comes out, small where it can be, and nothing that is damaged passes."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest
import zstandard

from holdfast.model.errors import FormatError, IntegrityError
from holdfast.store import codec

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "".join(f"def function_{n}(value: int) -> int:\n    return value * {n}\n\n" for n in range(2000)).encode()
NOISE = random.Random(1).randbytes(100_000)
CONTENTS = [b"", b"a", b"a" * 47, b"a" * 48, b"\0" * 1_000_000, TEXT, TEXT[:200], NOISE, NOISE[:60], NOISE + TEXT]


@pytest.mark.parametrize("encode", [codec.compress, codec.compress_quick])
def test_content_comes_back(encode: Callable[[bytes], codec.Encoded]) -> None:
    for content in CONTENTS:
        encoded = encode(content)
        assert len(encoded.data) <= len(content)
        assert (len(encoded.data) == len(content)) == (encoded.codec == codec.RAW)
        assert codec.decompress(encoded.codec, encoded.data, len(content)) == content
        assert codec.decompress(encoded.codec, memoryview(encoded.data), len(content)) == content


def test_many_at_once_are_as_each_alone() -> None:
    assert codec.compress_many(CONTENTS) == [codec.compress(content) for content in CONTENTS]
    assert codec.compress_many([]) == []
    assert codec.compress_many([b"", b"x"]) == [codec.Encoded(codec.RAW, b""), codec.Encoded(codec.RAW, b"x")]


def test_what_does_not_compress_stays_raw() -> None:
    assert codec.compress(NOISE).codec == codec.RAW
    assert codec.compress_quick(NOISE).codec == codec.RAW
    assert codec.compress(TEXT).codec == codec.ZSTD
    assert codec.compress_quick(TEXT).codec == codec.LZ4


@pytest.mark.parametrize(
    "base",
    [NOISE.hex().encode(), NOISE, random.Random(2).randbytes(1 << 20)],
    ids=["200 KB of digits", "100 KB of noise", "1 MiB of noise"],
)
def test_a_small_edit_costs_little(base: bytes) -> None:
    at = len(base) // 2
    edited = base[:at] + b"an edit of a few words" + base[at + 3 :]
    delta = codec.difference(edited, base)
    assert delta is not None
    assert delta.codec == codec.DELTA
    assert codec.smaller(delta, codec.compress(edited)) is delta
    assert len(delta.data) < 100 + len(base) // 500
    assert codec.decompress(codec.DELTA, delta.data, len(edited), base) == edited


def test_a_delta_that_does_not_pay_is_not_kept() -> None:
    plain = codec.compress(TEXT)
    unlike = codec.difference(TEXT, NOISE)
    assert unlike is not None
    assert codec.smaller(unlike, plain) is plain
    assert codec.difference(TEXT, b"") is None
    assert codec.difference(b"short content", b"short content.") is None
    assert codec.smaller(None, plain) is plain
    little = codec.compress(b"little" * 99)
    assert codec.smaller(codec.Encoded(codec.DELTA, b""), little) is little


def test_a_delta_that_surely_pays_is_one_that_pays() -> None:
    edited = NOISE[:500] + b"an edit" + NOISE[500:]
    small = codec.difference(edited, NOISE)
    assert small is not None
    assert codec.pays_surely(small, edited)
    assert codec.smaller(small, codec.compress(edited)) is small
    # What compresses by itself is not known to take more than the delta until it was compressed.
    zeros = bytes(100_000)
    alone = codec.difference(zeros, NOISE)
    assert alone is not None
    assert len(alone.data) * 100 < len(zeros)
    assert not codec.pays_surely(alone, zeros)
    unlike = codec.difference(NOISE, TEXT)
    assert unlike is not None
    assert not codec.pays_surely(unlike, NOISE)


def test_a_delta_against_the_wrong_base_is_damage_or_other_content() -> None:
    edited = TEXT + b"more"
    delta = codec.difference(edited, TEXT)
    assert delta is not None
    with pytest.raises(IntegrityError):
        codec.decompress(codec.DELTA, delta.data, len(edited))
    with pytest.raises(IntegrityError):
        codec.decompress(codec.DELTA, delta.data, len(edited), b"short")
    assert codec.decompress(codec.DELTA, delta.data, len(edited), TEXT[::-1]) != edited


@pytest.mark.parametrize("change", [-1, 1, 1000])
@pytest.mark.parametrize("number", [codec.RAW, codec.LZ4, codec.ZSTD])
def test_another_size_than_declared_is_damage(number: int, change: int) -> None:
    encode = {
        codec.RAW: lambda data: codec.Encoded(codec.RAW, data),
        codec.LZ4: codec.compress_quick,
        codec.ZSTD: codec.compress,
    }
    encoded = encode[number](TEXT)
    assert encoded.codec == number
    with pytest.raises(IntegrityError):
        codec.decompress(number, encoded.data, len(TEXT) + change)


def test_a_frame_that_declares_a_huge_size_is_refused_before_it_is_decoded() -> None:
    """I12."""
    bomb = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + b"\0\0\0"
    for size in (0, 10, codec.MAX_SIZE):
        with pytest.raises(IntegrityError):
            codec.decompress(codec.ZSTD, bomb, size)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 1000)
    with pytest.raises(IntegrityError):
        codec.decompress(codec.ZSTD, unsized, 1000)
    with pytest.raises(FormatError):
        codec.decompress(codec.RAW, b"", codec.MAX_SIZE + 1)
    with pytest.raises(FormatError):
        codec.decompress(codec.RAW, b"", -1)
    for unknown in (codec.LARGE, 5, 255, -1):
        with pytest.raises(FormatError):
            codec.decompress(unknown, b"", 0)


def test_bytes_behind_a_frame_are_damage() -> None:
    with pytest.raises(IntegrityError):
        codec.decompress(codec.ZSTD, codec.compress(TEXT).data + b"x", len(TEXT))
