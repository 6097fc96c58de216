"""Chooses the object store that a URL or a path names."""

from __future__ import annotations

import os

from holdfast.model.errors import ConfigError
from holdfast.model.locations import fault_of, local_directory
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store.local import LocalObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.store.objects import ObjectStore
    from holdfast.store.remote import Limits


def open_objects(
    location: str | bytes,
    *,
    options: Mapping[str, str] | None = None,
    tenant: str | None = None,
    limits: Limits | None = None,
    scratch: str | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> ObjectStore:
    """The object store at ``location``, which is a path or a URL (see `locations.fault_of`).

    ``options`` are handed to the service of a bucket, where what is ``tenant``'s own is looked through for unfinished
    uploads; ``scratch`` is the directory of temporary files. Opening neither writes nor connects. Raises `ConfigError`
    for anything else.
    """
    fault = fault_of(location)
    if fault is not None:
        raise ConfigError(f"the object store: {fault}")
    path = local_directory(location)
    if path is not None:
        return LocalObjects(path, random=random)
    from holdfast.store.remote import Limits, open_bucket

    return open_bucket(os.fsdecode(location), options, tenant=tenant, limits=limits or Limits(), scratch=scratch)
