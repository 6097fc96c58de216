"""Reading any part of a blob that is an object of its own (docs/formats/objects.md), without the rest in memory."""

from __future__ import annotations

import struct
from threading import Lock
from typing import TYPE_CHECKING, Final

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.ids import Hasher, format_hash
from holdfast.store.blobs import _large_format as large_format
from holdfast.store.codecs.compression import RAW, ZSTD, decompress

if TYPE_CHECKING:
    from holdfast.model.ids import Hash
    from holdfast.store.catalog_records import BlobLocation
    from holdfast.store.objects.object_store import ObjectStore

_HEAD: Final = struct.Struct("<BII")
_AHEAD_BYTES: Final = 4 << 20
"""Read at once by a reader that goes on where the last chunk ended."""


def content_size(objects: ObjectStore, name: Hash, key: str, stored: int) -> int:
    """How much content the large blob ``name`` has, by the end of its object of ``stored`` bytes.

    Raises `IntegrityError` if that is not the end of this blob; `NotFoundError` if there is no such object.
    """
    length = large_format.TRAILER_BYTES
    return large_format.parse_trailer(objects.get(key, max(0, stored - length), length), name)


class LargeBlob:
    """One large blob, chunk by chunk. Any number of threads may use it; they take turns.

    Its hash covers the whole: it is verified when the last chunk is read after all others in order, and that chunk is
    withheld if the hash is wrong. Other chunks are verified only by their codec.
    """

    def __init__(self, objects: ObjectStore, name: Hash, location: BlobLocation) -> None:
        self._objects = objects
        self._name = name
        self._key = location.key
        self._size = location.size
        self._end = location.length
        self._turn = Lock()
        self._heads = [len(large_format.HEADER)]
        """Where the head of each chunk is, as far as that is known."""
        self._hasher = Hasher()
        self._hashed = 0
        """The number of hashed chunks."""
        self._is_damaged = False
        self._following = -1
        """The chunk after the last requested one."""
        self._ahead = 0
        self._window = b""
        self._window_at = 0

    @property
    def chunks(self) -> int:
        """Number of chunks, each of `CHUNK_BYTES` except the last."""
        return -(-self._size // CHUNK_BYTES)

    def chunk(self, index: int) -> bytes:
        """The content of one chunk. Raises `IntegrityError`; `NotFoundError` if the object is gone."""
        with self._turn:
            try:
                return self._chunk(index)
            except IntegrityError as error:
                raise type(error)(f"blob {format_hash(self._name)} in {self._key}: {error.message}") from error

    def _chunk(self, index: int) -> bytes:
        if self._is_damaged:
            raise IntegrityError("hash: the content differs from the saved content")
        self._ahead = _AHEAD_BYTES if index == self._following else 0
        self._following = index + 1
        if len(self._heads) == 1:
            self._check_header()
        while len(self._heads) <= index + 1:
            _, _, length = self._head(len(self._heads) - 1)
            self._heads.append(self._heads[-1] + _HEAD.size + length)
        codec, size, length = self._head(index)
        content = decompress(codec, self._bytes(self._heads[index] + _HEAD.size, length), size)
        if index == self._hashed:
            self._verify(content)
        return content

    def _check_header(self) -> None:
        if self._bytes(0, len(large_format.HEADER)) != large_format.HEADER:
            raise FormatError("magic: this is no large blob of a known version")

    def _head(self, index: int) -> tuple[int, int, int]:
        codec, size, length = _HEAD.unpack(self._bytes(self._heads[index], _HEAD.size))
        if size != min(CHUNK_BYTES, self._size - index * CHUNK_BYTES):
            raise FormatError(f"size: chunk {index} has {size} bytes")
        if codec > ZSTD or length > size or (length == size) != (codec == RAW):
            raise FormatError(f"length: {length} stored bytes cannot be {size} in codec {codec}")
        return codec, size, length

    def _verify(self, content: bytes) -> None:
        """Take in the next chunk; after the last one, raise `IntegrityError` if all of them are not the blob."""
        self._hasher.update(content)
        self._hashed += 1
        if self._hashed == self.chunks:
            trailer = large_format.encode_trailer(self._size, self._name)
            self._is_damaged = (
                self._hasher.hash() != self._name or self._bytes(self._heads[-1], len(trailer)) != trailer
            )
        if self._is_damaged:
            raise IntegrityError("hash: the content differs from the saved content")

    def _bytes(self, offset: int, length: int) -> bytes:
        """Stored bytes; from the read-ahead, as far as possible."""
        begin = offset - self._window_at
        if begin >= 0 and begin + length <= len(self._window):
            return self._window[begin : begin + length]
        if offset + length > self._end:
            raise FormatError(f"cut short: {offset + length - self._end} bytes are missing")
        wanted = min(max(length, self._ahead), self._end - offset)
        self._window, self._window_at = self._objects.get(self._key, offset, wanted), offset
        return self._window[:length]
