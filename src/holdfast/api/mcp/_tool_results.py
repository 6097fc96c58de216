"""Results of the tools that are no objects of docs/reference/json.md; clients see their schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from holdfast.api._truncated_results import MadeCheckpoint, Reverted, Step, cut
from holdfast.api.mcp._text_content import Encoding  # noqa: TC001 - schemas are made of it
from holdfast.model.answers import experiments, faces, files, merges, sessions
from holdfast.model.answers import workspace as answers
from holdfast.model.answers.steps import Barrier, StepWithChanges, Ticket
from holdfast.model.answers.workspace import ChangedTree
from holdfast.model.fast_typing import TypedDict
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.answers.words import ContentHash, Path
    from holdfast.model.command_results import CheckpointResult, RestoreResult
    from holdfast.undo.service import ConflictInfo, PathChange, StepInfo


class Executed(TypedDict):
    exit_code: int
    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    step: Step | None
    timed_out: bool
    denied: bool
    held: list[Ticket]
    output_open: bool


class FileRead(TypedDict):
    path: Path
    content: str
    encoding: Encoding
    offset: int
    bytes: int
    size: int
    hash: ContentHash | None
    next_cursor: str | None


class FileWritten(TypedDict):
    path: Path
    bytes: int
    hash: ContentHash
    step: Step | None


class FileEdited(TypedDict):
    path: Path
    replaced: int
    step: Step | None


class BegunStep(TypedDict):
    id: int


class Listing(TypedDict):
    path: Path
    entries: list[files.Entry]
    total: int
    next_cursor: str | None


class History(TypedDict):
    steps: list[Step]
    total: int
    next_cursor: str | None


class WorkingDirectory(TypedDict):
    index: int
    label: str
    path: Path
    access: Literal["read_write", "read_only"]
    state: Literal["stopped", "idle", "running", "failed"]
    run: str
    step: int | None


class Recovered(TypedDict):
    steps: list[int]
    paths: int


class SessionStatus(TypedDict):
    version: str
    directories: list[WorkingDirectory]
    directory: int
    guarded: bool
    held: list[Ticket]
    barriers: list[Barrier]
    recovered: list[Recovered]
    last_checkpoint: str | None
    steps: int
    differs: answers.Counts | None
    unfinished_restore: bool


class Checkpoints(TypedDict):
    head: str | None
    checkpoints: list[answers.Checkpoint]
    total: int
    next_cursor: str | None


class NextReapply(TypedDict):
    change: dict[str, Any] | None


class AnsweredReapply(TypedDict):
    id: str
    status: Literal["answered", "declined"]


FileStatus = Literal["A", "M", "D", "T", "R"]


class FileDifference(TypedDict):
    path: Path
    before_path: Path
    status: FileStatus
    added: int | None
    removed: int | None
    binary: bool


class Difference(TypedDict):
    base: str | None
    target: str | None
    files: list[FileDifference]
    patch: str
    patch_omitted: int
    total: int
    next_cursor: str | None


class Sessions(TypedDict):
    sessions: list[faces.ListedSession]
    total: int
    next_cursor: str | None


class Session(sessions.SessionInfo):
    history: list[sessions.Command]


class EndedSession(TypedDict):
    id: str
    ended: int
    checkpoint: str


# These leave out the command that reverses the operation.


class Merged(merges.Merged):
    restored: ChangedTree | None  # pyright: ignore[reportIncompatibleVariableOverride]


class MergedSession(experiments.SessionMerge):
    restored: Annotated[ChangedTree | None, "merged.restored"]  # pyright: ignore[reportIncompatibleVariableOverride]


class Adopted(ChangedTree):
    state: str


class Experiment(experiments.Experiment):
    adopted: Adopted | None  # pyright: ignore[reportIncompatibleVariableOverride]


# The engine's objects as the tools answer them, with their long lists cut.

SHOWN: Final = 200
"""Items of a list that grows with the tree and has no pages."""


def step_object(
    value: StepInfo, changes: Sequence[PathChange] | None = None, left: Sequence[ConflictInfo] = ()
) -> Step:
    """A step with its conflicts ``left``; without ``changes``, only their number."""
    shown = encode(StepWithChanges, value, changes=changes or (), conflicts=left[:SHOWN])
    if changes is None:
        return {**shown, "totals": {"changes": value.paths}}
    return cut(shown, "changes", most=SHOWN)


def restored_object(result: RestoreResult) -> Reverted:
    """The result of a restore, an undo or a redo, or its preview."""
    return cut(encode(Reverted, result, totals={}), "written", "deleted", "skipped", "steps", most=SHOWN)


def checkpoint_object(result: CheckpointResult) -> MadeCheckpoint:
    """A checkpoint that was taken."""
    return cut(encode(answers.MadeCheckpoint, result), "not_captured", most=SHOWN)


MOST_TEXT: Final = 8192
"""Characters of a text that a command has written, or that shows a difference, where an object has several of them."""


def clipped(value: Any) -> Any:
    """``value`` with at most `SHOWN` items in each list, and `MOST_TEXT` characters in each text."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        lists = {name: cast("list[Any]", each) for name, each in members.items() if isinstance(each, list)}
        cut_short = {name: len(each) for name, each in lists.items() if len(each) > SHOWN}
        shown = {name: clipped(each) for name, each in members.items()}
        return {**shown, "totals": cut_short} if cut_short else shown
    if isinstance(value, list):
        return [clipped(each) for each in cast("list[Any]", value)[:SHOWN]]
    if isinstance(value, str) and len(value) > MOST_TEXT:
        half = MOST_TEXT // 2
        return f"{value[:half]}\n… {len(value) - 2 * half} characters left out …\n{value[-half:]}"
    return value
