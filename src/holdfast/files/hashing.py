"""Content that is hashed and not kept."""

from __future__ import annotations

from holdfast.model.ids import Hash, Hasher, hash_bytes
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HashSink:
    """Hashes content and keeps nothing of it: for looking at a tree without storing it."""

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:  # noqa: ARG002 - the port's signature
        """See `BlobSink.add`."""
        return hash_bytes(data)

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        """See `BlobSink.add_stream`."""
        hasher = Hasher()
        size = 0
        for piece in pieces:
            hasher.update(piece)
            size += len(piece)
        return hasher.hash(), size
