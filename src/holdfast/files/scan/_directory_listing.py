"""The entries of one directory at a moment, listed through its descriptor."""

from __future__ import annotations

import os
import stat

from holdfast.files.ignore.rules import FINGERPRINT_BYTES
from holdfast.files.ignore.sqlite_files import INDEX, LOGS, is_database
from holdfast.files.index.stat_index import COLUMNS, DirectoryColumns, DirectoryRecord, make_key, numbers
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from holdfast.files.ignore.rules import DirectoryRules

_LOGS = tuple(map(os.fsdecode, LOGS))
_INDEX = os.fsdecode(INDEX)
_COMPANIONS = (*_LOGS, _INDEX)

UNSEEN = (0,) * COLUMNS
"""The stat columns of a name that stat(2) failed on. No file has them, so `holdfast.files.scan.file_capture` asks
again, and says why that fails.
"""


class DirectoryListing:
    """The present entries of one directory, as `os` gives them; the names still as text, to be encoded all at once."""

    __slots__ = (
        "_record",
        "_skip_directories",
        "_skip_files",
        "ignored_directories",
        "ignored_files",
        "inner",
        "linked",
        "names",
        "stats",
    )

    def __init__(self, record: DirectoryRecord | None) -> None:
        self._record = record
        self.names: list[str] = []
        self.stats: list[int] = []
        self.inner: list[str] = []
        self.linked = False
        """Whether a file that is not ignored has several names."""
        self.ignored_files: list[str] = []
        self.ignored_directories: list[str] = []
        self._skip_files: frozenset[str] = frozenset()
        self._skip_directories: frozenset[str] = frozenset()
        if record is not None:
            files, directories = record.ignored()
            if files:
                self._skip_files = frozenset(os.fsdecode(files).split("/"))
            if directories:
                self._skip_directories = frozenset(os.fsdecode(directories).split("/"))

    def fill(self, fd: int) -> None:
        """List the directory, assuming that the ignored paths are the same. Raises `OSError` if it cannot be listed or
        searched.
        """
        names, stats, inner = self.names.append, self.stats.extend, self.inner.append
        skip_files, skip_directories = self._skip_files, self._skip_directories
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if name in skip_directories:
                            self.ignored_directories.append(name)
                        else:
                            inner(name)
                    elif name in skip_files:
                        self.ignored_files.append(name)
                    else:
                        info = entry.stat(follow_symlinks=False)
                        names(name)
                        stats((info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode))
                        if info.st_nlink > 1 and stat.S_ISREG(info.st_mode):
                            self.linked = True
                except FileNotFoundError:
                    continue
                except OSError:
                    self._fill_unseen(fd, entry)

    def _fill_unseen(self, fd: int, entry: os.DirEntry[str]) -> None:
        """Add an entry that stat(2) failed on, as the kind that it was before: a file system may not even tell that."""
        _must_be_searchable(fd)
        name = entry.name
        if name in self._skip_files:
            self.ignored_files.append(name)
        elif name in self._skip_directories:
            self.ignored_directories.append(name)
        elif self._record is not None and os.fsencode(name) in self._record.directories():
            self.inner.append(name)
        else:
            self.names.append(name)
            self.stats.extend(UNSEEN)

    def fill_deciding(
        self, fd: int, path: bytes, rules: DirectoryRules, was_directory: Callable[[bytes], bool]
    ) -> None:
        """List the directory and ask the rules about each name. Raises `OSError` as `fill` does. ``was_directory`` is
        called for a path whose kind the file system does not tell.
        """
        prefix = path + b"/" if path else b""
        with os.scandir(fd) as entries:
            for entry in entries:
                text = entry.name
                name = os.fsencode(text)
                try:
                    is_directory = entry.is_dir(follow_symlinks=False)
                except OSError:
                    _must_be_searchable(fd)
                    is_directory = was_directory(prefix + name)
                if rules.excluded(prefix + name, name, is_directory):
                    (self.ignored_directories if is_directory else self.ignored_files).append(text)
                elif is_directory:
                    self.inner.append(text)
                else:
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    except OSError:
                        _must_be_searchable(fd)
                        row = UNSEEN
                    else:
                        row = info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode
                        self.linked |= info.st_nlink > 1 and stat.S_ISREG(info.st_mode)
                    self.names.append(text)
                    self.stats.extend(row)

    def decide_new(self, path: bytes, rules: DirectoryRules, old: DirectoryColumns) -> None:
        """After `fill`: ask the rules about the names that ``old``, made under the same rules, does not have."""
        prefix = path + b"/" if path else b""

        def excluded(text: str, is_directory: bool) -> bool:
            name = os.fsencode(text)
            return rules.excluded(prefix + name, name, is_directory)

        known = frozenset(map(os.fsdecode, old.directories))
        out = [text for text in self.inner if text not in known and excluded(text, True)]
        if out:
            self.ignored_directories += out
            gone = frozenset(out)
            self.inner = [text for text in self.inner if text not in gone]
        known = frozenset(map(os.fsdecode, old.names))
        positions = [at for at, text in enumerate(self.names) if text not in known and excluded(text, False)]
        for at in reversed(positions):
            self.ignored_files.append(self.names.pop(at))
            del self.stats[at * COLUMNS : (at + 1) * COLUMNS]

    def settle_databases(self, fd: int, path: bytes, rules: DirectoryRules) -> None:
        """After the rules have decided: add the ignored logs of captured SQLite databases. Remove files that were added
        so before and are no such logs any more, and the indexes of the logs.
        """
        captured: dict[str, bool] = {}

        def is_captured(text: str, end: str) -> bool:
            base = text[: -len(end)]
            if base not in captured:
                captured[base] = base in self.names and is_database(fd, os.fsencode(base))
            return captured[base]

        for text in [text for text in self.ignored_files if text.endswith(_LOGS)]:
            if is_captured(text, text[text.rindex("-") :]):
                try:
                    info = os.stat(text, dir_fd=fd, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(info.st_mode):
                    self.ignored_files.remove(text)
                    self.names.append(text)
                    self.stats.extend((info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode))
        prefix = path + b"/" if path else b""
        for at in reversed(range(len(self.names))):
            text = self.names[at]
            if not text.endswith(_COMPANIONS) or is_captured(text, text[text.rindex("-") :]) is not text.endswith(
                _INDEX
            ):
                continue
            name = os.fsencode(text)
            if text.endswith(_INDEX) or rules.excluded(prefix + name, name, False):
                self.ignored_files.append(self.names.pop(at))
                del self.stats[at * COLUMNS : (at + 1) * COLUMNS]

    def has(self, name: str) -> bool:
        """True if there is a file ``name``."""
        return name in self.names or name in self.ignored_files

    def directories(self) -> list[bytes]:
        """The names of the directories that are not ignored."""
        return encode(self.inner)

    def columns(self) -> array[int]:
        """The stat columns of the names."""
        return numbers(self.stats)

    def is_as_known(self) -> bool:
        """After `fill`: True if the directory equals its record, and the record contains the content of every file.
        That is valid under the rules named in the record.
        """
        record = self._record
        return record is not None and not record.values[0] and self.key(record.key[:FINGERPRINT_BYTES]) == record.key

    def key(self, fingerprint: bytes) -> bytes:
        """The key of a record that holds this."""
        names = os.fsencode("/".join(self.names))
        inner = os.fsencode("/".join(self.inner))
        files = os.fsencode("/".join(self.ignored_files)) if self.ignored_files else b""
        directories = os.fsencode("/".join(self.ignored_directories)) if self.ignored_directories else b""
        return make_key(fingerprint, names, inner, files, directories, self.columns())


def _must_be_searchable(fd: int) -> None:
    """Raise `PermissionError` if the open directory cannot be searched, so that stat(2) fails on everything in it."""
    os.stat(b".", dir_fd=fd)


def encode(names: list[str]) -> list[bytes]:
    """Names as `os` gave them, as bytes."""
    return os.fsencode("/".join(names)).split(b"/") if names else []
