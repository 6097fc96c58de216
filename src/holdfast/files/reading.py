"""What the files that a scan comes upon hold: as they are, or as they were saved where they cannot be read."""

from __future__ import annotations

from holdfast.files import capture as capturing
from holdfast.files.ignore import CHECKPOINTIGNORE, GITIGNORE
from holdfast.files.index import FAILED, NOT_CAPTURED, RACY, Signature
from holdfast.files.stillness import Stillness
from holdfast.model.paths import MAX_PATH_BYTES
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.files.index import StatIndex
    from holdfast.files.knowledge import Findings
    from holdfast.files.tree import Lookup, Saved
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.model.sinks import BlobSink

KEPT = "; what was saved of it before stays"
"""Goes on from the reason why something could not be looked at."""


class Reader:
    """Reads the files of one scan into a sink."""

    def __init__(
        self,
        index: StatIndex,
        findings: Findings,
        sink: BlobSink,
        *,
        max_file_bytes: int,
        lookup: Lookup | None,
        saved: Saved | None,
    ) -> None:
        self.files_read = 0
        self._index = index
        self._findings = findings
        self._sink = sink
        self._max_file_bytes = max_file_bytes
        self._lookup = lookup
        self._saved = saved
        self._stillness = Stillness()

    def look(
        self, fd: int, name: bytes, inner: bytes, seen: Signature, before: Entry | None, moment: int
    ) -> capturing.Captured | None:
        """What the file ``name`` in the open directory, ``inner`` from the root, holds; None if it is gone."""
        if len(inner) > MAX_PATH_BYTES:
            return capturing.Captured(seen, NOT_CAPTURED, None, f"path too long: {len(inner)} bytes")
        previous = self._previous(inner, before)
        found = capturing.capture(fd, name, seen, moment, self._sink, previous, self._max_file_bytes, self._stillness)
        return self._as_saved(inner, found) if found is not None and found.flag == FAILED else found

    def learn(self, path: bytes, found: capturing.Captured) -> None:
        """Count what was read, and remember why ``path`` is not captured, or is to be looked at again."""
        if found.reason is not None:
            self._findings.not_captured[path] = found.reason
        else:
            self.files_read += 1
        if found.flag in (RACY, FAILED):
            self._findings.again.add(path)

    def _as_saved(self, path: bytes, failed: capturing.Captured) -> capturing.Captured:
        """What stands for the file ``path``, which could not be read: what was saved of it before, if anything was."""
        entry = None if self._saved is None else dict(self._saved.entries(path)).get(path)
        rules = path.rpartition(b"/")[2] in (GITIGNORE, CHECKPOINTIGNORE)
        if entry is None:
            return failed._replace(reason=f"{failed.reason}; what it says is not obeyed") if rules else failed
        reason = f"{failed.reason}{KEPT}{', and is obeyed' if rules else ''}"
        return capturing.Captured(unseen(entry), RACY, entry.hash, reason)

    def _previous(self, path: bytes, before: Entry | None) -> Hash | None:
        """The hash of the version before, for the sink to encode against: one that is stored already."""
        earlier = self._index.delta.get(path)
        if earlier is not None:
            before = earlier[0]
        elif before is None and self._lookup is not None:
            before = self._lookup(path)
        return None if before is None or self._index.root is None else before.hash


def unseen(entry: Entry) -> Signature:
    """A signature for an ``entry`` of something that was not looked at: that of no file."""
    return Signature(0, 0, entry.size, 0, entry.mode)
