"""The states of a session: the one that HEAD names, and the events since then in the journal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.sessions.state.repair import opening_message, same_tree
from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.session_types import (
    LEVELS,
    CommandEntry,
    CommandEvent,
    MergeEvent,
    MetricEvent,
    SessionCheckpoint,
    SessionHash,
    SessionRef,
    TreeEvent,
)
from holdfast.store.catalog.session_records import JournalRow, RefChange, SessionCommit, StoredCheckpoint, ref_name
from holdfast.store.codecs.session_format import decode_journal, encode_checkpoint, encode_journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from holdfast.engine.opening.context import Context
    from holdfast.engine.sessions.state.state_history import StateHistory
    from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
    from holdfast.model.clock import Clock
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import (
        CommandResult,
        JournalEntry,
        Level,
        RefType,
        SessionId,
        SessionKind,
        State,
    )
    from holdfast.store.catalog.session_records import SessionRecord


_LOG = Log(__name__)
_SECOND = 1_000_000
_MOST_OUTPUT = 32 << 20
"""Characters of output in a journal, however well they are compressed: all of it has to fit into a checkpoint."""

NOT_CARRIED = frozenset(
    (
        "_",
        "SHLVL",
        "PWD",
        "HOLDFAST_SESSION",
        "HOLDFAST_AGENT",
        "HOLDFAST_RUN",
        "HOLDFAST_HOOK",
        "BASH_EXECUTION_STRING",
        "BASHOPTS",
        "SHELLOPTS",
    )
)
"""Variables that a shell, or its starter, sets anew each time."""


class EnvironmentChange(NamedTuple):
    """How what a shell exports now differs from a state: fields of `CommandEvent`."""

    changed: dict[str, str]
    dropped: tuple[str, ...]
    unset: tuple[str, ...] | None


def replay(state: State, entries: Iterable[JournalEntry]) -> State:
    """The state after ``entries``."""
    for entry in entries:
        state = _after(state, entry)
    return state


def _after(state: State, entry: JournalEntry) -> State:
    if isinstance(entry, CommandEvent):
        return _after_command(state, entry)
    if isinstance(entry, TreeEvent):
        return msgspec.structs.replace(state, tree=entry.tree, updated_at=entry.at)
    if isinstance(entry, MetricEvent):
        counted = {entry.what: getattr(state.metrics, entry.what) + 1}
        return msgspec.structs.replace(state, metrics=msgspec.structs.replace(state.metrics, **counted))
    return state


def _after_command(state: State, ran: CommandEvent) -> State:
    command = ran.entry
    tree = command.before or state.tree
    if not ran.ended:
        return msgspec.structs.replace(state, seq=command.seq, tree=tree, updated_at=command.started_at)
    env = {name: value for name, value in state.env.items() if name not in ran.dropped} | dict(ran.exported)
    metrics = msgspec.structs.replace(
        state.metrics,
        commands=state.metrics.commands + 1,
        total_ms=state.metrics.total_ms + command.duration_ms,
    )
    return msgspec.structs.replace(
        state,
        seq=command.seq,
        tree=command.after or tree,
        updated_at=command.started_at + command.duration_ms * 1000,
        cwd=ran.cwd or state.cwd,
        env=env,
        unset=state.unset if ran.unset is None else ran.unset,
        metrics=metrics,
    )


def commands(entries: Iterable[JournalEntry]) -> list[CommandEntry]:
    """The commands among ``entries``."""
    return [entry.entry for entry in entries if isinstance(entry, CommandEvent)]


def output_length(entries: Iterable[JournalEntry]) -> int:
    """How many characters of output are in ``entries``."""
    results = (entry.result for entry in commands(entries))
    return sum(len(result.stdout) + len(result.stderr) for result in results if result is not None)


def trees(entries: Iterable[JournalEntry]) -> tuple[CheckpointId, ...]:
    """Every tree that ``entries`` name."""
    found: dict[CheckpointId, None] = {}
    for entry in entries:
        if isinstance(entry, CommandEvent):
            named = (entry.entry.before, entry.entry.after)
        elif isinstance(entry, TreeEvent):
            named = (entry.tree,)
        else:
            named = (entry.target,) if isinstance(entry, MergeEvent) else ()
        found.update((tree, None) for tree in named if tree is not None)
    return tuple(found)


def has_unsaved(entries: Iterable[JournalEntry]) -> bool:
    """Whether anything has happened that is worth saving a state for."""
    return any(not isinstance(entry, MetricEvent) for entry in entries)


def running(entries: Sequence[JournalEntry]) -> CommandEntry | None:
    """The command that has begun and not ended."""
    last = entries[-1] if entries else None
    return last.entry if isinstance(last, CommandEvent) and not last.ended else None


def due(state: State, entries: Sequence[JournalEntry], now: int) -> float | None:
    """Seconds until the idle trigger wants ``state`` saved, which ``entries`` have led to (0: now); None if there is
    nothing to save.
    """
    if not has_unsaved(entries) or running(entries) is not None:
        return None
    idle = max(0.0, (now - state.updated_at) / _SECOND)
    return max(0.0, state.config.triggers.idle_seconds - idle, seconds_until_allowed(state, now))


def seconds_until_allowed(state: State, now: int) -> float:
    """Seconds until the state may be saved by itself."""
    since = (now - state.metrics.last_checkpoint_at) / _SECOND
    return 0.0 if since < 0 else max(0.0, state.config.triggers.min_seconds - since)


def environment_change(state: State, base: Mapping[str, str], now: Mapping[str, str]) -> EnvironmentChange:
    """The difference of ``now``, all exports of a shell, from ``state``; the shell was started with ``base`` and the
    state.

    A variable that a session has set stays its own, even with the same value as in ``base``: the next base may differ.
    """
    env = {
        name: value
        for name, value in now.items()
        if name not in NOT_CARRIED and (base.get(name) != value or name in state.env)
    }
    unset = tuple(sorted({*(name for name in base if name not in NOT_CARRIED), *state.unset} - now.keys()))
    return EnvironmentChange(
        {name: value for name, value in env.items() if state.env.get(name) != value},
        tuple(sorted(state.env.keys() - env.keys())),
        None if unset == state.unset else unset,
    )


def environment(state: State, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a shell of the session."""
    return {name: value for name, value in base.items() if name not in state.unset} | dict(state.env)


def relative(root: bytes, directory: str) -> str:
    """``directory`` (absolute, or relative to the root) as `State.cwd` says it."""
    path = os.path.normpath(os.path.join(root, os.fsencode(directory)))
    if path == root:
        return "."
    inside = root.rstrip(b"/") + b"/"
    return os.fsdecode(path.removeprefix(inside))


def absolute(root: bytes, cwd: str) -> bytes:
    """The directory of `State.cwd`."""
    return os.path.normpath(os.path.join(root, os.fsencode(cwd)))


NO_HASH = SessionHash("")
"""The hash of an unsaved state."""


class StateOrigin(NamedTuple):
    """The origin of a state."""

    parent: SessionHash | None
    history: Sequence[CommandEntry] = ()
    """The commands that have led from that to this one."""


NO_ORIGIN = StateOrigin(None)


class SessionLine:
    """The position of one session. For the process that holds it."""

    def __init__(self, tiers: SessionCheckpointTiers, record: SessionRecord, clock: Clock) -> None:
        self.record = record
        self._tiers = tiers
        self._clock = clock
        self._head: SessionCheckpoint | None = None
        self._state: State | None = None
        self._row = JournalRow(b"", 0, 0, 0, ())
        self.entries: list[JournalEntry] = []
        """The events since HEAD."""

    @property
    def head(self) -> SessionCheckpoint:
        """The session checkpoint that HEAD names."""
        assert self._head is not None, "it was loaded, or its first checkpoint committed"
        return self._head

    @property
    def state(self) -> State:
        """The state now."""
        assert self._state is not None, "it was loaded, or its first checkpoint committed"
        return self._state

    @property
    def done(self) -> Sequence[JournalEntry]:
        """The events since HEAD, without a running command."""
        return self.entries if running(self.entries) is None else self.entries[:-1]

    @property
    def resting(self) -> State:
        """The state after `done`: that of the shell before a running command."""
        return self.state if running(self.entries) is None else replay(self.head.state, self.done)

    @property
    def journal(self) -> JournalRow:
        """The journal as it is written."""
        return self._row

    def load(self) -> SessionLine:
        """Read HEAD and the journal, as of one moment; itself. Raises `IntegrityError`, `NotFoundError`."""
        rows = self._tiers.rows
        name = ref_name("head", self.record.id)
        with rows.reading():
            ref = rows.ref(name)
            if ref is None:
                raise NotFoundError(f"the session {self.record.id} has no state yet", code="no_session")
            self._row = rows.journal(self.record.id)
            stored, data = rows.content(ref.checkpoint)
        self._head = self._tiers.load(stored.hash, data)
        self.entries = decode_journal(self._row.data)
        if len(self.entries) != self._row.entries:
            raise IntegrityError(f"the journal of the session {self.record.id} is damaged: it is not as long as it was")
        self._state = replay(self._head.state, self.entries)
        return self

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Have the journal hold ``entries``, durably. Raises `RefusedError` (code ``moved``), `StorageError`."""
        state = replay(self.head.state, entries)
        row = self._row._replace(
            data=encode_journal(entries), entries=len(entries), last_seq=state.seq, trees=trees(entries)
        )
        self._row = self._tiers.rows.write_journal(self.record.id, row)
        self.entries, self._state = list(entries), state

    def commit(
        self,
        kind: SessionKind,
        state: State,
        tree: CheckpointId,
        *,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        naming: Sequence[RefChange] = (),
        lineage: StateOrigin = NO_ORIGIN,
        record: SessionRecord | None = None,
    ) -> SessionCheckpoint:
        """Save ``state``, with that tree, and let HEAD name it. The journal is empty then, except for a running
        command, which is not part of ``state``. Atomic.

        ``naming`` are more references to it, and ``record`` is the session's new record.
        """
        now = self._clock.now()
        metrics = msgspec.structs.replace(
            state.metrics, checkpoints=state.metrics.checkpoints + 1, last_checkpoint_at=now
        )
        state = msgspec.structs.replace(state, tree=tree, metrics=metrics, updated_at=now)
        point = SessionCheckpoint(
            hash=NO_HASH,
            session=self.record.id,
            parent=lineage.parent,
            kind=kind,
            message=message,
            created_at=now,
            state=state,
            history=tuple(lineage.history),
            metadata=dict(metadata or {}),
        )
        name, size, data = encode_checkpoint(point)
        point = msgspec.structs.replace(point, hash=name)
        stored = StoredCheckpoint(
            name, self.record.id, lineage.parent, kind, message, now, state.seq, tree, True, "hot", size, len(data)
        )
        changes = [
            RefChange(msgspec.structs.replace(change.ref, checkpoint=name, updated_at=now), change.expected)
            for change in (self._head_change(), *naming)
        ]
        running = self.entries[len(self.done) :]
        now_at = replay(state, running)
        self._row = self._tiers.rows.commit(
            self.record.id,
            SessionCommit(
                checkpoint=stored,
                data=data,
                refs=changes,
                journal=JournalRow(
                    encode_journal(running),
                    len(running),
                    state.seq,
                    now_at.seq,
                    trees(running),
                    self._row.revision,
                ),
                record=record,
            ),
        )
        self._head, self._state, self.entries = point, now_at, running
        self.record = record or self.record
        return point

    def past(self) -> Iterator[SessionCheckpoint]:
        """HEAD's checkpoint, its parent, and so on, as far as they are kept."""
        return self._tiers.past(self.head)

    def history(self, limit: int | None = None) -> list[CommandEntry]:
        """The commands, the last first, at most ``limit``: as far back as the states are kept."""
        found = commands(self.entries)[::-1]
        for point in self.past():
            if limit is not None and len(found) >= limit:
                break
            found += point.history[::-1]
        return found if limit is None else found[:limit]

    def _head_change(self) -> RefChange:
        ref = new_ref("head", self.record.id)
        return RefChange(ref, None if self._head is None else self._head.hash)


def new_ref(kind: RefType, session: SessionId, name: str = "", metadata: Mapping[str, str] | None = None) -> SessionRef:
    """A reference that is to name the next session checkpoint."""
    return SessionRef(
        name=ref_name(kind, session, name),
        type=kind,
        session=session,
        checkpoint=NO_HASH,
        updated_at=0,
        metadata=dict(metadata or {}),
    )


class CommandJournal:
    """Journals the commands of a session that is held, and saves its state when they want that. See `Session` for the
    methods that have a name of it.
    """

    def __init__(
        self, context: Context, line: SessionLine, states: StateHistory, base: Mapping[str, str], stack: ExitStack
    ) -> None:
        """``base`` is the environment in which its shell starts; closing the session closes ``stack``."""
        self._context = context
        self._line = line
        self._states = states
        self._base = base
        self._stack = stack
        self._looks_later = False
        self._begun = 0
        """How many were begun since the session was opened."""

    def look_later(self) -> None:
        """See `Session.look_later`."""
        self._looks_later = True

    def look(self) -> None:
        """Find that out now, if it was left for later."""
        if self._looks_later:
            self.save_tree()

    def save_tree(self, *, whole: bool = True) -> CheckpointId:
        """Save the tree as `StateHistory.save_tree` does. If it was not examined since the session was opened, and it
        differs, that is journalled.
        """
        session = self._line.record.id
        tree = self._states.save_tree(message=opening_message(session) if self._looks_later else "", whole=whole)
        if self._looks_later:
            self._looks_later = False
            if not same_tree(self._context, self._line.state.tree, tree):
                self._line.write([*self._line.entries, TreeEvent(tree=tree, at=self._context.clock.now())])
        return tree

    def begin(self, command: str, asked: str, generated: bool, level: Level, *, recorded: bool) -> CommandEntry:
        """See `Session.begin`."""
        check_command(command)
        check_command(asked)
        self._begun += 1
        if self._begun == 2:
            # For a single command it would cost more than it saves.
            self._stack.callback(self._states.stop_noticing)
            self._states.start_noticing()
        # An undo of a step needs no checkpoint before it.
        at_risk = not recorded and LEVELS.index(level) >= LEVELS.index("risky")
        before = self.save_tree(whole=at_risk or self.due() == 0)
        worth_saving = has_unsaved(self._line.entries)
        if self.due() == 0 or (at_risk and (worth_saving or before != self._line.state.tree)):
            self._states.commit("auto", tree=before)
        state = self._line.state
        entry = CommandEntry(
            id=self._context.random(8).hex(),
            seq=state.seq + 1,
            input=asked,
            command=command,
            generated=generated,
            level=level,
            started_at=self._context.clock.now(),
            before=before,
            cwd=state.cwd,
        )
        self._line.write([*self._line.entries, CommandEvent(entry=entry)])
        return entry

    def end(
        self, entry: CommandEntry, result: CommandResult, cwd: str, env: Mapping[str, str], duration_ms: int
    ) -> CommandEntry:
        """See `Session.end`."""
        last = running(self._line.entries)
        if last is None or last.id != entry.id:
            raise UsageError(f"the command {entry.id} is not running in the session {self._line.record.id}")
        after = None
        try:
            after = self._states.save_tree(entry.command, whole=False)
        except HoldfastError as error:
            _LOG.warning("the tree after a command could not be saved: %s", error.message)
        ended = msgspec.structs.replace(last, duration_ms=duration_ms, result=escape_output(result), after=after)
        changes = environment_change(self._line.state, self._base, env)
        ran = CommandEvent(
            entry=ended,
            ended=True,
            cwd=relative(self._context.workspace.path, cwd),
            exported=changes.changed,
            dropped=changes.dropped,
            unset=changes.unset,
        )
        self._line.write([*self._line.entries[:-1], ran])
        if after is not None:
            self._save_if_wanted(after)
        return ended

    def due(self) -> float | None:
        """See `Session.due`."""
        return due(self._line.state, self._line.entries, self._context.clock.now())

    def journal_is_full(self) -> bool:
        """Whether the state must be saved, whatever the triggers say."""
        settings = self._context.settings.session
        most = min(self._line.state.config.triggers.max_journal, settings.max_journal)
        if len(self._line.entries) >= most or len(self._line.journal.data) >= settings.max_journal_bytes:
            return True
        return output_length(self._line.entries) >= _MOST_OUTPUT

    def _save_if_wanted(self, tree: CheckpointId) -> None:
        """Save the state after a command, if a trigger says so."""
        ran = len(commands(self._line.entries))
        state = self._line.state
        wanted = ran >= state.config.triggers.commands and not seconds_until_allowed(state, self._context.clock.now())
        if wanted or self.journal_is_full():
            self._states.commit("auto", tree=None if self._states.is_noticing else tree)


def check_command(text: str) -> None:
    """Raise `UsageError` for what no shell can be given."""
    try:
        good = bool(text.strip()) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        good = False
    if not good:
        raise UsageError("a command is a text that is not empty, without NUL")


def escape_output(result: CommandResult) -> CommandResult:
    """``result`` with invalid text in its output escaped, so that it can be recorded."""
    return msgspec.structs.replace(result, stdout=_escaped(result.stdout), stderr=_escaped(result.stderr))


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
