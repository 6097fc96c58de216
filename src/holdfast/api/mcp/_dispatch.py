"""The SDK's server over a host: calls become the engine's work, and its errors become results."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from holdfast import __version__
from holdfast.api._error_details import FOR_MODELS, hint
from holdfast.api._log_redaction import known_or_length
from holdfast.api.mcp import _prompts as prompts
from holdfast.api.mcp import _resources as resources
from holdfast.api.mcp import _tools as tools
from holdfast.api.mcp._call_progress import CallActivity
from holdfast.api.mcp._log_vocabulary import protocol_vocabulary
from holdfast.api.mcp._shared_host import client
from holdfast.model.errors import HoldfastError, NotFoundError, UsageError
from holdfast.model.log import Log, logged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from holdfast.api.mcp._shared_host import SharedHost

_log = Log(__name__)

PROGRESS_SECONDS: Final = 1.0
ERROR_META: Final = "holdfast/error"
"""Of a result that is an error: ``code``, ``message``, ``hint``, ``data``."""

INSTRUCTIONS: Final = (
    "A working directory with a memory. Everything that execute_command, write_file and edit_file change is a step "
    "that undo takes back exactly; checkpoints are saved states to compare with, to restore and to fork. Prefer these "
    "tools to others that write there, which leave no steps. A safeguard may hold an operation until a person has "
    "answered: its progress says so, and only a person can let it happen."
)

INSIDE: Final = (
    "A working directory with a memory, inside of a run: everything that changes there is recorded. What "
    "execute_command, write_file and edit_file change is a step that a person can take back exactly; checkpoints can "
    "be taken and compared with. A safeguard may hold an operation until a person has answered: its progress says so, "
    "and only a person can let it happen."
)
"""The same inside of a run."""


def build(host: SharedHost) -> Server[Any]:
    """The server; one is enough for any number of connections."""

    async def list_tools(_ctx: ServerRequestContext[Any, Any], _params: object) -> types.ListToolsResult:
        inside, confines = host.host.inside is not None, host.confines
        return types.ListToolsResult(
            tools=[
                listed
                for listed, tool in zip(LISTED, tools.TOOLS, strict=True)
                if not (inside and tool.outside_only) and not (confines and tool.unconfined)
            ]
        )

    async def call_tool(
        ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = tools.BY_NAME.get(params.name)
        if tool is None:
            _log.warning("unknown tool", tool=known_or_length(params.name, ()))
            return _failed(NotFoundError(f"there is no tool {params.name[:100]!r}", code="no_tool"))
        activity = CallActivity(tool.title)
        _log.info("tool called", tool=tool.name)
        began = time.monotonic()
        async with _progress(ctx, activity):
            result = await _call(host, tool, params.arguments, activity)
        took = round((time.monotonic() - began) * 1000)
        code = result.meta[ERROR_META]["code"] if result.meta else None
        _log.info("tool answered", tool=tool.name, error=code, milliseconds=took)
        return result

    async def list_resources(
        _ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = None if params is None else params.cursor
        return await _resource(host, lambda: resources.list_checkpoints(host, cursor))

    async def list_templates(
        _ctx: ServerRequestContext[Any, Any], _params: object
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=list(resources.TEMPLATES))

    async def read_resource(
        _ctx: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await _resource(host, lambda: resources.read(host, str(params.uri)))

    async def list_prompts(_ctx: ServerRequestContext[Any, Any], _params: object) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=list(prompts.list_prompts(inside=host.host.inside is not None)))

    async def get_prompt(
        _ctx: ServerRequestContext[Any, Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        try:
            return prompts.get_prompt(params.name, params.arguments, inside=host.host.inside is not None)
        except HoldfastError as error:
            raise MCPError(types.INVALID_PARAMS, error.message, _error(error)) from None

    server: Server[Any] = Server(
        "holdfast",
        version=__version__,
        title="Holdfast",
        instructions=INSTRUCTIONS if host.host.inside is None else INSIDE,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
    server.middleware[:] = [_logging]  # replaces OpenTelemetry spans, which are not collected here
    return server


async def _call(
    host: SharedHost, tool: tools.Tool, arguments: dict[str, Any] | None, activity: CallActivity
) -> types.CallToolResult:
    try:
        value, text = await tools.run_tool(host, tool, tools.convert(tool, arguments), activity)
    except HoldfastError as error:
        return _failed(error, activity)
    except Exception as error:  # noqa: BLE001 - the last resort: a mistake of ours must not end the connection
        _log.exception("the tool %s has failed", tool.name)
        return _failed(HoldfastError(f"this is a bug: {type(error).__name__}", code="bug"))
    said = tools.without_nulls(value)
    shown = json.dumps(said, ensure_ascii=False) if text is None else text
    return types.CallToolResult(content=[types.TextContent(text=shown)], structured_content=said)


async def _resource(host: SharedHost, work: Any) -> Any:
    try:
        return await host.look(work)
    except (NotFoundError, UsageError) as error:
        raise MCPError(types.INVALID_PARAMS, error.message, _error(error)) from None
    except HoldfastError as error:
        raise MCPError(types.INTERNAL_ERROR, error.message, _error(error)) from None


def _failed(error: HoldfastError, activity: CallActivity | None = None) -> types.CallToolResult:
    """An error for the model to read and act on."""
    lines = [f"{error.message} [{error.code}]"]
    if (advice := hint(error, FOR_MODELS)) is not None:
        lines.append(f"hint: {advice}")
    if activity is not None:
        lines += [f"it was held: {ticket.message}" for ticket in activity.held]
    content: list[Any] = [types.TextContent(text="\n".join(lines))]
    return types.CallToolResult(content=content, is_error=True, _meta={ERROR_META: _error(error)})


def _error(error: HoldfastError) -> dict[str, Any]:
    said = {"code": error.code, "message": error.message, "hint": hint(error, FOR_MODELS), "data": error.data}
    return tools.without_nulls(said)


@asynccontextmanager
async def _progress(ctx: ServerRequestContext[Any, Any], activity: CallActivity) -> AsyncGenerator[None]:
    """Report what the call is about, each second and when it is held, to a client that has asked for it."""
    if not ctx.meta or "progress_token" not in ctx.meta:
        yield
        return

    async def report() -> None:
        began = time.monotonic()
        while True:
            await activity.news(PROGRESS_SECONDS)
            await ctx.session.report_progress(round(time.monotonic() - began, 3), message=activity.text)

    async with anyio.create_task_group() as group:
        group.start_soon(report)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def _logging(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    name = None if ctx.request_id is None else f"{client.get()}{ctx.request_id}"
    with logged(request_id=name):
        method = known_or_length(ctx.method, protocol_vocabulary().words)
        _log.debug("received", method=method)
        try:
            return await call_next(ctx)
        except MCPError as error:
            # The client gets the message. The log does not: it may repeat the client's text.
            _log.warning("protocol error", method=method, code=error.code)
            raise


def _listed(tool: tools.Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tools.schema(tool.takes),
        output_schema=tools.schema(tool.answers),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.how == "look",
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent or tool.how == "look",
            open_world_hint=tool.how in ("execute", "run"),
        ),
    )


LISTED: Final = [_listed(tool) for tool in tools.TOOLS]
"""The tools as clients see them."""
