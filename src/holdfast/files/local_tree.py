"""A workspace's tree in a directory of this machine."""

from __future__ import annotations

import os
import stat
import time

from holdfast.files.ignore.reserved_paths import ReservedPaths, find_reserved
from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, IgnoreSources
from holdfast.files.index.stat_index import StatIndex, load
from holdfast.files.scan.baseline import ScanFindings, TrustedContent
from holdfast.files.scan.file_capture import failure, is_racy, peek
from holdfast.files.scan.file_content import KEPT, FileReader
from holdfast.files.scan.parallel_scan import end_early
from holdfast.files.scan.scanner import REPLACED, Scanner
from holdfast.files.scan.tree_descent import open_directory, rules_above
from holdfast.files.tree import ROOT_GONE, ScanResult
from holdfast.files.write.rooted_access import Root, open_root
from holdfast.model.config.settings import Capture, Files
from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES, HashSink
from holdfast.model.entries import Entry, NotCaptured
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from holdfast.files.git.configuration import GitUser
    from holdfast.files.ignore.excluded_paths import ExcludedDirectories
    from holdfast.files.index.stat_index import KnownFile, Signature
    from holdfast.files.scan.capture_estimate import CaptureEstimate
    from holdfast.files.scan.overlay_layer import UpperLayer
    from holdfast.files.tree import ApplyNotes, ApplyResult, CleanResult, DirtySource, EntryLookup, SavedManifest
    from holdfast.files.write.directory_modes import DirectoryModes
    from holdfast.model.content import BlobSink, Content, Progress, Supply
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash

_RULE_FILES = (GITIGNORE, CHECKPOINTIGNORE)
_CAPTURE, _FILES = Capture(), Files()
_log = Log(__name__)


class LocalTree:
    """The tree below a directory, with its stat index. See `holdfast.files.tree.Tree` for the contract.

    With ``dirty`` set, an index that this object has once brought up to date stays so by looking only at the paths that
    the source names: the cost of a scan then depends on the changes alone. Only `save_index` writes the file of the
    index.
    """

    def __init__(
        self,
        root: bytes,
        *,
        index: bytes | None = None,
        modes: bytes | None = None,
        never: Iterable[bytes] = (),
        capture: Capture = _CAPTURE,
        files: Files = _FILES,
        user: GitUser | None = None,
        layer: UpperLayer | None = None,
    ) -> None:
        """``root`` is absolute. ``index`` is the index's file (None: it is kept in memory only), ``modes`` that of
        `DirectoryModes`. ``never`` are absolute paths of directories that are ours (I14). ``capture`` says what a scan
        captures, ``files`` to whom belongs what `apply` creates, and ``user`` whose global excludes are obeyed. If the
        tree is an overlay, ``layer`` is its upper layer: a scan looks at nothing else.
        """
        self.root = root
        self.dirty: DirtySource | None = None
        self._index_path = index
        self._modes_path = modes
        self._index: StatIndex | None = None
        self._never = tuple(never)
        self._capture = capture
        self._sources = IgnoreSources(root, user=user, exclude=capture.exclude)
        self._owner = _owner(files)
        self._layer = layer
        self._findings = ScanFindings()
        self._pending: set[bytes] = set()
        """The paths that may have changed since the last complete scan."""
        self._everything = True
        self._outer: bytes = b""
        self._identity: tuple[int, int] | None = None
        self._reserved: ReservedPaths = ReservedPaths(frozenset(), frozenset())
        """The paths skipped by the last scan."""
        self._excluded: ExcludedDirectories | None = None

    def configure(self, *, capture: Capture, files: Files, never: Iterable[bytes]) -> None:
        """Change the settings, which are as for the constructor. If they change the captured paths, the next scan looks
        at everything, as after a change of the rules from outside the tree.
        """
        never = tuple(never)
        if (capture, never) != (self._capture, self._never):
            self._everything = True
            self._capture, self._never = capture, never
            self._sources.exclude = capture.exclude
            if self._excluded is not None:
                self._excluded.configure(never)
        self._owner = _owner(files)

    @property
    def is_layered(self) -> bool:
        """True if only the upper layer of an overlay is scanned."""
        return self._layer is not None

    @property
    def has_hard_links(self) -> bool:
        """Whether any file that is not ignored had several names at the last full scan of the tree."""
        return self._findings.linked

    @property
    def sources(self) -> IgnoreSources:
        """The rules from outside the tree."""
        return self._sources

    @property
    def excluded(self) -> ExcludedDirectories:
        """Says of a directory whether nothing in it is captured; asked by watchers, and renewed by every full scan."""
        if self._excluded is None:
            from holdfast.files.ignore.excluded_paths import ExcludedDirectories

            self._excluded = ExcludedDirectories(self.root, self._sources, self._never)
        return self._excluded

    @property
    def index(self) -> StatIndex:
        """The stat index, loaded on first use."""
        if self._index is None:
            self._index = StatIndex() if self._index_path is None else load(self._index_path)
            if self._layer is not None:
                self._layer.load(self._index_path)
        return self._index

    def scan(
        self,
        sink: BlobSink,
        *,
        base: Hash | None = None,
        lookup: EntryLookup | None = None,
        saved: SavedManifest | None = None,
        full_hash: bool = False,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
        also: Container[bytes] = (),
    ) -> ScanResult:
        """See `Tree.scan`. A remembered hash is used only for content that the index's label or ``lookup`` shows to be
        stored; with a `HashSink`, which stores nothing, for all. Raises `StorageError` if the root cannot be read.
        """
        index = self.index
        if self.dirty is not None:
            drained = self.dirty.drain()
            self._everything |= drained.everything
            self._pending |= drained.paths
        try:
            fd = _open_whole(self.root)
        except OSError as error:
            if isinstance(error, PermissionError) and base is not None and index.root == base and not index.delta:
                # As for directories in it: an unreadable one does not mean that anything has changed.
                _log.warning(
                    "the workspace's directory cannot be read: %s; Holdfast uses its last saved state",
                    error.strerror,
                )
                return ScanResult(base, {}, [NotCaptured(b"", failure(error) + KEPT)], 0)
            raise _no_root(self.root, error) from error
        try:
            outer = self._sources.outer()
            reserved = find_reserved(self.root, self._never)
            if self._layer is not None:
                filled = self._layer.prepare(index, outer, lambda path: rules_above(fd, path, outer))
                if filled and self.dirty is None:
                    self.save_index()
            hashes_only = isinstance(sink, HashSink)
            trust = TrustedContent(
                index,
                hashes_only=hashes_only,
                base=base,
                lookup=lookup,
                full_hash=full_hash,
                beneath=None if self._layer is None else self._layer.lower_entry,
            )
            about = os.fstat(fd)
            identity = (about.st_dev, about.st_ino)
            whole = (
                self.dirty is None
                or self._everything
                or not trust.everywhere
                or outer.fingerprint != self._outer
                or identity != self._identity
                or reserved != self._reserved
                or b"" in self._pending
            )
            # Until the scan is complete, the state in memory is of two times.
            self._everything = True
            if whole:
                self._findings = ScanFindings()
                if self._excluded is not None:
                    self._excluded.refresh()
            reader = FileReader(index, self._findings, sink, self._capture, lookup=lookup, saved=saved, also=also)
            scanner = Scanner(index, self._findings, trust, reader, reserved=reserved, saved=saved, progress=progress)
            if whole:
                index.close()
                unchanged = None if self._layer is None else self._layer.unchanged(index)
                scanner.walk_all(fd, outer, meanwhile, unchanged)
            else:
                self._scan_some(scanner, fd, trust)
        except OSError as error:
            raise StorageError(f"the workspace's directory cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)
        self._everything = False
        if self._layer is not None:
            self._layer.settle()
        self._pending.clear()
        self._outer = outer.fingerprint
        self._identity = identity
        if self._modes_path is not None and os.path.lexists(self._modes_path):
            from holdfast.files.write.directory_modes import DirectoryModes

            modes = DirectoryModes(self._modes_path)
            modes.forget(index.directories)
            modes.save()
        self._reserved = reserved
        not_captured = [NotCaptured(path, reason) for path, reason in sorted(self._findings.not_captured.items())]
        if base is not None and index.root == base:
            changes: dict[bytes, Entry | None] = {path: after for path, (_, after) in index.delta.items()}
            return ScanResult(base, changes, not_captured, reader.files_read)
        return ScanResult(None, dict(index.entries()), not_captured, reader.files_read)

    def _scan_some(self, scanner: Scanner, fd: int, trust: TrustedContent) -> None:
        """Look at what may have changed: known files, directories with others in them, dirty directories whole."""
        index = self.index
        index.close()
        known = index.directories
        levels: set[bytes] = {_nearest(path, known) for path in trust.suspects}
        whole: set[bytes] = set()
        touched: dict[bytes, list[bytes]] = {}
        for path in self._pending | self._findings.rescan:
            parent, _, name = path.rpartition(b"/")
            if name in _RULE_FILES and parent in known:
                whole.add(parent)
            if path in known:
                whole.add(path)
            if parent in known:
                touched.setdefault(parent, []).append(name)
            else:
                levels.add(_nearest(parent, known))
        todo = sorted(levels | whole | touched.keys(), reverse=True)
        done: list[bytes] = []
        while todo:
            path = todo.pop()
            if path in scanner.visited or path not in known or (done and under(path, done[-1])):
                continue
            recursive = path in whole
            if not recursive and path not in levels and scanner.scan_names(fd, path, touched[path]):
                continue
            try:
                directory = open_directory(fd, path)
            except OSError as error:
                # Its parent knows its new state.
                parent = path.rpartition(b"/")[0]
                levels.add(parent)
                scanner.visited.discard(parent)
                todo.append(parent)
                if error.errno in REPLACED:
                    scanner.forget(path)
                else:
                    scanner.record_unreadable(path, error)
                    done.append(path)
                continue
            if recursive:
                done.append(path)
            above = self._findings.rules_above(path) if path else self._sources.outer()
            scanner.walk(fd, path, directory, above, recursive=recursive)

    def make_root(self) -> None:
        """See `Tree.make_root`. New directories belong to the configured owner, or to that of the directory above."""
        from holdfast.files.write.ownership import make_directories

        uid, gid = self._owner
        try:
            make_directories(self.root, uid=uid, gid=gid)
        except OSError as error:
            raise StorageError(f"cannot make {display(self.root)}: {error.strerror}", hint=room_hint(error)) from error

    def settle(self, root: Hash) -> None:
        """See `Tree.settle`. Writes the index to its file, unless a `dirty` source is set."""
        self.index.label(root)
        if self.dirty is None:
            self.save_index()

    def save_index(self) -> None:
        """Write the index to its file, if it has changed. A failure is logged: the next scan is slower."""
        if self._index_path is None or self._index is None or not self._index.changed:
            return
        try:
            self._index.save(self._index_path)
        except StorageError as error:
            _log.warning("%s", error.message)
            return
        if self._layer is not None:
            self._layer.save(self._index_path)

    def _rooted(self, reserved: ReservedPaths | None = None, modes: DirectoryModes | None = None) -> Root:
        """Access to the root as it is now."""
        try:
            return Root(open_root(self.root), reserved=reserved, modes=modes)
        except OSError as error:
            raise _no_root(self.root, error) from error

    def _rooted_to_write(self, modes: DirectoryModes | None = None) -> Root:
        """As `_rooted`, for changing the tree. An early scan ends: its results may be changed now."""
        end_early()
        return self._rooted(find_reserved(self.root, self._never), modes)

    def read(self, path: bytes) -> Content:
        """See `Tree.read`."""
        with self._rooted() as root:
            if stat.S_ISLNK(root.lstat(path).st_mode):
                return root.readlink(path)
            fd = root.open_file(path)
        if os.fstat(fd).st_size > SMALL_BLOB_BYTES:
            return _pieces(fd, path)
        return b"".join(_pieces(fd, path))

    def peek(self, path: bytes, most: int) -> bytes | None:
        """The present content of the file at ``path``, perhaps half written; None if it is no regular file of at most
        ``most`` bytes, or cannot be read at once. Never reads our own files, and never follows a link.
        """
        if any(under(path, ours) for ours in self._reserved.paths):
            return None
        parent, _, name = path.rpartition(b"/")
        try:
            root = open_root(self.root)
            try:
                fd = open_directory(root, parent)
            finally:
                os.close(root)
        except OSError:
            return None
        try:
            return peek(fd, name, most)
        finally:
            os.close(fd)

    def is_there(self, path: bytes, *, directories: bool = False) -> bool:
        """See `Tree.is_there`."""
        try:
            with self._rooted() as root:
                found = root.lstat(path)
                return directories or not stat.S_ISDIR(found.st_mode)
        except (NotFoundError, EscapeError, StorageError):
            return False

    def share(self, path: bytes, entry: Entry) -> int | None:
        """See `Tree.share`."""
        known = self.index.get(path)
        if known is None or known.entry != entry:
            return None
        try:
            with self._rooted() as root:
                return root.open_file(path)
        except HoldfastError:
            return None

    def apply(
        self,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | Supply | None]],
        *,
        nonce: str,
        progress: Progress | None = None,
        notes: ApplyNotes | None = None,
    ) -> ApplyResult:
        """See `Tree.apply`."""
        from holdfast.files.write.applier import Applier
        from holdfast.files.write.directory_modes import DirectoryModes
        from holdfast.files.write.ownership import owner_for

        uid, gid = self._owner
        modes = DirectoryModes(self._modes_path)
        with self._rooted_to_write(modes) as root:
            observed = _Observed(self.index, self._findings, self._pending)
            try:
                owner = owner_for(root.fd, uid=uid, gid=gid)
                return Applier(root, observed, owner=owner, configured=(uid, gid)).apply(
                    deletes, writes, nonce=nonce, progress=progress, notes=notes
                )
            finally:
                modes.save()

    def clean(self, nonce: str) -> CleanResult:
        """See `Tree.clean`."""
        from holdfast.files.write.applier import Applier

        with self._rooted_to_write() as root:
            return Applier(root, self.index).clean(nonce)

    def excluded_paths(self) -> Iterator[bytes]:
        """The paths excluded by the rules: see `holdfast.files.ignore.excluded_paths.excluded_paths`."""
        from holdfast.files.ignore.excluded_paths import excluded_paths

        reserved = find_reserved(self.root, self._never)
        return excluded_paths(self.root, self._sources.outer(), reserved=reserved.paths)

    def estimate(self, *, max_files: int, max_bytes: int) -> CaptureEstimate:
        """How much a first checkpoint would capture: see `holdfast.files.scan.capture_estimate.estimate`."""
        from holdfast.files.scan.capture_estimate import estimate

        reserved = find_reserved(self.root, self._never).paths
        return estimate(self.root, self._sources.outer(), max_files=max_files, max_bytes=max_bytes, reserved=reserved)


class _Observed:
    """The index as an `Applier` uses it: new entries are racy at first, and the next scan checks them again."""

    def __init__(self, index: StatIndex, findings: ScanFindings, pending: set[bytes]) -> None:
        self._index = index
        self._findings = findings
        self._pending = pending

    def get(self, path: bytes) -> KnownFile | None:
        return self._index.get(path)

    def put(self, path: bytes, entry: Entry, signature: Signature, *, racy: bool = False) -> None:
        self._index.put(path, entry, signature, racy=racy or is_racy(signature, time.time_ns()))
        self._pending.add(path)
        self._findings.not_captured.pop(path, None)

    def drop(self, path: bytes) -> None:
        self._index.drop(path)
        self._pending.add(path)


def _owner(files: Files) -> tuple[int | None, ...]:
    return tuple(None if number < 0 else number for number in files)


def _nearest(path: bytes, known: Iterable[bytes]) -> bytes:
    """``path``, or the nearest directory above it that is among the ``known`` ones."""
    while path and path not in known:
        path = path.rpartition(b"/")[0]
    return path


def _open_whole(root: bytes) -> int:
    """As `open_root`; `PermissionError` also if the names in it can be listed, and nothing can be reached by them."""
    fd = open_root(root)
    try:
        os.stat(b".", dir_fd=fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _no_root(root: bytes, error: OSError) -> Exception:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(
            f"the workspace's directory {display(root)} is gone",
            hint="restore a checkpoint to bring it back",
            code=ROOT_GONE,
        )
    return StorageError(f"the workspace's directory {display(root)} cannot be read: {error.strerror}")


def _pieces(fd: int, path: bytes) -> Iterator[bytes]:
    try:
        while piece := os.read(fd, CHUNK_BYTES):
            yield piece
    except OSError as error:
        raise StorageError(f"{display(path)}: {error.strerror}") from error
    finally:
        os.close(fd)
