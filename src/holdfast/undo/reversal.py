"""Reversing what a step recorded, newest record first; each reversal is itself recorded, and so can be reversed.

Every record says what was about to happen. So a reversal looks first what is there: a place that does not hold the
object of the record was not filled by it, a preimage that is not in the log was not taken or was given back already.
That makes reversing idempotent: one that was cut short is continued from the record at which it stopped, and a record
that is reversed twice does nothing the second time. What is there and is not what the step left is somebody else's: it
is not touched, what belongs there is put aside (`holdfast.undo.aside`), and the conflict is reported.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.duplicate import duplicate
from holdfast.files.handle import Identity, identity
from holdfast.files.kernel import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from holdfast.files.metadata import Metadata, apply_metadata, through
from holdfast.model.errors import StorageError
from holdfast.undo.access import granted
from holdfast.undo.elsewhere import Elsewhere
from holdfast.undo.interceptor import Place
from holdfast.undo.preimages import is_empty, place_of
from holdfast.undo.records import (
    Conflicted,
    Content,
    FileType,
    How,
    Keeping,
    Link,
    Made,
    Make,
    Meta,
    Move,
    Mutation,
    Put,
    Remove,
    Signature,
    StepId,
    Touch,
    file_type,
)
from holdfast.undo.signatures import signature_of
from holdfast.undo.writing import AT_ONCE, leased, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.undo.aside import Aside
    from holdfast.undo.directories import Directories
    from holdfast.undo.preimages import Preimages
    from holdfast.undo.recorder import Recorder

_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOENT})

_ELSE = "something else is there now"
UNPROTECTED = "it was not kept, as the step was not protected any more"
APART = "its other names were not found: it is an object of its own now"
OF_NOBODY = frozenset({UNPROTECTED, APART})
"""Conflicts with nobody: what is there is what the reversal left."""
_THEIRS = "somebody else has changed it since"


class Conflict(NamedTuple):
    """Something that could not be brought back, because it is not what the step left."""

    step: StepId
    path: bytes
    reason: str
    aside: int | None = None
    """The number in `Aside` of what belongs there; None if nothing was lost."""


class Kit(NamedTuple):
    """What a reversal works with."""

    recorder: Recorder
    preimages: Preimages
    aside: Aside
    directories: Directories


class Reversal:
    """Reverses records of one or more steps; what reverses that again goes into the open steps of the same ids."""

    def __init__(
        self,
        kit: Kit,
        theirs: frozenset[Identity] = frozenset(),
        known: Iterable[Conflict] = (),
        dated: Mapping[StepId, frozenset[Identity]] = MappingProxyType({}),
    ) -> None:
        """``theirs`` are the objects that somebody else has changed since: they are left as they are.

        ``known`` are the conflicts of the part that was done before it was cut short. ``dated`` are directories that
        keep the mtime that they have now, by the steps of which that is so.
        """
        self._dated = dated
        self._recorder, self._preimages, self._aside, self._directories = kit
        self._aliases = self._recorder.aliases
        self._theirs = self._aliases.all(theirs)
        self._step: StepId = 0
        self._seq = 0
        self.conflicts = list(known)
        self._made: dict[int, Identity] = {}
        self._created: frozenset[Identity] = frozenset()
        """What the steps had made: where it is gone again, nothing of it is missing."""
        self._elsewhere = Elsewhere(self._directories, self._aliases, ())
        self._changed: list[int] = []
        """Descriptors of the objects that the reversal of this record has changed."""
        self.paths = 0
        """How many records were reversed."""

    def run(
        self,
        records: Sequence[Mutation],
        cut: int | None,
        before: Callable[[int, tuple[Signature, ...]], None],
    ) -> None:
        """Reverse ``records``, the last first, or from the position ``cut`` on, at which it was cut short before.
        ``before`` is told each position first, and -1 last; and with it how the objects now look that the reversal of
        the record before has changed.

        Holds the gate of the recorder throughout: mutations of others wait. Raises `OSError` where the system fails,
        `StorageError` where somebody has a lease on a file: call again with the last position.
        """
        self._made = {record.make: record.identity for record in records if isinstance(record, Made)}
        self._created = frozenset(self._made.values())
        self._elsewhere = Elsewhere(self._directories, self._aliases, records)
        start = len(records) - 1 if cut is None else cut
        with self._recorder.gate:
            left: tuple[Signature, ...] = ()
            for position in range(start, -1, -1):
                record = records[position]
                if isinstance(record, Made):
                    continue
                before(position, left)
                left = ()
                self._step, self._seq = record.step, record.seq
                if position == start and self._aside.holds(record.seq):
                    self._note(record.path, _ELSE, aside=True)  # where it was cut short
                    continue
                try:
                    self._reverse_with_access(records, position)
                except BlockingIOError as error:
                    raise StorageError(leased(record.path)) from error
                except OSError as error:
                    if (reason := _stands_in_the_way(error)) is None:
                        raise
                    self._give_up(record, reason)
                finally:
                    if position == cut:
                        self._may_have_changed(record)
                    left = self._looked_at()
            if start >= 0:
                before(-1, left)

    def _has_changed(self, place: Place) -> None:
        """What is at the place was changed by the reversal of this record."""
        if not self._theirs or identity(place.dir_fd, place.name) not in self._theirs:
            self._changed.append(os.open(place.name, _OBJECT, dir_fd=place.dir_fd))

    def _may_have_changed(self, record: Mutation) -> None:
        """What this record is about may have been changed by its reversal before that was cut short, and not told."""
        if isinstance(record, Made):
            return
        for path in (record.path, record.target) if isinstance(record, Move) else (record.path,):
            try:
                self._has_changed(self._directories.place(path))
            except OSError:
                continue  # nothing is there

    def _looked_at(self) -> tuple[Signature, ...]:
        """How that looks, now that nothing more is done to it."""
        left = tuple(signature_of(os.fstat(fd), self._directories.device) for fd in self._changed)
        for fd in self._changed:
            os.close(fd)
        self._changed.clear()
        return left

    def _reverse_with_access(self, records: Sequence[Mutation], position: int) -> None:
        record = records[position]
        try:
            self._reverse(record)
        except PermissionError:
            described = {
                self._aliases.now(one.identity) for one in records[: position + 1] if isinstance(one, Meta | Content)
            }
            with granted(self._recorder, self._directories, record, described) as changed:
                if not changed:
                    raise
                self._reverse(record)

    def _give_up(self, record: Mutation, reason: str) -> None:
        """What ``record`` would have brought back is put aside."""
        match record:
            case Remove():
                self._put_aside(record.path, reason, record.type, record.keeping, record.metadata)
            case Content():
                self._put_aside(record.path, reason, "f", record.keeping, record.metadata)
            case Move(replaced=lost) if lost is not None and not record.exchanged:
                self._note(record.path, reason)
                self._put_aside(record.target, reason, lost.type, lost.keeping, lost.metadata)
            case Touch() | Made():
                pass  # a directory that is gone needs no mtime
            case _:
                self._note(record.path, reason)

    def _reverse(self, record: Mutation) -> None:
        match record:
            case Make():
                self._unmake(record.path, record.type, self._made.get(record.seq))
            case Link():
                self._unmake(record.path, record.type, record.identity, record.source)
            case Put():
                self._unmake(record.path, record.type, record.identity)
            case Remove():
                self._bring_back(record.path, record.type, record.identity, record.keeping, record.metadata)
            case Move():
                self._move_back(record)
            case Content():
                self._rewrite(record)
            case Meta():
                self._describe(record.path, record.identity, record.metadata)
            case Touch():
                self._untouch(record)
            case Made():
                pass

    def _unmake(self, path: bytes, type_: FileType, object_: Identity | None, other: bytes = b"") -> None:
        """Remove what was made; ``other`` is where the same object may be found by another name."""
        place = self._directories.place(path)
        found = _lstat(place)
        if found is None:
            return  # it never was, or is gone already
        if object_ is None:
            # The step was cut off between the creation and the note of what was created: nobody can have written to it.
            if not _is_pristine(place, found, type_):
                self._note(path, "it is not known who made it")
                return
        elif (there := identity(place.dir_fd, place.name)) != self._aliases.now(object_):
            self._note(path, _ELSE)
            return
        elif there in self._theirs:
            self._note(path, _THEIRS)
            return
        if type_ == "d":
            self._recorder.rmdir(self._step, place, lambda: os.rmdir(place.name, dir_fd=place.dir_fd))
            self._directories.forget(path)
        else:
            stays = other if object_ is not None and other != path and self._is_at(other, object_) else b""
            place = self._directories.place(path)
            if found.st_nlink > 1:
                self._has_changed(place)
            self._recorder.unlink(self._step, place, lambda: os.unlink(place.name, dir_fd=place.dir_fd), other=stays)
        self.paths += 1

    def _bring_back(
        self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata
    ) -> None:
        try:
            if self._is_brought_back(path, type_, object_, keeping, metadata):
                self.paths += 1
        except OSError as error:
            if (reason := _stands_in_the_way(error)) is None:
                raise
            self._put_aside(path, reason, type_, keeping, metadata)

    def _is_brought_back(
        self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata
    ) -> bool:
        match keeping.how:
            case How.NOT:
                if keeping.shared and self._is_named_again(path, object_):
                    return True
                if object_ not in self._created:
                    self._note(path, UNPROTECTED)
                return False
            case How.MOVED | How.LINKED:
                try:
                    actual = identity(self._preimages.fd, place_of(keeping.number))
                except FileNotFoundError:
                    return False  # it was not taken, or given back already
                place = self._directories.place(path)
                if keeping.how is How.LINKED and self._holds(place, object_):
                    self._preimages.discard(keeping.number)  # the name was never removed
                    self._has_changed(place)
                    return False
                self._stands_for(object_, actual)  # it may have been broken off
                self._recorder.put(self._step, place, type_, actual, keeping.number)
                if type_ == "d":
                    self._elsewhere.directories_moved()
                    self._set_mtime(place, metadata)
                self._has_changed(place)
            case How.RELATED:
                return self._is_linked_again(path, object_, keeping.content)
            case How.COPIED | How.INLINE:
                place = self._directories.place(path)
                if _lstat(place) is not None and not self._is_half_made(place, type_):
                    if self._made_again(place) in self._theirs:
                        self._put_aside(path, _THEIRS, type_, keeping, metadata)
                    elif not self._holds(place, object_):
                        self._put_aside(path, _ELSE, type_, keeping, metadata)
                    return False
                if not (keeping.shared and self._is_named_again(path, object_)):
                    if keeping.shared and object_ in self._created:
                        return False  # it is nowhere any more, and is not missed
                    self._recreate(path, type_, object_, keeping, metadata)
        return True

    def _is_linked_again(self, path: bytes, object_: Identity, other: bytes) -> bool:
        if self._is_at(path, object_):
            return False  # the name was never removed
        if not self._is_at(other, object_):
            self._note(path, "the file that it was another name of is not there any more")
            return False
        source = self._directories.place(other)
        fd = os.open(source.name, _OBJECT, dir_fd=source.dir_fd)
        try:
            self._link(path, fd)
        finally:
            os.close(fd)
        return True

    def _is_named_again(self, path: bytes, object_: Identity) -> bool:
        """Give an object that has lived on by other names this one again, if any is found and the place is free."""
        if _lstat(self._directories.place(path)) is not None:
            return False
        with closing(self._elsewhere.descriptors(path, object_)) as descriptors:
            for fd in descriptors:
                try:
                    self._link(path, fd)
                except OSError as error:
                    if error.errno not in _CANNOT_LINK:
                        raise
                else:
                    return True
        return False

    def _link(self, path: bytes, fd: int) -> None:
        place = self._directories.place(path)
        self._recorder.link(
            self._step,
            fd,
            place,
            lambda: os.link(through(fd), place.name, dst_dir_fd=place.dir_fd, follow_symlinks=True),
        )
        self._has_changed(place)

    def _is_half_made(self, place: Place, type_: FileType) -> bool:
        """Whether what is there was made by this very reversal before it was cut short."""
        if (made := self._made_again(place)) is not None:
            return made not in self._theirs
        opened = self._recorder.step(self._step)
        last = opened.records[-1] if opened.records else None
        found = _lstat(place)
        if (
            not isinstance(last, Make)
            or last.path != place.path
            or found is None
            or not _is_pristine(place, found, type_)
        ):
            return False
        # It was cut short before it could say so.
        self._recorder.made(self._step, last, place)
        return True

    def _made_again(self, place: Place) -> Identity | None:
        """What is at the place, if this reversal has made it."""
        there = identity(place.dir_fd, place.name)
        return there if there in self._recorder.step(self._step).created else None

    def _stands_for(self, object_: Identity, actual: Identity) -> None:
        if actual != self._aliases.now(object_):
            self._recorder.alias(self._step, object_, actual)

    def _recreate(self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata) -> None:
        # What the records before say of an object that is still there is said of that one.
        stands = not keeping.shared or self._elsewhere.is_away(object_)
        if keeping.shared:
            self._note(path, APART)
        place = self._directories.place(path)
        mode = {"f": stat.S_IFREG, "p": stat.S_IFIFO, "s": stat.S_IFSOCK, "c": stat.S_IFCHR, "b": stat.S_IFBLK}
        name, dir_fd = place.name, place.dir_fd
        if _lstat(place) is None:
            match type_:
                case "d":
                    self._recorder.create(self._step, place, "d", lambda: os.mkdir(name, 0o700, dir_fd=dir_fd))
                case "l":
                    target = keeping.content
                    self._recorder.create(self._step, place, "l", lambda: os.symlink(target, name, dir_fd=dir_fd))
                case _:
                    device = int.from_bytes(keeping.content, "little") if type_ in ("c", "b") else 0
                    self._recorder.create(
                        self._step, place, type_, lambda: os.mknod(name, mode[type_] | 0o600, device, dir_fd=dir_fd)
                    )
        fd = os.open(name, _OBJECT, dir_fd=dir_fd)
        try:
            if stands:
                self._stands_for(object_, identity(fd, b""))
            if type_ == "f":
                self._fill(fd, keeping)
            apply_metadata(fd, metadata)
        finally:
            os.close(fd)
        self._has_changed(place)

    def _move_back(self, record: Move) -> None:
        source, target = self._directories.place(record.path), self._directories.place(record.target)
        lost = record.replaced
        there = self._holds(target, record.identity)
        swapped = lost is not None and self._holds(source, lost.identity)
        if there and swapped:
            self._rename(target, source, RENAME_EXCHANGE, record)
        elif there:
            try:
                self._rename(target, source, RENAME_NOREPLACE, record)
            except OSError as error:
                if (reason := _stands_in_the_way(error)) is None:
                    raise
                self._note(record.path, reason)
        elif swapped and record.exchanged:
            self._rename(source, target, RENAME_NOREPLACE, record)
        elif not self._holds(source, record.identity) and record.identity not in self._created:
            # (What the step itself had made and removed again is nowhere by now.)
            self._note(record.target, "what was moved here is not here any more")
        if lost is not None and not record.exchanged:
            self._bring_back(record.target, lost.type, lost.identity, lost.keeping, lost.metadata)

    def _rename(self, source: Place, target: Place, flags: int, record: Move) -> None:
        self._recorder.rename(
            self._step,
            source,
            target,
            flags,
            lambda: renameat2(source.dir_fd, source.name, target.dir_fd, target.name, flags),
        )
        self._has_changed(target)
        if flags & RENAME_EXCHANGE:
            self._has_changed(source)
        if record.type == "d" or flags & RENAME_EXCHANGE:
            self._directories.forget(record.path)
            self._directories.forget(record.target)
            self._elsewhere.directories_moved()
        self.paths += 1

    def _rewrite(self, record: Content) -> None:
        if record.keeping.how is How.NOT:
            self._note(record.path, UNPROTECTED)
            return
        if record.keeping.number and self._preimages.look(record.keeping.number) is None:
            return  # cut off before there was a whole copy: nobody was let to write
        place = self._directories.place(record.path)
        fd, reason = _open_object(place, self._aliases.now(record.identity))
        if fd < 0:
            if record.identity not in self._created:
                self._give_up(record, reason)
            return
        try:
            if self._aliases.now(record.identity) in self._theirs:
                self._give_up(record, _THEIRS)
                return
            self._recorder.opening(self._step, place, fd)
            self._fill(fd, record.keeping)
            apply_metadata(fd, record.metadata)
            self._changed.append(os.dup(fd))
        finally:
            os.close(fd)
        self.paths += 1

    def _describe(self, path: bytes, object_: Identity, metadata: Metadata) -> None:
        if not path:
            place = Place(self._directories.directory(b""), b".", b"")
        else:
            place = self._directories.place(path)
        fd, reason = _open_object(place, self._aliases.now(object_))
        if fd < 0:
            if object_ not in self._created:
                self._note(path, reason)
            return
        try:
            if self._aliases.now(object_) in self._theirs:
                self._note(path, _THEIRS)
                return
            self._recorder.changing(self._step, place, fd)
            apply_metadata(fd, metadata)
            self._changed.append(os.dup(fd))
        finally:
            os.close(fd)
        self.paths += 1

    def _untouch(self, record: Touch) -> None:
        fd = self._directories.directory(record.path)
        if identity(fd, b"") != self._aliases.now(record.identity):
            return
        found = os.fstat(fd)
        mtime = record.mtime
        if record.identity in self._dated.get(self._step, ()):
            mtime = self._first_mtime(identity(fd, b""), found.st_mtime_ns)
        if found.st_mtime_ns != mtime:
            self._recorder.touch(self._step, record.path, fd)
            os.utime(through(fd), ns=(found.st_atime_ns, mtime))

    def _first_mtime(self, directory: Identity, now: int) -> int:
        """The mtime of a directory before this reversal of the step."""
        records = self._recorder.step(self._step).records
        touched = (one.mtime for one in records if isinstance(one, Touch) and one.identity == directory)
        return next(touched, now)

    def _set_mtime(self, place: Place, metadata: Metadata) -> None:
        """Some file systems change the mtime of a directory that gets another parent."""
        found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
        if found.st_mtime_ns != metadata.mtime:
            os.utime(place.name, ns=(found.st_atime_ns, metadata.mtime), dir_fd=place.dir_fd, follow_symlinks=False)

    def _fill(self, fd: int, keeping: Keeping) -> None:
        target = os.open(through(fd), os.O_RDWR | AT_ONCE)
        try:
            if keeping.how is How.INLINE:
                # (Emptied first, ext4 would write it to the disk at once.)
                write_whole(target, keeping.content)
                os.ftruncate(target, len(keeping.content))
                return
            source = self._preimages.open(keeping.number)
            try:
                duplicate(source, target)
            finally:
                os.close(source)
        finally:
            os.close(target)

    def _holds(self, place: Place, object_: Identity) -> bool:
        try:
            return identity(place.dir_fd, place.name) == self._aliases.now(object_)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    def _is_at(self, path: bytes, object_: Identity) -> bool:
        try:
            return bool(path) and self._holds(self._directories.place(path), object_)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    def _put_aside(self, path: bytes, reason: str, type_: FileType, keeping: Keeping, metadata: Metadata) -> None:
        if type_ == "d" and reason == _ELSE:
            place = self._directories.place(path)
            found = _lstat(place)
            if found is not None and stat.S_ISDIR(found.st_mode):
                return  # it has become somebody else's, but there it is: nothing is lost
        self._note(path, reason, aside=self._aside.keep(self._seq, type_, keeping, metadata))

    def _note(self, path: bytes, reason: str, *, aside: bool = False) -> None:
        conflict = Conflict(self._step, path, reason, self._seq if aside else None)
        if conflict not in self.conflicts:
            self._recorder.note(Conflicted(self._recorder.next_seq(), self._step, self._seq, path, reason, aside))
            self.conflicts.append(conflict)


def _stands_in_the_way(error: OSError) -> str | None:
    """How the tree differs from what the step left, if ``error`` says that; None if the system failed."""
    if error.errno in _GONE:
        return "its directory is not there any more"
    return _ELSE if error.errno in (errno.EEXIST, errno.ENOTEMPTY) else None


def _open_object(place: Place, object_: Identity) -> tuple[int, str]:
    """A descriptor of the object at the place; or -1, and why not."""
    try:
        fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
    except FileNotFoundError:
        return -1, "it is not there any more"
    if identity(fd, b"") != object_:
        os.close(fd)
        return -1, _ELSE
    return fd, ""


def _lstat(place: Place) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_pristine(place: Place, found: os.stat_result, type_: FileType) -> bool:
    """Whether what is there can be what a creation has just left: empty, and of the right type."""
    if file_type(found.st_mode) != type_:
        return False
    if type_ == "d":
        return is_empty(place.dir_fd, place.name)
    return type_ != "f" or found.st_size == 0
