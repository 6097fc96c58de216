"""Filling a stat index with the known content of a directory, so that no scan must examine it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Protocol

from holdfast.files.git.configuration import MAX_RULES_BYTES
from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE
from holdfast.files.index.stat_index import KNOWN, DirectoryColumns, Signature

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.ignore.rules import DirectoryRules
    from holdfast.files.index.stat_index import StatIndex
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash


class LowerTree(Protocol):
    """A tree that never changes, and of which all is known."""

    @property
    def root(self) -> Hash:
        """The root page of its manifest."""
        ...

    @property
    def changed_ns(self) -> int:
        """The modification and change time of every file in it."""
        ...

    def entries(self, path: bytes) -> Iterable[tuple[bytes, Entry, int]]:
        """Every entry below the directory ``path``, sorted, with its own path and the inode number that it shows."""
        ...

    def entry(self, path: bytes) -> Entry | None:
        """The entry at ``path``."""
        ...

    def read(self, path: bytes, limit: int) -> bytes | None:
        """At most ``limit`` bytes of the file at ``path``; None if there is none."""
        ...


class _Directory:
    """The entries of one directory."""

    __slots__ = ("directories", "files")

    def __init__(self) -> None:
        self.files: list[tuple[bytes, Entry, int]] = []
        self.directories: list[bytes] = []


def seed(index: StatIndex, lower: LowerTree, source: bytes, path: bytes, above: DirectoryRules) -> None:
    """Enter the content of ``lower`` below ``source`` as the content below ``path``, under the rules ``above``.

    The index has no entry below ``path`` yet. If it is empty, and labelled with the manifest of ``lower``, and ``path``
    is the root, excluded paths are noted as gone; otherwise all paths that are not excluded are noted as new.
    """
    index.close()
    found = _grouped(lower, source)
    first = not path and not source and index.root == lower.root
    todo: list[tuple[bytes, bytes, DirectoryRules, bool]] = [(b"", path, above, False)]
    while todo:
        inner, at, rules, is_out = todo.pop()
        directory = found[inner]
        prefix = at + b"/" if at else b""
        if not is_out:
            rules = _rules(lower, _joined(source, inner), at, rules, directory)
        columns = DirectoryColumns()
        columns.fingerprint = rules.fingerprint
        for name, entry, inode in directory.files:
            if is_out or rules.excluded(prefix + name, name, False):
                columns.ignored_files.append(name)
                if first:
                    index.note(prefix + name, entry, None)
                continue
            mode = stat.S_IFMT(entry.mode) | entry.permissions
            columns.append(
                name, Signature(lower.changed_ns, lower.changed_ns, entry.size, inode, mode), KNOWN, entry.hash
            )
            if not first:
                index.note(prefix + name, None, entry)
        for name in directory.directories:
            out = is_out or rules.excluded(prefix + name, name, True)
            (columns.ignored_directories if out else columns.directories).append(name)
            if not out or first:
                todo.append((_joined(inner, name), prefix + name, rules, out))
        if not is_out:
            index.directories[at] = columns.record()
    index.changed = True


def _grouped(lower: LowerTree, source: bytes) -> dict[bytes, _Directory]:
    """Every directory below ``source``, by its path from there."""
    found = {b"": _Directory()}
    start = len(source) + 1 if source else 0
    for path, entry, inode in lower.entries(source):
        above, _, name = path[start:].rpartition(b"/")
        directory = found.get(above)
        if directory is None:
            directory = found[above] = _Directory()
            at = above
            while at:
                parent, _, last = at.rpartition(b"/")
                known = parent in found
                found.setdefault(parent, _Directory()).directories.append(last)
                if known:
                    break
                at = parent
        directory.files.append((name, entry, inode))
    return found


def _rules(
    lower: LowerTree, source: bytes, path: bytes, above: DirectoryRules, directory: _Directory
) -> DirectoryRules:
    names = {name for name, entry, _ in directory.files if not entry.is_symlink}

    def read(name: bytes) -> bytes | None:
        return lower.read(_joined(source, name), MAX_RULES_BYTES + 1) if name in names else None

    own = read(GITIGNORE), read(CHECKPOINTIGNORE)
    return above.below(path, *own) if path else above.at_root(*own)


def _joined(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path and name else path or name
