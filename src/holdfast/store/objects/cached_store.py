"""A cache of remote objects on this machine's disk: recently read or written parts need no request.

Objects never change under their keys, so the cache cannot be out of date. It is bounded by bytes, private (0700, 0600),
shared by processes, and may be deleted at any time. Each file is one block of one object, written under another name
and renamed; its checksum is verified at every read, so nothing is synced. If the disk fails, there is no cache. The
layout is specified in ``docs/formats/object-cache.md``.

Operations that verify the store (`holdfast verify`, collection) read the bucket itself.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from blake3 import blake3

from holdfast.model.errors import IntegrityError, UsageError
from holdfast.model.log import Log
from holdfast.store.objects._local_store import LocalObjects
from holdfast.store.objects.object_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.store.objects.object_store import ObjectInfo, ObjectStore, Upload

    class RemoteObjectStore(ObjectStore, Protocol):
        """An object store that tells an object's size with any part of it."""

        name: str

        def window(self, key: str, offset: int, length: int) -> tuple[bytes, int]:
            """See `RemoteObjects.window`."""
            ...


_LOG = Log(__name__)

MAGIC = b"HFCACH"
VERSION = 1
BLOCK_BYTES = 1 << 20
MOST_TEED = 8 << 20
"""A larger object is not put here when it is written."""
_HEAD = struct.Struct("<6sHQ16s")
_NAME_DIGITS = 40
_TEMPORARY_LASTS = 3600.0
_TOUCH_AFTER = 60.0
_SHARE = 16
"""The share of the limit that one process may add before it checks the total size."""


class CachedObjects:
    """An `ObjectStore` before a far one, with a cache of at most ``max_bytes`` in the directory ``folder``.

    Each process may go beyond the limit by a sixteenth of it. ``clock`` gives seconds, as files' times have them.
    """

    far = True

    def __init__(
        self, inner: RemoteObjectStore, folder: bytes, max_bytes: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self._folder = os.fsdecode(folder)
        self._max_bytes = max_bytes
        self._clock = clock
        self._unseen = max_bytes
        """Bytes that this process has put here since it last looked how much there is; at first it has to look."""
        self._works = True

    def upload(self) -> Upload:
        """See `ObjectStore.upload`."""
        return _TeedUpload(self.inner.upload(), self._keep)

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """See `ObjectStore.put`."""
        seen = bytearray()
        small = True

        def noting() -> Iterator[bytes]:
            nonlocal small
            for part in parts:
                small = small and len(seen) + len(part) <= MOST_TEED
                if small:
                    seen.extend(part)
                yield part

        self.inner.put(key, noting())
        self._keep(key, bytes(seen) if small else None)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        if length is None or not length:
            return self.inner.get(key, offset, length)
        if offset < 0 or length < 0:
            raise UsageError(f"bad range of object {key}: {length} bytes at {offset}")
        data, size = self.window(key, offset, length)
        if len(data) != length:
            raise IntegrityError(f"object {key} is too short: {length} bytes expected at {offset} of {size}")
        return data

    def window(self, key: str, offset: int, length: int) -> tuple[bytes, int]:
        """See `RemoteObjects.window`: one request for all that is not here."""
        check_key(key)
        if length > MOST_TEED:
            return self.inner.window(key, offset, length)
        first, last = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES
        blocks: dict[int, bytes] = {}
        size: int | None = None
        for number in range(first, last + 1):
            found = self._read(key, number) if size is None or number * BLOCK_BYTES < size else None
            if found is not None:
                blocks[number], size = found
        wanted = [
            number
            for number in range(first, last + 1)
            if number not in blocks and (size is None or number * BLOCK_BYTES < size)
        ]
        if wanted:
            begin = wanted[0] * BLOCK_BYTES
            data, there = self.inner.window(key, begin, (wanted[-1] + 1) * BLOCK_BYTES - begin)
            if size is not None and there != size:
                # It was rewritten under the same name, encrypted with another key of its own.
                self.drop(key)
                return self.inner.window(key, offset, length)
            size = there
            for at in range(0, len(data), BLOCK_BYTES):
                number = wanted[0] + at // BLOCK_BYTES
                blocks[number] = data[at : at + BLOCK_BYTES]
                self._write(key, number, blocks[number], size)
        assert size is not None
        if offset >= size:
            raise IntegrityError(f"object {key} is too short: it ends at {size}, before {offset}")
        joined = b"".join(blocks[number] for number in range(first, last + 1) if number in blocks)
        at = offset - first * BLOCK_BYTES
        return joined[at : at + length], size

    def stream(self, key: str) -> Iterator[bytes]:
        """See `ObjectStore.stream`."""
        return self.inner.stream(key)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        return self.inner.size(key)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self.inner.delete(key)
        self.drop(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return self.inner.list(prefix)

    def clean(self, older_than: int) -> int:
        """See `ObjectStore.clean`."""
        return self.inner.clean(older_than)

    def drop(self, key: str) -> None:
        """Delete the cached parts of one object."""
        folder, name = self._block_place(key)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(f"{name}."):
                    with suppress(OSError):
                        os.unlink(entry.path)

    # --- files ---

    def _block_place(self, key: str) -> tuple[str, str]:
        """The directory of an object's blocks, and what their names begin with."""
        digits = blake3(f"{self.name}\0{key}".encode()).hexdigest()[: _NAME_DIGITS + 2]
        return f"{self._folder}/{digits[:2]}", digits[2:]

    def _checksum(self, name: str, number: int, size: int, data: bytes) -> bytes:
        state = blake3(f"{name}.{number}.{size}\0".encode())
        state.update(data)
        return state.digest(16)

    def _read(self, key: str, number: int) -> tuple[bytes, int] | None:
        folder, name = self._block_place(key)
        path = f"{folder}/{name}.{number}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            with open(fd, "rb") as file:
                about = os.fstat(fd)
                raw = file.read(_HEAD.size + BLOCK_BYTES + 1)
            if len(raw) > _HEAD.size:
                magic, version, size, checksum = _HEAD.unpack_from(raw)
                data = raw[_HEAD.size :]
                expected = min(BLOCK_BYTES, size - number * BLOCK_BYTES)
                if (
                    (magic, version) == (MAGIC, VERSION)
                    and len(data) == expected
                    and checksum == self._checksum(name, number, size, data)
                ):
                    if self._clock() - about.st_mtime > _TOUCH_AFTER:
                        with suppress(OSError):
                            os.utime(path)
                    return data, size
            os.unlink(path)
        except OSError:
            pass
        return None

    def _write(self, key: str, number: int, data: bytes, size: int) -> None:
        if not self._works or not data or self._max_bytes < BLOCK_BYTES:
            return
        folder, name = self._block_place(key)
        temporary = f"{folder}/{os.urandom(8).hex()}.tmp"
        try:
            fd = self._create(folder, temporary)
            try:
                with open(fd, "wb") as file:
                    file.write(_HEAD.pack(MAGIC, VERSION, size, self._checksum(name, number, size, data)))
                    file.write(data)
                os.rename(temporary, f"{folder}/{name}.{number}")
            except OSError:
                os.unlink(temporary)
                raise
        except OSError as error:
            self._works = False  # a full disk, no permission: not worth another try
            _LOG.info("objects are not cached in %s any more: %s", self._folder, error.strerror or error)
            return
        self._unseen += len(data)
        if self._unseen > self._max_bytes // _SHARE:
            self._unseen = 0
            self._thin_out()

    def _create(self, folder: str, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            return os.open(path, flags, 0o600)

    def _keep(self, key: str, data: bytes | None) -> None:
        """Put here what an object that was just written holds; None: it is too much."""
        self.drop(key)
        if data is not None:
            for at in range(0, len(data), BLOCK_BYTES):
                self._write(key, at // BLOCK_BYTES, data[at : at + BLOCK_BYTES], len(data))

    def _thin_out(self) -> None:
        """Delete the least recently used files beyond the limit, and those of killed processes."""
        found: list[tuple[float, int, str]] = []
        total = 0
        now = self._clock()
        for folder in _scanned(self._folder):
            for entry in _scanned(folder.path):
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(".tmp") and now - about.st_mtime > _TEMPORARY_LASTS:
                        os.unlink(entry.path)
                        continue
                    total += about.st_size
                    found.append((about.st_mtime, about.st_size, entry.path))
        if total <= self._max_bytes:
            return
        for _, size, path in sorted(found):
            with suppress(OSError):
                os.unlink(path)
            total -= size
            if total <= self._max_bytes - self._max_bytes // 8:
                return


class _TeedUpload:
    """An upload whose bytes are kept here as well, if they are not too many."""

    __slots__ = ("_data", "_keep", "_upload")

    def __init__(self, upload: Upload, keep: Callable[[str, bytes | None], None]) -> None:
        self._upload = upload
        self._keep = keep
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Upload.write`."""
        self._upload.write(data)
        if self._data is not None:
            self._data += data
            if len(self._data) > MOST_TEED:
                self._data = None

    def commit(self, key: str) -> None:
        """See `Upload.commit`."""
        self._upload.commit(key)
        self._keep(key, None if self._data is None else bytes(self._data))

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._data = None
        self._upload.abort()


def _scanned(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def uncached(objects: ObjectStore) -> ObjectStore:
    """The same objects, as the bucket itself has them."""
    if isinstance(objects, LocalObjects):
        return objects  # without importing the encryption
    from holdfast.store.objects._encrypted_store import EncryptedObjects

    if isinstance(objects, EncryptedObjects) and isinstance(objects.inner, CachedObjects):
        return EncryptedObjects(objects.inner.inner, objects.keys)
    return objects.inner if isinstance(objects, CachedObjects) else objects
