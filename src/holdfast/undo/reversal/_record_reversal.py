"""Reversing a step's records, newest first; each reversal is itself recorded, and so can be reversed.

A record describes an operation that was about to happen. So a reversal first checks the present state: a place without
the record's object was not filled by it, and a preimage that is not in the log was not taken or is restored already.
This makes reversing idempotent: an interrupted reversal continues at its last record, and reversing a record twice does
nothing the second time. An object that is not the step's result belongs to others: it is not touched, the preimage is
put into quarantine (`holdfast.undo.journal.quarantine`), and the conflict is reported.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from holdfast.files.linux.exclusive_rename import rename_to_free
from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import Metadata, apply_metadata, mtime_of, proc_path
from holdfast.files.linux.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from holdfast.model.errors import StorageError, room_hint
from holdfast.model.paths import display, under
from holdfast.undo.foreign_edits.other_links import OtherLinks
from holdfast.undo.journal.records import (
    Content,
    FileType,
    Keeping,
    KeepMethod,
    Link,
    Made,
    Make,
    Meta,
    Move,
    Mutation,
    PutBack,
    Remove,
    Signature,
    StepId,
    Touch,
)
from holdfast.undo.journal.step_footprint import objects_by_path
from holdfast.undo.reversal._object_restorer import ObjectRestorer
from holdfast.undo.reversal._refused_records import RefusedRecords
from holdfast.undo.reversal.access_grants import grant_access
from holdfast.undo.reversal.reversal_context import (
    ELSE,
    FOREIGN_EDIT,
    LOST,
    NOT_DESCRIBED,
    NOT_THERE,
    OBJECT,
    UNPROTECTED,
    NotDescribedError,
    ReversalContext,
    conflict_reason,
    describe,
    is_pristine,
    is_refusal,
    lstat_of,
    refusal_reason,
)
from holdfast.undo.tree.signatures import NOT_OURS, place_at, signature
from holdfast.undo.whole_writes import leased_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from holdfast.undo.interceptor import Place
    from holdfast.undo.reversal.reversal_context import Conflict, ReversalTools

_Reversible: TypeAlias = Make | Link | PutBack | Remove | Move | Content | Meta | Touch
"""The records that have a path."""
_TOGETHER = 1000
"""The most objects in one record."""


class Reversal:
    """Reverses records of one or more steps; what reverses that again goes into the open steps of the same ids."""

    def __init__(
        self,
        tools: ReversalTools,
        foreign: frozenset[Identity] = frozenset(),
        known: Iterable[Conflict] = (),
        dated: Mapping[StepId, Mapping[Identity, bool]] = MappingProxyType({}),
        unseen: Iterable[Identity] = (),
        *,
        forward: bool = False,
        again: Mapping[int, bool] = MappingProxyType({}),
    ) -> None:
        """``foreign`` are the objects that others have changed since: they are left as they are.

        ``known`` are the conflicts of the part that was done before it was cut short. ``dated`` are directories that
        keep the mtime that they have now, unless the step knows of an older one (False), by the steps of which that is
        so. ``unseen`` are objects of which it is not known how they look, as a directory above them may be closed.
        ``forward``: undone steps are brought forward. ``again`` are the sequence numbers of records that were refused
        before, and whether what belongs there can be had (False: it was kept aside, and is gone).
        """
        self._context = ReversalContext(tools, foreign, known)
        self._recorder, self._directories = tools.recorder, tools.directories
        self._aliases = self._context.aliases
        self._restorer = ObjectRestorer(self._context)
        self._forward = forward
        self._dated = dated
        self._unseen = set(unseen)
        self._opened: set[bytes] = set()
        """Directories whose hidden entries were examined."""
        self._made: dict[int, Identity] = {}
        self._again = again
        self._refused = RefusedRecords(self._aliases, {})
        self.paths = 0
        """How many records were reversed."""

    @property
    def conflicts(self) -> list[Conflict]:
        """The objects that could not be restored, including those in ``known``."""
        return self._context.conflicts

    @property
    def refused(self) -> Set[int]:
        """The sequence numbers of the records that are not reversed as the system refuses that, of them or of newer
        ones that have to do with the same.
        """
        return self._refused.seqs

    def run(
        self,
        records: Sequence[Mutation],
        cut: int | None,
        before: Callable[[int, tuple[Signature, ...]], None],
        refused: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Reverse ``records``, the last first, or from the position ``cut`` of an interruption. ``before`` is called
        before each position, and with -1 at the end, with the new signatures of the objects that the previous reversal
        changed. ``refused`` are the records before ``cut`` that the system refused, with the reasons.

        Holds the recorder's gate throughout: others' mutations wait. A change that the system does not permit this user
        is skipped, as a conflict. Raises `StorageError` (for the log also `OSError`) if the system fails, or a process
        has a lease on a file: call it again with the last position.
        """
        self._made = {record.make: record.identity for record in records if isinstance(record, Made)}
        self._context.created = frozenset(self._made.values())
        self._context.other_links = OtherLinks(self._directories, self._aliases, records)
        start = len(records) - 1 if cut is None else cut
        self._refused = RefusedRecords(self._aliases, self._made)
        for record in reversed(records[start + 1 :]):
            if (
                not isinstance(record, Made)
                and (reason := refused.get(record.seq) or self._refused.reason(record)) is not None
            ):
                self._refused.add(record, reason)
        with self._recorder.gate:
            written = (record.identity for record in records if isinstance(record, Content))
            self._recorder.note_reversal(self._aliases.all(written))
            left: tuple[Signature, ...] = ()
            for position in range(start, -1, -1):
                record = records[position]
                if isinstance(record, Made):
                    continue
                before(position, left)
                left = ()
                self._context.step, self._context.seq = record.step, record.seq
                if not self._again.get(record.seq, True):
                    self._context.note(_last_path(record), LOST)
                    continue
                stuck = self._refused.reason(record)
                if position == start and record.seq not in self._again and self._context.quarantine.holds(record.seq):
                    reason = stuck or self._refusal(record) or ELSE
                    self._context.note(_last_path(record), reason, aside=True)  # where it was cut short
                    if is_refusal(reason):
                        self._refused.add(record, reason)
                    continue
                if stuck is not None:
                    self._give_up(record, stuck)
                    self._refused.add(record, stuck)
                    if not isinstance(record, Touch):
                        continue
                try:
                    self._reverse_with_access(records, position, partial(before, position))
                except BlockingIOError as error:
                    raise StorageError(leased_reason(record.path)) from error
                except NotDescribedError as error:
                    self._context.note(error.path, NOT_DESCRIBED)
                    self.paths += 1
                except OSError as error:
                    reason = conflict_reason(error) or self._refusal(record, error)
                    if reason is None:
                        at = display(_last_path(record)) or "."
                        raise StorageError(f"{at}: {error.strerror}", hint=room_hint(error)) from error
                    self._give_up(record, reason)
                    if is_refusal(reason):
                        self._refused.add(record, reason)
                finally:
                    if position == cut:
                        self._may_have_changed(record)
                    left = self._context.final_signatures()
            if start >= 0:
                before(-1, left)

    def _refusal(self, record: _Reversible, error: OSError | None = None) -> str | None:
        return refusal_reason(self._directories.directory(b""), _last_path(record), error)

    def _may_have_changed(self, record: Mutation) -> None:
        """The interrupted reversal of this record may have changed its objects without recording it."""
        if isinstance(record, Made):
            return
        for path in (record.path, record.target) if isinstance(record, Move) else (record.path,):
            try:
                self._context.note_changed_at(self._directories.place(path))
            except OSError:
                continue  # nothing exists there

    def _reverse_with_access(
        self, records: Sequence[Mutation], position: int, note: Callable[[tuple[Signature, ...]], None]
    ) -> None:
        record = records[position]
        try:
            self._reverse(record)
        except PermissionError:
            described = {
                self._aliases.now(one.identity) for one in records[: position + 1] if isinstance(one, (Meta, Content))
            }
            with grant_access(self._recorder, self._directories, record, described) as opened:
                if not opened:
                    raise
                self._look_into(opened, records[: position + 1], note)
                self._reverse(record)

    def _look_into(
        self, opened: Iterable[bytes], records: Sequence[Mutation], note: Callable[[tuple[Signature, ...]], None]
    ) -> None:
        """Record the signatures of objects that become visible when directories are opened: after an interruption, they
        show changes by other processes meanwhile. ``records`` are those that are not reversed yet.
        """
        anew = [path for path in opened if path not in self._opened]
        self._opened.update(anew)
        if not anew or not self._unseen:
            return
        found: list[Signature] = []
        for path, object_ in objects_by_path(records).items():
            if (
                object_ is not None
                and object_ in self._unseen
                and any(path != above and under(path, above) for above in anew)
            ):
                with suppress(OSError):  # it is closed still
                    place = self._directories.place(path)
                    if identity(place.dir_fd, place.name) == self._aliases.now(object_):
                        if (now := signature(self._directories, path)) is not None and now != NOT_OURS:
                            found.append(now)
                        self._unseen.discard(object_)
        for at in range(0, len(found), _TOGETHER):
            note(tuple(found[at : at + _TOGETHER]))

    def _give_up(self, record: Mutation, reason: str) -> None:
        """Put the preimage of ``record`` into quarantine."""
        match record:
            case Remove():
                self._context.put_aside(record.path, reason, record.type, record.keeping, record.metadata)
            case Content():
                self._context.put_aside(record.path, reason, "f", record.keeping, record.metadata)
            case Move(replaced=lost) if lost is not None and not record.exchanged:
                if not self._is_back(record):
                    self._context.note(record.path, reason)
                self._context.put_aside(record.target, reason, lost.type, lost.keeping, lost.metadata)
            case Touch() | Made():
                pass  # a deleted directory needs no mtime, and another user's cannot be set
            case _:
                self._context.note(record.path, reason)

    def _is_back(self, record: Move) -> bool:
        """Whether the record's object is at its old place, though the replaced one is not."""
        try:
            return self._context.is_at(record.path, record.identity)
        except OSError:
            return False

    def _reverse(self, record: Mutation) -> None:
        match record:
            case Make():
                self._unmake(record.path, record.type, self._made.get(record.seq))
            case Link():
                self._unmake(record.path, record.type, record.identity, record.source)
            case PutBack():
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
        """Remove a created object; ``other`` is another name at which it may be."""
        place = self._directories.place(path)
        found = lstat_of(place)
        if found is None:
            return  # it never was, or is gone already
        if object_ is None:
            # The step was interrupted between the creation and its record: no process can have written to the object.
            if not is_pristine(place, found, type_):
                self._context.note(path, "it is not known who made it")
                return
        elif (there := identity(place.dir_fd, place.name)) != self._aliases.now(object_):
            self._context.note(path, ELSE)
            return
        elif there in self._context.foreign:
            self._context.note(path, FOREIGN_EDIT)
            return
        if type_ == "d":
            self._recorder.rmdir(self._context.step, place, lambda: os.rmdir(place.name, dir_fd=place.dir_fd))
            self._directories.forget(path)
        else:
            stays = other if object_ is not None and other != path and self._context.is_at(other, object_) else b""
            place = self._directories.place(path)
            if found.st_nlink > 1:
                self._context.note_changed_at(place)
            self._recorder.unlink(
                self._context.step, place, lambda: os.unlink(place.name, dir_fd=place.dir_fd), other=stays
            )
        self.paths += 1

    def _bring_back(
        self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata
    ) -> None:
        if self._restorer.bring_back(path, type_, object_, keeping, metadata):
            self.paths += 1

    def _move_back(self, record: Move) -> None:
        source, target = self._directories.place(record.path), self._directories.place(record.target)
        lost = record.replaced
        there = self._context.holds(target, record.identity)
        swapped = lost is not None and self._context.holds(source, lost.identity)
        if there and swapped:
            self._rename(target, source, RENAME_EXCHANGE, record)
        elif there:
            try:
                self._rename(target, source, RENAME_NOREPLACE, record)
            except OSError as error:
                if (reason := conflict_reason(error)) is None:
                    raise
                self._context.note(record.path, reason, aside=self._take_away_unplaced(record, target))
        elif swapped and record.exchanged:
            self._rename(source, target, RENAME_NOREPLACE, record)
        elif not self._context.holds(source, record.identity) and record.identity not in self._context.created:
            # An object that the step made and removed again does not exist.
            self._context.note(record.target, "the file that was moved here is gone")
        if lost is not None and not record.exchanged:
            self._bring_back(record.target, lost.type, lost.identity, lost.keeping, lost.metadata)

    def _take_away_unplaced(self, record: Move, place: Place) -> bool:
        """Remove an object that the step had made under a temporary name, such as ``.git/index.lock``, and that cannot
        have its own name again: it was at this place at no step's end, so it must not stay. Returns whether it is in
        quarantine.
        """
        opened = self._recorder.step(self._context.step)
        there = identity(place.dir_fd, place.name)
        put_back = {one.identity for one in opened.records if isinstance(one, PutBack)} | {*opened.created}
        if not self._forward or record.type == "d" or there not in put_back:
            return False
        self._recorder.unlink(self._context.step, place, lambda: os.unlink(place.name, dir_fd=place.dir_fd))
        removal = next(one for one in reversed(opened.records) if isinstance(one, Remove))
        self.paths += 1
        return self._context.quarantine.keep(
            self._context.seq, removal.type, removal.keeping, removal.metadata, is_needed=True
        )

    def _rename(self, source: Place, target: Place, flags: int, record: Move) -> None:
        self._recorder.rename(
            self._context.step,
            source,
            target,
            flags,
            lambda: (
                rename_to_free(source.dir_fd, source.name, target.dir_fd, target.name)
                if flags == RENAME_NOREPLACE
                else renameat2(source.dir_fd, source.name, target.dir_fd, target.name, flags)
            ),
        )
        self._context.note_changed_at(target)
        if flags & RENAME_EXCHANGE:
            self._context.note_changed_at(source)
        if record.type == "d" or flags & RENAME_EXCHANGE:
            self._directories.forget(record.path)
            self._directories.forget(record.target)
            self._context.other_links.directories_moved()
        self.paths += 1

    def _rewrite(self, record: Content) -> None:
        if record.keeping.how is KeepMethod.NOT:
            self._context.note(record.path, UNPROTECTED)
            return
        if record.keeping.number and self._context.preimages.metadata_of(record.keeping.number) is None:
            return  # cut off before there was a whole copy: no process was let to write
        place = self._directories.place(record.path)
        fd, reason = _open_object(place, self._aliases.now(record.identity))
        if fd < 0:
            if record.identity not in self._context.created:
                self._give_up(record, reason)
            return
        try:
            if self._aliases.now(record.identity) in self._context.foreign:
                self._give_up(record, FOREIGN_EDIT)
                return
            self._recorder.before_open(self._context.step, place, fd)
            self._context.note_changed(fd)
            self._context.fill(fd, record.keeping)
            describe(record.path, fd, record.metadata)
        finally:
            os.close(fd)
        self.paths += 1

    def _describe(self, path: bytes, object_: Identity, metadata: Metadata) -> None:
        place = place_at(self._directories, path)
        fd, reason = _open_object(place, self._aliases.now(object_))
        if fd < 0:
            if object_ not in self._context.created:
                self._context.note(path, reason)
            return
        try:
            if self._aliases.now(object_) in self._context.foreign:
                self._context.note(path, FOREIGN_EDIT)
                return
            now = self._dated_mtime(object_, mtime_of(os.fstat(fd)), metadata.mtime)
            self._recorder.before_metadata_change(self._context.step, place, fd)
            apply_metadata(fd, metadata._replace(mtime=now))
            self._context.note_changed(fd)
        finally:
            os.close(fd)
        self.paths += 1

    def _untouch(self, record: Touch) -> None:
        fd = self._directories.directory(record.path)
        if identity(fd, b"") != self._aliases.now(record.identity):
            return
        found = os.fstat(fd)
        mtime = self._dated_mtime(record.identity, mtime_of(found), record.mtime)
        if mtime_of(found) != mtime:
            self._recorder.touch(self._context.step, record.path, fd)
            os.utime(proc_path(fd), ns=(found.st_atime_ns, mtime))

    def _dated_mtime(self, directory: Identity, now: int, known: int) -> int:
        """The mtime for a directory that has ``now``, where the step had found ``known``."""
        dated = self._dated.get(self._context.step, {})
        if directory not in dated:
            return known
        first = self._first_mtime(self._aliases.now(directory), now)
        return first if dated[directory] else min(known, first, now)

    def _first_mtime(self, directory: Identity, now: int) -> int:
        """The mtime of a directory before this reversal of the step."""
        records = self._recorder.step(self._context.step).records
        touched = (one.mtime for one in records if isinstance(one, Touch) and one.identity == directory)
        return next(touched, now)


def _last_path(record: _Reversible) -> bytes:
    """Where what the record is about was after it."""
    return record.target if isinstance(record, Move) else record.path


def _open_object(place: Place, object_: Identity) -> tuple[int, str]:
    """A descriptor of the object at the place; or -1, and why not."""
    try:
        fd = os.open(place.name, OBJECT, dir_fd=place.dir_fd)
    except FileNotFoundError:
        return -1, NOT_THERE
    if identity(fd, b"") != object_:
        os.close(fd)
        return -1, ELSE
    return fd, ""
