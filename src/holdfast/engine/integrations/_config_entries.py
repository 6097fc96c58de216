"""The entries in a configuration file: adding ours, and removing them. Texts only, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from holdfast.engine.integrations import _json_text as json_text
from holdfast.engine.integrations import _toml_block as toml_block
from holdfast.engine.integrations._json_text import parse
from holdfast.engine.integrations.client import (
    COMMAND,
    HOOKS,
    HookEntry,
    JsonFile,
    OwnFile,
    RequiredMember,
    ServerEntry,
    TomlFile,
    is_our_call,
    is_our_server,
    is_sealed,
)
from holdfast.model.errors import HoldfastError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.engine.integrations._json_text import Path
    from holdfast.engine.integrations.client import File


def add_entries(client: str, file: File, text: str | None) -> str:
    """The text of a file with all our entries; ``text`` is None if there is no file yet.

    Idempotent. Raises `FormatError` for a malformed text, and `RefusedError` if it cannot be changed without harm.
    """
    if isinstance(file, OwnFile):
        if text is not None and not _is_our_file(file, text):
            if not file.mark:
                return text  # the user has taken it over
            raise RefusedError("it is there already, and was not written by Holdfast", code="in_the_way")
        return file.content
    if isinstance(file, TomlFile):
        return toml_block.put(text or "", file.table, file.value)
    changed = _with_something(text)
    wanted = {entry.event: entry.command for entry in file.entries if isinstance(entry, HookEntry)}
    if wanted:
        changed = _only(client, file, changed, wanted)
    for entry in file.entries:
        if isinstance(entry, ServerEntry):
            changed = _with_server(changed, entry)
        elif isinstance(entry, RequiredMember):
            if json_text.find(changed, entry.path) is None:
                changed = json_text.put(changed, entry.path, entry.value)
        elif not any(at.event == entry.event for at in _ours(client, changed)):
            changed = json_text.append(changed, (HOOKS, entry.event), dict(entry.value))
    return changed


def remove_entries(client: str, file: File, text: str, before: str | None) -> str | None:
    """The text without our entries; None: delete the file. ``before``: the text before our first change, if known.

    If the text is exactly our result for ``before``, it becomes ``before`` again, to the byte. Otherwise our entries
    are removed; one that the user had written before us becomes again what it was. Objects that become empty are
    removed, unless they existed before. Our calls are removed with their options; a group to which others have added
    something, or whose tools they have changed, stays.
    """
    if isinstance(file, OwnFile):
        if not _is_our_file(file, text):
            raise RefusedError("it was not written by Holdfast", code="in_the_way")
        return None
    if is_unchanged(client, file, text, before):
        return before
    if isinstance(file, TomlFile):
        return toml_block.delete(text, file.table)
    before = None if before is None else _with_something(before)
    changed, emptied = _only(client, file, text, {}), {(HOOKS,)}
    emptied |= {(HOOKS, at.event) for at in _ours(client, text)}
    for entry in file.entries:
        if isinstance(entry, ServerEntry):
            path = _place_of(changed, entry)
            by_hand = None if before is None else json_text.find(before, path)
            if is_our_server(json_text.find(changed, path)):
                changed = json_text.delete(changed, path) if by_hand is None else _with_members(changed, path, by_hand)
                emptied |= {path[:depth] for depth in range(1, len(path))}
    for path in sorted(emptied, key=len, reverse=True):
        if json_text.find(changed, path) in ({}, []) and (before is None or json_text.find(before, path) is None):
            changed = json_text.delete(changed, path)
    return changed


def is_unchanged(client: str, file: File, text: str, before: str | None) -> bool:
    """Whether a text is exactly our result for ``before``."""
    try:
        return add_entries(client, file, before) == text
    except HoldfastError:
        return False  # it cannot be a result of ours


def has_entries(client: str, file: File, text: str) -> bool:
    """Whether a text holds anything of ours."""
    if isinstance(file, OwnFile):
        return _is_our_file(file, text)
    if isinstance(file, TomlFile):
        return toml_block.holds(text, file.table)
    text = _with_something(text)
    servers = (_place_of(text, entry) for entry in file.entries if isinstance(entry, ServerEntry))
    return any(_ours(client, text)) or any(is_our_server(json_text.find(text, path)) for path in servers)


def _is_our_file(file: OwnFile, text: str) -> bool:
    return text.startswith(file.mark) if file.mark else is_sealed(text)


def manual_steps(file: File) -> str:
    """The lines that a person would have to add, as one line."""
    import json

    if isinstance(file, OwnFile):
        return "move it out of the way"
    if isinstance(file, TomlFile):
        wanted: Any = file.value
        for name in reversed(file.table):
            wanted = {name: wanted}
        return f"add this, written as JSON: {json.dumps(wanted)}"
    whole = "{}"
    for entry in file.entries:
        match entry:
            case ServerEntry(path, value) | RequiredMember(path, value):
                whole = json_text.put(whole, path, value)
            case HookEntry(event, _, value):
                whole = json_text.append(whole, (HOOKS, event), dict(value))
    return f"add this: {json.dumps(parse(whole).value)}"


class _CallPlace(NamedTuple):
    """The place of our call: an item in the array of an event, or a handler in an item that is a group."""

    event: str
    item: int
    handler: int | None
    """Its place in the group; None if the item has the command itself, whether or not it is a group as well."""
    command: str


def _ours(client: str, text: str) -> Iterator[_CallPlace]:
    for event, items in _members(json_text.find(text, (HOOKS,))).items():
        for index, item in enumerate(_items(items)):
            yield from _ours_in(client, event, index, _members(item))


def _ours_in(client: str, event: str, index: int, item: Mapping[str, Any]) -> Iterator[_CallPlace]:
    if is_our_call(client, item.get("command")):
        yield _CallPlace(event, index, None, item["command"])
    for place, handler in enumerate(_items(item.get(HOOKS))):
        command = _members(handler).get("command")
        if is_our_call(client, command):
            yield _CallPlace(event, index, place, str(command))


def _only(client: str, file: JsonFile, text: str, wanted: dict[str, str]) -> str:
    """The text without those of our calls that are unwanted (``wanted``: event → command) or duplicates."""
    seen: set[str] = set()
    gone: list[_CallPlace] = []
    for at in _ours(client, text):
        if wanted.get(at.event) == at.command and at.event not in seen:
            seen.add(at.event)
        else:
            gone.append(at)
    written = _written(file)
    for at in reversed(gone):  # from the end, so that the places of the others hold: handlers before their item
        text = _without(text, at, written)
    return text


def _without(text: str, at: _CallPlace, written: Sequence[tuple[str, object]]) -> str:
    """The text without one call of ours, and without its group if that has nothing of another program's."""
    path = (HOOKS, at.event, at.item)
    item = _members(json_text.find(text, path))
    if at.handler is not None:
        text = json_text.delete(text, (*path, HOOKS, at.handler))
    elif HOOKS not in item:
        return json_text.delete(text, path)
    else:
        for name, value in item.items():
            if name == "command" or (name != HOOKS and (name, value) in written):
                text = json_text.delete(text, (*path, name))
    left = dict(_members(json_text.find(text, path)))
    if not left.pop(HOOKS, None) and all(member in written for member in left.items()):
        text = json_text.delete(text, path)
    return text


def _written(file: JsonFile) -> Sequence[tuple[str, object]]:
    """The members of the groups and calls that we write into a file, except those that identify the calls."""
    values = [entry.value for entry in file.entries if isinstance(entry, HookEntry)]
    objects = [*values, *(_members(handler) for value in values for handler in _items(value.get(HOOKS)))]
    return [member for each in objects for member in each.items() if member[0] not in ("command", HOOKS)]


def _with_server(text: str, entry: ServerEntry) -> str:
    path = _place_of(text, entry)
    found = json_text.find(text, path)
    if found is not None and not is_our_server(found):
        name = ".".join(map(str, path))
        raise RefusedError(f"{name} is there already, and does not start Holdfast", code="in_the_way")
    there = _members(found)
    return _with_members(text, path, {**there, **entry.value, **_with_options(there, entry.value)})


def _with_members(text: str, path: Path, value: Mapping[str, Any]) -> str:
    """Set the object at ``path`` to ``value``; members that are equal already keep their text, with comments."""
    found = json_text.find(text, path)
    if found is None:
        return json_text.put(text, path, dict(value))
    there = _members(found)
    for name in there.keys() - value.keys():
        text = json_text.delete(text, (*path, name))
    for name, each in value.items():
        if name not in there or there[name] != each:
            text = json_text.put(text, (*path, name), each)
    return text


def _with_options(there: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """The member that ends with our command, with the options that the user has added after it."""
    last = "args" if "args" in value else "command"
    words = _items(there.get(last))
    return {last: [*value[last], *words[words.index(COMMAND) + 1 :]]} if COMMAND in words else {}


def _place_of(text: str, entry: ServerEntry) -> Path:
    nested = _members(json_text.find(text, entry.nested) if entry.nested else None)
    if nested and not {"type", "command"} & nested.keys():
        return (*entry.nested, entry.path[-1])
    return entry.path


def _with_something(text: str | None) -> str:
    """The text; for a missing or empty file, one without members."""
    return text if text is not None and text.strip() else "{}\n"


def _members(value: object) -> Mapping[str, Any]:
    """The members of an object; none of other values."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> Sequence[object]:
    """The items of an array; none of other values."""
    return cast("Sequence[object]", value) if isinstance(value, list) else ()
