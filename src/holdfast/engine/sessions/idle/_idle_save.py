"""Saving a session that no command has used for a while, as its next command would."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from holdfast.engine.opening.operation_journal import reverses_steps
from holdfast.engine.sessions.holder.lock import holding, lock_path, remove_lock
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.state import journal
from holdfast.engine.sessions.state.journal import SessionLine
from holdfast.engine.sessions.state.repair import was_emptied
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.paths import display
from holdfast.model.session_types import SessionId

if TYPE_CHECKING:
    from holdfast.engine.opening.opener import Opener
    from holdfast.model.config.settings import Settings

_LOCK_WAIT = 2.0
"""Seconds that it waits for a process that changes the tree: one that wants the session waits as well."""
_HOOKS_SHARE = 3
"""A hook's share of the time that a command waits for the session: there is one before and one after the save."""


def save_idle(opener: Opener, name: str) -> float | None:
    """Save a session's state if its idle trigger is due, in its owner's name, with its hooks: returns 0. Otherwise the
    seconds until it is due; None if it is not due before the session changes, or the session is gone.

    The session is held meanwhile; one that another process has open is skipped at once (`LockedError`). So is a session
    that has running processes, another directory than recorded, or work to recover: that is for the process that opens
    it (`RefusedError`: ``left_running``, ``cut_short``, ``half_way``, ``not_as_noted``, ``not_mounted``, ``emptied``).
    Raises also as `Session.checkpoint`.
    """
    home = opener.open_home()
    rows, clock, session = SessionCheckpointTiers(home).rows, home.store.catalog.clock, SessionId(name)
    path = lock_path(home.home, home.store.tenant, session)
    if not rows.has(session):
        return None
    with ExitStack() as stack:
        stack.enter_context(holding(path, session, timeout=0, clock=clock, at_rest=True))
        try:
            record = rows.get(session)
        except NotFoundError:
            remove_lock(path)  # it was deleted at this moment: the lock has come with us
            return None
        if record.status != "live" or record.workspace is None:
            return None
        line = SessionLine(SessionCheckpointTiers(home), record, clock).load()
        left = journal.due(line.state, line.entries, clock.now())
        if left != 0:
            return left
        context = opener.open_as_noted(record.workspace)
        if was_emptied(context, record, line.state):
            raise RefusedError(
                f"the directory of the fork {session} is empty",
                hint="the next command that opens it fills it again",
                code="emptied",
            )
        context.adjust_settings(_wait_little)
        workspace = Workspace(opener, context)
        if workspace.unfinished() is not None or reverses_steps(context.folder):
            raise RefusedError(
                f"{display(workspace.path)} is between two states: a restore or an undo was cut short there",
                hint="`holdfast restore --continue` or `--abort` ends a restore; the next "
                "command that changes the tree finishes an undo",
                code="half_way",
            )
        scope = Sessions(agent=record.owner, opener=opener).surroundings(
            opener, context, workspace, SessionCheckpointTiers(context)
        )
        with Session(scope, line, stack.pop_all()) as held:
            held.checkpoint(kind="auto")
    return left


def _wait_little(settings: Settings) -> Settings:
    """Settings with waits so short that a process which wants the session meanwhile still gets it."""
    lock, hooks = settings.lock, settings.hooks
    # If no process waits for a session, a hook delays none.
    longest = min(hooks.timeout, lock.timeout / _HOOKS_SHARE) or hooks.timeout
    return settings._replace(
        lock=lock._replace(timeout=min(lock.timeout, _LOCK_WAIT)), hooks=hooks._replace(timeout=longest)
    )
