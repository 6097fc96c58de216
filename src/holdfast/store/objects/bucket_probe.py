"""Finds out the abilities of a bucket by trying them: write, read, ranges, listing, deleting, and conditional writes.

Its objects are below ``probe/{tenant}/``, and are deleted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.store.objects.object_store import ObjectInfo
    from holdfast.store.objects.remote_store import RemoteObjects

Conditional = Literal["yes", "no", "wrong"]
"""The server refuses to write over an object if asked to; it does not; it says one thing and does another."""

_LEFT_OVER = 3600 * 1_000_000
"""Microseconds after which an object was left by a killed process. Younger ones may be in use."""
_DATA = b"holdfast probe\n" + bytes(range(64))


class ProbeStep(NamedTuple):
    """One thing that was tried."""

    name: str
    ok: bool
    message: str
    """The finding; for a failure the reason."""


class ProbeResult(NamedTuple):
    """The abilities of a bucket."""

    steps: tuple[ProbeStep, ...]
    conditional: Conditional

    @property
    def ok(self) -> bool:
        """True if objects can be kept there. Conditional writes are not needed for that."""
        return all(step.ok for step in self.steps)


def conditional_writes(bucket: RemoteObjects, tenant: str, random: Callable[[int], bytes]) -> Conditional:
    """The server's handling of a write that should happen only if the key has no object. Raises `StorageError` if it
    cannot be reached.
    """
    key = f"probe/{tenant}/{random(16).hex()}"
    bucket.put(key, [_DATA])  # so that a missing permission, or server, gets its own error
    bucket.delete(key)
    try:
        try:
            made = bucket.create(key, _DATA)
        except StorageError:
            return "no"  # it does not support the condition
        if not made:
            return "wrong"
        try:
            again = bucket.create(key, _DATA[::-1])
        except StorageError:
            again = False
        kept = bucket.get(key) == _DATA
        if not again and kept:
            return "yes"
        return "no" if again and not kept else "wrong"
    except NotFoundError:
        return "wrong"  # the object that was just written is missing
    finally:
        bucket.delete(key)


def probe(bucket: RemoteObjects, tenant: str, random: Callable[[int], bytes]) -> ProbeResult:
    """Try everything; raises nothing for failures. After a failed step, no further one is tried. Objects of concurrent
    trials are not touched.
    """
    key = f"probe/{tenant}/{random(16).hex()}"
    steps: list[ProbeStep] = []
    found: list[Conditional] = []
    listed: list[ObjectInfo] = []
    try:
        for name, attempt in _attempts(bucket, tenant, key, random, found, listed):
            try:
                steps.append(ProbeStep(name, True, attempt()))
            except HoldfastError as error:
                advice = f" ({error.hint})" if error.hint else ""
                steps.append(ProbeStep(name, False, error.message + advice))
                break
    finally:
        try:
            bucket.delete(key)
            for own in listed:  # by the server's clock
                for info in bucket.list(f"probe/{tenant}/"):
                    if info.modified_at < own.modified_at - _LEFT_OVER:
                        bucket.delete(info.key)
        except HoldfastError:
            pass  # it was reported
    return ProbeResult(tuple(steps), found[0] if found else "no")


def _attempts(
    bucket: RemoteObjects,
    tenant: str,
    key: str,
    random: Callable[[int], bytes],
    found: list[Conditional],
    listed: list[ObjectInfo],
) -> Iterator[tuple[str, Callable[[], str]]]:
    def write() -> str:
        bucket.put(key, [_DATA])
        return f"{len(_DATA)} bytes"

    def read() -> str:
        if bucket.get(key) != _DATA or b"".join(bucket.stream(key)) != _DATA:
            raise IntegrityError("the data read differs from the data written")
        return "the data written"

    def ranges() -> str:
        if bucket.get(key, 3, 5) != _DATA[3:8] or bucket.size(key) != len(_DATA):
            raise IntegrityError("the service gives another range, or another size, than was asked for")
        return "the bytes that were asked for"

    def listing() -> str:
        there = list(bucket.list(key))
        if [info.key for info in there] != [key]:
            raise IntegrityError("a new object is not listed: listings of this service lag behind")
        listed.extend(there)
        return "a new object is listed at once"

    def conditional() -> str:
        found.append(conditional_writes(bucket, tenant, random))
        return {
            "yes": "the server has them, and they are used for the claim of the bucket",
            "no": "the server has none: the claim of the bucket goes by listing, which is as safe, and slower",
            "wrong": "the server's answers to them are wrong, so they are not used; the claim goes by listing",
        }[found[0]]

    def delete() -> str:
        bucket.delete(key)
        if bucket.size(key) is not None:
            raise IntegrityError("a deleted object is still there")
        return "a deleted object is gone"

    yield "write", write
    yield "read", read
    yield "ranges", ranges
    yield "list", listing
    yield "conditional writes", conditional
    yield "delete", delete
