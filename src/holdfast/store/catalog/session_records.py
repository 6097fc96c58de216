"""The data of the catalog's rows of sessions, as the catalog and its users exchange it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.model.session_results import Purpose, Status
    from holdfast.model.session_types import RefType, SessionHash, SessionId, SessionKind, SessionMode, SessionRef

Tier = Literal["hot", "warm", "cold"]


class SessionRecord(NamedTuple):
    """A session, as far as its journal does not say it."""

    id: SessionId
    parent: SessionId | None
    owner: str
    shared: tuple[str, ...]
    """Other agents that may use it."""
    workspace: WorkspaceId | None
    """None while its directory is being made."""
    origin: WorkspaceId | None
    """For a fork: the workspace whose provider made it."""
    provider: str
    """The provider of its directory; ``plain``: an older version, which wrote it out; empty: it works in place."""
    mode: SessionMode
    token: str
    """The provider's token for the directory."""
    place: bytes | None
    """The directory that was made by ``plain``."""
    purpose: Purpose
    status: Status
    """``making`` until its directory exists; ``going`` while it is being deleted."""
    created_at: int


class StoredCheckpoint(NamedTuple):
    """A session checkpoint, as far as its content need not be read for it."""

    hash: SessionHash
    session: SessionId
    parent: SessionHash | None
    kind: SessionKind
    message: str
    created_at: int
    seq: int
    tree: CheckpointId
    kept: bool
    """Whether its tree is held back from retention."""
    tier: Tier
    size: int
    stored: int


class JournalRow(NamedTuple):
    """A session's journal, encoded."""

    data: bytes
    entries: int
    through: int
    last_seq: int
    trees: tuple[CheckpointId, ...]
    revision: int = 0
    """The required value when the row is written, which increases it by one."""
    updated_at: int = 0


class UnsavedSession(NamedTuple):
    """A session with entries in its journal."""

    session: SessionId
    revision: int
    """The journal's."""
    updated_at: int
    """When that was written, in microseconds since 1970-01-01 UTC."""


class RefChange(NamedTuple):
    """A reference to be changed."""

    ref: SessionRef
    expected: SessionHash | None
    """The required present target; None: it must not exist."""


class SessionCommit(NamedTuple):
    """A session checkpoint, and what changes together with it."""

    checkpoint: StoredCheckpoint
    data: bytes
    """Encoded."""
    refs: Sequence[RefChange]
    journal: JournalRow
    record: SessionRecord | None = None
    """The session's new record."""


def ref_name(kind: RefType, session: SessionId, name: str = "") -> str:
    """How a reference is called: `RefType` says it."""
    match kind:
        case "head":
            return f"sessions/{session}/HEAD"
        case "branch":
            return f"branches/{session}/{name}"
        case "fork":
            return f"forks/{session}"
        case "experiment":
            return f"experiments/{session}"
