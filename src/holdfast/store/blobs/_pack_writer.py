"""Writes encoded blobs into packs of an object store, one pack after the other."""

from __future__ import annotations

from collections import deque

from holdfast.model.errors import StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import new_pack_id
from holdfast.store.blobs.pack_format import MAX_RECORDS, PackEncoder
from holdfast.store.catalog_records import NewBlob, NewPack, pack_key
from holdfast.store.objects.object_store import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor, Future

    from holdfast.model.ids import Hash, PackId
    from holdfast.store.catalog_records import BlobKind
    from holdfast.store.codecs.compression import Encoded
    from holdfast.store.objects.object_store import ObjectStore, Upload

PACK_BYTES = 32 << 20
"""A pack is closed when it holds this many bytes."""

_SENDERS = 2
"""Packs that go out at once."""


class PackItem(NamedTuple):
    """One blob to be written."""

    hash: Hash
    size: int
    """Bytes of content."""
    encoded: Encoded
    base: Hash | None
    """For the delta codec only."""


class PackWriter:
    """Puts blobs into packs under ``packs/{tenant}/``. One thread at a time; the caller adds no hash twice.

    ``name`` gives each pack its id and key; it is called when the pack is begun. Also what rewrites a pack: the
    stored bytes of another one may be added as they are. Where the store is far, full packs go out while the next is
    being made, two at most.
    """

    def __init__(
        self,
        objects: ObjectStore,
        name: Callable[[], tuple[PackId, str]],
        *,
        kind: BlobKind = "blob",
        pack_bytes: int = PACK_BYTES,
    ) -> None:
        self._objects = objects
        self._name = name
        self._kind: BlobKind = kind
        self._pack_bytes = pack_bytes
        self._open: tuple[PackId, str, Upload, PackEncoder] | None = None
        self._ended = False
        self._senders: Executor | None = None
        self._under_way: deque[tuple[Future[None], Upload]] = deque()
        self._packs: list[NewPack] = []
        self._blobs: list[NewBlob] = []

    def add(self, items: Iterable[PackItem]) -> None:
        """Append blobs; a pack that is full by then is closed, and durable in the end. Raises `StorageError`, perhaps
        for a pack that was closed earlier; after it only `abort` is left.
        """
        if self._ended:
            raise StorageError("this writer of packs has ended")
        try:
            parts: list[bytes] = []
            for item in items:
                pack, _, upload, encoder = self._open or self._begin(parts)
                head, offset = encoder.add(item.hash, item.size, item.encoded, item.base)
                codec, data = item.encoded
                parts += (head, data)
                self._blobs.append(NewBlob(item.hash, self._kind, item.size, codec, item.base, pack, offset, len(data)))
                if encoder.size >= self._pack_bytes or encoder.count == MAX_RECORDS:
                    upload.write(b"".join(parts))
                    parts.clear()
                    self._close(is_remote(self._objects))
            if self._open is not None and parts:
                self._open[2].write(b"".join(parts))
        except BaseException:
            self.abort()
            raise

    def finish(self) -> tuple[list[NewPack], list[NewBlob]]:
        """Close the last pack and return what was written; all of it is durable. The writer has ended then."""
        if self._ended:
            raise StorageError("this writer of packs has ended")
        try:
            self._close(bool(self._under_way))
            self._wait(0)
        finally:
            self.abort()
        return self._packs, self._blobs

    def abort(self) -> None:
        """End without the open pack; closed packs stay, as objects without references. Harmless after `finish`."""
        self._ended = True
        if self._open is not None:
            self._open[2].abort()
            self._open = None
        if self._senders is not None:
            # Started ones are waited for: the aborting thread may close the object store.
            self._senders.shutdown(cancel_futures=True)
            self._senders = None
            while self._under_way:
                self._under_way.popleft()[1].abort()

    def _begin(self, parts: list[bytes]) -> tuple[PackId, str, Upload, PackEncoder]:
        pack, key = self._name()
        encoder = PackEncoder()
        parts.append(encoder.begin())
        self._open = (pack, key, self._objects.upload(), encoder)
        return self._open

    def _close(self, aside: bool) -> None:
        """Write the end of the open pack and commit it; ``aside``: by another thread, which `_wait` waits for."""
        if self._open is None:
            return
        pack, key, upload, encoder = self._open
        upload.write(encoder.end())
        if aside:
            if self._senders is None:
                from holdfast.store._worker_threads import workers

                self._senders = workers(_SENDERS, "holdfast-send")
            self._wait(_SENDERS - 1)
            self._under_way.append((self._senders.submit(upload.commit, key), upload))
        else:
            upload.commit(key)
        self._open = None
        self._packs.append(NewPack(pack, key, encoder.size))

    def _wait(self, most: int) -> None:
        """Return when at most ``most`` packs are in progress; raises their errors."""
        while len(self._under_way) > most:
            future, upload = self._under_way.popleft()
            try:
                future.result()
            finally:
                upload.abort()


def fresh_packs(tenant: str, random: Callable[[int], bytes]) -> Callable[[], tuple[PackId, str]]:
    """Names packs of ``tenant`` by ids from ``random``, for `PackWriter`."""

    def name() -> tuple[PackId, str]:
        pack = new_pack_id(random)
        return pack, pack_key(tenant, pack)

    return name
