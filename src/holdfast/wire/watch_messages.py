"""The messages between a command and its watcher, in requests and answers of `holdfast.ipc.messages`.

The methods are `OPERATIONS`; the argument of ``checkpoint`` is an object with ``kind``, ``label``, ``author``,
``message``, ``command``, ``full_hash`` and ``prompt`` (null for none). Results are sent whole, so that both sides of
the socket see the same values. They are packed by hand: a command that asks a watcher ends before msgspec would be
loaded. Pure: no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.ipc import messages
from holdfast.model.errors import FormatError, HoldfastError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult, Status
    from holdfast.model.entries import Entry, NotCaptured

MAX_CALL_BYTES = 1 << 16
"""A longer request is no call."""
MAX_ANSWER_BYTES = 1 << 26
"""A longer answer is not sent; the command then does the work itself."""

OPERATIONS = frozenset(("ping", "checkpoint", "status", "pause", "hush", "resume", "stop"))

Json = dict[str, Any]
_T = TypeVar("_T")


class WatchCall(NamedTuple):
    """A command's request to the watcher."""

    operation: str
    request: CheckpointRequest | None = None
    """The request of a ``checkpoint``."""


class WatcherState(NamedTuple):
    """How a watcher does: the answer to ``ping``."""

    pid: int
    root: str
    """The workspace's path, as `display` shows it."""
    backend: str
    limits: str | None
    """The changes that the backend cannot notice."""
    started_at: int
    """Microseconds since 1970-01-01 UTC."""
    paused: bool
    unsaved: bool
    """True if there were changes since the last save."""
    checkpoints: int
    """How many checkpoints it has made by itself."""
    failure: str | None
    """Why the last attempt to save failed; None if it did not."""


def encode_call(call: WatchCall) -> bytes:
    """The body of a request; raises `FormatError` if it would be longer than `MAX_CALL_BYTES`."""
    arguments: list[Json] = []
    if call.request is not None:
        request = call.request
        fields: Json = {"kind": request.kind, "label": request.label, "full_hash": request.full_hash}
        fields["prompt"] = request.prompt
        arguments.append(fields | request.provenance._asdict())
    body = messages.encode_request(call.operation, arguments)
    if len(body) > MAX_CALL_BYTES:
        raise FormatError(f"the label, message and command are longer than {MAX_CALL_BYTES} bytes together")
    return body


def decode_call(body: bytes) -> WatchCall:
    """The inverse of `encode_call`; raises `FormatError` naming the field for anything else."""
    from holdfast.model.checkpoint import KINDS, Provenance
    from holdfast.model.command_results import CheckpointRequest

    operation, arguments = messages.decode_request(body)
    if operation not in OPERATIONS:
        raise FormatError(f"there is no method {operation[:40]!r}, but {', '.join(sorted(OPERATIONS))}")
    if operation != "checkpoint":
        return WatchCall(operation)
    if len(arguments) != 1 or not isinstance(arguments[0], dict):
        raise FormatError("checkpoint: expected an object")
    fields = cast("Json", arguments[0])
    kind = fields.get("kind", "manual")
    if kind not in KINDS:
        raise FormatError(f"kind: expected one of {', '.join(KINDS)}")
    full_hash = fields.get("full_hash", False)
    if not isinstance(full_hash, bool):
        raise FormatError("full_hash: expected true or false")
    prompt = fields.get("prompt")
    if not isinstance(prompt, str | None):
        raise FormatError("prompt: expected text or null")
    texts: dict[str, str] = {}
    for name in ("label", "author", "message", "command"):
        text = fields.get(name, "")
        if not isinstance(text, str):
            raise FormatError(f"{name}: expected text")
        texts[name] = text
    label = texts.pop("label")
    return WatchCall(operation, CheckpointRequest(kind, label, Provenance(**texts), full_hash, prompt))


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
        "prompt": result.prompt,
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
            value.get("prompt"),  # a watcher that an earlier build has started sends none
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
        "next_save_at": status.next_save_at,
        "next_save_by": status.next_save_by,
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
            next_save_at=value.get("next_save_at"),  # a watcher that an earlier build has started sends none
            next_save_by=value.get("next_save_by"),
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
    if "labels" not in fields:  # a watcher that an earlier build has started sends one
        label = str(fields.pop("label"))
        fields["labels"] = [label] if label else []
    fields.update(
        labels=tuple(map(str, fields["labels"])),
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
