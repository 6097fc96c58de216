"""Arguments of the tools. Their schemas are generated from these structs; clients' arguments are converted strictly."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from holdfast.api.mcp._text_content import Encoding

DEFAULT_OUTPUT: Final = 64 << 10
MOST_OUTPUT: Final = 1 << 20
DEFAULT_CONTENT: Final = 64 << 10
MOST_CONTENT: Final = 1 << 20
DEFAULT_ITEMS: Final = 100
MOST_ITEMS: Final = 1000
MOST_WORD_BYTES: Final = (128 << 10) - 16
"""About the kernel's limit for one argument, or one variable with its name (execve(2))."""
MOST_VARIABLES_BYTES: Final = 512 << 10
"""For all variables of a command. The kernel's limit counts the inherited ones and the arguments, too."""

Directory = Annotated[
    int | str | None,
    Meta(
        description="Which working directory: its index, label or path (get_session_status lists them); else the first"
    ),
]
Path = Annotated[str, Meta(max_length=20_000, description="Relative to the working directory, or absolute in it")]
Cursor = Annotated[str | None, Meta(description="next_cursor of the page before")]
Limit = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="Items in a page")]
Checkpoint = Annotated[
    str, Meta(min_length=1, max_length=1000, description="An id or its beginning, a label, @ (the newest), @-, @-3")
]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Steps = Annotated[list[int], Meta(min_length=1, max_length=MOST_ITEMS)]


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all tools' arguments."""

    directory: Directory = None


class ExecuteCommand(Request):
    command: Annotated[
        str, Meta(min_length=1, max_length=100_000, description="Run by sh -c, without terminal and input")
    ]
    cwd: Annotated[str, Meta(description="Where, as a path in the working directory")] = ""
    environment: Annotated[dict[str, str], Meta(description="Further variables")] = {}
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(description="End it after so long; without, never"),
    ] = None
    max_output_bytes: Annotated[
        int, Meta(ge=1024, le=MOST_OUTPUT, description="Of each stream; more is cut in the middle")
    ] = DEFAULT_OUTPUT


class ReadFile(Request):
    path: Path
    cursor: Cursor = None
    max_bytes: Annotated[int, Meta(ge=1024, le=MOST_CONTENT)] = DEFAULT_CONTENT


class WriteFile(Request):
    path: Path
    content: str
    encoding: Annotated[Encoding, Meta(description="base64 for content that is not UTF-8")] = "utf-8"
    expected_hash: Annotated[
        str | None,
        Meta(description="Write only if the file has this hash (see read_file); empty: if there is no file"),
    ] = None


class EditFile(Request):
    path: Path
    old_text: Annotated[str, Meta(min_length=1, description="Must be there exactly once")]
    new_text: str
    replace_all: Annotated[bool, Meta(description="Replace old_text wherever it is")] = False


class ListDirectory(Request):
    path: Path = ""
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class BeginStep(Request):
    label: Annotated[str, Meta(max_length=1000, description="What it is for")] = ""


class EndStep(Request):
    pass


class Undo(Request):
    count: Annotated[Count, Meta(description="So many of the newest changes by steps or tools")] = 1
    step: Annotated[int | None, Meta(description="Instead of count: the step with this id")] = None
    steps: Annotated[Steps | None, Meta(description="Instead of count: the steps with these ids, together")] = None
    run: Annotated[str | None, Meta(description="Instead of count: all changes of the run with this id")] = None
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class Redo(Request):
    count: Annotated[Count, Meta(description="So many of the newest")] = 1
    step: Annotated[int | None, Meta(description="Instead of count: the step with this id")] = None
    steps: Annotated[Steps | None, Meta(description="Instead of count: the steps with these ids, together")] = None
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class GetUndoHistory(Request):
    step: Annotated[int | None, Meta(description="Only this step")] = None
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class GetSessionStatus(Request):
    compare: Annotated[bool, Meta(description="Scan the tree for differences from the newest checkpoint")] = False


class TakeCheckpoint(Request):
    label: Annotated[str, Meta(max_length=1000, description="A name for it")] = ""
    message: Annotated[str, Meta(max_length=100_000, description="Why, for the history")] = ""


class ListCheckpoints(Request):
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class Compare(Request):
    base: Annotated[Checkpoint, Meta(description="The state before")] = "@"
    target: Annotated[Checkpoint | None, Meta(description="The state after; without, the present tree")] = None
    paths: Annotated[list[Path], Meta(max_length=1000, description="Only these paths and all below")] = []
    format: Annotated[
        Literal["patch", "stat", "names"],
        Meta(description="patch: the text of the changes; stat: lines added and removed; names: paths alone"),
    ] = "patch"
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class Restore(Request):
    checkpoint: Checkpoint
    paths: Annotated[list[Path], Meta(max_length=1000, description="Only these paths and all below")] = []
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class NextReapply(Request):
    pass


class AnswerReapply(Request):
    id: Annotated[str, Meta(max_length=100, description="As next_reapply gave it")]
    token: Annotated[str, Meta(max_length=100, description="As next_reapply gave it")]
    version: Annotated[str, Meta(max_length=100, description="As next_reapply gave it")]
    content: Annotated[str | None, Meta(description="All of the file")] = None
    encoding: Annotated[Encoding, Meta(description="base64 for content that is not UTF-8")] = "utf-8"
    delete: Annotated[bool, Meta(description="Instead of content: delete the file")] = False
    decline: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        Meta(description="Instead of content: why it cannot be applied; another agent is then asked"),
    ] = None
    said: Annotated[str, Meta(max_length=1000, description="How, for the record")] = ""


class Fork(Request):
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$(?!\n)",  # $ also matches before a last "\n"; not in JavaScript
            description="Of the new directory",
        ),
    ]
    checkpoint: Annotated[
        Checkpoint | None,
        Meta(description="An id, a label, @ or @-3; without, the present state, saved first"),
    ] = None


class FileResolution(Struct, kw_only=True, forbid_unknown_fields=True):
    """The decision about a file that both sides have changed."""

    path: Path
    use: Annotated[
        Literal["ours", "theirs", "content", "delete"],
        Meta(description="As it is here, as the other side has it, the content given with it, or no file"),
    ]
    content: Annotated[str | None, Meta(description="All of the file")] = None
    encoding: Annotated[Encoding, Meta(description="base64 for content that is not UTF-8")] = "utf-8"
    version: Annotated[str | None, Meta(description="As in overlapping_files; without, the last one shown counts")] = (
        None
    )


Resolutions = Annotated[
    list[FileResolution],
    Meta(max_length=MOST_ITEMS, description="Decisions about files that both sides changed: {path, use}"),
]


class Merge(Request):
    fork: Annotated[
        str,
        Meta(min_length=1, max_length=1000, description="The name given to the tool fork, or a checkpoint of it"),
    ]
    message: Annotated[str, Meta(max_length=100_000, description="Why, for the history")] = ""
    resolutions: Resolutions = []
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


SessionName = Annotated[str, Meta(min_length=1, max_length=200, description="The session, by its id")]


class ListSessions(Request):
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class GetSession(Request):
    session: SessionName
    history: Annotated[int, Meta(ge=0, le=MOST_ITEMS, description="So many of its last commands")] = 10


class StartSession(Request):
    session: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="Its name; without, it gets one"),
    ] = None
    cwd: Annotated[str, Meta(description="Where, as a path in the working directory")] = ""
    environment: Annotated[dict[str, str], Meta(description="Further variables")] = {}


class ExecuteInSession(Request):
    session: SessionName
    command: Annotated[
        str, Meta(min_length=1, max_length=100_000, description="Run by the session's shell, without input")
    ]
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(description="End it after so long; without, as configured"),
    ] = None


class ForkSession(Request):
    session: SessionName
    fork: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="The new session's name; without, it gets one"),
    ] = None
    state: Annotated[str | None, Meta(description="A branch, or a saved state's hash; without, the present state")] = (
        None
    )
    with_ignored: Annotated[bool, Meta(description="With ignored files, such as dependencies")] = False


class MergeSession(Request):
    session: SessionName
    other: Annotated[str, Meta(min_length=1, max_length=200, description="The session to merge")]
    prefer: Annotated[
        Literal["ours", "theirs"] | None, Meta(description="Which side wins conflicts; without, none")
    ] = None
    resolutions: Resolutions = []
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class EndSession(Request):
    session: SessionName


class RunExperiment(Request):
    commands: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100_000)]],
        Meta(min_length=1, max_length=20),
    ]
    session: Annotated[
        str | None,
        Meta(description="The session to fork; without, the newest here, or a new one"),
    ] = None
    setup: Annotated[str, Meta(max_length=100_000, description="Run in each fork first")] = ""
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(description="End an attempt after so long; without, as configured"),
    ] = None
    compare_by: Annotated[
        Literal["exit_code", "output", "duration"],
        Meta(description="What makes the best; failures come last"),
    ] = "exit_code"
    score: Annotated[
        str | None,
        Meta(description="Instead of compare_by: the number that this command prints in each fork; the lowest is best"),
    ] = None
    highest: Annotated[bool, Meta(description="The highest score is best")] = False
    parallel: Annotated[int, Meta(ge=0, le=20, description="How many at once; 0: as many as may")] = 0
    keep: Annotated[bool, Meta(description="Keep the forks, as sessions")] = False
    adopt: Annotated[bool, Meta(description="Make the session's files the best attempt's")] = False
    with_ignored: Annotated[bool, Meta(description="With ignored files, such as dependencies")] = False
