"""The stat index: what every file looked like when its content was last known, in columns, a few objects per directory.

A directory is one *key*, the bytes that a walk can compute without reading any file (names and stat columns), and one
*values*, the hashes. An unchanged directory is recognised by comparing two keys. The file's format is specified in
``docs/formats/stat-index.md``.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from array import array

from blake3 import blake3

from holdfast.files.ignore.rules import FINGERPRINT_BYTES, UNKNOWN_FINGERPRINT
from holdfast.model.entries import SYMLINK_MODE, Entry
from holdfast.model.errors import StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import HASH_BYTES, Hash
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC = b"HFINDEX" + (b"\x01" if sys.byteorder == "little" else b"\x81")
_HEADER = struct.Struct("=8s16s16sQQ")
"""Magic with version, checksum of all that follows, label, directories, differing paths."""
_LENGTHS = 3
_DELTA = struct.Struct("=IBQI")
_NO_HASH = bytes(HASH_BYTES)
_HALF = 1 << 63

COLUMNS = 5
"""mtime_ns, ctime_ns, size, inode, mode of each entry."""

KNOWN = 0
"""The hash is that of the content as long as the signature is the same."""
RACY = 1
"""The hash was right, but content may have changed since without a trace in the signature."""
NOT_CAPTURED = 2
"""No entry: the type or size of the file is not captured."""
FAILED = 3
"""No entry: it could not be read, and is tried again."""


class Signature(NamedTuple):
    """The part of `stat` that changes when a file's content does."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int
    mode: int
    """The full ``st_mode``."""


def signature_of(info: os.stat_result) -> Signature:
    """The part of a stat result that the index keeps."""
    return Signature(info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode)


class KnownFile(NamedTuple):
    """The record of a path in the index."""

    entry: Entry
    signature: Signature


class DirectoryRecord:
    """The record of one directory. ``key`` and ``values`` are as `make_key` and `make_values` made them."""

    __slots__ = ("key", "values")

    def __init__(self, key: bytes, values: bytes) -> None:
        self.key = key
        self.values = values

    def directories(self) -> list[bytes]:
        """The names of the directories in it that are not ignored."""
        start = self.key.index(b"\0", FINGERPRINT_BYTES) + 1
        names = self.key[start : self.key.index(b"\0", start)]
        return names.split(b"/") if names else []

    def ignored(self) -> tuple[bytes, bytes]:
        """The names of the ignored files and of the ignored directories, joined by ``/``."""
        inside = self.key.index(b"\0", self.key.index(b"\0", FINGERPRINT_BYTES) + 1) + 1
        middle = self.key.index(b"\0", inside)
        return self.key[inside:middle], self.key[middle + 1 : self.key.index(b"\0", middle + 1)]


class DirectoryColumns:
    """The record of one directory, taken apart."""

    __slots__ = (
        "directories",
        "fingerprint",
        "flags",
        "hashes",
        "ignored_directories",
        "ignored_files",
        "names",
        "stats",
    )

    def __init__(self, record: DirectoryRecord | None = None) -> None:
        self.fingerprint = UNKNOWN_FINGERPRINT
        self.names: list[bytes] = []
        """Names of all captured entries except directories, in the order of `stats`, `flags` and `hashes`."""
        self.directories: list[bytes] = []
        self.ignored_files: list[bytes] = []
        self.ignored_directories: list[bytes] = []
        self.stats: array[int] = array("q")
        self.flags = bytearray()
        self.hashes = bytearray()
        if record is None:
            return
        self.fingerprint = record.key[:FINGERPRINT_BYTES]
        parts = record.key[FINGERPRINT_BYTES:].split(b"\0", 4)
        self.names, self.directories, self.ignored_files, self.ignored_directories = (
            part.split(b"/") if part else [] for part in parts[:4]
        )
        self.stats.frombytes(parts[4])
        count = len(self.names)
        self.flags += record.values[1 : 1 + count]
        self.hashes += record.values[1 + count :]

    def record(self) -> DirectoryRecord:
        """Put together again."""
        key = make_key(
            self.fingerprint,
            b"/".join(self.names),
            b"/".join(self.directories),
            b"/".join(self.ignored_files),
            b"/".join(self.ignored_directories),
            self.stats,
        )
        return DirectoryRecord(key, make_values(self.flags, self.hashes))

    def entry(self, at: int) -> Entry | None:
        """The entry of the name at this position; None if it is not captured."""
        if self.flags[at] > RACY:
            return None
        mode = self.stats[at * COLUMNS + 4]
        shown = SYMLINK_MODE if stat.S_ISLNK(mode) else stat.S_IFREG | mode & 0o777
        return Entry(self.hash_at(at), self.stats[at * COLUMNS + 2], shown)

    def row(self, at: int) -> array[int]:
        """The stat columns of this position."""
        return self.stats[at * COLUMNS : (at + 1) * COLUMNS]

    def hash_at(self, at: int) -> Hash:
        """The hash in this position."""
        return Hash(bytes(self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]))

    def append(self, name: bytes, signature: Signature, flag: int, value: bytes) -> None:
        """Add a name that is not there."""
        self.names.append(name)
        self.stats.extend(numbers(signature))
        self.flags.append(flag)
        self.hashes += value

    def keep(self, name: bytes, row: array[int], value: Hash) -> None:
        """Add a name whose content is known, with its row of another record's columns."""
        self.names.append(name)
        self.stats.extend(row)
        self.flags.append(KNOWN)
        self.hashes += value

    def replace(self, at: int, signature: Signature, flag: int, value: bytes) -> None:
        """Put other values in this position."""
        self.stats[at * COLUMNS : (at + 1) * COLUMNS] = numbers(signature)
        self.flags[at] = flag
        self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES] = value

    def remove(self, at: int) -> bytes:
        """Forget the name in this position; the last one takes its place. Returns that name."""
        last = len(self.names) - 1
        name = self.names[last]
        if at != last:
            self.names[at] = name
            self.flags[at] = self.flags[last]
            self.stats[at * COLUMNS : (at + 1) * COLUMNS] = self.stats[last * COLUMNS :]
            self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES] = self.hashes[last * HASH_BYTES :]
        del self.names[last], self.flags[last], self.stats[last * COLUMNS :], self.hashes[last * HASH_BYTES :]
        return name


def numbers(values: Iterable[int]) -> array[int]:
    """The column values, wrapped to 64 bits where they do not fit (inode numbers, years after 2262)."""
    values = list(values)
    try:
        return array("q", values)
    except OverflowError:
        return array("q", [(value + _HALF) % (2 * _HALF) - _HALF for value in values])


def make_key(
    fingerprint: bytes,
    names: bytes,
    directories: bytes,
    ignored_files: bytes,
    ignored_directories: bytes,
    stats: array[int],
) -> bytes:
    """The key that a walk compares: rules' fingerprint, lists of names joined by ``/``, `COLUMNS` numbers a name."""
    return fingerprint + b"\0".join((names, directories, ignored_files, ignored_directories, stats.tobytes()))


def make_values(flags: bytes | bytearray, hashes: bytes | bytearray) -> bytes:
    """Whether any flag is set (one byte), the flags, the hashes (zeros where nothing is captured)."""
    return (b"\1" if any(flags) else b"\0") + bytes(flags) + bytes(hashes)


class StatIndex:
    """Everything known of a tree, and how that differs from the manifest that it is labelled with.

    For one thread at a time. Nothing here is needed: an index that was lost makes the next scan slower, never wrong.
    """

    def __init__(self) -> None:
        self.root: Hash | None = None
        """The root page of the labelled manifest; None if the manifest of the index is unknown."""
        self.directories: dict[bytes, DirectoryRecord] = {}
        """By path; the root is ``b""``."""
        self.delta: dict[bytes, tuple[Entry | None, Entry | None]] = {}
        """Each path whose entry is not the one in the labelled manifest: that one, and the present one."""
        self.changed = False
        """True if `save` would write a different file."""
        self.checksum = _NO_HASH
        """The checksum of the file, as loaded or saved; zeros if there is none."""
        self._open: dict[bytes, tuple[DirectoryColumns, dict[bytes, int]]] = {}

    def label(self, root: Hash) -> None:
        """Say that what the index holds now is exactly the manifest ``root``."""
        if self.root != root or self.delta:
            self.changed = True
        self.root = root
        self.delta.clear()

    def note(self, path: bytes, before: Entry | None, after: Entry | None) -> None:
        """Remember for the label that the entry at ``path`` goes from ``before`` to ``after``."""
        if self.root is None:
            return
        earlier = self.delta.get(path)
        if earlier is not None:
            before = earlier[0]
        if before == after:
            self.delta.pop(path, None)
        else:
            self.delta[path] = (before, after)

    def get(self, path: bytes) -> KnownFile | None:
        """The facts about ``path`` that are certain while its signature is the same; None if there are none."""
        parent, _, name = path.rpartition(b"/")
        found = self._columns(parent, make=False)
        at = None if found is None else found[1].get(name)
        if found is None or at is None or found[0].flags[at] != KNOWN:
            return None
        columns = found[0]
        entry = columns.entry(at)
        return None if entry is None else KnownFile(entry, Signature(*columns.stats[at * COLUMNS : (at + 1) * COLUMNS]))

    def put(self, path: bytes, entry: Entry, signature: Signature, *, racy: bool = False) -> None:
        """``path`` is ``entry``, certain while it looks like ``signature`` (``racy``: not even then)."""
        parent, _, name = path.rpartition(b"/")
        columns, positions = self._columns(parent, make=True) or (DirectoryColumns(), {})
        at = positions.get(name)
        flag = RACY if racy else KNOWN
        self.note(path, None if at is None else columns.entry(at), entry)
        if at is None:
            positions[name] = len(columns.names)
            columns.append(name, signature, flag, entry.hash)
        else:
            columns.replace(at, signature, flag, entry.hash)
        self.changed = True

    def drop(self, path: bytes) -> None:
        """Remove ``path``, which no longer exists; harmless if unknown."""
        parent, _, name = path.rpartition(b"/")
        found = self._columns(parent, make=False)
        if found is None or name not in found[1]:
            return
        columns, positions = found
        at = positions[name]
        self.note(path, columns.entry(at), None)
        positions[columns.remove(at)] = at
        del positions[name]
        self.changed = True

    def paths(self) -> set[bytes]:
        """Every path that is captured."""
        self.close()
        found: set[bytes] = set()
        for path, record in self.directories.items():
            columns, prefix = DirectoryColumns(record), path + b"/" if path else b""
            if record.values[0]:
                found.update(
                    prefix + name for name, flag in zip(columns.names, columns.flags, strict=True) if flag <= RACY
                )
            else:
                found.update([prefix + name for name in columns.names])
        return found

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Every path that is captured, with its entry, in no particular order."""
        self.close()
        for path, record in self.directories.items():
            yield from captured(path, DirectoryColumns(record))

    def forget(self, path: bytes) -> None:
        """Drop the record of the directory ``path`` and all below it."""
        self.close()
        todo = [path]
        while todo:
            at = todo.pop()
            record = self.directories.pop(at, None)
            if record is None:
                continue
            self.changed = True
            columns = DirectoryColumns(record)
            if self.root is not None:
                for inner, entry in captured(at, columns):
                    self.note(inner, entry, None)
            todo.extend(at + b"/" + name if at else name for name in columns.directories)

    def close(self) -> None:
        """Put together what `put` and `drop` took apart. Called by everything that needs it."""
        if self._open:
            for path, (columns, _) in self._open.items():
                self.directories[path] = columns.record()
            self._open.clear()

    def _columns(self, path: bytes, *, make: bool) -> tuple[DirectoryColumns, dict[bytes, int]] | None:
        found = self._open.get(path)
        if found is not None:
            return found
        record = self.directories.get(path)
        if record is None:
            if not make:
                return None
            self._make(path)
        columns = DirectoryColumns(record)
        found = (columns, {name: at for at, name in enumerate(columns.names)})
        if not make and len(self._open) >= 64:
            self.close()
        self._open[path] = found
        return found

    def _make(self, path: bytes) -> None:
        """Note an unknown directory, and the unknown directories above it."""
        while path not in self.directories:
            self.directories[path] = DirectoryColumns().record()
            if not path:
                return
            above, _, name = path.rpartition(b"/")
            parent = self._open.get(above)
            if parent is None:
                columns = DirectoryColumns(self.directories.get(above))
                parent = self._open[above] = (columns, {known: at for at, known in enumerate(columns.names)})
            if name not in parent[0].directories:
                parent[0].directories.append(name)
            path = above

    def save(self, path: bytes) -> None:
        """Write the index to ``path``, mode 0600: atomic, not synced. Raises `StorageError` if that is not possible."""
        self.close()
        lengths: array[int] = array("I")
        parts: list[bytes] = []
        for name, record in self.directories.items():
            lengths.extend((len(name), len(record.key), len(record.values)))
            parts += (name, record.key, record.values)
        for name, sides in self.delta.items():
            for number, entry in enumerate(sides):
                if entry is not None:
                    parts.append(_DELTA.pack(len(name), number, entry.size, entry.mode) + entry.hash + name)
        delta = sum((before is not None) + (after is not None) for before, after in self.delta.values())
        label = _NO_HASH if self.root is None else self.root
        body = b"".join((lengths.tobytes(), *parts))
        rest = _HEADER.pack(MAGIC, _NO_HASH, label, len(self.directories), delta)[24:]
        checksum = blake3(rest).update(body).digest(HASH_BYTES)
        temporary = path + b".tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", buffering=0) as file:
                for part in (MAGIC + checksum + rest, body):
                    view = memoryview(part)
                    while view:
                        view = view[file.write(view) :]
            os.rename(temporary, path)
        except OSError as error:
            raise StorageError(f"cannot write the index {display(path)}: {error.strerror}") from error
        self.changed = False
        self.checksum = checksum


def captured(path: bytes, columns: DirectoryColumns) -> Iterator[tuple[bytes, Entry]]:
    """Every captured entry in the columns of the directory ``path``, with its own path."""
    prefix = path + b"/" if path else b""
    for at, name in enumerate(columns.names):
        entry = columns.entry(at)
        if entry is not None:
            yield prefix + name, entry


def load(path: bytes) -> StatIndex:
    """The index that was saved at ``path``; an empty one if that is missing or damaged in any way. Never raises."""
    index = StatIndex()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            data = file.read()
        _decode(data, index)
    except (OSError, ValueError, struct.error, IndexError, MemoryError):
        return StatIndex()
    return index


def _decode(data: bytes, index: StatIndex) -> None:
    """Fill ``index`` from the bytes of a file; raises `ValueError` or `struct.error` if they are not one."""
    magic, checksum, label, directories, delta = _HEADER.unpack_from(data)
    if magic != MAGIC or blake3(memoryview(data)[24:]).digest(HASH_BYTES) != checksum:
        raise ValueError("not an index, or a damaged one")
    at = _HEADER.size
    width = array("I").itemsize * _LENGTHS
    if directories * width > len(data) - at:
        raise ValueError("more directories than there is room for")
    lengths: array[int] = array("I")
    lengths.frombytes(data[at : at + directories * width])
    at += directories * width
    records = index.directories
    each = iter(lengths)
    for name, key, values in zip(each, each, each, strict=True):
        middle = at + name + key
        records[data[at : at + name]] = DirectoryRecord(data[at + name : middle], data[middle : middle + values])
        at = middle + values
    sides: dict[bytes, list[Entry | None]] = {}
    for _ in range(delta):
        name, side, size, mode = _DELTA.unpack_from(data, at)
        at += _DELTA.size
        value = Hash(data[at : at + HASH_BYTES])
        at += HASH_BYTES
        sides.setdefault(data[at : at + name], [None, None])[side] = Entry(value, size, mode)
        at += name
    if at != len(data):
        raise ValueError("the lengths do not add up")
    index.delta = {name: (before, after) for name, (before, after) in sides.items()}
    index.root = None if label == _NO_HASH else Hash(label)
    index.checksum = checksum
