"""A writer of blobs that is made when the first content comes: most looks at a tree find nothing new."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.model.ids import Hash
    from holdfast.store.blobs.content_writer import BlobWriter, WrittenBlobs


class LazyWriter:
    """A `BlobSink` before a `BlobWriter`. One use: `finish` or `abort` ends it."""

    def __init__(self, make: Callable[[], BlobWriter]) -> None:
        self._make = make
        self._writer: BlobWriter | None = None

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:
        """See `BlobWriter.add`."""
        return self._made().add(data, previous)

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        """See `BlobWriter.add_stream`."""
        return self._made().add_stream(pieces)

    def finish(self) -> WrittenBlobs:
        """See `BlobWriter.finish`."""
        return self._made().finish()

    def abort(self) -> None:
        """See `BlobWriter.abort`."""
        if self._writer is not None:
            self._writer.abort()

    def _made(self) -> BlobWriter:
        if self._writer is None:
            self._writer = self._make()
            # Import the modules of manifests now, while a second process may be scanning the tree
            # (`holdfast.files.scan.parallel_scan`).
            from holdfast.store.manifests import manifest  # noqa: F401  # pyright: ignore[reportUnusedImport]
        return self._writer
