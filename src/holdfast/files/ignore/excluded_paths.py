"""The paths excluded by the ignore rules: for a watcher, which can skip them, and for people."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.files.ignore.reserved_paths import find_reserved
from holdfast.files.ignore.rules import DirectoryRules, read_rule_files
from holdfast.files.ignore.sqlite_files import INDEX, database_of, is_database
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import under

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable, Iterator

    from holdfast.files.ignore.rules import DirectoryRules, IgnoreSources


# A directory with the ignore rules in force in it, for looking their effect up without a scan.


class ListedEntry(NamedTuple):
    """An entry of such a directory."""

    path: bytes
    """From the root."""
    is_directory: bool
    excluded: bool
    """By the rules."""
    entry: os.DirEntry[str]
    """Usable only while the directory is open."""


@contextmanager
def list_directory(
    root: bytes, path: bytes, above: DirectoryRules
) -> Generator[tuple[DirectoryRules, Iterator[ListedEntry]]]:
    """The rules in the directory ``path`` below ``root``, and its entries, unordered; ``above`` are its parent's rules.

    The directory itself is not opened through a link. Raises `OSError`, also during the iteration.
    """
    fd = os.open(os.path.join(root, path), _DIRECTORY)
    try:
        gitignore, own = read_rule_files(fd)
        rules = above.below(path, gitignore, own) if path else above.at_root(gitignore, own)
        with os.scandir(fd) as entries:
            yield rules, (_item(path, rules, entry) for entry in entries)
    finally:
        os.close(fd)


def _item(path: bytes, rules: DirectoryRules, entry: os.DirEntry[str]) -> ListedEntry:
    name = os.fsencode(entry.name)
    inner = path + b"/" + name if path else name
    is_directory = entry.is_dir(follow_symlinks=False)
    return ListedEntry(inner, is_directory, rules.excluded(inner, name, is_directory), entry)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def excluded_paths(root: bytes, outer: DirectoryRules, *, reserved: frozenset[bytes] = frozenset()) -> Iterator[bytes]:
    """Every path below ``root`` that the rules exclude, sorted; an excluded directory as one path, with a slash.

    ``outer`` are the rules from outside the tree, ``reserved`` is `ReservedPaths.paths`. Unreadable directories are
    skipped silently: a scan reports them.
    """
    waiting: list[tuple[bytes, DirectoryRules]] = [(b"", outer)]
    while waiting:
        path, above = waiting.pop()
        below: list[tuple[bytes, DirectoryRules]] = []
        found: list[bytes] = []
        try:
            with list_directory(root, path, above) as (rules, items):
                inside = list(items)
                captured = {item.path for item in inside if not (item.excluded or item.is_directory)}
                for item in inside:
                    if not item.is_directory and (base := _captured_base(root, item.path, captured)) is not None:
                        if item.path != base + INDEX:
                            continue
                        found.append(item.path)
                    elif item.excluded or item.path in reserved:
                        found.append(item.path + (b"/" if item.is_directory else b""))
                    elif item.is_directory:
                        below.append((item.path, rules))
        except OSError:
            continue
        yield from sorted(found)
        waiting += sorted(below, reverse=True, key=lambda item: item[0])


def _captured_base(root: bytes, path: bytes, captured: Container[bytes]) -> bytes | None:
    """The captured database that the file ``path`` belongs to; None if it belongs to none."""
    base = path[: -len(INDEX)] if path.endswith(INDEX) else database_of(path)
    if base is None or base not in captured:
        return None
    try:
        fd = os.open(os.path.dirname(os.path.join(root, base)), _DIRECTORY)
    except OSError:
        return None
    try:
        return base if is_database(fd, os.path.basename(base)) else None
    finally:
        os.close(fd)


class ExcludedDirectories:
    """Answers for single directories; rule files are read once, until `refresh`.

    ``never`` are absolute paths that are ours. An answer errs on the side of "not excluded" where a directory cannot
    be read.
    """

    def __init__(self, root: bytes, sources: IgnoreSources, never: Iterable[bytes]) -> None:
        self._root = root
        self._sources = sources
        self._never = tuple(never)
        self._reserved = find_reserved(root, self._never)
        self._rules: dict[bytes, DirectoryRules] = {}
        self._known: dict[bytes, bool] = {}
        self._outside = b""

    def configure(self, never: Iterable[bytes]) -> None:
        """Take these for ours from the next `refresh` on."""
        self._never = tuple(never)

    def outside_changed(self) -> bool:
        """True once after the rules have changed that lie where no watcher looks: outside of the root, and in ``.git``.

        Reads a few small files.
        """
        before, self._outside = self._outside, self._sources.outer().fingerprint
        return before != self._outside

    def refresh(self) -> None:
        """Find the reserved paths again, and read the rule files again when next asked."""
        self._reserved = find_reserved(self._root, self._never)
        self._rules.clear()
        self._known.clear()

    def __call__(self, path: bytes) -> bool:
        """True if the directory ``path``, below the root, is excluded; those above it are taken not to be."""
        return self._excludes(path)

    def leaves_out(self, path: bytes, moved: tuple[bytes, bytes] = (b"", b"")) -> bool:
        """True if ``path``, which is no directory, or any directory above it is excluded, as the rule files on the way
        said when they were first asked. ``moved``: rule files below the first of these paths lie below the second now.
        """
        end = path.find(b"/")
        while end >= 0:
            above = path[:end]
            if (known := self._known.get(above)) is None:
                known = self._known[above] = self._excludes(above, moved)
            if known:
                return True
            end = path.find(b"/", end + 1)
        parent, _, name = path.rpartition(b"/")
        return self._in(parent, moved).excluded(path, name, False)

    def _excludes(self, path: bytes, moved: tuple[bytes, bytes] = (b"", b"")) -> bool:
        parent, _, name = path.rpartition(b"/")
        return path in self._reserved.paths or self._in(parent, moved).excluded(path, name, True)

    def _in(self, directory: bytes, moved: tuple[bytes, bytes]) -> DirectoryRules:
        """The rules in force in ``directory``."""
        unknown: list[bytes] = []
        at = directory
        while (rules := self._rules.get(at)) is None:
            unknown.append(at)
            if not at:
                break
            at = at.rpartition(b"/")[0]
        for at in reversed(unknown):
            before, now = moved
            rules = self._rules[at] = self._read(at, now + at[len(before) :] if under(at, before) else at, rules)
        assert rules is not None
        return rules

    def _read(self, directory: bytes, lies_at: bytes, above: DirectoryRules | None) -> DirectoryRules:
        """The rules in ``directory``, with its own rule files; None for the level above the root."""
        gitignore = checkpointignore = None
        try:
            # Only rule files are looked for by name, and they only decide which paths are watched.
            fd = os.open(os.path.join(self._root, lies_at), _DIRECTORY)
        except OSError:
            pass
        else:
            try:
                gitignore, checkpointignore = read_rule_files(fd)
            finally:
                os.close(fd)
        if above is None:
            return self._sources.outer().at_root(gitignore, checkpointignore)
        return above.below(directory, gitignore, checkpointignore)
