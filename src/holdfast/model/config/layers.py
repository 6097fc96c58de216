"""Settings from several places: which one wins, and what a workspace's own file may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from holdfast.model.config.keys import KEYS
from holdfast.model.config.settings import Settings, default
from holdfast.model.config.values import parse_value
from holdfast.model.errors import ConfigError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Layer(NamedTuple):
    """Raw values from one place, by section and key."""

    origin: str
    """The name of the source in messages: a file's path, ``the environment``, ``the command line``."""
    values: Mapping[str, object]
    foreign: bool = False
    """True for the workspace's own file, which comes with the workspace: it may not set everything."""


def resolve(layers: Sequence[Layer | tuple[str, Mapping[str, object]]]) -> Settings:
    """The settings that ``layers`` give, the first one that sets a key winning, with defaults for what none sets.

    The patterns of ``capture.exclude`` add up. Raises `ConfigError` that names place, key and reason for an unknown
    section or key, a bad value, and a key that a foreign layer may not set.
    """
    chosen: dict[str, object] = {}
    patterns: dict[str, None] = {}
    lowered: list[tuple[Layer, str, Any]] = []
    for one in layers:
        layer = one if isinstance(one, Layer) else Layer(*one)
        for name, typed in _typed(layer).items():
            if name == "capture.exclude":
                patterns.update(dict.fromkeys(cast("tuple[str, ...]", typed)))
            elif layer.foreign and KEYS[name].workspace == "lower":
                lowered.append((layer, name, typed))
            else:
                chosen.setdefault(name, typed)
    for layer, name, typed in lowered:
        limit: Any = chosen.get(name, default(name))
        if typed > limit:
            reason = f"it may only be lower here than the {limit} that holds otherwise"
            raise _wrong(layer, name, reason, "raise it in config.toml in the home")
        chosen[name] = typed
    if patterns:
        chosen["capture.exclude"] = tuple(patterns)
    settings = Settings()
    for section in Settings._fields:
        part = getattr(settings, section)
        found = {key: chosen[f"{section}.{key}"] for key in part._fields if f"{section}.{key}" in chosen}
        if found:
            settings = settings._replace(**{section: part._replace(**found)})
    return settings


def _typed(layer: Layer) -> dict[str, object]:
    typed: dict[str, object] = {}
    for section, keys in layer.values.items():
        if section not in Settings._fields:
            raise _wrong(layer, section, f"there is no such section; there are {', '.join(Settings._fields)}")
        if not isinstance(keys, dict):
            raise _wrong(layer, section, "it is a section, with keys of its own")
        for key, value in cast("dict[str, object]", keys).items():
            name = f"{section}.{key}"
            if name not in KEYS:
                there = ", ".join(known for known in KEYS if known.startswith(section + "."))
                raise _wrong(layer, name, f"there is no such key; there are {there}")
            if layer.foreign and KEYS[name].workspace == "no":
                raise _wrong(
                    layer,
                    name,
                    "a workspace's own file may not set it, for it comes with the workspace",
                    "set it in config.toml in the home, in the environment or by a flag",
                )
            try:
                typed[name] = parse_value(name, value)
            except ValueError as error:
                raise _wrong(layer, name, str(error)) from None
    return typed


def _wrong(layer: Layer, name: str, reason: str, hint: str | None = None) -> ConfigError:
    shown = name if len(name) <= 80 else name[:77] + "..."
    return ConfigError(f"{layer.origin}: {shown}: {reason}", hint=hint)
