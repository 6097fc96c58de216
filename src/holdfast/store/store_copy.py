"""Copies a whole store: its objects to another place, and its catalog to another one; verified, and resumable.

The source is only read. No collection can begin meanwhile; checkpoints go on, and are in the copy if they existed when
the catalog was copied. After a kill at any point, repeating the copy continues it: existing objects are not copied
again, and the catalog's rows come in one transaction. An incomplete copy cannot be opened.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING

from holdfast.model.errors import IntegrityError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.store._worker_threads import workers
from holdfast.store.catalog import row_copy
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.catalog_records import large_blob_key
from holdfast.store.collection.collector import LEASE
from holdfast.store.identity import store_identity
from holdfast.store.identity.object_store_binding import check_encryption
from holdfast.store.objects.object_keys import KINDS
from holdfast.store.objects.object_store import is_remote
from holdfast.store.verification.session_check import session_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from holdfast.model.content import Progress
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Transaction
    from holdfast.store.objects.object_store import ObjectStore
    from holdfast.store.store import Store
    from holdfast.store.verification.verifier import Verified

_AT_ONCE = 4
_FEW = 64
"""The most objects to copy while the catalog's state is held."""
_ROUNDS = 5


class CopyResult(NamedTuple):
    """The result of a copy."""

    objects: int
    """Objects of the store."""
    object_bytes: int
    copied_objects: int
    """Objects that were copied now; the others existed."""
    rows: dict[str, int]
    """Rows of the catalog by table; empty if only objects were copied."""
    verified: Verified


def required(transaction: Transaction, catalog: Catalog) -> dict[str, int]:
    """The size of every object that a catalog knows, by key."""
    tenant = (catalog.tenant,)
    found: dict[str, int] = dict(transaction.all("SELECT key, size FROM packs WHERE tenant = ?", tenant))
    alone = "SELECT hash, generation, length FROM blobs WHERE tenant = ? AND pack IS NULL"
    for name, generation, length in transaction.all(alone, tenant):
        found[large_blob_key(catalog.name, name, generation)] = length
    states = "SELECT hash, stored FROM session_checkpoints WHERE tenant = ? AND tier = 'warm'"
    for name, stored in transaction.all(states, tenant):
        found[session_key(catalog.name, name)] = stored
    return found


def origin_of(store: Store) -> str:
    """A copy's record of the store that it was made from; found without writing to that store."""
    identity = store_identity.read(store.catalog)
    if identity is not None:
        return identity.id
    known = store.catalog.workspaces()
    first = known[0] if known else None
    return hash_bytes(f"{store.tenant} {first.id if first else ''} {first.created_at if first else 0}".encode()).hex()


def begin(source: Store, target: Store, random: Callable[[int], bytes]) -> store_identity.StoreIdentity:
    """Note in the target whose copy it becomes; raises `RefusedError` if it is not empty, except for the same copy."""
    if source.tenant != target.tenant:
        raise RefusedError(f"a copy of the tenant {source.tenant} cannot be the tenant {target.tenant}")
    origin = origin_of(source)
    found = store_identity.read(target.catalog)
    with target.catalog.database.reading() as transaction:
        empty = row_copy.is_empty(transaction, target.catalog.tenant)
    if found is None or not found.origin:
        if not empty:
            raise RefusedError(
                "the target is in use: its catalog holds a store of its own",
                hint="copy into a home that does not exist yet",
                code="not_empty",
            )
        if target.bucket is None:
            _refuse_others(target.objects, target.tenant, {})
        target.note_copy()
        found = (found or store_identity.make(target.catalog, random))._replace(origin=origin, copied=False)
        store_identity.change(target.catalog, found)
    elif found.origin != origin:
        raise RefusedError(
            f"the target is the copy of another store ({found.origin})",
            hint="copy into a home that does not exist yet",
            code="not_empty",
        )
    return found


def copy_store(
    source: Store, target: Store, random: Callable[[int], bytes], progress: Progress | None = None
) -> CopyResult:
    """Copy all of ``source`` into ``target``, another store with a catalog of its own; every byte is read back there.

    Raises `RefusedError` (code ``not_empty``) if the target is neither new nor the same copy, `LockedError` while a
    collection or a verification runs in the source, `IntegrityError` if the copy differs from the
    saved content, and as `check_encryption` if an earlier attempt at the copy has another key.
    """
    identity = begin(source, target, random)
    if identity.copied:
        return _prove_again(source, target, progress)
    there = next(_listed(target.objects, target.tenant), None)
    if there is not None:
        check_encryption(target.objects, there[0])  # else it would be taken for copied, and the copy never be whole
    lease = _lease(source)
    try:
        done = 0
        for _ in range(_ROUNDS):
            with source.catalog.database.reading() as transaction:
                wanted = required(transaction, source.catalog)
            missing = _missing(target, wanted)
            if not missing:
                break
            done += _copy_objects(source.objects, target.objects, missing, lease.renew, progress)
            if len(missing) <= _FEW:
                break
        with source.catalog.database.reading() as held:
            wanted = required(held, source.catalog)
            done += _copy_objects(source.objects, target.objects, _missing(target, wanted), _nothing, progress)
            with target.catalog.database.writing() as transaction:
                now = store_identity.find(transaction, target.catalog.tenant)
                if now is None or now.copied or now.origin != identity.origin:
                    # Checkpoints that were saved there since would be deleted.
                    raise RefusedError(
                        "another process has finished this copy meanwhile",
                        hint="the same command once more verifies it, if it is not in use yet",
                        code="not_empty",
                    )
                row_copy.clear(transaction, target.catalog.tenant)
                home_ids = (source.catalog.home_id, target.catalog.home_id)
                rows = row_copy.copy(
                    *(held, source.catalog.tenant, transaction, target.catalog.tenant, home_ids),
                    row_copy.Ciphers.of(source.catalog, target.catalog),
                )
                there = row_copy.count(transaction, target.catalog.tenant)
            counted = row_copy.count(held, source.catalog.tenant)
        if not rows == there == counted:
            raise IntegrityError("the copied catalog has not as many rows as the one that was copied")
    finally:
        lease.release()
    with target.catalog.database.reading() as transaction:
        pins = transaction.all("SELECT number FROM pins WHERE tenant = ?", (target.catalog.tenant,))
    for (number,) in pins:
        target.catalog.unpin(number)
    verified = _prove(target, progress)
    store_identity.change(target.catalog, identity._replace(copied=True))
    return CopyResult(len(wanted), sum(wanted.values()), done, rows, verified)


def copy_objects(source: Store, target: Store, progress: Progress | None = None) -> CopyResult:
    """Copy the objects of ``source`` to those of ``target``, which has the same catalog; every byte is read back.

    Raises `RefusedError` (code ``not_empty``) if there is anything of the tenant that is not of this store.
    """
    with source.catalog.database.reading() as transaction:
        wanted = required(transaction, source.catalog)
    _refuse_others(target.objects, source.tenant, wanted)
    done = 0
    verified: Verified | None = None
    for _ in range(_ROUNDS):
        lease = _lease(source)
        try:
            with source.catalog.database.reading() as transaction:
                wanted = required(transaction, source.catalog)
            missing = _missing(target, wanted)
            done += _copy_objects(source.objects, target.objects, missing, lease.renew, progress)
        finally:
            lease.release()
        verified = target.verifier().verify(read_data=True, progress=progress)
        with source.catalog.database.reading() as transaction:
            wanted = required(transaction, source.catalog)
        if verified.ok or not _missing(target, wanted):  # otherwise a checkpoint was saved meanwhile
            break
    assert verified is not None
    return CopyResult(len(wanted), sum(wanted.values()), done, {}, _sound(verified))


def _lease(source: Store) -> Lease:
    lease = Lease(source.catalog.database, source.catalog.tenant, LEASE, source.catalog.clock)
    lease.acquire()
    return lease


def _prove(target: Store, progress: Progress | None) -> Verified:
    return _sound(target.verifier().verify(read_data=True, progress=progress))


def _sound(verified: Verified) -> Verified:
    if verified.ok:
        return verified
    first = verified.problems[0]
    raise IntegrityError(
        f"the copy is not sound: {len(verified.problems)} problems, the first: {first.object}: {first.message}",
        hint="`holdfast verify --read-data` tells whether the source is; the copy cannot be used",
        data={"problems": [list(problem) for problem in verified.problems[:100]]},
    )


def _prove_again(source: Store, target: Store, progress: Progress | None) -> CopyResult:
    """The copy was complete before. It is the same copy if nothing has changed on either side."""
    with (
        source.catalog.database.reading() as ours,
        target.catalog.database.reading() as theirs,
    ):
        names = "SELECT id FROM checkpoints WHERE tenant = ? ORDER BY number"
        same = ours.all(names, (source.catalog.tenant,)) == theirs.all(names, (target.catalog.tenant,))
        events = "SELECT count(*) FROM history WHERE tenant = ?"
        same = same and ours.one(events, (source.catalog.tenant,)) == theirs.one(events, (target.catalog.tenant,))
        wanted = required(theirs, target.catalog)
        rows = row_copy.count(theirs, target.catalog.tenant)
    if not same:
        raise RefusedError(
            "the target is a copy of this store already, and one of the two has gone on since",
            hint="copy into a home that does not exist yet",
            code="not_empty",
        )
    return CopyResult(len(wanted), sum(wanted.values()), 0, rows, _prove(target, progress))


def _listed(objects: ObjectStore, tenant: str) -> Iterator[tuple[str, int]]:
    for kind in KINDS:
        for info in objects.list(f"{kind}/{tenant}/"):
            yield info.key, info.size


def _missing(target: Store, wanted: dict[str, int]) -> dict[str, int]:
    there = dict(_listed(target.objects, target.tenant))
    return {key: size for key, size in wanted.items() if there.get(key) != size}


def _refuse_others(objects: ObjectStore, tenant: str, wanted: dict[str, int]) -> None:
    for key, _ in _listed(objects, tenant):
        if key not in wanted:
            raise RefusedError(
                f"the target is not empty: it holds {key}, which is not of this store",
                hint="name an empty directory, or another prefix of the bucket",
                code="not_empty",
            )


def _copy_objects(
    source: ObjectStore,
    target: ObjectStore,
    missing: dict[str, int],
    renew: Callable[[], None],
    progress: Progress | None,
) -> int:
    """Copy objects, several at once where requests take long; memory is bounded."""

    def one(key: str) -> None:
        target.put(key, source.stream(key))

    if not missing:
        return 0
    threads = workers(_AT_ONCE if is_remote(source) or is_remote(target) else 1, "holdfast-copy")
    under_way: set[Future[None]] = set()
    done = 0
    try:
        for key in missing:
            under_way.add(threads.submit(one, key))
            while len(under_way) >= 2 * _AT_ONCE:
                finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                    done += 1
                renew()
                if progress is not None:
                    progress("copy", done, len(missing))
        for future in under_way:
            future.result()
            done += 1
            renew()
    finally:
        threads.shutdown(cancel_futures=True)
    if progress is not None:
        progress("copy", done, len(missing))
    return done


def _nothing() -> None:
    """Inside a transaction the lease cannot be renewed; the copying there is short."""
