"""Answers about the store and the home: what is removed, what is kept, what is wrong."""

from __future__ import annotations

from holdfast.model.answers.workspace import Checkpoint
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import ContentHash, Path, SystemPath, Time


class ForgottenCheckpoint(Checkpoint):
    """A checkpoint that was removed, with those that remain and whose changes include its own from then on."""

    composed_into: list[str]


class KeptCheckpoint(TypedDict):
    """A checkpoint that stays, and why."""

    id: str
    label: str
    labels: list[str]
    reasons: list[str]


class Forgotten(TypedDict):
    """What was removed, or would be, and why the rest stays."""

    removed: list[ForgottenCheckpoint]
    kept: list[KeptCheckpoint]
    dry_run: bool


class CountDrift(TypedDict):
    """A count that was wrong."""

    object: Annotated[ContentHash, "hash"]
    count: Annotated[str, "counted"]
    was: int
    now: int


_CORRECTIONS = 100


def number_corrected(collected: Any) -> int:
    """How many counts were wrong."""
    return len(collected.corrected)


def first_corrected(collected: Any) -> Any:
    """The first of them: all can be as many as there are blobs."""
    return collected.corrected[:_CORRECTIONS]


class Collected(TypedDict):
    """What a collection freed, or would free."""

    blobs_deleted: int
    bytes_freed: int
    packs_deleted: int
    packs_rewritten: int
    counts_corrected: Annotated[int, number_corrected]
    corrections: Annotated[list[CountDrift], first_corrected]
    dry_run: bool


class Problem(TypedDict):
    """One thing that is wrong."""

    kind: str
    object: str
    message: str


class Verified(TypedDict):
    """What was looked at, and what is wrong with it."""

    ok: bool
    checkpoints: int
    blobs: int
    problems: list[Problem]


def remedy(finding: Any) -> str | None:
    """What would change what was found."""
    return finding.help or None


class Finding(TypedDict):
    """One thing that was looked at."""

    area: str
    verdict: str
    message: str
    help: Annotated[str | None, remedy]


class RepairedCatalog(TypedDict):
    """How a catalog was brought back."""

    damage: str
    spare: Time | None
    checkpoints: int
    brought_back: int
    lost: int
    kept_as: Path | None
    problems: int


class Diagnosis(TypedDict):
    """What was found, and whether nothing of it is wrong."""

    ok: bool
    findings: list[Finding]
    repaired: RepairedCatalog | None


def first(pair: Any) -> Any:
    """Of a path and its bytes, the path."""
    return pair[0]


def second(pair: Any) -> Any:
    """And the bytes."""
    return pair[1]


class LargePath(TypedDict):
    """A path with much content below it."""

    path: Annotated[Path, first]
    bytes: Annotated[int, second]


class Stats(TypedDict):
    """What takes the space."""

    workspaces: int
    checkpoints: int
    blobs: int
    pages: int
    packs: int
    content_bytes: int
    stored_bytes: int
    dead_bytes: int
    catalog_bytes: int
    largest: list[LargePath]


class Bundle(TypedDict):
    """A bundle that was written, or taken in."""

    file: SystemPath
    checkpoints: list[str]


class StoreInfo(TypedDict):
    """What a home's store is."""

    home: str
    location: str
    remote: bool
    tenant: str
    id: str
    claimed: str
    conditional_writes: str
    encryption_key: str
    cache_bytes: int
    copy_of: str


class ProbeStep(TypedDict):
    """One thing that was tried."""

    name: str
    ok: bool
    message: str


class StoreProbe(TypedDict):
    """What was found by trying the place where objects are."""

    location: str
    ok: bool
    conditional_writes: str
    steps: list[ProbeStep]


class StoreCopy(TypedDict):
    """What a copy of a store did."""

    home: str | None
    location: str
    objects: Annotated[int, "copied.objects"]
    object_bytes: Annotated[int, "copied.object_bytes"]
    copied_objects: Annotated[int, "copied.copied_objects"]
    rows: Annotated[dict[str, int], "copied.rows"]
    checkpoints: Annotated[int, "copied.verified.checkpoints"]
    blobs: Annotated[int, "copied.verified.blobs"]
