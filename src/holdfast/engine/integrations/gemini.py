"""Gemini CLI. Sources: geminicli.com/docs/tools/mcp-server and /hooks/reference, as of August 2026."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations.client import NAME, Client, File, JsonFile, ServerEntry, hook_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.integrations.client import Action, ClientTarget

_EVENTS: Mapping[str, Action] = {
    "BeforeAgent": "prompt",
    "BeforeTool": "begin",
    "AfterTool": "end",
    "AfterAgent": "turn",
}
_TOOLS = "^(run_shell_command|write_file|replace|mcp_(?!holdfast_).*)$"
"""The tools that write. The client matches a tool's name by a regular expression of JavaScript."""
_TIMEOUT = 60_000  # milliseconds


def _files(place: ClientTarget) -> Sequence[File]:
    command, arguments = place.server
    hooks = [
        hook_group(
            "gemini", place, event, matcher=_TOOLS if action in ("begin", "end") else "", name=NAME, timeout=_TIMEOUT
        )
        for event, action in _EVENTS.items()
    ]
    server = ServerEntry(("mcpServers", NAME), {"command": command, "args": list(arguments)})
    return (JsonFile(os.path.join(place.root, ".gemini/settings.json"), (server, *hooks)),)


CLIENT = Client(
    name="gemini",
    title="Gemini CLI",
    program="gemini",
    events=_EVENTS,
    files=_files,
    quiet_answer="{}",
    note="Gemini CLI reads a project's settings only if the folder is trusted, and warns of hooks that are new there.",
)
