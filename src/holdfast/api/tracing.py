"""Messages as the log may show them: what is known to be harmless in them, and the lengths of everything else.

What holds contents cannot be listed: who makes a mistake in a call sends them under any name, and in any form. So what
may be shown is listed here, and a field that is not costs a log a text that it could have had, and nobody a secret.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

TEXTS: Final = frozenset(
    {
        # the messages themselves
        *("type", "request_id", "status", "jsonrpc", "method", "id", "requestId", "progressToken", "protocolVersion"),
        *("operations", "events", "name", "version", "code", "field", "uri", "mimeType", "level", "cursor"),
        # what they are about
        *("directory", "path", "paths", "cwd", "label", "access", "state", "backend", "run", "workspace", "command"),
        *("checkpoint", "base", "target", "parent", "source", "rescue", "head", "last_checkpoint", "kind", "format"),
        *("unfinished_restore", "safeguard_id", "action", "danger", "stream", "encoding", "hash", "expected_hash"),
        *("after", "before", "next", "next_cursor", "who", "reason", "unprotected_reason", "change", "undo_command"),
        *("isolation", "network", "allow", "dns", "hidden", "writable", "tmp"),
        *("mode", "mtime", "at", "created_at", "started_at", "ended_at", "asked_at", "denied_at"),
        # paths, by what has become of them
        *("added", "modified", "deleted", "written", "skipped", "affected_paths", "sample_paths", "before_path"),
        *("from", "to", "kept"),
    }
)
"""Members whose texts are shown, also in a list."""

OBJECTS: Final = frozenset(
    {
        *("payload", "params", "arguments", "result", "structuredContent", "error", "_meta", "holdfast/error", "data"),
        *("working_directories", "directories", "isolation", "server", "serverInfo", "clientInfo", "limits"),
        *("undo", "safeguard", "own", "held", "step", "steps", "changes", "barriers", "recovered", "conflicts"),
        *("entries", "checkpoints", "resources", "files", "totals", "counts", "stats", "differs", "mode"),
        *("added", "modified", "deleted", "renamed", "skipped", "not_captured"),
    }
)
"""Members whose objects are shown, also in a list: each of their members as it is named."""

_FAILURES: Final = frozenset({"error", "holdfast/error"})
"""What an error says of itself is shown; a message elsewhere may be a line of a command's output, say."""
_OF_FAILURES: Final = frozenset({"message", "hint"})


def without_contents(line: bytes) -> str:
    """The message that a line is, for the log. Of what is no JSON only the length is told."""
    try:
        return json.dumps(_shown(json.loads(line), is_object=True), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"<{len(line)} bytes that are no message>"


def _shown(value: Any, *, is_text: bool = False, is_object: bool = False, is_failure: bool = False) -> Any:
    """``is_text``, ``is_object``: what may be shown of it; ``is_failure``: it is an object that is an error."""
    match value:
        case str():
            return value if is_text else f"<{len(value)} characters>"
        case dict():
            members = cast("dict[str, Any]", value)
            if not is_object:
                return f"<{len(members)} members>"
            return {
                name: _shown(
                    each,
                    is_text=name in TEXTS or (is_failure and name in _OF_FAILURES),
                    is_object=name in OBJECTS,
                    is_failure=name in _FAILURES,
                )
                for name, each in members.items()
            }
        case list():
            items = cast("list[Any]", value)
            if not (is_text or is_object):
                return f"<{len(items)} items>"
            return [_shown(each, is_text=is_text, is_object=is_object, is_failure=is_failure) for each in items]
        case _:
            return value
