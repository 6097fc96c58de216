"""A tree without any file system: the second implementation of the `Tree` port, for tests of its users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.tree import ApplyResult, CleanResult, ScanResult
from holdfast.files.write.atomic_replacement import GONE
from holdfast.files.write.batch import IN_THE_WAY, NAMED_TWICE
from holdfast.files.write.displaced_file import CHANGED
from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.entries import SYMLINK_MODE, Change, Entry, NotCaptured, file_entry, symlink_entry
from holdfast.model.errors import EscapeError, IntegrityError, NotFoundError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.model.paths import check_path, display

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from holdfast.files.tree import ApplyNotes, EntryLookup, SavedManifest
    from holdfast.model.content import BlobSink, Content, Progress, Supply

IGNORED_SUFFIX = b".pid"
"""Files of such names are never captured, as in every tree."""


class _Node(NamedTuple):
    content: bytes
    mode: int
    """As of an `Entry`; 0 for an object that cannot be captured."""
    version: int
    """Another number after every change: what a signature is to a file."""


class _Known(NamedTuple):
    entry: Entry
    version: int


class MemoryTree:
    """Files and links in a dictionary. `write` and the like are changes by users and agents outside the port.

    Directories exist while they have entries, or since `mkdir`. ``fault``, if set, is called with ``write`` or
    ``delete`` and the path before each change that `apply` makes; an exception of it ends the call there, like a crash.
    """

    def __init__(self) -> None:
        """An empty tree."""
        self.fault: Callable[[str, bytes], None] | None = None
        self._nodes: dict[bytes, _Node] = {}
        self._directories: set[bytes] = set()
        self._versions = 0
        self._known: dict[bytes, _Known] = {}
        self._label: Hash | None = None
        self._labelled: dict[bytes, Entry] = {}

    # What others do to the tree

    def write(self, path: bytes, content: bytes, permissions: int = 0o644) -> None:
        """Put a file at ``path``, replacing any other object."""
        self._put(path, content, file_entry(hash_bytes(b""), 0, permissions).mode)

    def symlink(self, path: bytes, target: bytes) -> None:
        """Put a symbolic link at ``path``, replacing any other object."""
        self._put(path, target, SYMLINK_MODE)

    def special(self, path: bytes) -> None:
        """Put an object at ``path`` that no checkpoint can contain."""
        self._put(path, b"", 0)

    def chmod(self, path: bytes, permissions: int) -> None:
        """Change the permissions of the file at ``path``."""
        self.write(path, self._nodes[path].content, permissions)

    def mkdir(self, path: bytes) -> None:
        """Make an empty directory, which no checkpoint holds."""
        self._directories.add(path)

    def delete(self, path: bytes) -> None:
        """Remove the file, the link or the directory with all that is in it."""
        for inner in [inner for inner in self._nodes if inner == path or inner.startswith(path + b"/")]:
            del self._nodes[inner]
        self._directories = {
            inner for inner in self._directories if inner != path and not inner.startswith(path + b"/")
        }

    def contents(self) -> dict[bytes, tuple[int, bytes]]:
        """The mode and the content of every file and link, captured or not."""
        return {path: (node.mode, node.content) for path, node in self._nodes.items() if node.mode}

    # The port

    def scan(
        self,
        sink: BlobSink,
        *,
        base: Hash | None = None,
        lookup: EntryLookup | None = None,
        saved: SavedManifest | None = None,  # noqa: ARG002 - everything can be read
        full_hash: bool = False,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,  # noqa: ARG002 - no other process looks
        also: Container[bytes] = (),  # noqa: ARG002 - all is captured
    ) -> ScanResult:
        """See `Tree.scan`."""
        entries: dict[bytes, _Known] = {}
        not_captured: list[NotCaptured] = []
        files_read = 0
        for done, (path, node) in enumerate(sorted(self._nodes.items())):
            if progress is not None:
                progress("scan", done, len(self._nodes))
            if _is_ignored(path):
                continue
            if not node.mode:
                not_captured.append(NotCaptured(path, "not a file"))
                continue
            known = self._known.get(path)
            if known is None or known.version != node.version or full_hash:
                before = None if lookup is None else lookup(path)
                known = _Known(_add(sink, node, None if before is None else before.hash), node.version)
                files_read += 1
            entries[path] = known
        self._known = entries
        found = {path: known.entry for path, known in entries.items()}
        if base is None or base != self._label:
            return ScanResult(None, dict(found), not_captured, files_read)
        changes: dict[bytes, Entry | None] = {
            path: found.get(path)
            for path in sorted({*found, *self._labelled})
            if found.get(path) != self._labelled.get(path)
        }
        return ScanResult(base, changes, not_captured, files_read)

    def make_root(self) -> None:
        """See `Tree.make_root`. The root of a dictionary is always there."""

    def settle(self, root: Hash) -> None:
        """See `Tree.settle`."""
        self._label = root
        self._labelled = {path: known.entry for path, known in self._known.items()}

    def read(self, path: bytes) -> Content:
        """See `Tree.read`."""
        check_path(path)
        for parent in _parents(path):
            if (above := self._nodes.get(parent)) is not None and above.mode == SYMLINK_MODE:
                raise EscapeError(f"refused path {display(path)!r}: it leads through a symbolic link")
        node = self._nodes.get(path)
        if node is None or not node.mode:
            raise NotFoundError(f"there is no {display(path)!r}")
        return node.content if len(node.content) <= SMALL_BLOB_BYTES else _pieces(node.content)

    def is_there(self, path: bytes, *, directories: bool = False) -> bool:
        """See `Tree.is_there`."""
        if path in self._nodes:
            return True
        inside = path + b"/"
        return directories and any(
            other == path or other.startswith(inside) for other in (*self._directories, *self._nodes)
        )

    def share(self, path: bytes, entry: Entry) -> None:  # noqa: ARG002 - the port's signature
        """See `Tree.share`: there are no descriptors here."""
        return

    def apply(
        self,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | Supply | None]],
        *,
        nonce: str,  # noqa: ARG002 - there are no temporaries here
        progress: Progress | None = None,
        notes: ApplyNotes | None = None,  # noqa: ARG002 - nor anything to note
    ) -> ApplyResult:
        """See `Tree.apply`."""
        applied = ApplyResult([], [], [])
        for done, change in enumerate(sorted(deletes, key=lambda change: change.path, reverse=True)):
            if progress is not None:
                progress("delete", done, len(deletes))
            reason = self._guarded(change, None, self._delete)
            if reason is None:
                applied.deleted.append(change.path)
            else:
                applied.skipped.append(NotCaptured(change.path, reason))
        named: set[bytes] = set()
        for done, (change, given) in enumerate(writes):
            if progress is not None:
                progress("write", done, 0)
            content = given if given is None or isinstance(given, (bytes, Iterator)) else next(given.fetch([change]))
            reason = NAMED_TWICE if change.path in named else self._guarded(change, content, self._write)
            named.add(change.path)
            if content is not None and not isinstance(content, bytes) and (close := getattr(content, "close", None)):
                close()
            if reason is None:
                applied.written.append(change.path)
            else:
                applied.skipped.append(NotCaptured(change.path, reason))
        return applied

    def clean(self, nonce: str) -> CleanResult:  # noqa: ARG002 - there are no temporaries here
        """See `Tree.clean`."""
        return CleanResult(0, [])

    def _put(self, path: bytes, content: bytes, mode: int) -> None:
        self.delete(path)
        self._versions += 1
        self._nodes[path] = _Node(content, mode, self._versions)

    def _guarded(
        self, change: Change, content: Content | None, step: Callable[[Change, Content | None], str | None]
    ) -> str | None:
        try:
            check_path(change.path)
        except EscapeError as error:
            return error.message
        return step(change, content)

    def _entry(self, path: bytes) -> Entry | None:
        node = self._nodes.get(path)
        if node is None or not node.mode:
            return None
        known = self._known.get(path)
        return known.entry if known is not None and known.version == node.version else _entry_of(node)

    def _is_directory(self, path: bytes) -> bool:
        inside = path + b"/"
        return any(inner == path for inner in self._directories) or any(
            inner.startswith(inside) for inner in (*self._nodes, *self._directories)
        )

    def _delete(self, change: Change, _content: Content | None) -> str | None:
        if change.path in self._nodes:
            if change.before is None or self._entry(change.path) != change.before:
                return CHANGED
            self._about_to("delete", change.path)
            del self._nodes[change.path]
            # Emptied by this, and so removed, even if it was made as an empty directory long ago.
            for parent in _parents(change.path):
                if not any(inner.startswith(parent + b"/") for inner in (*self._nodes, *self._directories)):
                    self._directories.discard(parent)
        self._known.pop(change.path, None)
        return None

    def _write(self, change: Change, content: Content | None) -> str | None:
        path, before, after = change
        if after is None:
            return CHANGED
        for parent in _parents(path):
            if parent in self._nodes:
                return IN_THE_WAY
        if self._is_directory(path):
            if before is not None:
                return CHANGED
            if any(inner.startswith(path + b"/") for inner in self._nodes):
                return IN_THE_WAY
        elif path in self._nodes:
            found = self._entry(path)
            if found == after:
                self._known[path] = _Known(after, self._nodes[path].version)
                return None
            if before is None:
                return IN_THE_WAY
            if found != before:
                return CHANGED
        elif before is not None:
            return GONE
        if content is not None:
            data = content if isinstance(content, bytes) else b"".join(content)
        elif before is None or before.hash != after.hash or after.is_symlink:
            return CHANGED
        else:
            data = self._nodes[path].content
        if hash_bytes(data) != after.hash or len(data) != after.size:
            raise IntegrityError(f"the content for {display(path)!r} is not what its entry says")
        self._about_to("write", path)
        self._put(path, data, after.mode)
        self._known[path] = _Known(after, self._versions)
        return None

    def _about_to(self, step: str, path: bytes) -> None:
        if self.fault is not None:
            self.fault(step, path)


def _is_ignored(path: bytes) -> bool:
    return any(part.endswith(IGNORED_SUFFIX) for part in path.split(b"/"))


def _parents(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _pieces(content: bytes) -> Iterator[bytes]:
    for at in range(0, len(content), CHUNK_BYTES):
        yield content[at : at + CHUNK_BYTES]


def _entry_of(node: _Node) -> Entry:
    if node.mode == SYMLINK_MODE:
        return symlink_entry(hash_bytes(node.content), len(node.content))
    return file_entry(hash_bytes(node.content), len(node.content), node.mode)


def _add(sink: BlobSink, node: _Node, previous: Hash | None) -> Entry:
    if len(node.content) <= SMALL_BLOB_BYTES:
        return Entry(sink.add(node.content, previous), len(node.content), node.mode)
    found, size = sink.add_stream(_pieces(node.content))
    return Entry(found, size, node.mode)
