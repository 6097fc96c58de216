"""All that happened to a workspace, the newest first, in pages: one query over its history, its undo log and sessions.

Three sources are merged, each in the order of its own numbers: events by theirs, steps and edits by those of the undo
log, the commands of a session by theirs. An event says how far the undo log was (`HistoryEvent.undo_seq`), and a
command in which states it began and ended: so what came before what is told by numbers, and the clock may go back.
Times decide only where an earlier version recorded no number.
"""

from __future__ import annotations

import heapq
import os
from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING

from holdfast.engine.opening.undo_log import open_service
from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import under
from holdfast.model.timeline import TimelineFilter, TimelineItem, TimelinePage, prompt_of
from holdfast.store.manifests import manifest
from holdfast.undo.journal.log_ownership import VersionMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.model.session_types import CommandEntry
    from holdfast.model.timeline import TimelineKind
    from holdfast.undo.service import UndoService

    _Key = tuple[int, int | str, int]

_LOG = Log(__name__)
_MOST = 1000
_BATCH = 200
_REMEMBERED = 256
_LAST = 1 << 62
"""After every number that was given out."""
_MAKING = ("checkpoint", "prompt", "run", "promote", "fork")
"""Operations that may have made the checkpoint that they name."""
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
    """At most ``limit`` items for which ``wanted`` holds, from where ``cursor`` says (None: from the newest). Changes
    nothing.

    All pages together have every item once, however they are cut, and no item that came after the first page. In memory
    are the list of steps, a number for each command, and of all else a few. An undo log of another version is left out,
    which is said. Raises `UsageError` for a limit or a cursor that is none.
    """
    if not 0 < limit <= _MOST:
        raise UsageError(f"a page has from 1 to {_MOST} items, not {limit}")
    found: list[TimelineItem] = []
    after: _Position | None = None
    with ExitStack() as entered:
        service = None
        try:
            service = entered.enter_context(open_service(context, read_only=True))
        except VersionMismatchError as error:
            _LOG.warning("what the undo log holds is left out: %s", error.message)
        merger = _Merger(context, service, _newest(context) if cursor is None else _Position.parsed(cursor), sessions)
        for entry, position in merger.entries():
            if not _matches(entry.item, wanted) or (wanted.path and not merger.touches(entry, wanted.path)):
                continue
            if len(found) == limit:
                assert after is not None
                return TimelinePage(found, after.text())
            found.append(entry.item)
            after = position
    return TimelinePage(found, None)


class _Entry(NamedTuple):
    """An item, and what its place is among those of its source."""

    item: TimelineItem
    key: _Key
    states: tuple[CheckpointId | None, CheckpointId | None] = (None, None)
    """What the tree was before it and after it, where it is known by that what it changed."""


class _Position(NamedTuple):
    """How far each source was read: what follows is smaller."""

    event: int
    log: _Key
    """The number in the undo log, and what tells apart what has the same."""
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
            number, rank, one = map(int, log.split("."))  # (a step's id may be negative)
            anchor, seq, session = command.split(".", 2)
            return cls(int(event), (number, rank, one), (int(anchor), session, int(seq)))
        except ValueError:
            raise UsageError(f"{cursor!r} is no cursor of a timeline") from None


def _newest(context: Context) -> _Position:
    newest = context.catalog.events(context.workspace.id, limit=1)
    event = newest[0].seq + 1 if newest else 1
    return _Position(event, (_LAST + 1, 0, 0), (_LAST + 1, "", 0))


class _Merger:
    """Puts the sources into one order."""

    def __init__(
        self, context: Context, service: UndoService | None, start: _Position, sessions: Iterable[SessionCommands]
    ) -> None:
        self._context = context
        self._service = service
        self._start = start
        self._sessions = sessions
        # (Neighbours name the same: what a page was told is not asked for again.)
        self._checkpoint = lru_cache(_REMEMBERED)(self._kept)
        self._named = lru_cache(_REMEMBERED)(self._events_that_name)

    def entries(self) -> Iterator[tuple[_Entry, _Position]]:
        """All entries from there on, the newest first; with each, where the next one begins."""
        position = self._start
        log, commands = self._log(), self._commands()
        held, command = next(log, None), next(commands, None)
        for event, before in self._events():
            # What comes after the event: between commands and steps after the same one, nothing says which was first.
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

    def touches(self, entry: _Entry, path: bytes) -> bool:
        """Whether it changed something at, below or above a path."""
        item = entry.item
        return (
            any(_meet(one, path) for one in item.paths)
            or (item.kind != "held" and any(self._did(path, step) for step in item.steps))
            or self._differ(path, *entry.states)
        )

    # --- the history ---

    def _events(self) -> Iterator[tuple[HistoryEvent, HistoryEvent | None]]:
        """Each event, with the one before it."""
        catalog, workspace, below = self._context.catalog, self._context.workspace.id, self._start.event
        later: HistoryEvent | None = None
        while some := catalog.events(workspace, limit=_BATCH, before=below):
            for event in some:
                if later is not None:
                    yield later, event
                later = event
            below = some[-1].seq
        if later is not None:
            yield later, None

    def _of_event(self, event: HistoryEvent, before: HistoryEvent | None) -> _Entry:
        made = self._checkpoint(event.checkpoint)
        if made is None or event.operation not in _MAKING or made.created_at != event.at:
            made = None  # (it names a state that there was)
        author, message, command = ("", "", "") if made is None else made.provenance
        kind: TimelineKind = event.operation
        if kind == "checkpoint" and (prompt := prompt_of(message)) is not None:
            kind, message = "prompt", prompt
        elif kind == "prompt":
            author, message = event.author, event.text
        elif kind == "run":
            command = event.text or command
        item = TimelineItem(
            kind,
            event.seq,
            event.at,
            author=author,
            label="" if made is None else made.label,
            text=message,
            command=command,
            checkpoint=event.checkpoint,
            steps=event.steps,
            run=event.run,
        )
        earlier = None if before is None else before.checkpoint
        return _Entry(item, (event.seq, 0, 0), (earlier, event.checkpoint))

    def _kept(self, checkpoint: CheckpointId) -> Checkpoint | None:
        try:
            return self._context.catalog.checkpoint(checkpoint)
        except NotFoundError:
            return None

    def _differ(self, path: bytes, before: CheckpointId | None, after: CheckpointId | None) -> bool:
        """Whether two states differ there; False where one was forgotten."""
        if before == after or after is None:
            return False
        old, new = None if before is None else self._checkpoint(before), self._checkpoint(after)
        if new is None or (before is not None and old is None):
            return False
        root: Hash | None = None if old is None else old.root
        return any(_meet(change.path, path) for change in manifest.diff(self._context.store.pages, root, new.root))

    # --- the undo log ---

    def _log(self) -> Iterator[_Entry]:
        """Steps, edits by others and what waits, the newest first."""
        service = self._service
        if service is None:
            return iter(())
        steps = {step.id: step for step in service.steps()}
        found = [
            _Entry(
                TimelineItem(
                    "step",
                    step.id,
                    step.started_at // 1000,
                    command=os.fsdecode(b" ".join(step.command)),
                    steps=(step.id,),
                    run=step.run,
                    state=step.state,
                ),
                (step.begun, 0, step.id),
            )
            for step in steps.values()
        ]
        found += [
            _Entry(
                TimelineItem("barrier", one.id, one.at // 1000, author=one.who, paths=one.paths),
                (one.id, 1, one.id),
            )
            for one in service.barriers()
        ]
        for ticket in service.held():
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
            # (It came after its step began; what the step has done since has no number that could be asked for.)
            key = (_LAST if step is None else step.begun, 2, ticket.id)
            found.append(_Entry(item, key))
        return iter(sorted((one for one in found if one.key < self._start.log), key=_key_of, reverse=True))

    def _did(self, path: bytes, step: int) -> bool:
        """Whether a step changed something there; False once it is forgotten."""
        if self._service is None:
            return False
        try:
            changes = self._service.changes(step)
        except NotFoundError:
            return False
        return any(_meet(one, path) for change in changes for one in (change.path, change.source) if one is not None)

    # --- sessions ---

    def _commands(self) -> Iterator[_Entry]:
        each = [self._of_session(session) for session in self._sessions]
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
            )
            states = (entry.before, entry.after) if entry.before is not None else (None, None)
            yield _Entry(item, (began[entry.seq], session.session, entry.seq), states)

    def _beginnings(self, session: SessionCommands) -> dict[int, int]:
        """For each command the first event that may have led to the state in which it began: one that names that state,
        and is not before what led to the states of the commands before it.
        """
        began: dict[int, int] = {}
        event = 0
        for seq, before, after in [(one.seq, one.before, one.after) for one in session.commands()][::-1]:
            event = began[seq] = self._first_that_names(before, event)
            event = self._first_that_names(after, event)
        return began

    def _first_that_names(self, checkpoint: CheckpointId | None, since: int) -> int:
        """The first event from ``since`` on that names a state; ``since`` if there is none."""
        named = () if checkpoint is None else self._named(checkpoint)
        return next((seq for seq in named if seq >= since), since)

    def _events_that_name(self, checkpoint: CheckpointId) -> list[int]:
        events = self._context.catalog.events(self._context.workspace.id, checkpoint=checkpoint)
        return [event.seq for event in reversed(events)]


def _key_of(entry: _Entry) -> _Key:
    return entry.key


def _is_after(entry: _Entry, event: HistoryEvent) -> bool:
    """Whether something in the undo log came after an event."""
    number = entry.key[0]
    if event.undo_seq is None or not number:
        return entry.item.at > event.at  # an earlier version has recorded no number
    return number > event.undo_seq


def _meet(one: bytes, other: bytes) -> bool:
    return under(one, other) or under(other, one)


def _matches(item: TimelineItem, wanted: TimelineFilter) -> bool:
    """Whether all of it holds but for the path."""
    if wanted.kinds and item.kind not in wanted.kinds:
        return False
    if (wanted.since is not None and item.at < wanted.since) or (wanted.until is not None and item.at > wanted.until):
        return False
    if wanted.author and item.author != wanted.author:
        return False
    said = wanted.text.casefold()
    return any(said in text.casefold() for text in (item.label, item.text, item.command))
