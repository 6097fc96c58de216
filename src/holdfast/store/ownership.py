"""A store and its bucket: claims it when it is first opened there, and looks at the claim before it deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError
from holdfast.store import claims, identities, probing
from holdfast.store.keys import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.catalog import Catalog
    from holdfast.store.remote import RemoteObjects


def own(catalog: Catalog, bucket: RemoteObjects, random: Callable[[int], bytes]) -> identities.Identity | None:
    """Claim the tenant's objects in ``bucket``, unless the catalog says that this was done: then nothing is sent.

    Raises `RefusedError` (code ``claimed``) if another store has them, or if there are objects of which the catalog
    knows nothing and nobody says whose they are. None where the catalog cannot be written.
    """
    if catalog.database.read_only:
        return None
    identity = identities.read(catalog)
    if identity is not None and identity.claimed == bucket.name:
        return identity
    identity = identity or identities.make(catalog, random)
    holder = claims.holder_of(bucket, catalog.name)
    if holder is None and catalog.newest_pack() is None:
        refuse_strange(bucket, catalog.name)
    return claim(catalog, bucket, identity, random)


def claim(
    catalog: Catalog, bucket: RemoteObjects, identity: identities.Identity, random: Callable[[int], bytes]
) -> identities.Identity:
    """Claim the objects, and note it."""
    conditional = probing.conditional_writes(bucket, catalog.name, random)
    claims.hold(bucket, catalog.name, claims.Claim(identity.id, catalog.clock.now()), conditional)
    identity = identity._replace(claimed=bucket.name, conditional=conditional)
    identities.change(catalog, identity)
    return identity


def refuse_strange(bucket: RemoteObjects, tenant: str) -> None:
    """Raise `RefusedError` if the tenant has objects in the bucket."""
    for kind in KINDS:
        found = next(iter(bucket.list(f"{kind}/{tenant}/")), None)
        if found is not None:
            raise RefusedError(
                f"{bucket.name} holds objects of the tenant {tenant} that this catalog knows nothing of ({found.key})",
                hint="name another prefix in store.url, or another store.tenant; or put their catalog back",
                code="claimed",
            )


def check(catalog: Catalog, bucket: RemoteObjects) -> None:
    """Raise `RefusedError` (code ``claimed``) unless the objects are still this store's to delete."""
    identity = identities.read(catalog)
    if identity is not None and identity.claimed:
        claims.check(bucket, catalog.name, identity.id)
