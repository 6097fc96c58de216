"""Claude Code. Sources: code.claude.com/docs/en/mcp, /hooks and /settings, as of November 2026."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations.client import NAME, Client, File, JsonFile, ServerEntry, hook_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.integrations.client import Action, ClientTarget

_EVENTS: Mapping[str, Action] = {
    "UserPromptSubmit": "prompt",
    "PreToolUse": "begin",
    "PostToolUse": "end",
    "PostToolUseFailure": "end",
    "Stop": "turn",
}
_TOOLS = "^(Bash|Edit|MultiEdit|Write|NotebookEdit|mcp__(?!holdfast__).*)$"
"""Those that write. A tool's name is matched by a regular expression of JavaScript."""
_TIMEOUT = 60  # seconds


def _files(place: ClientTarget) -> Sequence[File]:
    own = place.environ.get("CLAUDE_CONFIG_DIR", "")
    if place.scope == "project":
        servers, settings = ".mcp.json", ".claude/settings.json"
    elif own:
        servers, settings = os.path.join(own, ".claude.json"), os.path.join(own, "settings.json")
    else:
        servers, settings = ".claude.json", ".claude/settings.json"
    command, arguments = place.server
    server = ServerEntry(("mcpServers", NAME), {"command": command, "args": list(arguments)})
    hooks = [
        hook_group("claude", place, event, matcher=_TOOLS if action in ("begin", "end") else "", timeout=_TIMEOUT)
        for event, action in _EVENTS.items()
    ]
    return (
        JsonFile(os.path.join(place.root, servers), (server,)),
        JsonFile(os.path.join(place.root, settings), hooks),
    )


CLIENT = Client(
    name="claude",
    title="Claude Code",
    program="claude",
    events=_EVENTS,
    files=_files,
    quiet_answer="",
    note="Claude Code asks once whether to use the servers of a project's .mcp.json.",
)
