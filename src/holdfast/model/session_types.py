"""The data of a session, a shell that remembers: its journal, its checkpoints and its references.

A session works in one directory, which is a workspace. The states of that directory are checkpoints of the workspace. A
*session checkpoint* is one of these, together with the state of the shell: directory, environment, history.

Texts from the system (paths, commands, variables) hold bytes that are not UTF-8 as `os.fsdecode` does.
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
"""Levels of the classifier, from the safest to the most dangerous (``docs/reference/classify.md``).

Unknown commands rank between those that change files and those known to be risky, so that they never hide a risk.
"""

SessionIsolation = Literal["none", "vm"]
"""Where commands of a session run: on this host, or in a virtual machine that stays between them."""

SessionKind = Literal["auto", "manual", "fork", "branch"]
"""Why a session checkpoint was taken: by a trigger, on request, as where a fork began, for a branch."""

LEVELS: tuple[Level, ...] = get_args(Level)
"""In their order."""

RefType = Literal["head", "branch", "fork", "experiment"]
"""Kinds of references: ``sessions/{id}/HEAD``, ``branches/{id}/{name}``, ``forks/{id}``, ``experiments/{id}``."""

SessionMode = Literal["in-place", "worktree", "overlay"]
"""Where it works: in the workspace as it is, or in what a snapshot provider has made (`snapshot.port.Mode`)."""


class Triggers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a session is saved by itself."""

    commands: int = 10
    """After this number of commands."""
    idle_seconds: float = 30.0
    """When nothing was done for so long."""
    min_seconds: float = 5.0
    """The minimal time since the last one, unless a checkpoint is requested."""
    max_journal: int = 1000
    """At this number of entries in the journal, whatever else holds: it limits what must be replayed."""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a session's commands."""

    shell: ShellName = "bash"
    timeout_seconds: float = 0.0
    """A command that takes longer is ended; 0: none is."""
    max_output_bytes: int = 65_536
    """Of each output stream of a command so much is kept: the beginning and the end, with a mark between."""
    triggers: Triggers = Triggers()
    supervised: bool = True
    """Each command's changes are recorded as a step. Otherwise, and where recording is impossible, the state is saved
    before a ``risky`` or ``dangerous`` command.
    """
    isolation: SessionIsolation = "none"
    """Fixed for the session."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counters of a session. Times in microseconds since 1970-01-01 UTC."""

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
    """In both texts, bytes that are not UTF-8 are escaped as in all JSON (``docs/reference/json.md``)."""
    truncated: bool = False
    """Whether a part of the output is missing."""
    timed_out: bool = False


class CommandEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command of a session."""

    id: str
    """16 lower-case hex digits, random."""
    seq: int
    """From 1, without gaps, over the whole session; a fork goes on counting."""
    input: str
    """The input: the command, or a person's words."""
    command: str
    """The command that the shell received."""
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
    """A session at one moment."""

    id: SessionId
    parent: SessionId | None
    """The session that it was forked from."""
    created_at: int
    updated_at: int
    cwd: str
    """Relative to the root (``.`` is the root itself); absolute if it lies outside."""
    env: Mapping[str, str]
    """The exported variables of its shell that differ from those at its start."""
    unset: tuple[str, ...]
    """Exported variables that it has taken away."""
    tree: CheckpointId | None
    """The workspace's checkpoint that holds the tree."""
    seq: int
    """The number of the last command."""
    config: SessionConfig = SessionConfig()
    metrics: Metrics = Metrics()


class SessionCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A saved state of a session. Its content names it: it never changes."""

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
    """Data from its author."""


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name for a session checkpoint."""

    name: str
    """See `RefType`."""
    type: RefType
    session: SessionId
    checkpoint: SessionHash
    updated_at: int
    metadata: Mapping[str, str] = {}


# --- the journal: events since the session checkpoint that HEAD names ---


class CommandEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="command"):
    """A command began, and ended if ``ended``."""

    entry: CommandEntry
    ended: bool = False
    """False while it runs; true also once it is known that its end will never be known."""
    cwd: str = ""
    """The shell's directory afterwards; empty: the one at the beginning."""
    exported: Mapping[str, str] = {}
    """Variables that have another value in `State.env` since, or are new there."""
    dropped: tuple[str, ...] = ()
    """Variables that `State.env` no longer has."""
    unset: tuple[str, ...] | None = None
    """`State.unset` since, if it is another."""


class TreeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="found"):
    """The directory held another tree than the last one that was recorded; it was saved."""

    tree: CheckpointId
    at: int
    """Microseconds since 1970-01-01 UTC."""


class MetricEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="counted"):
    """A counter of `Metrics` has changed, and nothing else."""

    what: Literal["forks", "recoveries"]
    at: int


class CheckoutEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="leaving"):
    """The tree is being brought to that of another session checkpoint: nothing comes behind it."""

    target: SessionHash
    at: int
    event: int = 0
    """The newest event in the workspace's history when it began."""


class MergeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="merging"):
    """The tree is being brought to ``target``, the result of a merge, a pick, or an adoption. No entry follows it."""

    target: CheckpointId
    """A checkpoint of the workspace."""
    message: str
    """The message of the state that results."""
    at: int
    event: int
    """The newest event in the workspace's history when it began."""
    metadata: Mapping[str, str] = {}


JournalEntry = CommandEvent | TreeEvent | MetricEvent | CheckoutEvent | MergeEvent
