"""The list of tools: name, arguments, answer and work of each, and its effects as clients see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from holdfast.api import _truncated_results as truncated_results
from holdfast.api._error_details import with_details
from holdfast.api._field_names import naming_hint
from holdfast.api.mcp import _read_tools as read_tools
from holdfast.api.mcp import _session_tools as session_tools
from holdfast.api.mcp import _tool_arguments as tool_arguments
from holdfast.api.mcp import _tool_results as tool_results
from holdfast.api.mcp import _write_tools as write_tools
from holdfast.api.mcp._execute_tool import execute
from holdfast.api.mcp._read_tools import ToolAnswer
from holdfast.model.answers import sessions, steps
from holdfast.model.answers import workspace as answers
from holdfast.model.decoders import converted
from holdfast.model.errors import RefusedError, UsageError
from holdfast.model.json_schema import components

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from holdfast.api.mcp._call_progress import CallActivity
    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.engine.hosting.working_directory import HostedDirectory

    Work = Callable[..., ToolAnswer]

_MOST_DIGITS = 9
"""Of the index of a directory."""

How = Literal["look", "change", "write", "run", "execute"]
"""How a call waits for the tool, see `SharedHost`; ``run``: it runs commands itself, and its work is given an event
that ends them, and the call's activity; ``execute``: by `commands`.
"""


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
    """The tool moves in the history, or leaves the tree. A run lacks it: a command must not change its record."""
    unconfined: bool = False
    """The tool runs commands that this server does not isolate; a server that isolates others does not have it."""
    note: str = ""
    """For docs/reference/mcp.md: limits that a person wants to know, and a model need not."""


TOOLS = (
    Tool(
        "execute_command",
        "Run a command",
        "Run a shell command in the working directory and wait for its end. All its changes there are one step, which "
        "undo takes back exactly, ignored files and .git included. Commands run one after the other. A safeguard may "
        "hold one until a person answers.",
        tool_arguments.ExecuteCommand,
        tool_results.Executed,
        "execute",
        destructive=True,
    ),
    Tool(
        "read_file",
        "Read a file",
        "Read a file, a page at a time. UTF-8 text comes as it is, other bytes in Base64.",
        tool_arguments.ReadFile,
        tool_results.FileRead,
        "look",
        read_tools.read_file,
    ),
    Tool(
        "write_file",
        "Write a file",
        "Write a whole file, and the directories that it needs, as a step, which undo takes back.",
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
        "Replace a text in a file, as a step, which undo takes back. Refused if the text is not there, or more than "
        "once without replace_all, or if another process changes the file.",
        tool_arguments.EditFile,
        tool_results.FileEdited,
        "write",
        write_tools.edit_file,
        destructive=True,
    ),
    Tool(
        "list_directory",
        "List a directory",
        "List a directory, sorted by name.",
        tool_arguments.ListDirectory,
        tool_results.Listing,
        "look",
        read_tools.list_directory,
    ),
    Tool(
        "begin_step",
        "Begin a step",
        "Open one step for all changes until commit_step or rollback_step; undo takes them back at once.",
        tool_arguments.BeginStep,
        tool_results.BegunStep,
        "change",
        write_tools.begin_step,
        note="Rules: docs/reference/stdio.md#steps. The end of its client or of the server commits it.",
    ),
    Tool(
        "commit_step",
        "Close the step",
        "Close the step that begin_step has opened.",
        tool_arguments.EndStep,
        truncated_results.Step,
        "change",
        write_tools.commit_step,
    ),
    Tool(
        "rollback_step",
        "Take the step back",
        "Close the step that begin_step has opened, and take back all its changes.",
        tool_arguments.EndStep,
        steps.RolledBack,
        "change",
        write_tools.rollback_step,
        destructive=True,
    ),
    Tool(
        "undo",
        "Undo",
        "Take back the newest changes to the tree, some steps, or a run: all of it, or nothing. The present state is "
        "saved first, and redo brings it back. Refused where it would take back changes of another process.",
        tool_arguments.Undo,
        truncated_results.Reverted,
        "change",
        write_tools.undo,
        destructive=True,
        outside_only=True,
    ),
    Tool(
        "redo",
        "Redo",
        "Bring back what undo took back.",
        tool_arguments.Redo,
        truncated_results.Reverted,
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
        "Show the working directories, running commands, operations held by safeguards, edits by other processes "
        "(barriers), and steps rolled back after a crash (recovered).",
        tool_arguments.GetSessionStatus,
        tool_results.SessionStatus,
        "look",
        read_tools.get_session_status,
    ),
    Tool(
        "checkpoint",
        "Save the state",
        "Save the state of the tree, without ignored files. If nothing has changed, the newest checkpoint gets the "
        "label too.",
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
        "Compare two checkpoints, or a checkpoint and the present tree.",
        tool_arguments.Compare,
        tool_results.Difference,
        "look",
        read_tools.compare,
    ),
    Tool(
        "restore",
        "Restore a checkpoint",
        "Bring the tree, or some paths, to a saved state. The present state is saved first (rescue), and undo goes "
        "back to it. Ignored files stay.",
        tool_arguments.Restore,
        truncated_results.Reverted,
        "change",
        write_tools.restore,
        destructive=True,
        idempotent=True,
        outside_only=True,
    ),
    Tool(
        "fork",
        "Fork a checkpoint",
        "Write a checkpoint out into a new directory, as a workspace with its own history.",
        tool_arguments.Fork,
        answers.Forked,
        "change",
        write_tools.fork,
        outside_only=True,
    ),
    Tool(
        "next_reapply",
        "Get a change to apply anew",
        "Get the change that waits longest to be applied to a file that both sides of a merge changed: the present "
        "file (current), and the change (before, after, diff). Give the file with both changes to answer_reapply. It "
        "is yours until held_until. Empty if nothing waits.",
        tool_arguments.NextReapply,
        tool_results.NextReapply,
        "change",
        write_tools.next_reapply,
        note="`change` is as in docs/reference/ladder.md#queue, with `workspace`, `held_until` and `deadline` "
        "(microseconds since 1970-01-01 UTC).",
    ),
    Tool(
        "answer_reapply",
        "Answer a change",
        "Answer a change of next_reapply with the new content of the file: all of current, with the change made in "
        "it, without conflict markers. Nothing is written until the next merge.",
        tool_arguments.AnswerReapply,
        tool_results.AnsweredReapply,
        "change",
        write_tools.answer_reapply,
        note="Refused: `no_reapply`, `not_held` (its time is over, or another agent has it), `answered`, `bad_answer` "
        "(with the reason).",
    ),
    Tool(
        "merge",
        "Merge a fork",
        "Merge a fork into the working directory, and lose no work done here since. If both changed a file in ways "
        "that cannot be put together (overlapping_files), nothing is changed until resolutions decide it. The state "
        "before is saved, and undo takes the merge back.",
        tool_arguments.Merge,
        tool_results.Merged,
        "change",
        write_tools.merge,
        destructive=True,
        outside_only=True,
        note="`use` of a resolution is `ours` (this side's), `theirs`, `content` (with `content`, `encoding`) or "
        "`delete`; `version` is needed only after a mere dry run. See docs/reference/merge.md.",
    ),
    Tool(
        "list_sessions",
        "List the sessions",
        "List the sessions here and their forks, newest first. A session is a shell that keeps its directory, "
        "variables and history between commands.",
        tool_arguments.ListSessions,
        tool_results.Sessions,
        "look",
        session_tools.list_sessions,
    ),
    Tool(
        "get_session",
        "Show a session",
        "Show a session: its directory, shell's state and forks, and its last commands with their output.",
        tool_arguments.GetSession,
        tool_results.Session,
        "look",
        session_tools.get_session,
    ),
    Tool(
        "start_session",
        "Begin a session",
        "Begin a session in the working directory. The changes of its commands are steps.",
        tool_arguments.StartSession,
        sessions.Started,
        "change",
        session_tools.start_session,
        outside_only=True,
        unconfined=True,
        note="Also if `session.supervised` is false.",
    ),
    Tool(
        "execute_in_session",
        "Run a command in a session",
        "Run a command in a session, in the directory and with the variables that the last one left, and wait for its "
        "end. Its changes are a step of the session's workspace.",
        tool_arguments.ExecuteInSession,
        sessions.Executed,
        "run",
        session_tools.execute_in_session,
        destructive=True,
        outside_only=True,
        unconfined=True,
        note="`session.max_output_bytes` of each output are kept.",
    ),
    Tool(
        "fork_session",
        "Fork a session",
        "Begin a session from another one's state, in its own directory; neither sees what the other does.",
        tool_arguments.ForkSession,
        sessions.SessionFork,
        "change",
        session_tools.fork_session,
        outside_only=True,
        unconfined=True,
    ),
    Tool(
        "merge_session",
        "Merge a session",
        "Merge the files of another session into this one, nothing of its shell. If a file stays in conflict, nothing "
        "is changed until resolutions or prefer decide it.",
        tool_arguments.MergeSession,
        tool_results.MergedSession,
        "change",
        session_tools.merge_session,
        destructive=True,
        outside_only=True,
        unconfined=True,
        note="`resolutions` as of `merge`.",
    ),
    Tool(
        "end_session",
        "End what a session left running",
        "End the processes that a session's commands have left running, and save its state. The session stays, with "
        "its history, states and directory.",
        tool_arguments.EndSession,
        tool_results.EndedSession,
        "change",
        session_tools.end_session,
        outside_only=True,
        unconfined=True,
        note="SIGTERM, after two seconds SIGKILL. `ended` is the number of processes.",
    ),
    Tool(
        "run_experiment",
        "Try several commands",
        "Try commands side by side, each in a fork of a session, and compare how they end. The forks are deleted at "
        "the end, unless keep is true.",
        tool_arguments.RunExperiment,
        tool_results.Experiment,
        "run",
        session_tools.run_experiment,
        destructive=True,
        outside_only=True,
        unconfined=True,
        note="See docs/reference/experiment.md.",
    ),
)

BY_NAME = {tool.name: tool for tool in TOOLS}


def convert(tool: Tool, arguments: Mapping[str, Any] | None) -> tool_arguments.Request:
    """The arguments of a call as the tool's request. Raises `UsageError`, which names the field."""
    try:
        request = converted(arguments or {}, tool.takes)
    except msgspec.ValidationError as error:
        naming = naming_hint(str(error), tool.takes)
        raise UsageError(f"{tool.name}: {error}", hint=naming, code="bad_arguments") from None
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
        case "run":

            def running(stop: threading.Event) -> ToolAnswer:
                with with_details(hosted):
                    return do(host, hosted, request, stop, activity)

            return await host.run(running)
        case "write":
            activity.concerns = lambda held: held.step is not None and held.step.kind in ("api", "explicit")
            with host.listening(hosted, activity):
                return await host.write(doing)
        case _:
            return await host.change(doing)


_NULL = {"type": "null"}


def schema(of: Any) -> dict[str, Any]:
    """The JSON Schema of a type, in one piece: not every client follows references.

    Null is no alternative in it: requests and answers leave such members out (`without_nulls`).
    """
    (root,), parts = components((of,), "{name}")
    return _inlined(root, parts)


def _inlined(value: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(item, parts) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    if "$ref" in given:
        return _inlined({name: each for name, each in parts[given["$ref"]].items() if name != "title"}, parts)
    out = {name: _inlined(each, parts) for name, each in given.items()}
    if "required" in given and "properties" in given:
        may_be_null = {name for name, each in given["properties"].items() if _NULL in each.get("anyOf", ())}
        out["required"] = [name for name in given["required"] if name not in may_be_null]
    if _NULL in out.get("anyOf", ()):
        kept = [each for each in out.pop("anyOf") if each != _NULL]
        rest = {name: each for name, each in out.items() if name != "default"}
        out = (kept[0] if len(kept) == 1 else {"anyOf": kept}) | rest
    return out


def without_nulls(value: Any) -> Any:
    """``value`` without members that are null, which would only lengthen the answer for a model."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: without_nulls(each) for name, each in members.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in cast("list[Any]", value)]
    return value
