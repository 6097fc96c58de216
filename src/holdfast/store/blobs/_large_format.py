"""The format of a blob that is an object of its own. Specified in ``docs/formats/objects.md``."""

from __future__ import annotations

import struct

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import Hash, Hasher
from holdfast.store.blobs._byte_chunks import PieceReader
from holdfast.store.codecs.compression import RAW, ZSTD, decompress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.store.codecs.compression import Encoded

MAGIC = b"HFBLOB"
END_MAGIC = b"HFBE"
VERSION = 1
HEADER = MAGIC + VERSION.to_bytes(2, "little")

_CHUNK = struct.Struct("<BII")
_TRAILER = struct.Struct("<BQ16s4s")
_MARKER = 0xFF


def encode_chunk(size: int, encoded: Encoded) -> bytes:
    """The head of a chunk of ``size`` bytes of content; ``encoded.data`` follows it."""
    return _CHUNK.pack(encoded.codec, size, len(encoded.data))


def encode_trailer(size: int, hash: Hash) -> bytes:  # noqa: A002 - the field's own name
    """The end of an object with ``size`` bytes of content and this hash."""
    return _TRAILER.pack(_MARKER, size, hash, END_MAGIC)


TRAILER_BYTES = _TRAILER.size


def parse_trailer(trailer: bytes, name: Hash) -> int:
    """How much content an object that ends so holds, the blob ``name``; raises `FormatError` and `IntegrityError`."""
    if len(trailer) != _TRAILER.size:
        raise FormatError("trailer: it is cut short")
    marker, size, found, magic = _TRAILER.unpack(trailer)
    if marker != _MARKER or magic != END_MAGIC:
        raise FormatError("trailer: there is none")
    if found != name:
        raise IntegrityError(f"hash: the object holds {found.hex()} instead of {name.hex()}")
    return size


def decode(pieces: Iterable[bytes], expected: Hash, size: int | None = None) -> Iterator[bytes]:
    """The content, in chunks of at most `CHUNK_BYTES`, of the object in ``pieces``.

    The hash is verified after the last chunk: exhaust the iterator before you use the content. Raises `FormatError` or
    `IntegrityError`; memory is bounded by one chunk and one piece (I12).
    """
    buffer = PieceReader(pieces)
    header = buffer.take(len(HEADER))
    if header[: len(MAGIC)] != MAGIC:
        raise FormatError("magic: this is no large blob")
    if header != HEADER:
        version = int.from_bytes(header[len(MAGIC) :], "little")
        raise FormatError(f"version: {version} is not {VERSION}: a newer Holdfast may have written this blob")
    hasher = Hasher()
    total = 0
    last = CHUNK_BYTES
    while (codec := buffer.take(1)[0]) != _MARKER:
        content_bytes, length = struct.unpack("<II", buffer.take(_CHUNK.size - 1))
        if last != CHUNK_BYTES or not 0 < content_bytes <= CHUNK_BYTES:
            raise FormatError(f"size: a chunk of {content_bytes} bytes after one of {last}")
        if codec > ZSTD:
            raise FormatError(f"codec: {codec} is none that a chunk may have")
        if length > content_bytes or (length == content_bytes) != (codec == RAW):
            raise FormatError(f"length: {length} stored bytes cannot be {content_bytes} in codec {codec}")
        content = decompress(codec, buffer.take(length), content_bytes)
        hasher.update(content)
        last = content_bytes
        total += content_bytes
        if size is not None and total > size:
            raise IntegrityError(f"size: the object holds more than the {size} bytes that it should")
        yield content
    trailer = bytes([_MARKER]) + buffer.take(_TRAILER.size - 1)
    if not buffer.at_end():
        raise FormatError("trailer: bytes follow it")
    if trailer != encode_trailer(total, hasher.hash()):
        raise IntegrityError("trailer: size, hash or magic is not that of the content")
    if hasher.hash() != expected or (size is not None and size != total):
        raise IntegrityError(f"hash: the object holds {hasher.hash().hex()} instead of {expected.hex()}")
