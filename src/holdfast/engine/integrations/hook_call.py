"""A hook's call, before any work: its client, and its standard input.

Most calls end here, since only prompts matter outside of a run; so this module imports little.
"""

from __future__ import annotations

import os
import select
import time
from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.model.errors import FormatError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from holdfast.engine.integrations.client import Action, Client

CLIENTS = ("claude", "codex", "gemini", "cursor", "opencode")

MAX_BYTES = 8 << 20
"""The limit of the input, which may contain a tool's data. Of a longer input nothing is used."""
MAX_SECONDS = 10.0

_PIECE = 1 << 16


def find_client(name: str) -> Client:
    """All that is known of a client. Raises `NotFoundError`."""
    if name not in CLIENTS:
        raise NotFoundError(f"no client {name!r} is known", hint=f"one of {', '.join(CLIENTS)}")
    return import_module(f"holdfast.engine.integrations.{name}").CLIENT


def is_relevant(action: Action, environ: Mapping[str, str]) -> bool:
    """Whether an event must be handled: outside a run only prompts."""
    return action == "prompt" or RUN_VARIABLE.decode() in environ


def read_input(fd: int, *, limit: int = MAX_BYTES, seconds: float = MAX_SECONDS) -> bytes:
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
        raise FormatError(f"the input has {size} bytes: the limit is {limit}")
    return b"".join(pieces)


def _pieces(fd: int, deadline: float) -> Generator[bytes]:
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(fd, _PIECE)
        if not piece:
            return
        yield piece
    raise FormatError("the input has no end")
