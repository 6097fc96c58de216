"""Content for writing a tree: from the store, read on demand, or read and verified in advance."""

from __future__ import annotations

from holdfast.files.linux.reflink import SharedFile
from holdfast.model.content import whole
from holdfast.model.entries import after_of
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.files.tree import Tree
    from holdfast.model.content import Content, Located
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash
    from holdfast.store.blobs.content_reader import BlobReader


class StoredContent:
    """A `Supply` that reads from the store, which verifies the content."""

    def __init__(self, reader: BlobReader, beside: Tree | None = None) -> None:
        """Large files that are unchanged in the tree ``beside`` are returned as `SharedFile`."""
        self._reader = reader
        self._beside = beside

    def fetch(self, changes: Iterable[Change]) -> Iterator[Content]:
        """See `Supply.fetch`."""
        if self._beside is None:
            return self._reader.fetch(map(after_of, changes))
        return self._shared(list(changes), self._beside)

    def _shared(self, changes: Sequence[Change], beside: Tree) -> Iterator[Content]:
        for change, content in zip(changes, self._reader.fetch(map(after_of, changes)), strict=True):
            fd = None if isinstance(content, bytes) else beside.share(change.path, after_of(change))
            yield content if fd is None or isinstance(content, bytes) else SharedFile(fd, content)

    def locate(self, changes: Sequence[Change]) -> Located:
        """See `Supply.locate`."""
        read = self._reader.locate([after_of(change) for change in changes])
        return lambda chosen: read([after_of(change).hash for change in chosen])


class BufferedContent:
    """A `Supply` of content that is in memory."""

    def __init__(self, contents: dict[Hash, bytes]) -> None:
        self._contents = contents

    def fetch(self, changes: Iterable[Change]) -> Iterator[Content]:
        """See `Supply.fetch`."""
        return (self._contents[after_of(change).hash] for change in changes)

    def locate(self, changes: Sequence[Change]) -> Located:  # noqa: ARG002 - all of it is here
        """See `Supply.locate`."""
        contents = self._contents
        return lambda chosen: {(name := after_of(change).hash): contents[name] for change in chosen}


def buffer_content(supply: StoredContent, changes: Sequence[Change]) -> BufferedContent:
    """The content of ``supply`` for ``changes``, all verified, in memory."""
    contents = zip(changes, supply.fetch(changes), strict=True)
    return BufferedContent({after_of(change).hash: whole(content) for change, content in contents})
