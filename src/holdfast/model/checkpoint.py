"""A checkpoint's record and an event of a workspace's history, as the catalog keeps them."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from holdfast.model.entries import Counts
    from holdfast.model.ids import CheckpointId, Hash, WorkspaceId

Kind = Literal["manual", "auto", "rescue", "run", "fork", "import", "merge"]
"""Why a checkpoint exists: asked for, by the watcher, before a restore, at a run's boundary, a fork's first,
imported, put together of two others."""

EventKind = Literal["checkpoint", "prompt", "restore", "undo", "redo", "fork", "run", "promote"]
"""Kinds of events in the history of a workspace."""

KINDS: tuple[Kind, ...] = ("manual", "auto", "rescue", "run", "fork", "import", "merge")


class Provenance(NamedTuple):
    """Who made a checkpoint and why. Every field may be empty."""

    author: str = ""
    """A user's or an agent's name."""
    message: str = ""
    """A free text: why."""
    command: str = ""
    """The command that was about to run or had run, if known."""


class Checkpoint(NamedTuple):
    """A saved state of a workspace."""

    id: CheckpointId
    workspace: WorkspaceId
    parent: CheckpointId | None
    """The checkpoint before it, which the changeset compares with; for a fork's first checkpoint, its origin."""
    root: Hash
    """The root page of the manifest."""
    kind: Kind
    labels: tuple[str, ...]
    """In the order in which they were given."""
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
    """The number of paths that were not captured; the catalog keeps their list separately."""
    provenance: Provenance = Provenance()

    @property
    def label(self) -> str:
        """The first of its labels; empty without any."""
        return self.labels[0] if self.labels else ""


class HistoryEvent(NamedTuple):
    """An event of the history. Appended, never changed."""

    seq: int
    at: int
    """Microseconds since 1970-01-01 UTC."""
    operation: EventKind
    checkpoint: CheckpointId
    """The state that the tree was in afterwards."""
    previous: int | None
    """The event whose state this one replaced: `undo` returns to it. None for the first event, and for events that made
    no state of their own: beginnings of runs, prompts without changes before them, undo and redo to an existing state.
    """
    ahead: int | None = None
    """On a state that an undo has made: the event whose state it was undone from, to which `redo` leads. On a prompt
    that is no state: the event whose state the tree was in.
    """
    steps: tuple[int, ...] = ()
    """The steps of the undo log that were reversed (`undo`) or brought forward (`redo`), or that a run had (`run`, at
    its end).
    """
    run: str = ""
    """The run that begins or ends here, on events of `run`."""
    undo_seq: int | None = None
    """The last sequence number of the workspace's undo log then: smaller ones are older, whatever the clock says. None
    where it is unknown, as in records of earlier versions.
    """
    author: str = ""
    """The agent that received a `prompt`."""
    text: str = ""
    """The prompt (`prompt`), or the command line (`run`); empty on runs of earlier versions."""
