"""The interceptor that records: every mutation is journalled, and what it would lose is kept, before it happens.

Content is captured once per object and step (I2), the mtime of a directory once per directory and step. What a step
itself created needs no preimage at all. See `holdfast.undo.interceptor` for the port.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from holdfast.files.handle import Identity, identity
from holdfast.files.kernel import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from holdfast.files.metadata import Metadata, read_metadata, through
from holdfast.model.errors import HeldError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.undo.aliases import Aliases
from holdfast.undo.dropping import remember
from holdfast.undo.preimages import is_empty
from holdfast.undo.records import (
    NOT_KEPT,
    Alias,
    Bare,
    Begin,
    Content,
    End,
    Failed,
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
    Replaced,
    StepId,
    StepKind,
    Touch,
    file_type,
)
from holdfast.undo.safeguard import Danger
from holdfast.undo.steps import OpenStep

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from holdfast.model.clock import Clock
    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal import Journal
    from holdfast.undo.preimages import Preimages
    from holdfast.undo.records import AnyRecord
    from holdfast.undo.safeguard import Guard

T = TypeVar("T")

_log = Log(__name__)

_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_INLINE_BYTES = 16 << 10
_INLINE_TOTAL = 32 << 20
_CANNOT_RENAME = frozenset({errno.EXDEV, errno.EACCES})
_CANNOT_LINK = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP})


class Recorder:
    """Records the mutations of all open steps, in one order. Implements `Interceptor`; safe for several threads."""

    def __init__(
        self,
        journal: Journal,
        preimages: Preimages,
        clock: Clock,
        guard: Guard | None = None,
        *,
        seq: int = 0,
        max_step_bytes: int = 200 << 20,
    ) -> None:
        """``seq`` is the last sequence number that was ever given out in this log."""
        self._guard = guard
        self._journal = journal
        self._preimages = preimages
        self._clock = clock
        self._seq = seq
        self._max_step_bytes = max_step_bytes
        self._steps: dict[StepId, OpenStep] = {}
        self.aliases = Aliases()
        """Of the whole log."""
        self._denied: set[StepId] = set()
        self._copying: dict[Identity, threading.Event] = {}
        self.arrangement = 0
        """See `Interceptor.arrangement`."""
        self.on_drop: Callable[[OpenStep], object] = lambda _step: None
        """Is told of every step that is closed to further mutations, with the gate held."""
        self.gate = threading.RLock()
        """Whoever holds it keeps every mutation waiting."""
        self._calm = threading.Condition(self.gate)

    # Steps ------------------------------------------------------------------------------------------------------

    def begin(
        self,
        step: StepId,
        kind: StepKind,
        *,
        run: str = "",
        command: tuple[bytes, ...] = (),
        directory: bytes = b"",
        parent: StepId | None = None,
        reverses: bool = False,
    ) -> OpenStep:
        """Open a step. Its id must never have been used before in this log, but for what it reverses itself."""
        with self.gate:
            record = Begin(self._next(), step, kind, run, command, directory, self._clock.now() * 1000, parent)
            self._journal.append(record)
            self._steps[step] = opened = OpenStep(record, reverses=reverses, last=self._clock.monotonic())
            return opened

    def end(self, step: StepId, exit_code: int | None = None) -> OpenStep:
        """Close a step to further mutations, and return it for sealing. Waits for its operations in flight."""
        with self.gate:
            self.wait_for(step)
            self._journal.append(End(self._next(), step, exit_code, self._clock.now() * 1000))
            return self.drop(step)

    def drop(self, step: StepId) -> OpenStep:
        """Close a step without a word in the journal."""
        with self.gate:
            opened = self._steps.pop(step)
            self.on_drop(opened)
            return opened

    def deny(self, step: StepId) -> None:
        """From here on mutations of the step, which is closed, fail with EPERM; until `forgive`."""
        with self.gate:
            self._denied.add(step)

    def forgive(self, step: StepId) -> bool:
        """Whether the step was denied; it is not any more."""
        with self.gate:
            if step not in self._denied:
                return False
            self._denied.remove(step)
            return True

    def wait_for(self, *steps: StepId) -> None:
        """Wait until no operation of these open steps is in flight, for none given: of any."""
        with self.gate:
            chosen = steps or tuple(self._steps)
            self._calm.wait_for(lambda: not any(self._steps[step].busy for step in chosen if step in self._steps))

    @property
    def seq(self) -> int:
        """The last sequence number that was given out."""
        return self._seq

    def resume(self, begin: Begin, records: Iterable[Mutation], *, reverses: bool = False) -> OpenStep:
        """Open a step again, with what it had recorded before its keeper was killed."""
        opened = OpenStep(begin, reverses=reverses)
        for record in records:
            opened.records.append(record)
            match record:
                case Touch():
                    opened.touched.add(record.path)
                case Made():
                    opened.created.add(record.identity)
                case Content(keeping=kept) if kept.number and self._preimages.look(kept.number) is None:
                    pass  # cut off before there was a whole copy
                case Content():
                    opened.captured.add(record.identity)
                    opened.described.add(record.identity)
                case Meta():
                    opened.described.add(record.identity)
                case _:
                    pass
        with self.gate:
            self._steps[begin.step] = opened
        return opened

    @property
    def open_steps(self) -> list[OpenStep]:
        """All open steps, in the order in which they began."""
        return list(self._steps.values())

    def note(self, record: AnyRecord) -> None:
        """Write a record that is no mutation. Raises `StorageError`."""
        with self.gate:
            self._journal.append(record)

    def next_seq(self) -> int:
        """A sequence number for a record of one's own."""
        with self.gate:
            return self._next()

    def step(self, step: StepId) -> OpenStep:
        """The open step; `KeyError` if it is not open."""
        return self._steps[step]

    # Mutations --------------------------------------------------------------------------------------------------

    def create(self, step: StepId, place: Place, type_: FileType, perform: Callable[[], T]) -> T:
        """See `Interceptor.create`."""
        with self.gate:
            opened = self._entered(step)
            self._touch(opened, place)
            make = Make(self._next(), step, place.path, type_, self._clock.now() * 1000)
            if _exists(place):
                # No record may say that this is going to be created: killed now, it would be taken for the step's.
                result = perform()  # which is an error, unless somebody has just removed it
                self._append(opened, make)
            else:
                result = self._perform(opened, make, perform)
            made = identity(place.dir_fd, place.name)
            opened.created.add(made)
            record = Made(self._next(), step, make.seq, made)
            opened.records.append(record)
            try:
                self._journal.append(record)
            except StorageError as error:
                # It is there by now. Only if this process is killed nobody will know who made it.
                _log.warning("%s", error.message)
            return result

    def link(self, step: StepId, source_fd: int, place: Place, perform: Callable[[], T]) -> T:
        """See `Interceptor.link`."""
        with self.gate:
            opened = self._entered(step)
            self._touch(opened, place)
            kind = file_type(os.fstat(source_fd).st_mode)
            record = Link(self._next(), step, place.path, kind, identity(source_fd, b""))
            if _exists(place):
                result = perform()  # as in `create`
                self._append(opened, record)
                return result
            return self._perform(opened, record, perform)

    def unlink(self, step: StepId, place: Place, perform: Callable[[], None], *, own: bool = True) -> None:
        """See `Interceptor.unlink`."""
        with self.gate:
            opened = self._entered(step)
            found = _lstat(place)
            if stat.S_ISDIR(found.st_mode):
                perform()  # which is an error, and the system knows which
                return
            self._remove(opened, place, found, perform, own=own)

    def rmdir(self, step: StepId, place: Place, perform: Callable[[], None], *, own: bool = True) -> None:
        """See `Interceptor.rmdir`."""
        with self.gate:
            opened = self._entered(step)
            found = _lstat(place)
            # A rename would take away what is not empty as well.
            empty = stat.S_ISDIR(found.st_mode) and _is_empty(place)
            if empty is False:
                perform()  # which is an error, and the system knows which
            else:
                self._remove(opened, place, found, perform, own=own and empty is not None)
            self.arrangement += 1

    def rename(
        self, step: StepId, source: Place, target: Place, flags: int, perform: Callable[[], None], *, own: bool = True
    ) -> None:
        """See `Interceptor.rename`."""
        with self.gate:
            opened = self._entered(step)
            found = _lstat(source)
            victim = _lstat_or_none(target)
            if flags & ~(RENAME_EXCHANGE | RENAME_NOREPLACE):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if victim is not None and os.path.samestat(found, victim):
                perform()  # two names of one object: nothing happens
                return
            if victim is not None and not flags & RENAME_EXCHANGE:
                if flags & RENAME_NOREPLACE or not _may_replace(found, victim, target):
                    perform()  # which is an error, and the system knows which
                    return
                if identity(target.dir_fd, target.name) not in opened.created:
                    self._ask(opened, Danger.RENAME_OVER, target, victim.st_size)
            self._move(opened, source, target, found, victim, flags, perform, own=own)

    def opening(self, step: StepId, place: Place, fd: int, *, truncates: bool = False) -> None:
        """See `Interceptor.opening`."""
        object_ = identity(fd, b"")
        while True:
            with self.gate:
                opened = self._entered(step)
                if object_ in opened.created or object_ in opened.captured:
                    return
                copying = self._copying.get(object_)
                if copying is None:
                    found = os.fstat(fd)
                    if not stat.S_ISREG(found.st_mode) or not found.st_nlink:
                        return
                    number = None if _is_at(place, found) else self._preimages.number_of(fd)
                    if number is not None:
                        # Somebody still knows it by a descriptor. What they write is not in the tree.
                        opened.copied += self._preimages.break_off(number)
                        if found.st_nlink == 1:
                            return
                    remember(opened, object_, found, self._clock.now() * 1000)
                    if truncates:
                        self._ask(opened, Danger.OVERWRITE, place, found.st_size)
                    if not self._has_room(opened, place, found.st_size):
                        lost = Content(self._next(), step, place.path, object_, NOT_KEPT, read_metadata(fd, found))
                        self._append(opened, lost)
                        opened.captured.add(object_)
                        return
                    if found.st_size <= _INLINE_BYTES and opened.inline < _INLINE_TOTAL:
                        self._content_inline(opened, place, fd, object_, found)
                        return
                    seq = self._next()
                    # The record comes before the copy: now it is at this path, and what others do to it meanwhile is
                    # reversed before.
                    record = Content(seq, step, place.path, object_, Keeping(How.COPIED, seq), read_metadata(fd, found))
                    self._append(opened, record)
                    self._copying[object_] = copying = threading.Event()
                    opened.busy += 1
                    break
            copying.wait()
        try:
            # A large copy takes its time; nobody else waits for it but who wants to write to the same file.
            copied = self._copy(fd, seq)
            with self.gate:
                opened.copied += copied
                opened.captured.add(object_)
                opened.described.add(object_)
                if (number := self._preimages.number_of(fd)) is not None:
                    opened.copied += self._preimages.break_off(number)  # it was removed meanwhile
        except BaseException:
            with self.gate:
                self._preimages.discard(seq)
                opened.captured.discard(object_)
                opened.described.discard(object_)
                self._did_not_happen(opened, record)
            raise
        finally:
            with self.gate:
                opened.busy -= 1
                del self._copying[object_]
                copying.set()
                self._calm.notify_all()

    def removed(self, step: StepId, fd: int) -> bool:
        """See `Interceptor.removed`."""
        with self.gate:
            opened = self._entered(step)
            found = os.fstat(fd)
            number = self._preimages.number_of(fd)
            if number is None:
                return not found.st_nlink or identity(fd, b"") in opened.created
            if not stat.S_ISDIR(found.st_mode) and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
                return False
            opened.copied += self._preimages.break_off(number)
            return True

    def changing(self, step: StepId, place: Place, fd: int) -> None:
        """See `Interceptor.changing`."""
        with self.gate:
            opened = self._entered(step)
            object_ = identity(fd, b"")
            if object_ in opened.created or object_ in opened.described:
                return
            found = os.fstat(fd)
            remember(opened, object_, found, self._clock.now() * 1000)
            self._append(opened, Meta(self._next(), step, place.path, object_, read_metadata(fd, found)))
            opened.described.add(object_)

    # For reversal -----------------------------------------------------------------------------------------------

    def put(self, step: StepId, place: Place, type_: FileType, object_: Identity, number: int) -> None:
        """Rename a preimage back to its place in the tree, which must be free (else `FileExistsError`)."""
        with self.gate:
            opened = self._entered(step)
            self._touch(opened, place)
            put = Put(self._next(), step, place.path, type_, object_, number)
            self._perform(opened, put, lambda: self._preimages.put_back(number, place.dir_fd, place.name))
            self.arrangement += 1

    def alias(self, step: StepId, old: Identity, new: Identity) -> None:
        """``old`` has been brought back as ``new``."""
        with self.gate:
            opened = self._steps[step]
            self._write(Alias(self._next(), step, old, new))
            opened.aliases.append((old, new))
            self.aliases.add(old, new)

    # The rest ---------------------------------------------------------------------------------------------------

    def _entered(self, step: StepId) -> OpenStep:
        """The step that an operation is about to change something in; the gate is held."""
        opened = self._steps.get(step)
        if opened is None:
            if step in self._denied:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            raise KeyError(step)
        if opened.held:
            raise HeldError(opened.held, f"step {step} waits for a person")
        opened.last = self._clock.monotonic()
        return opened

    def _perform(self, opened: OpenStep, record: Mutation, perform: Callable[[], T]) -> T:
        """Journal ``record`` before ``perform``; if that fails, the record means nothing."""
        self._append(opened, record)
        try:
            return perform()
        except OSError:
            self._did_not_happen(opened, record)
            raise

    def _did_not_happen(self, opened: OpenStep, record: Mutation) -> None:
        at = next(at for at in range(len(opened.records) - 1, -1, -1) if opened.records[at] is record)
        del opened.records[at]
        with suppress(StorageError):  # a reversal sees for itself
            self._journal.append(Failed(self._next(), opened.id, record.seq))

    def _ask(self, opened: OpenStep, danger: Danger, place: Place, size: int = 0) -> None:
        if self._guard is not None and not opened.reverses:
            self._guard.ask(opened, danger, place.path, size)

    def _has_room(self, opened: OpenStep, place: Place, size: int) -> bool:
        """Whether ``size`` more bytes may be copied for the step; False makes it unprotected, and says so."""
        if opened.reverses:
            return True
        if opened.bare:
            return False
        if opened.copied + size <= self._max_step_bytes:
            return True
        self._ask(opened, Danger.LIMIT, place, size)
        reason = f"its preimages would take more than {self._max_step_bytes} bytes, at {display(place.path)}"
        record = Bare(self._next(), opened.id, reason)
        self._write(record)
        opened.unprotected = record
        _log.warning("step %d is not protected any more: %s", opened.id, reason)
        return False

    def _append(self, opened: OpenStep, record: Mutation) -> None:
        try:
            self._journal.append(record)
        except StorageError as error:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        opened.records.append(record)

    def _write(self, record: AnyRecord) -> None:
        try:
            self._journal.append(record)
        except StorageError as error:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def touch(self, step: StepId, path: bytes, fd: int) -> None:
        """Before the mtime of the directory ``path``, open as ``fd``, changes with its names. Once for a step."""
        with self.gate:
            opened = self._steps[step]
            if path not in opened.touched:
                found = os.fstat(fd)
                self._append(opened, Touch(self._next(), step, path, identity(fd, b""), found.st_mtime_ns))
                opened.touched.add(path)

    def _touch(self, opened: OpenStep, place: Place) -> None:
        if place.parent not in opened.touched:
            self.touch(opened.id, place.parent, place.dir_fd)

    def _remove(
        self, opened: OpenStep, place: Place, found: os.stat_result, perform: Callable[[], None], *, own: bool
    ) -> None:
        object_ = identity(place.dir_fd, place.name)
        if object_ not in opened.created:
            self._ask(opened, Danger.DELETE, place)
            opened.deletes += 1
        self._touch(opened, place)
        seq = self._next()
        # (A directory is kept in any case: things may have been moved through it.)
        if object_ in opened.created and found.st_nlink == 1 and not stat.S_ISDIR(found.st_mode):
            self._perform(opened, _removal(seq, opened.id, place, found, object_, NOT_KEPT), perform)
            return
        if own:
            removal = _removal(seq, opened.id, place, found, object_, Keeping(How.MOVED, seq))
            try:
                take = self._take_directory if stat.S_ISDIR(found.st_mode) else self._take
                self._perform(opened, removal, lambda: take(place, seq))
                return
            except OSError as error:
                if error.errno not in _CANNOT_RENAME:
                    raise
            seq = self._next()
        keeping, metadata = self._keep(opened, place, found, seq)
        record = Remove(seq, opened.id, place.path, file_type(found.st_mode), object_, keeping, metadata)
        with self._discarding(keeping):
            self._perform(opened, record, perform)

    def _move(
        self,
        opened: OpenStep,
        source: Place,
        target: Place,
        found: os.stat_result,
        victim: os.stat_result | None,
        flags: int,
        perform: Callable[[], None],
        *,
        own: bool,
    ) -> None:
        self._touch(opened, source)
        self._touch(opened, target)
        kind = file_type(found.st_mode)
        seq = self._next()
        replaced = None if victim is None else self._replaced(opened, target, victim, flags, seq, own=own)
        exchange = bool(flags & RENAME_EXCHANGE)
        record = Move(
            seq, opened.id, source.path, target.path, kind, identity(source.dir_fd, source.name), replaced, exchange
        )
        keeping = NOT_KEPT if replaced is None else replaced.keeping
        if keeping.how is How.MOVED:
            try:
                self._perform(opened, record, lambda: self._swap_and_take(source, target, seq))
            except OSError as error:
                if error.errno not in _CANNOT_RENAME:
                    raise
                self._move(opened, source, target, found, victim, flags, perform, own=False)
                return
        elif keeping.number:
            with self._discarding(keeping):
                self._perform(opened, record, perform)
        else:
            self._perform(opened, record, perform)
        if kind == "d" or (victim is not None and stat.S_ISDIR(victim.st_mode)):
            self.arrangement += 1
            opened.touched = {
                path for path in opened.touched if not (under(path, source.path) or under(path, target.path))
            }

    def _replaced(
        self, opened: OpenStep, target: Place, victim: os.stat_result, flags: int, seq: int, *, own: bool
    ) -> Replaced:
        object_ = identity(target.dir_fd, target.name)
        kind = file_type(victim.st_mode)
        keeping, metadata = NOT_KEPT, _metadata(victim)
        if flags & RENAME_EXCHANGE or (object_ in opened.created and victim.st_nlink == 1 and kind != "d"):
            pass
        elif kind == "d" and own:
            keeping = Keeping(How.MOVED, seq)
        else:
            keeping, metadata = self._keep(opened, target, victim, seq)
        return Replaced(kind, object_, keeping, metadata)

    def _swap_and_take(self, source: Place, target: Place, seq: int) -> None:
        """Rename over a directory that goes into the log; the place that the rename leads to is never empty."""
        renameat2(source.dir_fd, source.name, target.dir_fd, target.name, RENAME_EXCHANGE)
        try:
            self._take_directory(source, seq)
        except OSError:
            renameat2(source.dir_fd, source.name, target.dir_fd, target.name, RENAME_EXCHANGE)
            raise

    def _take(self, place: Place, seq: int) -> None:
        self._preimages.move_in(place.dir_fd, place.name, seq)

    def _take_directory(self, place: Place, seq: int) -> None:
        self._preimages.move_in(place.dir_fd, place.name, seq)
        if not self._preimages.is_empty(seq):
            # Somebody was quicker: what they made must not end in the log.
            self._preimages.put_back(seq, place.dir_fd, place.name)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    @contextmanager
    def _discarding(self, keeping: Keeping) -> Generator[None]:
        """If what is done inside fails, what was kept for it is not needed."""
        try:
            yield
        except OSError:
            if keeping.how in (How.LINKED, How.COPIED):
                self._preimages.discard(keeping.number)
            raise

    def _keep(self, opened: OpenStep, place: Place, found: os.stat_result, seq: int) -> tuple[Keeping, Metadata]:
        """Keep what is going to lose its name without moving it."""
        fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
        try:
            metadata = read_metadata(fd)
            if stat.S_ISDIR(found.st_mode):
                return Keeping(How.INLINE), metadata
            try:
                self._preimages.link_in(place.dir_fd, place.name, seq)
                return Keeping(How.LINKED, seq), metadata
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
            if stat.S_ISLNK(found.st_mode):
                return Keeping(How.INLINE, 0, os.readlink(place.name, dir_fd=place.dir_fd)), metadata
            if not stat.S_ISREG(found.st_mode):
                return Keeping(How.INLINE, 0, found.st_rdev.to_bytes(8, "little")), metadata
            if not self._has_room(opened, place, found.st_size):
                return NOT_KEPT, metadata
            opened.copied += self._copy(fd, seq)
            return Keeping(How.COPIED, seq), metadata
        finally:
            os.close(fd)

    def _content_inline(
        self, opened: OpenStep, place: Place, fd: int, object_: Identity, found: os.stat_result
    ) -> None:
        source = os.open(through(fd), _READ)
        try:
            content = os.pread(source, _INLINE_BYTES + 1, 0)
            metadata = read_metadata(source, found, readable=True)
        finally:
            os.close(source)
        record = Content(self._next(), opened.id, place.path, object_, Keeping(How.INLINE, 0, content), metadata)
        self._append(opened, record)
        opened.inline += len(content)
        opened.captured.add(object_)
        opened.described.add(object_)

    def _copy(self, fd: int, seq: int) -> int:
        source = os.open(through(fd), _READ)
        try:
            return self._preimages.copy_in(source, seq)
        finally:
            os.close(source)


def _removal(
    seq: int, step: StepId, place: Place, found: os.stat_result, object_: Identity, keeping: Keeping
) -> Remove:
    # The object itself is kept or was never needed, and with it whatever else there is to say of it.
    return Remove(seq, step, place.path, file_type(found.st_mode), object_, keeping, _metadata(found))


def _metadata(found: os.stat_result) -> Metadata:
    return Metadata(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns, ())


def _lstat(place: Place) -> os.stat_result:
    return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)


def _lstat_or_none(place: Place) -> os.stat_result | None:
    try:
        return _lstat(place)
    except FileNotFoundError:
        return None


def _exists(place: Place) -> bool:
    # (An exception would take longer than the system does.)
    return os.access(place.name, os.F_OK, dir_fd=place.dir_fd, follow_symlinks=False)


def _is_at(place: Place, found: os.stat_result) -> bool:
    """Whether the object is where it is said to be."""
    try:
        return os.path.samestat(_lstat(place), found)
    except OSError:
        return False


def _is_empty(place: Place) -> bool | None:
    """Whether the directory is empty; None if we may not look."""
    try:
        return is_empty(place.dir_fd, place.name)
    except PermissionError:
        return None


def _may_replace(found: os.stat_result, victim: os.stat_result, target: Place) -> bool:
    """Whether the system would let ``found`` replace ``victim``."""
    if stat.S_ISDIR(victim.st_mode):
        return stat.S_ISDIR(found.st_mode) and _is_empty(target) is not False
    return not stat.S_ISDIR(found.st_mode)
