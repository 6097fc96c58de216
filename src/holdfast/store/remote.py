"""Objects in a bucket (S3, Google Cloud Storage, Azure) or in memory, through obstore.

Import it only when a URL asks for it: obstore is heavy.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

import obstore
from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from holdfast.model.errors import ConfigError, IntegrityError, NotFoundError, StorageError, UsageError
from holdfast.model.sinks import CHUNK_BYTES
from holdfast.store.keys import check_key, check_prefix
from holdfast.store.objects import ObjectInfo, put_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Bucket

    from holdfast.store.objects import Upload

_SPOOL_BYTES = 8 << 20
_PART_BYTES = 8 << 20


@contextmanager
def _reaching(action: str, key: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"no object {key}") from error
    except (BaseError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(f"cannot {action} {key}: {reason}") from error


class RemoteObjects:
    """An `ObjectStore` over any bucket that obstore can reach.

    An upload collects its bytes in memory, beyond 8 MiB in an unnamed temporary file of the directory ``scratch``
    (default: the system's), since a bucket wants the name first and ours is known last.
    """

    def __init__(self, bucket: Bucket, *, scratch: str | None = None) -> None:
        self._bucket = bucket
        self._scratch = scratch

    def upload(self) -> Upload:
        """See `ObjectStore.upload`."""
        return _RemoteUpload(self._bucket, self._scratch)

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """See `ObjectStore.put`."""
        put_parts(self, check_key(key), parts)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        check_key(key)
        if offset < 0 or (length is not None and length < 0):
            raise UsageError(f"bad range of object {key}: {length} bytes at {offset}")
        if length is None and not offset:
            with _reaching("read", key):
                return bytes(obstore.get(self._bucket, key).bytes())
        if length is None or not length:
            size = self.size(key)
            if size is None:
                raise NotFoundError(f"no object {key}")
            if offset + (length or 0) > size:
                raise _short(key, offset, length or 0, 0)
            length = size - offset if length is None else 0
            if not length:
                return b""
        try:
            with _reaching("read", key):
                data = bytes(obstore.get_range(self._bucket, key, start=offset, length=length))
        except StorageError:
            # A range that begins behind the end is an error of its own kind in each service.
            size = self.size(key)
            if size is not None and offset + length > size:
                raise _short(key, offset, length, max(size - offset, 0)) from None
            raise
        if len(data) != length:
            raise _short(key, offset, length, len(data))
        return data

    def stream(self, key: str) -> Iterator[bytes]:
        """See `ObjectStore.stream`."""
        check_key(key)
        with _reaching("read", key):
            pieces = iter(obstore.get(self._bucket, key).stream(min_chunk_size=CHUNK_BYTES))
        while True:
            with _reaching("read", key):
                piece = next(pieces, None)
            if piece is None:
                return
            with memoryview(piece) as view:
                for at in range(0, len(view), CHUNK_BYTES):
                    yield bytes(view[at : at + CHUNK_BYTES])

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        try:
            with _reaching("look up", check_key(key)):
                return obstore.head(self._bucket, key)["size"]
        except NotFoundError:
            return None

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            with _reaching("delete", check_key(key)):
                obstore.delete(self._bucket, key)
        except NotFoundError:
            pass

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        directory, beginning = check_prefix(prefix)
        listing = cast("Callable[..., Iterable[Sequence[ObjectMeta]]]", obstore.list)  # pyright: ignore[reportUnknownMemberType]
        # The service only matches whole parts.
        batches = iter(listing(self._bucket, prefix=directory or None))
        while True:
            with _reaching("list", prefix or "the store"):
                batch = next(batches, None)
            if batch is None:
                return
            for meta in batch:
                key = meta["path"]
                if key.startswith(directory + beginning):
                    yield ObjectInfo(key, meta["size"], int(meta["last_modified"].timestamp() * 1_000_000))

    def clean(self, older_than: int) -> int:  # noqa: ARG002 - the port's parameter
        """See `ObjectStore.clean`. There is nothing to find: bytes reach the bucket only in `Upload.commit`."""
        return 0


class _RemoteUpload:
    """An object being collected until its key is known."""

    __slots__ = ("_bucket", "_spool")

    def __init__(self, bucket: Bucket, scratch: str | None) -> None:
        self._bucket = bucket
        self._spool: IO[bytes] | None = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, dir=scratch)  # noqa: SIM115 - `abort` closes it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Upload.write`."""
        spool = self._collected()
        try:
            spool.write(data)
        except OSError as error:
            self.abort()
            raise StorageError(f"cannot collect an object in a temporary file: {error.strerror or error}") from error

    def commit(self, key: str) -> None:
        """See `Upload.commit`."""
        spool = self._collected()
        try:
            check_key(key)
            large = spool.tell() > _PART_BYTES
            spool.seek(0)
            with _reaching("write", key):
                if large:
                    obstore.put(self._bucket, key, spool, use_multipart=True, chunk_size=_PART_BYTES)
                else:
                    obstore.put(self._bucket, key, spool.read(), use_multipart=False)
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Upload.abort`."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _collected(self) -> IO[bytes]:
        if self._spool is None:
            raise StorageError("this upload has ended: it was committed, aborted, or could not be written")
        return self._spool


def _short(key: str, offset: int, wanted: int, have: int) -> IntegrityError:
    return IntegrityError(f"object {key} is too short: {wanted} bytes expected at {offset}, {have} are there")


def open_bucket(url: str, options: Mapping[str, str] | None = None) -> RemoteObjects:
    """The bucket at ``url`` (``s3://``, ``gs://``, ``az://``, ``memory://``), with the service's own ``options``.

    Credentials come from ``options`` or from where the service's tools look for them. Nothing is sent before
    the first use. Raises `ConfigError` for a URL or an option that the service does not know.
    """
    if url.startswith("memory://"):
        return RemoteObjects(MemoryStore())
    connect = cast("Callable[..., Bucket]", from_url)
    try:
        return RemoteObjects(connect(url, config=dict(options) if options else None))
    except (BaseError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"cannot use the object store {url!r}: {reason}") from error
