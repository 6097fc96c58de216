"""Locks of exports: one request at a time changes an export, and no export takes all threads.

Requests wait on the event loop and not on a thread, so a busy export does not block the others.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from holdfast.model.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Callable

Key = tuple[str, str]


class _Turn:
    __slots__ = ("changing", "wanted", "working")

    def __init__(self, most: int) -> None:
        self.changing = asyncio.Lock()
        self.working = asyncio.Semaphore(most)
        self.wanted = 0
        """How many have it or wait for it."""


class ExportTurns:
    """The turns of all exports. For the loop's thread."""

    def __init__(self, most: int) -> None:
        """``most``: the requests of one export that may be in progress at once."""
        self._most = most
        self._turns: dict[Key, _Turn] = {}

    async def take(self, key: Key, wait: float, *, changing: bool) -> Callable[[], None]:
        """Wait for a turn, at most ``wait`` seconds; returns the function that ends it. Raises `LockedError`."""
        turn = self._turns.setdefault(key, _Turn(self._most))
        turn.wanted += 1
        try:
            async with asyncio.timeout(wait), AsyncExitStack() as stack:
                if changing:
                    await stack.enter_async_context(turn.changing)
                await stack.enter_async_context(turn.working)
                stack.pop_all()
        except BaseException as error:
            self._leave(key, turn)
            if isinstance(error, TimeoutError):
                raise LockedError(
                    f"other requests have been changing the export {key[1].partition('/')[0]} for {wait:g} s",
                    hint="try again later",
                ) from None
            raise

        def end() -> None:
            turn.working.release()
            if changing:
                turn.changing.release()
            self._leave(key, turn)

        return end

    def _leave(self, key: Key, turn: _Turn) -> None:
        turn.wanted -= 1
        if not turn.wanted and self._turns.get(key) is turn:
            del self._turns[key]
