"""What a field is called here that a client has called by another name, the same for every face."""

from __future__ import annotations

import re
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_SURE: Final = 0.75
"""How alike two names have to be for one to be taken for the other."""

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "checkpoint_id": ("checkpoint", "promote_checkpoint", "before"),
        "checkpoint_uuid": ("checkpoint", "promote_checkpoint", "before"),
        "count": ("steps",),
        "cwd": ("directory",),
        "delete_count": ("delete_threshold",),
        "directories": ("working_directories",),
        "env": ("environment",),
        "environment": ("env",),
        "max_bytes": ("limit", "max_output_bytes"),
        "max_delete_count": ("delete_threshold",),
        "max_log_size": ("max_log_size_bytes",),
        "max_single_step_size": ("max_single_step_size_bytes",),
        "n": ("count", "steps"),
        "network": ("isolation.network",),
        "network_policy": ("isolation.network",),
        "num_steps": ("count", "steps"),
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
"""What descriptions of such interfaces call a field, and what it may be here: the first that the request has counts."""


def naming_hint(message: str, kind: type[msgspec.Struct]) -> str | None:
    """What the field is called in ``kind`` that a `msgspec.ValidationError` with this ``message`` does not know, as a
    hint; None if it does not speak of one, or nothing is like it.
    """
    found = _UNKNOWN.search(message)
    if found is None or " - at " in message:  # (of an object inside)
        return None
    own = {field.encode_name for field in msgspec.structs.fields(kind)}
    name = found[1]
    meant = next((one for one in OTHER_NAMES.get(name, ()) if one.partition(".")[0] in own), None)
    if meant is None:
        meant = next(iter(get_close_matches(name[:100], own, 1, _SURE)), None)
    return None if meant is None else f"it is called {meant} here"
