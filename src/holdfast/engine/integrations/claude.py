"""Claude Code. Sources: code.claude.com/docs/en/mcp, /hooks, /settings and /plugins-reference, as of November 2026.

The commands are a plugin in a directory of skills, which needs no marketplace: Claude Code loads each folder there that
has a ``.claude-plugin/plugin.json``, and calls its commands by its name, ``/holdfast:undo``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations.client import NAME, Client, File, JsonFile, OwnFile, ServerEntry, hook_group, sealed

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
"""The tools that write. The client matches a tool's name by a regular expression of JavaScript."""
_TIMEOUT = 60  # seconds

_MANIFEST = """\
{
  "name": "holdfast",
  "description": "Take back what happened in this workspace, and look at it",
  "author": { "name": "The Holdfast authors" },
  "keywords": ["undo", "checkpoint", "seal:"]
}
"""
_UNDO = """\
---
# Written by `holdfast integrate claude`; once it is changed it stays as it is. seal:
description: "Take back the newest change to the workspace, after a look at what that means"
argument-hint: "[N | --to prompt:N | --run ID | --step ID]"
allowed-tools: %(tools)s
disable-model-invocation: true
---
Take back changes to this workspace, as I ask:

1. Run `%(program)s undo --dry-run $ARGUMENTS`, show me what it says, and ask me whether to go on.
2. If I agree, run `%(program)s undo $ARGUMENTS`, and show me what it says, with the command that brings it back.

If it refuses, show me its message and its hint as they are: within `holdfast run` only a person can undo, in another
terminal, by `holdfast undo $ARGUMENTS`. Do not undo by other means, such as git. Afterwards read files again before you
edit them: they are not as you knew them.
"""
_LOG = """\
---
# Written by `holdfast integrate claude`; once it is changed it stays as it is. seal:
description: "Show what happened in the workspace, newest first: checkpoints, prompts, runs, undos"
argument-hint: "[-n N] [--steps] [--since 2h] [--grep TEXT] [-- PATH]"
allowed-tools: %(tools)s
disable-model-invocation: true
---
Run `%(program)s log --no-pager -n 20 $ARGUMENTS`, and show me its output as it is, in a code block. Change nothing.
"""
_COMMANDS = {"undo": (_UNDO, "undo --dry-run"), "log": (_LOG, "log")}
"""By name the text, and the call that Claude Code is not to ask its user about: an undo itself it asks about."""


def _plugin(place: ClientTarget, skills: str) -> Sequence[File]:
    """The plugin with our commands, in a directory of skills."""
    import json  # a hook does not need it
    import shlex

    folder, program = os.path.join(skills, NAME), shlex.join(place.program)
    manifest = OwnFile(os.path.join(folder, ".claude-plugin/plugin.json"), sealed(_MANIFEST), "")
    return (
        manifest,
        *(
            OwnFile(
                os.path.join(folder, f"commands/{name}.md"),
                # JSON is valid YAML, whatever characters the program's path has.
                sealed(text % {"program": program, "tools": json.dumps(f"Bash({program} {call}:*)")}),
                "",
            )
            for name, (text, call) in _COMMANDS.items()
        ),
    )


def _files(place: ClientTarget) -> Sequence[File]:
    own = place.environ.get("CLAUDE_CONFIG_DIR", "")
    if place.scope == "project":
        servers, folder = ".mcp.json", ".claude"
    elif own:
        servers, folder = os.path.join(own, ".claude.json"), own
    else:
        servers, folder = ".claude.json", ".claude"
    command, arguments = place.server
    server = ServerEntry(("mcpServers", NAME), {"command": command, "args": list(arguments)})
    hooks = [
        hook_group("claude", place, event, matcher=_TOOLS if action in ("begin", "end") else "", timeout=_TIMEOUT)
        for event, action in _EVENTS.items()
    ]
    return (
        JsonFile(os.path.join(place.root, servers), (server,)),
        JsonFile(os.path.join(place.root, folder, "settings.json"), hooks),
        *_plugin(place, os.path.join(place.root, folder, "skills")),
    )


CLIENT = Client(
    name="claude",
    title="Claude Code",
    program="claude",
    events=_EVENTS,
    files=_files,
    quiet_answer="",
    note="Claude Code asks once whether to trust a project, and whether to use the servers of its .mcp.json. It has "
    "/holdfast:undo and /holdfast:log when it is started anew.",
)
