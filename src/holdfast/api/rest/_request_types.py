"""Path, query and body of requests: the OpenAPI document is generated from these types."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from holdfast.engine.exports.named_workspaces import NAME_PATTERN
from holdfast.model.answers.faces import Mode

Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=64)]
Project = Annotated[str, Meta(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?)?$", max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
Label = Annotated[str, Meta(max_length=128)]
PathText = Annotated[str, Meta(max_length=16384)]
Reference = Annotated[str, Meta(min_length=1, max_length=256)]
"""A checkpoint, as on the command line: an id, a prefix of one, a label, ``@``, ``@-``, ``@-3``."""
CheckpointId = Annotated[str, Meta(pattern="^[0-9a-f]{24}$")]
BlobHash = Annotated[str, Meta(pattern="^blake3:[0-9a-f]{32}$")]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of a request. Unknown fields are refused."""


class NewExport(Body, frozen=True):
    """A directory to serve."""

    name: Name
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Absolute, below one of the token's roots; without it an empty directory is made."""
    project: Project = ""
    auto_checkpoint: bool = True
    mode: Mode = "development"


class ExportChange(Body, frozen=True):
    """The properties of an export to change."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)] | UnsetType = UNSET
    """The directory that it serves from now on, as in `NewExport`."""
    project: Project | UnsetType = UNSET
    auto_checkpoint: bool | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    """``production``: it is saved only on request."""


class NewCheckpoint(Body, frozen=True):
    """A checkpoint to take."""

    label: Label = ""
    message: Text = ""
    author: Annotated[str, Meta(max_length=256)] = ""
    full_hash: bool = False
    """Read every file again, instead of trusting the index for unchanged ones."""


class NewSnapshot(Body, frozen=True):
    """A snapshot to take."""

    label: Label = ""
    provider: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    """The snapshot provider; by default the best available one."""
    with_ignored: bool = False
    """The snapshot must hold ignored files, too."""


class SnapshotViews(Body, frozen=True):
    """A view of a snapshot. There are no options."""


class NewProjectCheckpoint(NewCheckpoint, frozen=True):
    """A checkpoint to take of one of a project's exports."""

    export: Name | None = None
    """Needed where the project has several."""


class Restore(Body, frozen=True):
    """The target of a restore."""

    checkpoint: Reference
    paths: Annotated[list[PathText], Meta(max_length=10_000)] = []
    """Only these paths and everything below them."""
    dry_run: bool = False
    expected: CheckpointId | None = None
    """Refuse unless the tree is as this checkpoint has it."""


class Recover(Body, frozen=True):
    """How to end a restore that was cut short."""

    action: Literal["continue", "abort"]


class Steps(Body, frozen=True):
    """How far to go."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    force: bool = False
    """Also over what others have changed since."""
    dry_run: bool = False


class Fork(Body, frozen=True):
    """A checkpoint to write out as a new export."""

    name: Name
    checkpoint: Reference | None = None
    """Without it the present state, which is saved first."""
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """As in `NewExport`."""
    project: Project | None = None
    """By default that of the export."""
    auto_checkpoint: bool = True


class FileWrite(Body, frozen=True):
    """A file to write, with exactly one of the three forms of content."""

    path: Annotated[str, Meta(min_length=1, max_length=16384)]
    blob_hash: BlobHash | None = None
    """Content that is stored already."""
    content: str | None = None
    content_base64: str | None = None
    mode: Annotated[str, Meta(pattern="^(0[0-7]{3}|120000)$")] = "0644"
    """Octal; ``120000`` for a symbolic link, whose content is its target."""


class WriteFiles(Body, frozen=True):
    """The files to write and to delete."""

    writes: Annotated[list[FileWrite], Meta(max_length=100_000)] = []
    deletes: Annotated[list[PathText], Meta(max_length=100_000)] = []
    source: CheckpointId | None = None
    """The checkpoint that must hold all contents that are given by hash. Required for a token of some exports only."""
    message: Text = ""
    author: Annotated[str, Meta(max_length=256)] = ""


class Merge(Body, frozen=True):
    """Two lines of work, and where they parted."""

    production_checkpoint: CheckpointId
    promote_checkpoint: CheckpointId
    fork_checkpoint: CheckpointId | None = None
    """By default the newest that both come from."""


PromotionId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


SessionName = Annotated[str, Meta(min_length=1, max_length=200)]


class NewSession(Body, frozen=True):
    """A session to begin."""

    id: SessionName | None = None
    """Its id; by default a new name."""
    cwd: PathText = ""
    """Where it begins, as a path in the export."""
    environment: Annotated[dict[str, str], Meta(max_length=1000)] = {}
    """Variables in addition to the server's."""


class SessionCommand(Body, frozen=True):
    """A command to run."""

    command: Annotated[str, Meta(min_length=1, max_length=100_000)]
    timeout_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """The command is ended after this time; by default the session's configuration counts."""


class SessionSave(Body, frozen=True):
    """Why a state is saved."""

    message: Text = ""


class FileDecision(Body, frozen=True):
    """The decision about a file that both sides have changed: exactly one of keep, take, content, content_base64 and
    delete.
    """

    path: PathText
    keep: bool = False
    """As production has it."""
    take: bool = False
    """As the line of work has it that is promoted."""
    content: str | UnsetType = UNSET
    content_base64: str | UnsetType = UNSET
    delete: bool = False
    version: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """The version of the file that the decision is for (`overlapping_files`); by default the last one shown."""


class Promote(Body, frozen=True):
    """The source of a promotion: exactly one of the two."""

    promote_checkpoint: CheckpointId | None = None
    fork: Name | None = None
    """An export, whose present state is saved first."""
    resolutions: Annotated[list[FileDecision], Meta(max_length=10_000)] = []
    message: Annotated[str, Meta(max_length=4000)] = ""
    author: Annotated[str, Meta(max_length=256)] = ""


class TakeReapply(Body, frozen=True):
    """There are no options."""


class AnswerReapply(Body, frozen=True):
    """The answer for a file: exactly one of content, content_base64, delete and decline."""

    token: Annotated[str, Meta(min_length=1, max_length=128)]
    version: Annotated[str, Meta(min_length=1, max_length=128)]
    """The version of the change, as it was handed out."""
    content: str | UnsetType = UNSET
    content_base64: str | UnsetType = UNSET
    delete: bool | UnsetType = UNSET
    decline: Text | UnsetType = UNSET
    """Why it cannot be applied: the next rung has it then."""
    said: Text = ""
    """How it was done, for the record."""


# -- paths and queries -------------------------------------------------------------------------------------------


def _in_path(name: str | None = None, **schema: Any) -> PathParameter:
    """A part of a path. ``schema`` is documentation and not checked: an invalid name gets "not found"."""
    return PathParameter(name=name, schema_extra=schema)


_CHECKPOINT_ID = {"pattern": "^[0-9a-f]{24}$"}
ExportName: TypeAlias = Annotated[str, _in_path("name", pattern=NAME_PATTERN, max_length=64)]
ProjectName: TypeAlias = Annotated[str, _in_path("project", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
InCheckpoint: TypeAlias = Annotated[str, _in_path("id", **_CHECKPOINT_ID)]
DiffBefore: TypeAlias = Annotated[str, _in_path("a", **_CHECKPOINT_ID)]
DiffAfter: TypeAlias = Annotated[str, _in_path("b", **_CHECKPOINT_ID)]
InPromotion: TypeAlias = Annotated[str, _in_path("promotion", pattern="^[0-9a-f]{16}$")]
InReapply: TypeAlias = Annotated[str, _in_path("reapply", pattern="^[0-9a-f]{32}$")]
InSession: TypeAlias = Annotated[str, _in_path("session", min_length=1, max_length=200)]
InSnapshot: TypeAlias = Annotated[str, _in_path("snapshot", min_length=1, max_length=128)]

Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=1000)]
"""How many items of a list."""
Cursor: TypeAlias = Annotated[str, QueryParameter(max_length=24000)]
"""``next_cursor`` of the last answer; empty for the beginning."""
OfProject: TypeAlias = Annotated[str, QueryParameter(max_length=128)]
"""Of this project alone."""
Below: TypeAlias = Annotated[str, QueryParameter(max_length=16384)]
"""This file, or those below it."""
FilePath: TypeAlias = Annotated[str, QueryParameter(min_length=1, max_length=16384)]
WithContent: TypeAlias = Annotated[bool, QueryParameter()]
"""With the text of what differs; else which files do."""
History: TypeAlias = Annotated[int, QueryParameter(ge=0, le=1000)]
"""The number of a session's last commands."""
