"""The results of use-cases. Each corresponds to the documented ``--json`` object of its command."""

from __future__ import annotations

from types import MappingProxyType

from holdfast.model.checkpoint import Checkpoint, Kind, Provenance
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.entries import Change, Entry, NotCaptured
    from holdfast.model.ids import CheckpointId, Hash, WorkspaceId


class CheckpointRequest(NamedTuple):
    """The options of a checkpoint."""

    kind: Kind = "manual"
    label: str = ""
    provenance: Provenance = Provenance()
    full_hash: bool = False
    prompt: str | None = None
    """An agent's next prompt. It becomes a row of the history, with or without changes."""


class CheckpointResult(NamedTuple):
    """The result of `checkpoint`."""

    checkpoint: Checkpoint
    """The new checkpoint, or the one that already holds this state."""
    created: bool
    """False if nothing had changed."""
    not_captured: Sequence[NotCaptured]
    elapsed_ms: float
    labelled: bool = False
    """True if the checkpoint has the requested label, perhaps among others. False without one, and if nothing has
    changed and the checkpoint was not requested by hand.
    """
    prompt: int | None = None
    """The number of the row that the prompt has become, by which `undo` goes back to before it."""


class Status(NamedTuple):
    """The result of `status`."""

    workspace: bytes
    last_checkpoint: Checkpoint | None
    changes: Sequence[Change]
    not_captured: Sequence[NotCaptured]
    watching: bool
    unfinished_restore: CheckpointId | None
    """The target of a restore that was cut short, if there is one."""
    watch_failure: str | None = None
    """Why the watcher's last attempt to save failed; None if it succeeded, or no watcher runs."""
    next_save_at: int | None = None
    """When the watcher saves these changes if no further ones come, in microseconds since 1970-01-01 UTC; None if it is
    not going to.
    """
    next_save_by: int | None = None
    """When it does if they go on coming."""

    @property
    def clean(self) -> bool:
        """True if the tree is exactly what the last checkpoint holds."""
        return self.last_checkpoint is not None and not self.changes


class Details(NamedTuple):
    """The result of `show`."""

    checkpoint: Checkpoint
    changes: Sequence[Change]
    not_captured: Sequence[NotCaptured]


class Renamed(NamedTuple):
    """A renamed file."""

    before_path: bytes
    path: bytes
    before: Entry
    after: Entry
    similarity: int
    """Percent of the content that is the same; 100 for equal content."""


class Diff(NamedTuple):
    """The result of `diff`. ``renamed`` paths are in no other list."""

    base: CheckpointId | None
    """None: nothing at all (everything is added)."""
    target: CheckpointId | None
    """None: the tree as it is now."""
    changes: Sequence[Change]
    renamed: Sequence[Renamed]
    unchanged: int
    """How many files are in both and the same."""


class StoppedProcess(NamedTuple):
    """A process of a run, ended before the run was taken back."""

    pid: int
    command: tuple[bytes, ...]
    step: int
    """The open step that it belonged to; 0 if there was none."""


_NO_LETTERS: Mapping[bytes, str] = MappingProxyType({})
_NO_FILES: Mapping[bytes, Entry | None] = MappingProxyType({})


class RestoreResult(NamedTuple):
    """The result of `restore`, `undo` or `redo`. With ``dry_run`` its preview."""

    checkpoint: CheckpointId
    """The state that the tree was brought to."""
    rescue: CheckpointId | None
    """The checkpoint that holds the tree as it was before; None for a dry run."""
    written: Sequence[bytes]
    deleted: Sequence[bytes]
    skipped: Sequence[NotCaptured]
    dry_run: bool
    undo_command: str | None
    """The command that reverses it; None for a dry run, and for a restore without changes."""
    steps: Sequence[int] = ()
    """The steps that were taken back, or brought forward, by the undo log: ignored files included."""
    together: Sequence[Sequence[int]] = ()
    """Steps that `undo` took back together because they depend on each other: the groups of several."""
    refused: Sequence[int] = ()
    """Steps of which the system refused some changes: the same command tries those again."""
    stopped: Sequence[StoppedProcess] = ()
    """The processes of the run that were ended before."""
    letters: Mapping[bytes, str] = _NO_LETTERS
    """Status letters of ``written`` paths, where they are not M: A for a new path, T for a new type."""
    foreseen: Mapping[bytes, Entry | None] = _NO_FILES
    """Of a dry run: the entries afterwards (None: deleted), as far as a checkpoint holds them. A path that ends with a
    slash stands for all other files below it.
    """


class ForkResult(NamedTuple):
    """The result of `fork`."""

    workspace: WorkspaceId
    path: bytes
    checkpoint: CheckpointId
    """The fork's first checkpoint."""
    source: CheckpointId
    written: int
    """Files."""
    mounted: bool = False
    """True for a fork by mount, of which nothing is written out."""


class Forgotten(NamedTuple):
    """The result of `forget`. With ``dry_run`` its preview."""

    removed: Sequence[Checkpoint]
    kept: Sequence[tuple[Checkpoint, Sequence[str]]]
    """Each kept checkpoint with the reasons."""
    dry_run: bool
    composed_into: Mapping[CheckpointId, Sequence[CheckpointId]]
    """For each removed checkpoint the remaining ones whose changes now include its own, as it was decided."""


class Log(NamedTuple):
    """The history of a workspace."""

    checkpoints: Sequence[Checkpoint]
    head: CheckpointId | None
    events: Sequence[HistoryEvent]
    """Events of the workspace, newest first; with a limit, those since the oldest of the checkpoints."""
    workspaces: Mapping[WorkspaceId, bytes]
    """The path of every workspace that one of the checkpoints belongs to."""


def beginnings(events: Iterable[HistoryEvent]) -> dict[CheckpointId, int]:
    """For each checkpoint, the number of the event that brought it into a workspace's history; it gives the order,
    whatever the clock said. Imported checkpoints have none.
    """
    first: dict[CheckpointId, int] = {}
    for event in events:
        first[event.checkpoint] = min(event.seq, first.get(event.checkpoint, event.seq))
    return first


class Read(NamedTuple):
    """A part of a file."""

    content: bytes
    offset: int
    size: int
    """Of the whole file."""
    hash: Hash | None
    """Of the whole file, if the part is the whole."""
