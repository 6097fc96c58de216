"""Objects that are encrypted before they leave this process: names, and about how large they are, stay visible."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import IO, TYPE_CHECKING, cast

from holdfast.model.errors import FormatError, IntegrityError, NotFoundError, UsageError
from holdfast.store.objects._encryption_format import (
    CHUNK_BYTES,
    HEADER_BYTES,
    STORED_CHUNK,
    Opener,
    Sealer,
    chunks_in,
    decrypted,
    plain_size,
)
from holdfast.store.objects._upload_spool import UploadSpool
from holdfast.store.objects.object_keys import check_key
from holdfast.store.objects.object_store import ObjectInfo, is_remote, put_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.store.objects._encryption_keys import EncryptionKeys
    from holdfast.store.objects.object_store import ObjectStore, Upload
    from holdfast.store.objects.remote_store import RemoteObjects

_REMEMBERED = 1024
"""Objects whose keys are kept, so that another range of one is a single request."""
_FIRST_BYTES = 4096
_PIECE_BYTES = 1 << 20


class EncryptedObjects:
    """An `ObjectStore` in front of another, which gets only encrypted data.

    All sizes are those of the content. A damaged, swapped or truncated object raises `IntegrityError` when the wrong
    part is read, an unencrypted one `FormatError`.
    """

    def __init__(self, inner: ObjectStore, keys: EncryptionKeys, *, scratch: str | None = None) -> None:
        self.inner = inner
        self.keys = keys
        self.far = is_remote(inner)
        self._scratch = scratch
        self._lock = Lock()
        self._openers: OrderedDict[str, tuple[Opener, int]] = OrderedDict()
        """By key: what decrypts the object, and its stored size."""

    def upload(self) -> Upload:
        """See `ObjectStore.upload`."""
        return _EncryptedUpload(self.inner, self.keys, self._scratch, self._forget)

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """See `ObjectStore.put`."""
        put_parts(self, check_key(key), parts)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        if offset < 0 or (length is not None and length < 0):
            raise UsageError(f"bad range of object {key}: {length} bytes at {offset}")
        if length is None and not offset:
            return b"".join(self.stream(key))
        remembered = key in self._openers
        try:
            return self._range(key, offset, length)
        except IntegrityError:
            if not remembered and not hasattr(self.inner, "drop"):
                raise
        # It may have been rewritten under the same name with the same content: then it has another key of its own.
        self._forget(key)
        drop = getattr(self.inner, "drop", None)
        if drop is not None:
            drop(key)
        return self._range(key, offset, length)

    def _range(self, key: str, offset: int, length: int | None) -> bytes:
        opener, stored = self._opener(key)
        size = plain_size(stored)
        end = size if length is None else offset + length
        if offset > size or end > size:
            raise IntegrityError(f"object {key} is too short: {length} bytes at {offset} of {size}")
        if end == offset:
            return b""
        first, last = offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        begin = HEADER_BYTES + first * STORED_CHUNK
        until = min(HEADER_BYTES + (last + 1) * STORED_CHUNK, stored)
        data = memoryview(self.inner.get(key, begin, until - begin))
        final = chunks_in(stored) - 1
        content = b"".join(
            opener.chunk(
                number,
                bytes(data[(number - first) * STORED_CHUNK : (number - first + 1) * STORED_CHUNK]),
                last=number == final,
            )
            for number in range(first, last + 1)
        )
        at = offset - first * CHUNK_BYTES
        return content[at : at + end - offset]

    def stream(self, key: str) -> Iterator[bytes]:
        """See `ObjectStore.stream`."""
        parts: list[bytes] = []
        have = 0
        for content in decrypted(self.inner.stream(key), key, self.keys.known):
            parts.append(content)
            have += len(content)
            if have + CHUNK_BYTES > _PIECE_BYTES:
                yield b"".join(parts)
                parts, have = [], 0
        if parts:
            yield b"".join(parts)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        stored = self.inner.size(key)
        return None if stored is None else plain_size(stored)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._forget(key)
        self.inner.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        for info in self.inner.list(prefix):
            yield info._replace(size=plain_size(info.size))

    def clean(self, older_than: int) -> int:
        """See `ObjectStore.clean`."""
        return self.inner.clean(older_than)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._openers.pop(key, None)

    def _opener(self, key: str) -> tuple[Opener, int]:
        with self._lock:
            found = self._openers.get(key)
            if found is not None:
                self._openers.move_to_end(key)
                return found
        window = getattr(self.inner, "window", None)
        try:
            if window is not None:
                head, stored = cast("RemoteObjects", self.inner).window(key, 0, _FIRST_BYTES)
            else:
                size = self.inner.size(key)
                if size is None:
                    raise NotFoundError(f"no object {key}")
                stored = size
                head = self.inner.get(key, 0, min(HEADER_BYTES, stored))
        except IntegrityError:
            if self.inner.size(key) != 0:
                raise
            head, stored = b"", 0
        if stored < HEADER_BYTES:
            raise FormatError(f"header: {key} is shorter than the header of an encrypted object")
        made = Opener(head[:HEADER_BYTES], key, self.keys.known), stored
        with self._lock:
            self._openers[key] = made
            if len(self._openers) > _REMEMBERED:
                self._openers.popitem(last=False)
        return made


class _EncryptedUpload:
    """An object that is encrypted as it comes, and collected until its name is known; nothing else is on a disk."""

    __slots__ = ("_committed", "_inner", "_keys", "_sealer", "_spool")

    def __init__(
        self, inner: ObjectStore, keys: EncryptionKeys, scratch: str | None, committed: Callable[[str], None]
    ) -> None:
        self._inner = inner
        self._keys = keys
        self._committed = committed
        self._sealer = Sealer(os.urandom)
        self._spool = UploadSpool(scratch)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Upload.write`."""
        self._spool.write(self._sealer.write(data))

    def commit(self, key: str) -> None:
        """See `Upload.commit`."""
        try:
            check_key(key)
            self._spool.write(self._sealer.end())
            spool, _ = self._spool.rewound()
            self._inner.put(key, _after(self._sealer.header(key, self._keys.current), spool))
            self._committed(key)
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._spool.close()


def _after(head: bytes, spool: IO[bytes]) -> Iterator[bytes]:
    yield head
    while piece := spool.read(_PIECE_BYTES):
        yield piece
