"""Shared by tests of trees: a tree that can be edited outside the port, a sink in memory, plans from plain states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import Hash, Hasher, hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.tree import ApplyResult, ScanResult, Tree
    from holdfast.model.content import Content

NONCE = "contract"


class EditableTree(Protocol):
    """A tree, and a way to change it behind its back, as users and agents do."""

    @property
    def tree(self) -> Tree:
        """The tree under test."""
        ...

    def write(self, path: bytes, content: bytes, permissions: int = 0o644) -> None:
        """Put a file at ``path``, in place of a file or link that is there; directories are made as needed."""
        ...

    def symlink(self, path: bytes, target: bytes) -> None:
        """Put a symbolic link at ``path``, in place of a file or link that is there."""
        ...

    def special(self, path: bytes) -> None:
        """Put an object at ``path`` that no checkpoint can contain, such as a fifo."""
        ...

    def chmod(self, path: bytes, permissions: int) -> None:
        """Change the permissions of the file at ``path``."""
        ...

    def mkdir(self, path: bytes) -> None:
        """Make an empty directory."""
        ...

    def delete(self, path: bytes) -> None:
        """Remove the file, the link or the directory with all that is in it."""
        ...

    def contents(self) -> dict[bytes, tuple[int, bytes]]:
        """The mode (as of an `Entry`) and the content of every file and link, captured or not."""
        ...


class MemorySink:
    """A `BlobSink` that keeps everything in a dictionary."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self.blobs: dict[Hash, bytes] = {}
        self.previous: dict[Hash, Hash | None] = {}
        self.error: Exception | None = None
        """Raised by the next addition."""

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:
        """See `BlobSink.add`."""
        assert len(data) <= SMALL_BLOB_BYTES
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        found = hash_bytes(data)
        self.blobs[found] = bytes(data)
        self.previous[found] = previous
        return found

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        """See `BlobSink.add_stream`."""
        hasher, whole = Hasher(), bytearray()
        for piece in pieces:
            assert 0 < len(piece) <= CHUNK_BYTES
            hasher.update(piece)
            whole += piece
        self.blobs[hasher.hash()] = bytes(whole)
        return hasher.hash(), len(whole)


def file(content: bytes, permissions: int = 0o644) -> Entry:
    """The entry of a file with this content."""
    return file_entry(hash_bytes(content), len(content), permissions)


def link(target: bytes) -> Entry:
    """The entry of a link to ``target``."""
    return symlink_entry(hash_bytes(target), len(target))


def state(scan: ScanResult, base: dict[bytes, Entry]) -> dict[bytes, Entry]:
    """The content of the tree according to ``scan``, which may be relative to ``base``."""
    merged: dict[bytes, Entry | None] = {**(base if scan.base is not None else {}), **scan.changes}
    return {path: entry for path, entry in merged.items() if entry is not None}


Target = dict[bytes, tuple[Entry, bytes]]


def plan(before: dict[bytes, Entry], target: Target) -> tuple[list[Change], list[tuple[Change, Content | None]]]:
    """The deletes and writes that lead from ``before`` to ``target``."""
    deletes = [Change(path, entry, None) for path, entry in before.items() if path not in target]
    writes: list[tuple[Change, Content | None]] = []
    for path, (entry, content) in sorted(target.items()):
        old = before.get(path)
        if old != entry:
            same = old is not None and old.hash == entry.hash and old.is_symlink == entry.is_symlink
            writes.append((Change(path, old, entry), None if same else content))
    return deletes, writes


def go(space: EditableTree, before: dict[bytes, Entry], target: Target) -> ApplyResult:
    """Apply what leads from ``before`` to ``target``."""
    return space.tree.apply(*plan(before, target), nonce=NONCE)


def contents_of(target: Target) -> dict[bytes, tuple[int, bytes]]:
    """The result of `EditableTree.contents` for a tree with exactly the content ``target``."""
    return {path: (entry.mode, content) for path, (entry, content) in target.items()}
