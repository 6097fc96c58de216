"""Requests about the sessions of an export, and their forks: shells that keep their directory, variables and history.

A session's commands run as the server's user, with all that this user can reach, whatever the token is for. So they are
run only where the home's settings allow it (``serve.session_commands``), for tokens with all rights on all exports.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.api._truncated_results import ListedSession
from holdfast.api.rest import _response_types as response_types
from holdfast.api.rest._request_context import cut, decode_cursor, encode_cursor, path_of
from holdfast.api.rest.routes.checkpoints import refuse_misconfigured
from holdfast.api.rest.routes.tree_changes import refuse_again
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.shell.execution import execute
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.answers import sessions as answers
from holdfast.model.answers.workspace import Restored
from holdfast.model.errors import RefusedError
from holdfast.model.json_encoder import encode, encode_all
from holdfast.model.paths import check_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api import _truncated_results as truncated_results
    from holdfast.api.rest import _request_types as request_types
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.session_results import SessionInfo

_RESTORED = ("written", "deleted", "skipped")


def list_sessions(call: RequestCall) -> response_types.SessionList:
    """The sessions of an export, and their forks, newest first."""
    query: request_types.Page = call.query
    after = decode_cursor(query.cursor)
    with _sessions(call) as sessions:
        found = sessions.family(_root(call))[::-1]
    if after:
        found = found[next((at + 1 for at, one in enumerate(found) if one.id == after), len(found)) :]
    shown = found[: query.limit]
    following = encode_cursor(shown[-1].id) if len(found) > len(shown) else None
    return {"sessions": encode_all(ListedSession, shown), "next_cursor": following}


def start_session(call: RequestCall) -> answers.Started:
    """Begin a session in the export's directory, or in one below. What its commands change is recorded as steps."""
    body: request_types.NewSession = call.body
    refuse_misconfigured(call.store.exports.context(call.export()).misconfigured)
    root = _root(call)
    path = os.path.join(root, check_path(path_of(body.cwd))) if body.cwd else root
    with _sessions(call) as sessions:
        try:
            session = sessions.start(path, body.id, env=body.environment, within=root)
        except RefusedError as error:
            if not call.again or body.id is None or error.code != "session_exists":
                raise
            session = sessions.open(_find(call, sessions, body.id).id)
        with session:
            return encode(answers.Started, session)


def get_session(call: RequestCall) -> response_types.Session:
    """One session, with its last commands. Its variables are not told."""
    query: request_types.SessionQuery = call.query
    with _sessions(call) as sessions:
        found = _find(call, sessions)
        history = sessions.history(found.id, query.history)
    commands = encode_all(answers.Command, history)
    return encode(response_types.Session, found, history=commands)


def execute_command(call: RequestCall) -> answers.Executed:
    """Run a command in a session, and wait for it to end. Of its output `session.max_output_bytes` are kept."""
    body: request_types.SessionCommand = call.body
    call.principal.require_all_exports()
    if not call.store.opener.settings(None).serve.session_commands:
        raise RefusedError(
            "this server runs no commands of sessions",
            hint="serve.session_commands in the home's config.toml lets it, for all tokens with all rights",
            code="no_session_commands",
        )
    refuse_again(call)
    with _sessions(call) as sessions, sessions.open(_find(call, sessions).id, begins=True) as session:
        if session.tree() is None:
            raise RefusedError(
                f"the session {session.id} records no steps: what its commands change could not be undone",
                code="not_recorded",
            )
        entry = execute(session, body.command, timeout=body.timeout_seconds)
        return encode(
            answers.Executed, entry, session=session.id, directory_after=session.state.cwd, not_kept=session.too_long
        )


def save_session(call: RequestCall) -> answers.SessionCheckpoint:
    """Save a session's state: its directory, variables, history, and files."""
    body: request_types.SessionSave = call.body
    with _sessions(call) as sessions, sessions.use(_find(call, sessions).id) as session:
        return encode(answers.SessionCheckpoint, session.checkpoint(body.message))


def undo_in_session(call: RequestCall) -> truncated_results.Restored:
    """Take back the newest changes to the tree that a session works in."""
    return _reversed(call, Workspace.undo)


def redo_in_session(call: RequestCall) -> truncated_results.Restored:
    """Bring back the newest changes there that were undone."""
    return _reversed(call, Workspace.redo)


def _reversed(call: RequestCall, reverse: Callable[..., RestoreResult]) -> truncated_results.Restored:
    body: request_types.Steps = call.body
    refuse_again(call)
    with _sessions(call) as sessions, sessions.open(_find(call, sessions).id) as session:
        done = reverse(session.workspace, body.count, force=body.force, dry_run=body.dry_run)
    return cut(encode(Restored, done), *_RESTORED)


def _sessions(call: RequestCall) -> Sessions:
    token = call.principal.token
    return _Lent(agent=token.label.strip() or token.id, opener=call.store.opener)


class _Lent(Sessions):
    """Those of a store that the request has been lent, and that stays open."""

    def close(self) -> None:
        """Nothing: the store is given back with the request."""


def _root(call: RequestCall) -> bytes:
    return call.store.exports.context(call.export()).workspace.path


def _find(call: RequestCall, sessions: Sessions, name: str | None = None) -> SessionInfo:
    return sessions.info_in_family(_root(call), call.params["session"] if name is None else name)
