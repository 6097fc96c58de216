"""The URL of a catalog on PostgreSQL: parsing it, and showing it without its password."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model.errors import ConfigError, UnsupportedError
from holdfast.model.store_location import CATALOG_SECRETS, is_catalog_url

_LEAST_SECRET: Final = 3
"""Shorter passwords are not looked for in messages, where they may be part of any word."""


class CatalogAddress(NamedTuple):
    """Where a catalog is."""

    parameters: dict[str, str]
    """As libpq calls them."""
    shown: str
    """For people and for logs."""

    def scrub(self, text: str) -> str:
        """``text`` of the database or the library, without secrets."""
        for name in CATALOG_SECRETS:
            secret = self.parameters.get(name, "")
            if len(secret) >= _LEAST_SECRET:
                text = text.replace(secret, "***")
        return " ".join(text.split())

    def __repr__(self) -> str:
        """As it is shown."""
        return f"CatalogAddress({self.shown})"


def parse(catalog: str) -> CatalogAddress:
    """Parse ``store.catalog``; raises `ConfigError` for an invalid URL, without repeating it, and `UnsupportedError` if
    psycopg, which is imported only here, is not installed.
    """
    if not is_catalog_url(catalog):
        raise ConfigError(
            "store.catalog is no URL of a catalog",
            hint="it is empty (the catalog is in the home), or postgresql://user@host:5432/database",
        )
    try:
        from psycopg import Error, conninfo
    except ImportError as error:
        from holdfast.model.extras import install_command

        raise UnsupportedError(
            f"a catalog on PostgreSQL needs psycopg, which cannot be loaded: {error}",
            hint=install_command("server"),
        ) from None
    try:
        if _is_ambiguous(catalog):
            raise Error
        parameters = {name: str(value) for name, value in conninfo.conninfo_to_dict(catalog).items()}
    except Error:
        # libpq would repeat the part that it does not understand, which may be a password with a # or a % in it.
        raise ConfigError(
            "store.catalog is no URL that PostgreSQL understands",
            hint="postgresql://user@host:5432/database; in names and passwords %, #, @, : and / are written as %25, "
            "%23, %40, %3A and %2F",
        ) from None
    return CatalogAddress(parameters, _shown(parameters))


def _is_ambiguous(catalog: str) -> bool:
    """True for a misplaced @: the password has one, or a / before it, and libpq takes the text behind it for the name
    of a host or of a database, which are shown.
    """
    rest = catalog.partition("://")[2]
    user, _, behind = rest.partition("@")
    return "@" in (rest if "/" in user else behind).partition("?")[0]


def _shown(parameters: dict[str, str]) -> str:
    hosts = parameters.get("host", "").split(",")
    ports = parameters.get("port", "").split(",")
    places = ",".join(
        host + (f":{port}" if port else "")
        for host, port in zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True)
    )
    user = parameters.get("user", "")
    return f"postgresql://{user + '@' if user else ''}{places}/{parameters.get('dbname', '')}"
