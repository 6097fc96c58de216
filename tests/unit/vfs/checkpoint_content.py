"""What a checkpoint holds, without a store."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.entries import Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


class Part(NamedTuple):
    first: int
    paths: Sequence[bytes]
    entries: Sequence[Entry]


class FakeContent:
    """Content in a dictionary, handed out three entries at a time."""

    def __init__(self, files: dict[bytes, bytes], links: frozenset[bytes] = frozenset()) -> None:
        self.files = files
        self.paths = sorted(files)
        self.links = links
        self.count = len(files)
        self.size = sum(map(len, files.values()))

    def entry(self, path: bytes) -> Entry:
        content = self.files[path]
        if path in self.links:
            return symlink_entry(hash_bytes(content), len(content))
        return file_entry(hash_bytes(content), len(content), 0o640)

    def find(self, path: bytes, /) -> int:
        return bisect_left(self.paths, path)

    def stretch(self, position: int, /) -> Part:
        assert 0 <= position < self.count
        first = position // 3 * 3
        paths = self.paths[first : first + 3]
        return Part(first, paths, [self.entry(path) for path in paths])

    def read(self, path: bytes, entry: Entry, offset: int, size: int, /) -> bytes:
        assert entry == self.entry(path)
        return self.files[path][offset : offset + size]
