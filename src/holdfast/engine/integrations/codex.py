"""Codex CLI. Sources: developers.openai.com/codex/config-reference, /mcp and /hooks, as of November 2026."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations.client import NAME, Client, File, JsonFile, TomlFile, hook_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.integrations.client import Action, ClientTarget

_EVENTS: Mapping[str, Action] = {
    "UserPromptSubmit": "prompt",
    "PreToolUse": "begin",
    "PostToolUse": "end",
    "Stop": "turn",
}
_TOOLS = "^(Bash|apply_patch|Edit|Write)$"
"""The tools that write; the last two names also mean `apply_patch`."""
_TIMEOUT = 60  # seconds


def _files(place: ClientTarget) -> Sequence[File]:
    own = place.environ.get("CODEX_HOME", "") if place.scope == "user" else ""
    folder = os.path.join(place.root, own or ".codex")
    command, arguments = place.server
    hooks = [
        hook_group("codex", place, event, matcher=_TOOLS if action in ("begin", "end") else "", timeout=_TIMEOUT)
        for event, action in _EVENTS.items()
    ]
    return (
        TomlFile(
            os.path.join(folder, "config.toml"), ("mcp_servers", NAME), {"command": command, "args": list(arguments)}
        ),
        JsonFile(os.path.join(folder, "hooks.json"), hooks),
    )


CLIENT = Client(
    name="codex",
    title="Codex",
    program="codex",
    events=_EVENTS,
    files=_files,
    quiet_answer="",
    note="Codex runs no hook before you have trusted it: type /hooks there. It reads a project's .codex only if the "
    "project is trusted.",
)
