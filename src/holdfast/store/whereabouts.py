"""Which object store a home's catalog speaks of: noted beside it, so that another ``store.url`` is noticed at once.

Otherwise every object would look lost. The note is specified in ``docs/formats/catalog.md``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.errors import ConfigError
from holdfast.model.paths import display
from holdfast.store.open_objects import local_directory

if TYPE_CHECKING:
    from holdfast.store.catalog import Catalog
    from holdfast.store.objects import ObjectStore

NAME = b"objects.url"
_MAX_BYTES = 1 << 14


def check(home: bytes, url: str, objects: ObjectStore, catalog: Catalog) -> None:
    """Raise `ConfigError` if the objects of ``catalog`` are not in the store at ``url`` (empty: the one in the home).

    They are looked for only if another URL is noted, or none: then the newest pack has to be there, and the note is
    brought up to date. So objects may be moved, and the URL with them.
    """
    path = os.path.join(home, NAME)
    here = _normal(url)
    noted = _read(path)
    if noted == here:
        return
    newest = catalog.newest_pack()
    if newest is not None and objects.size(newest) is None and noted is not None:
        raise ConfigError(
            f"the objects of {display(home)} are in {_name(noted, home)}, and not in {_name(here, home)}",
            hint="set store.url back, or move the objects first; another store of your own needs a home of its own",
        )
    _write(path, here)


def _normal(url: str) -> bytes:
    raw = os.fsencode(url)
    path = local_directory(raw)
    return os.path.normpath(path) if path else raw


def _name(url: bytes, home: bytes) -> str:
    return display(url or os.path.join(home, b"objects"))


def _read(path: bytes) -> bytes | None:
    """The URL that is noted, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(fd, _MAX_BYTES).removesuffix(b"\n")
    except OSError:
        return None
    finally:
        os.close(fd)


def _write(path: bytes, url: bytes) -> None:
    """Note the URL. Best effort: where it cannot be written, the objects are looked for again the next time."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(url + b"\n")
    except OSError:
        return
