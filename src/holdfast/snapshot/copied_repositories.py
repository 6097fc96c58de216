"""Git repositories in complete copies: a copy must not lead to a repository of the user, where Git would write (I15).

A ``.git`` may be a file that names another directory, as in linked work trees and submodules, a link, or a shared
directory. References to a place in the same tree lead to the same place in a copy; all others lead out. Git also looks
for a repository in parent directories: a copy's parents must have none. And a repository lists its linked work trees by
path: a copy's must list none of the user's. Source: gitrepository-layout(5), git-config(1).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux.long_paths import MOST, opened_below
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_GIT: Final = b".git"
_NAMES: Final = frozenset((".git", "worktrees"))
_PASSED_OVER: Final = frozenset((errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
_WORK_TREE: Final = re.compile(rb"(?im)^[ \t]*(?:\[[^\]\n]*\][ \t]*)?worktree[ \t]*=[ \t]*(.*)$")
_PLAIN: Final = re.compile(rb'(?:"[^"\\]*"|[^"\\#;]*)\Z')
"""A value that Git reads literally."""
_CONFIGURATION: Final = (b"config", b"config.worktree")
_LINKED: Final = b"worktrees"
_BACK: Final = b"gitdir"
"""In a directory of each linked work tree: where that has its ``.git``."""
_OF_A_BARE_ONE: Final = (b"HEAD", b"objects", b"refs")
_NEVER_WRITTEN: Final = b"hooks"
_MOST_BYTES: Final = 1 << 20
_MOST_LINKS: Final = 40
_NOWHERE: Final = b"gitdir: /nowhere/holdfast-forks-are-in-no-repository\n"


class GitLinks(NamedTuple):
    """Where what belongs to Git in a tree leads."""

    out: str
    """Why there can be no copy of the tree: a clause that names what leads out; empty if there can."""
    linked: tuple[bytes, ...] = ()
    """Directories, relative to the tree, that list linked work trees in other places or by absolute paths."""
    bare: tuple[bytes, ...] = ()
    """The same of bare repositories. Their files are like any others to checkpoints: what a copy lacked of them, a
    merge would take from the user's."""


def find_git_links(root: bytes, without: Sequence[bytes]) -> GitLinks:
    """Search the tree at ``root``, a real path, except the relative paths ``without``. Walks the tree, and skips
    unreadable parts. Raises `OSError` if that is the root.
    """
    return _Tree(root, without).find_links()


def forget_linked(copy: bytes, linked: Iterable[bytes]) -> None:
    """Remove the records of the ``linked`` work trees from the repositories in a copy: Git in the copy would remove the
    work trees, or claim them. Follows no link. Raises `OSError`.
    """
    top = -1
    try:
        for path in linked:
            top = os.open(copy, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if top < 0 else top
            try:
                with opened_below(top, os.path.dirname(path)) as fd:
                    remove_whole(b"/proc/self/fd/%d/%b" % (fd, os.path.basename(path)))
            except FileNotFoundError:
                continue
    finally:
        if top >= 0:
            os.close(top)


class _TooDeep(Exception):
    """Says where."""


class _Tree:
    """See `find_git_links`."""

    def __init__(self, root: bytes, without: Sequence[bytes]) -> None:
        self._root = root
        self._without = frozenset(without)
        self._top = -1
        self._linked: dict[bytes, None] = {}
        self._bare: list[bytes] = []

    def find_links(self) -> GitLinks:
        """See `find_git_links`."""
        self._top = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path in self._walk():
                if not self._stays(path, set()):
                    return GitLinks(f"a copy would lead to a repository of yours, by {display(path)}")
            return GitLinks("", tuple(self._linked), tuple(self._linked_to_bare()))
        except _TooDeep as error:
            return GitLinks(
                f"a copy could lead to a repository of yours, by {error}: that lies too deep to be looked at"
            )
        finally:
            os.close(self._top)

    def _walk(self) -> Iterator[bytes]:
        """Every path named ``.git``, without a walk of its contents."""
        left = [b""]
        while left:
            at = left.pop()
            try:
                with opened_below(self._top, at) as fd, os.scandir(fd) as found:
                    names = [
                        os.fsencode(entry.name)
                        for entry in found
                        if entry.name in _NAMES or entry.is_dir(follow_symlinks=False)
                    ]
                    if _LINKED in names and _is_bare(fd):
                        self._bare.append(at)
            except OSError as error:
                if not at or error.errno not in _PASSED_OVER:
                    raise
                continue
            for name in names:
                path = os.path.join(at, name)
                if name == _GIT:
                    yield path
                elif path not in self._without:
                    left.append(path)

    def _linked_to_bare(self) -> Iterator[bytes]:
        """See `GitLinks.bare`."""
        for repository in self._bare:
            among = os.path.join(repository, _LINKED)
            with suppress(OSError), os.scandir(self._absolute(among)) as found:
                for entry in found:
                    directory = os.path.join(among, os.fsencode(entry.name))
                    there = _read(self._absolute(os.path.join(directory, _BACK))).rstrip(b"\r\n")
                    if self._resolved(os.path.join(directory, there)) is None:
                        yield directory

    def _stays(self, path: bytes, seen: set[bytes]) -> bool:
        """Whether what Git finds at ``path``, and all that leads to, is in the tree."""
        place = self._resolved(path)
        if place is None:
            return False
        if place in seen:
            return True
        seen.add(place)
        absolute = self._absolute(place)
        try:
            mode = os.lstat(absolute).st_mode
        except OSError:
            return True  # there is no file, so Git finds nothing
        if stat.S_ISREG(mode):
            text = _read(absolute)
            return not text.startswith(b"gitdir: ") or self._stays(_beside(place, text[8:].rstrip(b"\r\n")), seen)
        return not stat.S_ISDIR(mode) or all(self._is_inside(each, seen) for each in self._parts(place))

    def _parts(self, directory: bytes) -> Iterator[tuple[bytes, bool]]:
        """The entries of a repository's own directory, and whether each is a link."""
        left = [directory]
        while left:
            at = left.pop()
            try:
                with os.scandir(self._absolute(at)) as found:
                    for entry in found:
                        path = os.path.join(at, entry.name)
                        if entry.is_dir(follow_symlinks=False):
                            if path != os.path.join(directory, _NEVER_WRITTEN):
                                left.append(path)
                        else:
                            yield path, entry.is_symlink()
            except OSError:
                continue

    def _is_inside(self, part: tuple[bytes, bool], seen: set[bytes]) -> bool:
        path, is_link = part
        if is_link and self._resolved(path) is None:
            return False
        name, directory = os.path.basename(path), os.path.dirname(path)
        if name == b"commondir":
            common = _read(self._absolute(path)).rstrip(b"\r\n")
            return self._stays(os.path.join(directory, common), seen)
        if name == _BACK and os.path.basename(os.path.dirname(directory)) == _LINKED:
            there = _read(self._absolute(path)).rstrip(b"\r\n")
            if self._resolved(os.path.join(directory, there)) is None:
                self._linked[directory] = None
        if name in _CONFIGURATION:
            named = _WORK_TREE.findall(_read(self._absolute(path)))
            if not all(_PLAIN.match(value.strip()) for value in named):
                return False  # what Git makes of it goes on in another line, or ends before a comment
            values = [value.strip().strip(b'"') for value in named]
            return all(self._resolved(os.path.join(directory, value)) is not None for value in values)
        return True

    def _resolved(self, path: bytes) -> bytes | None:
        """The target of a path relative to the root, through links, relative to the root; None if it leads out, or
        through an absolute path, which a copy would share.
        """
        at: list[bytes] = []
        left = path.split(b"/")[::-1]
        links = 0
        if path.startswith(b"/"):
            return None
        while left:
            name = left.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if not at:
                    return None
                at.pop()
                continue
            at.append(name)
            try:
                target = os.readlink(self._absolute(b"/".join(at)))
            except OSError:
                continue
            links += 1
            if target.startswith(b"/") or links > _MOST_LINKS:
                return None
            at.pop()
            left += target.split(b"/")[::-1]
        return b"/".join(at)

    def _absolute(self, path: bytes) -> bytes:
        """Raises `_TooDeep` for what cannot be looked at by its path: Git might reach it by a shorter one."""
        found = os.path.join(self._root, path)
        if len(found) > MOST:
            raise _TooDeep(display(path))
        return found


def keep_apart(directory: bytes) -> None:
    """Keep Git from finding a repository above ``directory``. Idempotent. Raises `OSError`."""
    with suppress(FileExistsError):
        fd = os.open(os.path.join(directory, _GIT), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _NOWHERE)
        finally:
            os.close(fd)


def end_keeping_apart(directory: bytes) -> None:
    """Take away what `keep_apart` has made, if nothing else is in the directory. Raises nothing."""
    with suppress(OSError):
        if os.listdir(directory) == [_GIT] and _read(os.path.join(directory, _GIT)) == _NOWHERE:
            os.unlink(os.path.join(directory, _GIT))


def _is_bare(fd: int) -> bool:
    """Whether the directory holds what Git takes for a repository."""
    try:
        for name in _OF_A_BARE_ONE:
            os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _beside(path: bytes, named: bytes) -> bytes:
    return os.path.join(os.path.dirname(path), named)


def _read(path: bytes) -> bytes:
    """The content of a file, as far as Git would read it; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
