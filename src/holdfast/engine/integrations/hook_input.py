"""A client's input for a hook: one JSON object, hostile until it is parsed.

The clients have different names for the same fields; other fields are ignored.
"""

from __future__ import annotations

import os
from typing import Any, cast

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes


class HookEvent(NamedTuple):
    """The event."""

    directory: bytes
    """Where the client works."""
    session: str
    call: str
    """Identifies a tool call in its session."""
    title: str
    """The tool and its subject."""
    prompt: str


class _Input(msgspec.Struct):
    cwd: Any = None
    workspace_roots: Any = None
    session_id: Any = None
    conversation_id: Any = None
    tool_name: Any = None
    tool_use_id: Any = None
    tool_input: msgspec.Raw = msgspec.Raw(b"")
    prompt: Any = None


class _About(msgspec.Struct):
    """Arguments of tools that name their subject."""

    command: Any = None
    file_path: Any = None
    filePath: Any = None  # noqa: N815 - the client's own name
    path: Any = None


def decode(data: bytes, here: bytes) -> HookEvent:
    """Parse the input; ``here`` is the client's directory if the input has none. Raises `FormatError`."""
    try:
        given = json_decoder(_Input).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the input is no message of a client: {error}") from error
    directory = _text(given.cwd) or next(map(_text, _items(given.workspace_roots)), "")
    call = _text(given.tool_use_id) or hash_bytes(bytes(given.tool_input)).hex()[:24]
    return HookEvent(
        directory=os.fsencode(directory) if os.path.isabs(directory) and "\0" not in directory else here,
        session=_text(given.session_id) or _text(given.conversation_id),
        call=call,
        title=_title(_text(given.tool_name), bytes(given.tool_input)),
        prompt=_text(given.prompt),
    )


def _title(tool: str, given: bytes) -> str:
    try:
        about = json_decoder(_About).decode(given or b"{}")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        about = _About()
    said = [text for text in map(_text, (about.command, about.file_path, about.filePath, about.path)) if text]
    return ": ".join((tool or "tool", *said[:1]))


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
