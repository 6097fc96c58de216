"""The environment that commands of others get from this process: all of it, but for the password of the catalog.

What a command prints, logs or reports of its surroundings is for others to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, AnyStr

from holdfast.store.postgresql_url import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

_CATALOG = "HOLDFAST_STORE_CATALOG"


def handed_on(environ: Mapping[AnyStr, AnyStr]) -> dict[AnyStr, AnyStr]:
    """What to start a command with, as text or as bytes."""
    given = dict(environ)
    for name, value in environ.items():
        if isinstance(name, str) and isinstance(value, str):
            if name == _CATALOG:
                given[name] = without_secrets(value)
        elif isinstance(name, bytes) and isinstance(value, bytes) and name == _CATALOG.encode():
            given[name] = without_secrets(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return given
