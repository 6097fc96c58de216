"""Messages as the log may show them: all but what files hold, commands write and variables are set to."""

from __future__ import annotations

import json
from typing import Any, Final, cast

CONTENTS: Final = frozenset(
    {
        *("content", "old_text", "new_text", "text", "blob", "data", "data_base64"),
        *("patch", "stdout", "stderr", "prompt"),
    }
)
"""Members, wherever they are, of whose texts only the lengths are told."""

VARIABLES: Final = frozenset({"env", "environment"})
"""The same of all texts in them."""

_PROGRESS = "progressToken"
"""A progress notification of MCP has it; its message is the newest line of a command's output."""


def without_contents(line: bytes) -> str:
    """The message that a line is, for the log. Of what is no JSON only the length is told."""
    try:
        return json.dumps(_shown(json.loads(line)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"<{len(line)} bytes that are no message>"


def _shown(value: Any, *, hidden: bool = False, below: bool = False) -> Any:
    """``hidden``: only the length of a text is told; ``below``: also of those in members."""
    match value:
        case str() if hidden or below:
            return f"<{len(value)} characters>"
        case dict():
            members = cast("dict[str, Any]", value)
            secret = CONTENTS | {"message"} if _PROGRESS in members else CONTENTS
            return {
                name: _shown(each, hidden=name in secret, below=below or name in VARIABLES)
                for name, each in members.items()
            }
        case list():
            return [_shown(each, hidden=hidden, below=below) for each in cast("list[Any]", value)]
        case _:
            return value
