"""Every setting that Holdfast has: its type, its default, what it means, and who may set it.

`KEYS` is the table that docs/configuration.md shows; `resolve` turns layers of raw values into `Settings`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from holdfast.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR, DAY = 3600.0, 86400.0

Backend = Literal["auto", "fanotify", "inotify", "polling"]


class Capture(NamedTuple):
    """What of a workspace is captured."""

    max_file_bytes: int = GIB
    exclude: tuple[str, ...] = ()
    warn_files: int = 50_000
    warn_bytes: int = 2 * GIB


class Store(NamedTuple):
    """Where content is kept, and how much of it."""

    url: str = ""
    max_bytes: int = 20 * GIB
    pack_bytes: int = 32 * MIB
    tenant: str = "local"


class Lock(NamedTuple):
    """Waiting for other processes."""

    timeout: float = 30.0


class Watch(NamedTuple):
    """Saving by itself."""

    debounce: float = 5.0
    max_interval: float = 300.0
    max_per_hour: int = 60
    backend: Backend = "auto"
    poll_interval: float = 2.0
    full_walk_interval: float = HOUR


class Retention(NamedTuple):
    """How checkpoints that nobody asked for by name thin out as they age."""

    keep_all: float = HOUR
    per_ten_minutes: float = DAY
    hourly: float = 7 * DAY
    daily: float = 0.0
    rescue: float = DAY
    interval: float = HOUR


class Gc(NamedTuple):
    """Collection of what nothing uses."""

    grace: float = DAY
    rewrite_ratio: float = 0.5


class Files(NamedTuple):
    """What restores and forks make."""

    uid: int = -1
    gid: int = -1


class Identity(NamedTuple):
    """Who makes checkpoints."""

    author: str = ""


class Settings(NamedTuple):
    """All settings, by section."""

    capture: Capture = Capture()
    store: Store = Store()
    lock: Lock = Lock()
    watch: Watch = Watch()
    retention: Retention = Retention()
    gc: Gc = Gc()
    files: Files = Files()
    identity: Identity = Identity()


Kind = Literal["size", "duration", "integer", "ratio", "text", "patterns"]
Trust = Literal["yes", "lower", "no"]


class Key(NamedTuple):
    """One setting: what its values are, and what it means."""

    kind: Kind
    meaning: str
    workspace: Trust = "no"
    """May the workspace's own file set it? ``lower``: only to less than what holds without that file."""
    least: float = 0
    most: float = (1 << 55) - 1
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """For a text: a regular expression that all of it matches."""


KEYS: dict[str, Key] = {
    "capture.max_file_bytes": Key(
        "size", "a larger file is not captured, and listed as such", workspace="lower", least=1
    ),
    "capture.exclude": Key(
        "patterns",
        "what is not captured, as lines of a `.gitignore` (without `!`); the patterns of all places add up",
        workspace="yes",
    ),
    "capture.warn_files": Key("integer", "warn before a first checkpoint of more files than this; 0: never", "yes"),
    "capture.warn_bytes": Key("size", "warn before a first checkpoint of more bytes than this; 0: never", "yes"),
    "store.url": Key("text", "where objects are kept: a directory or a URL; empty: in the home"),
    "store.max_bytes": Key(
        "size", "the quota of the store: at it, old checkpoints make room, then new ones are refused; 0: none"
    ),
    "store.pack_bytes": Key("size", "a pack that has grown to this is closed and the next begun", least=MIB, most=GIB),
    "store.tenant": Key(
        "text", "the part of the object store that is ours", pattern=r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"
    ),
    "lock.timeout": Key("duration", "how long to wait for another process before giving up", most=DAY),
    "watch.debounce": Key("duration", "save when nothing has changed for this long", "yes", most=DAY),
    "watch.max_interval": Key("duration", "save at the latest this long after a change", "yes", least=1, most=30 * DAY),
    "watch.max_per_hour": Key("integer", "save no more often than this", workspace="lower", least=1, most=3600),
    "watch.backend": Key("text", "how changes are noticed", "yes", choices=("auto", "fanotify", "inotify", "polling")),
    "watch.poll_interval": Key(
        "duration", "how often the polling backend looks at the tree", "yes", least=0.5, most=DAY
    ),
    "watch.full_walk_interval": Key(
        "duration", "how often to look at the whole tree although nothing was noticed", "yes", least=60, most=30 * DAY
    ),
    "retention.keep_all": Key("duration", "until this age every checkpoint is kept"),
    "retention.per_ten_minutes": Key("duration", "until this age one in ten minutes is kept"),
    "retention.hourly": Key("duration", "until this age one an hour is kept"),
    "retention.daily": Key("duration", "until this age one a day is kept; 0: for ever"),
    "retention.rescue": Key("duration", "until this age no checkpoint that a restore took first is dropped"),
    "retention.interval": Key("duration", "how often `watch` thins out", least=60),
    "gc.grace": Key("duration", "what nothing uses is deleted after this long"),
    "gc.rewrite_ratio": Key("ratio", "a pack of which this part is dead is written anew", most=1),
    "files.uid": Key(
        "integer",
        "the owner of what restores and forks make; -1: that of the workspace's root",
        least=-1,
        most=2**32 - 2,
    ),
    "files.gid": Key(
        "integer",
        "the group of what restores and forks make; -1: that of the workspace's root",
        least=-1,
        most=2**32 - 2,
    ),
    "identity.author": Key("text", "who makes checkpoints, if neither a flag nor the caller says it"),
}

MAX_PATTERNS = 1000
MAX_TEXT = 4096

_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)\Z")
_DECIMAL = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES = {**_DECIMAL, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40}
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": HOUR, "d": DAY, "w": 7 * DAY}


def default(name: str) -> Any:
    """The default of the key ``section.key``."""
    section, _, key = name.partition(".")
    return getattr(getattr(Settings(), section), key)


def parse_size(value: object) -> int:
    """Bytes from an integer or a text such as ``1GiB``, ``64MiB``, ``500MB``; raises `ValueError` saying why not."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    factor, number = _scaled(value, _SIZES, "a number of bytes, or one with a unit (kB, MB, GB, KiB, MiB, GiB, TiB)")
    size = float(number) * factor if "." in number else int(number) * factor
    if size != int(size):
        raise ValueError(f"{value!r} is no whole number of bytes")
    return int(size)


def parse_duration(value: object) -> float:
    """Seconds from a number or a text such as ``5s``, ``10m``, ``24h``, ``7d``; raises `ValueError` saying why not."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    factor, number = _scaled(value, _DURATIONS, "a number of seconds, or one with a unit (ms, s, m, h, d, w)")
    return float(number) * factor


def _scaled(value: object, units: Mapping[str, float], expected: str) -> tuple[Any, str]:
    match = _NUMBER.match(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{_shown(value)} is not {expected}")
    return units[match[2].lower()], match[1]


def parse_value(name: str, value: object) -> Any:
    """The typed value of the key ``name``; raises `ValueError` that says what is wrong with ``value``."""
    key = KEYS[name]
    typed = _PARSERS[key.kind](value)
    if isinstance(typed, (int, float)) and not key.least <= typed <= key.most:
        # Written this way around, the comparison refuses NaN as well.
        raise ValueError(f"{_shown(value)} is not between {key.least:g} and {key.most:g}")
    if key.choices and typed not in key.choices:
        raise ValueError(f"{_shown(value)} is none of {', '.join(key.choices)}")
    if key.pattern and not re.fullmatch(key.pattern, cast("str", typed)):
        raise ValueError(f"{_shown(value)} does not match {key.pattern}")
    return typed


def _parse_integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{_shown(value)} is not a whole number")


def _parse_ratio(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{_shown(value)} is not a number")


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not a text")  # noqa: TRY004 - one kind of error for every bad value
    if len(value) > MAX_TEXT or "\0" in value or "\n" in value:
        raise ValueError(f"a text has at most {MAX_TEXT} characters, no NUL and no line break")
    return value


def _parse_patterns(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{_shown(value)} is not a list of texts")  # noqa: TRY004 - as above
    patterns = tuple(_parse_text(pattern) for pattern in cast("Sequence[object]", value))
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns are more than {MAX_PATTERNS}")
    for pattern in patterns:
        if pattern.startswith("!"):
            raise ValueError(f"{_shown(pattern)} begins with '!': a pattern here can exclude and nothing else")
    return patterns


_PARSERS: dict[Kind, Callable[[object], Any]] = {
    "size": parse_size,
    "duration": parse_duration,
    "integer": _parse_integer,
    "ratio": _parse_ratio,
    "text": _parse_text,
    "patterns": _parse_patterns,
}


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, tuple)):
        # What is nested may be nested deeply.
        return "a table" if isinstance(value, dict) else "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."


class Layer(NamedTuple):
    """Raw values from one place, by section and key."""

    origin: str
    """What to call the place in a message: a file's path, ``the environment``, ``the command line``."""
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
