"""A connection holds what is not answered yet, in bounds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack

import anyio
import pytest
from anyio import to_thread
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from holdfast.api.mcp import _transport as transport
from holdfast.api.mcp._transport import BUSY, MOST_PENDING, MOST_PENDING_BYTES, UNAUTHORISED, Connection, RefusedClient

PIPE_BYTES = 65_536
NOTIFICATION = b'{"jsonrpc": "2.0", "method": "notifications/end"}\n'


def test_what_waits_for_answers_is_bounded_in_bytes() -> None:
    size = MOST_PENDING_BYTES // 3

    def request(number: int) -> bytes:
        call = {"jsonrpc": "2.0", "id": number, "method": "ping", "params": {"filling": "x" * size}}
        return json.dumps(call).encode() + b"\n"

    async def work(client: Client) -> None:
        connection = Connection(client.reader, client.writer)
        async with connection.streams() as (read, write), anyio.create_task_group() as group:

            async def come(*numbers: int) -> list[object]:
                """Which of these requests come through."""
                group.start_soon(to_thread.run_sync, client.write, b"".join(map(request, numbers)) + NOTIFICATION)
                found: list[object] = []
                while isinstance(taken := await read.receive(), SessionMessage):
                    if not isinstance(taken.message, JSONRPCRequest):
                        break
                    found.append(taken.message.id)
                return found

            assert await come(0, 1, 2, 3) == [0, 1]
            await write.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=0, result={})))
            assert await come(4, 5) == [4]
            client.hang_up()
        answers = [json.loads(line) for line in client.answers()]
        assert [answer["id"] for answer in answers] == [2, 3, 0, 5]
        assert [answer["error"]["code"] for answer in answers if "error" in answer] == [BUSY] * 3

    with ExitStack() as closing:
        anyio.run(work, Client(closing))


def test_who_asks_for_too_much_and_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end, which may be behind all that it has asked for, has to be met."""
    monkeypatch.setattr(transport, "_PATIENCE_SECONDS", 0.2)
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n"

    async def work(client: Client) -> None:
        client.write(request * (PIPE_BYTES // len(request)))
        client.hang_up()
        connection = Connection(client.reader, client.writer)
        with anyio.fail_after(60):
            async with connection.streams() as (read, _):
                async for _ in read:  # (and nothing is ever answered)
                    pass

    with ExitStack() as closing:
        client = Client(closing)
        anyio.run(work, client)
        assert len(client.answers()) > MOST_PENDING


MANY = [
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"a": [%s{}]}}' % (b"{}," * 100_000),
    b'{"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": [%s[]]}}' % (b"[]," * 100_000),
    b'{"jsonrpc": "2.0", "id": 1, "result": {%s"b": 1}}' % (b'"a": 1,' * 100_000),
]


@pytest.mark.parametrize("line", MANY)
def test_of_a_line_of_very_many_values_nothing_is_made(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    monkeypatch.setattr(transport, "jsonrpc_message_adapter", Noting(made))
    kept = {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {"content": "a,[{" * 100_000}}

    async def work(client: Client) -> None:
        connection = Connection(client.reader, client.writer)
        async with connection.streams() as (read, _), anyio.create_task_group() as group:
            said = b"\n".join((line, json.dumps(kept).encode(), NOTIFICATION))
            group.start_soon(to_thread.run_sync, client.write, said)
            taken = await read.receive()
            assert isinstance(taken, SessionMessage)
            assert isinstance(taken.message, JSONRPCRequest)
            assert taken.message.params == kept["params"]
            await read.receive()
            client.hang_up()
        (answer,) = map(json.loads, client.answers())
        assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)

    with ExitStack() as closing:
        anyio.run(work, Client(closing))
    assert line not in made


class Noting:
    """What makes messages of lines, and notes which."""

    def __init__(self, made: list[bytes]) -> None:
        self._made = made

    def validate_json(self, line: bytes, *, by_name: bool) -> object:
        self._made.append(line)
        return jsonrpc_message_adapter.validate_json(line, by_name=by_name)


def test_of_a_stranger_no_more_is_taken_in_than_a_token_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TOKEN_SECONDS", 1000.0)

    async def work(client: Client) -> None:
        client.write(b"x" * 2000)  # and no newline
        with anyio.fail_after(60), pytest.raises(RefusedClient):
            await Connection(client.reader, client.writer).authorise(lambda line: line == b"token")
        (answer,) = map(json.loads, client.answers())
        assert answer["error"]["code"] == UNAUTHORISED

    with ExitStack() as closing:
        anyio.run(work, Client(closing))


def test_behind_the_token_lines_may_be_as_long_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TOKEN_SECONDS", 60.0)
    long = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"filling": "x" * 5000}}

    async def work(client: Client) -> None:
        client.write(b"token\n" + json.dumps(long).encode() + b"\n")
        connection = Connection(client.reader, client.writer)
        await connection.authorise(lambda line: line == b"token")
        async with connection.streams() as (read, _):
            taken = await read.receive()
            assert isinstance(taken, SessionMessage)
            client.hang_up()

    with ExitStack() as closing:
        anyio.run(work, Client(closing))


class Client:
    """The other end of a connection."""

    def __init__(self, closing: ExitStack) -> None:
        self.reader, self._out = os.pipe()
        back, self.writer = os.pipe()
        for fd in (self.reader, self.writer):
            os.set_blocking(fd, False)
        closing.callback(os.close, self.reader)
        self._answers = closing.enter_context(os.fdopen(back, "rb"))
        self._requests = closing.enter_context(os.fdopen(self._out, "wb"))
        self.hang_up: Callable[[], None] = self._requests.close

    def write(self, data: bytes) -> None:
        self._requests.write(data)
        self._requests.flush()

    def answers(self) -> list[bytes]:
        """All that was answered; no more can be."""
        os.close(self.writer)
        return self._answers.readlines()
