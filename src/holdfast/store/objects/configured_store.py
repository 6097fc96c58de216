"""Puts an object store together as the settings say: bucket or directory, a cache before it, encryption before that."""

from __future__ import annotations

import os

from holdfast.model.errors import ConfigError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.store_location import fault_of, local_directory
from holdfast.store.objects._local_store import LocalObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.model.config.settings import Store as Settings
    from holdfast.store.objects._encryption_keys import EncryptionKeys
    from holdfast.store.objects.cached_store import RemoteObjectStore
    from holdfast.store.objects.object_store import ObjectStore
    from holdfast.store.objects.remote_store import RemoteObjects, RequestLimits


def open_objects(
    location: str | bytes,
    *,
    options: Mapping[str, str] | None = None,
    tenant: str | None = None,
    limits: RequestLimits | None = None,
    scratch: str | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> ObjectStore:
    """The object store at ``location``, which is a path or a URL (see `store_location.fault_of`).

    ``options`` are passed to the service of a bucket; unfinished uploads are searched below ``tenant``'s own keys;
    ``scratch`` is the directory of temporary files. Opening neither writes nor connects. Raises `ConfigError` for an
    invalid location.
    """
    fault = fault_of(location)
    if fault is not None:
        raise ConfigError(f"the object store: {fault}")
    path = local_directory(location)
    if path is not None:
        return LocalObjects(path, random=random)
    from holdfast.store.objects.remote_store import RequestLimits, open_bucket

    return open_bucket(os.fsdecode(location), options, tenant=tenant, limits=limits or RequestLimits(), scratch=scratch)


CACHE = b"object-cache"
"""In the home."""


class ConfiguredStore(NamedTuple):
    """An object store, and its parts."""

    objects: ObjectStore
    bucket: RemoteObjects | None
    """The underlying bucket, if there is one."""
    location: str | bytes


def assemble(
    location: str | bytes,
    settings: Settings,
    home: bytes | None,
    *,
    open_it: Callable[..., ObjectStore] = open_objects,
    random: Callable[[int], bytes] = os.urandom,
) -> ConfiguredStore:
    """The object store at ``location``. Opening neither writes nor connects. Raises `ConfigError`, and
    `UnsupportedError` if the library for the configured encryption is missing.
    """
    # Not in /tmp, which may be small, and in memory.
    scratch = None if home is None else os.fsdecode(home)
    if local_directory(location) is not None:
        return ConfiguredStore(_encrypted(open_it(location, random=random), settings, scratch), None, location)
    from holdfast.store.objects.remote_store import RemoteObjects, RequestLimits

    objects = open_it(
        location,
        random=random,
        options=parse_options(settings.options),
        tenant=settings.tenant,
        limits=RequestLimits(settings.timeout, settings.retries, settings.parallel),
        scratch=scratch,
    )
    bucket = objects if isinstance(objects, RemoteObjects) else None
    if bucket is not None and home is not None and settings.cache_bytes:
        from holdfast.store.objects.cached_store import CachedObjects

        cached: RemoteObjectStore = bucket
        objects = CachedObjects(cached, home + b"/" + CACHE, settings.cache_bytes)
    return ConfiguredStore(_encrypted(objects, settings, scratch), bucket, location)


def parse_options(options: tuple[str, ...]) -> dict[str, str]:
    """The options of a bucket's service by name. Raises `ConfigError` for an invalid one, or a credential."""
    from holdfast.store.objects._remote_errors import is_secret

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
    from holdfast.store.objects._encrypted_store import EncryptedObjects
    from holdfast.store.objects._encryption_keys import load

    return EncryptedObjects(objects, load(settings.encryption_key, settings.old_keys), scratch=scratch)


def keys_of(objects: ObjectStore) -> EncryptionKeys | None:
    """The keys of an encrypting object store; None for others."""
    return getattr(objects, "keys", None)


def key_id(objects: ObjectStore) -> str:
    """The id of the present encryption key, in hex digits; empty without encryption."""
    keys = keys_of(objects)
    return keys.current.id.hex() if keys is not None else ""
