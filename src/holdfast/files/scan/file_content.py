"""Reads the files that a scan finds new or changed. For an unreadable file, its last saved state stays."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE
from holdfast.files.ignore.sqlite_files import LOGS
from holdfast.files.index.stat_index import FAILED, NOT_CAPTURED, RACY, Signature, signature_of
from holdfast.files.scan import file_capture
from holdfast.files.scan._write_quiescence import WriteQuiescence
from holdfast.files.scan.secret_files import CREDENTIALS, is_credential
from holdfast.files.write.displaced_file import read_entry
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import MAX_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from holdfast.files.index.stat_index import StatIndex
    from holdfast.files.scan.baseline import ScanFindings
    from holdfast.files.tree import EntryLookup, SavedManifest
    from holdfast.model.config.settings import Capture
    from holdfast.model.content import BlobSink
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash

_UNSEEN = Signature(0, 0, 0, 0, 0)
_TRIES_TOGETHER = 10

KEPT = "; its last saved state stays"
"""Appended to the reason for an unreadable file."""


class FileReader:
    """Reads the files of one scan into a sink."""

    def __init__(
        self,
        index: StatIndex,
        findings: ScanFindings,
        sink: BlobSink,
        capture: Capture,
        *,
        lookup: EntryLookup | None,
        saved: SavedManifest | None,
        also: Container[bytes],
    ) -> None:
        """Unless ``capture`` includes all files of credentials, only ``saved`` ones, and those in ``also``, are."""
        self.files_read = 0
        self._index = index
        self._findings = findings
        self._sink = sink
        self._max_file_bytes = capture.max_file_bytes
        self._lookup = lookup
        self._saved = saved
        self._credentials = capture.credentials
        self._also = also
        self._stillness = WriteQuiescence()

    def read(
        self, fd: int, name: bytes, inner: bytes, seen: Signature, before: Entry | None, moment: int
    ) -> file_capture.CaptureResult | None:
        """Read the file ``name`` in the open directory, whose path from the root is ``inner``; None if it is gone.

        Its signature was ``seen`` at ``moment`` or later; ``before`` is its entry in the index.
        """
        if len(inner) > MAX_PATH_BYTES:
            return file_capture.CaptureResult(seen, NOT_CAPTURED, None, f"path too long: {len(inner)} bytes")
        if is_credential(inner) and not (self._credentials or inner in self._also or self._has_saved(inner)):
            return file_capture.CaptureResult(seen, NOT_CAPTURED, None, CREDENTIALS)
        previous = self._previous(inner, before)
        found = file_capture.capture(
            fd, name, seen, moment, self._sink, previous, self._max_file_bytes, self._stillness
        )
        return self._as_saved(inner, found) if found is not None and found.flag == FAILED else found

    def record(self, path: bytes, found: file_capture.CaptureResult) -> None:
        """Count the file ``path`` if it was read, and remember why it is not captured, or must be scanned again."""
        if found.reason is not None:
            self._findings.not_captured[path] = found.reason
        else:
            self.files_read += 1
        if found.flag in (RACY, FAILED):
            self._findings.rescan.add(path)

    def unstable(self, path: bytes) -> file_capture.CaptureResult:
        """The result for ``path``, which changed each time when it was read together with others."""
        return self._as_saved(path, file_capture.CaptureResult(_UNSEEN, FAILED, None, file_capture.UNSTABLE))

    def read_database(
        self,
        fd: int,
        prefix: bytes,
        name: bytes,
        kept: Mapping[bytes, Signature],
        entry: Callable[[bytes], Entry | None],
    ) -> dict[bytes, file_capture.CaptureResult | None]:
        """Read the database ``name`` in the open directory and its logs, as they were at one moment: the database
        first, and all of them again until none has changed meanwhile.

        ``prefix`` is the directory's path, with a slash. ``kept`` has the signatures of those whose content is known:
        as long as they look so, they are not in the result. ``entry`` gives the entry of a name in the index.
        """
        present: dict[bytes, Signature] = {}
        for attempt in range(_TRIES_TOGETHER):
            if attempt:
                time.sleep(0.001 * attempt)  # a transaction may come to its end
            moment = time.time_ns()
            present = _present(fd, name)
            same = {one for one, seen in kept.items() if present.get(one) == seen}
            found = {
                one: self.read(fd, one, prefix + one, _UNSEEN, entry(one), moment) for one in present if one not in same
            }
            if _hold_still(fd, name, present, found, moment):
                return {**found, **{one: None for one in kept if one not in present}}
        saved = [one for end in (b"", *LOGS) if (one := name + end) in present or self._has_saved(prefix + one)]
        return {one: self.unstable(prefix + one) for one in saved}

    def _has_saved(self, path: bytes) -> bool:
        """Whether a regular file ``path`` was saved. (A link there does not count: its target was not saved.)"""
        entry = None if self._saved is None else dict(self._saved.entries(path)).get(path)
        return entry is not None and not entry.is_symlink

    def _as_saved(self, path: bytes, failed: file_capture.CaptureResult) -> file_capture.CaptureResult:
        """The result for the file ``path``, which could not be read: as it was saved before, if it was."""
        entry = None if self._saved is None else dict(self._saved.entries(path)).get(path)
        rules = path.rpartition(b"/")[2] in (GITIGNORE, CHECKPOINTIGNORE)
        if entry is None:
            return failed._replace(reason=f"{failed.reason}; its rules do not apply") if rules else failed
        reason = f"{failed.reason}{KEPT}{', and its rules apply' if rules else ''}"
        return file_capture.CaptureResult(unread_signature(entry), RACY, entry.hash, reason)

    def _previous(self, path: bytes, before: Entry | None) -> Hash | None:
        """The hash of the version before, which is stored already, for the sink to encode against."""
        earlier = self._index.delta.get(path)
        if earlier is not None:
            before = earlier[0]
        elif before is None and self._lookup is not None:
            before = self._lookup(path)
        return None if before is None or self._index.root is None else before.hash


def unread_signature(entry: Entry) -> Signature:
    """A signature for an ``entry`` that was not read. No file has it, so the next scan reads the file."""
    return Signature(0, 0, entry.size, 0, entry.mode)


def _present(fd: int, name: bytes) -> dict[bytes, Signature]:
    """The signatures of the database ``name`` and of those of its logs that exist; the database first."""
    found: dict[bytes, Signature] = {}
    for one in (name, *(name + end for end in LOGS)):
        with suppress(OSError):
            found[one] = signature_of(os.stat(one, dir_fd=fd, follow_symlinks=False))
    return found


def _hold_still(
    fd: int,
    name: bytes,
    present: Mapping[bytes, Signature],
    found: Mapping[bytes, file_capture.CaptureResult | None],
    moment: int,
) -> bool:
    """True if none of them has changed since it was read, after ``moment``. Called once all were read: so at one
    moment, after the last read, all of them had the content that was read.
    """
    for one in present:
        captured = found.get(one)
        if one in found and (captured is None or captured.flag == FAILED):
            return False
        if captured is None or captured.hash is None or not file_capture.is_racy(captured.signature, moment):
            continue
        try:  # racy: a change may have left the same times
            again = read_entry(fd, one, os.stat(one, dir_fd=fd, follow_symlinks=False))
        except OSError:
            return False
        if again is None or again.hash != captured.hash:
            return False
    now = _present(fd, name)
    seen = {one: captured.signature for one, captured in found.items() if captured is not None}
    return now == {**present, **seen}
