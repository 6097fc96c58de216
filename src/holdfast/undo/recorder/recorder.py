"""The interceptor that records: before every mutation, it journals it and takes the preimage.

This module has the steps and the common parts of all mutations; `holdfast.undo.recorder._name_changes` and
`holdfast.undo.recorder._content_changes` have the parts of each. The mtime of a directory is recorded once per
directory and step. Objects that the step created need no preimage. See `holdfast.undo.interceptor` for the port.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import mtime_of
from holdfast.files.linux.unreadable_file import open_to_read
from holdfast.model.errors import HeldError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.undo.interceptor import StepEndedError
from holdfast.undo.journal.records import (
    OURSELVES,
    Alias,
    Begin,
    Content,
    End,
    Failed,
    Link,
    Made,
    Make,
    Meta,
    Move,
    Mutation,
    Remove,
    Replaced,
    StepId,
    StepKind,
    Touch,
    Unprotected,
)
from holdfast.undo.journal.step_footprint import Aliases, objects_by_path
from holdfast.undo.recorder._content_changes import ContentChanges
from holdfast.undo.recorder._name_changes import NameChanges
from holdfast.undo.recorder.last_state import LastState
from holdfast.undo.recorder.native_log import native_log
from holdfast.undo.safeguards.guard import Loss, count_nothing
from holdfast.undo.safeguards.open_step import OpenStep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from holdfast._hot import Step
    from holdfast.model.clock import Clock
    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.journal.records import AnyRecord, Mutation
    from holdfast.undo.journal.segments import Journal
    from holdfast.undo.safeguards.guard import Danger, Guard

T = TypeVar("T")

_log = Log(__name__)
_MOST_REVERSED = 100_000
_NEAR = 0.9
"""The part of a step's copying limit at which a warning is logged."""


def _system_error(error: StorageError) -> OSError:
    """The error for a program whose change cannot be journalled: the system's reason, or EIO."""
    cause = error.__cause__
    number = (cause.errno if isinstance(cause, OSError) else None) or errno.EIO
    return OSError(number, os.strerror(number))


class Recorder:
    """Records the mutations of all open steps, in one order. Implements `Interceptor`; safe for several threads."""

    def __init__(
        self,
        journal: Journal,
        preimages: Preimages,
        clock: Clock,
        guard: Guard | None = None,
        *,
        device: int,
        seq: int = 0,
        max_step_bytes: int = 200 << 20,
        is_native: bool = False,
    ) -> None:
        """``device`` is that of the workspace's root, ``seq`` the last sequence number that this log ever gave out.
        ``is_native``: calls may be carried out natively, where that was built.
        """
        self.native = native_log(journal, preimages, device, seq) if is_native else None
        """The state of the native recorder."""
        self._guard = guard
        self._journal = journal
        self._preimages = preimages
        self._clock = clock
        self._seq = seq
        self._arrangement = 0
        self._moves = 0
        self.reversals = 0
        """See `Interceptor.reversals`."""
        self._reversed: dict[Identity, int] = {}
        """By which of them the content of an object was brought back last."""
        self._reversed_before = 0
        """Restored objects up to this number are not remembered any more."""
        self._tells = _log.wants("debug")
        self._is_paused = False
        self._steps: dict[StepId, OpenStep] = {}
        self._renames: list[Link | Move] = []
        """`OpenStep.renames` of the steps that have ended while others went on."""
        self.aliases = Aliases()
        """Of the whole log."""
        self._denied: dict[StepId, bool] = {}
        """And whether what each has done was taken back."""
        self.last_state = LastState(device, None if self.native is None else self.native.log)
        """The results of finished steps."""
        self.on_foreign_edit: Callable[[OpenStep, tuple[bytes, ...], str], object] = lambda _step, _paths, _who: None
        """Called, with the gate held, when a step touches paths that another process changed, or Holdfast itself by a
        checkpoint (who: `OURSELVES`).
        """
        self.on_contact: Callable[[int, Callable[[], bool]], object] = lambda _changed, _is_own: None
        """Called, with the gate held, when a step touches an object: with the object's ctime (ns) and a function that
        tells whether the step has made it. The watcher of others' edits records earlier ones first.
        """
        self.on_drop: Callable[[OpenStep], object] = lambda _step: None
        """Called, with the gate held, for every step that is closed to further mutations."""
        self.on_steps_changed: Callable[[], object] = lambda: None
        """Called, with the gate held, when what a process changes may belong to another step than before."""
        if self.native is not None:
            self.on_steps_changed = self.native.log.forget_callers
        self.gate = threading.RLock() if self.native is None else self.native.gate
        """Every mutation waits while it is held."""
        self.idle = threading.Condition(self.gate)  # type: ignore[arg-type]
        """Is notified when an operation is not in flight any more."""
        names, contents = NameChanges(self, preimages, clock), ContentChanges(self, preimages, clock)
        # Without another call, since every operation passes here.
        self.create, self.link, self.unlink, self.rmdir = names.create, names.link, names.unlink, names.rmdir
        self.rename, self.put, self.note_made = names.rename, names.put, names.note_made
        self.before_open, self.cancel_open = contents.before_open, contents.cancel_open
        self.release_removed, self.before_loss = contents.release_removed, contents.before_loss
        self.before_metadata_change = contents.before_metadata_change
        self.max_step_bytes = max_step_bytes
        self.note_guard()

    @property
    def max_step_bytes(self) -> int:
        """Copied bytes after which a step is not protected any more. May be changed at any time."""
        return self._max_step_bytes

    @max_step_bytes.setter
    def max_step_bytes(self, most: int) -> None:
        self._max_step_bytes = most
        if self.native is not None:
            self.native.log.most_copied = most

    @property
    def arrangement(self) -> int:
        """See `Interceptor.arrangement`."""
        return self._arrangement if self.native is None else self.native.log.arrangement

    @property
    def moves(self) -> int:
        """See `Interceptor.moves`."""
        return self._moves if self.native is None else self._moves + self.native.log.moves

    def note_arrangement(self) -> None:
        """A directory may have moved."""
        self._arrangement += 1
        if self.native is not None:
            self.native.log.arrangement += 1

    @property
    def is_paused(self) -> bool:
        """Every mutation has to wait. Changed with the gate held."""
        return self._is_paused

    @is_paused.setter
    def is_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self.note_guard()

    def note_guard(self) -> None:
        """Safeguards or waiting tickets may have changed; the gate is held."""
        if self.native is not None:
            is_held = any(opened.held for opened in self._steps.values())
            self.native.log.is_off = self._is_paused or self.is_guarded or is_held or self._tells

    def note_copying(self, files: int) -> None:
        """``files`` files are being copied without the gate: their writers wait. The gate is held."""
        if self.native is not None:
            self.native.log.copying = files

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
        """Open a step. Its id must never have been used before in this log, except to reverse that same step."""
        with self.gate:
            if self._renames:  # very many steps may be opened at once, to be reversed
                oldest = min((opened.begin.seq for opened in self._steps.values()), default=self.seq)
                self._renames = [record for record in self._renames if record.seq > oldest]
            record = Begin(self.take_number(), step, kind, run, command, directory, self._clock.now() * 1000, parent)
            self._journal.append(record)
            self._steps[step] = opened = OpenStep.opened(
                record, self._native_step(step, reverses=reverses), reverses=reverses, last=self._clock.monotonic()
            )
            return opened

    def _native_step(self, step: StepId, *, reverses: bool) -> Step | None:
        return None if self.native is None else self.native.log.new_step(step, reverses)

    def end(self, step: StepId, exit_code: int | None = None) -> OpenStep:
        """Close a step to further mutations, and return it for sealing. Waits for its operations in flight."""
        with self.gate:
            self.wait_for(step)
            self._journal.append(End(self.take_number(), step, exit_code, self._clock.now() * 1000))
            return self.drop(step)

    def drop(self, step: StepId) -> OpenStep:
        """Close a step without a word in the journal."""
        with self.gate:
            opened = self._steps.pop(step)
            if opened.native is not None:
                opened.native.is_open = False
            self._renames += opened.renames
            self.on_drop(opened)
            return opened

    def renames_by_others(self, opened: OpenStep) -> list[Link | Move]:
        """The records by which other steps have given objects another path since this one began."""
        with self.gate:
            known = [*self._renames, *(record for step in self._steps.values() for record in step.renames)]
            return [record for record in known if record.step != opened.id and record.seq > opened.begin.seq]

    def deny(self, step: StepId, *, is_back: bool = False) -> None:
        """From here on mutations of the step, which is closed, fail with EPERM; a command's until `lift_denial`. They
        wait until ``is_back``: a refused caller must not see the step's changes any more.
        """
        with self.gate:
            if not is_back or step in self._denied:
                self._denied[step] = is_back

    def is_denied(self, step: StepId) -> bool:
        """Whether mutations of the step fail since `deny`."""
        with self.gate:
            return step in self._denied

    def is_held(self, step: StepId) -> bool:
        """Whether the step is open, and waits for a person."""
        with self.gate:
            opened = self._steps.get(step)
            return opened is not None and opened.held != 0

    def lift_denial(self, step: StepId) -> bool:
        """Whether the step was denied; it is not any more."""
        with self.gate:
            if step not in self._denied:
                return False
            del self._denied[step]
            return True

    def wait_for(self, *steps: StepId) -> None:
        """Wait until no operation of these open steps is in progress; without steps, of any."""
        with self.gate:
            chosen = steps or tuple(self._steps)
            self.idle.wait_for(lambda: not any(self._steps[step].busy for step in chosen if step in self._steps))

    @property
    def seq(self) -> int:
        """The last sequence number that was given out."""
        return self._seq if self.native is None else self.native.log.seq

    def resume(self, begin: Begin, records: Iterable[Mutation], *, reverses: bool = False) -> OpenStep:
        """Open a step again, with its records from before its keeper was killed."""
        opened = OpenStep.opened(begin, self._native_step(begin.step, reverses=reverses), reverses=reverses)
        for record in records:
            opened.records.append(record)
            match record:
                case Touch():
                    opened.touched.add(record.path)
                case Made():
                    opened.created.add(record.identity)
                case Content(keeping=kept) if kept.number and self._preimages.metadata_of(kept.number) is None:
                    pass  # cut off before there was a whole copy
                case Content():
                    opened.captured.add(record.identity)
                    opened.described.add(record.identity)
                case Meta(is_whole=True):
                    opened.described.add(record.identity)
                case Remove(keeping=kept) | Move(replaced=Replaced(keeping=kept)) if kept.number:
                    opened.shared.append(kept.number)
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
            return self.take_number()

    def step(self, step: StepId) -> OpenStep:
        """The open step; `KeyError` if it is not open."""
        return self._steps[step]

    def alias(self, step: StepId, old: Identity, new: Identity) -> None:
        """``old`` has been brought back as ``new``."""
        with self.gate:
            opened = self._steps[step]
            self._write(Alias(self.take_number(), step, old, new))
            opened.aliases.append((old, new))
            self.aliases.add(old, new)

    def find_open(self, step: StepId) -> OpenStep | None:
        """The step; None if it is not open."""
        return self._steps.get(step)

    def has_created(self, step: StepId, object_: Identity) -> bool:
        """Whether the step, if it is open, has created this object itself."""
        opened = self._steps.get(step)
        return opened is not None and object_ in opened.created

    # For its parts ----------------------------------------------------------------------------------------------

    def enter_step(self, step: StepId) -> OpenStep:
        """The step for an operation that is about to change an object; the gate is held."""
        opened = self._steps.get(step)
        if opened is None:
            if step not in self._denied:
                raise StepEndedError(step)
            if not self._denied[step]:
                raise HeldError(0, f"step {step} is taken back")
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        if self.is_paused and not opened.reverses:
            raise HeldError(0, "another process changes the tree")
        if opened.held:
            raise HeldError(opened.held, f"step {step} waits for a person", step)
        opened.last = self._clock.monotonic()
        return opened

    def enter_object(self, step: StepId, place: Place) -> OpenStep:
        """`enter_step`, for the object at a place. Raises `HeldError` if it may have moved by now."""
        opened = self.enter_step(step)
        if place.moves not in (-1, self.moves):
            raise HeldError(0, "the object was moved just now")
        return opened

    def record_contact(self, opened: OpenStep, place: Place, found: os.stat_result | None, fd: int = -1) -> None:
        """A step finds an object (open as ``fd``, or at the place), or none.

        If this is its first contact, and the state differs from the last step's result, that is reported before
        anything happens.
        """
        if found is not None:
            key = self.last_state.key(found)
            if key in opened.contacts:
                return
            opened.contacts.add(key)
            if not opened.reverses:
                self.on_contact(found.st_ctime_ns, lambda: _object(place, fd) in opened.created)
        if opened.reverses or not (paths := self.last_state.foreign_paths(place, found, fd)):
            return
        if found is None:
            left = self.last_state.signature_at(place.path)
            if left is not None and any(
                left.key in step.contacts or left in step.removed for step in self._steps.values()
            ):
                return
        else:
            # A free inode number may have been reused for it.
            if self.is_of_open_step(place.path, _object(place, fd)):
                return
            if any(step is not opened and self.last_state.key(found) in step.contacts for step in self._steps.values()):
                return
        try:
            self.on_foreign_edit(opened, paths, OURSELVES if self.last_state.is_restored(place, found) else "")
        except StorageError as error:
            raise _system_error(error) from error

    def is_of_open_step(self, path: bytes, object_: Identity) -> bool:
        """Whether an open step has made the object, or has put it at the path; the gate is held."""
        return any(
            object_ in step.created or objects_by_path(step.records).get(path) == object_
            for step in self._steps.values()
        )

    def record_own_removal(self, opened: OpenStep, place: Place, found: os.stat_result) -> None:
        """A step is about to remove an object that it has made, which needs no `record_contact`."""
        # Another step may have ended since, and recorded it as its own result there.
        left = self.last_state.signature_at(place.path)
        if left is not None and left.key == self.last_state.key(found):
            opened.removed.add(left)

    def perform(self, opened: OpenStep, record: Mutation, perform: Callable[[], T]) -> T:
        """Journal ``record`` before ``perform``; if that fails, the record means nothing."""
        self.append(opened, record)
        try:
            return perform()
        except OSError:
            self.retract(opened, record)
            raise
        finally:
            # After the journal, so that a thread that reads the number and then resolves a path gets the valid one.
            if not isinstance(record, (Make, Link)):
                self._moves += 1

    def retract(self, opened: OpenStep, record: Mutation) -> None:
        """The operation of an earlier record did not happen."""
        at = next(at for at in range(len(opened.records) - 1, -1, -1) if opened.records[at] is record)
        del opened.records[at]
        if isinstance(record, (Link, Move)):
            opened.renamed = [each for each in opened.renames if each is not record]
        with suppress(StorageError):  # a reversal sees for itself
            self._journal.append(Failed(self.take_number(), opened.id, record.seq))

    def note_reversal(self, objects: Collection[Identity]) -> None:
        """The content of these is about to be brought back; the gate is held until it is."""
        self.reversals += 1
        if len(self._reversed) + len(objects) > _MOST_REVERSED:
            self._reversed.clear()
            self._reversed_before = self.reversals
        else:
            self._reversed.update(dict.fromkeys(objects, self.reversals))

    def was_reversed(self, fd: int, since: int) -> bool:
        """See `Interceptor.was_reversed`."""
        with self.gate:
            return max(self._reversed_before, self._reversed.get(identity(fd, b""), 0)) > since

    @property
    def is_guarded(self) -> bool:
        """See `Interceptor.is_guarded`."""
        return self._guard is not None and self._guard.is_on

    def guard(self, opened: OpenStep) -> Guard | None:
        """The safeguards of the step, if it may be held."""
        return self._guard if self.is_guarded and not opened.reverses else None

    def ask(self, opened: OpenStep, danger: Danger, place: Place, found: os.stat_result) -> Callable[[], None]:
        """Return if the object there may lose its name. Raises and returns as `Guard.ask`."""
        guard = self.guard(opened)
        if guard is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            return count_nothing
        object_ = identity(place.dir_fd, place.name)
        return guard.ask(opened, Loss(danger, place.path, object_, found.st_size, found.st_size))

    def note_moved(self, source: Place, target: Place, *, is_directory: bool, is_exchanged: bool) -> None:
        """An object was moved, maybe by a reversal."""
        if self.is_guarded and self._guard is not None:
            self._guard.note_moved(source.path, target.path, is_directory=is_directory, is_exchanged=is_exchanged)

    def _ask_limit(self, opened: OpenStep, place: Place) -> None:
        if (guard := self.guard(opened)) is not None:
            guard.ask_limit(opened, place.path)

    def open_source(self, opened: OpenStep, place: Place, fd: int, size: int, ready: int | None = None) -> int:
        """A descriptor for copying the content of the file ``fd``, ``size`` bytes; -1 if the step must continue
        unprotected. ``ready`` is one that the caller keeps, or -1 if there can be none; None if it was not tried.
        """
        if not self._has_room(opened, place, size):
            return -1
        try:
            if ready is None:
                return open_to_read(fd)
            if ready >= 0:
                return os.dup(ready)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except PermissionError:
            if opened.reverses:
                raise
            if not opened.unprotected_reason:
                self._ask_limit(opened, place)
                self._expose(opened, f"{display(place.path)} may be written to, but not read, by who runs it")
            return -1

    def _has_room(self, opened: OpenStep, place: Place, size: int) -> bool:
        """Whether ``size`` more bytes may be copied for the step; False makes it unprotected, and says so."""
        if opened.reverses:
            return True
        if opened.copied + size <= self.max_step_bytes:
            warn_near_limit(opened, size, self.max_step_bytes)
            return True
        if opened.unprotected_reason:
            return False
        self._ask_limit(opened, place)
        self._expose(
            opened, f"its preimages would take more than {self.max_step_bytes} bytes, at {display(place.path)}"
        )
        return False

    def _expose(self, opened: OpenStep, reason: str) -> None:
        """The step is no longer protected, which is reported."""
        record = Unprotected(self.take_number(), opened.id, reason)
        self._write(record)
        opened.unprotected = record
        _log.warning("step %d is not protected any more: %s", opened.id, reason, step_id=opened.id)

    def append(self, opened: OpenStep, record: Mutation) -> None:
        """Journal a record of the step. Raises `OSError`: its operation must not happen then."""
        if self._journal.is_full and not opened.reverses:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(record)
        opened.records.append(record)
        if isinstance(record, (Link, Move)):
            opened.renamed.append(record)
        if self._tells:
            log_capture(opened, record)

    def _write(self, record: AnyRecord) -> None:
        try:
            self._journal.append(record)
        except StorageError as error:
            raise _system_error(error) from error

    def take_number(self) -> int:
        """The next sequence number; the gate is held."""
        if self.native is not None:
            return self.native.log.take_number()
        self._seq += 1
        return self._seq

    def touch(self, step: StepId, path: bytes, fd: int) -> None:
        """Before the mtime of the directory ``path``, open as ``fd``, changes with its names. Once for a step."""
        with self.gate:
            self._touch(self._steps[step], path, fd)

    def touch_parent(self, opened: OpenStep, place: Place) -> None:
        """`touch` the directory of a place in which a name comes or goes; the gate is held."""
        if self.is_guarded and self._guard is not None:
            self._guard.note_touch(place.path)
        if (parent := place.parent) not in opened.touched:
            self._touch(opened, parent, place.dir_fd)

    def _touch(self, opened: OpenStep, path: bytes, fd: int) -> None:
        if path not in opened.touched:
            found = os.fstat(fd)
            self.append(opened, Touch(self.take_number(), opened.id, path, identity(fd, b""), mtime_of(found)))
            opened.touched.add(path)


def _object(place: Place, fd: int) -> Identity:
    """The identity of the object open as ``fd``, or (-1) at the place."""
    return identity(place.dir_fd, place.name) if fd < 0 else identity(fd, b"")


def log_capture(step: OpenStep, record: Mutation) -> None:
    """The preimage is kept for the step before the change."""
    match record:
        case Remove() | Content():
            keeping, path = record.keeping, record.path
        case Move(replaced=lost) if lost is not None:
            keeping, path = lost.keeping, record.target
        case _:
            return
    _log.debug("preimage captured", step_id=step.id, path=path, how=keeping.how.name.lower())


def warn_near_limit(step: OpenStep, size: int, most: int) -> None:
    """``size`` more bytes, for which there is room, are going to be copied for the step."""
    if step.copied < most * _NEAR <= step.copied + size:
        _log.warning(
            "step %d comes near its limit: %d of %d bytes of preimages; beyond that it is not protected",
            step.id,
            step.copied + size,
            most,
            step_id=step.id,
            current_bytes=step.copied + size,
            max_bytes=most,
        )
