"""Answers about the store and the home: removed and kept objects, and problems."""

from __future__ import annotations

from holdfast.model.answers.workspace import Checkpoint
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import ContentHash, Path, SystemPath, Time


class ForgottenCheckpoint(Checkpoint):
    """A dropped checkpoint."""

    composed_into: list[str]


class KeptCheckpoint(TypedDict):
    """A checkpoint that stays."""

    id: str
    label: str
    labels: list[str]
    reasons: list[str]


class Forgotten(TypedDict):
    """Dropped checkpoints, and why the others stay."""

    removed: list[ForgottenCheckpoint]
    """With ``--gone`` of all gone workspaces."""
    kept: list[KeptCheckpoint]
    """With ``--gone`` also those of workspaces that were only moved."""
    dry_run: bool


class CountDrift(TypedDict):
    """A wrong count."""

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
    """Freed space, real or planned."""

    blobs_deleted: int
    """Pages of manifests included."""
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
    """The result of a verification."""

    ok: bool
    checkpoints: int
    blobs: int
    problems: list[Problem]


def remedy(finding: Any) -> str | None:
    """A change that would solve the problem."""
    return finding.help or None


class Finding(TypedDict):
    """One finding."""

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
    """Saved objects that could not be used."""
    kept_as: Path | None
    problems: int
    """How many ``verify`` still finds."""


class Diagnosis(TypedDict):
    """The report."""

    ok: bool
    """Nothing is ``wrong``."""
    findings: list[Finding]
    repaired: RepairedCatalog | None
    """With ``--repair``, if the catalog was brought back."""


def first(pair: Any) -> Any:
    """Of a path and its bytes, the path."""
    return pair[0]


def second(pair: Any) -> Any:
    """And the bytes."""
    return pair[1]


class LargePath(TypedDict):
    """A path with much content."""

    path: Annotated[Path, first]
    bytes: Annotated[int, second]


class Stats(TypedDict):
    """Used space."""

    workspaces: int
    checkpoints: int
    blobs: int
    pages: int
    packs: int
    content_bytes: int
    """All distinct content."""
    stored_bytes: int
    """The space that it takes."""
    dead_bytes: int
    """Space that collection will free, and headers of checkpoints."""
    catalog_bytes: int
    largest: list[LargePath]
    """In the checkpoint that the tree is at."""


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
    """The result of a trial: ``yes``, ``no``, ``wrong``; empty without one."""
    encryption_key: str
    """Its id; empty: none."""
    cache_bytes: int
    copy_of: str
    """The id of another store."""


class ProbeStep(TypedDict):
    """One step of the test."""

    name: str
    ok: bool
    message: str


class StoreProbe(TypedDict):
    """The results of the test."""

    location: str
    ok: bool
    conditional_writes: str
    steps: list[ProbeStep]
    """None is tried after one that failed."""


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
    """By table of the catalog."""
    checkpoints: Annotated[int, "copied.verified.checkpoints"]
    blobs: Annotated[int, "copied.verified.blobs"]
