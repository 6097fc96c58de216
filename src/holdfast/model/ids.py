"""Identifiers, and the one hash that names content."""

from __future__ import annotations

from blake3 import blake3

from holdfast.model.fast_typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Callable

Hash = NewType("Hash", bytes)
"""BLAKE3 truncated to 128 bits over raw content: 16 bytes, written ``blake3:`` and 32 hex digits."""

CheckpointId = NewType("CheckpointId", str)
"""24 lower-case hex digits, random; any unique prefix names the checkpoint."""

WorkspaceId = NewType("WorkspaceId", str)
"""16 lower-case hex digits, random."""

PackId = NewType("PackId", str)
"""32 lower-case hex digits, random and never reused, so that a deleted pack's name cannot mean another one."""

HASH_BYTES = 16
_PREFIX = "blake3:"


def hash_bytes(data: bytes | bytearray | memoryview) -> Hash:
    """The hash of ``data``."""
    return Hash(blake3(data).digest(HASH_BYTES))


class Hasher:
    """Hashes content that arrives in pieces; equal content gives the hash that `hash_bytes` gives."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = blake3()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add ``data`` to the hash."""
        self._state.update(data)

    def hash(self) -> Hash:
        """The hash of all that was added so far."""
        return Hash(self._state.digest(HASH_BYTES))


def format_hash(value: Hash) -> str:
    """``blake3:`` and 32 hex digits."""
    return _PREFIX + value.hex()


def new_checkpoint_id(random: Callable[[int], bytes]) -> CheckpointId:
    """A fresh checkpoint id from ``random``."""
    return CheckpointId(random(12).hex())


def new_workspace_id(random: Callable[[int], bytes]) -> WorkspaceId:
    """A fresh workspace id from ``random``."""
    return WorkspaceId(random(8).hex())


def new_pack_id(random: Callable[[int], bytes]) -> PackId:
    """A fresh pack id from ``random``."""
    return PackId(random(16).hex())
