"""opencode. Sources: opencode.ai/docs/config, /mcp-servers and /plugins of 1.x, opencode.ai/v2/docs of 2.x, and the
types of its plugins (github.com/anomalyco/opencode, packages/plugin), as of November 2026.

Both major versions read a server directly below ``mcp``; only 2.x reads ``mcp.servers``. A plugin that exports an
object is started by ``server`` in 1.x, and by ``setup`` in 2.x.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations.client import NAME, Client, File, JsonFile, OwnFile, ServerEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.integrations.client import Action, ClientTarget

_EVENTS: Mapping[str, Action] = {
    "prompt": "prompt",
    "tool.before": "begin",
    "tool.after": "end",
    "idle": "turn",
}
"""The events that the plugin reports."""

_FOLDER = "opencode"

_MARK = "// Written by `holdfast integrate opencode`; `holdfast integrate opencode --remove` deletes it.\n"

_PLUGIN = """\
import { spawn } from "node:child_process"

const PROGRAM = %(program)s
const LIMIT_MS = 60000

// Tells Holdfast of an event. The agent goes on even if that fails.
function tell(event, directory, message) {
  return new Promise((resolve) => {
    try {
      const child = spawn(PROGRAM[0], [...PROGRAM.slice(1), "hook", "opencode", event], {
        cwd: directory,
        stdio: ["pipe", "ignore", "ignore"],
        timeout: LIMIT_MS,
      })
      child.on("error", () => resolve())
      child.on("close", () => resolve())
      child.stdin.on("error", () => {})
      child.stdin.end(JSON.stringify({ cwd: directory, ...message }))
    } catch {
      resolve()
    }
  })
}

function call(sessionID, id, tool, input) {
  return { session_id: sessionID, tool_use_id: id, tool_name: tool, tool_input: input }
}

export default {
  id: "holdfast",

  // opencode 1.x
  server: async ({ directory }) => ({
    "chat.message": async (input, output) => {
      const prompt = (output?.parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\\n")
      await tell("prompt", directory, { session_id: input.sessionID, prompt })
    },
    "tool.execute.before": async (input, output) => {
      await tell("tool.before", directory, call(input.sessionID, input.callID, input.tool, output?.args))
    },
    "tool.execute.after": async (input) => {
      await tell("tool.after", directory, call(input.sessionID, input.callID, input.tool))
    },
    event: async ({ event }) => {
      if (event.type === "session.idle") await tell("idle", directory, { session_id: event.properties?.sessionID })
    },
  }),

  // opencode 2.x
  setup: async (context) => {
    const directory = context.location?.directory ?? process.cwd()
    await context.session.hook("prompt", async (event) => {
      await tell("prompt", directory, { session_id: event.sessionID, prompt: event.prompt?.text })
    })
    await context.tool.hook("execute.before", async (event) => {
      await tell("tool.before", directory, call(event.sessionID, event.id, event.tool, event.input))
    })
    await context.tool.hook("execute.after", async (event) => {
      await tell("tool.after", directory, call(event.sessionID, event.id, event.tool))
    })
  },
}
"""


def _files(place: ClientTarget) -> Sequence[File]:
    if place.scope == "user":
        base = os.path.join(place.environ.get("XDG_CONFIG_HOME") or os.path.join(place.root, ".config"), _FOLDER)
        plugins = os.path.join(base, "plugins")
    else:
        base, plugins = place.root, os.path.join(place.root, ".opencode/plugins")
    command, arguments = place.server
    server = ServerEntry(("mcp", NAME), {"type": "local", "command": [command, *arguments]}, nested=("mcp", "servers"))
    plugin = _MARK + _PLUGIN % {"program": json.dumps(list(place.program))}
    return (
        JsonFile(_config(base), (server,)),
        OwnFile(os.path.join(plugins, "holdfast.js"), plugin, _MARK),
    )


def _config(base: str) -> str:
    """The existing file; of two, the one whose name allows comments."""
    commented = os.path.join(base, "opencode.jsonc")
    return commented if os.path.lexists(commented) else os.path.join(base, "opencode.json")


CLIENT = Client(
    name="opencode",
    title="opencode",
    program="opencode",
    events=_EVENTS,
    files=_files,
    quiet_answer="",
    note="opencode reads its configuration, and loads plugins, when it starts.",
)
