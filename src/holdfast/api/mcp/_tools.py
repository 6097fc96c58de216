"""The list of tools: what each is called, takes, answers and does, and what clients are told of its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from holdfast.api import _truncated_results as truncated_results
from holdfast.api._error_details import with_details
from holdfast.api.mcp import _read_tools as read_tools
from holdfast.api.mcp import _tool_arguments as tool_arguments
from holdfast.api.mcp import _tool_results as tool_results
from holdfast.api.mcp import _write_tools as write_tools
from holdfast.api.mcp._execute_tool import execute
from holdfast.api.mcp._read_tools import ToolAnswer
from holdfast.model.answers import workspace as answers
from holdfast.model.decoders import converted
from holdfast.model.errors import RefusedError, UsageError
from holdfast.model.json_schema import components

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.api.mcp._call_progress import CallActivity
    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.engine.hosting.working_directory import HostedDirectory

    Work = Callable[[SharedHost, HostedDirectory, Any], ToolAnswer]

_MOST_DIGITS = 9
"""Of the index of a directory."""

How = Literal["look", "change", "write", "execute"]
"""How it is waited for, see `SharedHost`; ``execute``: by `commands`."""


class Tool(NamedTuple):
    """One tool."""

    name: str
    title: str
    description: str
    takes: type[tool_arguments.Request]
    answers: Any
    how: How
    work: Work | None = None
    """None for ``execute``."""
    destructive: bool = False
    idempotent: bool = False
    outside_only: bool = False
    """It goes back, or elsewhere, and is not there inside of a run: what is recorded has no say in the record."""


TOOLS = (
    Tool(
        "execute_command",
        "Run a command",
        "Run a shell command in the working directory and wait for it to end. All its "
        "changes there are one step, which undo takes back exactly, ignored files and .git "
        "included. Commands run one after the other. A command that a safeguard holds waits "
        "for a person; no tool can answer for them.",
        tool_arguments.ExecuteCommand,
        tool_results.Executed,
        "execute",
        destructive=True,
    ),
    Tool(
        "read_file",
        "Read a file",
        "Read a file of the working directory, a page at a time. UTF-8 text comes as it is, other bytes in Base64.",
        tool_arguments.ReadFile,
        tool_results.FileRead,
        "look",
        read_tools.read_file,
    ),
    Tool(
        "write_file",
        "Write a file",
        "Write a whole file, with the directories that it needs. It is a step of its own, which undo takes back.",
        tool_arguments.WriteFile,
        tool_results.FileWritten,
        "write",
        write_tools.write_file,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "edit_file",
        "Edit a file",
        "Replace a text in a file by another one. Refused if the text is not there, or more "
        "than once without replace_all, or if another process changes the file meanwhile. It is "
        "a step of its own, which undo takes back.",
        tool_arguments.EditFile,
        tool_results.FileEdited,
        "write",
        write_tools.edit_file,
        destructive=True,
    ),
    Tool(
        "list_directory",
        "List a directory",
        "List the entries of a directory, sorted by name.",
        tool_arguments.ListDirectory,
        tool_results.Listing,
        "look",
        read_tools.list_directory,
    ),
    Tool(
        "undo",
        "Undo",
        "Take back the newest changes to the tree, or some steps, or all changes of a run: all of "
        "it, or nothing. The present state is saved first, and redo brings it back. Refused where it "
        "would take back changes of another process.",
        tool_arguments.Undo,
        truncated_results.Restored,
        "change",
        write_tools.undo,
        destructive=True,
        outside_only=True,
    ),
    Tool(
        "redo",
        "Redo",
        "Bring back the changes that undo took back.",
        tool_arguments.Redo,
        truncated_results.Restored,
        "change",
        write_tools.redo,
        destructive=True,
        outside_only=True,
    ),
    Tool(
        "get_undo_history",
        "List the steps",
        "List the steps that undo can take back, newest first; or one step with the paths that it changed.",
        tool_arguments.GetUndoHistory,
        tool_results.History,
        "look",
        read_tools.get_undo_history,
    ),
    Tool(
        "get_session_status",
        "Show the status",
        "Show the working directories, the commands that run in them, the operations "
        "that a safeguard holds, edits by other processes (barriers), and steps that "
        "were rolled back after a crash (recovered).",
        tool_arguments.GetSessionStatus,
        tool_results.SessionStatus,
        "look",
        read_tools.get_session_status,
    ),
    Tool(
        "checkpoint",
        "Save the state",
        "Save the state of the tree. Ignored files are not part of it. If nothing has changed, the newest checkpoint "
        "gets the label, beside those that it has.",
        tool_arguments.TakeCheckpoint,
        truncated_results.MadeCheckpoint,
        "change",
        write_tools.take_checkpoint,
        idempotent=True,
    ),
    Tool(
        "list_checkpoints",
        "List the checkpoints",
        "List the saved states, newest first.",
        tool_arguments.ListCheckpoints,
        tool_results.Checkpoints,
        "look",
        read_tools.list_checkpoints,
    ),
    Tool(
        "diff",
        "Compare two states",
        "Show the differences between two checkpoints, or between a checkpoint and the tree as it is now.",
        tool_arguments.Compare,
        tool_results.Difference,
        "look",
        read_tools.compare,
    ),
    Tool(
        "restore",
        "Restore a checkpoint",
        "Bring the tree, or some paths of it, to a saved state. The present state is saved first "
        "(rescue), and undo goes back to it. Ignored files stay.",
        tool_arguments.Restore,
        truncated_results.Restored,
        "change",
        write_tools.restore,
        destructive=True,
        idempotent=True,
        outside_only=True,
    ),
    Tool(
        "fork",
        "Fork a checkpoint",
        "Write a checkpoint out into a new directory, which is a workspace of its own with its own history.",
        tool_arguments.Fork,
        answers.Forked,
        "change",
        write_tools.fork,
        outside_only=True,
    ),
    Tool(
        "next_reapply",
        "Get a change to apply anew",
        "Get the small change that waits longest to be applied to a file that another process "
        "has changed as well: the present file (current), and the change (before, after, "
        "diff). Write the file with both changes, and give it to answer_reapply. It is yours "
        "until held_until. Null if nothing waits.",
        tool_arguments.NextReapply,
        tool_results.NextReapply,
        "change",
        write_tools.next_reapply,
    ),
    Tool(
        "answer_reapply",
        "Answer a change",
        "Give the new content of a file for a change that next_reapply gave: all "
        "of current, with the change made in it, and without conflict markers. "
        "Nothing is written until the next merge.",
        tool_arguments.AnswerReapply,
        tool_results.AnsweredReapply,
        "change",
        write_tools.answer_reapply,
    ),
)

BY_NAME = {tool.name: tool for tool in TOOLS}


def convert(tool: Tool, arguments: Mapping[str, Any] | None) -> tool_arguments.Request:
    """The arguments of a call as the tool's request. Raises `UsageError`, which names the field."""
    try:
        request = converted(arguments or {}, tool.takes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{tool.name}: {error}", code="bad_arguments") from None
    if isinstance(request, tool_arguments.ExecuteCommand):
        _check_size(request)
        _check_variables(request)
    return request


def _check_size(request: tool_arguments.ExecuteCommand) -> None:
    """Refuse what the system would not start, before it waits for its turn and takes memory meanwhile."""
    variables = {name: _bytes(name) + _bytes(value) for name, value in request.environment.items()}
    for field, size, most in (
        ("command", _bytes(request.command), tool_arguments.MOST_WORD_BYTES),
        ("environment", sum(variables.values()), tool_arguments.MOST_VARIABLES_BYTES),
        *(("environment", size, tool_arguments.MOST_WORD_BYTES) for size in variables.values()),
    ):
        if size > most:
            raise UsageError(
                f"execute_command: {size} bytes are more than the {most} that fit into {field} - at `$.{field}`",
                hint="put long input into a file",
                code="bad_arguments",
            )


def _check_variables(request: tool_arguments.ExecuteCommand) -> None:
    for name, value in request.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(
                f"execute_command: {name[:100]!r} cannot be a variable of this value - at `$.environment`",
                hint="a name is not empty and has no =, and neither it nor a value has a NUL",
                code="bad_arguments",
            )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def directory(host: SharedHost, request: tool_arguments.Request) -> HostedDirectory:
    """The working directory that a request is about."""
    which = request.directory
    if isinstance(which, str) and which.isdecimal() and len(which) <= _MOST_DIGITS:
        return host.host.directory(int(which))
    return host.host.directory(which)


async def run_tool(host: SharedHost, tool: Tool, request: tool_arguments.Request, activity: CallActivity) -> ToolAnswer:
    """Do what the tool does. Raises `HoldfastError`."""
    hosted = directory(host, request)
    if tool.outside_only and hosted.inside is not None:
        raise RefusedError(
            f"{tool.name} is refused inside of the run {hosted.inside}: a "
            "recorded process may not change its own record",
            code="inside_run",
        )
    if tool.work is None:
        value, text = await execute(host, hosted, cast("tool_arguments.ExecuteCommand", request), activity)
        return ToolAnswer(value, text)
    do = tool.work

    def doing() -> ToolAnswer:
        with with_details(hosted):
            return do(host, hosted, request)

    match tool.how:
        case "look":
            return await host.look(doing)
        case "write":
            activity.concerns = lambda held: held.step is not None and held.step.kind in ("api", "explicit")
            with host.listening(hosted, activity):
                return await host.write(doing)
        case _:
            return await host.change(doing)


def schema(of: Any, *, optional: bool = False) -> dict[str, Any]:
    """The JSON Schema of a type, in one piece: not every client follows references.

    ``optional``: what may be null may as well be left out, so that null need not be said (of requests).
    """
    (root,), parts = components((of,), "{name}")
    return _inlined(root, parts, optional)


def _inlined(value: Any, parts: Mapping[str, Any], optional: bool) -> Any:
    if isinstance(value, list):
        return [_inlined(item, parts, optional) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    if "$ref" in given:
        return _inlined({name: each for name, each in parts[given["$ref"]].items() if name != "title"}, parts, optional)
    out = {name: _inlined(each, parts, optional) for name, each in given.items()}
    if optional and {"type": "null"} in out.get("anyOf", ()):
        kept = [each for each in out.pop("anyOf") if each != {"type": "null"}]
        rest = {name: each for name, each in out.items() if name != "default"}
        out = (kept[0] if len(kept) == 1 else {"anyOf": kept}) | rest
    return out
