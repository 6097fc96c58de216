"""Everything that happened to a workspace, newest first: one query over its history, its undo log and its sessions; in
pages, or as the rows of `log`.

Three sources are merged, each in the order of its own numbers: events by theirs, steps and edits by those of the undo
log, the commands of a session by theirs. An event records the undo log's number (`HistoryEvent.undo_seq`), and a
command the states of its beginning and end. So numbers decide the order, and the clock may go back. Times decide only
where an earlier version recorded no number.
"""

from __future__ import annotations

import os
from bisect import bisect_left

from holdfast.model.errors import HoldfastError, NotFoundError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import under
from holdfast.model.timeline import TimelineFilter, TimelineItem, TimelinePage, prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.content import Progress
    from holdfast.model.ids import Hash
    from holdfast.model.session_types import CommandEntry
    from holdfast.model.timeline import TimelineKind
    from holdfast.undo.service import BarrierInfo, StepInfo, TicketInfo, UndoService

    _Key = tuple[int, int | str, int]

_LOG = Log(__name__)
_MOST = 1000
_MOST_SCANNED = 300
"""The most entries to examine for one page of `log_page`: with a rare filter in a long history a page has fewer rows,
or none, and a cursor.
"""
_MOST_COMPARED = 100
"""The same where paths are wanted: states are compared for each entry."""
_BATCH = 200
_MOST_TO_JOIN = 30_000_000
"""Microseconds after a run's beginning within which its keeper may not know it yet."""
_LAST = 1 << 62
"""After every number that was given out."""
_MAKING = ("checkpoint", "prompt", "run", "promote", "fork")
"""Operations that may have made the checkpoint that they name."""
_MOVES = ("restore", "undo", "redo")
EVERYTHING = TimelineFilter()


class SessionCommands(NamedTuple):
    """A session in the workspace."""

    session: str
    owner: str
    commands: Callable[[], Iterator[CommandEntry]]
    """Gives its commands, the last first."""


def timeline(
    context: Context,
    wanted: TimelineFilter = EVERYTHING,
    *,
    limit: int = 100,
    cursor: str | None = None,
    sessions: Iterable[SessionCommands] = (),
) -> TimelinePage:
    """At most ``limit`` items that match ``wanted``, from ``cursor`` on (None: from the newest). Changes nothing.

    All pages together have every item exactly once, for every page size, and no item newer than the first page. It
    holds in memory the list of steps, a number for each command and, if there are commands, for each event; of all
    other data only a few. An undo log of another version is left out, with a warning. Raises `UsageError` for an
    invalid limit or cursor.
    """
    if not 0 < limit <= _MOST:
        raise UsageError(f"a page has from 1 to {_MOST} items, not {limit}")
    found: list[TimelineItem] = []
    after: _Position | None = None
    merger = _Merger(context, wanted, _newest(context) if cursor is None else _Position.parsed(cursor), sessions)
    for entry, position in merger.entries():
        if not merger.matches(entry):
            continue
        if len(found) == limit:
            assert after is not None
            return TimelinePage(found, after.text())
        found.append(entry.item)
        after = position
    return TimelinePage(found, None)


def log_rows(
    context: Context,
    wanted: TimelineFilter = EVERYTHING,
    *,
    steps: bool = False,
    sessions: Iterable[SessionCommands] = (),
    progress: Progress | None = None,
) -> Iterator[TimelineItem]:
    """The rows of `log` that match ``wanted``, newest first; with ``steps`` also rows of the undo log alone: steps,
    edits by others, held operations. Changes nothing.

    A run is one row, at its end; if its end was not noted, at its beginning (``state`` is ``open``, or ``killed`` if it
    no longer runs). A command of a session and the checkpoint of its changes are one row. Checkpoints without an event,
    such as those of a bundle, are rows as well, with the number 0. Nothing stays open between two rows. ``progress`` is
    called for every examined row: there may be many between two matches, and an error that it raises ends the query.
    Otherwise as `timeline`.
    """
    newest = _newest(context)
    merger = _Merger(context, wanted, newest, sessions, all_of_log=steps)
    entries = merger.rows(_RowPosition.of(newest))
    if progress is not None:
        entries = _reported(entries, progress)
    return (entry.item for entry, _ in entries if merger.matches(entry))


def _reported(
    entries: Iterable[tuple[_Entry, _RowPosition]], progress: Progress
) -> Iterator[tuple[_Entry, _RowPosition]]:
    for number, entry in enumerate(entries):
        progress("rows", number, 0)
        yield entry


def log_page(
    context: Context,
    wanted: TimelineFilter = EVERYTHING,
    *,
    limit: int = 100,
    cursor: str | None = None,
    until: str | None = None,
    sessions: Iterable[SessionCommands] = (),
) -> TimelinePage:
    """At most ``limit`` of the `log_rows`, from ``cursor`` (None: the newest) down to ``until``, the cursor of an
    earlier page; with all rows of the undo log except steps of runs, which their run's row includes. Changes nothing.

    Its cost depends on the page, plus 4 µs for each event, once for a context. A page has fewer rows where few match.
    Otherwise as `timeline`.
    """
    if not 0 < limit <= _MOST:
        raise UsageError(f"a page has from 1 to {_MOST} items, not {limit}")
    start = _RowPosition.of(_newest(context)) if cursor is None else _RowPosition.parsed(cursor)
    end = None if until is None else _RowPosition.parsed(until)
    found: list[TimelineItem] = []
    merger = _Merger(context, wanted, start.entry, sessions, steps_of_runs=False)
    most = _MOST_COMPARED if wanted.paths else _MOST_SCANNED
    position = start
    for number, (entry, after) in enumerate(merger.rows(start)):
        if end is not None and after.is_beyond(end):
            return TimelinePage(found, until)
        if number == most:
            return TimelinePage(found, position.text())
        if merger.matches(entry):
            if len(found) == limit:
                return TimelinePage(found, position.text())
            found.append(entry.item)
        position = after
    return TimelinePage(found, None)


class _UndoLog(NamedTuple):
    """The contents of a workspace's undo log, read in one go: while a log is open, others wait for it."""

    steps: Mapping[int, StepInfo]
    """By their ids."""
    barriers: Sequence[BarrierInfo]
    held: Sequence[TicketInfo]
    touching: Mapping[bytes, frozenset[int]]
    """The steps that changed a path, or one below or above it."""


def read_undo_log(context: Context, paths: Iterable[bytes]) -> _UndoLog:
    """``paths``: paths for which the steps that changed them are needed. A log of another version counts as none, with
    a warning.
    """
    from holdfast.engine.opening.undo_log import open_service
    from holdfast.undo.journal.log_ownership import VersionMismatchError

    try:
        with open_service(context, read_only=True) as service:
            if service is not None:
                steps = {step.id: step for step in service.steps()}
                touching = {path: _touching(service, steps, path) for path in paths}
                return _UndoLog(steps, service.barriers(), service.held(), touching)
    except VersionMismatchError as error:
        _LOG.warning("the undo log cannot be read, and its steps are left out: %s", error.message)
    return _UndoLog({}, (), (), {})


def _touching(service: UndoService, steps: Iterable[int], path: bytes) -> frozenset[int]:
    def changes(step: int) -> Iterator[bytes]:
        try:
            for change in service.changes(step):
                yield from (one for one in (change.path, change.source) if one is not None)
        except NotFoundError:  # it was forgotten meanwhile
            return

    return frozenset(step for step in steps if any(_meet(one, path) for one in changes(step)))


class _Entry(NamedTuple):
    """An item, and what its place is among those of its source."""

    item: TimelineItem
    key: _Key
    states: tuple[CheckpointId | None, CheckpointId | None] = (None, None)
    """The tree's states before and after it, where its own record has them."""


class _Position(NamedTuple):
    """How far each source was read: what follows is smaller."""

    event: int
    log: _Key
    """The number in the undo log, and a distinction between items with the same number."""
    command: _Key
    """The event that it comes after, the session, the number in there."""

    def text(self) -> str:
        """As a cursor."""
        anchor, session, seq = self.command
        return f"{self.event}:{'.'.join(map(str, self.log))}:{anchor}.{seq}.{session}"

    @classmethod
    def parsed(cls, cursor: str) -> _Position:
        """From a cursor. Raises `UsageError`."""
        try:
            event, log, command = cursor.split(":", 2)
            number, rank, one = map(int, log.split("."))  # a step's id may be negative
            anchor, seq, session = command.split(".", 2)
            return cls(int(event), (number, rank, one), (int(anchor), session, int(seq)))
        except ValueError:
            raise UsageError(f"{cursor!r} is no cursor of a timeline") from None


class _RowPosition(NamedTuple):
    """How far the rows of the log were read."""

    entry: _Position
    newest: int
    """Events from this number on came after the first page: they are on none, and a run that one of them ends is open.
    """
    eventless: CheckpointId | None = None
    """The last examined checkpoint of those that `_EventlessCheckpoints` reads."""

    @classmethod
    def of(cls, newest: _Position) -> _RowPosition:
        """Where the first page begins."""
        return cls(newest, newest.event)

    def text(self) -> str:
        """As a cursor."""
        return f"{self.newest};{self.eventless or ''};{self.entry.text()}"

    @classmethod
    def parsed(cls, cursor: str) -> _RowPosition:
        """From a cursor. Raises `UsageError`."""
        try:
            newest, eventless, entry = cursor.split(";", 2)
            return cls(_Position.parsed(entry), int(newest), CheckpointId(eventless) if eventless else None)
        except ValueError:
            raise UsageError(f"{cursor!r} is no cursor of a log") from None

    def is_beyond(self, end: _RowPosition) -> bool:
        """Whether a row that ends here is not in the pages before ``end``."""
        (event, log, command), last = self.entry, end.entry
        return event < last.event or log < last.log or command < last.command


def _newest(context: Context) -> _Position:
    newest = context.catalog.events(context.workspace.id, limit=1)
    event = newest[0].seq + 1 if newest else 1
    return _Position(event, (_LAST + 1, 0, 0), (_LAST + 1, "", 0))


class _Merger:
    """Puts the sources into one order."""

    def __init__(
        self,
        context: Context,
        wanted: TimelineFilter,
        start: _Position,
        sessions: Iterable[SessionCommands],
        *,
        all_of_log: bool = True,
        steps_of_runs: bool = True,
    ) -> None:
        """Without ``all_of_log``, what the undo log knows by itself is left out; without ``steps_of_runs`` the steps of
        runs alone.
        """
        self._context = context
        self._wanted = wanted
        self._start = start
        self._sessions = sessions
        self._all_of_log = all_of_log
        self._steps_of_runs = steps_of_runs
        self._checkpoints: dict[CheckpointId, Checkpoint | None] = {}
        """The checkpoints that the last events name; None for a forgotten one."""
        self._found_index: HistoryIndex | None = None
        self._found_undo_log: _UndoLog | None = None

    def entries(self) -> Iterator[tuple[_Entry, _Position]]:
        """All entries from there on, the newest first; with each, where the next one begins."""
        position = self._start
        log, commands = self._log(), self._commands()
        held, command = next(log, None), next(commands, None)
        for event, before in self._events():
            # Items after the event: the order of commands and steps after the same event is unknown.
            while command is not None and command.key >= (event.seq, "", 0):
                position = position._replace(command=command.key)
                yield command, position
                command = next(commands, None)
            position = position._replace(command=min(position.command, (event.seq, "", 0)))
            while held is not None and _is_after(held, event):
                position = position._replace(log=held.key)
                yield held, position
                held = next(log, None)
            if event.undo_seq is not None:
                position = position._replace(log=min(position.log, (event.undo_seq + 1, 0, 0)))
            position = position._replace(event=event.seq)
            yield self._of_event(event, before), position
        position = position._replace(event=0)
        while command is not None:
            position = position._replace(command=command.key)
            yield command, position
            command = next(commands, None)
        position = position._replace(command=(0, "", 0))
        while held is not None:
            position = position._replace(log=held.key)
            yield held, position
            held = next(log, None)

    def rows(self, start: _RowPosition) -> Iterator[tuple[_Entry, _RowPosition]]:
        """The same as `log_rows` has them; with each, where the next one begins."""
        waiting: tuple[_Entry, _RowPosition] | None = None
        """A state that may be what a command of a session has left; the command follows then."""
        others = _EventlessCheckpoints(self._context, start.eventless)
        last = start
        for entry, position in self.entries():
            item = entry.item
            if waiting is not None:
                if item.kind == "command" and item.checkpoint == waiting[0].item.checkpoint:
                    entry = entry._replace(item=item._replace(made=waiting[0].item.made))
                else:
                    yield waiting
                waiting = None
            if item.made is not None and item.kind != "command":
                for one in others.until(item.made.id):
                    yield one, last._replace(eventless=one.item.checkpoint)
            last = start._replace(entry=position, eventless=others.last)
            if item.kind == "run":
                began, ended = self._index.runs[item.run]
                ended = ended if ended < start.newest else began
                if item.number != ended:
                    continue
                if not item.steps and began == ended:
                    state = "killed" if self._has_ended(item) else "open"
                    entry = entry._replace(item=item._replace(state=state))
            if _is_of_command(item):
                waiting = entry, last
            else:
                yield entry, last
        if waiting is not None:
            yield waiting
        for one in others.until(None):
            yield one, last._replace(eventless=one.item.checkpoint)

    def _has_ended(self, run: TimelineItem) -> bool:
        """Whether a run whose end was not noted is over: no keeper has it, and no process is noting its end."""
        if self._context.clock.now() - run.at < _MOST_TO_JOIN:
            return False
        from holdfast.engine.opening.undo_log import open_if_running
        from holdfast.supervisor.control.remote_service import RemoteUndoService

        try:
            # The lock is held while a run's end is noted, when its keeper may have ended already.
            with self._context.lock(0, as_found=True), open_if_running(self._context) as service:
                return not isinstance(service, RemoteUndoService) or not service.serves(run.run)
        except HoldfastError:
            return False

    def matches(self, entry: _Entry) -> bool:
        """Whether all that is wanted holds for it."""
        paths = self._wanted.paths
        return _matches(entry.item, self._wanted) and (not paths or any(self._touches(entry, path) for path in paths))

    def _touches(self, entry: _Entry, path: bytes) -> bool:
        """Whether it changed the path, or one below or above it."""
        item = entry.item
        return (
            any(_meet(one, path) for one in item.paths)
            or (item.kind != "held" and not self._undo_log.touching.get(path, frozenset()).isdisjoint(item.steps))
            or self._differ(path, *entry.states)
        )

    # --- the history ---

    def _events(self) -> Iterator[tuple[HistoryEvent, HistoryEvent | None]]:
        """Each event, with the one before it."""
        catalog, workspace, below = self._context.catalog, self._context.workspace.id, self._start.event
        later: HistoryEvent | None = None
        while some := catalog.events(workspace, limit=_BATCH, before=below):
            # The last event of a batch is returned when the one before it is known.
            named = {event.checkpoint for event in (some if later is None else (later, *some))}
            self._checkpoints = dict.fromkeys(named) | catalog.checkpoints_named(named)
            for event in some:
                if later is not None:
                    yield later, event
                later = event
            below = some[-1].seq
        if later is not None:
            yield later, None

    def _of_event(self, event: HistoryEvent, before: HistoryEvent | None) -> _Entry:
        made, run = self._made_with(event), event.run
        earlier = None if before is None else before.checkpoint
        if earlier is not None and made is not None and self._checkpoint(earlier) is None:
            earlier = made.parent  # which has passed to it with the changes of those forgotten between the two
        said = made is not None and event.operation in _MAKING
        author, message, command = made.provenance if made is not None and said else ("", "", "")
        kind: TimelineKind = event.operation
        if kind == "checkpoint" and (prompt := prompt_of(message)) is not None:
            kind, message = "prompt", prompt
        elif kind == "prompt":
            author, message = event.author, event.text
        elif kind == "run":
            command = event.text or command
        elif kind == "restore" and made is not None and made.created_at != event.at:
            author, message, command = made.provenance
            kind = "merge" if made.kind == "merge" else kind
        elif event.steps:
            command, run = self._undone(event)
        is_move = kind in ("undo", "redo") and not event.steps
        # For a move to an existing state, the labels of that state say where it went.
        named = self._checkpoint(event.checkpoint) if made is None and kind in _MOVES else made
        item = TimelineItem(
            kind,
            event.seq,
            event.at,
            author=author,
            labels=() if named is None else named.labels,
            text=message,
            command=command,
            checkpoint=event.checkpoint,
            steps=event.steps,
            run=run,
            made=made,
            before=earlier,
            of=self._reversed(earlier if kind == "undo" else event.checkpoint, event) if is_move else "",
        )
        return _Entry(item, (event.seq, 0, 0), (earlier, event.checkpoint))

    def _reversed(self, state: CheckpointId | None, event: HistoryEvent) -> str:
        """The name of the row that an undo or a redo by checkpoints reversed: the one that made the ``state`` that it
        left, or went to. Undone steps leave the state before them, which another change made.
        """
        if state is None:
            return ""
        catalog, seen = self._context.catalog, self._index.named.get(state, ())
        leading = (catalog.event(seq) for seq in reversed(seen) if seq < event.seq)
        made = next(
            (one for one in leading if one.steps or one.operation not in ("undo", "redo", "run", "prompt")), None
        )
        if made is None:
            return state
        while made.operation == "undo" and made.steps and made.previous is not None:
            made = catalog.event(made.previous)
        named = self._of_event(made, None).item
        return made.checkpoint if named.kind == "checkpoint" else named.name

    def _made_with(self, event: HistoryEvent) -> Checkpoint | None:
        """The checkpoint that was made with an event; None where that names a state that there was, or is forgotten."""
        found = self._checkpoint(event.checkpoint)
        # Moving to an existing state makes no checkpoint, whatever the clock says.
        may_make = event.operation not in _MOVES or bool(event.steps)
        if found is None or (may_make and found.created_at == event.at):
            return found
        # The checkpoint of a merge or partial restore is made before the tree is brought to it; later returns to it are
        # restores.
        is_made_for_it = event.operation == "restore" and (
            found.kind == "merge" or (found.kind == "rescue" and found.workspace == self._context.workspace.id)
        )
        return found if is_made_for_it and self._index.named[event.checkpoint][0] == event.seq else None

    def _undone(self, event: HistoryEvent) -> tuple[str, str]:
        """The command of the undone or redone steps, if all have the same; and their run, if all have one that the
        history knows (not a session's).
        """
        steps = [step for step in map(self._undo_log.steps.get, event.steps) if step is not None]
        commands, runs = {_command(step) for step in steps}, {step.run for step in steps}
        run = runs.pop() if len(runs) == 1 else ""
        return commands.pop() if len(commands) == 1 else "", run if run in self._index.runs else ""

    def _checkpoint(self, name: CheckpointId) -> Checkpoint | None:
        if name not in self._checkpoints:
            self._checkpoints |= {name: None, **self._context.catalog.checkpoints_named([name])}
        return self._checkpoints[name]

    @property
    def _index(self) -> HistoryIndex:
        """Brought up to date when it is first asked for."""
        if self._found_index is None:
            self._found_index = history_index(self._context)
        return self._found_index

    def _differ(self, path: bytes, before: CheckpointId | None, after: CheckpointId | None) -> bool:
        """Whether two states differ there; False where one was forgotten."""
        if before == after or after is None:
            return False
        old, new = None if before is None else self._checkpoint(before), self._checkpoint(after)
        if new is None or (before is not None and old is None):
            return False
        root: Hash | None = None if old is None else old.root
        from holdfast.store.manifests import manifest

        return any(_meet(change.path, path) for change in manifest.diff(self._context.store.pages, root, new.root))

    # --- the undo log ---

    def _log(self) -> Iterator[_Entry]:
        """Steps, edits by others and what waits, the newest first."""
        if not self._all_of_log:
            return iter(())
        steps = self._undo_log.steps
        found = [
            _Entry(
                TimelineItem(
                    "step",
                    step.id,
                    step.started_at // 1000,
                    command=_command(step),
                    steps=(step.id,),
                    run=step.run,
                    state=step.state,
                    exit_code=step.exit_code,
                ),
                (step.begun, 0, step.id),
            )
            for step in steps.values()
            if self._steps_of_runs or not step.run
        ]
        found += [
            _Entry(
                TimelineItem("barrier", one.id, one.at // 1000, author=one.who, paths=one.paths),
                (one.id, 1, one.id),
            )
            for one in self._undo_log.barriers
        ]
        for ticket in self._undo_log.held:
            step = steps.get(ticket.step)
            item = TimelineItem(
                "held",
                ticket.id,
                ticket.asked_at // 1000,
                text=ticket.message,
                steps=(ticket.step,),
                run="" if step is None else step.run,
                paths=(ticket.path,),
            )
            # It came after its step began; no number tells the order with the step's later changes.
            key = (_LAST if step is None else step.begun, 2, ticket.id)
            found.append(_Entry(item, key))
        return iter(sorted((one for one in found if one.key < self._start.log), key=_key_of, reverse=True))

    @property
    def _undo_log(self) -> _UndoLog:
        """Read when it is first asked for."""
        if self._found_undo_log is None:
            self._found_undo_log = read_undo_log(self._context, self._wanted.paths)
        return self._found_undo_log

    # --- sessions ---

    def _commands(self) -> Iterator[_Entry]:
        each = [self._of_session(session) for session in self._sessions]
        if not each:
            return iter(())
        import heapq

        return (one for one in heapq.merge(*each, key=_key_of, reverse=True) if one.key < self._start.command)

    def _of_session(self, session: SessionCommands) -> Iterator[_Entry]:
        began = self._beginnings(session)
        for entry in session.commands():
            if entry.seq not in began:
                continue  # (it began since)
            item = TimelineItem(
                "command",
                entry.seq,
                entry.started_at,
                author=session.owner,
                text=entry.input if entry.generated else "",
                command=entry.command,
                checkpoint=entry.after,
                session=session.session,
                exit_code=None if entry.result is None else entry.result.exit_code,
                before=entry.before,
            )
            states = (entry.before, entry.after) if entry.before is not None else (None, None)
            yield _Entry(item, (began[entry.seq], session.session, entry.seq), states)

    def _beginnings(self, session: SessionCommands) -> dict[int, int]:
        """For each command the event that it followed. For one with changes, the last before the state that it left.
        For others, the first possible one: an event that names the state in which the command began, and no older than
        those of earlier commands.
        """
        began: dict[int, int] = {}
        event = 0
        for seq, before, after in [(one.seq, one.before, one.after) for one in session.commands()][::-1]:
            event = began[seq] = self._index.first_that_names(before, event)
            event = self._index.first_that_names(after, event)
            if after != before:
                began[seq] = max(began[seq], event - 1)
        return began


class HistoryIndex:
    """The states and runs that a history's events name, in order. Events are only appended, so it is kept with the
    context and extended.
    """

    def __init__(self) -> None:
        self.named: dict[CheckpointId, list[int]] = {}
        """The numbers of the events that name a checkpoint."""
        self.runs: dict[str, tuple[int, int]] = {}
        """The first and the last event of a run: the same one where its end was not noted."""
        self._newest = 0

    def read_on(self, context: Context) -> None:
        """Take in the events that came since."""
        named, runs = self.named, self.runs
        for seq, checkpoint, run in context.catalog.names_in_events(context.workspace.id, after=self._newest):
            named.setdefault(checkpoint, []).append(seq)
            runs[run] = (runs[run][0] if run in runs else seq, seq)
            self._newest = seq

    def first_that_names(self, checkpoint: CheckpointId | None, since: int) -> int:
        """The first event from ``since`` on that names a state; ``since`` if there is none."""
        named = () if checkpoint is None else self.named.get(checkpoint, ())
        at = bisect_left(named, since)
        return named[at] if at < len(named) else since


def history_index(context: Context) -> HistoryIndex:
    """The index of all events that there are now."""
    index = context.history_index
    if not isinstance(index, HistoryIndex):
        context.history_index = index = HistoryIndex()
    index.read_on(context)
    return index


class _EventlessCheckpoints:
    """The checkpoints of a workspace that no event has made, as those of a bundle, the last recorded first."""

    def __init__(self, context: Context, after: CheckpointId | None = None) -> None:
        """``after``: the last examined checkpoint, to continue from there."""
        self._context = context
        self._read: list[Checkpoint] = []
        """Checkpoints that were read and not returned yet; the next one last."""
        self._before = after
        self._ended = False
        self.last = after
        """The last examined checkpoint."""

    def until(self, made: CheckpointId | None) -> Iterator[_Entry]:
        """Checkpoints recorded after ``made``, a checkpoint of an event, that were not returned before; None: all
        others.
        """
        while (one := self._next()) is not None and one.id != made:
            author, message, command = one.provenance
            item = TimelineItem(
                "checkpoint",
                0,
                one.created_at,
                author=author,
                labels=one.labels,
                text=message,
                command=command,
                checkpoint=one.id,
                made=one,
                before=one.parent,
            )
            yield _Entry(item, (0, 0, 0), (one.parent, one.id))

    def _next(self) -> Checkpoint | None:
        if not self._read and not self._ended:
            context = self._context
            some = context.catalog.checkpoints(context.workspace.id, limit=_BATCH, before=self._before)
            self._read, self._ended = some[::-1], len(some) < _BATCH
            self._before = some[-1].id if some else None
        if not self._read:
            return None
        found = self._read.pop()
        self.last = found.id
        return found


def _is_of_command(item: TimelineItem) -> bool:
    """Whether a checkpoint may be the one that a session made of a command's changes, without a message of its own."""
    made = item.made
    return (
        made is not None
        and item.kind == "checkpoint"
        and made.kind == "auto"
        and bool(item.command)
        and not (item.labels or item.text)
    )


def _command(step: StepInfo) -> str:
    return os.fsdecode(b" ".join(step.command))


def _key_of(entry: _Entry) -> _Key:
    return entry.key


def _is_after(entry: _Entry, event: HistoryEvent) -> bool:
    """Whether an item of the undo log came after an event."""
    number = entry.key[0]
    if event.undo_seq is None or not number:
        return entry.item.at > event.at  # an earlier version has recorded no number
    return number > event.undo_seq


def _meet(one: bytes, other: bytes) -> bool:
    return under(one, other) or under(other, one)


def _matches(item: TimelineItem, wanted: TimelineFilter) -> bool:
    """Whether all conditions except the path are true."""
    if wanted.kinds and item.kind not in wanted.kinds:
        return False
    if (wanted.since is not None and item.at < wanted.since) or (wanted.until is not None and item.at > wanted.until):
        return False
    if wanted.author and item.author != wanted.author:
        return False
    said = wanted.text.casefold()
    return any(said in text.casefold() for text in (*item.labels, item.text, item.command))
