"""The object store of a home's catalog: recorded beside it, so that another ``store.url`` is noticed at once.

Otherwise every object would seem lost. The note is specified in ``docs/formats/catalog.md``.
"""

from __future__ import annotations

import os

from holdfast.model.errors import ConfigError, FormatError, LockedError, NotFoundError, RefusedError, StorageError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.store_location import local_directory
from holdfast.store.objects.configured_store import key_id

if TYPE_CHECKING:
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.objects.object_store import ObjectStore

_LOG = Log(__name__)
NAME = b"objects.url"
_MAX_BYTES = 1 << 14
_COPYING = b"copying:"
ENCRYPTED = b"\nencrypted"
MAGIC = b"HFCRYP"
"""Of `_encryption_format`, which is not loaded for this."""


def check(home: bytes, url: str, objects: ObjectStore, catalog: Catalog) -> None:
    """Raise `ConfigError` if the objects of ``catalog`` are not in the store at ``url`` (empty: the one in the home),
    and as `check_encryption`.

    They are checked only if another URL is recorded, or none: then the newest pack must exist, and the note is updated.
    So objects may be moved, and the URL with them.
    """
    path = os.path.join(home, NAME)
    here = _normal(url) + _encryption(objects)
    noted = _read(path)
    if noted == here:
        catalog.accepts_plain = False
        return
    if noted == _COPYING:
        from holdfast.store.identity import store_identity

        identity = store_identity.read(catalog)
        if identity is None or not identity.copied:
            raise half_copied(f"{display(home)} is", "or delete the directory")
        noted = None
    newest = catalog.newest_pack()
    if newest is not None and objects.size(newest) is None and noted is not None:
        raise ConfigError(
            f"the objects of {display(home)} are in {_name(noted, home)}, and not in {_name(here, home)}",
            hint="set store.url back, or move the objects first; another store of your own needs a home of its own",
        )
    if newest is not None:
        check_encryption(objects, newest)
    if _encrypt_values(home, catalog):
        _write(path, here)


def check_key(home: bytes, objects: ObjectStore, catalog: Catalog) -> None:
    """Raise as `check_encryption`; for a shared catalog, which itself records the place of its objects.

    The result is recorded in the home, so that the check runs once: other homes could not read objects with another
    key, and this one could not read theirs.
    """
    here = _encryption(objects)
    path = os.path.join(home, NAME)
    if not here or _read(path) == here:
        catalog.accepts_plain = False
        return
    newest = catalog.newest_pack()
    if newest is not None:
        check_encryption(objects, newest)
        if _encrypt_values(home, catalog):
            _write(path, here)


def _encrypt_values(home: bytes, catalog: Catalog) -> bool:
    """Encrypt what the catalog holds of content, if there is a key; False if that has to be tried again."""
    if catalog.keys is None:
        return True
    if catalog.database.read_only:
        return False
    from holdfast.store import catalog_spare
    from holdfast.store.catalog.value_encryption import encrypt_stored

    try:
        encrypt_stored(catalog)
        catalog_spare.replace_all(home, catalog.clock.now())
    except (LockedError, StorageError) as error:
        _LOG.warning("not all that the catalog holds is encrypted yet; the next start tries again: %s", error.message)
        return False
    catalog.accepts_plain = False
    return True


def _encryption(objects: ObjectStore) -> bytes:
    key = key_id(objects)
    return ENCRYPTED + b" " + key.encode() + b" rows texts" if key else b""


def check_encryption(objects: ObjectStore, newest: str) -> None:
    """Raise `ConfigError` if unencrypted objects are read as encrypted, or the other way round, and `IntegrityError`
    (code ``unknown_key``) for an unknown key.
    """
    if key_id(objects):
        try:
            objects.get(newest, 0, 1)
        except FormatError as error:
            raise ConfigError(
                f"store.encryption_key is set, but the objects are not encrypted: {error.message}",
                hint="unset it; `holdfast store copy --to-key PLACE` makes a copy that is encrypted",
            ) from None
        except NotFoundError:
            return
    else:
        try:
            begins = objects.get(newest, 0, len(MAGIC))
        except NotFoundError:
            return
        if begins == MAGIC:
            raise ConfigError(
                "the objects are encrypted, and store.encryption_key is not set",
                hint="say where the key is: env:NAME, file:PATH or command:WORDS",
            )


def half_copied(what: str, otherwise: str) -> RefusedError:
    """The error for an incomplete copy."""
    return RefusedError(
        f"{what} the copy of a store, and not whole yet",
        hint=f"the same `holdfast store copy` once more finishes it; {otherwise}",
        code="half_copied",
    )


def note_copy(home: bytes) -> None:
    """Note that a copy is being made in the home, which is not to be opened before that is whole. Raises
    `StorageError`.
    """
    path = os.path.join(home, NAME)
    if not _write(path, _COPYING):
        raise StorageError(f"cannot write {display(path)}", hint="a copy that is not whole would be taken for a store")


def _normal(url: str) -> bytes:
    raw = os.fsencode(url)
    path = local_directory(raw)
    return os.path.normpath(path) if path else raw


def _name(url: bytes, home: bytes) -> str:
    url = url.partition(ENCRYPTED)[0]
    return display(url or os.path.join(home, b"objects"))


def _read(path: bytes) -> bytes | None:
    """The URL that is noted, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(fd, _MAX_BYTES).removesuffix(b"\n")
    except OSError:
        return None
    finally:
        os.close(fd)


def _write(path: bytes, url: bytes) -> bool:
    """Note the URL; whether that could be done. Where not, the objects are looked for again the next time."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(url + b"\n")
    except OSError:
        return False
    return True
