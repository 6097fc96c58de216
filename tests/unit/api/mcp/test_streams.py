"""A connection holds what is not answered yet, in bounds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import anyio
from anyio import to_thread
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from holdfast.api.mcp.streams import BUSY, MOST_PENDING_BYTES, Connection


def test_what_waits_for_answers_is_bounded_in_bytes() -> None:
    size = MOST_PENDING_BYTES // 3

    def request(number: int) -> bytes:
        call = {"jsonrpc": "2.0", "id": number, "method": "ping", "params": {"filling": "x" * size}}
        return json.dumps(call).encode() + b"\n"

    async def work(client: Client) -> None:
        async with Connection(client.reader, client.writer).streams() as (read, write):
            async with anyio.create_task_group() as group:
                group.start_soon(to_thread.run_sync, client.write, b"".join(map(request, range(4))))
                for _ in range(2):
                    await read.receive()
                for refused in (2, 3):
                    answer = json.loads(await to_thread.run_sync(client.answers.readline))
                    assert (answer["id"], answer["error"]["code"]) == (refused, BUSY)
            await write.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=0, result={})))
            assert json.loads(await to_thread.run_sync(client.answers.readline))["id"] == 0
            async with anyio.create_task_group() as group:
                group.start_soon(to_thread.run_sync, client.write, request(4))
                await read.receive()
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
            closing.callback(os.close, fd)
        self.answers: Any = closing.enter_context(open(back, "rb"))
        self._requests = closing.enter_context(open(self._out, "wb"))
        self.hang_up: Callable[[], None] = self._requests.close

    def write(self, data: bytes) -> None:
        self._requests.write(data)
        self._requests.flush()
