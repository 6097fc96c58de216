"""Other names of objects that lost one, when the log could not keep a link or copy.

Such an object gets its name back by a link from another name, and so stays the same object, on which its records and
hard links depend. The records have most of these names. With the privilege, an object is opened by its handle, wherever
it is. Otherwise the tree is searched, once for all such objects.
"""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.file_handle import handle_of, identity
from holdfast.files.linux.metadata import proc_path, read_xattrs, read_xattrs_at
from holdfast.files.watch.event_syscalls import open_by_handle
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.preimages import preimage_path
from holdfast.undo.journal.records import Content, KeepMethod, Link, Made, Make, Meta, Move, PutBack, Remove
from holdfast.undo.journal.step_footprint import kept_preimages, last_paths, objects_by_path
from holdfast.undo.tree.signatures import describe_object, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Keeping, Mutation, Signature
    from holdfast.undo.journal.step_footprint import Aliases
    from holdfast.undo.log import UndoLog
    from holdfast.undo.tree.rooted_directories import Directories

_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
KEPT = frozenset((KeepMethod.MOVED, KeepMethod.LINKED))
"""How the log has the object itself."""


class OtherLinks:
    """Finds the objects of the records that are being reversed. For one thread at a time."""

    def __init__(
        self,
        directories: Directories,
        aliases: Aliases,
        records: Sequence[Mutation],
        wanted: frozenset[Identity] | None = None,
    ) -> None:
        """``wanted`` are the objects to find; None: those that have other names by the records."""
        self._directories = directories
        self._aliases = aliases
        if wanted is None:
            wanted = frozenset(object_ for keeping, object_ in kept_preimages(records) if keeping.shared)
        self._wanted = wanted
        self._told = _recorded_paths(records, self._wanted) if self._wanted else {}
        self._seen: dict[Identity, list[bytes]] | None = None
        self._is_whole = True
        """All of the tree could be looked through."""

    def directories_moved(self) -> None:
        """Forget the results of the search, whose paths may have changed."""
        self._seen = None

    def descriptors(self, path: bytes, object_: Identity) -> Generator[int]:
        """Descriptors of the object, which had or is to get the name ``path``, as far as it is found, one at a time."""
        for told in self._told.get(object_, ()):
            yield from self._opened(told, object_)
        yield from self._by_handle(path, object_)
        for seen in self._look_through().get(self._aliases.now(object_), ()):
            yield from self._opened(seen, object_)

    def is_away(self, object_: Identity) -> bool:
        """Whether it is certain that the object is not in the tree."""
        return not self._look_through().get(self._aliases.now(object_)) and self._is_whole

    def _opened(self, path: bytes, object_: Identity) -> Generator[int]:
        try:
            place = self._directories.place(path)
            fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
        except OSError:
            return
        try:
            if identity(fd, b"") == self._aliases.now(object_):
                yield fd
        finally:
            os.close(fd)

    def _by_handle(self, path: bytes, object_: Identity) -> Generator[int]:
        handle = handle_of(self._aliases.now(object_))
        if handle is None:
            return
        try:
            # On the mount of the path: only there can a link be made.
            mount = os.open(b".", _LIST, dir_fd=self._directories.directory(path.rpartition(b"/")[0]))
            try:
                fd = open_by_handle(mount, handle)
            finally:
                os.close(mount)
        except OSError:
            return  # it is nowhere any more, or that is not for this process to know
        try:
            yield fd
        finally:
            os.close(fd)

    def _look_through(self) -> dict[Identity, list[bytes]]:
        if self._seen is None:
            self._seen, self._is_whole = {}, True
            wanted = self._aliases.all(self._wanted)
            waiting = [b""]
            while waiting:
                try:
                    self._list(waiting.pop(), wanted, self._seen, waiting)
                except OSError:
                    self._is_whole = False
        return self._seen

    def _list(
        self, path: bytes, wanted: frozenset[Identity], seen: dict[Identity, list[bytes]], waiting: list[bytes]
    ) -> None:
        fd = os.open(b".", _LIST, dir_fd=self._directories.directory(path))
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    inner = path + b"/" + name if path else name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(inner)
                    elif (object_ := identity(fd, name)) in wanted:
                        seen.setdefault(object_, []).append(inner)
        finally:
            os.close(fd)


def _recorded_paths(records: Sequence[Mutation], wanted: frozenset[Identity]) -> dict[Identity, dict[bytes, None]]:
    """The paths at which the records say that the wanted objects were."""
    made = {record.make: record.identity for record in records if isinstance(record, Made)}
    told: dict[Identity, dict[bytes, None]] = {}

    def note(object_: Identity | None, *paths: bytes) -> None:
        if object_ is not None and object_ in wanted:
            told.setdefault(object_, {}).update(dict.fromkeys(path for path in paths if path))

    for record in records:
        match record:
            case Make():
                note(made.get(record.seq), record.path)
            case Link():
                note(record.identity, record.path, record.source)
            case Remove(keeping=kept) if kept.how is KeepMethod.RELATED:
                note(record.identity, record.path, kept.content)
            case Remove() | Content() | Meta() | PutBack():
                note(record.identity, record.path)
            case Move():
                note(record.identity, record.path, record.target)
                if record.replaced is not None:
                    note(record.replaced.identity, record.target, record.path)
            case _:
                pass
    return told


class Survivor(NamedTuple):
    """An object that lost a name in a step, and lives on by others.

    The step has no result for it at any path, but reversing the step may write to it. Others' changes by another name,
    in the tree or outside, show only when the object is examined (I8).
    """

    object: Identity
    path: bytes
    """The name that it lost last."""
    is_changed: bool
    """The records also say that it was written to, or described."""
    now: Signature
    place: Callable[[], Place]
    """Where it can be read, as far as that is known."""


class LoggedObject(NamedTuple):
    """An object that the log has itself."""

    now: Signature
    names: int
    """Also of a pipe, for which the signature has none."""
    place: Callable[[], Place]


def find_survivors(
    log: UndoLog, directories: Directories, records: Sequence[Mutation], shared: Collection[int] | None = None
) -> Iterator[Survivor]:
    """Objects that lost a name by the records, were not left at another path by them, and live on.

    ``shared`` are the numbers of the preimages that may have other names (None: all): others are examined only if the
    records also changed them.
    """
    lost = {object_: (path, keeping) for path, keeping, object_ in lost_names(records)}
    if not lost:
        return
    aliases = log.recorder.aliases
    there = aliases.all(object_ for object_ in objects_by_path(records).values() if object_ is not None)
    changed = aliases.all(last_paths(records))
    elsewhere: OtherLinks | None = None
    for object_, (path, keeping) in lost.items():
        now = aliases.now(object_)
        if now in there:
            continue
        if keeping.how in KEPT:
            if shared is not None and now not in changed and keeping.number not in shared:
                continue
            own = find_in_log(log, keeping.number)
            if own is not None and own.names > 1:
                yield Survivor(object_, path, now in changed, own.now, own.place)
        elif keeping.shared or keeping.how is KeepMethod.RELATED:
            elsewhere = elsewhere or OtherLinks(directories, aliases, records, wanted=frozenset(lost))
            with closing(elsewhere.descriptors(path, object_)) as descriptors:
                for fd in descriptors:
                    found, xattrs = os.fstat(fd), partial(read_xattrs, fd)
                    seen = signature_of(found, directories.device, xattrs)
                    # It had one name more, and may get it back: so the ctime proves nothing.
                    seen = msgspec.structs.replace(seen, names=seen.names + 1, described=describe_object(found, xattrs))
                    name = os.fsencode(os.readlink(proc_path(fd)))  # may be stale; it is only compared
                    yield Survivor(object_, path, now in changed, seen, partial(_same, Place(-1, name, b"")))
                    break


def find_in_log(log: UndoLog, number: int) -> LoggedObject | None:
    """The object with this number in the log, if there is one (0: none)."""
    found = log.preimages.metadata_of(number) if number else None
    if found is None:
        return None
    place = Place(log.preimages.fd, preimage_path(number), b"")
    xattrs = partial(read_xattrs_at, place.dir_fd, place.name)
    return LoggedObject(signature_of(found, log.directories.device, xattrs), found.st_nlink, partial(_same, place))


def lost_names(records: Sequence[Mutation]) -> Iterator[tuple[bytes, Keeping, Identity]]:
    """The names that the records have taken from objects, how each is kept, and the object; no directories."""
    for record in records:
        match record:
            case Remove() if record.type != "d":
                yield record.path, record.keeping, record.identity
            case Move(replaced=replaced) if replaced is not None and replaced.type != "d" and not record.exchanged:
                yield record.target, replaced.keeping, replaced.identity
            case _:
                pass


def _same(place: Place) -> Place:
    return place
