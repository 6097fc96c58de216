"""Others' changes between the interruption of a reversal and its continuation (I8).

The records of the steps and of the reversal together give the present place of each object. A reversed object is as the
reversal left it, which is recorded after each record; others are as the steps left them. Only the objects of the
interrupted record may be in any state in between.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import mtime_of, read_xattrs_at
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.preimages import preimage_path
from holdfast.undo.journal.records import Content, KeepMethod, Made, Meta, Move, Mutation, Remove, Signature
from holdfast.undo.journal.step_footprint import footprint_of, kept_preimages, objects_by_path
from holdfast.undo.reversal.access_grants import with_access
from holdfast.undo.reversal.durable_reversal import ordered_records
from holdfast.undo.tree.signatures import is_described, is_same, place_at, signature_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.files.linux.metadata import Metadata
    from holdfast.undo.journal.records import Keeping, ObjectKey
    from holdfast.undo.journal.step_file import SealedStep
    from holdfast.undo.log import UndoLog
    from holdfast.undo.tree.rooted_directories import Directories

_PIECE = 1 << 16


class InterruptedReversal(NamedTuple):
    """A reversal that was cut short."""

    pending: Sequence[SealedStep]
    """Its steps."""
    position: int | None
    """See `ResumePoint.position`."""
    again: Sequence[Mutation]
    """The records that it has made."""
    noted: dict[ObjectKey, Signature]
    """The results that it has recorded."""
    since: int
    """The sequence number at which it came to the position."""
    began: int
    """When it began (ns)."""


class _FoundObject(NamedTuple):
    """An object, where it is by now."""

    place: Place
    now: Signature
    stat: os.stat_result


def changed_since_interruption(log: UndoLog, cut: InterruptedReversal) -> frozenset[Identity]:
    """The objects of the steps that are neither as the reversal or the steps left them, nor in between."""
    records = ordered_records(cut.pending)
    again = sorted(cut.again, key=lambda record: record.seq)
    in_flight = [record for record in again if record.seq > cut.since]
    if cut.position is not None and cut.position >= 0:
        in_flight.append(records[cut.position])
    moving = _objects(log, in_flight)
    left = _known_signatures(log, cut.pending)
    foreign: set[Identity] = set()
    with log.open_directories() as directories:
        places = _Places(log, directories, [*records, *again])
        for object_ in _objects(log, [*records, *again]):
            found = places.find(object_)
            if found is None:
                continue  # a replacement is examined when its record comes
            now = found.now
            known = [cut.noted[now.key]] if now.key in cut.noted else left.get(now.key, [])
            if any(is_same(one, now, lambda place=found.place: place) for one in _with_opened_mode(known, again, now)):
                continue
            if not known and _has_come_to_light(log, object_, found.stat, cut):
                continue
            if object_ in moving and _IntermediateStates(log, object_, [*records, *again]).may_be(
                found, known, in_flight
            ):
                continue
            foreign.add(object_)
    return frozenset(foreign)


def _has_come_to_light(log: UndoLog, object_: Identity, found: os.stat_result, cut: InterruptedReversal) -> bool:
    """Whether an object that was invisible when the steps finished with it, since a parent directory was closed, is as
    it was when the reversal opened the directory or the object.
    """
    if found.st_ctime_ns <= cut.began:
        return True
    for record in cut.again:
        if isinstance(record, Meta) and log.recorder.aliases.now(record.identity) == object_:
            was = record.metadata
            opened = stat.S_IMODE(with_access(stat.S_IFMT(found.st_mode) | was.mode))
            has_times = not (stat.S_ISDIR(found.st_mode) or stat.S_ISFIFO(found.st_mode))
            return (
                stat.S_IMODE(found.st_mode) in (was.mode, opened)
                and (found.st_uid, found.st_gid) == (was.uid, was.gid)
                and not (has_times and mtime_of(found) != was.mtime)
            )
    return False


def _objects(log: UndoLog, records: Sequence[Mutation]) -> frozenset[Identity]:
    """The objects of the records, by their present aliases."""
    return frozenset(footprint_of(records, log.recorder.aliases).objects)


def _known_signatures(log: UndoLog, pending: Iterable[SealedStep]) -> dict[ObjectKey, list[Signature]]:
    """The results of the steps, and of later ones, for each object."""
    found: dict[ObjectKey, list[Signature]] = {}
    chosen = {one.head.id for one in pending}
    heads = sorted(log.heads.values(), key=lambda head: head.left_at)
    for of_them in (True, False):
        newest: dict[ObjectKey, Signature] = {}
        for head in heads:
            if of_them and head.id not in chosen:
                continue
            newest.update({one.key: one for _, one in head.left if one is not None})
            newest.update({one.key: one for one in head.others})
        for key, one in newest.items():
            found.setdefault(key, []).append(one)
    return found


def _with_opened_mode(known: Iterable[Signature], again: Iterable[Mutation], now: Signature) -> Iterator[Signature]:
    """The known signatures, and each also with the mode during the grant of access to its owner.

    The mode changes an access control list; and attributes become readable.
    """
    described = any(isinstance(record, Meta) for record in again)
    for one in known:
        yield one
        if described and one.mode != now.mode == with_access(one.mode):
            owned = one.described and msgspec.structs.replace(one.described, attributes=b"")
            yield msgspec.structs.replace(one, mode=now.mode, described=owned)


class _Places:
    """Where objects may be by now: in the tree, or under another of their names in the log."""

    def __init__(self, log: UndoLog, directories: Directories, records: Sequence[Mutation]) -> None:
        self._log = log
        self._directories = directories
        self._paths: dict[Identity, list[bytes]] = {}
        self._numbers: dict[Identity, list[int]] = {}
        # It is unknown whether the last recorded change happened.
        for told in (records, records[:-1]):
            for path, object_ in objects_by_path(told, others=True).items():
                if object_ is not None:
                    self._paths.setdefault(log.recorder.aliases.now(object_), []).append(path)
        for keeping, object_ in kept_preimages(records):
            if keeping.number and keeping.how is not KeepMethod.COPIED:
                self._numbers.setdefault(log.recorder.aliases.now(object_), []).append(keeping.number)

    def find(self, object_: Identity) -> _FoundObject | None:
        for place in self._candidates(object_):
            try:
                found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
                if identity(place.dir_fd, place.name) == object_:
                    xattrs = partial(read_xattrs_at, place.dir_fd, place.name)
                    return _FoundObject(place, signature_of(found, self._directories.device, xattrs), found)
            except OSError:
                continue
        return None

    def _candidates(self, object_: Identity) -> Iterator[Place]:
        for path in self._paths.get(object_, ()):
            try:
                yield place_at(self._directories, path)
            except OSError:
                continue
        for number in self._numbers.get(object_, ()):
            kept = self._log.preimages.metadata_of(number)
            if kept is not None and kept.st_nlink > 1 and not stat.S_ISDIR(kept.st_mode):
                yield Place(self._log.preimages.fd, preimage_path(number), b"")


class _IntermediateStates:
    """Whether an object can be what the reversal was changing when it was cut short."""

    def __init__(self, log: UndoLog, object_: Identity, records: Sequence[Mutation]) -> None:
        self._log = log
        self._kept = [one for one, of in kept_preimages(records) if log.recorder.aliases.now(of) == object_]
        self._object = object_

    def may_be(self, found: _FoundObject, known: Sequence[Signature], in_flight: Iterable[Mutation]) -> bool:
        """``known`` are the possible states before, ``in_flight`` the changes in progress."""
        now = found.now
        # A name that comes or goes changes only the ctime.
        if any(_is_renamed(one, now) for one in known):
            return True
        for record in in_flight:
            match record:
                case Made() if record.identity == self._object:
                    # A file is filled only after its alias is recorded.
                    if not stat.S_ISREG(now.mode) or not now.size:
                        return True
                case Content() | Remove() if self._is_it(record.identity):
                    if self._may_become(found, known, record.metadata, record.keeping, isinstance(record, Remove)):
                        return True
                case Move(replaced=lost) if lost is not None and self._is_it(lost.identity):
                    if self._may_become(found, known, lost.metadata, lost.keeping, is_new=True):
                        return True
                case Meta() if self._is_it(record.identity):
                    if self._has_mode(now, known, record.metadata) and any(
                        one.size == now.size and now.mtime in (one.mtime, record.metadata.mtime) for one in known
                    ):
                        return True
                case _:
                    pass
        return False

    def _is_it(self, object_: Identity) -> bool:
        return self._log.recorder.aliases.now(object_) == self._object

    def _may_become(
        self, found: _FoundObject, known: Sequence[Signature], goal: Metadata, keeping: Keeping, is_new: bool
    ) -> bool:
        """Whether it is in a state on the way to its preimage; ``is_new``: starting from nothing."""
        if not self._has_mode(found.now, known, goal, is_new=is_new):
            return False
        if keeping.how not in (KeepMethod.INLINE, KeepMethod.COPIED):
            return found.now.mtime == goal.mtime or not _has_content(found.now)  # renamed back
        return not _has_content(found.now) or self._is_between(
            # A copy starts empty and grows, with holes for the missing parts.
            found.place,
            found.now.size,
            grows=is_new or keeping.how is KeepMethod.COPIED,
        )

    def _has_mode(self, now: Signature, known: Sequence[Signature], goal: Metadata, *, is_new: bool = False) -> bool:
        modes = {goal.mode, *(stat.S_IMODE(one.mode) for one in known), *((0o600, 0o700) if is_new else ())}
        modes |= {with_access(stat.S_IFMT(now.mode) | mode) for mode in modes}
        # A change of owner clears the set-id bits.
        return now.mode & 0o777 in {mode & 0o777 for mode in modes}

    def _is_between(self, place: Place, size: int, *, grows: bool) -> bool:
        """Whether each byte is, at its place, one of the old or of the new content."""
        with ExitStack() as closing:
            sources: list[int | bytes] = []
            for keeping in self._kept:
                if keeping.how is KeepMethod.INLINE:
                    sources.append(keeping.content)
                elif keeping.how is KeepMethod.COPIED and self._log.preimages.metadata_of(keeping.number) is not None:
                    fd = self._log.preimages.open(keeping.number)
                    closing.callback(os.close, fd)
                    sources.append(fd)
            sizes = [len(one) if isinstance(one, bytes) else os.fstat(one).st_size for one in sources]
            if size not in sizes and not (grows and size < max(sizes, default=0)):
                return False
            fd = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.dir_fd)
            closing.callback(os.close, fd)
            return all(
                _is_of(os.pread(fd, _PIECE, at), [_piece(one, at) for one in sources], holes=grows)
                for at in range(0, size, _PIECE)
            )


def _is_renamed(one: Signature, now: Signature) -> bool:
    is_alike = (one.mode, one.size, one.mtime) == (now.mode, now.size, now.mtime)
    return is_alike and is_described(one.described, now.described)


def _piece(source: int | bytes, at: int) -> bytes:
    return source[at : at + _PIECE] if isinstance(source, bytes) else os.pread(source, _PIECE, at)


def _is_of(piece: bytes, sources: Sequence[bytes], *, holes: bool) -> bool:
    if any(source[: len(piece)] == piece for source in sources):
        return True
    return all(
        (holes and not byte) or any(at < len(source) and source[at] == byte for source in sources)
        for at, byte in enumerate(piece)
    )


def _has_content(now: Signature) -> bool:
    return stat.S_ISREG(now.mode) or stat.S_ISLNK(now.mode)
