"""The description of a client: its files, their entries, and the events that call us."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Literal, cast

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.integrations._json_text import Path

NAME = "holdfast"
"""The name of our entry among a client's MCP servers."""

COMMAND = "mcp"
"""The command of ours that is an MCP server."""

HOOKS = "hooks"
"""The member that holds, by event, the hooks of every client that has them in JSON."""

_OPERATORS = "();<>|&"
"""Shell operators, beside the newline: a command with one of them does more than call us."""
_HOOK_WORDS = 4

_SEAL = "seal:"
_SEAL_DIGITS = 16

Scope = Literal["project", "user"]

Action = Literal["prompt", "begin", "end", "turn"]
"""The meaning of an event for us: a prompt, the beginning of a tool call, its end, the end of a turn."""


class ClientTarget(NamedTuple):
    """Where a client is configured, and by which command it reaches us."""

    scope: Scope
    root: str
    """The project's directory, or the user's home; absolute."""
    environ: Mapping[str, str]
    program: Sequence[str]
    """The command line of Holdfast, up to the command."""

    def hook(self, client: str, event: str) -> str:
        """The command line that a client's shell is to run for an event."""
        return shlex.join((*self.program, "hook", client, event))

    @property
    def server(self) -> tuple[str, Sequence[str]]:
        """The program of the MCP server, and its arguments."""
        return self.program[0], (*self.program[1:], COMMAND)


class ServerEntry(NamedTuple):
    """Our entry among the MCP servers of a file; what else the user has put into it is kept."""

    path: Path
    value: Mapping[str, Any]
    nested: Path = ()
    """An alternative place for the object of servers; if it exists, the entry goes there."""


class HookEntry(NamedTuple):
    """An item in the array of an event's hooks. Its command shows that it is ours."""

    event: str
    command: str
    value: Mapping[str, Any]


class RequiredMember(NamedTuple):
    """A member that the file must have to be a valid configuration. It is added if it is missing, and never removed."""

    path: Path
    value: object


class JsonFile(NamedTuple):
    """A JSON file, comments allowed, and its entries."""

    path: str
    entries: Sequence[ServerEntry | HookEntry | RequiredMember]


class TomlFile(NamedTuple):
    """A TOML file, and its table."""

    path: str
    table: tuple[str, ...]
    value: Mapping[str, Any]


class OwnFile(NamedTuple):
    """A file that is all ours."""

    path: str
    content: str
    mark: str
    """The beginning of the text in all our versions. Empty: the text is `sealed`, and a text with a wrong seal is the
    user's own and is left alone.
    """


def sealed(text: str) -> str:
    """The text with a hash of itself after its first ``seal:``, by which `is_sealed` recognises it."""
    assert _SEAL in text
    return text.replace(_SEAL, f"{_SEAL}{_hash(text)}", 1)


def is_sealed(text: str) -> bool:
    """Whether the text is unchanged since `sealed`, of any version, made it."""
    before, _, after = text.partition(_SEAL)
    return after[:_SEAL_DIGITS] == _hash(f"{before}{_SEAL}{after[_SEAL_DIGITS:]}")


def _hash(text: str) -> str:
    from holdfast.model.ids import hash_bytes  # a hook does not need it

    return hash_bytes(text.encode()).hex()[:_SEAL_DIGITS]


File = JsonFile | TomlFile | OwnFile


class Client(NamedTuple):
    """One client."""

    name: str
    title: str
    program: str
    """The name of its program."""
    events: Mapping[str, Action]
    """Its events that call us."""
    files: Callable[[ClientTarget], Sequence[File]]
    quiet_answer: str
    """The output of a hook without a message."""
    note: str
    """Instructions for the user beyond the written entries."""


def is_our_call(client: str, command: object) -> bool:
    """Whether a hook's command line calls us for this client, and does nothing else."""
    if not isinstance(command, str) or "`" in command or "\n" in command:
        return False
    try:
        words = shlex.split(command)
        operators = {word for word in _words(command) if not word.strip(_OPERATORS)}
    except ValueError:
        return False
    if operators or len(words) < _HOOK_WORDS or words[-3:-1] != ["hook", client]:
        return False
    if words[0].rpartition("/")[2] == NAME:
        options = words[1:-3]
    elif NAME in words and words[words.index(NAME) - 1] == "-m":
        options = [*words[1 : words.index(NAME) - 1], *words[words.index(NAME) + 1 : -3]]
    else:
        return False
    # A word that is neither an option nor its value is another command, which may run anything.
    return "--" not in options and all(
        word.startswith("-") or (place and options[place - 1].startswith("-")) for place, word in enumerate(options)
    )


def _words(command: str) -> shlex.shlex:
    words = shlex.shlex(command, posix=True, punctuation_chars=_OPERATORS)
    words.whitespace_split = True
    words.commenters = ""
    return words


def is_our_server(server: object) -> bool:
    """Whether an entry among a client's MCP servers starts ours, by any path and with any options: an entry that only
    has our name is another program's.
    """
    if not isinstance(server, dict):
        return False
    entry = cast("Mapping[str, object]", server)
    words: list[object] = []
    for part in (entry.get("command"), entry.get("args")):
        words += cast("list[object]", part) if isinstance(part, list) else [part]
    texts = [word for word in words if isinstance(word, str)]
    before = texts[: texts.index(COMMAND)] if COMMAND in texts else []
    return any(word.rpartition("/")[2] == NAME for word in before)


def hook_group(client: str, place: ClientTarget, event: str, *, matcher: str = "", **options: object) -> HookEntry:
    """A hook as most clients have it: a group with one handler, and which tools it is for."""
    command = place.hook(client, event)
    handler = {"type": "command", "command": command, **options}
    return HookEntry(event, command, {**({"matcher": matcher} if matcher else {}), HOOKS: [handler]})
