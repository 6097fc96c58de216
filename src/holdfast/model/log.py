"""Loggers that load Python's logging when something is logged, and not before: most commands log nothing."""

from __future__ import annotations


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

        logging.getLogger(self._name).log(level, message, *arguments)
