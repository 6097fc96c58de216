"""Where settings are read: flags, the environment, the workspace's file, the home's file, then defaults.

This is the one place that does. Only files that exist cost anything.
"""

from __future__ import annotations

import os
import stat

from holdfast.model.config import Settings
from holdfast.model.errors import ConfigError
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKSPACE_FILE = b"holdfast.toml"
HOME_FILE = b"config.toml"
MAX_WORKSPACE_FILE_BYTES = 8 << 10
"""The most that a workspace's file may have. Reading a key takes time with the square of its length: this bounds it."""
MAX_HOME_FILE_BYTES = 64 << 10
"""The most that the home's file may have."""

_VARIABLE = "HOLDFAST_"
_OTHER_VARIABLES = frozenset(
    (
        "HOLDFAST_HOME",
        "HOLDFAST_MESSAGE",
        "HOLDFAST_COMMAND",
        "HOLDFAST_RUN",
        "HOLDFAST_SESSION",
        "HOLDFAST_AGENT",
        "HOLDFAST_HOOK",
    )
)
"""Those that are no settings."""


def load_settings(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    root: bytes | None,
    home: bytes,
    instead: bytes | None = None,
) -> Settings:
    """The settings in force for the workspace at ``root``, or (None) for the home alone.

    ``instead`` is what the workspace's file is taken to hold, whatever it does. ``flags`` are values by
    ``section.key``. The environment says ``HOLDFAST_SECTION_KEY``. A file or a directory that
    is not there says nothing. The workspace's file is not trusted: no link is followed to it, and there are keys that
    it may not set. Raises `ConfigError` that names the place, the key and the reason.
    """
    places: list[tuple[str, Mapping[str, object], bool]] = [
        ("the command line", _from_flags(flags), False),
        ("the environment", _from_environment(environ), False),
    ]
    if root is not None:
        path = root + b"/" + WORKSPACE_FILE
        places += _parsed(path, _read(path, foreign=True) if instead is None else instead, foreign=True)
    path = home + b"/" + HOME_FILE
    places += _parsed(path, _read(path, foreign=False), foreign=False)
    if not any(values for _, values, _ in places):
        return Settings()
    from holdfast.model.layers import Layer, resolve

    return resolve([Layer(*place) for place in places])


def _from_flags(flags: Mapping[str, object]) -> dict[str, dict[str, object]]:
    values: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = value
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The variables that name a section and a key. Raises `ConfigError` for one that names no section, unless it is one
    of `_OTHER_VARIABLES`.
    """
    values: dict[str, dict[str, object]] = {}
    for variable, text in environ.items():
        if not variable.startswith(_VARIABLE) or variable in _OTHER_VARIABLES:
            continue
        section, separator, key = variable[len(_VARIABLE) :].lower().partition("_")
        if not separator or section not in Settings._fields:
            raise ConfigError(
                f"the environment: {variable} names no section and key of the settings",
                hint=f"the sections are {', '.join(Settings._fields)}; unset what is no setting of Holdfast",
            )
        values.setdefault(section, {})[key] = _from_text(f"{section}.{key}", text)
    return values


def _from_text(name: str, text: str) -> object:
    from holdfast.model.keys import KEYS

    kind = KEYS[name].kind if name in KEYS else "text"
    if kind in ("patterns", "texts"):
        return [line for line in text.split("\n") if line]
    if kind in ("integer", "ratio"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            return text
    return text


def _parsed(path: bytes, data: bytes | None, *, foreign: bool) -> list[tuple[str, dict[str, object], bool]]:
    if data is None:
        return []
    import tomllib

    origin = display(path)
    try:
        return [(origin, cast("dict[str, object]", tomllib.loads(data.decode())), foreign)]
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{origin}: it is not TOML: {reason[:200]}") from None


def _read(path: bytes, *, foreign: bool) -> bytes | None:
    """What is in the file ``path``, or None if there is none. A foreign one may not be a link. Never blocks."""
    origin = display(path)
    links, limit = (os.O_NOFOLLOW, MAX_WORKSPACE_FILE_BYTES) if foreign else (0, MAX_HOME_FILE_BYTES)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | links)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{origin}: it cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{origin}: it is not a file")
        data = b""
        while len(data) <= limit and (piece := os.read(fd, limit + 1 - len(data))):
            data += piece
    except OSError as error:
        raise ConfigError(f"{origin}: it cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ConfigError(f"{origin}: it is longer than {limit} bytes")
    return data
