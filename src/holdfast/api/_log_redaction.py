"""Messages as the log may show them: known harmless members in full, everything else by its length.

Contents can stand anywhere: a client that makes a mistake sends them under any name and in any form. A list of secret
members could not be complete, so this is a list of harmless ones. A missing entry costs the log a text, and no user a
secret.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEXTS: Final = frozenset(
    {
        # which message it is
        *("request_id", "id", "requestId", "progressToken", "uri", "cursor"),
        # its subject: paths, commands, ids and times, with any text
        *("directory", "path", "paths", "cwd", "label", "run", "workspace", "command"),
        *("checkpoint", "base", "target", "parent", "source", "rescue", "head", "last_checkpoint"),
        *("unfinished_restore", "safeguard_id", "hash", "expected_hash"),
        *("after", "before", "next", "next_cursor", "allow", "dns", "hidden", "writable"),
        *("mtime", "at", "created_at", "started_at", "ended_at", "asked_at", "denied_at"),
        # paths, by the change that was made to them
        *("added", "modified", "deleted", "written", "skipped", "affected_paths", "sample_paths", "before_path"),
        *("from", "to", "kept"),
    }
)
"""Members whose texts are shown, also in a list."""

WORDS: Final = frozenset(
    {
        *("type", "status", "jsonrpc", "method", "protocolVersion", "operations", "events", "name", "version", "code"),
        *("mimeType", "level", "access", "state", "backend", "kind", "format", "action", "danger", "stream"),
        *("encoding", "change", "isolation", "network", "tmp", "mode", "who", "reason", "unprotected_reason"),
        *("undo_command",),
    }
)
"""Members whose texts are shown if the vocabulary has them, or if it is Holdfast that says them."""

OBJECTS: Final = frozenset(
    {
        *("payload", "params", "arguments", "result", "structuredContent", "error", "_meta", "holdfast/error", "data"),
        *("working_directories", "directories", "isolation", "server", "serverInfo", "clientInfo", "limits"),
        *("undo", "safeguard", "own", "held", "step", "steps", "changes", "barriers", "recovered", "conflicts"),
        *("entries", "checkpoints", "resources", "files", "totals", "counts", "stats", "differs", "mode"),
        *("added", "modified", "deleted", "renamed", "skipped", "not_captured"),
    }
)
"""Members whose objects are shown, also in a list: each of their members as it is named."""

_FAILURES: Final = frozenset({"error", "holdfast/error"})
"""Only errors show their message. A member of this name in other objects may be a line of a command's output."""
_OF_FAILURES: Final = frozenset({"message", "hint"})
_QUOTING: Final = frozenset({"bad_request", "unknown_operation", "bad_arguments", "bad_cursor", "no_tool"})
"""Codes of errors that repeat the client's text, which may be anything."""
_FIELD = re.compile(r"[^.\[\]]+")


class Vocabulary(NamedTuple):
    """The names that both sides of a protocol use."""

    names: frozenset[str]
    """Of members."""
    words: frozenset[str]
    """Texts that are one of several."""


def vocabulary(schemas: Iterable[object], names: Iterable[str] = (), words: Iterable[str] = ()) -> Vocabulary:
    """The vocabulary of some JSON Schemas, with more ``names`` and ``words``."""
    found = list(schemas)
    known, said = {*names, *TEXTS, *WORDS, *OBJECTS, *_OF_FAILURES}, {*words}
    while found:
        part = found.pop()
        if isinstance(part, dict):
            members = cast("dict[str, Any]", part)
            if isinstance(properties := members.get("properties"), dict):
                known |= cast("dict[str, Any]", properties).keys()
            said |= {word for word in _choices(members) if isinstance(word, str)}
            found += members.values()
        elif isinstance(part, list):
            found += cast("list[object]", part)
    return Vocabulary(frozenset(known), frozenset(said))


def _choices(schema: dict[str, Any]) -> Iterator[object]:
    if isinstance(choices := schema.get("enum"), list):
        yield from cast("list[object]", choices)
    yield schema.get("const")


def known_or_length(text: str, known: Iterable[str]) -> str:
    """The text if it is known, else how long it is."""
    return text if text in known else f"<{len(text)} characters>"


def field_or_length(field: str | None, known: Iterable[str]) -> str | None:
    """The name of a field, as in ``payload.paths[0]``, if each part is known or a number; else how long it is."""
    if field is None or all(part in known or part.isdecimal() for part in _FIELD.findall(field)):
        return field
    return f"<{len(field)} characters>"


def without_contents(line: bytes, known: Vocabulary, *, ours: bool = False) -> str:
    """A line of the protocol as the log may show it; no JSON: its length. ``ours``: Holdfast sent it."""
    try:
        return json.dumps(_Shown(known, ours).of(json.loads(line), is_object=True), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"<{len(line)} bytes that are no message>"


class _Shown(NamedTuple):
    known: Vocabulary
    is_ours: bool

    def of(self, value: Any, *, name: str = "", is_object: bool = False, is_failure: bool = False) -> Any:
        """A member's value as shown. ``is_object``: an object is shown by members. ``is_failure``: it is an error."""
        match value:
            case str():
                return value if self._is_harmless(name, value) else f"<{len(value)} characters>"
            case dict():
                members = cast("dict[str, Any]", value)
                return self._members(members, is_failure) if is_object else f"<{len(members)} members>"
            case list():
                items = cast("list[Any]", value)
                if not (is_object or name in TEXTS or name in WORDS):
                    return f"<{len(items)} items>"
                return [self.of(each, name=name, is_object=is_object, is_failure=is_failure) for each in items]
            case _:
                return value

    def _is_harmless(self, name: str, value: str) -> bool:
        if name == "field":
            return field_or_length(value, self.known.names) == value
        return name in TEXTS or (name in WORDS and (self.is_ours or value in self.known.words))

    def _members(self, members: dict[str, Any], is_failure: bool) -> dict[str, Any]:
        # JSON-RPC errors have numbers as codes.
        speaks = is_failure and self.is_ours and isinstance(code := members.get("code"), str) and code not in _QUOTING
        shown: dict[str, Any] = {}
        for name, each in members.items():
            if speaks and name in _OF_FAILURES and isinstance(each, str):
                shown[name] = each
                continue
            told = name if name in self.known.names else f"<{len(name)} characters>"
            while told in shown:
                told += "'"
            shown[told] = self.of(each, name=name, is_object=name in OBJECTS, is_failure=name in _FAILURES)
        return shown
