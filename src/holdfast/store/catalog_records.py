"""The rows that the catalog exchanges with writers and readers of blobs."""

from __future__ import annotations

from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId, Hash, PackId, WorkspaceId

BlobKind = Literal["blob", "page"]


class VanishedError(RefusedError):
    """A commit needs blobs or packs that collection has deleted meanwhile; nothing was committed.

    Store the content of ``hashes`` (none if only a pack without blobs is gone) again, in new packs, and commit again.
    """

    code = "vanished"

    def __init__(self, hashes: Collection[Hash]) -> None:
        super().__init__("a collection that ran meanwhile took away content that was to be saved", hint="try again")
        self.hashes = frozenset(hashes)


PACK_OVERHEAD, RECORD_OVERHEAD, DELTA_OVERHEAD = 41, 50, 82
"""Bytes of a pack beside stored bytes: its header, marker and footer; a record's head, twice; and that of a delta."""


class BlobLocation(NamedTuple):
    """Where a blob's stored bytes are and how to turn them back into content."""

    key: str
    """The object's key: a pack, or an object that holds this blob alone."""
    offset: int
    length: int
    """Stored bytes, from ``offset``."""
    codec: int
    size: int
    """Bytes of content."""
    base: Hash | None
    """For the delta codec: the blob that the stored bytes are a difference against; never itself a delta."""


class NewBlob(NamedTuple):
    """A blob that was written and that a commit makes known."""

    hash: Hash
    kind: BlobKind
    size: int
    codec: int
    base: Hash | None
    pack: PackId | None
    """Its pack; None for a blob that is an object of its own."""
    offset: int
    length: int
    generation: int = 0
    """For a blob of its own: the generation of its object's key (see `large_blob_key`)."""


class NewPack(NamedTuple):
    """A pack that was written and synced."""

    id: PackId
    key: str
    size: int


class Cursor(NamedTuple):
    """The position of a workspace in its own history."""

    head: CheckpointId | None
    """The checkpoint that the tree was last known to be: parent of the next one."""
    position: int | None
    """The event whose state the tree is in."""
    redo_tip: int | None
    """The event that repeated `redo` leads to; equal to ``position`` when there is nothing to redo."""


def displaced_path(path: bytes, workspace: WorkspaceId) -> bytes:
    """The recorded path of a workspace whose place another one has now: no directory can have it."""
    return last_seen_path(path) + b"\0" + workspace.encode()


def last_seen_path(path: bytes) -> bytes:
    """The real path where a workspace was last seen, whether or not another is there now."""
    return path.partition(b"\0")[0]


class WorkspaceRow(NamedTuple):
    """A directory tree that Holdfast remembers."""

    id: WorkspaceId
    path: bytes
    """Its real path when last seen; if another live workspace is there now, as `displaced_path` makes it."""
    device: int
    inode: int
    """Of the root directory when last seen; with them a moved workspace is recognised."""
    created_at: int
    source: CheckpointId | None
    """The checkpoint that it was forked from."""
    live: bool
    """False once the user has let it go: it then holds nothing back from retention."""


class MergeParent(NamedTuple):
    """A merge in a checkpoint: all of ``other``, since ``base``."""

    other: CheckpointId
    base: CheckpointId
    record: str = ""
    """How each file that both lines have changed came to be (docs/reference/merge.md); empty for nothing to say."""


class CheckpointCommit(NamedTuple):
    """All that one checkpoint adds to the catalog, in one transaction."""

    checkpoint: Checkpoint
    changeset: bytes | None
    """Encoded changeset against the parent; None for a checkpoint without one (then everything is added)."""
    not_captured: Sequence[NotCaptured]
    packs: Sequence[NewPack]
    blobs: Sequence[NewBlob]
    """New blobs and pages. One that another commit made known first keeps its first location."""
    relied_on: frozenset[Hash]
    """Blobs and pages that were found to be stored already and that this manifest newly names."""
    expected: Cursor
    """The workspace's cursor as the caller read it; the commit is refused if it is another by now."""
    event: HistoryEvent | None
    """The event to append (its ``seq`` is ignored and assigned), or None if the tree's state did not change."""
    redo_tip: int | None = None
    """The event that `redo` leads to afterwards; None: there is nothing to redo."""
    merge_parents: MergeParent | None = None
    """For a state that two lines have come together in: the second one."""
    is_apart: bool = False
    """The tree is not in this state: the workspace keeps its position."""


def pack_key(tenant: str, pack: PackId) -> str:
    """``packs/{tenant}/{id}``."""
    return f"packs/{tenant}/{pack}"


def pages_key(tenant: str, checkpoint: CheckpointId) -> str:
    """``checkpoints/{tenant}/{id}.manifest.lz4``: the pack of the pages that a checkpoint was the first to need."""
    return f"checkpoints/{tenant}/{checkpoint}.manifest.lz4"


def join_labels(labels: Iterable[str]) -> str:
    """The labels of a checkpoint as the column ``checkpoints.label`` holds them: none has a line feed in it."""
    return "\n".join(labels)


def split_labels(column: str) -> tuple[str, ...]:
    """The inverse of `join_labels`."""
    return tuple(column.split("\n")) if column else ()


def large_blob_key(tenant: str, hash: Hash, generation: int) -> str:  # noqa: A002 - the field's own name
    """``blobs/{tenant}/{hh}/{hh}/{hash}``, with ``.{generation}`` behind it when that is not 0.

    A later generation is written when collection is deleting an earlier one, or has just done so, so that a key that is
    being deleted is never written.
    """
    digits = hash.hex()
    suffix = f".{generation}" if generation else ""
    return f"blobs/{tenant}/{digits[:2]}/{digits[2:4]}/{digits}{suffix}"
