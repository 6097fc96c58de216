"""The commands of a session: what is journalled of each, and when they have the session's state saved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.sessions import replaying
from holdfast.engine.sessions.recovery import found_when_opened, same_tree
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.log import Log
from holdfast.model.session import LEVELS, CommandEntry, Found, Ran

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from holdfast.engine.opening.context import Context
    from holdfast.engine.sessions.line import Line
    from holdfast.engine.sessions.states import States
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import CommandResult, Level, SessionConfig

_LOG = Log(__name__)
_MOST_OUTPUT = 32 << 20
"""Characters of output in a journal, however well they are compressed: all of it has to fit into a checkpoint."""


class Commands:
    """The commands of a session that is held. Methods with a name of `Session` are its own, which says what they do."""

    def __init__(self, context: Context, line: Line, states: States, base: Mapping[str, str], stack: ExitStack) -> None:
        """``base`` is the environment that its shell is started in, ``stack`` what goes when it is closed."""
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
        """Save the tree as `States.save_tree` does. If nobody has looked since the session was opened, and it was
        another, that is journalled.
        """
        session = self._line.record.id
        tree = self._states.save_tree(message=found_when_opened(session) if self._looks_later else "", whole=whole)
        if self._looks_later:
            self._looks_later = False
            if not same_tree(self._context, self._line.state.tree, tree):
                self._line.write([*self._line.entries, Found(tree=tree, at=self._context.clock.now())])
        return tree

    def begin(self, command: str, asked: str, generated: bool, level: Level) -> CommandEntry:
        """See `Session.begin`."""
        check_command(command)
        check_command(asked)
        self._begun += 1
        if self._begun == 2:
            # (For a single command it would cost more than it saves.)
            self._stack.callback(self._states.notice_no_more)
            self._states.notice()
        demanded = demands(self._line.state.config, level)
        before = self.save_tree(whole=demanded or self.due() == 0)
        has_something = replaying.has_something(self._line.entries)
        if self.due() == 0 or (demanded and (has_something or before != self._line.state.tree)):
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
        self._line.write([*self._line.entries, Ran(entry=entry)])
        return entry

    def end(
        self, entry: CommandEntry, result: CommandResult, cwd: str, env: Mapping[str, str], duration_ms: int
    ) -> CommandEntry:
        """See `Session.end`."""
        running = replaying.running(self._line.entries)
        if running is None or running.id != entry.id:
            raise UsageError(f"the command {entry.id} is not running in the session {self._line.record.id}")
        after = None
        try:
            after = self._states.save_tree(entry.command, whole=False)
        except HoldfastError as error:
            _LOG.warning("the tree that a command has left could not be saved: %s", error.message)
        ended = msgspec.structs.replace(running, duration_ms=duration_ms, result=clean(result), after=after)
        changes = replaying.exported(self._line.state, self._base, env)
        ran = Ran(
            entry=ended,
            ended=True,
            cwd=replaying.relative(self._context.workspace.path, cwd),
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
        return replaying.due(self._line.state, self._line.entries, self._context.clock.now())

    def journal_is_full(self) -> bool:
        """Whether the state has to be saved, whatever else holds."""
        settings = self._context.settings.session
        most = min(self._line.state.config.triggers.max_journal, settings.max_journal)
        if len(self._line.entries) >= most or len(self._line.journal.data) >= settings.max_journal_bytes:
            return True
        return replaying.output_length(self._line.entries) >= _MOST_OUTPUT

    def _save_if_wanted(self, tree: CheckpointId) -> None:
        """Save the state after a command, if a trigger says so."""
        ran = len(replaying.commands(self._line.entries))
        state = self._line.state
        wanted = ran >= state.config.triggers.commands and not replaying.too_soon(state, self._context.clock.now())
        if wanted or self.journal_is_full():
            self._states.commit("auto", tree=None if self._states.notices else tree)


def demands(config: SessionConfig, level: Level) -> bool:
    """Whether the state is to be saved before a command of this level."""
    return config.demand != "never" and LEVELS.index(level) >= LEVELS.index(config.demand)


def check_command(text: str) -> None:
    """Raise `UsageError` for what no shell can be given."""
    try:
        good = bool(text.strip()) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        good = False
    if not good:
        raise UsageError("a command is a text that is not empty, without NUL")


def clean(result: CommandResult) -> CommandResult:
    """``result`` with what is no text in its output escaped, so that it can be recorded."""
    return msgspec.structs.replace(result, stdout=_escaped(result.stdout), stderr=_escaped(result.stderr))


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
