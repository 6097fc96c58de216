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
"""What has happened to a workspace's tree or history."""

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
    """A saved state of a workspace."""

    id: CheckpointId
    workspace: WorkspaceId
    parent: CheckpointId | None
    """The checkpoint that the changeset is against; of a fork's first checkpoint, the one that it was forked from."""
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
    """How many paths were not captured; the catalog keeps the list itself beside the record."""
    provenance: Provenance = Provenance()

    @property
    def label(self) -> str:
        """The first of its labels; empty if there is none."""
        return self.labels[0] if self.labels else ""


class HistoryEvent(NamedTuple):
    """An event of the history; appended, never changed."""

    seq: int
    at: int
    """Microseconds since 1970-01-01 UTC."""
    operation: EventKind
    checkpoint: CheckpointId
    """The state that the tree was in afterwards."""
    previous: int | None
    """The event whose state this one replaced: what `undo` goes back to. None where there is none, and on events that
    are no states: beginnings of runs, prompts before which nothing had changed, and undo and redo that went to a state
    there was.
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
    """The largest sequence number that the workspace's undo log had given out by then: what has a smaller one happened
    before, whatever the clock says. None where that is not known, as of what earlier versions have recorded.
    """
    author: str = ""
    """The agent that was asked, on events of `prompt`."""
    text: str = ""
    """What was asked for (`prompt`), or the command line (`run`); empty on runs of earlier versions."""
