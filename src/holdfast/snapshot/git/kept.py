"""What forks borrow: a store of objects in the home, whose files are those of the user's store, under names of our own.

Git writes no object that it finds in what it borrows from. Were that the user's store, a commit in a fork could stand
on what nothing of the user's names, or nothing will tomorrow, and the user's gc would take it away. From this store
nothing is taken while a fork is there; so what Git in a fork has once found, it finds as long as that is.

A file shares its blocks with the user's, where the file system can do that, or is the same file by a second name, if it
can have one, or else is a copy. None of them is ever changed, by Git neither; what has a name here is not made again.
Sources: gitrepository-layout(5), gitformat-pack(5), gitformat-commit-graph(5).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.files.duplicate import duplicate
from holdfast.files.reflink import share_blocks
from holdfast.files.replicate import remove_whole
from holdfast.model.errors import RefusedError, StorageError
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.wording import size
from holdfast.snapshot.private import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WORK_TREES = b"worktrees"
"""The directory of the provider's in which forks are, each called by its token."""
OBJECTS = "git_objects"
"""The code with which a fork is refused whose objects cannot be kept."""

_TOKEN = re.compile(rb"[0-9a-f]{16}\Z")
_FOLDER = re.compile(rb"[0-9a-f]{2}\Z")
_LOOSE = re.compile(rb"[0-9a-f]{38}(?:[0-9a-f]{24})?\Z")
_GRAPH = re.compile(rb"graph-[0-9a-f]{40,64}\.graph\Z")
_OF_A_PACK = (b".pack", b".rev", b".promisor", b".idx")
"""The index last: Git sees no pack without one."""
_PACK = b"pack"
_GRAPHS = b"info/commit-graphs"
_REPLACED = (b"info/commit-graph", _GRAPHS + b"/commit-graph-chain")
_NEW, _REPLACING = b"new", b"replacing"
_MOST_LOOKS = 20
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class _Thing(NamedTuple):
    """What is taken whole or not at all: a pack with its index, a loose object, a piece of a graph of commits."""

    store: bytes
    names: tuple[bytes, ...]
    """Of its files, relative to the store, in the order in which they are made."""


def kept_name(shadow: str) -> bytes:
    """What the store is called, in the provider's directory, that belongs to the shadow of that name."""
    return b"kept-" + shadow.removeprefix("shadow-").removesuffix(".git").encode()


def lent_to(directory: bytes) -> tuple[bytes, ...]:
    """What is a fork's own, where ``directory`` is a fork or lies in one: its work tree, and the stores that it borrows
    from. Tells by the path alone: whoever asks knows that it lies where nobody else makes directories.
    """
    at = directory
    while at not in (b"/", b""):
        above = at.rpartition(b"/")[0]
        if _TOKEN.match(os.path.basename(at)) and os.path.basename(above) == WORK_TREES:
            beside = os.path.dirname(above)
            return (at, *(os.path.join(beside, b"kept-" + kind) for kind in (b"sha1", b"sha256")))
        at = above
    return ()


class Kept:
    """The store at a path. Whoever changes it holds what the sessions of the workspace share."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def take(self, stores: Sequence[bytes], *, most_bytes: int) -> None:
        """Have all objects that are in the directories ``stores``, and stay there until this ends, in whatever file.
        Durable when it returns.

        Raises `RefusedError` (``git_objects``) where files would have to be copied, and are more than ``most_bytes``
        (0: any number) or than there is room for, or where one of them is a link; `StorageError` if the stores keep
        changing; `OSError`. What was made until then stays.
        """
        make_private(self.path)
        _Taking(self.path, stores, most_bytes).run()

    def remove(self) -> None:
        """Remove it, whole or not. Cut short, `take` completes it again. Raises `OSError`."""
        remove_whole(self.path)


class _Taking:
    """See `Kept.take`."""

    def __init__(self, path: bytes, stores: Sequence[bytes], most_bytes: int) -> None:
        self._path = path
        self._stores = stores
        self._most_bytes = most_bytes
        self._shares = True
        """Until a file system has said that it cannot."""
        self._ahead: list[_Thing] = []
        """What is missing, and would have to be copied where nothing else can be done."""
        self._may_copy = False
        self._changed = {path}

    def run(self) -> None:
        self._ahead = self._all_missing()
        for store in self._stores:  # first, as a graph is not to name a commit that is not taken
            self._take_graphs(store)
        # Whoever packs objects anew, and removes what they were in, has made the new file before: what is looked for
        # again until there is nothing that is not here has missed no object that is still there.
        for _ in range(_MOST_LOOKS):
            self._ahead = self._all_missing()
            if not self._ahead:
                break
            for thing in self._ahead:
                self._take(thing)
        else:
            raise StorageError(
                f"{display(self._stores[-1])} keeps changing: the objects that a fork borrows cannot be kept",
                hint="wait for git gc, or whatever else works there, to end",
                code="git_failed",
            )
        for directory in self._changed:
            _sync(directory)

    def _all_missing(self) -> list[_Thing]:
        return [thing for store in self._stores for thing in self._missing(store)]

    def _missing(self, store: bytes) -> Iterator[_Thing]:
        """What is in a directory of objects, and not here: packs first, as what is loose gets into them."""
        names, here = _listed(os.path.join(store, _PACK)), _listed(os.path.join(self._path, _PACK))
        for index in names:
            stem = index.removesuffix(b".idx")
            if stem != index and stem + b".pack" in names:
                files = [stem + end for end in _OF_A_PACK if stem + end in names]
                if not here.issuperset(files):
                    yield _Thing(store, tuple(os.path.join(_PACK, name) for name in files))
        for first in _listed(store):
            if _FOLDER.match(first):
                for rest in _listed(os.path.join(store, first)) - _listed(os.path.join(self._path, first)):
                    if _LOOSE.match(rest):
                        yield _Thing(store, (os.path.join(first, rest),))

    def _take(self, thing: _Thing) -> None:
        """Have it here, unless it is gone from where it was."""
        for name in thing.names:
            if not os.path.lexists(target := os.path.join(self._path, name)):
                try:
                    self._bring(os.path.join(thing.store, name), target)
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
                    return

    def _take_graphs(self, store: bytes) -> None:
        """Take the graphs of commits, which make much of what Git does in long histories quick."""
        for name in _listed(os.path.join(store, _GRAPHS)):
            if _GRAPH.match(name):
                self._take(_Thing(store, (os.path.join(_GRAPHS, name),)))
        for name in _REPLACED:
            source, target = os.path.join(store, name), os.path.join(self._path, name)
            if os.path.isfile(source) and not os.path.islink(source) and not _is_one(source, target):
                new = os.path.join(self._path, _REPLACING)
                with suppress(FileNotFoundError):
                    os.unlink(new)
                with suppress(FileNotFoundError):
                    self._bring(source, new)
                    self._make_room(target)
                    os.rename(new, target)

    def _bring(self, source: bytes, target: bytes) -> None:
        """Make the new file ``target`` hold what ``source`` does, the cheapest way that there is; whole or not at all.
        Raises `OSError`, `RefusedError`.
        """
        if not stat.S_ISREG(os.lstat(source).st_mode):
            raise _refused(source)  # what a link leads to need be nothing of Git's
        self._make_room(target)
        if self._shares and self._filled(source, target, share_blocks):
            return
        self._shares = False
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            self._refuse_much()
            self._filled(source, target, _copy)

    def _make_room(self, target: bytes) -> None:
        directory = os.path.dirname(target)
        if directory not in self._changed:
            make_private(directory)
            self._changed.add(directory)

    def _filled(self, source: bytes, target: bytes, fill: Callable[[int, int], bool]) -> bool:
        """Make ``target`` by ``fill``, called with a descriptor of each; False, and there is none, if that says so."""
        new = os.path.join(self._path, _NEW)
        with suppress(FileNotFoundError):
            os.unlink(new)  # of one that was killed
        source_fd = os.open(source, _READ)
        try:
            new_fd = os.open(new, _WRITE, 0o400)
            try:
                filled = fill(source_fd, new_fd)
            finally:
                os.close(new_fd)
        finally:
            os.close(source_fd)
        (os.rename(new, target) if filled else os.unlink(new))
        return filled

    def _refuse_much(self) -> None:
        """Refuse to copy, once, before the first file is."""
        if self._may_copy:
            return
        needed = 0
        for thing in self._ahead:
            for name in thing.names:
                if not os.path.lexists(os.path.join(self._path, name)):
                    with suppress(OSError):
                        needed += os.lstat(os.path.join(thing.store, name)).st_size
        there = os.statvfs(self._path)
        free = there.f_bavail * there.f_frsize
        what = f"a fork needs a copy of the objects in {display(self._stores[-1])}, {size(needed)}"
        if self._most_bytes and needed > self._most_bytes:
            raise RefusedError(
                f"{what}, more than the {size(self._most_bytes)} of snapshot.max_copy_bytes",
                hint="a home on the file system of the repository needs no copy; or set snapshot.max_copy_bytes higher",
                code=OBJECTS,
            )
        if needed > free:
            raise RefusedError(
                f"{what}, and {display(self._path)} has {size(free)} left",
                hint="a home on the file system of the repository needs no copy; or free some space",
                code=OBJECTS,
            )
        self._may_copy = True


def _listed(directory: bytes) -> set[bytes]:
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _refused(path: bytes) -> RefusedError:
    return RefusedError(
        f"{display(path)} is a link, or no file: the objects that a fork borrows cannot be kept",
        hint="`git repack -a -d` in the repository makes it a file; or use another provider of snapshots",
        code=OBJECTS,
    )


def _copy(source: int, target: int) -> bool:
    duplicate(source, target)
    os.fsync(target)
    return True


def _is_one(path: bytes, other: bytes) -> bool:
    """Whether they are the same file, or look so."""
    try:
        one, two = os.lstat(path), os.lstat(other)
    except FileNotFoundError:
        return False
    return os.path.samestat(one, two)


def _sync(directory: bytes) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
