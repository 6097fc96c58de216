"""The owner of a tenant's objects in a bucket: one store claims them, and no other collects objects unknown to it.

Two catalogs with objects under one prefix would each delete the other's as orphans. So a store writes its id there
before its first object, and checks it before each collection. ``docs/formats/claim.md`` specifies the object and how
the race is decided.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from blake3 import blake3

from holdfast.model.errors import FormatError, NotFoundError, RefusedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.store.identity import store_identity
from holdfast.store.objects import bucket_probe
from holdfast.store.objects.object_keys import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.objects.remote_store import RemoteObjects

_LOG = Log(__name__)

MAGIC = b"HFCLAM"
VERSION = 1
_BODY = struct.Struct("<6sH16sQ")
_CHECKSUM = 16
OBJECT_BYTES = _BODY.size + _CHECKSUM
"""48."""
OWNER = "owner"
_TRIES = 12
_PAUSE = 0.05
"""Seconds between two looks at first; twice as many each time, a second at most."""


class BucketClaim(NamedTuple):
    """The claim in a bucket."""

    store: str
    """The id of the store whose the objects are: 32 hex digits."""
    at: int
    """Microseconds since 1970-01-01 UTC."""


def encode(claim: BucketClaim) -> bytes:
    """The object."""
    body = _BODY.pack(MAGIC, VERSION, bytes.fromhex(claim.store), claim.at)
    return body + blake3(body).digest(_CHECKSUM)


def decode(data: bytes) -> BucketClaim:
    """The claim that an object is; raises `FormatError`."""
    if data[: len(MAGIC)] != MAGIC:
        raise FormatError("magic: this is no claim")
    if len(data) != OBJECT_BYTES:
        raise FormatError(f"length: a claim has {OBJECT_BYTES} bytes, not {len(data)}")
    _, version, store, at = _BODY.unpack_from(data)
    if version != VERSION:
        raise FormatError(f"version: {version} is not {VERSION}: a newer Holdfast may have written this claim")
    if blake3(data[: _BODY.size]).digest(_CHECKSUM) != data[_BODY.size :]:
        raise FormatError("checksum: the claim is damaged")
    return BucketClaim(store.hex(), at)


def prefix(tenant: str) -> str:
    """The prefix of the keys of a tenant's claims."""
    return f"claims/{tenant}/"


def acquire(
    bucket: RemoteObjects,
    tenant: str,
    claim: BucketClaim,
    conditional: bucket_probe.Conditional,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Claim a tenant's objects in the bucket, or find that this store has done so already.

    Of several concurrent stores one succeeds, whatever the server supports: each writes before it lists, so of two at
    least one sees the other. Raises `RefusedError` (code ``claimed``) if another store has them, and `StorageError` if
    the server's listings are not up to date.
    """
    name = OWNER if conditional == "yes" else claim.store
    key = prefix(tenant) + name
    data = encode(claim)
    if name == OWNER:
        if not bucket.create(key, data) and _read(bucket, key).store != claim.store:
            raise _taken(bucket, tenant, _read(bucket, key))
    else:
        bucket.put(key, [data])
    try:
        _win(bucket, tenant, name, claim.store, sleep)
    except BaseException:
        _withdraw(bucket, key, claim.store)
        raise


def _win(bucket: RemoteObjects, tenant: str, name: str, store: str, sleep: Callable[[float], None]) -> None:
    """Return when there is no other claim; raise if one comes before ours."""
    pause = _PAUSE
    seen = False
    others: list[str] = []
    for attempt in range(_TRIES):
        if attempt:
            sleep(pause)
            pause = min(2 * pause, 1.0)
        there = [info.key.rpartition("/")[2] for info in bucket.list(prefix(tenant))]
        if name not in there:
            continue  # the listing lags behind, and may hide others too
        seen = True
        others = [other for other in there if other != name and not _is_own(bucket, tenant, other, store)]
        if not others:
            if _read(bucket, prefix(tenant) + name).store != store:
                break
            return
        # The owner's key comes first, then the smaller id. A later store withdraws, if it has not won already.
        if name != OWNER and (OWNER in others or min(others) < name):
            break
    if not seen:
        raise StorageError(
            f"{bucket.name} does not list an object that was just written: its listings lag behind",
            hint="Holdfast needs a service with up-to-date listings, or one with conditional writes",
        )
    holder = others[0] if others else name
    raise _taken(bucket, tenant, _read(bucket, prefix(tenant) + holder))


def _is_own(bucket: RemoteObjects, tenant: str, name: str, store: str) -> bool:
    """True for an earlier claim of this very store, made when the server could do more, or less, than now; and for one
    that has just been withdrawn.
    """
    if name == store:
        return True
    try:
        return _read(bucket, prefix(tenant) + name).store == store
    except NotFoundError:
        return True


def check(bucket: RemoteObjects, tenant: str, store: str) -> None:
    """Raise `RefusedError` (code ``claimed``) unless the objects are still this store's."""
    for name in (OWNER, store):
        try:
            found = _read(bucket, prefix(tenant) + name)
        except NotFoundError:
            continue
        if found.store != store:
            raise _taken(bucket, tenant, found)
        return
    holder = holder_of(bucket, tenant)
    if holder is not None:
        raise _taken(bucket, tenant, holder)
    raise RefusedError(
        f"the objects of the tenant {tenant} in {bucket.name} are not claimed by this store any more",
        hint="if no other store uses them: holdfast store claim",
        code="claimed",
    )


def holder_of(bucket: RemoteObjects, tenant: str) -> BucketClaim | None:
    """The present claim; None if there is none."""
    for info in sorted(bucket.list(prefix(tenant)), key=lambda info: (not info.key.endswith(f"/{OWNER}"), info.key)):
        try:
            return _read(bucket, info.key)
        except NotFoundError:
            continue
    return None


def remove_claims(bucket: RemoteObjects, tenant: str) -> None:
    """Remove every claim: if the other store no longer exists. Then call `acquire`."""
    for info in bucket.list(prefix(tenant)):
        _LOG.warning("removing the claim %s in %s", info.key, bucket.name)
        bucket.delete(info.key)


def _read(bucket: RemoteObjects, key: str) -> BucketClaim:
    try:
        return decode(bucket.get(key))
    except FormatError as error:
        raise FormatError(
            f"{key} in {bucket.name}: {error.message}", hint="if no other store uses the bucket, delete that object"
        ) from error


def _withdraw(bucket: RemoteObjects, key: str, store: str) -> None:
    try:
        if _read(bucket, key).store == store:
            bucket.delete(key)
    except NotFoundError:
        return
    except StorageError as error:
        _LOG.warning("a claim is left in %s: %s", bucket.name, error.message)


def _taken(bucket: RemoteObjects, tenant: str, claim: BucketClaim) -> RefusedError:
    return RefusedError(
        f"the objects of the tenant {tenant} in {bucket.name} belong to another store ({claim.store}): "
        "two catalogs over the same objects would delete each other's",
        hint="name another prefix in store.url, or another store.tenant; if that store is gone for good: "
        "holdfast store claim --take",
        code="claimed",
        data={"store": claim.store},
    )


# The claim of one store: made when it is first opened on a bucket, looked at before it deletes -----------------------


def ensure_claimed(
    catalog: Catalog, bucket: RemoteObjects, random: Callable[[int], bytes]
) -> store_identity.StoreIdentity | None:
    """Claim the tenant's objects in ``bucket``, unless the catalog records that: then nothing is sent.

    Raises `RefusedError` (code ``claimed``) if another store has them, or if there are unknown objects without a claim.
    None where the catalog cannot be written.
    """
    if catalog.database.read_only:
        return None
    identity = store_identity.read(catalog)
    if identity is not None and identity.claimed == bucket.name:
        return identity
    identity = identity or store_identity.make(catalog, random)
    holder = holder_of(bucket, catalog.name)
    if holder is None and catalog.newest_pack() is None:
        refuse_foreign_objects(bucket, catalog.name)
    return claim(catalog, bucket, identity, random)


def claim(
    catalog: Catalog, bucket: RemoteObjects, identity: store_identity.StoreIdentity, random: Callable[[int], bytes]
) -> store_identity.StoreIdentity:
    """Claim the objects, and note it."""
    conditional = bucket_probe.conditional_writes(bucket, catalog.name, random)
    acquire(bucket, catalog.name, BucketClaim(identity.id, catalog.clock.now()), conditional)
    identity = identity._replace(claimed=bucket.name, conditional=conditional)
    store_identity.change(catalog, identity)
    return identity


def refuse_foreign_objects(bucket: RemoteObjects, tenant: str) -> None:
    """Raise `RefusedError` if the tenant has objects in the bucket."""
    for kind in KINDS:
        found = next(iter(bucket.list(f"{kind}/{tenant}/")), None)
        if found is not None:
            raise RefusedError(
                f"{bucket.name} holds objects of the tenant {tenant} that this catalog knows nothing of ({found.key})",
                hint="name another prefix in store.url, or another store.tenant; or put their catalog back",
                code="claimed",
            )


def check_owned(catalog: Catalog, bucket: RemoteObjects) -> None:
    """Raise `RefusedError` (code ``claimed``) unless the objects are still this store's to delete."""
    identity = store_identity.read(catalog)
    if identity is not None and identity.claimed:
        check(bucket, catalog.name, identity.id)
