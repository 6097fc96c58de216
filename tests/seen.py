"""What is known of a tree that changes are applied to."""

from __future__ import annotations

from holdfast.files.index.stat_index import KnownFile, Signature
from holdfast.model.entries import Entry


class Seen:
    """Remembers what the applier learns; at first nothing, or ``known``."""

    def __init__(self, known: dict[bytes, KnownFile] | None = None) -> None:
        self.known = dict(known or {})

    def get(self, path: bytes) -> KnownFile | None:
        return self.known.get(path)

    def put(self, path: bytes, entry: Entry, signature: Signature) -> None:
        self.known[path] = KnownFile(entry, signature)

    def drop(self, path: bytes) -> None:
        self.known.pop(path, None)
