"""Which request and which step the present work belongs to."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

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


_MOST_STEPS: Final = 1000
_asked: dict[int, str] = {}
"""The requests that steps belong to; the newest steps alone."""


def note_step(step_id: int) -> None:
    """Assign later log records of the step to this context's request, if there is one."""
    if (request_id := correlation().get("request_id")) is not None:
        _asked[step_id] = str(request_id)
        if len(_asked) > _MOST_STEPS:
            del _asked[next(iter(_asked))]


def request_of(step_id: object) -> str | None:
    """The request whose context called `note_step` for the step."""
    return _asked.get(step_id) if isinstance(step_id, int) else None
