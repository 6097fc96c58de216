"""A checkpoint's record, as the catalog keeps it."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from holdfast.model.entries import Counts
    from holdfast.model.ids import CheckpointId, Hash, WorkspaceId

Kind = Literal["manual", "auto", "rescue", "run", "fork", "import", "merge"]
"""Why a checkpoint exists: asked for, by the watcher, before a restore, at a run's boundary, a fork's first,
imported, put together of two others."""

KINDS: tuple[Kind, ...] = ("manual", "auto", "rescue", "run", "fork", "import", "merge")


class Provenance(NamedTuple):
    """Who made a checkpoint and why; every field may be empty."""

    author: str = ""
    """A user's or an agent's name."""
    message: str = ""
    """A free text: why."""
    command: str = ""
    """The command that was about to run or had run, if known."""


class Checkpoint(NamedTuple):
    """One state of a workspace that is kept: a manifest, where it came from, and what is said of it."""

    id: CheckpointId
    workspace: WorkspaceId
    parent: CheckpointId | None
    """The checkpoint that the changeset is against; of a fork's first checkpoint, the one that it was forked from."""
    root: Hash
    """The root page of the manifest."""
    kind: Kind
    label: str
    created_at: int
    """Microseconds since 1970-01-01 UTC."""
    changes: Counts
    total_files: int
    total_bytes: int
    """The sum of the sizes of all entries."""
    new_blobs: int
    stored_bytes: int
    """Bytes that this checkpoint added to the object store."""
    not_captured: int
    """How many paths were not captured; the catalog keeps the list itself beside the record."""
    provenance: Provenance = Provenance()
