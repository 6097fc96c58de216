"""The upper layer of an overlay, which shows the directories that cannot have changed.

Every change is in the upper layer. So an overlay is scanned like any other tree, except for directories that are not in
its upper layer and were not when the index was written: for these the index is current. (The index was filled from the
manifest of the lower layer at first.) This module only finds those directories, by the names of directories in the
upper layer, and by which are opaque or redirected. The scan reads all others in the overlay, where the kernel has
merged whiteouts and all else. Source: Documentation/filesystems/overlayfs.rst.

The layer is not trusted: it is walked by descriptors and through no link. If the kernel would not have written it so,
more is scanned, never less.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.files.index.index_seed import seed
from holdfast.files.note_file import NoteFile
from holdfast.files.scan.tree_descent import open_directory
from holdfast.files.write.rooted_access import open_root
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import MAX_PATH_BYTES, display

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.ignore.rules import DirectoryRules
    from holdfast.files.index.index_seed import LowerTree
    from holdfast.files.index.stat_index import StatIndex
    from holdfast.model.entries import Entry

    RulesAbove = Callable[[bytes], DirectoryRules]
    """Gives the rules in force in the directory above a path."""

_LOG = Log(__name__)
_MOST_BYTES: Final = 1 << 30
_CHECKSUM: Final = slice(8, 24)
"""Where the file of an index has its checksum: docs/formats/stat-index.md."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_REDIRECT: Final = 4096
_NONE: Final = (errno.ENODATA, errno.EOPNOTSUPP)
_SWAPPED: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Sources = dict[bytes, bytes | None]
"""The root and the directories of the upper layer, by path, each with the directory of the lower layer that shows
through it; None if none does."""


class UpperLayer:
    """The state of a tree's upper layer. See `LocalTree`."""

    def __init__(self, upper: bytes, attributes: str, lower: LowerTree, state: bytes) -> None:
        """``upper`` is the layer's directory, ``state`` the file that goes with that of the index."""
        self._upper = upper
        self._attribute = f"{attributes}.overlay."
        self._lower = lower
        self._folder, name = os.path.split(state)
        self._note = NoteFile(
            name=name,
            magic=b"HFML 1 ",
            what="a note of an upper layer",
            max_bytes=_MOST_BYTES,
            advice="nothing depends on it",
        )
        self._before: Sources | None = None
        """The state of the layer when the index was brought up to date; None if unknown."""
        self._now: Sources = {}

    def load(self, index_path: bytes | None) -> None:
        """Remember what the layer was when the index was written to the file ``index_path``."""
        self._before = None if index_path is None else _load(self._note, self._folder, index_path)

    def save(self, index_path: bytes) -> None:
        """Note what the layer was in the scan after which the index was written to its file. A failure is logged."""
        if self._before is None:
            return
        try:
            self._note.write(self._folder, _checksum(index_path) + msgspec.msgpack.encode(list(self._before.items())))
        except OSError as error:
            _LOG.warning("cannot read %s: %s", display(index_path), error.strerror)
        except HoldfastError as error:
            _LOG.warning("%s", error.message)

    def prepare(self, index: StatIndex, outer: DirectoryRules, above: RulesAbove) -> bool:
        """Read the layer, and bring the index up to date where another directory of the lower layer shows than before.

        True if the index was empty, and is filled from the lower layer now. Raises `StorageError` if the upper layer
        cannot be read.
        """
        self._now = self._walk()
        filled = index.root is None and not index.directories
        if filled:
            index.label(self._lower.root)
            seed(index, self._lower, b"", b"", outer)
            self._before = {b"": b""}
        if self._before is None:
            return False
        for path, source in sorted(self._now.items()):
            if not path or source is None or _source(self._before, path) == source:
                continue
            # It was renamed to this path: the index has its files under the old one.
            try:
                rules = above(path)
            except (OSError, HoldfastError):
                continue  # it stays unknown, and the scan reads it
            index.forget(path)
            seed(index, self._lower, source, path, rules)
            self._before = {
                known: their for known, their in self._before.items() if not (known + b"/").startswith(path + b"/")
            } | {path: source}
        return filled

    def unchanged(self, index: StatIndex) -> UnchangedDirectories | None:
        """Knows which directories need not be scanned; None if all must be."""
        return None if self._before is None else UnchangedDirectories(index, self._before, self._now)

    def lower_entry(self, path: bytes) -> Entry | None:
        """The entry of the lower layer at ``path``, as it is seen where nothing was changed."""
        source = _source(self._now, path)
        return None if source is None else self._lower.entry(source)

    def settle(self) -> None:
        """Remember that the index is up to date with the layer as `prepare` has found it."""
        self._before = self._now

    def _walk(self) -> Sources:
        found: Sources = {b"": b""}
        try:
            todo: list[bytes] = [b""]
            root = open_root(self._upper)
            try:
                while todo:
                    path = todo.pop()
                    try:
                        fd = root if not path else open_directory(root, path)
                    except OSError as error:
                        if error.errno not in _SWAPPED:
                            raise
                        found[path] = None
                        continue
                    try:
                        with os.scandir(fd) as entries:
                            names = [
                                os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)
                            ]
                        for name in names:
                            inner = path + b"/" + name if path else name
                            if len(inner) > MAX_PATH_BYTES:
                                continue
                            try:
                                found[inner] = self._below(fd, name, found[path])
                                todo.append(inner)
                            except OSError as error:
                                if error.errno not in _SWAPPED:
                                    raise
                                found[inner] = None  # it is gone or swapped: the scan reads its present state
                    finally:
                        if fd != root:
                            os.close(fd)
            finally:
                os.close(root)
        except OSError as error:
            raise StorageError(f"the upper layer {display(self._upper)} cannot be read: {error.strerror}") from error
        return found

    def _below(self, above_fd: int, name: bytes, above: bytes | None) -> bytes | None:
        """The directory of the lower layer that shows through the directory ``name`` of the upper one; ``above`` shows
        through its parent.
        """
        fd = os.open(name, _DIRECTORY, dir_fd=above_fd)
        try:
            if self._get(fd, "opaque") is not None:
                return None
            redirect = self._get(fd, "redirect")
        finally:
            os.close(fd)
        if redirect is None:
            return None if above is None else above + b"/" + name if above else name
        if redirect.startswith(b"/"):
            source = redirect[1:]
        elif above is None:
            return None
        else:
            source = above + b"/" + redirect if above else redirect
        parts = source.split(b"/")
        return None if b"" in parts or b".." in parts or b"." in parts or b"\0" in source else source

    def _get(self, fd: int, name: str) -> bytes | None:
        try:
            value = os.getxattr(fd, self._attribute + name)
        except OSError as error:
            if error.errno in _NONE:
                return None
            raise
        return value if len(value) <= _MOST_REDIRECT else b"/"  # which `_below` takes for a directory that is not there


class UnchangedDirectories:
    """Knows which directories of an overlay are as the index has them; for the scanner, as a `SecondScanner` is."""

    def __init__(self, index: StatIndex, before: Sources, now: Sources) -> None:
        self._index = index
        self._before = before
        self._now = now

    def claim(self, path: bytes) -> bool:
        """True if the directory ``path`` is as the index has it, under the rules that it names."""
        if path in self._now or path in self._before:
            return False
        record = self._index.directories.get(path)
        return (
            record is not None
            and not record.values[0]
            and (source := _source(self._now, path)) is not None
            and source == _source(self._before, path)
        )


def _source(sources: Sources, path: bytes) -> bytes | None:
    """The path of the lower layer that is visible at ``path``; None if there is none."""
    at, rest = path, b""
    while at not in sources:
        at, _, name = at.rpartition(b"/")
        rest = b"/" + name + rest
    source = sources[at]
    return None if source is None else (source + rest).lstrip(b"/")


def _load(note: NoteFile, folder: bytes, index_path: bytes) -> Sources | None:
    """Load the state saved with the index; None if it is damaged (this is logged), or belongs to another index."""
    try:
        body = note.read(folder)
        if body is None:
            return None
        checksum = _checksum(index_path)
        if len(checksum) != _CHECKSUM.stop - _CHECKSUM.start or not body.startswith(checksum):
            return None
        found = dict(msgpack_decoder(list[tuple[bytes, bytes | None]]).decode(body[len(checksum) :]))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        _LOG.warning("the note of the upper layer is left out, and all of it looked at: %s", error)
        return None
    except HoldfastError as error:
        _LOG.warning("%s; all of the upper layer is looked at", error.message)
        return None
    return found if b"" in found else None


def _checksum(index_path: bytes) -> bytes:
    with open(index_path, "rb") as file:
        return file.read(_CHECKSUM.stop)[_CHECKSUM]
