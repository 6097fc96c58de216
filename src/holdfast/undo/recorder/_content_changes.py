"""Preimages of files' content, taken before the first write: once for each object and step (I2)."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.metadata import UNREAD, Metadata, mtime_of, read_metadata
from holdfast.files.linux.unreadable_file import open_to_read, takes_long
from holdfast.undo.journal.records import NOT_KEPT, Content, Keeping, KeepMethod, Meta
from holdfast.undo.safeguards.guard import NO_RISK, Danger, Loss
from holdfast.undo.tree.rooted_directories import is_at

if TYPE_CHECKING:
    from holdfast.files.linux.file_handle import Identity
    from holdfast.model.clock import Clock
    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.recorder.recorder import Recorder
    from holdfast.undo.safeguards.guard import Risk
    from holdfast.undo.safeguards.open_step import OpenStep

_INLINE_BYTES = 16 << 10
_INLINE_TOTAL = 32 << 20
_REST = 20_000_000


class ContentChanges:
    """The part of a `Recorder` for objects, independent of their names."""

    def __init__(self, recorder: Recorder, preimages: Preimages, clock: Clock) -> None:
        self._recorder = recorder
        self._preimages = preimages
        self._clock = clock
        self._copying: dict[Identity, threading.Event] = {}

    def before_open(self, step: StepId, place: Place, fd: int, risk: Risk = NO_RISK) -> bool:
        """See `Interceptor.before_open`."""
        object_ = identity(fd, b"")
        if self._recorder.is_guarded:
            self._ask(step, place, fd, object_, risk)
        ready = self._opened_to_read(step, fd, object_) if takes_long(os.fstat(fd)) else None
        try:
            return self._capture(step, place, fd, object_, ready)
        finally:
            if ready is not None and ready >= 0:
                os.close(ready)

    def _opened_to_read(self, step: StepId, fd: int, object_: Identity) -> int | None:
        """A descriptor for `Recorder.open_source`, made while no mutation waits for it."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            if object_ in opened.created or object_ in opened.captured:
                return None
        try:
            return open_to_read(fd)
        except PermissionError:
            return -1

    def before_loss(self, step: StepId, place: Place, fd: int, lost: int) -> None:
        """See `Interceptor.before_loss`."""
        with self._recorder.gate:
            opened, found = self._recorder.enter_step(step), os.fstat(fd)
            guard = self._recorder.guard(opened)
            if guard is not None and lost > 0 and self._is_in_tree(fd, found):
                loss = Loss(Danger.OVERWRITE, place.path, identity(fd, b""), found.st_size, min(lost, found.st_size))
                guard.ask(opened, loss)()

    def _is_in_tree(self, fd: int, found: os.stat_result) -> bool:
        """Whether it is a file that has a name there; else a process knows it by a descriptor alone."""
        return stat.S_ISREG(found.st_mode) and found.st_nlink > 0 and self._preimages.number_of(fd) is None

    def _ask(self, step: StepId, place: Place, fd: int, object_: Identity, risk: Risk) -> None:
        """Ask whether a file's content may be at this risk. Its preimage may exist already, as for a process that has
        appended.
        """
        with self._recorder.gate:
            opened, found = self._recorder.enter_step(step), os.fstat(fd)
            guard = self._recorder.guard(opened)
            if guard is None or not self._is_in_tree(fd, found):
                return
            guard.note_touch(place.path)
            size = found.st_size
            if not size:
                return
            loss = Loss(Danger.OVERWRITE, place.path, object_, size, size, fd=fd)
            if risk.cut is not None and risk.cut < size:
                guard.ask(opened, loss._replace(lost=size - risk.cut))()
            if risk.writes:
                guard.ask(opened, loss._replace(opens=True, reads=risk.reads))()

    def _capture(self, step: StepId, place: Place, fd: int, object_: Identity, ready: int | None) -> bool:
        """Whether anything had to be kept, or said to be lost."""
        while True:
            with self._recorder.gate:
                opened = self._recorder.enter_object(step, place)
                if object_ in opened.created or object_ in opened.captured:
                    return False
                copying = self._copying.get(object_)
                if copying is None:
                    found = os.fstat(fd)
                    if not stat.S_ISREG(found.st_mode) or not found.st_nlink:
                        return False
                    number = None if is_at(place, found) else self._preimages.number_of(fd)
                    if number is not None:
                        # A process may still have a descriptor of it; its writes are not in the tree.
                        opened.note_copied(self._preimages.break_off(number))
                        if found.st_nlink == 1:
                            return False
                    note_seen(opened, object_, found, self._clock.now() * 1000)
                    self._recorder.record_contact(opened, place, found, fd)
                    source = self._recorder.open_source(opened, place, fd, found.st_size, ready)
                    if source < 0:
                        lost = Content(
                            self._recorder.take_number(), step, place.path, object_, NOT_KEPT, read_metadata(fd, found)
                        )
                        self._recorder.append(opened, lost)
                        opened.captured.add(object_)
                        return True
                    if found.st_size <= _INLINE_BYTES and opened.inline < _INLINE_TOTAL:
                        self._content_inline(opened, place, source, object_, found)
                        return True
                    seq = self._recorder.take_number()
                    # The record comes before the copy: now it is at this path, and what others do to it meanwhile is
                    # reversed before.
                    record = Content(
                        seq, step, place.path, object_, Keeping(KeepMethod.COPIED, seq), read_metadata(fd, found)
                    )
                    try:
                        self._recorder.append(opened, record)
                    except BaseException:
                        os.close(source)
                        raise
                    self._copying[object_] = copying = threading.Event()
                    self._recorder.note_copying(len(self._copying))
                    opened.busy += 1
                    break
            copying.wait()
        try:
            # A large copy takes its time; nothing else waits for it but what wants to write to the same file.
            copied = copy_preimage(self._preimages, source, seq)
            with self._recorder.gate:
                opened.note_copied(copied)
                opened.captured.add(object_)
                opened.described.add(object_)
                if (number := self._preimages.number_of(fd)) is not None:
                    opened.note_copied(self._preimages.break_off(number))  # it was removed meanwhile
        except BaseException:
            with self._recorder.gate:
                self._preimages.discard(seq)
                opened.captured.discard(object_)
                opened.described.discard(object_)
                self._recorder.retract(opened, record)
            raise
        finally:
            with self._recorder.gate:
                opened.busy -= 1
                del self._copying[object_]
                self._recorder.note_copying(len(self._copying))
                copying.set()
                self._recorder.idle.notify_all()
        return True

    def cancel_open(self, step: StepId, fd: int) -> bool:
        """See `Interceptor.cancel_open`."""
        with self._recorder.gate:
            opened = self._recorder.enter_step(step)
            object_ = identity(fd, b"")
            record = next(
                one for one in reversed(opened.records) if isinstance(one, Content) and one.identity == object_
            )
            self._recorder.retract(opened, record)
            opened.captured.discard(object_)
            if not any(isinstance(one, Meta) and one.is_whole and one.identity == object_ for one in opened.records):
                opened.described.discard(object_)
            if record.keeping.number:
                self._preimages.discard(record.keeping.number)
            return True

    def release_removed(self, step: StepId, fd: int) -> bool:
        """See `Interceptor.release_removed`."""
        with self._recorder.gate:
            found = os.fstat(fd)
            number = self._preimages.number_of(fd)
            if number is None:
                # Only a query: it is answered even for a step that waits for a person or was denied.
                return not found.st_nlink or self._recorder.has_created(step, identity(fd, b""))
            opened = self._recorder.enter_step(step)
            if not stat.S_ISDIR(found.st_mode) and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
                return False
            opened.note_copied(self._preimages.break_off(number))
            return True

    def before_metadata_change(self, step: StepId, place: Place, fd: int) -> None:
        """See `Interceptor.before_metadata_change`."""
        with self._recorder.gate:
            opened = self._recorder.enter_object(step, place)
            object_ = identity(fd, b"")
            if object_ in opened.created or object_ in opened.described:
                return
            found = os.fstat(fd)
            note_seen(opened, object_, found, self._clock.now() * 1000)
            self._recorder.record_contact(opened, place, found, fd)
            record = Meta(self._recorder.take_number(), step, place.path, object_, _metadata_of(fd, found, opened))
            self._recorder.append(opened, record)
            if record.is_whole:
                opened.described.add(object_)

    def _content_inline(
        self, opened: OpenStep, place: Place, source: int, object_: Identity, found: os.stat_result
    ) -> None:
        try:
            content = os.pread(source, _INLINE_BYTES + 1, 0)
            metadata = read_metadata(source, found, readable=True)
        finally:
            os.close(source)
        record = Content(
            self._recorder.take_number(),
            opened.id,
            place.path,
            object_,
            Keeping(KeepMethod.INLINE, 0, content),
            metadata,
        )
        self._recorder.append(opened, record)
        opened.inline += len(content)
        opened.captured.add(object_)
        opened.described.add(object_)


def _metadata_of(fd: int, found: os.stat_result, opened: OpenStep) -> Metadata:
    """Everything but the extended attributes, if their owner may not read them with the present mode.

    Changing them requires a change of the mode first, if it is not writable either, and a reversal sets none that it
    cannot read. Then they are read again.
    """
    try:
        return read_metadata(fd, found)
    except PermissionError:
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_IRUSR
        if not is_ours or (found.st_mode & stat.S_IWUSR and not opened.reverses):
            raise
        return Metadata(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, mtime_of(found), UNREAD)


def copy_preimage(preimages: Preimages, source: int, number: int) -> int:
    """Keep a copy of what can be read from ``source``, and close that. Returns the bytes copied."""
    try:
        return preimages.copy_in(source, number)
    finally:
        os.close(source)


def note_seen(step: OpenStep, object_: Identity, found: os.stat_result, now: int) -> None:
    """Note what the object looks like before the step changes it for the first time, at ``now`` (ns)."""
    if object_ not in step.stats_before:
        is_at_rest = now - found.st_ctime_ns > _REST
        step.stats_before[object_] = (found.st_size, mtime_of(found), found.st_ctime_ns) if is_at_rest else None
