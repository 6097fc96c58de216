"""Any part of a large blob, without the rest: what is read, and what is noticed of damage."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import IntegrityError, NotFoundError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.blobs import _large_format as large_format
from holdfast.store.blobs.large_blob import LargeBlob
from holdfast.store.catalog_records import BlobLocation
from holdfast.store.codecs.compression import LARGE, compress
from holdfast.store.objects._local_store import LocalObjects

if TYPE_CHECKING:
    from pathlib import Path

KEY = "blobs/t/a"
CONTENT = b"".join(
    random.Random(number).randbytes(CHUNK_BYTES) if number % 3 else bytes([number]) * CHUNK_BYTES for number in range(9)
)[: 8 * CHUNK_BYTES + 12345]
NAME = hash_bytes(CONTENT)


class CountingObjects(LocalObjects):
    """Notes how much is read."""

    reads: list[int]

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, offset, length)
        self.reads.append(len(data))
        return data


def encoded(content: bytes) -> bytes:
    parts = [large_format.HEADER]
    for at in range(0, len(content), CHUNK_BYTES):
        chunk = content[at : at + CHUNK_BYTES]
        stored = compress(chunk)
        parts += [large_format.encode_chunk(len(chunk), stored), stored.data]
    return b"".join([*parts, large_format.encode_trailer(len(content), hash_bytes(content))])


def stored(place: Path, data: bytes, name: Hash = NAME) -> tuple[LargeBlob, CountingObjects]:
    objects = CountingObjects(bytes(place))
    objects.reads = []
    objects.put(KEY, [data])
    return LargeBlob(objects, name, BlobLocation(KEY, 0, len(data), LARGE, len(CONTENT), None)), objects


def read_all(blob: LargeBlob) -> None:
    for index in range(blob.chunks):
        blob.chunk(index)


def chunk(index: int) -> bytes:
    return CONTENT[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def test_chunks_come_in_any_order(tmp_path: Path) -> None:
    blob, _ = stored(tmp_path, encoded(CONTENT))
    assert blob.chunks == 9
    order = [*range(9)] * 3
    random.Random(1).shuffle(order)
    for index in order:
        assert blob.chunk(index) == chunk(index)


def test_one_chunk_costs_itself_and_the_heads_before_it(tmp_path: Path) -> None:
    blob, objects = stored(tmp_path, encoded(CONTENT))
    assert blob.chunk(7) == chunk(7)
    assert sum(objects.reads) < CHUNK_BYTES + 1000


def test_whoever_goes_on_reads_ahead(tmp_path: Path) -> None:
    blob, objects = stored(tmp_path, encoded(CONTENT))
    for index in range(9):
        assert blob.chunk(index) == chunk(index)
    assert len(objects.reads) < 9
    assert max(objects.reads) <= 5 << 20


def test_what_is_another_content_is_noticed_with_the_last_chunk_and_stays_so(tmp_path: Path) -> None:
    blob, _ = stored(tmp_path, encoded(CONTENT), hash_bytes(b"another"))
    for index in range(8):
        assert blob.chunk(index) == chunk(index)
    for index in (8, 8, 0):
        with pytest.raises(IntegrityError, match="differs from the saved content"):
            blob.chunk(index)


@pytest.mark.parametrize("at", [0, 6, 8, 10, 13, 16, -5, -20])
def test_a_wrong_byte_in_what_is_around_the_content_is_noticed(tmp_path: Path, at: int) -> None:
    data = bytearray(encoded(CONTENT))
    data[at] ^= 0x55
    blob, _ = stored(tmp_path, bytes(data))
    with pytest.raises(IntegrityError, match=KEY):
        read_all(blob)


@pytest.mark.parametrize("length", [0, 8, 20, CHUNK_BYTES, 5 * CHUNK_BYTES, -1])
def test_an_object_that_is_cut_short_is_noticed(tmp_path: Path, length: int) -> None:
    blob, _ = stored(tmp_path, encoded(CONTENT)[:length])
    with pytest.raises(IntegrityError):
        read_all(blob)


def test_an_object_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    blob, objects = stored(tmp_path, encoded(CONTENT))
    objects.delete(KEY)
    with pytest.raises(NotFoundError):
        blob.chunk(0)
