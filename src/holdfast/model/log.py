"""Loggers that load Python's logging when something is logged, and not before: most commands log nothing.

What a record looks like, and where it goes, is in `holdfast.model.log_format`.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock  # (threading would have to be loaded for the same)

from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from logging import Logger
    from typing import Any

Level = Literal["error", "warn", "info", "debug", "trace"]
"""How grave a record is; also, from which gravity on records are wanted."""

LEVELS: dict[Level, int] = {"error": 40, "warn": 30, "info": 20, "debug": 10, "trace": 5}
"""As Python's logging counts, which knows no ``trace``."""

MOST_REQUEST_ID = 128
"""Characters of a ``request_id`` that one process tells another."""

_WARNING = LEVELS["warn"]
"""What is less grave is wanted only where logging is loaded: to ask for it loads it."""

_steps: list[Callable[[], object]] = []
"""What is to be done before the next record."""
_turn = allocate_lock()


def set_sender(level: Level, send: Callable[[], object]) -> None:
    """Have ``send``, which sends the records from ``level`` on somewhere, called before the first of them.

    That is at once if more than warnings are wanted. Takes the place of what was arranged before.
    """
    _steps[:] = [send]
    if LEVELS[level] < _WARNING or "logging" in sys.modules:
        _send()


def forget_sender() -> None:
    """Send records nowhere but where Python sends those for which nothing was arranged: for a fork of a process that
    had arranged it.
    """
    _steps.clear()
    if "logging" in sys.modules:
        import logging

        logger = logging.getLogger("holdfast")
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def install_sender() -> None:
    """Have what was arranged done now: for a module that sends records of its own the same way."""
    if _steps:
        _send()


def child_level() -> Level:
    """From which level on processes that work for this one are to log: as this one does, but warnings at least."""
    if "logging" not in sys.modules:
        return "warn"
    import logging

    own = logging.getLogger("holdfast").getEffectiveLevel()
    wanted: list[Level] = [level for level, number in LEVELS.items() if number >= min(own, _WARNING)]
    return wanted[-1]


def logged(*, request_id: str | None = None, step_id: int | None = None) -> AbstractContextManager[None]:
    """For the length of the block, all that is logged in this context (`contextvars`) names the request and the step.

    What is None stays as it is. A thread that is started inside knows of it only if it is given a copy of the context.
    """
    from holdfast.model._correlation import correlated

    return correlated(request_id, step_id)


def current_request() -> str:
    """The ``request_id`` that `logged` was told, at most `MOST_REQUEST_ID` characters; empty if there is none."""
    if "holdfast.model._correlation" not in sys.modules:
        return ""
    from holdfast.model._correlation import correlation

    return str(correlation().get("request_id", ""))[:MOST_REQUEST_ID]


def note_step(step_id: int) -> None:
    """What is logged of the step from now on, in whatever context, names the request of this one, if there is any."""
    if current_request():
        from holdfast.model import _correlation

        _correlation.note_step(step_id)


class Log:
    """The logger of one module.

    Messages and their arguments are those of `logging.Logger`; keywords become fields of the record. They must not hold
    the content of files, and what went over a wire at ``trace`` alone. The fields ``timestamp``, ``level``,
    ``component`` and ``message`` are every record's own.
    """

    __slots__ = ("_component", "_logger", "_name")

    def __init__(self, name: str, component: str | None = None) -> None:
        """``name`` is the module's. The ``component`` follows from it, if it is not given."""
        self._name = name
        self._component = component
        self._logger: Logger | None = None

    def trace(self, message: str, /, *arguments: object, **fields: object) -> None:
        """What went over a wire."""
        self._log(5, message, arguments, fields)

    def debug(self, message: str, /, *arguments: object, **fields: object) -> None:
        """Each single operation."""
        self._log(10, message, arguments, fields)

    def info(self, message: str, /, *arguments: object, **fields: object) -> None:
        """What goes on."""
        self._log(20, message, arguments, fields)

    def warning(self, message: str, /, *arguments: object, **fields: object) -> None:
        """What a person should know of, though the work goes on."""
        self._log(30, message, arguments, fields)

    def error(self, message: str, /, *arguments: object, **fields: object) -> None:
        """What has failed."""
        self._log(40, message, arguments, fields)

    def exception(self, message: str, /, *arguments: object, **fields: object) -> None:
        """`error` by an exception that is being handled: a mistake of Holdfast's own, with its traceback."""
        self._log(40, message, arguments, fields, failure=True)

    def wants(self, level: Level) -> bool:
        """Whether records of this level go anywhere: to be asked once, where saying it each time would cost."""
        if "logging" not in sys.modules:
            return LEVELS[level] >= _WARNING
        return self._found().isEnabledFor(LEVELS[level])

    def _log(
        self,
        level: int,
        message: str,
        arguments: tuple[object, ...],
        fields: dict[str, object],
        *,
        failure: bool = False,
    ) -> None:
        if level < _WARNING and "logging" not in sys.modules:
            return
        logger = self._logger or self._found()
        if _steps:
            _send()
        if not logger.isEnabledFor(level):
            return
        from holdfast.model._correlation import correlation

        more: dict[str, Any] = {"component": self._component, "fields": fields, "correlation": correlation()}
        logger.log(level, message, *arguments, exc_info=failure, extra=more, stacklevel=3)

    def _found(self) -> Logger:
        import logging

        self._logger = logging.getLogger(self._name)
        return self._logger


def _send() -> None:
    with _turn:  # (nothing is logged elsewhere before it is done)
        while _steps:
            _steps[0]()
            _steps.pop(0)
