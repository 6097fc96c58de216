"""The format of log records, as lines of JSON or for people, and the handler that writes them."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO, cast

from holdfast.model._correlation import request_of
from holdfast.model.clock import isoformat
from holdfast.model.log import LEVELS
from holdfast.model.message_text import escaped, visible
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.model.log import Level

_COMPONENTS = {
    "holdfast.api._http_server": "rest",
    "holdfast.api.mcp": "mcp",
    "holdfast.api.rest": "rest",
    "holdfast.api.stdio": "stdio_api",
    "holdfast.bridge": "fs_backend",
    "holdfast.cli": "cli",
    "holdfast.engine.hosting.executor": "session",
    "holdfast.files.watch": "file_watcher",
    "holdfast.sandbox": "session",
    "holdfast.sandbox.channel": "control",
    "holdfast.store": "store",
    "holdfast.supervisor": "fs_backend",
    "holdfast.supervisor.outsiders.outside_watcher": "file_watcher",
    "holdfast.undo": "undo",
    "holdfast.undo.safeguards.tickets": "safeguard",
    "mcp": "mcp",
    "uvicorn": "rest",
}
"""By the beginning of a module's name, the longest that fits; all else is the engine."""

_MOST_CHARACTERS = 10_000
"""Of one text: a command's words, or a traceback, may be many more."""
_MOST_ITEMS = 100

logging.addLevelName(LEVELS["trace"], "TRACE")


class JsonFormatter(logging.Formatter):
    """One JSON object: ``timestamp``, ``level``, ``component``, ``message``, and the record's fields: see
    docs/reference/logs.md.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "timestamp": isoformat(int(record.created * 1_000_000)),
            "level": next((level for level, number in LEVELS.items() if record.levelno >= number), "trace"),
            "component": getattr(record, "component", None) or component_of(record.name),
            "message": _plain(record.getMessage()),
        }
        for fields in (_mapping(record, "fields"), _mapping(record, "correlation")):
            for name, value in fields.items():
                line.setdefault(name, _plain(value))
        if "request_id" not in line and (asked := request_of(line.get("step_id"))) is not None:
            line["request_id"] = _plain(asked)
        if record.exc_info:
            line.setdefault("exception", _plain(self.formatException(record.exc_info)))
        return json.dumps(line)  # it escapes all but printable ASCII


class TextFormatter(logging.Formatter):
    """``holdfast: warning: …``, without terminal control characters.

    Fields are shown below warnings only: a warning's message says everything to people.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        severity = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = super().format(record)
        if record.levelno <= logging.INFO and (fields := _mapping(record, "fields")):
            text += f" ({', '.join(f'{name} {_shown(value)}' for name, value in fields.items())})"
        return f"holdfast: {severity}{visible(text)}"


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, standard error by default, a line each."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter() if as_json else TextFormatter())

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """See `logging.Handler.handleError`: nothing, if the stream is closed."""
        import sys

        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def send(level: Level, to: LineHandler) -> None:
    """Send the library's records from ``level`` on to ``to``, and no more to where an earlier call has sent them."""
    logger = logging.getLogger("holdfast")
    for handler in logger.handlers[:]:
        if isinstance(handler, LineHandler):
            logger.removeHandler(handler)
    logger.addHandler(to)
    logger.setLevel(LEVELS[level])
    logger.propagate = False


def adopt(name: str) -> None:
    """Send what another library logs where the library's own records go, in the same form.

    Not below ``info``: in its details there may be what others have written.
    """
    own, other = logging.getLogger("holdfast"), logging.getLogger(name)
    other.handlers[:] = own.handlers
    other.setLevel(max(own.getEffectiveLevel(), logging.INFO))
    other.propagate = False


def component_of(module: str) -> str:
    """The part of Holdfast that a module belongs to, as the log names it."""
    while module:
        if module in _COMPONENTS:
            return _COMPONENTS[module]
        module = module.rpartition(".")[0]
    return "engine"


def _mapping(record: logging.LogRecord, name: str) -> Mapping[str, object]:
    return getattr(record, name, {})


def _plain(value: object) -> Any:
    """A value that JSON can hold, of limited size; paths in the form of `display`."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return _plain(display(value))
        case str():
            return _text(value if len(value) <= _MOST_CHARACTERS else value[:_MOST_CHARACTERS] + "…")
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {str(name): _plain(one) for name, one in list(items)[:_MOST_ITEMS]}
        case Iterable():
            return [_plain(one) for _, one in zip(range(_MOST_ITEMS), cast("Iterable[object]", value), strict=False)]
        case _:
            return _plain(str(value))


def _text(text: str) -> str:
    """``text`` without surrogates, which Unicode text must not contain."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", lambda match: escaped(match[0]), text)


def _shown(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
