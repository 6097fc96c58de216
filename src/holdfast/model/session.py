"""What a session is: a shell that remembers, as its journal, its checkpoints and its references say it.

A session works in one directory, which is a workspace. The states of that directory are checkpoints of the workspace;
a *session checkpoint* is one of these, together with what the shell was: directory, environment, history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NewType

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.ids import CheckpointId

SessionId = NewType("SessionId", str)
"""1 to 64 letters, digits, ``_``, ``-``, and ``.`` between others; no other session of the tenant has it."""

SessionHash = NewType("SessionHash", str)
"""32 lower-case hex digits: the hash (BLAKE3, 128 bits) of an encoded session checkpoint, which it names."""

ShellName = Literal["bash", "sh", "zsh"]

Level = Literal["safe", "changes", "risky", "dangerous", "unknown"]
"""How safe a command is, in this order, with ``unknown`` between ``changes`` and ``risky``; ``docs/safety.md``."""

SessionKind = Literal["auto", "manual", "fork", "branch"]
"""Why a session checkpoint was taken: by a trigger, by somebody, as where a fork began, for a branch."""

RefType = Literal["head", "branch", "fork", "experiment"]
"""What a reference is: ``sessions/{id}/HEAD``, ``branches/{id}/{name}``, ``forks/{id}``, ``experiments/{id}``."""

SessionMode = Literal["in-place", "worktree", "overlay"]
"""Where it works: in the workspace as it is, or in what a snapshot provider has made (`snapshot.port.Mode`)."""


class Triggers(NamedTuple):
    """When a session is saved by itself."""

    commands: int = 10
    """After so many commands."""
    idle_seconds: float = 30.0
    """When nothing was done for so long."""
    min_seconds: float = 5.0
    """But not so soon after the last time, unless somebody asks for it."""
    max_journal: int = 1000
    """At so many entries in the journal, whatever else holds: it never has more to replay."""


class SessionConfig(NamedTuple):
    """What holds for the commands of a session."""

    shell: ShellName = "bash"
    timeout_seconds: float = 0.0
    """A command that takes longer is ended; 0: none is."""
    max_output_bytes: int = 65_536
    """Of each output stream of a command so much is kept: the beginning and the end, with a mark between."""
    triggers: Triggers = Triggers()
    demand: Level | Literal["never"] = "risky"
    """A checkpoint is taken before a command of this level or above."""


class Metrics(NamedTuple):
    """What has happened in a session. Times in microseconds since 1970-01-01 UTC."""

    commands: int = 0
    total_ms: int = 0
    """How long they took, all together."""
    last_checkpoint_at: int = 0
    checkpoints: int = 0
    forks: int = 0
    recoveries: int = 0


class CommandResult(NamedTuple):
    """How a command ended."""

    exit_code: int
    """As a shell says it: 128 + the signal's number if it was killed."""
    stdout: str
    stderr: str
    """Of both: what is not UTF-8 is escaped as in all JSON (``docs/json.md``)."""
    truncated: bool = False
    """Whether something of the output was left out."""
    timed_out: bool = False


class CommandEntry(NamedTuple):
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
    reasons: tuple[str, ...]
    started_at: int
    """Microseconds since 1970-01-01 UTC."""
    duration_ms: int = 0
    result: CommandResult | None = None
    """None: it was in flight when the session was killed, and nobody knows how it ended."""
    before: CheckpointId | None = None
    after: CheckpointId | None = None
    """The workspace's checkpoints that hold the tree before and after it; the same one if it changed nothing. Retention
    may have dropped them since.
    """
    cwd: str = ""
    """The directory that it was started in, relative to the root; absolute if it lies outside."""


class State(NamedTuple):
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


class SessionCheckpoint(NamedTuple):
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


class SessionRef(NamedTuple):
    """A name for a session checkpoint."""

    name: str
    """See `RefType`."""
    type: RefType
    session: SessionId
    checkpoint: SessionHash
    updated_at: int
    metadata: Mapping[str, str] = {}
