"""Answers that no client waits for."""

from __future__ import annotations

import asyncio
import io

from holdfast.api.rest._app import _close_answer
from holdfast.api.rest._request_execution import HttpAnswer


def test_an_answer_that_nobody_waits_for_any_more_is_closed() -> None:
    async def ended() -> None:
        content = io.BytesIO(b"a part of a file")
        done: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_close_answer)
        done.set_result(HttpAnswer(200, content, 16, {}))
        cancelled: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        cancelled.add_done_callback(_close_answer)
        cancelled.cancel()
        await asyncio.wait((done, cancelled))
        assert content.closed

    asyncio.run(ended())
