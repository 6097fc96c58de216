"""How content flows from a tree into blobs, and from blobs into a tree: in which pieces, and who takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.model.fast_typing import TYPE_CHECKING, Protocol
from holdfast.model.ids import Hash, Hasher, hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash

SMALL_BLOB_BYTES = 1 << 20
"""Content up to this size goes into packs and may be held in memory whole; larger content is streamed."""

CHUNK_BYTES = 1 << 20
"""The size of the pieces in which larger content flows."""

Content = bytes | Iterator[bytes]
"""The content of one entry: all of it when it is small, else its pieces in order (to be used up or closed)."""

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, how much of it is done, and how much there is (0 if unknown). Must be quick."""


def whole(content: Content) -> bytes:
    """All of ``content`` in memory: only for content that is known to be small."""
    return content if isinstance(content, bytes) else b"".join(content)


class Supply(Protocol):
    """Gives the new content of files on demand."""

    def fetch(self, changes: Iterable[Change]) -> Iterator[Content]:
        """The new content of each of ``changes``, in their order; large content must be consumed before the next.

        Raises the errors of its source.
        """
        ...

    def locate(self, changes: Sequence[Change]) -> Located:
        """Find out where the content of all the changes lies; raises as `fetch`."""
        ...


Located = Callable[[Sequence["Change"]], dict["Hash", bytes]]
"""Reads small content of changes that `Supply.locate` has found. It only reads files, so it also works in a forked copy
of the process. Large or since moved content is missing in the answer: use `fetch` for it.
"""


class BlobSink(Protocol):
    """Takes the content that a tree reads. Idempotent: adding content that is already stored costs a look-up."""

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:
        """Take content of at most `SMALL_BLOB_BYTES` and return its hash.

        ``previous`` is the hash of an earlier version of the same file, which the store may encode against.
        """
        ...

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        """Take content of any size, in pieces, with bounded memory; return its hash and size.

        If ``pieces`` raises, nothing is kept of it and the exception goes on.
        """
        ...


# Content that is hashed and not kept.


class HashSink:
    """Hashes content without keeping it: for comparing a tree without storing it."""

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
