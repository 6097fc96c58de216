"""The store as a whole: its facts and reachability, the claim of a bucket, and complete copies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.config.settings import default
from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.model.store_location import local_directory, without_secrets
from holdfast.store.identity import store_identity
from holdfast.store.objects.configured_store import assemble, key_id
from holdfast.store.store import OBJECTS, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.opener import Opener
    from holdfast.model.config.settings import Settings
    from holdfast.model.content import Progress
    from holdfast.store.objects.bucket_probe import ProbeResult, ProbeStep
    from holdfast.store.store_copy import CopyResult


class StoreInfo(NamedTuple):
    """The facts of a home's store."""

    home: str
    location: str
    """Where its objects are: a directory, or a bucket's URL."""
    remote: bool
    tenant: str
    id: str
    """The id in its claim of a bucket; empty if it never had a bucket or a copy."""
    claimed: str
    """The bucket that is claimed; empty for none."""
    conditional_writes: str
    """yes, no or wrong, from a test when the bucket was claimed; empty: not tested."""
    encryption_key: str
    """The id of the key that objects are encrypted with; empty: they are not."""
    cache_bytes: int
    """How much of remote objects is kept here at most."""
    copy_of: str
    """The id of the store that this is a copy of; empty for none."""


class StoreProbe(NamedTuple):
    """The results of trying the objects' place."""

    location: str
    ok: bool
    conditional_writes: str
    steps: Sequence[ProbeStep]


class StoreCopy(NamedTuple):
    """The result of copying a store."""

    home: str | None
    """The home that was made; None if only objects were copied."""
    location: str
    copied: CopyResult


def info(opener: Opener) -> StoreInfo:
    """The facts of the home's store. Sends nothing anywhere."""
    with _opened(opener) as store:
        settings = opener.settings(None).store
        identity = store_identity.read(store.catalog) or store_identity.StoreIdentity("")
        return StoreInfo(
            home=display(opener.home),
            location=_location(opener.home, settings.url),
            remote=store.bucket is not None,
            tenant=store.tenant,
            id=identity.id,
            claimed=identity.claimed,
            conditional_writes=identity.conditional,
            encryption_key=key_id(store.objects),
            cache_bytes=settings.cache_bytes if store.bucket is not None else 0,
            copy_of=identity.origin,
        )


def try_objects(opener: Opener) -> None:
    """Write, read and delete an object where they are kept, and check that the newest one in the catalog exists. Raises
    `StorageError` and its subclasses for failures there, `IntegrityError` for wrong content or a missing object.
    """
    settings = opener.settings(None).store
    objects = assemble(settings.url or opener.home + b"/" + OBJECTS, settings, None).objects
    key = f"probe/{settings.tenant}/{os.urandom(16).hex()}"
    objects.put(key, [b"holdfast probe"])
    try:
        if objects.get(key, 9) != b"probe":
            raise IntegrityError("the data read back differs from the data written")
    finally:
        objects.delete(key)
    catalog = opener.store().catalog
    newest = catalog.newest_pack()
    # Compared again, since a collection may have just removed it.
    if newest is not None and objects.size(newest) is None and catalog.newest_pack() == newest:
        raise IntegrityError(f"the newest object of the store is missing: {newest}")


def probe(opener: Opener) -> StoreProbe:
    """Try the objects' place: write, read, list and delete something there.

    Failures there are results, not errors; raises `NotFoundError` if there is no home, and `ConfigError`.
    """
    from holdfast.store.objects.bucket_probe import ProbeStep
    from holdfast.store.objects.bucket_probe import probe as probe_bucket

    _refuse_nowhere(opener)
    settings = opener.settings(None).store
    location = settings.url or opener.home + b"/" + OBJECTS
    assembled = assemble(location, settings, None)
    if assembled.bucket is not None:
        found: ProbeResult = probe_bucket(assembled.bucket, settings.tenant, os.urandom)
        return StoreProbe(_location(opener.home, settings.url), found.ok, found.conditional, found.steps)
    try:
        try_objects(opener)
        step = ProbeStep("write, read, delete", True, "works")
    except HoldfastError as error:
        step = ProbeStep("write, read, delete", False, error.message)
    return StoreProbe(_location(opener.home, settings.url), step.ok, "", (step,))


def claim(opener: Opener, *, take: bool = False) -> StoreInfo:
    """Claim the bucket for the home's store; ``take``: even from another store, which must be gone permanently.

    Raises `RefusedError` (code ``claimed``) if another store has it, and `UsageError` if the objects are in no bucket.
    """
    from holdfast.store.identity import bucket_claim

    with _opened(opener) as store:
        if store.bucket is None:
            raise UsageError("the objects of this home are in a directory, which needs no claim")
        identity = store_identity.make(store.catalog, os.urandom)
        if take:
            bucket_claim.remove_claims(store.bucket, store.tenant)
        elif bucket_claim.holder_of(store.bucket, store.tenant) is None and store.catalog.newest_pack() is None:
            bucket_claim.refuse_foreign_objects(store.bucket, store.tenant)
        bucket_claim.claim(store.catalog, store.bucket, identity, os.urandom)
    return info(opener)


def copy(
    opener: Opener,
    *,
    to_home: bytes | None = None,
    to_objects: str | None = None,
    to_catalog: str | None = None,
    to_key: str | None = None,
    progress: Progress | None = None,
) -> StoreCopy:
    """Copy the store of the home: into another home, which is made, or (without ``to_home``) its objects alone.

    The other home uses its own settings; ``to_objects`` is its ``store.url``, ``to_catalog`` its ``store.catalog``,
    ``to_key`` its ``store.encryption_key`` (empty: none). If it has no configuration, one is written. Every byte of the
    copy is verified; the source is only read. Repeating the call finishes an interrupted copy. Raises as
    `store_copy.copy_store` and `store_copy.copy_objects`.
    """
    given = {"store.url": to_objects, "store.catalog": to_catalog, "store.encryption_key": to_key}
    flags = {name: value for name, value in given.items() if value is not None}
    if to_home is None:
        if to_objects is None:
            raise UsageError("a copy needs a place: --to-home DIR, or --to-objects URL")
        if to_catalog is not None:
            raise UsageError("a catalog is copied into a home of its own: --to-home DIR as well")
        return _copy_objects(opener, flags, progress)
    return _copy_home(opener, os.path.abspath(to_home), flags, progress)


def _copy_objects(opener: Opener, flags: dict[str, str], progress: Progress | None) -> StoreCopy:
    from holdfast.store.identity import bucket_claim
    from holdfast.store.objects import bucket_probe
    from holdfast.store.store_copy import copy_objects

    settings = _with(opener, opener.home, flags).store
    with _opened(opener, claim=True) as source:
        assembled = assemble(settings.url, settings, opener.home)
        directory = local_directory(settings.url)
        if directory is not None and os.path.realpath(directory).startswith(os.path.realpath(opener.home) + b"/"):
            raise RefusedError(f"{display(directory)} lies in the home", hint="name a directory outside of it")
        if assembled.bucket is not None:
            identity = store_identity.make(source.catalog, os.urandom)
            if bucket_claim.holder_of(assembled.bucket, source.tenant) is None:
                bucket_claim.refuse_foreign_objects(assembled.bucket, source.tenant)
            conditional = bucket_probe.conditional_writes(assembled.bucket, source.tenant, os.urandom)
            held = bucket_claim.BucketClaim(identity.id, source.catalog.clock.now())
            bucket_claim.acquire(assembled.bucket, source.tenant, held, conditional)
        target = Store(assembled.objects, source.catalog, bucket=assembled.bucket)
        done = copy_objects(source, target, progress)
    return StoreCopy(None, _location(opener.home, settings.url), done)


def _copy_home(opener: Opener, home: bytes, flags: dict[str, str], progress: Progress | None) -> StoreCopy:
    from holdfast.engine.opening.home import make_private
    from holdfast.store.identity.bucket_claim import ensure_claimed
    from holdfast.store.store_copy import begin, copy_store

    if os.path.realpath(home) == os.path.realpath(opener.home):
        raise RefusedError("the target is the home itself", hint="name a directory that does not exist yet")
    with _opened(opener, claim=True) as source:
        settings = _with(opener, home, flags)
        if settings.store.tenant == default("store.tenant") != source.tenant:
            flags = {**flags, "store.tenant": source.tenant}
            settings = _with(opener, home, flags)
        make_private(home)
        with Store.open(home, settings, clock=source.catalog.clock, becoming=True) as target:
            begin(source, target, os.urandom)
            _write_settings(home, flags)  # it is not opened before it is whole, and then has to be found
            if target.bucket is not None:
                ensure_claimed(target.catalog, target.bucket, os.urandom)
            done = copy_store(source, target, os.urandom, progress)
    return StoreCopy(display(home), _location(home, settings.store.url), done)


def _with(opener: Opener, home: bytes, flags: dict[str, str]) -> Settings:
    from holdfast.engine.opening.opener import load_settings

    if home == opener.home:
        return load_settings(flags={**opener.flags, **flags}, environ=opener.environ, root=None, home=home)
    # The environment's settings of the store are for the copied home.
    environ = {name: value for name, value in opener.environ.items() if not name.startswith("HOLDFAST_STORE_")}
    return load_settings(flags=flags, environ=environ, root=None, home=home)


def _write_settings(home: bytes, flags: dict[str, str]) -> None:
    """Give a home without a configuration the settings that it was copied with."""
    import json

    from holdfast.engine.opening.opener import HOME_FILE

    # A URL with a password belongs to its owner alone; the catalog's is written without.
    given = {name: without_secrets(value) if name == "store.catalog" else value for name, value in flags.items()}
    kept = {
        name: value
        for name, value in given.items()
        if name == "store.catalog" or "@" not in value.partition("://")[2].partition("/")[0]
    }
    lines = ["[store]", *(f"{name.partition('.')[2]} = {json.dumps(value)}" for name, value in kept.items())]
    try:
        fd = os.open(os.path.join(home, HOME_FILE), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    with open(fd, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _opened(opener: Opener, *, claim: bool = False) -> Store:
    _refuse_nowhere(opener)
    return opener.open_store(claim=claim)


def _refuse_nowhere(opener: Opener) -> None:
    if not os.path.isdir(opener.home):
        raise NotFoundError(
            f"{display(opener.home)} holds no data",
            hint="`holdfast init` makes a directory a workspace; HOLDFAST_HOME and --home name another home",
            code="no_home",
        )


def _location(home: bytes, url: str) -> str:
    if not url:
        return display(home + b"/" + OBJECTS)
    path = local_directory(url)
    return url if path is None else display(path)
