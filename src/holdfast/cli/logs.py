"""Where the library's log goes: to standard error, one line a record."""

from __future__ import annotations

import logging
from typing import Literal

from holdfast.cli.terminal import visible


class _Lines(logging.Formatter):
    """``holdfast: warning: …``, with nothing in it that could drive a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        severity = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"holdfast: {severity}{visible(super().format(record))}"


class _Objects(logging.Formatter):
    """``{"log": {"level", "message"}}``."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        import json

        return json.dumps({"log": {"level": record.levelname.lower(), "message": super().format(record)}})


def to_stderr(level: Literal["DEBUG", "INFO", "WARNING", "ERROR"], *, as_json: bool) -> None:
    """Send the library's records of ``level`` and above to standard error, as lines or as JSON objects.

    Takes the place of what an earlier call arranged.
    """
    logger = logging.getLogger("holdfast")
    for handler in logger.handlers[:]:
        if isinstance(handler.formatter, (_Lines, _Objects)):
            logger.removeHandler(handler)
    handler = logging.StreamHandler()
    handler.setFormatter((_Objects if as_json else _Lines)("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
