"""The hooks that `integrate` writes, called as the clients call them: from the files that were written, by a shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing.tree_state import differences, photograph

if TYPE_CHECKING:
    from e2e.conftest import Cli

AGENT = """
import json, os, re, subprocess, sys

client, here = sys.argv[1], os.getcwd()
names = {
    "claude": ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", ".claude/settings.json", "Bash"),
    "codex": ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", ".codex/hooks.json", "Bash"),
    "gemini": ("BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", ".gemini/settings.json", "run_shell_command"),
    "cursor": ("beforeSubmitPrompt", "preToolUse", "postToolUse", "stop", ".cursor/hooks.json", "Shell"),
}[client]
prompt, before, after, stop, path, tool = names
hooks = json.load(open(path))["hooks"]

def fire(event, **fields):
    base = {"hook_event_name": event}
    if client == "cursor":
        base |= {"conversation_id": "c-1", "generation_id": "g-1", "workspace_roots": [here]}
    else:
        base |= {"session_id": "s-1", "cwd": here, "transcript_path": None}
    for group in hooks.get(event, []):
        if "tool_name" in fields and not re.search(group.get("matcher", ""), fields["tool_name"]):
            continue
        for handler in group.get("hooks", [group]):
            done = subprocess.run(
                handler["command"], shell=True, input=json.dumps(base | fields).encode(), capture_output=True
            )
            print(json.dumps([event, done.returncode, done.stdout.decode(), done.stderr.decode()]))

def call(number, command, *, ends=True):
    given = {"command": command}
    ids = {} if client == "gemini" else {"tool_use_id": f"call-{number}"}
    fire(before, tool_name=tool, tool_input=given, **ids)
    # An agent writes files itself, and has commands run by several processes of its own.
    for part in command.split(";"):
        subprocess.run(part, shell=True, check=True)
    if ends:
        fire(after, tool_name=tool, tool_input=given, tool_response={"output": "x" * 100000}, **ids)

fire(prompt, prompt="make it better\\nand more")
call(1, "echo 1 > f; echo 1 > g; rm cache/old")
call(2, "cat f; cat g")
call(3, "echo 3 > f", ends=False)
fire(stop)
call(4, "echo 4 > f", ends=False)
"""

CLIENTS = ("claude", "codex", "gemini", "cursor")


@pytest.fixture
def bench(cli: Cli, tmp_path: Path) -> Cli:
    cli.write(".gitignore", "cache\n")
    cli.write("f", "0\n")
    cli.write("cache/old", "0\n")
    (tmp_path / "agent.py").write_text(AGENT)
    return cli


def fired(output: bytes) -> list[tuple[str, int, str, str]]:
    return [tuple(json.loads(line)) for line in output.splitlines() if line.startswith(b"[")]


def agent(cli: Cli, client: str, *, supervised: bool) -> list[tuple[str, int, str, str]]:
    words = [sys.executable, str(cli.root.parent / "agent.py"), client]
    if supervised:
        return fired(cli.process("run", "--", *words, stdin=subprocess.DEVNULL).stdout)
    done = subprocess.run(words, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return fired(done.stdout)


@pytest.mark.parametrize("client", CLIENTS)
def test_under_a_run_every_call_is_a_step_and_every_prompt_a_checkpoint(bench: Cli, client: str) -> None:
    bench("integrate", client, "--yes")
    before = photograph(bench.root)
    for event, code, out, err in agent(bench, client, supervised=True):
        assert code == 0, (event, err)
        assert out in ("", "{}\n"), event
        assert "bug" not in err, event
    steps = [step for step in bench.json("steps")["steps"] if step["kind"] == "explicit"]
    assert [(step["paths"], step["state"]) for step in steps] == [(3, "done"), (1, "done"), (1, "done")]
    assert "echo 1 > f" in steps[0]["command"][0]
    assert [step["kind"] for step in bench.json("steps")["steps"] if step["paths"]] == ["explicit"] * 3
    assert (bench.root / "f").read_text() == "4\n"
    bench("undo")
    assert (bench.root / "f").read_text() == "3\n"
    (prompt,) = (event for event in bench.json("log")["events"] if event["operation"] == "prompt")
    assert (prompt["author"], prompt["text"]) == (client, "make it better\nand more")
    for dry_run in (["--dry-run"], []):
        bench("undo", "--to", f"prompt:{prompt['number']}", *dry_run)
    assert differences(before, photograph(bench.root)) == []
    bench("redo", "2")
    assert (bench.root / "f").read_text() == "3\n"


@pytest.mark.parametrize("client", CLIENTS)
def test_without_a_run_there_are_checkpoints_only_and_that_is_said(bench: Cli, client: str) -> None:
    bench("integrate", client, "--yes")
    (prompt, *others) = agent(bench, client, supervised=False)
    assert "no steps are recorded" in prompt[3]
    assert "holdfast undo --to prompt:" in prompt[3]
    assert [(code, err) for _, code, _, err in others] == [(0, "")] * len(others)
    (made,) = bench.json("log")["checkpoints"]
    assert (made["kind"], made["author"], made["message"]) == ("auto", client, "prompt: make it better")
    assert (bench.root / "f").read_text() == "4\n"
    bench("undo")
    assert (bench.root / "f").read_text() == "0\n"
    assert bench.json("steps")["steps"] == []


def test_a_prompt_is_kept_where_nothing_has_changed_also_by_a_watcher_and_in_a_run(bench: Cli) -> None:
    bench("checkpoint")
    words = [sys.executable, "-P", "-m", "holdfast", "hook", "claude", "UserPromptSubmit"]

    def prompt(text: str) -> bytes:
        return json.dumps({"session_id": "s", "cwd": str(bench.root), "prompt": text}).encode()

    said = bench.process(*words[4:], input=prompt("alone")).stderr.decode()
    assert "nothing has changed since" in said
    bench("watch", "--detach")
    try:
        bench.process(*words[4:], input=prompt("watched"))
    finally:
        bench("watch", "--stop")
    script = f"echo '{prompt('in a run').decode()}' | {' '.join(words)}; echo 1 > f"
    bench.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    asked = [one for one in bench.json("log")["events"] if one["operation"] == "prompt"]
    assert [one["text"] for one in asked] == ["in a run", "watched", "alone"]
    assert len({one["checkpoint"] for one in asked}) == 1
    bench("undo", "--to", str(asked[0]["number"]))
    assert (bench.root / "f").read_text() == "0\n"


def test_a_prompt_in_the_middle_of_a_run_is_saved(bench: Cli) -> None:
    bench("integrate", "claude", "--yes")
    hook = "holdfast hook claude UserPromptSubmit"
    given = json.dumps({"session_id": "s", "cwd": str(bench.root), "prompt": "two"})
    script = f"echo 1 > f; echo '{given}' | {sys.executable} -P -m {hook}; echo 2 > f"
    bench.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    found = [each for each in bench.json("log")["checkpoints"] if each["message"] == "prompt: two"]
    assert [(each["kind"], each["author"]) for each in found] == [("auto", "claude")]
    assert bench("cat", f"{found[0]['id']}:f").out == "1\n"


def test_calls_that_overlap_share_a_step_until_the_first_one_ends(bench: Cli) -> None:
    hook = f"{sys.executable} -P -m holdfast hook claude"

    def fire(event: str, call: str) -> str:
        given = json.dumps({"session_id": "s", "cwd": str(bench.root), "tool_use_id": call, "tool_name": "Bash"})
        return f"echo '{given}' | {hook} {event}"

    begin = [fire("PreToolUse", "a"), fire("PreToolUse", "b")]
    end = [fire("PostToolUse", "a"), "sh -c 'echo 2 > f'", fire("PostToolUse", "b"), fire("PostToolUse", "b")]
    script = "; ".join([*begin, "echo 1 > f", *end])
    done = bench.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    assert b"the call belongs to it" in done.stderr
    steps = bench.json("steps")["steps"]
    assert [(step["kind"], step["paths"]) for step in steps] == [("explicit", 1), ("command", 1)]


HOSTILE = [
    b"",
    b"[]",
    b"{",
    b"null",
    b'{"cwd": 7, "session_id": [], "tool_input": {"command": 1}, "workspace_roots": {}}',
    b'{"cwd": "relative/../..", "prompt": {"a": 1}}',
    b'{"cwd": "/no\\u0000where"}',
    b'{"cwd": "/nowhere/at/all"}',
    b'{"prompt": "\\ud800", "session_id": "\\u001b[31m"}',
    b"[" * 200_000,
    b'{"x": ' * 100_000,
    b'{"prompt": "' + b"a" * (9 << 20) + b'"}',
    b"\xff\xfe{}",
    os.urandom(1000),
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_client_says_it_goes_on(bench: Cli, data: bytes) -> None:
    """I12."""
    done = bench.process("hook", "claude", "UserPromptSubmit", input=data)
    assert done.stdout == b""
    assert done.stderr.count(b"\n") <= 1
    assert b"bug" not in done.stderr
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hook", "claude", "PostToolUze"), b"no event of Claude Code"),
        (("hook", "nobody", "x"), b"no client"),
        (("hook",), b"no client"),
    ],
)
def test_a_hook_that_is_called_wrongly_says_so_and_does_not_stop_the_client(
    bench: Cli, words: tuple[str, ...], said: bytes
) -> None:
    assert said in bench.process(*words, input=b"{}").stderr


def test_where_nothing_is_remembered_a_hook_says_so(place: Path) -> None:
    directory = place / "elsewhere"
    directory.mkdir()
    given = json.dumps({"cwd": str(directory), "prompt": "x"}).encode()
    words = [sys.executable, "-P", "-m", "holdfast", "hook", "claude", "UserPromptSubmit"]
    done = subprocess.run(words, input=given, capture_output=True, check=True, cwd=directory)
    assert b"not in a workspace" in done.stderr
    assert not list(directory.iterdir())


def test_settings_that_are_broken_do_not_stop_a_client(bench: Cli) -> None:
    """Exit code 2, that of a wrong configuration, is for Claude Code the order to block the prompt."""
    (bench.home / "config.toml").write_text("nonsense = 1\n")
    done = bench.process("hook", "claude", "UserPromptSubmit", input=b"{}")
    assert b"config.toml" in done.stderr
    (bench.home / "config.toml").unlink()


DRIVER = """
import plugin from "./.opencode/plugins/holdfast.js"
import { writeFileSync } from "node:fs"
const directory = process.cwd()
if (process.argv[2] === "1") {
  const hooks = await plugin.server({ directory })
  await hooks["chat.message"]({ sessionID: "s" }, { parts: [{ type: "text", text: "go" }, { type: "file" }] })
  await hooks["tool.execute.before"]({ tool: "edit", sessionID: "s", callID: "1" }, { args: { filePath: "f" } })
  writeFileSync("f", "1")
  writeFileSync("g", "1")
  await hooks["tool.execute.after"]({ tool: "edit", sessionID: "s", callID: "1" }, {})
  await hooks["tool.execute.before"]({ tool: "edit", sessionID: "s", callID: "2" }, { args: { filePath: "f" } })
  writeFileSync("f", "2")
  await hooks.event({ event: { type: "session.idle", properties: { sessionID: "s" } } })
} else {
  const hooks = {}
  const domain = (name) => ({ hook: async (event, run) => { hooks[`${name}.${event}`] = run } })
  await plugin.setup({ location: { directory }, session: domain("session"), tool: domain("tool") })
  await hooks["session.prompt"]({ sessionID: "s", prompt: { text: "go" } })
  await hooks["tool.execute.before"]({ tool: "edit", sessionID: "s", id: "1", input: { filePath: "f" } })
  writeFileSync("f", "1")
  writeFileSync("g", "1")
  await hooks["tool.execute.after"]({ tool: "edit", sessionID: "s", id: "1", status: "completed" })
  await hooks["tool.execute.before"]({ tool: "edit", sessionID: "s", id: "2", input: { filePath: "f" } })
  writeFileSync("f", "2")
  await hooks["tool.execute.after"]({ tool: "edit", sessionID: "s", id: "2", status: "error" })
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("major", ["1", "2"])
def test_the_plugin_of_opencode_tells_of_prompts_and_calls(bench: Cli, major: str) -> None:
    bench("integrate", "opencode", "--yes")
    bench.write("driver.mjs", DRIVER)
    bench.process("run", "--", "node", "driver.mjs", major, stdin=subprocess.DEVNULL)
    steps: list[dict[str, Any]] = bench.json("steps")["steps"]
    assert [(step["kind"], step["paths"]) for step in steps if step["paths"]] == [("explicit", 2), ("explicit", 1)]
    assert steps[0]["command"][0].startswith("opencode edit: f [opencode:s/1]")
