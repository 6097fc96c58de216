"""Threads for side work; if none can be started, the work is done without them."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


def workers(count: int, name: str) -> Executor:
    """Up to ``count`` threads; or none, if the system starts no thread (``ulimit -u``): work is then done at once."""
    try:
        probe = threading.Thread(target=_nothing, name=name)
        probe.start()
        probe.join()
    except RuntimeError:
        return _InlineExecutor()
    return ThreadPoolExecutor(count, name)


class _InlineExecutor(Executor):
    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the thread that asks for the result is to have it
            done.set_exception(error)
        return done


def _nothing() -> None:
    """A task that shows whether threads can be started."""
