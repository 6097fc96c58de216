"""What a command and the watcher beside it say to each other: one JSON object a line, in UTF-8, over a private socket.

A call is ``{"v": 1, "op": …}``, for ``checkpoint`` with ``kind``, ``label``, ``author``, ``message``, ``command`` and
``full_hash``. An answer is ``{"v": 1, "ok": true, "result": {…}}`` or ``{"v": 1, "ok": false, "error": {"type", "code",
"message", "hint"}}``. Results travel whole, so that both sides of the socket see the same values. Pure: no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.model.errors import FormatError, HoldfastError, rebuilt
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult, Status
    from holdfast.model.entries import Entry, NotCaptured

VERSION = 1
MAX_CALL_BYTES = 1 << 16
"""A longer line is no call."""
MAX_ANSWER_BYTES = 1 << 26
"""A longer answer is not sent; the command then does the work itself."""

OPERATIONS = frozenset(("ping", "checkpoint", "status", "pause", "hush", "resume", "stop"))

Json = dict[str, Any]
_T = TypeVar("_T")


class WatchCall(NamedTuple):
    """What a command asks of the watcher."""

    operation: str
    request: CheckpointRequest | None = None
    """Of a ``checkpoint``: what is asked of it."""


class WatcherState(NamedTuple):
    """How a watcher does: the answer to ``ping``."""

    pid: int
    root: str
    """The workspace's path, as `display` shows it."""
    backend: str
    limits: str | None
    """What the backend cannot notice."""
    started_at: int
    """Microseconds since 1970-01-01 UTC."""
    paused: bool
    unsaved: bool
    """True if something has changed since the last save."""
    checkpoints: int
    """How many checkpoints it has made by itself."""
    failure: str | None
    """Why the last attempt to save failed; None if it did not."""


# -- calls ------------------------------------------------------------------------------------------------------------


def encode_call(call: WatchCall) -> bytes:
    """One line; raises `FormatError` if it would be longer than `MAX_CALL_BYTES`."""
    body: Json = {"v": VERSION, "op": call.operation}
    if call.request is not None:
        request = call.request
        body.update(kind=request.kind, label=request.label, full_hash=request.full_hash, **request.provenance._asdict())
    line = _line(body)
    if len(line) > MAX_CALL_BYTES:
        raise FormatError(f"the label, message and command are longer than {MAX_CALL_BYTES} bytes together")
    return line


def decode_call(line: bytes) -> WatchCall:
    """The inverse of `encode_call`; raises `FormatError` naming the field for anything else."""
    from holdfast.model.checkpoint import KINDS, Provenance
    from holdfast.model.command_results import CheckpointRequest

    body = _object(line)
    operation = body.get("op")
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise FormatError(f"op: expected one of {', '.join(sorted(OPERATIONS))}")
    if operation != "checkpoint":
        return WatchCall(operation)
    kind = body.get("kind", "manual")
    if kind not in KINDS:
        raise FormatError(f"kind: expected one of {', '.join(KINDS)}")
    full_hash = body.get("full_hash", False)
    if not isinstance(full_hash, bool):
        raise FormatError("full_hash: expected true or false")
    texts: dict[str, str] = {}
    for name in ("label", "author", "message", "command"):
        text = body.get(name, "")
        if not isinstance(text, str):
            raise FormatError(f"{name}: expected text")
        texts[name] = text
    label = texts.pop("label")
    return WatchCall(operation, CheckpointRequest(kind, label, Provenance(**texts), full_hash))


# -- answers ----------------------------------------------------------------------------------------------------------


def encode_answer(result: Json) -> bytes:
    """One line with a result; one with an error instead if it would be longer than `MAX_ANSWER_BYTES`."""
    line = _line({"v": VERSION, "ok": True, "result": result})
    if len(line) > MAX_ANSWER_BYTES:
        return encode_failure(HoldfastError("the answer is too long for the socket", code="too_long"))
    return line


def encode_failure(error: HoldfastError) -> bytes:
    """One line with an error, which `decode_answer` raises again on the other side."""
    details = {"type": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint}
    return _line({"v": VERSION, "ok": False, "error": details})


def decode_answer(line: bytes) -> Json:
    """The result in an answer. Raises the error that it holds instead; `FormatError` if it is no answer."""
    body = _object(line)
    if body.get("ok") is True:
        result = body.get("result")
        if not isinstance(result, dict):
            raise FormatError("result: expected an object")
        return cast("Json", result)
    details = body.get("error")
    if not isinstance(details, dict):
        raise FormatError("error: expected an object")
    given = cast("Json", details)
    hint = given.get("hint")
    raise rebuilt(
        str(given.get("type")),
        str(given.get("message")),
        hint=None if hint is None else str(hint),
        code=str(given.get("code", HoldfastError.code)),
    )


def pack_watching(value: WatcherState) -> Json:
    """`WatcherState` as JSON."""
    return value._asdict()


def unpack_watching(value: Json) -> WatcherState:
    """The inverse of `pack_watching`; raises `FormatError`."""
    return _unpacked(lambda: WatcherState(**value))


def pack_result(result: CheckpointResult) -> Json:
    """`CheckpointResult` as JSON, whole."""
    return {
        "checkpoint": _pack_checkpoint(result.checkpoint),
        "created": result.created,
        "not_captured": _pack_not_captured(result.not_captured),
        "elapsed_ms": result.elapsed_ms,
        "labelled": result.labelled,
    }


def unpack_result(value: Json) -> CheckpointResult:
    """The inverse of `pack_result`; raises `FormatError`."""
    from holdfast.model.command_results import CheckpointResult

    return _unpacked(
        lambda: CheckpointResult(
            _unpack_checkpoint(value["checkpoint"]),
            bool(value["created"]),
            _unpack_not_captured(value["not_captured"]),
            float(value["elapsed_ms"]),
            bool(value["labelled"]),
        )
    )


def pack_status(status: Status) -> Json:
    """`Status` as JSON, whole."""
    last = status.last_checkpoint
    return {
        "workspace": display(status.workspace),
        "last_checkpoint": None if last is None else _pack_checkpoint(last),
        "changes": [
            [display(change.path), _pack_entry(change.before), _pack_entry(change.after)] for change in status.changes
        ],
        "not_captured": _pack_not_captured(status.not_captured),
        "watching": status.watching,
        "unfinished_restore": status.unfinished_restore,
        "watch_failure": status.watch_failure,
    }


def unpack_status(value: Json) -> Status:
    """The inverse of `pack_status`; raises `FormatError`."""
    from holdfast.model.command_results import Status
    from holdfast.model.entries import Change

    return _unpacked(
        lambda: Status(
            workspace=parse_display(value["workspace"]),
            last_checkpoint=None if value["last_checkpoint"] is None else _unpack_checkpoint(value["last_checkpoint"]),
            changes=[
                Change(parse_display(path), _unpack_entry(before), _unpack_entry(after))
                for path, before, after in value["changes"]
            ],
            not_captured=_unpack_not_captured(value["not_captured"]),
            watching=bool(value["watching"]),
            unfinished_restore=value["unfinished_restore"],
            watch_failure=value["watch_failure"],
        )
    )


def _pack_checkpoint(value: Checkpoint) -> Json:
    fields = value._asdict()
    fields.update(root=value.root.hex(), changes=value.changes._asdict(), provenance=value.provenance._asdict())
    return fields


def _unpack_checkpoint(value: Json) -> Checkpoint:
    from holdfast.model.checkpoint import Checkpoint, Provenance
    from holdfast.model.entries import Counts
    from holdfast.model.ids import Hash

    fields = dict(value)
    fields.update(
        root=Hash(bytes.fromhex(value["root"])),
        changes=Counts(**value["changes"]),
        provenance=Provenance(**value["provenance"]),
    )
    return Checkpoint(**fields)


def _pack_entry(entry: Entry | None) -> list[object] | None:
    return None if entry is None else [entry.hash.hex(), entry.size, entry.mode]


def _unpack_entry(value: list[Any] | None) -> Entry | None:
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash

    if value is None:
        return None
    digits, size, mode = value
    return Entry(Hash(bytes.fromhex(digits)), size, mode)


def _pack_not_captured(items: Sequence[NotCaptured]) -> list[list[str]]:
    return [[display(item.path), item.reason] for item in items]


def _unpack_not_captured(value: list[list[str]]) -> list[NotCaptured]:
    from holdfast.model.entries import NotCaptured

    return [NotCaptured(parse_display(path), reason) for path, reason in value]


def _unpacked(build: Callable[[], _T]) -> _T:
    try:
        return build()
    except (KeyError, TypeError, ValueError, AttributeError, HoldfastError) as error:
        raise FormatError(f"the watcher's answer is not understood: {error!r}") from error


def _line(body: Json) -> bytes:
    import json

    return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _object(line: bytes) -> Json:
    """The object in a line of this version; raises `FormatError`."""
    import json

    try:
        body = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError("not a line of JSON in UTF-8") from error
    if not isinstance(body, dict):
        raise FormatError("expected an object")
    found = cast("Json", body)
    if found.get("v") != VERSION:
        raise FormatError(
            f"v: expected {VERSION}",
            hint="the watcher is of another version: `holdfast watch --stop`, then start it again",
        )
    return found
