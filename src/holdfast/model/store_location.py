"""Where a store can be: what names a directory of this machine or a bucket, and a catalog on PostgreSQL."""

from __future__ import annotations

import os

REMOTE_SCHEMES = frozenset(("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl"))
_WITHOUT_USERS = frozenset(("s3", "s3a", "gs"))
"""Schemes whose URLs hold no user: text before an ``@`` could only be credentials."""

_SHOWN = 80
"""How many characters of an invalid location are shown."""


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


def fault_of(location: str | bytes) -> str | None:
    """Why ``location`` is invalid, without its secrets; None if it is an absolute path, ``file:///path``, or a bucket's
    URL (`REMOTE_SCHEMES`).
    """
    path = local_directory(location)
    if path is not None:
        if path.startswith(b"/") and b"\0" not in path:
            return None
        return f"{_shown(os.fsdecode(location))} names no absolute path"
    text = os.fsdecode(location)
    scheme = text.partition("://")[0]
    if scheme not in REMOTE_SCHEMES:
        known = ", ".join(sorted({"file"} | REMOTE_SCHEMES))
        return f"{_shown(scheme)} is not the scheme of an object store; those are {known}"
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
    except ValueError:
        return "it is not a URL"
    if ("@" in parts.netloc and scheme in _WITHOUT_USERS) or parts.query or parts.fragment:
        plain = _shown(f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
        return (
            f"{plain} may have only bucket and prefix: credentials come from the "
            "environment, other settings go into store.options"
        )
    return None if parts.netloc else f"{_shown(text)} names no bucket"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


CATALOG_SCHEMES = ("postgresql://", "postgres://")
CATALOG_SECRETS = ("password", "sslpassword", "oauth_client_secret")
"""Parameters of a catalog's URL that are secret, by their names in libpq."""


def is_catalog_url(catalog: str) -> bool:
    """True if ``store.catalog`` names a database on PostgreSQL."""
    return catalog.startswith(CATALOG_SCHEMES)


def without_secrets(catalog: str) -> str:
    """The URL without its passwords, for a user who has them in another place (as in ``~/.pgpass``). Parsed as libpq
    does, but without loading that. A text that is no URL of a catalog becomes empty.
    """
    if not is_catalog_url(catalog):
        return ""
    from urllib.parse import unquote

    scheme, _, rest = catalog.partition("://")
    user, at, _ = rest.partition("@")
    if at and "/" not in user:
        rest = user.partition(":")[0] + rest[len(user) :]
    place, question, query = rest.partition("?")
    kept = [word for word in query.split("&") if unquote(word.partition("=")[0]) not in CATALOG_SECRETS]
    return f"{scheme}://{place}{question if kept else ''}{'&'.join(kept)}"
