"""The undo log of a workspace: its open steps and its finished ones.

The process that opens it is the keeper until it closes it; there is one at a time. Opening finishes what a killed
keeper left (see `holdfast.undo.recovery.keeper_recovery`).
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.model.errors import FormatError, IntegrityError, NotFoundError, StorageError, room_hint
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.undo.journal.barriers import Barriers
from holdfast.undo.journal.forgotten_runs import ForgottenRuns
from holdfast.undo.journal.heartbeat import BEAT, NONE, Heartbeat, decode_beat, encode_beat
from holdfast.undo.journal.log_ownership import begin_version, check_version, lock_log
from holdfast.undo.journal.preimages import Preimages
from holdfast.undo.journal.quarantine import Quarantine
from holdfast.undo.journal.records import Alias, Begin, ForeignEdit
from holdfast.undo.journal.segments import Journal, read_journal, segments
from holdfast.undo.journal.step_file import SealedStep, StepHead, read_head, read_step, write_step
from holdfast.undo.recorder.last_state import load_last_state
from holdfast.undo.recorder.recorder import Recorder
from holdfast.undo.service import LogLimits
from holdfast.undo.tree.rooted_directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from holdfast.files.linux.file_handle import Identity
    from holdfast.model.clock import Clock
    from holdfast.undo.journal.records import AnyRecord, ObjectKey, Signature, StepId
    from holdfast.undo.safeguards.guard import Guard
    from holdfast.undo.safeguards.open_step import OpenStep

_log = Log(__name__)


class UndoLog:
    """See the module. The methods are for one thread; the recorder is for all."""

    def __init__(
        self,
        directory: bytes,
        root_fd: int,
        clock: Clock,
        guard: Guard | None = None,
        limits: LogLimits | None = None,
        *,
        sync: bool = False,
        least: Heartbeat = NONE,
        is_native: bool = False,
    ) -> None:
        """Open the log in ``directory`` (made if it is missing) of the tree whose root ``root_fd`` (borrowed) is.
        ``is_native``: system calls will be recorded, natively where the extension exists.

        ``least`` are the history's numbers: a log that replaces a lost one gives out larger ones. Raises `LockedError`
        if there is another keeper, `VersionMismatchError`, and `StorageError`. It does not recover from a killed keeper
        yet.
        """
        self.directory = directory
        self._root = root_fd
        self.clock = clock
        self.limits = limits or LogLimits()
        self.sync = sync
        check_version(directory)
        self._lock = lock_log(directory)
        try:
            begin_version(directory)
            self._steps = os.path.join(directory, b"steps")
            os.makedirs(self._steps, 0o700, exist_ok=True)
            self.has_damage = False
            """A finished step could not be read."""
            self.heads = self._read_heads()
            """Of finished steps. A change puts another mapping in its place: several threads go through it, and steps
            end meanwhile.
            """
            self._sizes = {step: self._size(head) for step, head in self.heads.items()}
            """Bytes of each finished step: of its file, in which small contents are, and of its preimages."""
            self._used = sum(self._sizes.values())
            self._units = Counter(map(_unit, self.heads.values()))
            self.found_records: list[AnyRecord] = read_journal(directory).records
            self.barriers = Barriers(record for record in self.found_records if isinstance(record, ForeignEdit))
            self._beat_fd = os.open(os.path.join(directory, BEAT), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            beat = decode_beat(os.read(self._beat_fd, 64))
            self.last_beat = beat or NONE
            self._signed = None if beat is None else beat.at
            """The time in the file; None while there is none."""
            self.last_sign = max(self.last_beat.at, _written_at(directory))
            """The last sign of life of the keeper before this one."""
            self.journal = Journal(directory, sync=sync)
            self.preimages = Preimages(os.path.join(directory, b"kept"))
            self.quarantine = Quarantine(os.path.join(directory, b"aside"), self.preimages)
            self.forgotten = ForgottenRuns(os.path.join(directory, b"forgotten"))
            self.forgotten_steps = Counter[str]()
            """How many of each run, since the log was opened."""
            self.directories = Directories(root_fd)
        except OSError as error:
            os.close(self._lock)
            raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error
        except BaseException:
            os.close(self._lock)
            raise
        self.interrupted = False
        """An undo or a redo stopped in the middle; see `holdfast.undo.recovery.interrupted_reversals`."""
        self.unsealed: dict[StepId, OpenStep] = {}
        """Steps that have ended and are not finished yet: the journal is needed for them."""
        self.flush_foreign_edits: Callable[[], object] = lambda: None
        """Tells `record_foreign_edit` of all that others have changed up to now. From any thread."""
        self.unsettled: dict[StepId, dict[bytes, Signature]] = {}
        """Results that could still be written to at the end of their steps, with their signatures then; see
        `holdfast.undo.completion.late_writes`.
        """
        self.unsettled_others: dict[StepId, frozenset[ObjectKey]] = {}
        """The same of `StepHead.others`."""
        self.writers: Callable[[bool], frozenset[int] | None] = lambda _thorough: frozenset()
        """Returns the inode numbers of the files that served processes may write to, open or mapped. From any thread.
        None if that would take long, unless the argument requests a thorough answer.
        """
        begun = [record.step for record in self.found_records if isinstance(record, Begin)]
        self._next_step = max([least.step, self.last_beat.step, *self.heads, *begun])
        self._next_ambient = min([least.ambient, self.last_beat.ambient, *self.heads, *begun])
        # Earlier versions did not include the number of a step's end in the heartbeat.
        ended = (max(head.last, head.left_at) for head in self.heads.values())
        seq = max([least.seq, self.last_beat.seq, *ended, *(record.seq for record in self.found_records)])
        self.recorder = Recorder(
            self.journal,
            self.preimages,
            clock,
            guard,
            device=self.directories.device,
            seq=seq,
            max_step_bytes=self.limits.max_step_bytes,
            is_native=is_native and not sync,
        )

        for old, new in self._aliases():
            self.recorder.aliases.add(old, new)
        load_last_state(self.recorder.last_state, self.heads, self.barriers.records)
        self.recorder.on_foreign_edit = self._record_found_edit

    def close(self) -> None:
        """Give the log up. Open steps stay in the journal: the next keeper rolls them back."""
        self.directories.close()
        self.preimages.close()
        self.quarantine.close()
        self.journal.close()
        os.close(self._beat_fd)
        os.close(self._lock)

    def new_id(self, *, ambient: bool = False) -> StepId:
        """An id that was never used in this log."""
        if ambient:
            self._next_ambient -= 1
        else:
            self._next_step += 1
        self.beat()
        return self._next_ambient if ambient else self._next_step

    @contextmanager
    def open_directories(self) -> Generator[Directories]:
        """Directories for one thread, without the gate; closed at the end."""
        directories = Directories(self._root)
        try:
            yield directories
        finally:
            directories.close()

    def beat(self) -> None:
        """Note that the keeper is alive. To be called a few times a second while a step is open.

        Raises `StorageError`.
        """
        self._sign(self.clock.now() * 1000)

    def mark(self) -> None:
        """Note, unless it is noted already, that work is about to begin which a kill would leave unfinished. Raises
        `StorageError`.
        """
        if not self._signed:
            # No time: recovery then does not know how long a killed keeper has lived.
            self._sign(1)

    def take_moment(self) -> int:
        """A sequence number for this moment, larger than all before it, which a reader of the sign of life tells from
        now on. The gate is held. Raises `StorageError`.
        """
        seq = self.recorder.next_seq()
        self._sign(self._signed or 0)
        return seq

    def _sign(self, at: int) -> None:
        beat = Heartbeat(at, self._next_step, self._next_ambient, self.recorder.seq)
        try:
            os.pwrite(self._beat_fd, encode_beat(beat), 0)
            if self.sync and not self._signed:
                os.fdatasync(self._beat_fd)
        except OSError as error:
            raise StorageError(f"{display(self.directory)}: {error.strerror}", hint=room_hint(error)) from error
        self._signed = at

    def restart(self) -> None:
        """Start the journal anew, if no record in it is needed, or with the needed ones if it has grown long."""
        with self.recorder.gate:
            if self.interrupted or self.unsealed:
                return
            steps = self.recorder.open_steps
            if self.barriers.records:  # a log may hold very many steps
                begun = [*(head.first for head in self.heads.values()), *(step.begin.seq for step in steps)]
                self.barriers.prune(min(begun, default=0))
            if not steps:
                self._restart(self.barriers.pieces())
            elif self.journal.is_long and not any(step.reverses for step in steps):
                records = [record for step in steps for record in (step.begin, *step.records, *step.journal_note)]
                self._restart(sorted([*self.barriers.pieces(), *records], key=lambda record: record.seq))

    def _restart(self, records: Iterable[AnyRecord]) -> None:
        try:
            self.journal.restart(records)
            if self._signed != 0 and not self.recorder.open_steps:
                self._sign(0)
        except StorageError as error:
            # It only grows: finished steps stay finished, whatever the journal still contains.
            _log.warning("the journal of the undo log cannot be begun anew: %s", error.message)

    def record_foreign_edit(
        self,
        paths: Iterable[bytes],
        who: str,
        *,
        blocks: bool = True,
        finder: StepId | None = None,
        objects: Iterable[Identity] = (),
    ) -> ForeignEdit:
        """Record that another process changed ``paths``: a barrier, unless it does not block. Raises `StorageError`.

        ``finder`` is the step that found it. ``objects`` as `ForeignEdit` has them.
        """
        with self.recorder.gate:
            seq, at = self.recorder.seq + 1, self.clock.now() * 1000
            record = ForeignEdit(seq, tuple(paths), at, who, blocks, finder, tuple(objects))
            if finder is None:
                for step in (*self.recorder.open_steps, *self.unsealed.values()):
                    step.add_edit(record)
            if (piece := self.barriers.add(record)) is not None:
                self.recorder.next_seq()
                self.recorder.note(piece)
            return self.barriers.records[-1]

    def _record_found_edit(self, step: OpenStep, paths: tuple[bytes, ...], who: str) -> None:
        # An edit that the same step has reported already is not reported again, whichever step has left a result since.
        if self.record_foreign_edit(paths, who, finder=step.id).seq == self.recorder.seq:
            self.recorder.last_state.note_reported(paths)

    def read(self, step: StepId) -> SealedStep:
        """A finished step, whole. Raises `NotFoundError`, `FormatError`, `IntegrityError`."""
        if step not in self.heads:
            raise no_step(step)
        return read_step(self._path(step))

    def write(self, sealed: SealedStep) -> None:
        """Write a finished step, in place of its earlier state in the log. Atomic."""
        head = sealed.head
        write_step(self._steps, _name(head.id), sealed, sync=self.sync)
        if head.id not in self.heads:
            self._units[_unit(head)] += 1
        self._used -= self._sizes.get(head.id, 0)
        self._sizes[head.id] = self._size(head)
        self._used += self._sizes[head.id]
        self.heads = {**self.heads, head.id: head}

    def _size(self, head: StepHead) -> int:
        return os.stat(self._path(head.id)).st_size + sum(preimage.size for preimage in head.preimages)

    def forget(self, step: StepId) -> None:
        """Forget a finished step that could have been undone, and record that for its run. Raises `StorageError`."""
        run = self.heads[step].run
        self.forgotten.add(run)
        self.forgotten_steps[run] += 1
        self.remove(step)

    def remove(self, step: StepId) -> None:
        """Remove a finished step and its preimages. Raises `StorageError`."""
        for preimage in self.heads[step].preimages:
            self.preimages.discard(preimage.number)
        os.unlink(self._path(step))
        head = self.heads[step]
        self.heads = {one: kept for one, kept in self.heads.items() if one != step}
        self._used -= self._sizes.pop(step)
        self._units[_unit(head)] -= 1
        if not self._units[_unit(head)]:
            del self._units[_unit(head)]
        self.unsettled.pop(step, None)
        self.unsettled_others.pop(step, None)

    def evict(self) -> list[StepId]:
        """Evict steps until the log is within its limits; returns the evicted ones.

        Beyond the number of runs (a step without a run counts as one), the run that acted longest ago is evicted as a
        whole. Beyond the number of bytes, its oldest steps are evicted one by one, then those of the next. A run with
        an open step comes last, and the newest step stays.
        """
        limits = self.limits
        if self._used <= limits.max_bytes and len(self._units) <= limits.max_steps:
            return []
        evicted: list[StepHead] = []
        try:
            for head in self._too_many():
                self.forget(head.id)
                evicted.append(head)
        except StorageError as error:
            _log.warning("the undo log is at its limit, and cannot forget its oldest steps: %s", error.message)
        if evicted:
            runs = dict.fromkeys(head.run for head in evicted if head.run)
            _log.warning(
                "the undo log is at its limit: %d of its oldest steps cannot be undone any more%s",
                len(evicted),
                f", and so not all of {'run' if len(runs) == 1 else 'runs'} {', '.join(runs)}" if runs else "",
                steps=[head.id for head in evicted],
            )
        return [head.id for head in evicted]

    def _too_many(self) -> Iterator[StepHead]:
        """The next steps to evict, while the log exceeds its limits."""
        going_on = {step.begin.run for step in self.recorder.open_steps} - {""}
        units: dict[str | StepId, list[StepHead]] = {}
        for head in sorted(self.heads.values(), key=lambda head: head.last):
            units.setdefault(_unit(head), []).append(head)
        newest = max(self.heads.values(), key=lambda head: head.last)
        for unit in sorted(units.values(), key=lambda unit: (unit[-1].run in going_on, unit[-1].last)):
            is_one_too_many = len(self._units) > self.limits.max_steps
            for head in unit:
                if head is not newest and (is_one_too_many or self._used > self.limits.max_bytes):
                    yield head

    def _aliases(self) -> Iterator[tuple[Identity, Identity]]:
        for head in sorted(self.heads.values(), key=lambda head: head.acted):
            yield from head.aliases
        for record in self.found_records:
            if isinstance(record, Alias):
                yield record.old, record.new

    def _path(self, step: StepId) -> bytes:
        return os.path.join(self._steps, _name(step))

    def _read_heads(self) -> dict[StepId, StepHead]:
        heads: dict[StepId, StepHead] = {}
        for name in os.listdir(self._steps):
            path = os.path.join(self._steps, name)
            if name.endswith(b".new"):
                os.unlink(path)
                continue
            try:
                head = read_head(path)
                if _name(head.id) != name:
                    raise FormatError(f"{display(path)} is another step: {head.id}")
            except IntegrityError as error:
                # That step cannot be undone any more; the others can.
                _log.warning("%s", error)
                self.has_damage = True
                continue
            heads[head.id] = head
        return heads


def no_step(step: StepId) -> NotFoundError:
    """The error for a step that the log does not hold."""
    return NotFoundError(
        f"there is no step {step} in the undo log",
        hint="`holdfast steps` lists them; at its limit the log forgets the oldest",
    )


def _name(step: StepId) -> bytes:
    return b"%08d" % step if step >= 0 else b"a%08d" % -step


def _written_at(directory: bytes) -> int:
    """The time of the last write by the keeper that has left a journal; 0 if none has.

    A keeper has one segment. Segments after the first are recoveries'.
    """
    numbers = segments(directory)
    if not numbers:
        return 0
    return os.stat(os.path.join(directory, b"journal-%08d" % min(numbers))).st_mtime_ns


def _unit(head: StepHead) -> str | StepId:
    """The unit that counts as one with other steps: its run, if it has one."""
    return head.run or head.id
