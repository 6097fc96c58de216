"""Encodes and decodes the content of one blob. The codecs are specified in ``docs/formats/objects.md``.

Imports neither lz4 nor zstandard before one is needed.
"""

from __future__ import annotations

import threading

from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zstandard import ZstdCompressor, ZstdDecompressor

RAW = 0
LZ4 = 1
ZSTD = 2
DELTA = 3
LARGE = 4
"""A blob in an object of its own: see `holdfast.store.blobs._large_format`. Never inside a pack."""

NAMES = ("raw", "lz4", "zstd", "delta", "large")

MAX_SIZE = 8 << 20
"""The most content, in bytes, that one encoded piece may hold."""

_LEVEL = 1
_DELTA_LEVEL = 3
_SMALL_DELTA_LEVEL = 4
"""Quicker than 3 as long as content is short, and as good."""
_SMALL_DELTA = 64 << 10
_LEAST = 48
"""Below this size a frame's header costs more than compression saves."""
_BEGINNING = 1024
"""So much of the content is compressed to learn that all of it would take more than a delta."""
_SURE = 4
"""The beginning must take this many times the delta: within the whole it may take less than alone."""


class Encoded(NamedTuple):
    """Content as it is stored."""

    codec: int
    data: bytes


class _Contexts(threading.local):
    """Compression contexts are costly to make and belong to one thread at a time."""

    compressor: ZstdCompressor | None = None
    decompressor: ZstdDecompressor | None = None


_contexts = _Contexts()


def _compressor() -> ZstdCompressor:
    compressor = _contexts.compressor
    if compressor is None:
        from holdfast.store.codecs.zstandard import zstandard

        compressor = _contexts.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return compressor


def decompressor() -> ZstdDecompressor:
    """The thread's own, for frames without a dictionary. To make one takes longer than a short frame does."""
    found = _contexts.decompressor
    if found is None:
        from holdfast.store.codecs.zstandard import zstandard

        found = _contexts.decompressor = zstandard.ZstdDecompressor()
    return found


class _Block(Protocol):
    LZ4BlockError: type[Exception]

    def compress(self, source: bytes, *, store_size: bool) -> bytes: ...

    def decompress(self, source: bytes | memoryview, *, uncompressed_size: int) -> bytes: ...


def _lz4() -> _Block:
    from lz4 import block

    return block


def compress(data: bytes) -> Encoded:
    """Encode the content of a file: zstd if that saves at least one byte in 32, else raw."""
    if len(data) < _LEAST:
        return Encoded(RAW, data)
    return _smaller(data, _compressor().compress(data))


def compress_many(contents: Sequence[bytes]) -> list[Encoded]:
    """`compress` for each of ``contents``, in order. The interpreter is free for other threads nearly all the time."""
    worth = [data for data in contents if len(data) >= _LEAST]
    if not worth:
        return [Encoded(RAW, data) for data in contents]
    packed = iter(_compressor().multi_compress_to_buffer(worth, threads=1))  # pyright: ignore[reportArgumentType] - wants list[ByteString]
    return [_smaller(data, next(packed).tobytes()) if len(data) >= _LEAST else Encoded(RAW, data) for data in contents]


def compress_quick(data: bytes) -> Encoded:
    """Encode a page: LZ4 if that saves at least one byte in 32, else raw."""
    if len(data) < _LEAST:
        return Encoded(RAW, data)
    packed = _lz4().compress(data, store_size=False)
    return Encoded(LZ4, packed) if len(packed) <= len(data) - (len(data) >> 5) else Encoded(RAW, data)


def difference(data: bytes, base: bytes) -> Encoded | None:
    """``data`` as a difference against ``base``; None if it is too short for that to pay."""
    if len(data) < _LEAST * 2 or not base:
        return None
    from holdfast.store.codecs.zstandard import zstandard

    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    level = _SMALL_DELTA_LEVEL if len(data) <= _SMALL_DELTA else _DELTA_LEVEL
    compressor = zstandard.ZstdCompressor(level=level, dict_data=dictionary, write_dict_id=False)
    return Encoded(DELTA, compressor.compress(data))


def pays_surely(delta: Encoded, data: bytes) -> bool:
    """True if `smaller` would choose ``delta``, told by the beginning of ``data`` alone, which takes far more."""
    if len(delta.data) * _SURE >= min(len(data), _BEGINNING):
        return False
    return len(_compressor().compress(data[:_BEGINNING])) > len(delta.data) * _SURE


def smaller(delta: Encoded | None, plain: Encoded) -> Encoded:
    """``delta`` if it takes less than half of ``plain``; else ``plain``, which is read without another blob."""
    if delta is None or len(plain.data) < _LEAST * 2:
        return plain
    return delta if len(delta.data) < len(plain.data) // 2 else plain


def _smaller(data: bytes, packed: bytes) -> Encoded:
    return Encoded(ZSTD, packed) if len(packed) <= len(data) - (len(data) >> 5) else Encoded(RAW, data)


def decompress(codec: int, stored: bytes | memoryview, size: int, base: bytes | None = None) -> bytes:
    """The content, of exactly ``size`` bytes, encoded in ``stored``; ``base`` is the base's content for `DELTA`.

    Never allocates more than ``size`` bytes for the content (I12). Raises `FormatError` for an invalid codec or size,
    and `IntegrityError` if ``stored`` is damaged. The caller must verify the content's hash.
    """
    if not 0 <= size <= MAX_SIZE:
        raise FormatError(f"size: {size} bytes of content are more than {MAX_SIZE}")
    if codec == RAW:
        content = bytes(stored)
    elif codec == LZ4:
        content = _decompress_lz4(stored, size)
    elif codec == ZSTD:
        content = _decompress_zstd(stored, size, None)
    elif codec == DELTA:
        if base is None:
            raise IntegrityError("a delta cannot be decoded without the content of its base")
        content = _decompress_zstd(stored, size, base)
    else:
        raise FormatError(f"codec: {codec} is none that a blob in a pack may have")
    if len(content) != size:
        raise IntegrityError(f"{NAMES[codec]}: {len(content)} bytes of content instead of {size}")
    return content


def _decompress_lz4(stored: bytes | memoryview, size: int) -> bytes:
    block = _lz4()
    try:
        return block.decompress(stored, uncompressed_size=size)
    except (block.LZ4BlockError, MemoryError) as error:
        raise IntegrityError(f"lz4: the stored bytes are damaged: {error}") from error


def _decompress_zstd(stored: bytes | memoryview, size: int, base: bytes | None) -> bytes:
    from holdfast.store.codecs.zstandard import zstandard

    try:
        declared = zstandard.frame_content_size(stored)
        if declared != size:
            # Checked first: the decoder allocates what the frame declares.
            raise IntegrityError(f"zstd: the frame declares {declared} bytes of content instead of {size}")
        if base is not None:
            dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(stored, allow_extra_data=False)
        return decompressor().decompress(stored, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise IntegrityError(f"zstd: the stored bytes are damaged: {error}") from error
