"""Scans a tree: compares each directory with the stat index, and reads every file that is not known to be unchanged.

Every directory is opened by its name in its parent's descriptor, without following a link (I7), and listed through its
own descriptor. So nothing outside of the root is read, also where another process renames or swaps directories.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from holdfast.files.git.configuration import MAX_RULES_BYTES
from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, UNKNOWN_FINGERPRINT
from holdfast.files.ignore.sqlite_files import LOGS, database_of, is_database
from holdfast.files.index.stat_index import (
    COLUMNS,
    KNOWN,
    DirectoryColumns,
    DirectoryRecord,
    Signature,
    StatIndex,
    numbers,
    signature_of,
)
from holdfast.files.scan import file_capture
from holdfast.files.scan._directory_listing import DirectoryListing, encode
from holdfast.files.scan.file_content import KEPT, unread_signature
from holdfast.files.scan.parallel_scan import UNCHANGED_WITH_LINKS, adopt_early, start
from holdfast.files.scan.tree_descent import DIRECTORY, open_directory, rules_in
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import HASH_BYTES
from holdfast.model.log import Log
from holdfast.model.paths import MAX_PATH_BYTES, display, under

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.files.ignore.reserved_paths import ReservedPaths
    from holdfast.files.ignore.rules import DirectoryRules
    from holdfast.files.scan.baseline import ScanFindings, TrustedContent
    from holdfast.files.scan.file_content import FileReader
    from holdfast.files.scan.overlay_layer import UnchangedDirectories
    from holdfast.files.scan.parallel_scan import SecondScanner
    from holdfast.files.scan.tree_descent import Unreadable
    from holdfast.files.tree import SavedManifest
    from holdfast.model.content import Progress
    from holdfast.model.entries import Entry

SWAPPED = "unstable: it was replaced while it was looked at"
REPLACED = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
"""Errors that say that there is no such directory."""

_log = Log(__name__)
_NO_HASH = bytes(HASH_BYTES)
_MAX_DESCRIPTORS = 64
_PROGRESS_EVERY = 1000
_IGNORE = b"ignore"
"""A part of both rule files' names. Most records do not contain it, so they need not be searched for either name."""
_GITIGNORE = os.fsdecode(GITIGNORE)
_CHECKPOINTIGNORE = os.fsdecode(CHECKPOINTIGNORE)


class Scanner:
    """One scan. The index and the findings are brought up to date directory by directory."""

    def __init__(
        self,
        index: StatIndex,
        findings: ScanFindings,
        trust: TrustedContent,
        reader: FileReader,
        *,
        reserved: ReservedPaths,
        saved: SavedManifest | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``trust`` says which remembered hashes hold; all other files are read by the ``reader``, and what cannot be
        read is as ``saved`` has it. Nothing ``reserved`` is scanned.
        """
        self.visited: set[bytes] = set()
        self._index = index
        self._findings = findings
        self._trust = trust
        self._reserved = reserved
        self._saved = saved
        self._progress = progress
        self._reader = reader
        self._unchanged: SecondScanner | UnchangedDirectories | None = None
        """Knows directories that need not be scanned."""
        self._done_early: dict[bytes, tuple[bytes, DirectoryRules, list[bytes]]] = {}
        """Directories that were scanned before their turn: the fingerprint of the rules above, and what `_directory`
        returned."""
        self._seen = 0
        self._reported = 0

    def walk_all(
        self,
        root_fd: int,
        outer: DirectoryRules,
        meanwhile: Callable[[], None] | None = None,
        unchanged: UnchangedDirectories | None = None,
    ) -> None:
        """Bring the index up to date with the whole tree.

        ``outer`` are the rules above the root, ``meanwhile`` is called as `Tree.scan` says, and ``unchanged`` knows
        directories that need not be scanned.
        """
        second = None
        if self._trust.everywhere:
            if unchanged is None:
                second = adopt_early(self._index, root_fd) or start(self._index, root_fd, self._reserved.places)
            self._unchanged = second or unchanged
        try:
            if second is not None:
                if meanwhile is not None:
                    meanwhile()
                self._scan_changed_first(second, root_fd, outer)
            self.walk(root_fd, b"", os.dup(root_fd), outer)
        finally:
            self._unchanged = None
            if second is not None:
                second.end()
        self.visited.difference_update(self._done_early)  # the walk has not come to these: they are gone
        for path in set(self._index.directories).difference(self.visited):
            self.forget(path)

    def _scan_changed_first(self, second: SecondScanner, root_fd: int, outer: DirectoryRules) -> None:
        """Scan the directories that the second process has found changed so far, while it walks on. Only where the same
        rules as before are surely in force; the walk comes to all others in their turn.
        """
        try:
            rules = rules_in(root_fd, b"", outer)
        except OSError:
            return  # the walk meets the same error, and reports it
        plain = {b"": True}
        for path in second.changed_directories():
            record = self._index.directories.get(path)
            if not path or record is None or not record.key.startswith(rules.fingerprint):
                continue
            if not self._is_plain(path.rpartition(b"/")[0], second, plain):
                continue
            if any(under(path, one) for one in self._reserved.paths):
                continue
            try:
                fd = open_directory(root_fd, path)
            except OSError:
                continue
            try:
                if not self._reserved.is_one(fd):
                    self._done_early[path] = (rules.fingerprint, *self._directory(fd, path, rules, True))
            finally:
                os.close(fd)

    def _is_plain(self, path: bytes, second: SecondScanner, known: dict[bytes, bool]) -> bool:
        """True if neither the directory nor any above it, except the root, has changed or has its own rules."""
        found = known.get(path)
        if found is None:
            record = self._index.directories.get(path)
            same = record is not None and _IGNORE not in record.key and second.is_unchanged(path)
            found = known[path] = same and self._is_plain(path.rpartition(b"/")[0], second, known)
        return found

    def walk(self, root_fd: int, path: bytes, fd: int, above: DirectoryRules, *, recursive: bool = True) -> None:
        """Update the directory ``path``, open as ``fd``, and those below it: all of them, or (not ``recursive``) those
        that the index lacks.

        Closes ``fd``. Neither the number of descriptors nor the call stack grows with the depth of the tree.
        """
        descriptors: dict[bytes, int] = {path: fd}
        frames: list[tuple[bytes, DirectoryRules, Iterator[bytes]]] = []
        try:
            rules, names = self._directory(fd, path, above, recursive)
            frames.append((path, rules, iter(names)))
            while frames:
                at, rules, left = frames[-1]
                name = next(left, None)
                if name is None:
                    frames.pop()
                    if at in descriptors:
                        os.close(descriptors.pop(at))
                    continue
                inner = at + b"/" + name if at else name
                done = self._done_early.pop(inner, None)
                if done is not None and done[0] == rules.fingerprint:
                    frames.append((inner, done[1], iter(done[2])))
                    continue
                if self._unchanged is not None and (mark := self._unchanged.claim(inner)):
                    kept = self._keep_unchanged(inner, rules)
                    if kept is not None:
                        self._findings.linked |= mark == UNCHANGED_WITH_LINKS
                        frames.append((inner, rules, iter(kept)))
                        continue
                inner_fd = self._open(root_fd, at, inner, name, descriptors)
                if inner_fd < 0:
                    continue
                descriptors[inner] = inner_fd
                inner_rules, names = self._directory(inner_fd, inner, rules, True)
                if names:
                    frames.append((inner, inner_rules, iter(names)))
                    if len(descriptors) > _MAX_DESCRIPTORS:
                        # The oldest is needed last. `_open` opens it again, by its path.
                        os.close(descriptors.pop(next(iter(descriptors))))
                else:
                    os.close(descriptors.pop(inner))
        finally:
            for open_fd in descriptors.values():
                os.close(open_fd)

    def _keep_unchanged(self, path: bytes, rules: DirectoryRules) -> list[bytes] | None:
        """Keep the record of an unchanged directory; returns the names of its directories. ``rules`` are its parent's.

        None if the directory must be scanned: its files may be stored nowhere; its record was made under other rules;
        it has its own rules, which those below it need; or it is reserved.
        """
        record = self._index.directories[path]
        if (
            path in self._reserved.paths
            or path in self._trust.suspects
            or not record.key.startswith(rules.fingerprint)
            or (_IGNORE in record.key and (GITIGNORE in record.key or CHECKPOINTIGNORE in record.key))
        ):
            return None
        self.visited.add(path)
        self._count(len(record.values) // (HASH_BYTES + 1))
        return record.directories()

    def _open(self, root_fd: int, at: bytes, inner: bytes, name: bytes, descriptors: dict[bytes, int]) -> int:
        """Open the directory ``inner``; -1 if it is not to be walked, which index and findings then say."""
        if inner in self._reserved.paths:
            return -1
        if len(inner) > MAX_PATH_BYTES:
            self._list(inner, f"path too long: {len(inner)} bytes")
            return -1
        try:
            if at not in descriptors:
                descriptors[at] = open_directory(root_fd, at)
            fd = os.open(name, DIRECTORY, dir_fd=descriptors[at])
        except FileNotFoundError:
            self.forget(inner)
            return -1
        except OSError as error:
            self.record_unreadable(inner, error)
            return -1
        if self._reserved.is_one(fd):  # by another path than it is known by: it was moved, or mounted here as well
            os.close(fd)
            self.forget(inner)
            return -1
        return fd

    def record_unreadable(self, path: bytes, error: OSError) -> None:
        """Enter in the findings that the directory ``path`` could not be opened or listed, and keep its saved content
        in the index.
        """
        if error.errno in REPLACED:
            self._list(path, SWAPPED)
            return
        self._list(path, file_capture.failure(error))
        below = path + b"/"
        saved = () if self._saved is None else self._saved.entries(path)
        kept = [item for item in saved if item[0].startswith(below)]
        for inner, entry in kept:
            self._index.put(inner, entry, unread_signature(entry), racy=True)
            parent = inner
            while parent != path and (parent := parent.rpartition(b"/")[0]) not in self.visited:
                self.visited.add(parent)
        self._index.close()
        if kept:
            self._findings.not_captured[path] += KEPT

    def _list(self, path: bytes, reason: str) -> None:
        """Enter in the findings that the directory ``path`` is not captured, with the reason."""
        if not path:
            raise StorageError(f"the workspace's root is {reason}")
        self.forget(path)
        self._findings.not_captured[path] = reason
        self._findings.rescan.add(path)

    def scan_names(self, root_fd: int, path: bytes, names: Iterable[bytes]) -> bool:
        """Update the record of the directory ``path``, in which only ``names`` have changed.

        False, and the record stays as it is, if that takes a `walk`: a name is new, gone, or a directory by now.
        """
        columns = DirectoryColumns(self._index.directories[path])
        if columns.fingerprint == UNKNOWN_FINGERPRINT:
            return False
        try:
            fd = open_directory(root_fd, path)
        except OSError:
            return False
        try:
            return self._scan_names(fd, path, columns, names)
        finally:
            os.close(fd)

    def _scan_names(self, fd: int, path: bytes, columns: DirectoryColumns, names: Iterable[bytes]) -> bool:
        moment = time.time_ns()
        positions = dict(zip(columns.names, range(len(columns.names)), strict=True))
        logs = {name for name in (*columns.names, *columns.ignored_files) if name.endswith(LOGS)}
        seen: list[tuple[int, bytes, Signature]] = []
        for name in names:
            at = positions.get(name)
            if name in logs or any(name + end in logs for end in LOGS):
                return False  # a database and its logs are read together
            try:
                info = None if at is None else os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                return False
            if at is None or info is None or stat.S_ISDIR(info.st_mode):
                return False
            seen.append((at, name, signature_of(info)))
        prefix = path + b"/" if path else b""
        looks: list[tuple[int, bytes, Entry | None, file_capture.CaptureResult]] = []
        for at, name, signature in seen:
            inner = prefix + name
            known = columns.flags[at] == KNOWN and columns.row(at) == numbers(signature)
            if known and self._trust.holds(inner, columns.hash_at(at)):
                continue
            before = columns.entry(at)
            found = self._reader.read(fd, name, inner, signature, before, moment)
            if found is None or found.database:
                return False
            looks.append((at, inner, before, found))
        for at, inner, before, found in looks:
            if columns.flags[at] != KNOWN:
                self._findings.settle(inner)
            columns.replace(at, found.signature, found.flag, found.hash or _NO_HASH)
            self._reader.record(inner, found)
            after = columns.entry(at)
            if after != before:
                self._index.note(inner, before, after)
        if looks:
            self._index.directories[path] = columns.record()
            self._index.changed = True
        self.visited.add(path)
        self._count(len(seen))
        return True

    def forget(self, path: bytes) -> None:
        """Drop the directory ``path`` from index and findings: it is gone, or not captured any more."""
        self._index.forget(path)
        self._findings.forget(path)

    def _directory(
        self, fd: int, path: bytes, above: DirectoryRules, recursive: bool
    ) -> tuple[DirectoryRules, list[bytes]]:
        """Bring one record up to date; returns the directory's rules and the names of those below to go on with."""
        self.visited.add(path)
        record = self._index.directories.get(path)
        moment = time.time_ns()
        listing = None
        if record is not None:
            try:
                listing, rules, unchanged = self._list_known(fd, path, above, record, self._saved_rules)
            except OSError as error:
                self.record_unreadable(path, error)
                return above, []
            self._note_rules(path, rules, above)
            if unchanged:
                self._count(len(listing.names))
                return rules, self._onward(path, listing, recursive)
            if not record.key.startswith(rules.fingerprint):
                listing, recursive = None, True  # decided under other rules
        else:
            rules = rules_in(fd, path, above, unreadable=self._saved_rules)
            self._note_rules(path, rules, above)
        old = None if record is None else DirectoryColumns(record)
        try:
            if listing is None:
                listing = DirectoryListing(None)
                listing.fill_deciding(fd, path, rules, self._was_directory)
            elif old is not None:
                listing.decide_new(path, rules, old)
            listing.settle_databases(fd, path, rules)
        except OSError as error:
            self.record_unreadable(path, error)
            return rules, []
        if self._findings.not_captured.pop(path, None) is not None:
            self._findings.rescan.discard(path)
        self._compare(fd, path, rules, listing, old, record, moment)
        self._count(len(listing.names))
        return rules, self._onward(path, listing, recursive)

    def _was_directory(self, path: bytes) -> bool:
        """True if ``path`` was saved as a directory."""
        return self._saved is not None and any(inner != path for inner, _ in self._saved.entries(path))

    def _onward(self, path: bytes, listing: DirectoryListing, recursive: bool) -> list[bytes]:
        """The names of the directories to scan next: all, or (not ``recursive``) those without a record, which are new
        or were missed by a failed scan.
        """
        self._findings.linked |= listing.linked
        names, known = listing.directories(), self._index.directories
        return [name for name in names if recursive or (path + b"/" + name if path else name) not in known]

    def _list_known(
        self, fd: int, path: bytes, above: DirectoryRules, record: DirectoryRecord, unreadable: Unreadable
    ) -> tuple[DirectoryListing, DirectoryRules, bool]:
        """The listing of the directory, the rules in force there, and whether it equals its ``record``. Changes
        nothing; raises `OSError`. ``unreadable`` as in `rules_in`.
        """
        listing = DirectoryListing(record)
        listing.fill(fd)
        rules = rules_in(
            fd, path, above, git=listing.has(_GITIGNORE), own=listing.has(_CHECKPOINTIGNORE), unreadable=unreadable
        )
        unchanged = (
            listing.key(rules.fingerprint) == record.key
            and not record.values[0]
            and self._trust.everywhere
            and path not in self._trust.suspects
        )
        return listing, rules, unchanged

    def _note_rules(self, path: bytes, rules: DirectoryRules, above: DirectoryRules) -> None:
        if rules is not above:
            self._findings.rules[path] = rules
        else:
            self._findings.rules.pop(path, None)

    def _compare(
        self,
        fd: int,
        path: bytes,
        rules: DirectoryRules,
        listing: DirectoryListing,
        old: DirectoryColumns | None,
        record: DirectoryRecord | None,
        moment: int,
    ) -> None:
        """Make the new record of a changed directory, reading every file with unknown content."""
        findings = self._findings
        prefix = path + b"/" if path else b""
        # The index notes the changes only once the record is complete: a scan that fails in between must leave the two
        # in agreement.
        notes: list[tuple[bytes, Entry | None, Entry | None]] = []
        columns = DirectoryColumns()
        columns.fingerprint = rules.fingerprint
        columns.directories = listing.directories()
        columns.ignored_files = encode(listing.ignored_files)
        columns.ignored_directories = encode(listing.ignored_directories)
        if old is not None:
            for name in set(old.directories).difference(columns.directories):
                self.forget(prefix + name)
        positions = {} if old is None else {name: at for at, name in enumerate(old.names)}
        stats = listing.columns()
        names = encode(listing.names)
        together = self._look_at_databases(fd, prefix, names, stats, old, positions)
        for number, name in enumerate(names):
            inner = prefix + name
            row = stats[number * COLUMNS : (number + 1) * COLUMNS]
            at = positions.pop(name, None)
            before: Entry | None = None
            if old is not None and at is not None:
                flag = old.flags[at]
                if flag == KNOWN and old.row(at) == row and name not in together:
                    value = old.hash_at(at)
                    if self._trust.holds(inner, value):
                        columns.keep(name, row, value)
                        continue
                before = old.entry(at)
                if flag != KNOWN:
                    findings.settle(inner)
            if name in together:
                found = together.pop(name)
            else:
                raw = Signature(*listing.stats[number * COLUMNS : (number + 1) * COLUMNS])
                found = self._reader.read(fd, name, inner, raw, before, moment)
                if found is not None and found.database:
                    # (A log of it may have been made after the directory was listed.)
                    seen = {} if file_capture.is_racy(found.signature, moment) else {name: found.signature}
                    together |= self._reader.read_database(
                        fd, prefix, name, seen, lambda one: self._entry_before(old, positions, one)
                    )
                    if name in together:
                        found = together.pop(name)
            if found is None:
                if before is not None:
                    notes.append((inner, before, None))
                continue
            columns.append(name, found.signature, found.flag, found.hash or _NO_HASH)
            self._reader.record(inner, found)
            after = columns.entry(len(columns.names) - 1)
            if after != before:
                notes.append((inner, before, after))
        for name, found in together.items():
            if found is not None:  # a log that the listing does not have, or that is only saved
                at = positions.pop(name, None)
                before = None if old is None or at is None else old.entry(at)
                columns.append(name, found.signature, found.flag, found.hash or _NO_HASH)
                self._reader.record(prefix + name, found)
                after = columns.entry(len(columns.names) - 1)
                if after != before:
                    notes.append((prefix + name, before, after))
        if old is not None:
            for name, at in positions.items():
                inner = prefix + name
                notes.append((inner, old.entry(at), None))
                if old.flags[at] != KNOWN:
                    findings.settle(inner)
        for note in notes:
            self._index.note(*note)
        new = columns.record()
        if record is None or new.key != record.key or new.values != record.values:
            self._index.directories[path] = new
            self._index.changed = True

    def _look_at_databases(
        self,
        fd: int,
        prefix: bytes,
        names: list[bytes],
        stats: array[int],
        old: DirectoryColumns | None,
        positions: Mapping[bytes, int],
    ) -> dict[bytes, file_capture.CaptureResult | None]:
        """Read the databases with logs among ``names`` that have changed, each together with its logs; the results."""
        logs = [name for name in names if name.endswith(LOGS)]
        if not logs:
            return {}
        numbered = {name: number for number, name in enumerate(names)}
        found: dict[bytes, file_capture.CaptureResult | None] = {}
        for base in dict.fromkeys(filter(None, map(database_of, logs))):
            if base not in numbered or not is_database(fd, base):
                continue
            kept: dict[bytes, Signature] = {}
            members = [name for name in (base, *(base + end for end in LOGS)) if name in numbered]
            for name in members:
                at, number = positions.get(name), numbered[name]
                row = stats[number * COLUMNS : (number + 1) * COLUMNS]
                if old is None or at is None or old.flags[at] != KNOWN or old.row(at) != row:
                    continue
                if self._trust.holds(prefix + name, old.hash_at(at)):
                    kept[name] = Signature(*row)
            if len(kept) < len(members):
                found |= self._reader.read_database(
                    fd, prefix, base, kept, lambda one: self._entry_before(old, positions, one)
                )
        return found

    @staticmethod
    def _entry_before(old: DirectoryColumns | None, positions: Mapping[bytes, int], name: bytes) -> Entry | None:
        at = positions.get(name)
        return None if old is None or at is None else old.entry(at)

    def _saved_rules(self, path: bytes, error: OSError) -> bytes | None:
        """The content of the rule file ``path``, which cannot be read, as it was saved last; None if it was not saved.

        Without it, the files that it leaves out would be saved, and a later restore would delete them.
        """
        if self._saved is None:
            return None
        try:
            return self._saved.read(path, MAX_RULES_BYTES + 1)
        except HoldfastError as failure:
            unread = "the ignore rules in %s are not obeyed: %s; %s"
            _log.warning(unread, display(path), error.strerror, failure.message)
            return None

    def _count(self, files: int) -> None:
        self._seen += files
        if self._progress is not None and self._seen - self._reported >= _PROGRESS_EVERY:
            self._reported = self._seen
            self._progress("scan", self._seen, 0)
