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
Cursor = Annotated[str | None, Meta(description="next_cursor of the page before; the first page without")]
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
        str, Meta(min_length=1, max_length=100_000, description="Run with sh -c, without a terminal and without input")
    ]
    cwd: Annotated[str, Meta(description="Where to run it, as a path in the working directory")] = ""
    environment: Annotated[dict[str, str], Meta(description="Variables beside those that there are")] = {}
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(description="Cancel it after so long; without, it may take as long as it does"),
    ] = None
    max_output_bytes: Annotated[
        int, Meta(ge=1024, le=MOST_OUTPUT, description="Of each stream; of a longer one its beginning and its end")
    ] = DEFAULT_OUTPUT


class ReadFile(Request):
    path: Path
    cursor: Cursor = None
    max_bytes: Annotated[int, Meta(ge=1024, le=MOST_CONTENT, description="In one page")] = DEFAULT_CONTENT


class WriteFile(Request):
    path: Path
    content: Annotated[str, Meta(description="The whole content of the file")]
    encoding: Annotated[Encoding, Meta(description="How content is written: base64 for bytes that are not UTF-8")] = (
        "utf-8"
    )
    expected_hash: Annotated[
        str | None,
        Meta(
            description="Write only if the file has this hash now (as read_file tells it); empty: if there is no file"
        ),
    ] = None


class EditFile(Request):
    path: Path
    old_text: Annotated[str, Meta(min_length=1, description="The text to replace; it must be there exactly once")]
    new_text: Annotated[str, Meta(description="The text to put in its place")]
    replace_all: Annotated[bool, Meta(description="Replace it wherever it is, once or more")] = False


class ListDirectory(Request):
    path: Path = ""
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class BeginStep(Request):
    label: Annotated[str, Meta(max_length=1000, description="What it is for")] = ""


class EndStep(Request):
    pass


class Undo(Request):
    count: Annotated[Count, Meta(description="So many of the newest changes to the tree that steps or tools made")] = 1
    step: Annotated[int | None, Meta(description="Instead: this step, by its id")] = None
    steps: Annotated[Steps | None, Meta(description="Instead: these steps, by their ids, together")] = None
    run: Annotated[str | None, Meta(description="Instead: all that one run did, by its id")] = None
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class Redo(Request):
    count: Annotated[Count, Meta(description="So many of the newest changes that undo took back")] = 1
    step: Annotated[int | None, Meta(description="Instead: this step, by its id")] = None
    steps: Annotated[Steps | None, Meta(description="Instead: these steps, by their ids, together")] = None
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class GetUndoHistory(Request):
    step: Annotated[int | None, Meta(description="Only this step, with its changed paths")] = None
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class GetSessionStatus(Request):
    compare: Annotated[
        bool, Meta(description="Also count the differences from the newest checkpoint: the tree is scanned")
    ] = False


class TakeCheckpoint(Request):
    label: Annotated[str, Meta(max_length=1000, description="A name for it")] = ""
    message: Annotated[str, Meta(max_length=100_000, description="Why it is taken")] = ""


class ListCheckpoints(Request):
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class Compare(Request):
    base: Annotated[Checkpoint, Meta(description="The state before")] = "@"
    target: Annotated[Checkpoint | None, Meta(description="The state after; without, the tree as it is now")] = None
    paths: Annotated[list[Path], Meta(max_length=1000, description="Only these paths, and all below them")] = []
    format: Annotated[
        Literal["patch", "stat", "names"],
        Meta(description="Text of the changes, lines added and removed, or paths alone"),
    ] = "patch"
    cursor: Cursor = None
    limit: Limit = DEFAULT_ITEMS


class Restore(Request):
    checkpoint: Checkpoint
    paths: Annotated[list[Path], Meta(max_length=1000, description="Only these paths, and all below them")] = []
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False


class NextReapply(Request):
    pass


class AnswerReapply(Request):
    id: Annotated[str, Meta(max_length=100, description="Of the change, as next_reapply gave it")]
    token: Annotated[str, Meta(max_length=100, description="Likewise")]
    version: Annotated[str, Meta(max_length=100, description="Likewise: the version that the new content is for")]
    content: Annotated[str | None, Meta(description="The new content of the file, all of it")] = None
    encoding: Annotated[Encoding, Meta(description="Of content")] = "utf-8"
    delete: Annotated[bool, Meta(description="In place of content: the file is to be deleted")] = False
    decline: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        Meta(description="In place of content: why the change cannot be applied; another agent is then asked"),
    ] = None
    said: Annotated[str, Meta(max_length=1000, description="How it was done, for the record")] = ""


class Fork(Request):
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$(?!\n)",  # $ also matches before a last "\n"; not in JavaScript
            description="Of the new directory, beside the working directory",
        ),
    ]
    checkpoint: Annotated[
        Checkpoint | None,
        Meta(description="An id, a label, @ (the newest), @-3; without, the present state, which is saved first"),
    ] = None


class FileResolution(Struct, kw_only=True, forbid_unknown_fields=True):
    """The decision about a file that both sides have changed."""

    path: Path
    use: Annotated[
        Literal["ours", "theirs", "content", "delete"],
        Meta(description="As it is here, as the other side has it, the content given with it, or no file"),
    ]
    content: Annotated[str | None, Meta(description="The new content of the file, all of it")] = None
    encoding: Annotated[Encoding, Meta(description="Of content")] = "utf-8"
    version: Annotated[
        str | None, Meta(description="The file's own in overlapping_files; without it, the last one shown counts")
    ] = None


Resolutions = Annotated[
    list[FileResolution], Meta(max_length=MOST_ITEMS, description="What becomes of files that both sides have changed")
]


class Merge(Request):
    fork: Annotated[
        str,
        Meta(min_length=1, max_length=1000, description="The name that the tool fork was given, or a checkpoint of it"),
    ]
    message: Annotated[str, Meta(max_length=100_000, description="Why, for the history")] = ""
    resolutions: Resolutions = []
    dry_run: Annotated[bool, Meta(description="Only say what would be done, and what overlaps")] = False


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
        Meta(description="What to call it; without, it gets a name"),
    ] = None
    cwd: Annotated[str, Meta(description="Where it begins, as a path in the working directory")] = ""
    environment: Annotated[dict[str, str], Meta(description="Variables beside those that there are")] = {}


class ExecuteInSession(Request):
    session: SessionName
    command: Annotated[
        str, Meta(min_length=1, max_length=100_000, description="Run by the session's shell, without input")
    ]
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(description="End it after so long; without, as the session is configured"),
    ] = None


class ForkSession(Request):
    session: SessionName
    fork: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="What to call the new session; without, it gets a name"),
    ] = None
    state: Annotated[str | None, Meta(description="A branch, or a saved state's hash; without, the present state")] = (
        None
    )
    with_ignored: Annotated[bool, Meta(description="With what ignore rules leave out, such as dependencies")] = False


class MergeSession(Request):
    session: SessionName
    other: Annotated[str, Meta(min_length=1, max_length=200, description="The session to bring in, such as a fork")]
    prefer: Annotated[
        Literal["ours", "theirs"] | None, Meta(description="Which side wins in a conflict; without, none does")
    ] = None
    resolutions: Resolutions = []
    dry_run: Annotated[bool, Meta(description="Only say what would be done, and what overlaps")] = False


class EndSession(Request):
    session: SessionName


class RunExperiment(Request):
    commands: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100_000)]],
        Meta(min_length=1, max_length=20, description="What to try, each in a fork of its own"),
    ]
    session: Annotated[
        str | None,
        Meta(description="From whose state; without, the newest session of the working directory, or a new one"),
    ] = None
    setup: Annotated[str, Meta(max_length=100_000, description="The command to run in every fork first")] = ""
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None, Meta(description="An attempt that takes longer is ended")
    ] = None
    compare_by: Annotated[
        Literal["exit_code", "output", "duration"],
        Meta(description="What makes the best; what fails comes last"),
    ] = "exit_code"
    score: Annotated[
        str | None,
        Meta(description="Instead: the number that this command prints in each fork; the lowest is the best"),
    ] = None
    highest: Annotated[bool, Meta(description="The highest score is the best")] = False
    parallel: Annotated[int, Meta(ge=0, le=20, description="How many run at once; 0: as many as may")] = 0
    keep: Annotated[bool, Meta(description="Keep the forks, as sessions")] = False
    adopt: Annotated[bool, Meta(description="Bring the session's files to what the best has made")] = False
    with_ignored: Annotated[bool, Meta(description="Forks with what ignore rules leave out, such as dependencies")] = (
        False
    )
