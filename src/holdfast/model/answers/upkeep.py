"""Answers about the store and the home: removed and kept objects, and problems."""

from __future__ import annotations

from holdfast.model.answers.workspace import Checkpoint
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import ContentHash, Path, SystemPath, Time


class ForgottenCheckpoint(Checkpoint):
    """A forgotten checkpoint."""

    composed_into: list[str]


class KeptCheckpoint(TypedDict):
    """A kept checkpoint."""

    id: str
    label: str
    labels: list[str]
    reasons: list[str]


class Forgotten(TypedDict):
    """What was forgotten."""

    removed: list[ForgottenCheckpoint]
    """With ``--gone`` of all gone workspaces."""
    kept: list[KeptCheckpoint]
    """With ``--gone`` also those of workspaces that only moved."""
    dry_run: bool


class CountDrift(TypedDict):
    """A drift of a count."""

    object: Annotated[ContentHash, "hash"]
    count: Annotated[str, "counted"]
    """``references`` or ``deltas``."""
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
    """What was collected."""

    blobs_deleted: int
    """With pages of manifests."""
    bytes_freed: int
    packs_deleted: int
    packs_rewritten: int
    counts_corrected: Annotated[int, number_corrected]
    corrections: Annotated[list[CountDrift], first_corrected]
    """The first 100."""
    dry_run: bool


class Problem(TypedDict):
    """A problem."""

    kind: str
    """``missing``, ``damaged``, ``count``, ``reference``, ``catalog`` or ``format``."""
    object: str
    message: str


class Verified(TypedDict):
    """The verification."""

    ok: bool
    checkpoints: int
    blobs: int
    problems: list[Problem]


def remedy(finding: Any) -> str | None:
    """A change that would solve the problem."""
    return finding.help or None


class Finding(TypedDict):
    """A finding."""

    area: str
    """``system``, ``home``, ``store``, ``workspace``, ``watching``, ``supervision``, ``isolation``, ``machines``,
    ``mounting`` or ``snapshots``.
    """
    verdict: str
    """``good``, ``limited`` (missing, or it costs more) or ``wrong`` (broken)."""
    message: str
    help: Annotated[str | None, remedy]


class RepairedCatalog(TypedDict):
    """A repaired catalog."""

    damage: str
    spare: Time | None
    """The time of the spare that it began with."""
    checkpoints: int
    brought_back: int
    lost: int
    """Unusable saved objects."""
    kept_as: Path | None
    problems: int
    """That ``verify`` still finds."""


class Diagnosis(TypedDict):
    """The diagnosis."""

    ok: bool
    """Nothing is ``wrong``."""
    findings: list[Finding]
    repaired: RepairedCatalog | None
    """If ``--repair`` brought the catalog back."""


def first(pair: Any) -> Any:
    """Of a path and its bytes, the path."""
    return pair[0]


def second(pair: Any) -> Any:
    """And the bytes."""
    return pair[1]


class LargePath(TypedDict):
    """A large path."""

    path: Annotated[Path, first]
    bytes: Annotated[int, second]


class Stats(TypedDict):
    """The stats."""

    workspaces: int
    checkpoints: int
    blobs: int
    pages: int
    packs: int
    content_bytes: int
    """All distinct content."""
    stored_bytes: int
    """What it takes."""
    dead_bytes: int
    """What collection will free, and headers of checkpoints."""
    catalog_bytes: int
    largest: list[LargePath]
    """In the tree's checkpoint."""


class Bundle(TypedDict):
    """A bundle."""

    file: SystemPath
    checkpoints: list[str]


class StoreInfo(TypedDict):
    """A store."""

    home: str
    location: str
    """A directory, or a bucket's URL."""
    remote: bool
    tenant: str
    id: str
    """Empty: there has been no bucket and no copy."""
    claimed: str
    """The bucket's URL."""
    conditional_writes: str
    """``yes``, ``no``, ``wrong``; empty if not tried."""
    encryption_key: str
    """Its id."""
    cache_bytes: int
    copy_of: str
    """Another store's id."""


class ProbeStep(TypedDict):
    """A step of the probe."""

    name: str
    ok: bool
    message: str


class StoreProbe(TypedDict):
    """A probe of the store."""

    location: str
    ok: bool
    conditional_writes: str
    steps: list[ProbeStep]
    """Up to one that failed."""


class StoreCopy(TypedDict):
    """A copy of a store."""

    home: str | None
    """Null if only objects were copied."""
    location: str
    objects: Annotated[int, "copied.objects"]
    """All of the store."""
    object_bytes: Annotated[int, "copied.object_bytes"]
    copied_objects: Annotated[int, "copied.copied_objects"]
    """Now; the others were there."""
    rows: Annotated[dict[str, int], "copied.rows"]
    """By table."""
    checkpoints: Annotated[int, "copied.verified.checkpoints"]
    blobs: Annotated[int, "copied.verified.blobs"]
