"""What is journalled of a command: which are accepted, which want the state saved first, and their results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.errors import UsageError
from holdfast.model.session import LEVELS

if TYPE_CHECKING:
    from holdfast.model.session import CommandResult, Level, SessionConfig


def demands(config: SessionConfig, level: Level) -> bool:
    """Whether the state is to be saved before a command of this level."""
    return config.demand != "never" and LEVELS.index(level) >= LEVELS.index(config.demand)


def check_command(text: str) -> None:
    """Raise `UsageError` for what no shell can be given."""
    try:
        good = bool(text.strip()) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        good = False
    if not good:
        raise UsageError("a command is a text that is not empty, without NUL")


def clean(result: CommandResult) -> CommandResult:
    """``result`` with what is no text in its output escaped, so that it can be recorded."""
    return msgspec.structs.replace(result, stdout=_escaped(result.stdout), stderr=_escaped(result.stderr))


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
