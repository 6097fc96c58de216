"""The format of an encrypted value in a row of the catalog, with the keys of objects.

Specified in docs/formats/catalog.md ("Encrypted values"). Pure except for the nonce: bytes in, bytes out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError, IntegrityError
from holdfast.store.objects._encryption_format import KEY_ID_BYTES, TAG_BYTES, cipher_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.store.objects._encryption_format import TenantKey

MAGIC: Final = b"HFROW"
PLAIN, _SEALED = b"\x00", b"\x01"
_NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(MAGIC) + 1 + KEY_ID_BYTES


def is_sealed(stored: bytes) -> bool:
    """Whether a stored value is encrypted."""
    return stored.startswith(MAGIC + _SEALED)


def seal(value: bytes, place: str, key: TenantKey, random: Callable[[int], bytes] = os.urandom) -> bytes:
    """``value`` as it is stored at ``place``, to which it is bound. Raises `UnsupportedError` without the library."""
    head = MAGIC + _SEALED + key.id
    nonce = random(_NONCE_BYTES)
    return head + nonce + cipher_of(key.rows).encrypt(nonce, value, _bound(head, place))


def unseal(stored: bytes, place: str, keys: Mapping[bytes, TenantKey]) -> bytes:
    """The argument of `seal`. Raises `IntegrityError` for a value of another place or a changed one, and with the code
    ``unknown_key`` for a key that is not in ``keys``.
    """
    head, rest = stored[:_HEAD_BYTES], stored[_HEAD_BYTES:]
    if len(rest) < _NONCE_BYTES + TAG_BYTES:
        raise FormatError(f"value: that of {place} is cut short")
    name = head[len(MAGIC) + 1 :]
    key = keys.get(name)
    if key is None:
        raise IntegrityError(
            f"the catalog's {place} is encrypted with the key {name.hex()}, which is not known here",
            hint="say where the key is: store.encryption_key, or store.old_keys for an older one",
            code="unknown_key",
        )
    return opened(cipher_of(key.rows), rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bound(head, place), place, "value")


def escape(value: bytes) -> bytes:
    """A value that is not encrypted, as it is stored."""
    return MAGIC + PLAIN + value if value.startswith(MAGIC) else value


def unescape(stored: bytes) -> bytes:
    """The argument of `escape`; raises `FormatError` for a value of a newer version."""
    if not stored.startswith(MAGIC):
        return stored
    if stored[len(MAGIC) : len(MAGIC) + 1] != PLAIN:
        raise FormatError("value: a newer Holdfast may have written it")
    return stored[len(MAGIC) + 1 :]


def _bound(head: bytes, place: str) -> bytes:
    return head + b"\0" + place.replace(" ", "\0", 2).encode()
