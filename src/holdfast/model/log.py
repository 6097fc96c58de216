"""Loggers that load Python's logging when something is logged, and not before: most commands log nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_steps: list[Callable[[], None]] = []
"""What is to be done before the next record."""


def before_first(step: Callable[[], None] | None) -> None:
    """Have ``step``, which says where records go, called when something is logged; None takes that back."""
    _steps[:] = [] if step is None else [step]


class Log:
    """The logger of one module; the arguments are those of `logging.Logger`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, message: str, *arguments: object) -> None:
        """What goes on."""
        self._log(20, message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        """What a person should know of, though the work goes on."""
        self._log(30, message, arguments)

    def _log(self, level: int, message: str, arguments: tuple[object, ...]) -> None:
        import logging

        while _steps:
            _steps.pop()()
        logging.getLogger(self._name).log(level, message, *arguments)
