"""Which keys and prefixes an object store accepts."""

from __future__ import annotations

from holdfast.model.errors import UsageError

MAX_KEY_BYTES = 512

TEMPORARY = "tmp"
"""No key begins with this part: a local store has its unfinished files there."""

KINDS = ("packs", "checkpoints", "blobs", "sessions")
"""The first part of the keys of a store's content; the tenant is the second."""

_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_MAX_PART = 255


def is_key(key: str) -> bool:
    """True if ``key`` may name an object; see `check_key`."""
    parts = key.split("/")
    return len(key) <= MAX_KEY_BYTES and parts[0] != TEMPORARY and all(map(_is_part, parts))


def check_key(key: str) -> str:
    """Return ``key`` if it may name an object; raise `UsageError` otherwise (I7: no key leads out of the store).

    A key has at most 512 characters: parts of ``[A-Za-z0-9._-]`` (1 to 255, the first no dot) joined by ``/``; the
    first part is not ``tmp``.
    """
    if not is_key(key):
        raise UsageError(f"refused object key {key[:80]!r}: it is not made of parts of [A-Za-z0-9._-] joined by '/'")
    return key


def check_prefix(prefix: str) -> tuple[str, str]:
    """Split ``prefix`` into a directory (empty, or ending in ``/``) and the beginning of the part that follows it.

    Raises `UsageError` if no key can begin with it.
    """
    directory, slash, rest = prefix.rpartition("/")
    if len(prefix) > MAX_KEY_BYTES or (slash and not is_key(directory)) or (rest and not _is_part(rest)):
        raise UsageError(f"refused object prefix {prefix[:80]!r}: no key begins with it")
    return directory + slash, rest


def _is_part(part: str) -> bool:
    return 0 < len(part) <= _MAX_PART and part[0] != "." and _CHARACTERS.issuperset(part)
