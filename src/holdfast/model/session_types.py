"""What a session is: a shell that remembers, as its journal, its checkpoints and its references say it.

A session works in one directory, which is a workspace. The states of that directory are checkpoints of the workspace;
a *session checkpoint* is one of these, together with what the shell was: directory, environment, history.

A text that came from the system (a path, a command, a variable) holds what is not UTF-8 as `os.fsdecode` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NewType, get_args

import msgspec

from holdfast.model.ids import CheckpointId

SessionId = NewType("SessionId", str)
"""1 to 64 letters, digits, ``_``, ``-``, and ``.`` between others; no other session of the tenant has it."""

SessionHash = NewType("SessionHash", str)
"""32 lower-case hex digits: the hash (BLAKE3, 128 bits) of an encoded session checkpoint, which it names."""

ShellName = Literal["bash", "sh", "zsh"]

Level = Literal["safe", "changes", "unknown", "risky", "dangerous"]
"""How safe a command is, from the least to the most that it may do (``docs/reference/classify.md``).

What is not known ranks above what changes files, and below what is known to be risky, so that it never hides that.
"""

SessionIsolation = Literal["none", "vm"]
"""Where commands of a session run: on this host, or in a virtual machine that stays between them."""

SessionKind = Literal["auto", "manual", "fork", "branch"]
"""Why a session checkpoint was taken: by a trigger, on request, as where a fork began, for a branch."""

LEVELS: tuple[Level, ...] = get_args(Level)
"""In their order."""

RefType = Literal["head", "branch", "fork", "experiment"]
"""What a reference is: ``sessions/{id}/HEAD``, ``branches/{id}/{name}``, ``forks/{id}``, ``experiments/{id}``."""

SessionMode = Literal["in-place", "worktree", "overlay"]
"""Where it works: in the workspace as it is, or in what a snapshot provider has made (`snapshot.port.Mode`)."""


class Triggers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a session is saved by itself."""

    commands: int = 10
    """After so many commands."""
    idle_seconds: float = 30.0
    """When nothing was done for so long."""
    min_seconds: float = 5.0
    """But not so soon after the last time, unless it is asked for."""
    max_journal: int = 1000
    """At so many entries in the journal, whatever else holds: it never has more to replay."""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the commands of a session."""

    shell: ShellName = "bash"
    timeout_seconds: float = 0.0
    """A command that takes longer is ended; 0: none is."""
    max_output_bytes: int = 65_536
    """Of each output stream of a command so much is kept: the beginning and the end, with a mark between."""
    triggers: Triggers = Triggers()
    supervised: bool = True
    """What a command changes is recorded as a step. Else, and where that cannot be done, the state is saved before one
    that is ``risky`` or ``dangerous``.
    """
    isolation: SessionIsolation = "none"
    """It never changes."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has happened in a session. Times in microseconds since 1970-01-01 UTC."""

    commands: int = 0
    total_ms: int = 0
    """How long they took, all together."""
    last_checkpoint_at: int = 0
    checkpoints: int = 0
    forks: int = 0
    recoveries: int = 0


class CommandResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a command ended."""

    exit_code: int
    """As a shell says it: 128 + the signal's number if it was killed."""
    stdout: str
    stderr: str
    """Of both: what is not UTF-8 is escaped as in all JSON (``docs/reference/json.md``)."""
    truncated: bool = False
    """Whether something of the output was left out."""
    timed_out: bool = False


class CommandEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command in a session's history."""

    id: str
    """16 lower-case hex digits, random."""
    seq: int
    """From 1, without gaps, over the whole session; a fork goes on counting."""
    input: str
    """What was asked for: the command, or words of a person."""
    command: str
    """What the shell was given."""
    generated: bool
    """Whether ``command`` was made from ``input`` by a model."""
    level: Level
    reasons: tuple[str, ...] = ()
    """Texts of an earlier version; none are written any more."""
    started_at: int
    """Microseconds since 1970-01-01 UTC."""
    duration_ms: int = 0
    result: CommandResult | None = None
    """None: it was in flight when the session was killed, and it is not known how it ended."""
    before: CheckpointId | None = None
    after: CheckpointId | None = None
    """The workspace's checkpoints that hold the tree before and after it; the same one if it changed nothing. Retention
    may have dropped them since.
    """
    cwd: str = ""
    """The directory that it was started in, relative to the root; absolute if it lies outside."""


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session is at one moment."""

    id: SessionId
    parent: SessionId | None
    """The session that it was forked from."""
    created_at: int
    updated_at: int
    cwd: str
    """Relative to the root (``.`` is the root itself); absolute if it lies outside."""
    env: Mapping[str, str]
    """The exported variables in which its shell differs from what it was started with."""
    unset: tuple[str, ...]
    """Exported variables that it has taken away."""
    tree: CheckpointId | None
    """The workspace's checkpoint that holds the tree."""
    seq: int
    """The number of the last command."""
    config: SessionConfig = SessionConfig()
    metrics: Metrics = Metrics()


class SessionCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state of a session that is kept. Its content names it: it never changes."""

    hash: SessionHash
    session: SessionId
    parent: SessionHash | None
    """The one before it: the commands in between are in ``history``."""
    kind: SessionKind
    message: str
    created_at: int
    state: State
    history: tuple[CommandEntry, ...]
    """The commands since the parent, oldest first."""
    metadata: Mapping[str, str] = {}
    """What its author says of it."""


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name for a session checkpoint."""

    name: str
    """See `RefType`."""
    type: RefType
    session: SessionId
    checkpoint: SessionHash
    updated_at: int
    metadata: Mapping[str, str] = {}


# --- the journal: what has happened since the session checkpoint that HEAD names ---


class CommandEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="command"):
    """A command began, and ended if ``ended``."""

    entry: CommandEntry
    ended: bool = False
    """False while it runs; true also once it is known that its end will never be known."""
    cwd: str = ""
    """The directory that it left the shell in; empty: the one that it began in."""
    exported: Mapping[str, str] = {}
    """Variables that have another value in `State.env` since, or are new there."""
    dropped: tuple[str, ...] = ()
    """Those that are no longer in it."""
    unset: tuple[str, ...] | None = None
    """`State.unset` since, if it is another."""


class TreeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="found"):
    """The directory held another tree than the last one that was recorded; it was saved."""

    tree: CheckpointId
    at: int
    """Microseconds since 1970-01-01 UTC."""


class MetricEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="counted"):
    """Something that `Metrics` counts has happened, and nothing else has changed."""

    what: Literal["forks", "recoveries"]
    at: int


class CheckoutEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="leaving"):
    """The tree is being brought to that of another session checkpoint: nothing comes behind it."""

    target: SessionHash
    at: int
    event: int = 0
    """The newest event in the workspace's history when it began."""


class MergeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="merging"):
    """The tree is being brought to ``target``, in which something was brought together with it: by a merge, a pick, or
    an adoption. Nothing comes behind it.
    """

    target: CheckpointId
    """A checkpoint of the workspace."""
    message: str
    """What the state that comes of it says, and is told of it."""
    at: int
    event: int
    """The newest event in the workspace's history when it began."""
    metadata: Mapping[str, str] = {}


JournalEntry = CommandEvent | TreeEvent | MetricEvent | CheckoutEvent | MergeEvent
