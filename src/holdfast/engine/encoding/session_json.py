"""Sessions as JSON objects; see `holdfast.engine.encoding.workspace_json`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.encoding import workspace_json
from holdfast.model.clock import isoformat
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.encoding.workspace_json import Json
    from holdfast.engine.sessions.session import Session
    from holdfast.model.session_results import CheckedOut, ForkResult, SessionInfo
    from holdfast.model.session_types import CommandEntry, Level, SessionCheckpoint, SessionConfig, SessionRef


def plain(text: str) -> str:
    r"""A text that the system gave: what is not UTF-8 in it is ``\xHH``, all else as it is."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _path(text: str) -> str:
    return display(os.fsencode(text))


def command(value: CommandEntry) -> Json:
    """One command of a session's history."""
    result = value.result
    return {
        "id": value.id,
        "seq": value.seq,
        "input": plain(value.input),
        "command": plain(value.command),
        "generated": value.generated,
        "level": value.level,
        "directory": _path(value.cwd),
        "started_at": isoformat(value.started_at),
        "duration_ms": value.duration_ms,
        "exit_code": None if result is None else result.exit_code,
        "stdout": "" if result is None else result.stdout,
        "stderr": "" if result is None else result.stderr,
        "truncated": result is not None and result.truncated,
        "timed_out": result is not None and result.timed_out,
        "before": value.before,
        "after": value.after,
    }


def exec_result(session: str, value: CommandEntry, directory: str, too_long: Sequence[str]) -> Json:
    """What `session exec` has run: the command, the session, where that is now, and what it does not keep."""
    return {**command(value), "session": session, "directory_after": _path(directory), "not_kept": list(too_long)}


def history(session: str, values: Sequence[CommandEntry], dropped: int | None) -> Json:
    """What `session history` lists, newest first, and how many older ones are not kept (None: not looked at)."""
    return {"session": session, "commands": [command(value) for value in values], "dropped": dropped}


def reference(value: SessionRef) -> Json:
    """A branch, or what else names a state."""
    return {
        "name": value.name,
        "type": value.type,
        "session": value.session,
        "checkpoint": value.checkpoint,
        "updated_at": isoformat(value.updated_at),
        "metadata": dict(value.metadata),
    }


def session_checkpoint(value: SessionCheckpoint) -> Json:
    """A state of a session that is kept, without its history."""
    return {
        "hash": value.hash,
        "session": value.session,
        "parent": value.parent,
        "kind": value.kind,
        "message": value.message,
        "created_at": isoformat(value.created_at),
        "tree": value.state.tree,
        "directory": _path(value.state.cwd),
        "seq": value.state.seq,
    }


def session_start(session: Session) -> Json:
    """What `session start` has begun."""
    return {
        "id": session.id,
        "owner": session.owner,
        "root": display(session.root),
        "directory": _path(session.state.cwd),
        "config": configuration(session.config),
        "checkpoint": session.head.hash,
        "tree": session.state.tree,
    }


def configuration(value: SessionConfig) -> Json:
    """What holds for a session's commands."""
    return {
        "shell": value.shell,
        "timeout_seconds": value.timeout_seconds,
        "max_output_bytes": value.max_output_bytes,
        "demand": value.demand,
        "commands": value.triggers.commands,
        "idle_seconds": value.triggers.idle_seconds,
        "min_seconds": value.triggers.min_seconds,
        "max_journal": value.triggers.max_journal,
    }


def info(value: SessionInfo) -> Json:
    """A session, looked at from outside."""
    state = value.state
    return {
        "id": value.id,
        "parent": value.parent,
        "owner": value.owner,
        "shared": list(value.shared),
        "purpose": value.purpose,
        "status": value.status,
        "root": None if value.root is None else display(value.root),
        "workspace": value.workspace,
        "provider": value.provider,
        "mode": value.mode,
        "created_at": isoformat(value.created_at),
        "updated_at": isoformat(value.updated_at),
        "checkpoint": value.newest,
        "tree": value.tree,
        "directory": None if state is None else _path(state.cwd),
        "env": {} if state is None else {plain(name): plain(text) for name, text in state.env.items()},
        "unset": [] if state is None else [plain(name) for name in state.unset],
        "seq": 0 if state is None else state.seq,
        "config": None if state is None else configuration(state.config),
        "commands": 0 if state is None else state.metrics.commands,
        "total_ms": 0 if state is None else state.metrics.total_ms,
        "recoveries": 0 if state is None else state.metrics.recoveries,
        "running": None if value.running is None else command(value.running),
        "busy": value.busy,
        "checkpoints": value.checkpoints,
        "stored_bytes": value.stored_bytes,
        "journal": value.journal,
        "journal_bytes": value.journal_bytes,
        "forks": list(value.forks),
    }


def fork_result(value: ForkResult) -> Json:
    """What `session fork` has made."""
    return {
        "id": value.id,
        "root": display(value.root),
        "fork_point": value.fork_point,
        "reference": reference(value.ref),
        "provider": value.provider,
        "mode": value.mode,
        "passed_over": list(value.passed_over),
    }


def checkout_result(value: CheckedOut) -> Json:
    """What `session checkout` has done."""
    return {
        "checkpoint": value.checkpoint.hash,
        "directory": _path(value.state.cwd),
        "saved": reference(value.saved),
        "restored": workspace_json.restore_result(value.restored),
        "not_captured": workspace_json.not_captured(value.not_captured),
    }


def classification(text: str, level: Level) -> Json:
    """What a command may do."""
    return {"command": plain(text), "level": level}
