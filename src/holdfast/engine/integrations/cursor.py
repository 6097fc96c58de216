"""Cursor. Sources: cursor.com/docs/mcp and cursor.com/docs/agent/hooks, as of November 2026."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations.client import NAME, Client, File, HookEntry, JsonFile, RequiredMember, ServerEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.integrations.client import Action, ClientTarget

_EVENTS: Mapping[str, Action] = {
    "beforeSubmitPrompt": "prompt",
    "preToolUse": "begin",
    "postToolUse": "end",
    "postToolUseFailure": "end",
    "stop": "turn",
}


def _files(place: ClientTarget) -> Sequence[File]:
    command, arguments = place.server
    hooks = [HookEntry(event, line := place.hook("cursor", event), {"command": line}) for event in _EVENTS]
    return (
        JsonFile(
            os.path.join(place.root, ".cursor/mcp.json"),
            (ServerEntry(("mcpServers", NAME), {"command": command, "args": list(arguments)}),),
        ),
        JsonFile(os.path.join(place.root, ".cursor/hooks.json"), (RequiredMember(("version",), 1), *hooks)),
    )


CLIENT = Client(
    name="cursor",
    title="Cursor",
    program="cursor-agent",
    events=_EVENTS,
    files=_files,
    quiet_answer="{}",
    note="Cursor lists new MCP servers in its settings, where they are switched on.",
)
