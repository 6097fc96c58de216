"""Which request, and which step, what is done now belongs to."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

_current: ContextVar[Mapping[str, object]] = ContextVar("holdfast.correlation")
_NOTHING: Mapping[str, object] = {}


def correlation() -> Mapping[str, object]:
    """``request_id`` and ``step_id``, as far as they are known in this context."""
    return _current.get(_NOTHING)


@contextmanager
def correlated(request_id: str | None, step_id: int | None) -> Generator[None]:
    """See `holdfast.model.log.logged`."""
    given = {"request_id": request_id, "step_id": step_id}
    token = _current.set({**correlation(), **{name: value for name, value in given.items() if value is not None}})
    try:
        yield
    finally:
        _current.reset(token)
