"""Requests about the sessions of an export, and their forks: shells that keep their directory, variables and history.

Commands of a session run as the server's user and reach all that this user can, whatever the token allows. So they
require ``serve.session_commands`` in the home's settings, and a token with all rights on all exports.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from litestar.params import JSONBody

from holdfast.api import _truncated_results as truncated_results
from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import cut, decode_cursor, encode_cursor, path_of
from holdfast.api.rest._request_types import (
    Cursor,
    ExportName,
    History,
    InSession,
    Limit,
    NewSession,
    SessionCommand,
    SessionSave,
    Steps,
)
from holdfast.api.rest.routes.checkpoints import refuse_misconfigured
from holdfast.api.rest.routes.tree_changes import refuse_again
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.shell.execution import execute
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.answers import faces
from holdfast.model.answers import sessions as answers
from holdfast.model.answers.workspace import Restored
from holdfast.model.errors import RefusedError
from holdfast.model.json_encoder import encode, encode_all
from holdfast.model.paths import check_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.rest._request_context import RequestCall
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.session_results import SessionInfo

_RESTORED = ("written", "deleted", "skipped")


@endpoint("GET", "/api/exports/{name:str}/sessions", rights="read")
def list_sessions(call: Call, name: ExportName, limit: Limit = 100, cursor: Cursor = "") -> faces.SessionList:
    """Its sessions and their forks, newest first."""
    after = decode_cursor(cursor)
    with _sessions(call) as sessions:
        found = sessions.family(_root(call, name))[::-1]
    if after:
        found = found[next((at + 1 for at, one in enumerate(found) if one.id == after), len(found)) :]
    shown = found[:limit]
    following = encode_cursor(shown[-1].id) if len(found) > len(shown) else None
    return {"sessions": encode_all(faces.ListedSession, shown), "next_cursor": following}


@endpoint("POST", "/api/exports/{name:str}/sessions", rights="write")
def start_session(call: Call, name: ExportName, data: JSONBody[NewSession]) -> answers.Started:
    """Begin a session in the export's directory, or below."""
    refuse_misconfigured(call.store.exports.context(call.export(name)).misconfigured)
    root = _root(call, name)
    path = os.path.join(root, check_path(path_of(data.cwd))) if data.cwd else root
    with _sessions(call) as sessions:
        try:
            session = sessions.start(path, data.id, env=data.environment, within=root)
        except RefusedError as error:
            if not call.again or data.id is None or error.code != "session_exists":
                raise
            session = sessions.open(_find(call, sessions, name, data.id).id)
        with session:
            return encode(answers.Started, session)


@endpoint("GET", "/api/exports/{name:str}/sessions/{session:str}", rights="read")
def get_session(call: Call, name: ExportName, session: InSession, history: History = 20) -> faces.Session:
    """One session, with its last commands."""
    with _sessions(call) as sessions:
        found = _find(call, sessions, name, session)
        commands = encode_all(answers.Command, sessions.history(found.id, history))
    return encode(faces.Session, found, history=commands)


@endpoint("POST", "/api/exports/{name:str}/sessions/{session:str}/exec", rights="admin", apart="exec")
def execute_command(
    call: Call, name: ExportName, session: InSession, data: JSONBody[SessionCommand]
) -> answers.Executed:
    """Run a command, and wait for it to end."""
    call.principal.require_all_exports()
    if not call.store.opener.settings(None).serve.session_commands:
        raise RefusedError(
            "this server runs no commands of sessions",
            hint="serve.session_commands in the home's config.toml lets it, for all tokens with all rights",
            code="no_session_commands",
        )
    refuse_again(call)
    with _sessions(call) as sessions, sessions.open(_find(call, sessions, name, session).id, begins=True) as shell:
        if shell.tree() is None:
            raise RefusedError(
                f"the session {shell.id} records no steps: what its commands change could not be undone",
                code="not_recorded",
            )
        entry = execute(shell, data.command, timeout=data.timeout_seconds)
        return encode(
            answers.Executed, entry, session=shell.id, directory_after=shell.state.cwd, not_kept=shell.too_long
        )


@endpoint("POST", "/api/exports/{name:str}/sessions/{session:str}/checkpoint", rights="write")
def save_session(
    call: Call, name: ExportName, session: InSession, data: JSONBody[SessionSave]
) -> answers.SessionCheckpoint:
    """Save its state."""
    with _sessions(call) as sessions, sessions.use(_find(call, sessions, name, session).id) as shell:
        return encode(answers.SessionCheckpoint, shell.checkpoint(data.message))


@endpoint("POST", "/api/exports/{name:str}/sessions/{session:str}/undo", rights="write")
def undo_in_session(
    call: Call, name: ExportName, session: InSession, data: JSONBody[Steps]
) -> truncated_results.Restored:
    """Undo the newest changes to its tree."""
    return _reversed(call, Workspace.undo, name, session, data)


@endpoint("POST", "/api/exports/{name:str}/sessions/{session:str}/redo", rights="write")
def redo_in_session(
    call: Call, name: ExportName, session: InSession, data: JSONBody[Steps]
) -> truncated_results.Restored:
    """Bring back the newest undone changes to its tree."""
    return _reversed(call, Workspace.redo, name, session, data)


def _reversed(
    call: RequestCall, reverse: Callable[..., RestoreResult], name: str, session: str, data: Steps
) -> truncated_results.Restored:
    refuse_again(call)
    with _sessions(call) as sessions, sessions.open(_find(call, sessions, name, session).id) as shell:
        done = reverse(shell.workspace, data.count, force=data.force, dry_run=data.dry_run)
    return cut(encode(Restored, done), *_RESTORED)


def _sessions(call: RequestCall) -> Sessions:
    token = call.principal.token
    return _Lent(agent=token.label.strip() or token.id, opener=call.store.opener)


class _Lent(Sessions):
    """The sessions of a store that the pool lent to this request; closing them leaves the store open."""

    def close(self) -> None:
        """Nothing: the store is given back with the request."""


def _root(call: RequestCall, name: str) -> bytes:
    return call.store.exports.context(call.export(name)).workspace.path


def _find(call: RequestCall, sessions: Sessions, name: str, session: str) -> SessionInfo:
    return sessions.info_in_family(_root(call, name), session)
