"""The store of objects that forks borrow from, in the home: its files are those of the user's store, under our own
names.

Git does not write objects that it can borrow. If forks borrowed from the user's store, a commit in a fork could depend
on objects without a reference there, which the user's gc would delete. This store keeps all objects while a fork
exists, so Git in the fork always finds them.

A file shares its blocks with the user's, where the file system can, and is a copy otherwise; many loose objects become
packs (`loose`). A file of another such store, when a fork is forked, gets a second hard link, if possible. **Never a
file of the user's**: a process that may write to one name, in the workspace or in a fork, would change the content
under the other, and Git does not verify packs. Git in a fork also renews the times of packs. And adding or removing a
name changes the ctime by which undo recognises other processes' edits. No file is ever changed, nor made again under
its name. Sources: gitrepository-layout(5), gitformat-pack(5), gitformat-commit-graph(5).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux import syscalls
from holdfast.files.linux.reflink import copy_content, share_blocks
from holdfast.model.errors import RefusedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.message_text import size
from holdfast.model.paths import display, under
from holdfast.snapshot.git._command import Git
from holdfast.snapshot.git._loose_objects import MANY, PREFIX, is_made_here, is_small, make_index, names_in, packed
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

WORK_TREES = b"worktrees"
"""The directory of the provider's in which forks are, each called by its token."""
OBJECTS = "git_objects"
"""The code with which a fork is refused whose objects cannot be kept."""

_TOKEN = re.compile(rb"[0-9a-f]{16}\Z")
_FOLDER = re.compile(rb"[0-9a-f]{2}\Z")
_LOOSE = re.compile(rb"[0-9a-f]{38}(?:[0-9a-f]{24})?\Z")
_GRAPH = re.compile(rb"graph-[0-9a-f]{40,64}\.graph\Z")
_OF_A_PACK = (b".pack", b".rev", b".promisor", b".idx")
"""The index last: Git ignores a pack without one."""
_PACK = b"pack"
_GRAPHS = b"info/commit-graphs"
_SINGLE, _CHAIN = b"info/commit-graph", _GRAPHS + b"/commit-graph-chain"
_MOST_COMMITS = 1_500_000
"""Of a graph of more, it would take too long to see that all are there."""
_HERE = -100
"""AT_FDCWD."""
_COMING, _REPLACING = b"coming", b"replacing"
_FEW = 16
"""Up to this many files are synced one by one."""
_MOST_LOOKS = 20
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class _ObjectFiles(NamedTuple):
    """Files that belong together: a pack with its index, a loose object, a part of a commit graph."""

    store: bytes
    names: tuple[bytes, ...]
    """Of its files, relative to the store, in the order in which they are made."""


def directory_name(shadow: str) -> bytes:
    """The name of the store, in the provider's directory, that belongs to the shadow of that name."""
    return b"kept-" + shadow.removeprefix("shadow-").removesuffix(".git").encode()


def lent_to(directory: bytes) -> tuple[bytes, ...]:
    """The parts of a fork, for a ``directory`` that is or is in a fork: its work tree, and the stores that it borrows
    from. Decided by the path alone: the caller knows that only Holdfast makes directories there.
    """
    at = directory
    while at not in (b"/", b""):
        above = at.rpartition(b"/")[0]
        if _TOKEN.match(os.path.basename(at)) and os.path.basename(above) == WORK_TREES:
            beside = os.path.dirname(above)
            return (at, *(os.path.join(beside, b"kept-" + kind) for kind in (b"sha1", b"sha256")))
        at = above
    return ()


class ForkObjects:
    """The store at a path. Its user holds what the sessions of the workspace share."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def take(self, stores: Sequence[bytes], *, own: Sequence[bytes] = (), most_bytes: int) -> int:
        """Add all objects in the directories ``stores`` that remain there meanwhile, in any file; those in ``own`` are
        also stores for forks, which no command can write to. Returns the number of copied bytes. Durable when it
        returns.

        Raises `RefusedError` (``git_objects``) if files would have to be copied, and exceed ``most_bytes`` (0: any
        number) or the free space, or if one of them is a link; `StorageError` if the stores keep changing; `OSError`.
        An incomplete result stays.
        """
        make_private(self.path)
        return _Transfer(self.path, stores, own, most_bytes).run()

    def take_graphs(self, stores: Sequence[bytes], git: Git) -> None:
        """Add the commit graphs in ``stores``, if they name only commits that ``git``, which borrows from this store
        alone, can find: they speed up Git in long histories. Raises `OSError`, `StorageError`.
        """
        _Transfer(self.path, stores, (), 0).graphs(git)

    def remove(self) -> None:
        """Remove it, whole or not. Cut short, `take` completes it again. Raises `OSError`."""
        remove_whole(self.path)


class _Transfer:
    """See `ForkObjects.take`."""

    def __init__(self, path: bytes, stores: Sequence[bytes], own: Sequence[bytes], most_bytes: int) -> None:
        self._path = path
        self._stores = stores
        self._own = own
        self._device = os.stat(path).st_dev if os.path.isdir(path) else -1
        self._links = True
        """Until a file could get no second name that should have got one."""
        self._most_bytes = most_bytes
        self._shares = True
        """Until a file system has said that it cannot."""
        self._ahead: list[_ObjectFiles] = []
        """Missing objects that must be copied if nothing cheaper works."""
        self._may_copy = False
        self._coming: list[tuple[bytes, bytes]] = []
        """Finished temporary files, and their final paths."""
        self._copied = 0
        """Bytes."""
        self._packed: set[str] | None = None
        """The loose objects that are in packs here; None before the first question."""
        self._changed = {path}
        coming = os.path.join(path, _COMING)
        remove_whole(coming)  # of one that was killed
        make_private(coming)

    def run(self) -> int:
        """See `ForkObjects.take`."""
        # A process that repacks objects makes the new file before it removes the old ones. So searching until nothing
        # is missing finds every object that still exists.
        for _ in range(_MOST_LOOKS):
            self._ahead = self._all_missing()
            if not self._ahead:
                break
            self._ahead = self._pack_many(self._ahead)
            for thing in self._ahead:
                self._take(thing)
            self._settle()
        else:
            raise StorageError(
                f"{display(self._stores[-1])} keeps changing: the objects that a fork borrows cannot be kept",
                hint="wait until git gc, or another process that works there, ends",
                code="git_failed",
            )
        for directory in self._changed:
            with _opened(directory, os.O_DIRECTORY) as fd:
                os.fsync(fd)
        return self._copied

    def _all_missing(self) -> list[_ObjectFiles]:
        return [thing for store in self._stores for thing in self._missing(store)]

    def _missing(self, store: bytes) -> Iterator[_ObjectFiles]:
        """The objects of a directory that are missing here: packs first, as loose objects get into packs."""
        names, here = _listed(os.path.join(store, _PACK)), _listed(os.path.join(self._path, _PACK))
        for index in names:
            stem = index.removesuffix(b".idx")
            if stem != index and stem + b".pack" in names:
                if is_made_here(index) and not any(under(store, os.path.realpath(path)) for path in self._own):
                    raise _called_like_ours(os.path.join(store, _PACK, index))
                files = [stem + end for end in _OF_A_PACK if stem + end in names]
                if not here.issuperset(files):
                    yield _ObjectFiles(store, tuple(os.path.join(_PACK, name) for name in files))
        for first in _listed(store):
            if _FOLDER.match(first):
                for rest in _listed(os.path.join(store, first)) - _listed(os.path.join(self._path, first)):
                    if _LOOSE.match(rest) and (first + rest).decode() not in self._in_packs(len(rest) + 2):
                        yield _ObjectFiles(store, (os.path.join(first, rest),))

    def _in_packs(self, digits: int) -> set[str]:
        if self._packed is None:
            self._packed = set()
            for name in _listed(os.path.join(self._path, _PACK)):
                if is_made_here(name):
                    self._packed |= names_in(os.path.join(self._path, _PACK, name), digits)
        return self._packed

    def _pack_many(self, things: list[_ObjectFiles]) -> list[_ObjectFiles]:
        """Add small loose objects as packs, if there are many; returns the others."""
        loose = [thing for thing in things if not thing.names[0].startswith(_PACK)]
        if len(loose) <= MANY:
            return things
        digits = len(loose[0].names[0]) - 1
        held = self._in_packs(digits)
        for pack in packed(_read(loose)):
            self._refuse_more(len(pack.content))
            stem = os.path.join(self._path, _PACK, PREFIX + pack.checksum)
            self._make_room(stem)
            new = os.path.join(self._path, _COMING, b"%d" % len(self._coming))
            with open(os.open(new, _WRITE, 0o400), "wb") as file:
                file.write(pack.content)
            self._coming.append((new, stem + b".pack"))
            of_it = os.path.join(self._path, _COMING, b"%d" % len(self._coming))
            make_index(Git(self._path, git_dir=b"/dev/null"), new, of_it, digits)
            self._coming.append((of_it, stem + b".idx"))
            self._copied += len(pack.content)
            held.update(pack.names)
        self._settle()
        return [thing for thing in things if thing.names[0].replace(b"/", b"").decode() not in held]

    def _take(self, thing: _ObjectFiles) -> None:
        """Have it here, unless it is gone from where it was."""
        for name in thing.names:
            if not os.path.lexists(target := os.path.join(self._path, name)):
                try:
                    self._bring(os.path.join(thing.store, name), target)
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
                    return

    def graphs(self, git: Git) -> None:
        """See `ForkObjects.take_graphs`."""
        for store in self._stores:
            layers = [
                os.path.join(_GRAPHS, name) for name in _listed(os.path.join(store, _GRAPHS)) if _GRAPH.match(name)
            ]
            taken = [self._take_graph(store, name, git) for name in layers]
            self._take_graph(store, _SINGLE, git)
            if layers and all(taken):
                self._take_graph(store, _CHAIN, None)

    def _take_graph(self, store: bytes, name: bytes, git: Git | None) -> bool:
        """Replace our commit graph, if all commits of the new one are here; or (None) a list of graphs."""
        source, target = os.path.join(store, name), os.path.join(self._path, name)
        if not _is_file(source):
            return False
        if _is_one(source, target):
            return True
        new = os.path.join(self._path, _REPLACING)
        with suppress(FileNotFoundError):
            os.unlink(new)
        try:
            self._bring(source, new)
            self._settle()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return False
        # It may be older than the user's gc, and name deleted commits, or newer than the added objects.
        if git is not None and not _all_there(git, commits_in(new)):
            os.unlink(new)
            return False
        self._make_room(target)
        os.rename(new, target)
        return True

    def _bring(self, source: bytes, target: bytes) -> None:
        """Make the new file ``target`` hold what ``source`` does, the cheapest way that there is; whole or not at all.
        Raises `OSError`, `RefusedError`.
        """
        name = os.path.basename(source)
        with _reached(os.path.dirname(source)) as folder:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise _refused(source)  # the target of a link need not be Git's
            self._make_room(target)
            if self._shares and self._filled(folder, name, target, share_blocks):
                return
            self._shares = False
            if self._may_link(source, found.st_dev):
                try:
                    os.link(name, target, src_dir_fd=folder, follow_symlinks=False)
                    return
                except OSError as error:
                    if error.errno not in _CANNOT_LINK:
                        raise
                    self._links = self._may_copy = False
            self._refuse_much()
            self._filled(folder, name, target, copy_content)
            self._copied += found.st_size

    def _may_link(self, source: bytes, device: int) -> bool:
        return self._links and device == self._device and any(under(source, path) for path in self._own)

    def _make_room(self, target: bytes) -> None:
        directory = os.path.dirname(target)
        if directory not in self._changed:
            make_private(directory)
            self._changed.add(directory)

    def _filled(self, folder: int, name: bytes, target: bytes, fill: Callable[[int, int], object]) -> bool:
        """Make a file by ``fill`` from one in ``folder``, called with both descriptors, for `_settle` to put at
        ``target``; False, without a file, if it returns False.
        """
        new = os.path.join(self._path, _COMING, b"%d" % len(self._coming))
        source_fd = os.open(name, _READ, dir_fd=folder)
        try:
            new_fd = os.open(new, _WRITE, 0o400)
            try:
                filled = fill(source_fd, new_fd) is not False
                found = os.fstat(source_fd)
                os.utime(new_fd, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(new_fd)
        finally:
            os.close(source_fd)
        if filled:
            self._coming.append((new, target))
        else:
            os.unlink(new)
        return filled

    def _settle(self) -> None:
        """Put the finished files in their places, durably: a file with its final name is complete after any crash."""
        if len(self._coming) > _FEW:
            with _opened(self._path, os.O_DIRECTORY) as fd:
                syscalls.syncfs(fd)
        else:
            for new, _ in self._coming:
                with _opened(new) as fd:
                    os.fsync(fd)
        for new, target in self._coming:
            os.rename(new, target)
        self._coming.clear()

    def _refuse_much(self) -> None:
        """Refuse to copy, once, before the first file is."""
        if self._may_copy:
            return
        needed = self._copied
        for thing in self._ahead:
            for name in thing.names:
                if not os.path.lexists(os.path.join(self._path, name)):
                    with suppress(OSError):
                        found = os.lstat(source := os.path.join(thing.store, name))
                        needed += 0 if self._may_link(source, found.st_dev) else found.st_size
        self._refuse_beyond(needed, needed - self._copied)
        self._may_copy = True

    def _refuse_more(self, more: int) -> None:
        self._refuse_beyond(self._copied + more, more)

    def _refuse_beyond(self, needed: int, more: int) -> None:
        """Refuse to have copied so much in the end, of which ``more`` is not yet."""
        there = os.statvfs(self._path)
        free = there.f_bavail * there.f_frsize
        what = f"a fork needs a copy of the objects in {display(self._stores[-1])}, {size(needed)}"
        if self._most_bytes and needed > self._most_bytes:
            raise RefusedError(
                f"{what}, more than the {size(self._most_bytes)} of snapshot.max_copy_bytes",
                hint="set snapshot.max_copy_bytes higher (0: no limit), or use another provider",
                code=OBJECTS,
            )
        if more > free:
            raise RefusedError(
                f"{what}, and {display(self._path)} has {size(free)} left",
                hint="free some space, or use another provider",
                code=OBJECTS,
            )


def _read(things: Iterable[_ObjectFiles]) -> Iterator[tuple[str, bytes]]:
    """The names of loose objects, and the contents of their files: those that are small, and exist."""
    for (store, folder), those in itertools.groupby(things, lambda each: (each.store, each.names[0][:2])):
        with suppress(OSError), _reached(os.path.join(store, folder)) as directory:
            for thing in those:
                data = _content(directory, thing.names[0][3:])
                if data is not None:
                    yield thing.names[0].replace(b"/", b"").decode(), data


def _content(directory: int, name: bytes) -> bytes | None:
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        return os.read(fd, found.st_size + 1) if stat.S_ISREG(found.st_mode) and is_small(found.st_size) else None
    finally:
        os.close(fd)


def _listed(directory: bytes) -> set[bytes]:
    try:
        with _reached(directory) as fd:
            return set(map(os.fsencode, os.listdir(fd)))
    except (FileNotFoundError, NotADirectoryError):
        return set()


@contextmanager
def _reached(directory: bytes) -> Generator[int]:
    """A directory whose path has no link: a process in a repository can redirect one to a hidden place at any moment.
    Raises `RefusedError` for a link, `OSError`.
    """
    try:
        fd = syscalls.openat2(_HERE, directory, os.O_RDONLY | os.O_DIRECTORY, syscalls.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(directory) from None
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def _refused(path: bytes) -> RefusedError:
    return RefusedError(
        f"{display(path)} is a link, lies behind one, or is no file: the objects that a fork borrows cannot be kept",
        hint="`git repack -a -d` in the repository makes it a file; or use another provider of snapshots",
        code=OBJECTS,
    )


def _called_like_ours(path: bytes) -> RefusedError:
    """Files with our names have contents that we know: no other program's file may have one."""
    return RefusedError(
        f"{display(path)} is called as only what Holdfast keeps for forks is: it cannot be kept",
        hint="`git repack -a -d` in the repository gives it another name; or use another provider of snapshots",
        code=OBJECTS,
    )


def commits_in(graph: bytes) -> list[bytes] | None:
    """The commits in a graph itself, in hexadecimal digits; None if it is invalid, or too large. Raises `OSError`."""
    with open(graph, "rb") as file:
        magic, version, kind, chunks, _ = struct.unpack(">4sBBBB", file.read(8).ljust(8, b"\0"))
        size = {1: 20, 2: 32}.get(kind, 0)
        table = file.read((chunks + 1) * 12)
        if magic != b"CGPH" or version != 1 or not size or len(table) != (chunks + 1) * 12:
            return None
        places = [struct.unpack_from(">4sQ", table, number * 12) for number in range(chunks + 1)]
        for (name, start), (_, end) in itertools.pairwise(places):
            if name == b"OIDL" and 0 <= end - start <= _MOST_COMMITS * size and not (end - start) % size:
                file.seek(start)
                names = file.read(end - start).hex().encode()
                return [names[at : at + 2 * size] for at in range(0, len(names), 2 * size)]
    return None


def _all_there(git: Git, names: list[bytes] | None) -> bool:
    if names is None:
        return False
    return b" missing" not in git("cat-file", "--batch-check", "--buffer", stdin=b"\n".join([*names, b""]))


def _is_file(path: bytes) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_one(path: bytes, other: bytes) -> bool:
    """Whether they are the same file, or look so."""
    try:
        one, two = os.lstat(path), os.lstat(other)
    except FileNotFoundError:
        return False
    return os.path.samestat(one, two) or (one.st_size, one.st_mtime_ns) == (two.st_size, two.st_mtime_ns)


@contextmanager
def _opened(path: bytes, flags: int = 0) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield fd
    finally:
        os.close(fd)
