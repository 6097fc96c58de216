"""The format of an encrypted object: header, chunks, and their binding. Specified in
``docs/formats/encrypted-object.md``.

Pure: bytes in, bytes out. Each object has a key of its own, in its header, wrapped by the tenant's key and bound to the
object's name; each chunk is bound to its number and to whether it is the last. So every swap, move, omission or
truncation is detected, and a range needs only its own chunks.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from holdfast.model.errors import FormatError, IntegrityError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAGIC = b"HFCRYP"
VERSION = 1
CHUNK_BYTES = 1 << 16
"""Bytes of content in each chunk except the last, which has from 1 to as many; an empty object has no chunk."""
TAG_BYTES = 16
KEY_BYTES = 32
KEY_ID_BYTES = 16
_NONCE_BYTES = 12
_FRONT = struct.Struct("<6sHI16s")
HEADER_BYTES = _FRONT.size + _NONCE_BYTES + KEY_BYTES + TAG_BYTES
"""88."""
STORED_CHUNK = CHUNK_BYTES + TAG_BYTES
_NUMBER = struct.Struct("<Q3xB")
_WRAP, _ID = b"holdfast encrypted object 1 wrap", b"holdfast encrypted object 1 id"
_ROWS = b"holdfast encrypted row 1"


class TenantKey(NamedTuple):
    """A key of a tenant's, as it is used."""

    id: bytes
    """Identifies the key in headers, and reveals nothing about it."""
    wrapping: bytes
    rows: bytes
    """The key for values in the catalog: see `sealed_values`."""


def tenant_key(secret: bytes) -> TenantKey:
    """The key that 32 secret bytes are."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes")
    return TenantKey(
        _derived(secret, _ID, KEY_ID_BYTES), _derived(secret, _WRAP, KEY_BYTES), _derived(secret, _ROWS, KEY_BYTES)
    )


def _derived(secret: bytes, purpose: bytes, length: int) -> bytes:
    hashes, hkdf = _library_kdf()
    return hkdf(algorithm=hashes.SHA256(), length=length, salt=None, info=purpose).derive(secret)


def plain_size(stored: int) -> int:
    """Bytes of content in an object of ``stored`` bytes; 0 also for one that is too small to be one of ours."""
    body = stored - HEADER_BYTES
    return max(0, body - TAG_BYTES * chunks_in(stored))


def stored_size(plain: int) -> int:
    """Bytes of the object that holds ``plain`` bytes of content."""
    return HEADER_BYTES + plain + TAG_BYTES * max(1, -(-plain // CHUNK_BYTES))


def chunks_in(stored: int) -> int:
    """How many chunks an object of ``stored`` bytes has; at least one."""
    return max(1, -(-(stored - HEADER_BYTES) // STORED_CHUNK))


class Sealer:
    """Encrypts one object: `write` content, then `end`, and `header` when its name is known. ``random`` must be
    unpredictable, as `os.urandom` is.
    """

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._key = random(KEY_BYTES)
        self._cipher = cipher_of(self._key)
        self._rest = bytearray()
        self._number = 0

    def write(self, data: bytes | bytearray | memoryview) -> bytes:
        """The finished part of the object: complete chunks that are not the last."""
        self._rest += data
        if len(self._rest) <= CHUNK_BYTES:
            return b""
        whole = (len(self._rest) - 1) // CHUNK_BYTES
        with memoryview(self._rest) as view:
            sealed = b"".join(
                self._seal(bytes(view[at * CHUNK_BYTES : (at + 1) * CHUNK_BYTES]), last=False) for at in range(whole)
            )
        del self._rest[: whole * CHUNK_BYTES]
        return sealed

    def end(self) -> bytes:
        """The last chunk."""
        return self._seal(bytes(self._rest), last=True)

    def header(self, name: str, key: TenantKey) -> bytes:
        """The bytes before the first chunk of an object with the name ``name``."""
        front = _FRONT.pack(MAGIC, VERSION, CHUNK_BYTES, key.id)
        nonce = self._random(_NONCE_BYTES)
        return front + nonce + cipher_of(key.wrapping).encrypt(nonce, self._key, front + name.encode())

    def _seal(self, content: bytes, *, last: bool) -> bytes:
        sealed = self._cipher.encrypt(_NUMBER.pack(self._number, last), content, None)
        self._number += 1
        return sealed


class Opener:
    """Decrypts one object, chunk by chunk in any order."""

    __slots__ = ("_cipher", "_name")

    def __init__(self, header: bytes, name: str, keys: Mapping[bytes, TenantKey]) -> None:
        """Raises `FormatError` for an invalid header, `IntegrityError` for that of another object or an unknown key."""
        front, nonce, wrapped = (
            header[: _FRONT.size],
            header[_FRONT.size : _FRONT.size + _NONCE_BYTES],
            header[_FRONT.size + _NONCE_BYTES : HEADER_BYTES],
        )
        if header[: len(MAGIC)] != MAGIC:
            raise FormatError(f"magic: {name} is not encrypted, or was never written by Holdfast")
        if len(header) < HEADER_BYTES:
            raise FormatError(f"header: {name} has {len(header)} bytes of {HEADER_BYTES}")
        _, version, chunk, identity = _FRONT.unpack(front)
        if version != VERSION:
            raise FormatError(f"version: {version} of {name} is not {VERSION}: a newer Holdfast may have written it")
        if chunk != CHUNK_BYTES:
            raise FormatError(f"chunk: {chunk} bytes in {name} are not {CHUNK_BYTES}")
        key = keys.get(identity)
        if key is None:
            raise IntegrityError(
                f"the object {name} is encrypted with the key {identity.hex()}, which is not known here",
                hint="name that key in store.old_keys too",
                code="unknown_key",
            )
        self._name = name
        self._cipher = cipher_of(opened(cipher_of(key.wrapping), nonce, wrapped, front + name.encode(), name, "header"))

    def chunk(self, number: int, stored: bytes, *, last: bool) -> bytes:
        """The content of a chunk; raises `IntegrityError` unless it is complete, has this number, and is the last or
        not as ``last`` says.
        """
        nonce = _NUMBER.pack(number, last)
        return opened(self._cipher, nonce, stored, None, self._name, f"chunk {number}")


def opened(cipher: AESGCM, nonce: bytes, sealed: bytes, bound: bytes | None, name: str, what: str) -> bytes:
    """The sealed content; raises `IntegrityError` unless it is complete and has this name."""
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError, OverflowError):
        raise IntegrityError(
            f"{what}: the encrypted object {name} is damaged, cut short, or is another one's"
        ) from None


def decrypted(pieces: Iterable[bytes], name: str, keys: Mapping[bytes, TenantKey]) -> Iterator[bytes]:
    """The content of the object in ``pieces``, chunk by chunk; each chunk is authenticated.

    Completeness is known at the end only. Raises as `Opener`; memory is bounded by a chunk and a piece (I12).
    """
    buffer = bytearray()
    opener: Opener | None = None
    number = 0
    for piece in pieces:
        buffer += piece
        if opener is None:
            if len(buffer) < HEADER_BYTES:
                continue
            opener = Opener(bytes(buffer[:HEADER_BYTES]), name, keys)
            del buffer[:HEADER_BYTES]
        at = 0
        while len(buffer) - at > STORED_CHUNK:  # more data follows, so it is not the last chunk
            content = opener.chunk(number, bytes(buffer[at : at + STORED_CHUNK]), last=False)
            at += STORED_CHUNK
            number += 1
            yield content
        del buffer[:at]
    if opener is None:
        opener = Opener(bytes(buffer), name, keys)
    content = opener.chunk(number, bytes(buffer), last=True)
    if not content and number:
        raise FormatError(f"chunk {number}: the last one of {name} is empty")
    if content:
        yield content


def cipher_of(key: bytes) -> AESGCM:
    """AES-256-GCM; raises `UnsupportedError` without the library."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise _no_library() from error
    return AESGCM(key)


def _library_kdf() -> tuple[ModuleType, type[HKDF]]:
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise _no_library() from error
    return hashes, HKDF


def _no_library() -> UnsupportedError:
    from holdfast.model.extras import install_command

    return UnsupportedError(
        "encryption needs the library cryptography, which is not installed", hint=install_command("encryption")
    )
