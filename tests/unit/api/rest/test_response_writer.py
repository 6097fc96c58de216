"""Answers as they go over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.api.rest._response_writer import stream_answer


def test_a_stream_that_fails_ends_and_begins_no_other_answer(caplog: pytest.LogCaptureFixture) -> None:
    """What has been said cannot be taken back: a second head would be an error of the server's."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def broken() -> AsyncIterator[bytes]:
        yield b"data: one\n\n"
        raise ValueError("a mistake")

    async def may_listen() -> bool:
        return True

    asyncio.run(stream_answer(broken(), receive, send, may_listen))
    assert [(message["type"], message["body"]) for message in sent] == [
        ("http.response.body", b"data: one\n\n"),
        ("http.response.body", b""),
    ]
    assert "a mistake" in caplog.text
