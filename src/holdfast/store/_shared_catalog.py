"""Opening a catalog that several homes, on several machines, may share: ``store.catalog`` is a URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import ConfigError, IntegrityError
from holdfast.model.paths import display
from holdfast.model.store_location import local_directory
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import repeat
from holdfast.store.identity import home_identity, store_identity
from holdfast.store.identity.object_store_binding import ENCRYPTED, check_encryption, check_key, half_copied
from holdfast.store.objects.configured_store import key_id, keys_of
from holdfast.store.objects.object_keys import KINDS
from holdfast.store.postgresql.catalog_url import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.clock import Clock
    from holdfast.model.config.settings import Settings
    from holdfast.model.ids import CheckpointId
    from holdfast.store.objects.object_store import ObjectStore
    from holdfast.store.postgresql.database import PostgresDatabase

_REPEATED: Final = (
    *("add_workspace", "workspace", "workspaces", "find_workspace", "find_workspace_by_identity", "move_workspace"),
    *("let_go", "adopt", "cursor", "commit", "checkpoint", "checkpoints", "by_prefix", "by_label", "children"),
    *("ancestors", "claim", "changeset", "not_captured", "protections", "known", "locate", "newest_pack", "relocate"),
    *("generation_of", "pin", "pinned_root", "extend_pin", "unpin", "unpin_all", "unpin_expired"),
    *("record_event", "events", "event", "stats", "used_bytes", "checkpoints_named", "has_sessions", "is_unused"),
)
"""The methods of `Catalog` that may be called again when the connection was lost and nothing was committed."""


def open_catalog(
    home: bytes,
    settings: Settings,
    objects: ObjectStore,
    *,
    clock: Clock,
    random: Callable[[int], bytes],
    check_new: Callable[[], None] | None = None,
    becoming: bool = False,
) -> Catalog:
    """The catalog at ``settings.store.catalog``, for the home ``home``; ``becoming`` as in `Store.open`.

    Raises `RefusedError` (code ``half_copied``) for an incomplete copy; `ConfigError` for a bad URL, and for objects in
    another place than this catalog's; `IntegrityError` for objects that it does not know, or with an unknown key;
    `StorageError`, `LockedError` and `FormatError` as `PostgresDatabase`.
    """
    address = parse(settings.store.catalog)
    from holdfast.store.postgresql.database import PostgresDatabase

    home_id, writable = home_identity.identify(home, random)
    database = PostgresDatabase(
        address,
        MIGRATIONS,
        tenant=settings.store.tenant,
        application_id=APPLICATION_ID,
        timeout=settings.lock.timeout,
        connections=settings.store.connections,
        closed=not writable,
        check_new=check_new,
    )
    try:
        catalog = Catalog(database, settings.store.tenant, clock, home_id)
        catalog.keys = keys_of(objects)
        retry_lost_connections(catalog, database)
        if not becoming:
            _refuse_half_copied(catalog)
            _check_place(home, settings.store.url, objects, catalog, random)
            check_key(home, objects, catalog)
    except BaseException:
        database.close()
        raise
    return catalog


_MARK: Final = b"a catalog of Holdfast has its objects here\n"


def retry_lost_connections(catalog: Catalog, database: PostgresDatabase) -> None:
    """Let a lost connection cost a catalog's callers some time, and nothing else."""
    catalog.again = database.again
    repeat(catalog, _REPEATED, database.again)
    forget = catalog.forget

    def forget_each(checkpoints: Sequence[CheckpointId]) -> list[Checkpoint]:
        return [gone for name in checkpoints for gone in database.again(lambda name=name: forget([name]))]

    catalog.forget = forget_each


def _refuse_half_copied(catalog: Catalog) -> None:
    """The catalog records it, not only the home: any home that uses the copy would find only a part of the rows, and a
    continued copy would delete the home's writes.
    """
    identity = store_identity.read(catalog)
    if identity is not None and identity.origin and not identity.copied:
        raise half_copied("this catalog is", "or delete the database, and the copied objects")


# --- where the objects are ---


def _check_place(home: bytes, url: str, objects: ObjectStore, catalog: Catalog, random: Callable[[int], bytes]) -> None:
    """Raise unless the object store is the catalog's, or its objects were moved there.

    Two machines may give different directories the same name, or one directory different names: an object decides.
    """
    here = _object_place(home, url, catalog.home_id) + (ENCRYPTED if key_id(objects) else b"")
    noted = _noted(catalog)
    if noted is None and not catalog.database.read_only:
        noted = _begin(here, objects, catalog, random)
    if noted is None or noted[0] == here:
        return
    newest = catalog.newest_pack()
    held = newest is not None and objects.size(newest) is not None
    if newest is not None and held:
        check_encryption(objects, newest)
    if (newest is None or held) and objects.size(_mark(catalog, noted[1])) is not None:
        return  # another name of the same, or a copy that is complete
    moved = held
    if newest is None:
        # Nothing was saved yet, so only this home can be about to save.
        moved = noted[0].startswith(catalog.home_id.encode() + b" ") and not catalog.checkpoints(limit=1)
        if moved:
            _refuse_unknown(objects, catalog)
    if not moved:
        raise _elsewhere(noted[0], here, catalog)
    if catalog.database.read_only:
        return
    # A new token: a store that still has the mark of the old one is no longer the catalog's.
    token = random(16).hex()
    objects.put(_mark(catalog, token), (_MARK,))
    with catalog.database.writing() as transaction:
        transaction.run(
            "UPDATE object_places SET url = ?, token = ? WHERE tenant = ? AND token = ?",
            (here, token, catalog.tenant, noted[1]),
        )


def _begin(
    here: bytes, objects: ObjectStore, catalog: Catalog, random: Callable[[int], bytes]
) -> tuple[bytes, str] | None:
    """Record the object store of a new tenant; returns the record, of this process or a faster one."""
    _refuse_unknown(objects, catalog)
    token = random(16).hex()
    objects.put(_mark(catalog, token), (_MARK,))
    with catalog.database.writing() as transaction:
        transaction.run(
            "INSERT INTO object_places (tenant, url, token) VALUES (?, ?, ?) ON CONFLICT (tenant) DO NOTHING",
            (catalog.tenant, here, token),
        )
    noted = _noted(catalog)
    if noted is not None and noted[1] != token:
        objects.delete(_mark(catalog, token))
    return noted


def _noted(catalog: Catalog) -> tuple[bytes, str] | None:
    with catalog.database.reading(once=True) as transaction:
        row = transaction.one("SELECT url, token FROM object_places WHERE tenant = ?", (catalog.tenant,))
    return (row[0], row[1]) if row else None


def _mark(catalog: Catalog, token: str) -> str:
    """The object that says whose objects these are."""
    return f"catalogs/{catalog.name}/{token}"


def _object_place(home: bytes, url: str, home_id: str) -> bytes:
    path = local_directory(url) if url else os.path.join(home, b"objects")
    if path is None:
        return os.fsencode(url)
    return home_id.encode() + b" " + os.path.normpath(path)


def _refuse_unknown(objects: ObjectStore, catalog: Catalog) -> None:
    """A catalog that begins anew over objects that are there would call all of them dead."""
    if catalog.newest_pack() is not None or catalog.checkpoints(limit=1):
        return  # it was copied here, and knows them
    for kind in KINDS:
        if next(iter(objects.list(f"{kind}/{catalog.name}/")), None) is not None:
            raise IntegrityError(
                f"the object store holds objects of the tenant {catalog.name}, of which this catalog knows nothing; "
                "nothing was touched",
                hint="copy the catalog that knows of them to this one, or set another store.tenant or store.url to "
                "begin anew",
            )


def _elsewhere(noted: bytes | None, here: bytes, catalog: Catalog) -> ConfigError:
    there = "elsewhere" if noted is None else f"in {_shown(noted, catalog)}"
    return ConfigError(
        f"the objects of this catalog are {there}, and not in {_shown(here, catalog)}",
        hint="set store.url to one place that every machine can reach (such as s3://bucket), or move the objects first",
    )


def _shown(place: bytes, catalog: Catalog) -> str:
    home_id, space, path = place.removesuffix(ENCRYPTED).partition(b" ")
    if not space:
        return display(place)
    return f"{display(path)} of {'this' if home_id.decode() == catalog.home_id else 'another'} home"
