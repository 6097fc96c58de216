"""What a client tells a hook on its standard input: one JSON object, hostile until it is understood.

The clients call the same things by different names; what is not one of them is not looked at.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.model.errors import FormatError, UsageError
from holdfast.model.ids import hash_bytes
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_BYTES = 8 << 20
"""What a tool has read or written may be part of the input. Of more than this nothing is looked at."""
MAX_SECONDS = 10.0

_PIECE = 1 << 16


class Event(NamedTuple):
    """What happened."""

    directory: bytes
    """Where the client works."""
    session: str
    call: str
    """What tells a tool call from others of its session."""
    title: str
    """The tool, and what it is about."""
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
    """What tools are called with that says what they are about."""

    command: Any = None
    file_path: Any = None
    filePath: Any = None  # noqa: N815 - the client's own name
    path: Any = None


def read(fd: int, *, limit: int = MAX_BYTES, seconds: float = MAX_SECONDS) -> bytes:
    """All that comes on ``fd``: the client must not find it closed. Of more than ``limit`` bytes nothing is kept.

    Raises `UsageError` on a terminal, `FormatError` for too much, and for an end that does not come in time.
    """
    if os.isatty(fd):
        raise UsageError("a hook is called by a client, which tells it what happened on standard input")
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(fd, time.monotonic() + seconds):
        size += len(piece)
        if size <= limit:
            pieces.append(piece)
        else:
            pieces.clear()
    if size > limit:
        raise FormatError(f"the input has {size} bytes: more than {limit} are not looked at")
    return b"".join(pieces)


def decode(data: bytes, here: bytes) -> Event:
    """What the input says; ``here`` is where the client works if it does not say so. Raises `FormatError`."""
    try:
        given = msgspec.json.decode(data, type=_Input)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the input is not what a client says: {error}") from error
    directory = _text(given.cwd) or next(map(_text, _items(given.workspace_roots)), "")
    call = _text(given.tool_use_id) or hash_bytes(bytes(given.tool_input)).hex()[:24]
    return Event(
        directory=os.fsencode(directory) if os.path.isabs(directory) and "\0" not in directory else here,
        session=_text(given.session_id) or _text(given.conversation_id),
        call=call,
        title=_title(_text(given.tool_name), bytes(given.tool_input)),
        prompt=_text(given.prompt),
    )


def _pieces(fd: int, deadline: float) -> Generator[bytes]:
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(fd, _PIECE)
        if not piece:
            return
        yield piece
    raise FormatError("the input has no end")


def _title(tool: str, given: bytes) -> str:
    try:
        about = msgspec.json.decode(given or b"{}", type=_About)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        about = _About()
    said = [text for text in map(_text, (about.command, about.file_path, about.filePath, about.path)) if text]
    return ": ".join((tool or "tool", *said[:1]))


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
