"""A connection: lines of bytes on two descriptors on one side, the messages of the SDK on the other.

The SDK's own stdio transport takes lines of any length and drops what it cannot read. Here lines have a limit, and a
line that is no message gets an error. A client that does not read its answers is not read either. After some seconds it
is read again: the end of its stream, which ends its commands, may be next.
"""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from holdfast.api._log_redaction import without_contents
from holdfast.api.mcp._log_vocabulary import protocol_vocabulary
from holdfast.model.errors import FormatError
from holdfast.model.log import Log
from holdfast.wire.json_lines import Lines, has_more_values

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp_types import JSONRPCMessage, RequestId

    Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

_log = Log(__name__)

MOST_LINE: Final = 32 << 20
"""Bytes: a file of 16 MiB, as `edit_file` takes it, with its escapes."""
MOST_VALUES: Final = 10_000
"""In one line, names of members among them. Of each, objects are made, which take far more than its text."""
MOST_PENDING: Final = 64
"""Requests of one connection that are not answered yet."""
MOST_PENDING_BYTES: Final = 2 * MOST_LINE
"""The same in bytes: a request is held in memory until it is answered."""
BUSY: Final = -32000
UNAUTHORISED: Final = -32001
_PIECE = 1 << 16
_SMALL_PIECE = 4096
"""A pipe that poll calls writable takes this many bytes without blocking."""
_FLUSH_SECONDS = 2.0
_LAST_SECONDS = 0.5
_PAUSE_SECONDS = 0.01
_PATIENCE_SECONDS = 5.0
"""How long a client is not read while it does not read its answers."""
TOKEN_SECONDS: Final = 10.0
_TOKEN_LINE = 1024
"""Bytes: more than any token has."""


class RefusedClient(Exception):
    """The client did not begin with the token."""


class Connection:
    """One client, on descriptors that stay the caller's."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._lines = Lines(MOST_LINE)
        self._writing = anyio.Lock()
        self._pending: dict[RequestId, list[int]] = {}
        """The lengths of each id's unanswered requests; a client may use an id twice."""
        self._is_held_up = False
        """The client's lines wait until it has read an answer, or the server has taken a request."""
        self._trace = _log.wants("trace")

    async def authorise(self, fits: Callable[[bytes], bool]) -> None:
        """Take the first line, which has to be the token. Raises `RefusedClient`; of a longer line, no more is taken
        in.
        """
        line = b""
        self._lines.limit(_TOKEN_LINE)
        with anyio.move_on_after(TOKEN_SECONDS), suppress(FormatError):
            line = await self._next() or b""
        if not fits(line):
            await self._refuse(None, UNAUTHORISED, "the first line is not the token")
            raise RefusedClient
        self._lines.limit(MOST_LINE)

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """The two streams for `Server.run`, which is cancelled when the client disconnects."""
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception]()
        write, outgoing = anyio.create_memory_object_stream[SessionMessage]()
        flushed = anyio.Event()

        async def receive() -> None:
            async with incoming:
                while (line := await self._line()) is not None:
                    if line.strip() and (message := await self._message(line)) is not None:
                        with self._held_up():
                            await incoming.send(message)
                # Who has said all it wanted is answered, if that does not take long.
                with anyio.move_on_after(_LAST_SECONDS):
                    while self._pending:
                        await anyio.sleep(_PAUSE_SECONDS)

        async def send() -> None:
            async with outgoing:
                async for message in outgoing:
                    await self._send(message.message)
                    if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                        self._answered(message.message.id)
            flushed.set()

        async def guarded(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except OSError as error:
                _log.debug("the client is gone: %s", error.strerror)
                group.cancel_scope.cancel()
            except anyio.BrokenResourceError:
                return  # the server has ended first

        async with anyio.create_task_group() as group:
            group.start_soon(guarded, receive)
            group.start_soon(guarded, send)
            async with read, write:
                yield read, write
            with anyio.move_on_after(_FLUSH_SECONDS):
                await flushed.wait()
            group.cancel_scope.cancel()

    async def _line(self) -> bytes | None:
        """The next line; None at the end. A line that is too long is answered here."""
        while True:
            try:
                return await self._next()
            except FormatError as error:
                await self._refuse(None, INVALID_REQUEST, error.message)

    async def _next(self) -> bytes | None:
        """The next line; None at the end. Raises `FormatError` for one that is too long."""
        while (line := self._lines.take()) is None:
            data = await self._read()
            if not data:
                return None
            self._lines.feed(data)
        return line

    async def _message(self, line: bytes) -> SessionMessage | None:
        """The message that a line is; None if that was refused."""
        if has_more_values(line, MOST_VALUES):
            await self._refuse(None, INVALID_REQUEST, f"a line holds more than {MOST_VALUES} values")
            return None
        if self._trace:
            _log.trace("received", line=without_contents(line, protocol_vocabulary()))
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            if first["type"] == "json_invalid":
                await self._refuse(None, PARSE_ERROR, first["msg"])
            else:
                await self._refuse(None, INVALID_REQUEST, "the line is no JSON-RPC message")
            return None
        if not isinstance(message, JSONRPCRequest):
            if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in from_json(line):
                # Without an answer the client would wait for ever. JSON-RPC 2.0 takes null as the id of such an error.
                await self._refuse(None, INVALID_REQUEST, "an id is a string or an integer")
                return None
            return SessionMessage(message)
        sizes = [size for sizes in self._pending.values() for size in sizes]
        if len(sizes) >= MOST_PENDING:
            await self._refuse(message.id, BUSY, f"{MOST_PENDING} requests wait for their answers already")
            return None
        if sum(sizes) + len(line) > MOST_PENDING_BYTES:
            waiting = f"requests of {sum(sizes)} bytes wait for their answers already"
            await self._refuse(message.id, BUSY, f"{waiting}; {MOST_PENDING_BYTES} are the most")
            return None
        self._pending.setdefault(message.id, []).append(len(line))

        async def settled() -> None:
            """The request was cancelled and gets no answer."""
            self._answered(message.id)

        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=settled))

    def _answered(self, request: RequestId | None) -> None:
        if request is None or request not in self._pending:
            return
        sizes = self._pending[request]
        sizes.pop()
        if not sizes:
            del self._pending[request]

    async def _refuse(self, request: RequestId | None, code: int, message: str) -> None:
        """Answer with an error, before the next line is read."""
        _log.warning("protocol error: %s", message, code=code)
        with self._held_up():
            await self._send(JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=code, message=message)))

    @contextmanager
    def _held_up(self) -> Generator[None]:
        """Within the block nothing is read, not even the end of the stream: the block must not take long."""
        self._is_held_up = True
        try:
            yield
        finally:
            self._is_held_up = False

    async def _send(self, message: JSONRPCMessage) -> None:
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if self._trace:
            _log.trace("sent", line=without_contents(line, protocol_vocabulary(), ours=True))
        async with self._writing:
            rest = memoryview(line)
            while rest:
                await self._writable()
                try:
                    rest = rest[os.write(self._writer, rest[:_SMALL_PIECE]) :]
                except BlockingIOError:
                    continue

    async def _writable(self) -> None:
        """Wait until the client reads. Raises `OSError` if it does not, and its own messages wait for that."""
        while True:
            with anyio.move_on_after(_PATIENCE_SECONDS):
                await _ready(anyio.wait_writable, self._writer)
                return
            if self._is_held_up:
                raise TimeoutError(errno.ETIMEDOUT, "it does not read, and says more than can wait")

    async def _read(self) -> bytes:
        while True:
            await _ready(anyio.wait_readable, self._reader)
            try:
                return os.read(self._reader, _PIECE)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return b""


async def _ready(wait: Callable[[int], Awaitable[None]], fd: int) -> None:
    try:
        await wait(fd)
    except PermissionError:
        await checkpoint()  # epoll cannot wait for a regular file, which never makes a process wait
