"""Requests of a client, line by line, and the encoding of answers and events. Pure: no I/O.

Source: docs/reference/stdio.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, cast

import msgspec

from holdfast.api._error_details import FOR_FRONTENDS, hint
from holdfast.api._field_names import naming_hint
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import UsageError
from holdfast.model.fast_typing import TypedDict
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.errors import HoldfastError

VERSION: Final = 1
MAX_LINE_BYTES: Final = 1 << 20
"""The longest line of a client, its newline not counted."""
MAX_PAGE: Final = 1000
MAX_TEXTS: Final = 10_000
"""In one list of a client, or one environment: in memory, many short ones take far more than their line."""
MAX_PART_BYTES: Final = 1 << 20
"""Of one answer to ``fs.read`` or ``checkpoint.read``."""

_MOST_ID: Final = 128
RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=_MOST_ID)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Directory = Annotated[int, msgspec.Meta(ge=0)] | Text | None
"""A working directory by its number, its label or its path; the first one if it is not said."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
PartLimit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PART_BYTES)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Step = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""The id of one; negative for what no command did."""
Steps = Annotated[list[Step], msgspec.Meta(min_length=1, max_length=MAX_PAGE)]
Texts = Annotated[list[str], msgspec.Meta(max_length=MAX_TEXTS)]
Environment = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_TEXTS)]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all payloads."""


class Hello(Payload, frozen=True, kw_only=True):
    """The first message: which versions of the protocol the client speaks."""

    versions: Annotated[list[int], msgspec.Meta(min_length=1, max_length=100)]


class GivenDirectory(Payload, frozen=True, kw_only=True):
    """A directory to work in, with a label and how it is used."""

    path: Text
    label: Annotated[str, msgspec.Meta(max_length=200)] = ""
    access: Literal["read_write", "read_only"] = "read_write"


class GivenIsolation(Payload, frozen=True, kw_only=True):
    """Where commands run, instead of the configuration. Hidden paths and variables are added to its own."""

    level: Literal["none", "namespace", "vm"] | msgspec.UnsetType = msgspec.UNSET
    network: Literal["open", "disabled", "allow"] | msgspec.UnsetType = msgspec.UNSET
    allow: Texts | msgspec.UnsetType = msgspec.UNSET
    dns: Texts | msgspec.UnsetType = msgspec.UNSET
    hidden: Texts | msgspec.UnsetType = msgspec.UNSET
    writable: Texts | msgspec.UnsetType = msgspec.UNSET
    tmp: Literal["own", "shared"] | msgspec.UnsetType = msgspec.UNSET
    environment: Texts | msgspec.UnsetType = msgspec.UNSET


class SessionStart(Payload, frozen=True, kw_only=True):
    """Begin to work."""

    working_directories: Annotated[list[GivenDirectory], msgspec.Meta(min_length=1, max_length=8)] | None = None
    """1 to 8 of {`path`, `label`, `access` (``read_write`` or ``read_only``)}."""
    isolation: GivenIsolation = GivenIsolation()
    vm_mode: Literal["persistent", "ephemeral"] | None = None
    """``persistent`` or ``ephemeral``: whether a virtual machine's disk stays."""
    guard: bool = False
    """Turn on the preset of the safeguards."""
    outside: Literal["barrier", "warn", "lock"] | None = None
    """``barrier`` or ``warn``: undo stops at edits by other processes, or passes."""


class Nothing(Payload, frozen=True, kw_only=True):
    """Takes no payload."""


class StepBegin(Payload, frozen=True, kw_only=True):
    """Open a step."""

    directory: Directory = None
    label: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class StepEnd(Payload, frozen=True, kw_only=True):
    """Close the step that ``step.begin`` has opened; ``step.rollback`` also takes it back."""

    directory: Directory = None


class UndoRollback(Payload, frozen=True, kw_only=True):
    """Take back the newest changes to the tree, some steps, or a run."""

    directory: Directory = None
    steps: Count | msgspec.UnsetType = msgspec.UNSET
    """How many changes, by default 1."""
    step_id: Step | None = None
    step_ids: Steps | None = None
    """Several, together."""
    run: str | None = None
    """All of it; empty: the newest."""
    force: bool = False
    """Overwrite edits by other processes, and undo steps recorded only in part."""
    dry_run: bool = False


class Redo(Payload, frozen=True, kw_only=True):
    """Bring back the newest undone changes, or some steps."""

    directory: Directory = None
    steps: Count | msgspec.UnsetType = msgspec.UNSET
    """How many changes, by default 1."""
    step_id: Step | None = None
    step_ids: Steps | None = None
    """Several, together."""
    force: bool = False
    dry_run: bool = False


class UndoHistory(Payload, frozen=True, kw_only=True):
    """The steps, newest first."""

    directory: Directory = None
    limit: Limit = 100
    before: Step | None = None
    """Only older ones."""
    changes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGE)] = 20
    """At most so many of each step."""


class UndoConfigure(Payload, frozen=True, kw_only=True):
    """How much the undo log holds; a field left out stays."""

    directory: Directory = None
    max_log_size_bytes: Whole | None = None
    max_step_count: Count | None = None
    """All steps of a session count as one."""
    max_single_step_size_bytes: Whole | None = None


class UndoDiscard(Payload, frozen=True, kw_only=True):
    """Forget an undo log of another version, or begin a new one in its place, when a person has agreed."""

    directory: Directory = None
    force: bool = False
    """Also a usable one."""


class AgentExecute(Payload, frozen=True, kw_only=True):
    """Run a command by ``sh -c``, without input, as a step."""

    ABSENT: ClassVar = {"timeout_seconds": "a command has no time limit here; agent.cancel ends it"}
    command: Text
    directory: Directory = None
    cwd: str = ""
    """Relative to the root, or absolute in it."""
    env: Environment = {}


class AgentPrompt(Payload, frozen=True, kw_only=True):
    """Have the configured agent work on a prompt."""

    prompt: Text
    directory: Directory = None
    cwd: str = ""
    env: Environment = {}


class AgentCancel(Payload, frozen=True, kw_only=True):
    """End a running command, or remove one from the queue."""

    request_id: RequestId
    """Of its request."""


class FsList(Payload, frozen=True, kw_only=True):
    """List a directory."""

    directory: Directory = None
    path: str = ""
    limit: Limit = MAX_PAGE
    after: str | None = None
    """Only names behind this one."""


class FsRead(Payload, frozen=True, kw_only=True):
    """Read a part of a file."""

    path: Text
    directory: Directory = None
    offset: Whole = 0
    limit: PartLimit = MAX_PART_BYTES


class FsStatus(Payload, frozen=True, kw_only=True):
    """Compare the tree with its last checkpoint."""

    directory: Directory = None


class SafeguardConfigure(Payload, frozen=True, kw_only=True):
    """Ask a person before the following; 0 and false: never."""

    directory: Directory = None
    delete_threshold: Whole | None = None
    """One step removes so many files."""
    overwrite_threshold_bytes: Whole | None = None
    """A file of so many bytes is overwritten."""
    rename_over: bool | None = None
    """A rename replaces a file."""
    unprotected: bool | None = None
    """A step that cannot be undone whole goes on."""
    timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=86400)] | None = None
    """After so long without an answer it is denied."""


class SafeguardConfirm(Payload, frozen=True, kw_only=True):
    """A person's answer to ``event.safeguard_triggered``."""

    safeguard_id: Text
    action: Literal["allow", "deny"]


class CheckpointCreate(Payload, frozen=True, kw_only=True):
    """Save the present state."""

    directory: Directory = None
    label: str = ""
    message: str = ""
    author: str | None = None


class CheckpointList(Payload, frozen=True, kw_only=True):
    """The checkpoints, newest first."""

    directory: Directory = None
    limit: Limit = 100
    before: str | None = None
    """Only older ones."""


class CheckpointDiff(Payload, frozen=True, kw_only=True):
    """Compare two states; by default, with the tree."""

    directory: Directory = None
    base: str = "@"
    target: str | None = None
    paths: Texts = []


class CheckpointRestore(Payload, frozen=True, kw_only=True):
    """Bring the tree, or some paths, to a checkpoint."""

    checkpoint: Text
    directory: Directory = None
    paths: Texts = []
    dry_run: bool = False


class CheckpointMend(Payload, frozen=True, kw_only=True):
    """Finish a restore that was cut short, or take it back."""

    directory: Directory = None


class CheckpointRead(Payload, frozen=True, kw_only=True):
    """Read a part of a saved file."""

    path: Text
    directory: Directory = None
    checkpoint: str = "@"
    offset: Whole = 0
    limit: PartLimit = MAX_PART_BYTES


class Fork(Payload, frozen=True, kw_only=True):
    """Write a checkpoint out as a workspace of its own."""

    path: Text
    """Absolute, of a new or empty directory in no other working directory."""
    directory: Directory = None
    checkpoint: str | None = None
    """By default the present state, saved first."""


class Failure(TypedDict):
    """Why a request was not followed."""

    code: str
    message: str
    hint: str | None
    data: dict[str, Any] | None


class Request(NamedTuple):
    """The parsed request of a line."""

    type: str
    request_id: str
    payload: Any
    """Of the type that belongs to ``type``."""


class BadRequestError(UsageError):
    """A line that is no request; ``request_id`` is its id and ``field`` the wrong field, as far as they are known."""

    code = "bad_request"

    def __init__(
        self,
        message: str,
        *,
        request_id: str | None,
        field: str | None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.request_id = request_id
        self.field = field


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    request_id: RequestId
    payload: msgspec.Raw = msgspec.Raw(b"{}")


class _OnlyId(msgspec.Struct, frozen=True):
    request_id: RequestId | None = None


_lines = json_decoder(_Line)
_ids = json_decoder(_OnlyId)
_encoder = msgspec.json.Encoder()
_WRONG = re.compile(r"(?P<what>.*?)(?: - at (?:key in )?`(?P<at>[^`]*)`)?\Z", re.DOTALL)
_MISSING_OR_UNKNOWN = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`\Z", re.DOTALL)
_NO_SUCH_VALUE = "Invalid enum value "
_HALF = re.compile("[\ud800-\udfff]")
_SHOWN = 200


def decode(line: bytes, known: Mapping[str, type[Payload]]) -> Request:
    """The request that a line, without its newline, is; ``known`` has the operations. Raises `BadRequestError`
    (``bad_request``, ``unknown_operation``) naming the field.
    """
    try:
        found = _lines.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if (half := _with_half_a_character(line)) is not None:
            raise half from None
        outside = "the fields of an operation stand in payload" if "unknown field" in str(error) else None
        raise _refused(error, "", _request_id(line), outside) from None
    kind = known.get(found.type)
    if kind is None:
        raise BadRequestError(
            f"there is no operation {found.type[:_SHOWN]!r}",
            request_id=found.request_id,
            field="type",
            code="unknown_operation",
        )
    try:
        return Request(found.type, found.request_id, json_decoder(kind).decode(found.payload))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refused(error, "payload", found.request_id, naming_hint(str(error), kind)) from None


def response(request_id: str, payload: object) -> bytes:
    """The line that answers a request."""
    return _line({"type": "response", "request_id": request_id, "status": "ok", "payload": payload})


def refusal(request_id: str | None, error: HoldfastError, data: Mapping[str, object] | None = None) -> bytes:
    """The line that refuses a request; its id is null if the line had none."""
    told = {**(data or {}), **(error.data or {})} or None
    failure = encode(Failure, error, hint=hint(error, FOR_FRONTENDS), data=told)
    return _line({"type": "response", "request_id": request_id, "status": "error", "error": failure})


def event(name: str, payload: object) -> bytes:
    """The line that tells of an event."""
    return _line({"type": name, "payload": payload})


def _line(message: dict[str, object]) -> bytes:
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:  # a file name or a client's text has a lone surrogate
        import json

        return json.dumps(msgspec.to_builtins(message)).encode() + b"\n"


def _request_id(line: bytes) -> str | None:
    try:
        return _ids.decode(line).request_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _with_half_a_character(line: bytes) -> BadRequestError | None:
    """Why a line is refused that is JSON but for half of a surrogate pair in a text, which only some decoders take."""
    if b"\\u" not in line:
        return None
    import json

    try:
        found = json.loads(line)
        if not _HALF.search(json.dumps(found, ensure_ascii=False)):
            return None
    except (ValueError, RecursionError):
        return None
    said = cast("dict[str, object]", found).get("request_id") if isinstance(found, dict) else None
    is_id = isinstance(said, str) and 1 <= len(said) <= _MOST_ID and not _HALF.search(said)
    return BadRequestError(
        "a text holds half of a surrogate pair, which is no character",
        request_id=str(said) if is_id else None,
        field=None,
    )


def _refused(error: Exception, where: str, request_id: str | None, naming: str | None = None) -> BadRequestError:
    if isinstance(error, RecursionError):
        return BadRequestError("it is nested too deeply", request_id=request_id, field=where or None)
    match = _WRONG.match(str(error))
    what, at = (match["what"], match["at"]) if match else (str(error), None)
    name = _MISSING_OR_UNKNOWN.match(what)
    parts = [where, (at or "").removeprefix("$").removeprefix("."), name[1] if name else ""]
    field = ".".join(part for part in parts if part)[:_SHOWN] or None
    shown = what[:_SHOWN]
    if shown.startswith(_NO_SUCH_VALUE):
        # The rest repeats the client's value, which may be a secret in the wrong field, and the log gets this text.
        shown = "none of the values that it may have"
    said = f"{field}: {shown}" if field else shown
    return BadRequestError(said, request_id=request_id, field=field, hint=naming)
