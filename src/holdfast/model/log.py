"""Loggers that import Python's logging at the first record only: most commands log nothing.

`holdfast.model.log_format` has the format of records and the handler.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock  # avoids importing threading

from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from logging import Logger
    from typing import Any

Level = Literal["error", "warn", "info", "debug", "trace"]
"""The severity of a record; also, the lowest severity of wanted records."""

LEVELS: dict[Level, int] = {"error": 40, "warn": 30, "info": 20, "debug": 10, "trace": 5}
"""As Python's logging counts, which knows no ``trace``."""

MOST_REQUEST_ID = 128
"""Characters of a ``request_id`` that one process tells another."""

_WARNING = LEVELS["warn"]
"""Lower levels are wanted only where logging is imported: `set_sender` imports it for them."""

_steps: list[Callable[[], object]] = []
"""Functions to call before the next record."""
_turn = allocate_lock()


def set_sender(level: Level, send: Callable[[], object]) -> None:
    """Call ``send``, which sends the records from ``level`` on to their destination, before the first of them.

    It is called at once if levels below warnings are wanted. Replaces an earlier sender.
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
    """Call the sender now: for a module that sends records of its own to the same destination."""
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
    """Within the block, all records in this context (`contextvars`) name the request and the step.

    None leaves a field unchanged. A thread that is started inside needs a copy of the context.
    """
    from holdfast.model._correlation import correlated

    return correlated(request_id, step_id)


def current_request() -> str:
    """The ``request_id`` of `logged`, at most `MOST_REQUEST_ID` characters; empty without one."""
    if "holdfast.model._correlation" not in sys.modules:
        return ""
    from holdfast.model._correlation import correlation

    return str(correlation().get("request_id", ""))[:MOST_REQUEST_ID]


def note_step(step_id: int) -> None:
    """Let later log records of the step, in any context, name this context's request, if there is one."""
    if current_request():
        from holdfast.model import _correlation

        _correlation.note_step(step_id)


class Log:
    """The logger of one module.

    Messages and arguments are those of `logging.Logger`; keywords become fields of the record. They must not contain
    contents of files; data of a protocol only at ``trace``. Every record has the fields ``timestamp``, ``level``,
    ``component`` and ``message``.
    """

    __slots__ = ("_component", "_logger", "_name")

    def __init__(self, name: str, component: str | None = None) -> None:
        """``name`` is the module's. The ``component`` follows from it, if it is not given."""
        self._name = name
        self._component = component
        self._logger: Logger | None = None

    def trace(self, message: str, /, *arguments: object, **fields: object) -> None:
        """A message of a protocol."""
        self._log(5, message, arguments, fields)

    def debug(self, message: str, /, *arguments: object, **fields: object) -> None:
        """Each single operation."""
        self._log(10, message, arguments, fields)

    def info(self, message: str, /, *arguments: object, **fields: object) -> None:
        """Normal progress."""
        self._log(20, message, arguments, fields)

    def warning(self, message: str, /, *arguments: object, **fields: object) -> None:
        """A problem that a person should know, though the work continues."""
        self._log(30, message, arguments, fields)

    def error(self, message: str, /, *arguments: object, **fields: object) -> None:
        """A failure."""
        self._log(40, message, arguments, fields)

    def exception(self, message: str, /, *arguments: object, **fields: object) -> None:
        """`error` by an exception that is being handled: a mistake of Holdfast's own, with its traceback."""
        self._log(40, message, arguments, fields, failure=True)

    def wants(self, level: Level) -> bool:
        """True if records of this level go anywhere: for callers that would otherwise prepare many records in vain."""
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
    with _turn:  # until it is done, no other thread logs
        while _steps:
            _steps[0]()
            _steps.pop(0)
