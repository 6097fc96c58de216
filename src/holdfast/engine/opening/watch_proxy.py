"""What a command has of the watcher that runs beside it: its answers, and its holding still. Where there is none, that
costs one look, and nothing is imported.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from holdfast.engine.opening.home import WATCH_SOCKET
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.watch_client import WatchClient

_T = TypeVar("_T")

_DO_IT_OURSELVES = frozenset(("watcher_gone", "too_long", "workspace_gone"))
"""Codes of errors after which a command does what it had asked the watcher for: it may know where a directory was moved
that the watcher misses.
"""


def watcher_of(context: Context) -> WatchClient | None:
    """The watcher of a workspace, for the caller to close; None if none is running, or it gives no sign of life."""
    if not os.path.lexists(os.path.join(context.folder, WATCH_SOCKET)):
        return None
    from holdfast.engine.opening.watch_client import answering

    return answering(context.folder, context.settings.watch.answer_timeout)


def by_watcher(context: Context, ask: Callable[[WatchClient], _T]) -> _T | None:
    """What a running watcher answers; None if there is none, or the work is to be done without it after all."""
    watcher = watcher_of(context)
    if watcher is None:
        return None
    try:
        with watcher:
            return ask(watcher)
    except HoldfastError as error:
        if error.code not in _DO_IT_OURSELVES:
            raise
        return None


@contextmanager
def paused(context: Context) -> Generator[None]:
    """Keep a watcher from saving the half-way states of a change to the tree, for the length of the block."""
    watcher = watcher_of(context)
    if watcher is None:
        yield
        return
    with watcher, watcher.pause():
        yield
