// Written by `holdfast integrate opencode`; `holdfast integrate opencode --remove` deletes it.
import { spawn } from "node:child_process"

const PROGRAM = ["/opt/tool/bin/holdfast"]
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
      const prompt = (output?.parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n")
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
