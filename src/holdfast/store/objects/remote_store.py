"""Objects in a bucket (S3, Google Cloud Storage, Azure) or in memory, through obstore.

Import it only for a URL that needs it: obstore is heavy. It retries (after timeouts, refused and reset connections,
5xx, 429, SlowDown) with growing pauses, which is safe for every request here, since a key never has two contents.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import IO, TYPE_CHECKING, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, from_url

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import ConfigError, HoldfastError, IntegrityError, NotFoundError, StorageError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.objects._remote_errors import Secrets, translated
from holdfast.store.objects._upload_spool import UploadSpool
from holdfast.store.objects.object_keys import KINDS, check_key, check_prefix
from holdfast.store.objects.object_store import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Bucket

    from holdfast.store.objects.object_store import Upload

_PART_BYTES = 8 << 20
_MOST_PARTS = 9000
"""S3 takes 10,000: of larger objects the parts grow."""
_MOST_LISTED = 1 << 24
"""A listing of more names than this is one that never ends."""

CLIENT_OPTIONS = frozenset(
    (
        "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout",
        "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "read_timeout",
        "root_certificate", "user_agent",
    )
)  # fmt: skip
"""Options that are about connections, and not about the service."""


class RequestLimits(NamedTuple):
    """How long and how often is tried, and how much at once."""

    timeout: float = 30.0
    """Seconds for one request, its body included."""
    retries: int = 6
    """How often a request is repeated that failed for a reason that may pass."""
    parallel: int = 4
    """Parts of one object that are sent at once. An upload needs up to twice as many times 8 MiB of memory."""


class RemoteObjects:
    """An `ObjectStore` over any bucket that obstore can reach.

    An upload collects its bytes in memory, beyond 8 MiB in an unnamed temporary file of the directory ``scratch``
    (default: the system's), since a bucket needs the name first and ours is known last. More than 8 MiB are sent in
    parts, several at once; the object appears, complete, with the last one.

    ``name`` is the bucket in messages, ``cleaner`` finds and removes unfinished multipart uploads.
    """

    far = True
    """See `object_store.is_remote`."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        name: str = "the bucket",
        scratch: str | None = None,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - immutable
        secrets: Secrets | None = None,
        cleaner: Callable[[int], int] | None = None,
    ) -> None:
        self._bucket = bucket
        self.name = name
        self._scratch = scratch
        self._limits = limits
        self._secrets = secrets or Secrets()
        self._cleaner = cleaner

    def upload(self) -> Upload:
        """See `ObjectStore.upload`."""
        return _RemoteUpload(self, self._scratch)

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """See `ObjectStore.put`. Small content is sent as one request; for large content two parts are in memory for
        each one in progress.
        """
        check_key(key)
        rest = iter(parts)
        head: list[bytes] = []
        have = 0
        for part in rest:
            head.append(part)
            have += len(part)
            if have > _PART_BYTES:
                break
        else:
            self._put_whole(key, b"".join(head))
            return
        failed: list[BaseException] = []

        def noting() -> Iterator[bytes]:
            try:
                for part in chain(head, rest):
                    if part:
                        yield part
            except GeneratorExit:
                raise  # no error of the source: the upload itself failed
            except BaseException as error:
                failed.append(error)
                raise

        try:
            with self._reaching("write", key):
                obstore.put(
                    self._bucket,
                    key,
                    noting(),
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=self._limits.parallel,
                )
        except BaseException:
            if failed:
                raise failed[0] from None
            raise

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless the key has one; False if it has. Only where `bucket_probe.probe` has found that
        the service supports it.

        If the answer is lost and the request repeated, it finds its own object: so the existing one is compared.
        """
        try:
            with self._reaching("write", check_key(key)):
                try:
                    obstore.put(self._bucket, key, data, mode="create", use_multipart=False)
                except (AlreadyExistsError, PreconditionError):
                    return bytes(obstore.get(self._bucket, key).bytes()) == data
        except NotFoundError:
            return False  # it existed, and has just gone
        return True

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        check_key(key)
        if offset < 0 or (length is not None and length < 0):
            raise UsageError(f"bad range of object {key}: {length} bytes at {offset}")
        if length is None and not offset:
            return self._whole(key)
        if length is None or not length:
            size = self.size(key)
            if size is None:
                raise NotFoundError(f"no object {key}")
            if offset + (length or 0) > size:
                raise _short(key, offset, length or 0, 0)
            length = size - offset if length is None else 0
            if not length:
                return b""
        data, _ = self.window(key, offset, length)
        if len(data) != length:
            raise _short(key, offset, length, len(data))
        return data

    def window(self, key: str, offset: int, length: int) -> tuple[bytes, int]:
        """As many of ``length`` bytes (1 or more) from ``offset`` as there are, and the object's size: one request.

        Raises `IntegrityError` if the object ends before ``offset``, or the service sends other bytes than it says.
        """
        check_key(key)
        end = min(offset + length, (1 << 62) - 1)
        if end <= offset:
            raise _short(key, offset, length, 0)
        for attempt in range(_READS):
            try:
                with self._reaching("read", key):
                    found = obstore.get(self._bucket, key, options={"range": (offset, end)})
                    data = bytes(found.bytes())
                    size, (begin, until) = found.meta["size"], found.range
            except StorageError:
                # A range after the end is a different error in each service.
                size = self.size(key)
                if size is not None and offset >= size:
                    raise _short(key, offset, length, 0) from None
                if attempt == _READS - 1:
                    raise
                continue
            if begin == offset and until == min(end, size) and len(data) == until - begin:
                return data, size
        raise IntegrityError(f"{self.name} gives other bytes of {key} than were asked for: {length} at {offset}")

    def stream(self, key: str) -> Iterator[bytes]:
        """See `ObjectStore.stream`. After a broken transfer it continues from the last byte."""
        check_key(key)
        at = 0
        size: int | None = None
        tries = 0
        while size is None or at < size:
            begin = at
            try:
                with self._reaching("read", key):
                    options = {} if size is None else {"range": (at, size)}
                    found = obstore.get(self._bucket, key, options=options)  # pyright: ignore[reportArgumentType]
                    if size is not None and (found.meta["size"] != size or found.range[0] != at):
                        raise IntegrityError(f"the object {key} in {self.name} has changed while it was read")
                    size = found.meta["size"]
                    pieces = iter(found.stream(min_chunk_size=CHUNK_BYTES))
                while True:
                    with self._reaching("read", key):
                        piece = next(pieces, None)
                    if piece is None:
                        break
                    with memoryview(piece) as view:
                        at += len(view)
                        if at > size:
                            raise IntegrityError(f"{self.name} gives more of {key} than its {size} bytes")
                        for start in range(0, len(view), CHUNK_BYTES):
                            yield bytes(view[start : start + CHUNK_BYTES])
            except StorageError:
                tries = 1 if at > begin else tries + 1
                if tries >= _READS:
                    raise
            else:
                if at < size:
                    tries = 1 if at > begin else tries + 1
                    if tries >= _READS:
                        raise _short(key, 0, size, at)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        try:
            with self._reaching("look up", check_key(key)):
                return obstore.head(self._bucket, key)["size"]
        except NotFoundError:
            return None

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            with self._reaching("delete", check_key(key)):
                obstore.delete(self._bucket, key)
        except NotFoundError:
            pass

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. A service that never comes to an end raises `IntegrityError`."""
        directory, beginning = check_prefix(prefix)
        listing = cast("Callable[..., Iterable[Sequence[ObjectMeta]]]", obstore.list)  # pyright: ignore[reportUnknownMemberType]
        # The service only matches whole parts.
        batches = iter(listing(self._bucket, prefix=directory or None))
        count = 0
        last = ""
        while True:
            with self._reaching("list", prefix or "the store"):
                batch = next(batches, None)
            if batch is None:
                return
            if batch and batch[0]["path"] == last:
                raise IntegrityError(f"{self.name} gives the same page of its names again and again")
            last = batch[0]["path"] if batch else ""
            count += len(batch)
            if count > _MOST_LISTED:
                raise IntegrityError(f"{self.name} lists more than {_MOST_LISTED} objects, and no end")
            for meta in batch:
                key = meta["path"]
                if key.startswith(directory + beginning):
                    yield ObjectInfo(key, meta["size"], int(meta["last_modified"].timestamp() * 1_000_000))

    def clean(self, older_than: int) -> int:
        """See `ObjectStore.clean`: uploads in parts, of ours, that were cut short."""
        return self._cleaner(older_than) if self._cleaner is not None else 0

    def put_file(self, key: str, file: IO[bytes], size: int) -> None:
        """Write the content of ``file``, ``size`` bytes from its position; memory is bounded."""
        if size <= _PART_BYTES:
            self._put_whole(key, file.read())
            return
        part = max(_PART_BYTES, -(-size // _MOST_PARTS))
        with self._reaching("write", key):
            obstore.put(
                self._bucket,
                key,
                file,
                use_multipart=True,
                chunk_size=part,
                max_concurrency=max(1, self._limits.parallel * _PART_BYTES // part),
            )

    def _put_whole(self, key: str, data: bytes) -> None:
        with self._reaching("write", key):
            obstore.put(self._bucket, key, data, use_multipart=False)

    def _whole(self, key: str) -> bytes:
        for attempt in range(_READS):
            try:
                with self._reaching("read", key):
                    found = obstore.get(self._bucket, key)
                    data = bytes(found.bytes())
                    size = found.meta["size"]
            except StorageError:
                if attempt == _READS - 1:
                    raise
                continue
            if len(data) == size:
                return data
        raise IntegrityError(f"{self.name} gives other bytes of {key} than it says")

    @contextmanager
    def _reaching(self, action: str, key: str) -> Generator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except (BaseError, OSError) as error:
            # Without the cause, whose message contains requests and answers.
            raise translated(error, action, key, self.name, self._secrets) from None


_READS = 3
"""How often data is requested, at most, that arrives truncated or wrong."""


class _RemoteUpload:
    """An object being collected until its key is known."""

    __slots__ = ("_spool", "_store")

    def __init__(self, store: RemoteObjects, scratch: str | None) -> None:
        self._store = store
        self._spool = UploadSpool(scratch)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Upload.write`."""
        self._spool.write(data)

    def commit(self, key: str) -> None:
        """See `Upload.commit`."""
        try:
            check_key(key)
            self._store.put_file(key, *self._spool.rewound())
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._spool.close()


def _short(key: str, offset: int, wanted: int, have: int) -> IntegrityError:
    return IntegrityError(f"object {key} is too short: {wanted} bytes expected at {offset}, {have} are there")


def open_bucket(
    url: str,
    options: Mapping[str, str] | None = None,
    *,
    tenant: str | None = None,
    limits: RequestLimits = RequestLimits(),  # noqa: B008 - immutable
    scratch: str | None = None,
) -> RemoteObjects:
    """The bucket at ``url`` (``s3://``, ``gs://``, ``az://``, ``memory://``), with the service's own ``options``.

    Credentials come from ``options`` or the usual places of the service's tools. Nothing is sent before the first use.
    Unfinished uploads are searched below ``tenant``'s own keys. Raises `ConfigError` for a URL (beyond the checks of
    `store_location.fault_of`) or an option that the service does not know.
    """
    if url.startswith("memory://"):
        return RemoteObjects(MemoryStore())
    given = {name.lower(): value for name, value in (options or {}).items()}
    secrets = Secrets(given.items())
    connect = cast("Callable[..., Bucket]", from_url)
    service = {name: value for name, value in given.items() if name not in CLIENT_OPTIONS}
    if url.startswith(("s3://", "s3a://")) and "aws_disable_bulk_delete" not in service:
        # One at a time is deleted here, and not every service knows the request for many.
        service.setdefault("disable_bulk_delete", "true")
    try:
        bucket = connect(url, config=service or None, **_connections(given, limits))
    except (BaseError, ValueError, TypeError) as error:
        reason = secrets.hidden_in((str(error).splitlines() or [type(error).__name__])[0])
        raise ConfigError(f"cannot use the object store {url!r}: {reason}") from None
    return RemoteObjects(
        bucket,
        name=url,
        scratch=scratch,
        limits=limits,
        secrets=secrets,
        cleaner=_cleaner(url, service, tenant, limits) if url.startswith(("s3://", "s3a://")) and tenant else None,
    )


def _connections(given: Mapping[str, str], limits: RequestLimits) -> dict[str, object]:
    from datetime import timedelta

    client: dict[str, object] = {"timeout": timedelta(seconds=limits.timeout), "connect_timeout": timedelta(seconds=10)}
    for name, value in given.items():
        if name in CLIENT_OPTIONS:
            client[name] = value.lower() in ("1", "true", "yes") if value.lower() in _SWITCHES else value
    retries = {
        "max_retries": limits.retries,
        "retry_timeout": timedelta(seconds=max(60.0, 4 * limits.timeout)),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    return {"client_options": client, "retry_config": retries}


_SWITCHES = ("0", "1", "false", "true", "no", "yes")


def _cleaner(url: str, options: Mapping[str, str], tenant: str, limits: RequestLimits) -> Callable[[int], int]:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    below = unquote(parts.path).strip("/")
    prefixes = [f"{below}/{kind}/{tenant}/".lstrip("/") for kind in KINDS]

    def clean(older_than: int) -> int:
        from holdfast.store.objects import _s3_uploads as s3_uploads

        return s3_uploads.clean(s3_uploads.address_of(parts.netloc, options, limits.timeout), prefixes, older_than)

    return clean
