"""What is known of a tree that changes are applied to."""

from __future__ import annotations

from holdfast.files.index.stat_index import Known, Signature
from holdfast.model.entries import Entry


class Seen:
    """Remembers what the applier learns; at first nothing, or ``known``."""

    def __init__(self, known: dict[bytes, Known] | None = None) -> None:
        self.known = dict(known or {})

    def get(self, path: bytes) -> Known | None:
        return self.known.get(path)

    def put(self, path: bytes, entry: Entry, signature: Signature) -> None:
        self.known[path] = Known(entry, signature)

    def drop(self, path: bytes) -> None:
        self.known.pop(path, None)
