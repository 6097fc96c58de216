"""The prompts ``undo`` and ``log``, which clients show to people as commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mcp_types as types

from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 1000
_ROWS = 20


class _Prompt(NamedTuple):
    listed: types.Prompt
    text: str
    """The text of the prompt; ``{}`` stands for the number."""
    default: int
    outside_only: bool


def _prompt(name: str, title: str, number: str, text: str, default: int, *, outside_only: bool = False) -> _Prompt:
    argument = types.PromptArgument(name="count", description=f"{number} (default: {default})", required=False)
    return _Prompt(
        types.Prompt(name=name, title=title, description=title, arguments=[argument]), text, default, outside_only
    )


_PROMPTS: Final = (
    _prompt(
        "undo",
        "Take back the newest changes to the working directory",
        "How many changes",
        "Take back the newest changes to the working directory with Holdfast's tool undo, count {}. Call it with "
        "dry_run first, tell me which files it would change, and ask me. If I agree, call it without dry_run, and tell "
        "me what it did and that redo brings it back. If it refuses, tell me its message as it is, and do not undo by "
        "other means. Afterwards read files again before you edit them: they are not as you knew them.",
        1,
        outside_only=True,
    ),
    _prompt(
        "log",
        "Show what happened in the working directory",
        "How many rows",
        "Show me what happened in the working directory, newest first: call Holdfast's tools get_undo_history and "
        "list_checkpoints, each with limit {}, and put both into one list by time. A step has its number, command and "
        "how many paths it changed, a checkpoint its short id, label and what it changed. Change nothing.",
        _ROWS,
    ),
)


def list_prompts(*, inside: bool) -> Sequence[types.Prompt]:
    """The prompts; ``inside`` a run, only those that are allowed there."""
    return [one.listed for one in _PROMPTS if not (inside and one.outside_only)]


def get_prompt(name: str, arguments: Mapping[str, str] | None, *, inside: bool) -> types.GetPromptResult:
    """A prompt as the model is to read it. Raises `NotFoundError` (``no_prompt``; ``inside_run`` for one that is for
    outside) and `UsageError`.
    """
    found = next((one for one in _PROMPTS if one.listed.name == name), None)
    if found is None:
        raise NotFoundError(f"there is no prompt {name[:100]!r}", code="no_prompt")
    if inside and found.outside_only:
        raise NotFoundError(
            f"{name} is for outside of a run: a recorded process may not change its own record",
            hint="a person goes back, in another terminal",
            code="inside_run",
        )
    given = dict(arguments or {})
    count = given.pop("count", "") or str(found.default)
    if given:
        raise UsageError(f"the prompt {name} has no argument {next(iter(given))[:100]!r}", code="bad_arguments")
    if not count.isascii() or not count.isdigit() or not 0 < int(count[:10]) <= _MOST:
        raise UsageError(f"count is a whole number from 1 to {_MOST}, not {count[:100]!r}", code="bad_arguments")
    message = types.PromptMessage(role="user", content=types.TextContent(text=found.text.format(int(count))))
    return types.GetPromptResult(description=found.listed.description, messages=[message])
