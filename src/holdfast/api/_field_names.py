"""Hints for a field that a client has named differently, the same for every interface."""

from __future__ import annotations

import re
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import msgspec.inspect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_SURE: Final = 0.75
"""How alike two names have to be for one to be taken for the other."""
_PARTS: Final = (msgspec.inspect.StructType, msgspec.inspect.ListType)

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "checkpoint_id": ("checkpoint", "promote_checkpoint", "before"),
        "checkpoint_uuid": ("checkpoint", "promote_checkpoint", "before"),
        "cmd": ("command",),
        "command_line": ("command",),
        "count": ("steps",),
        "cwd": ("directory",),
        "delete_count": ("delete_threshold",),
        "dir": ("directory", "working_directories"),
        "directories": ("working_directories",),
        "directory": ("working_directories",),
        "env": ("environment",),
        "environment": ("env",),
        "file": ("path",),
        "file_path": ("path",),
        "filename": ("path",),
        "max_bytes": ("limit", "max_output_bytes"),
        "max_delete_count": ("delete_threshold",),
        "max_log_size": ("max_log_size_bytes",),
        "max_single_step_size": ("max_single_step_size_bytes",),
        "n": ("count", "steps"),
        "network": ("isolation.network",),
        "network_policy": ("isolation.network",),
        "new_str": ("new_text",),
        "new_string": ("new_text",),
        "num_steps": ("count", "steps"),
        "old_str": ("old_text",),
        "old_string": ("old_text",),
        "overwrite_threshold": ("overwrite_threshold_bytes",),
        "step": ("step_id",),
        "step_id": ("step",),
        "steps": ("count",),
        "threshold": ("delete_threshold",),
        "timeout": ("timeout_seconds",),
        "timeout_ms": ("timeout_seconds",),
        "working_directory": ("directory", "working_directories"),
        "working_folder": ("directory", "working_directories"),
    }
)
"""Names of a field in other such interfaces, and its names here; the first that the request has is suggested."""


_OPTIONS: Final = ("options", "opts", "params", "parameters")
"""Objects that such descriptions put fields into which are the request's own here."""


def naming_hint(message: str, kind: type[msgspec.Struct]) -> str | None:
    """The hint for a field that ``kind`` does not have, from the ``message`` of a `msgspec.ValidationError`. None if
    the message names no field, or no name is similar. ``kind.ABSENT`` may hold texts for fields that only other
    requests have.
    """
    found = _UNKNOWN.search(message)
    inner = kind if found is None else _struct_at(kind, message[found.end() :])
    if found is None or inner is None:
        return None
    own = {field.encode_name for field in msgspec.structs.fields(inner)}
    return similar_name(found[1], own, getattr(inner, "ABSENT", {}))


def similar_name(name: str, own: Collection[str], absent: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Which of the fields ``own`` ``name`` means, or what ``absent`` says of it, as a hint; None: none is like it."""
    for one in (name, *OTHER_NAMES.get(name, ())):
        if one in absent:
            return absent[one]
        # For a name such as `object.field`: if the unknown field is in that object itself, `field` alone is the name.
        for meant in (one, one.rpartition(".")[2]):
            if meant.partition(".")[0] in own:
                return f"it is called {meant} here"
    if name in _OPTIONS:
        return f"there is no object {name} here: its fields stand in the request itself"
    close = next(iter(get_close_matches(name[:100], own, 1, _SURE)), None)
    return None if close is None else f"it is called {close} here"


def _struct_at(kind: type[msgspec.Struct], where: str) -> type[msgspec.Struct] | None:
    """The struct in ``kind`` that an error is about, which ends with `` - at `$.resolutions[0]```."""
    found: Any = msgspec.inspect.type_info(kind)
    for field in re.findall(r"\.(\w+)|\[", where):
        if field:
            found = next((one.type for one in getattr(found, "fields", ()) if one.encode_name == field), None)
        options = getattr(found, "types", (found,))
        found = next((one for one in options if isinstance(one, _PARTS)), None)
        if isinstance(found, msgspec.inspect.ListType) and not field:
            found = found.item_type
        if found is None:
            return None
    return found.cls if isinstance(found, msgspec.inspect.StructType) else None
