"""Puts an object store together as the settings say: bucket or directory, a cache before it, encryption before that."""

from __future__ import annotations

import os

from holdfast.model.errors import ConfigError
from holdfast.model.locations import local_directory
from holdfast.model.named import NamedTuple
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store.open_objects import open_objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.config import Store as Settings
    from holdfast.store.cached import FarObjects
    from holdfast.store.objects import ObjectStore
    from holdfast.store.remote import RemoteObjects

CACHE = b"object-cache"
"""In the home."""


class Assembled(NamedTuple):
    """An object store, and what it is made of."""

    objects: ObjectStore
    bucket: RemoteObjects | None
    """What it comes down to, if that is a bucket."""
    location: str | bytes


def assemble(
    location: str | bytes,
    settings: Settings,
    home: bytes | None,
    *,
    open_it: Callable[..., ObjectStore] = open_objects,
    random: Callable[[int], bytes] = os.urandom,
) -> Assembled:
    """The object store at ``location``. Opening neither writes nor connects. Raises `ConfigError`, and
    `UnsupportedError` if encryption is wanted and its library is not there.
    """
    # Not in /tmp, which may be small, and in memory.
    scratch = None if home is None else os.fsdecode(home)
    if local_directory(location) is not None:
        return Assembled(_encrypted(open_it(location, random=random), settings, scratch), None, location)
    from holdfast.store.remote import Limits, RemoteObjects

    objects = open_it(
        location,
        random=random,
        options=parse_options(settings.options),
        tenant=settings.tenant,
        limits=Limits(settings.timeout, settings.retries, settings.parallel),
        scratch=scratch,
    )
    bucket = objects if isinstance(objects, RemoteObjects) else None
    if bucket is not None and home is not None and settings.cache_bytes:
        from holdfast.store.cached import CachedObjects

        cached: FarObjects = bucket
        objects = CachedObjects(cached, home + b"/" + CACHE, settings.cache_bytes)
    return Assembled(_encrypted(objects, settings, scratch), bucket, location)


def parse_options(options: tuple[str, ...]) -> dict[str, str]:
    """The options of a bucket's service by name. Raises `ConfigError` for one that is none, or a credential."""
    from holdfast.store.remote_errors import is_secret

    found: dict[str, str] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"store.options: an option is written name=value, not {name[:40]!r}")
        if is_secret(name):
            raise ConfigError(
                f"store.options: {name} is a credential, which must not stand in a configuration",
                hint="the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, … are read, and the role of a machine",
            )
        found[name.strip().lower()] = value.strip()
    return found


def _encrypted(objects: ObjectStore, settings: Settings, scratch: str | None) -> ObjectStore:
    if not settings.encryption_key:
        return objects
    from holdfast.store.encrypted import EncryptedObjects
    from holdfast.store.encryption_keys import load

    return EncryptedObjects(objects, load(settings.encryption_key, settings.old_keys), scratch=scratch)


def key_id(objects: ObjectStore) -> str:
    """What the present key of encryption is called, in hex digits; empty if nothing is encrypted."""
    keys = getattr(objects, "keys", None)
    return keys.current.id.hex() if keys is not None else ""
