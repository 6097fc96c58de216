"""Chooses the object store that a URL or a path names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.errors import ConfigError
from holdfast.store.local import LocalObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.store.objects import ObjectStore
    from holdfast.store.remote import Limits

REMOTE_SCHEMES = frozenset(("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl"))


def open_objects(
    location: str | bytes,
    *,
    options: Mapping[str, str] | None = None,
    tenant: str | None = None,
    limits: Limits | None = None,
    scratch: str | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> ObjectStore:
    """The object store at ``location``: an absolute path, ``file:///path``, or a bucket's URL (`REMOTE_SCHEMES`).

    ``options`` are handed to the service of a bucket, where what is ``tenant``'s own is looked through for unfinished
    uploads; ``scratch`` is the directory of temporary files. Opening neither writes nor connects. Raises `ConfigError`
    for anything else.
    """
    raw = os.fsencode(location)
    path = local_directory(raw)
    if path is None:
        scheme = raw.partition(b"://")[0].decode("ascii", "replace")
        if scheme in REMOTE_SCHEMES:
            from holdfast.store.remote import Limits, open_bucket

            return open_bucket(os.fsdecode(raw), options, tenant=tenant, limits=limits or Limits(), scratch=scratch)
        known = ", ".join(sorted({"file"} | REMOTE_SCHEMES))
        raise ConfigError(f"unknown object store {os.fsdecode(raw)!r}: its scheme is none of {known}")
    if not path.startswith(b"/") or b"\0" in path:
        raise ConfigError(f"the object store {os.fsdecode(raw)!r} is not an absolute path")
    return LocalObjects(path, random=random)


def local_directory(location: str | bytes) -> bytes | None:
    """The directory of this machine that ``location`` means; None for a URL of anything else."""
    raw = os.fsencode(location)
    scheme, separator, rest = raw.partition(b"://")
    if not separator:
        return raw
    if scheme != b"file":
        return None
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(rest)
