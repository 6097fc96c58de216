"""The port for immutable objects named by keys: a local directory, or a bucket.

Keys are relative paths of ``[A-Za-z0-9._-]`` parts joined by ``/``; an implementation refuses any other.

The port has no conditional write: the last commit of a key wins. That is safe since no two writers commit different
content under one key. A key has either a random id of its writer, or the hash of the content; and the catalog's
transactions alone decide which objects are known.
"""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: str
    size: int
    modified_at: int
    """Microseconds since 1970-01-01 UTC, by the store's own clock."""


class Upload(Protocol):
    """An object being written. Nothing is visible under any key until `commit`; `abort` (or a crash) leaves nothing
    visible.
    """

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``; raises `StorageError` if it cannot be written."""
        ...

    def commit(self, key: str) -> None:
        """Publish the object under ``key``, replacing an existing one. Atomic, and durable when it returns (I4)."""
        ...

    def abort(self) -> None:
        """Throw it away. Harmless after `commit` or a second time."""
        ...


class ObjectStore(Protocol):
    """Immutable objects. Safe for use by several processes and threads at once.

    Every method raises `StorageError` when the store cannot be reached or refuses, and `NotFoundError` for a missing
    key.
    """

    def upload(self) -> Upload:
        """Begin to write an object."""
        ...

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """Write a whole object: `upload`, every part, `commit`."""
        ...

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes from ``offset`` (to the end if None). Fewer bytes than asked for raise `IntegrityError`."""
        ...

    def stream(self, key: str) -> Iterator[bytes]:
        """The whole object in pieces of at most 1 MiB."""
        ...

    def size(self, key: str) -> int | None:
        """The object's size in bytes, or None if there is no such object."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error. Durable when it returns is not promised."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with ``prefix``, in no particular order. Unfinished uploads are not among
        them.
        """
        ...

    def clean(self, older_than: int) -> int:
        """Remove unfinished uploads begun before this time (microseconds since 1970 UTC); returns how many."""
        ...


def is_remote(objects: ObjectStore) -> bool:
    """True if each request takes long, as over a network, so that several at once are worth their threads.

    An implementation says so by an attribute ``far``.
    """
    return bool(getattr(objects, "far", False))


def get_ranges(objects: ObjectStore, key: str, ranges: Sequence[tuple[int, int]]) -> Iterable[bytes]:
    """`ObjectStore.get` for several ranges of one object, each an offset and a length. An implementation with a better
    way has a method ``get_ranges``.
    """
    several = getattr(objects, "get_ranges", None)
    if several is not None:
        return several(key, ranges)
    return (objects.get(key, offset, length) for offset, length in ranges)


def put_parts(objects: ObjectStore, key: str, parts: Iterable[bytes]) -> None:
    """`ObjectStore.put` by an upload, for implementations that have nothing better."""
    upload = objects.upload()
    try:
        for part in parts:
            upload.write(part)
        upload.commit(key)
    finally:
        upload.abort()
