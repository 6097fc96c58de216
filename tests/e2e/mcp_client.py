"""A server in a process of its own, and the official client to speak with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

from .conftest import INSTALLED

SECONDS = 60


class Place:
    """A workspace of a test."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"
        self.tree = base / "tree"
        self.tree.mkdir()
        self.log = base / "log"

    def words(self, *more: str) -> list[str]:
        """The command line of a server."""
        return [*INSTALLED, "--home", str(self.home), "-w", str(self.tree), "--log-level", "info", "mcp", *more]

    def holdfast(self, *words: str, code: int = 0) -> str:
        """What another process says."""
        done = subprocess.run(
            [*INSTALLED, "--home", str(self.home), "-w", str(self.tree), *words],
            cwd=self.tree,
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def logged(self) -> list[dict[str, Any]]:
        """What servers have written to standard error."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @asynccontextmanager
    async def client(self, *more: str, under: list[str] | None = None, **options: Any) -> AsyncGenerator[Client]:
        """A client with a server that it has started itself; ``under``: by these words, which begin a command line."""
        words = [*(under or []), *self.words(*more)]
        script = 'exec "$@" 2>> "$LOG"'
        environment = {**os.environ, "LOG": str(self.log), "PYTHONPATH": os.pathsep.join(sys.path)}
        server = StdioServerParameters(command="sh", args=["-c", script, "sh", *words], env=environment)
        async with Client(server, read_timeout_seconds=SECONDS, **options) as client:
            yield client


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Do it, within limits."""

    async def limited() -> None:
        with anyio.fail_after(2 * SECONDS):
            await work()

    try:
        anyio.run(limited)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, which must be no error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The code of the error that a tool answers with."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.meta is not None
    found = result.meta["holdfast/error"]
    assert found["message"] in text(result)
    return found["code"]


def text(result: CallToolResult) -> str:
    """What a model reads of a result."""
    (content,) = result.content
    assert content.type == "text"
    return content.text


async def until(condition: Callable[[], bool]) -> None:
    """Wait, within limits."""
    with anyio.fail_after(SECONDS):
        while not condition():
            await anyio.sleep(0.02)
