"""The messages between a keeper and its clients: frames of MessagePack, each after its length. Pure: no I/O.

A request is ``[method, [argument, …]]``, an answer ``[result, nil]`` or ``[nil, [type, code, message, hint, data]]``.
The methods are those of `UndoService`, and those of runs. Both sides are of one version: a client finds the socket in
the log, and the log has a version.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.model.errors import FormatError, HoldfastError, rebuilt
from holdfast.undo.service import (
    BarrierInfo,
    ConflictInfo,
    LogLimits,
    PathChange,
    ProcessInfo,
    RunEnding,
    StepInfo,
    StepOutcome,
    Thresholds,
    TicketInfo,
    UndoReport,
    UnfinishedStep,
)

LENGTH: Final = struct.Struct("<I")
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 1 << 28


class JoinRequest(NamedTuple):
    """The arguments of ``join``, in their order."""

    run: str
    agent: int
    """The first process of its tree."""
    one_step: bool
    command: tuple[bytes, ...]
    directory: bytes
    read_only: int
    """So many descriptors of read-only directories follow the listener and the parent's socket."""
    thresholds: Thresholds
    """When the run wants a person to be asked."""
    mounted: bool
    """The tree sees the workspace by a mount alone, and the device of that comes in place of a listener."""


SIGNATURES: Final[dict[str, tuple[Any, Any]]] = {
    "steps": (tuple[()], list[StepInfo]),
    "changes": (tuple[int], list[PathChange]),
    "conflicts": (tuple[int], list[ConflictInfo]),
    "connected": (tuple[int], list[int]),
    "check_connected": (tuple[list[int]], None),
    "written_late": (tuple[()], list[tuple[int, bytes]]),
    "mixed_since": (tuple[int, int | None], list[tuple[int, bytes]]),
    "going_on": (tuple[()], list[UnfinishedStep]),
    "processes": (tuple[str], list[ProcessInfo]),
    "signal": (tuple[str, int], int),
    "forgotten": (tuple[()], list[str]),
    "undo": (tuple[list[int], bool], UndoReport),
    "redo": (tuple[list[int], bool], UndoReport),
    "foresee": (tuple[list[int], bool], None),
    "note_contents": (tuple[int, list[tuple[bytes, bytes]]], None),
    "unnoted": (tuple[()], list[int]),
    "left_files": (tuple[int], list[bytes]),
    "brought_back": (tuple[list[tuple[bytes, bytes | None]]], None),
    "still_brought": (tuple[list[bytes]], list[bytes]),
    "begin": (tuple[str], int),
    "commit": (tuple[int], StepInfo),
    "rollback": (tuple[int], UndoReport),
    "write": (tuple[bytes, bytes | None, str], StepInfo | None),
    "serves": (tuple[str], bool),
    "expect": (tuple[str, list[bytes]], int),
    "settle": (tuple[int, int | None], StepOutcome),
    "guard": (tuple[str, Thresholds], None),
    "thresholds": (tuple[()], Thresholds),
    "limits": (tuple[()], LogLimits),
    "configure": (tuple[LogLimits], None),
    "barriers": (tuple[()], list[BarrierInfo]),
    "held": (tuple[()], list[TicketInfo]),
    "answer": (tuple[int, bool], TicketInfo),
    "discard": (tuple[()], int),
    "quiet": (tuple[()], None),
    "resume": (tuple[()], None),
    "visit": (tuple[()], None),
    "join": (JoinRequest, None),
    "leave": (tuple[()], RunEnding),
}
"""Of every method: the types of its arguments, and of its result."""

OUTSIDE_ONLY: Final = frozenset(
    {
        *("answer", "brought_back", "configure", "discard", "expect", "foresee", "guard", "join", "note_contents"),
        *("quiet", "redo", "resume", "settle", "signal", "undo", "visit", "write"),
    }
)
"""What a process of a supervised tree may not ask: a tree never approves what it asks for itself (I9)."""

WITH_PROOF: Final = OUTSIDE_ONLY | {"begin", "commit", "rollback"}
"""With these a client sends its proof that it is outside, if it has one
(`holdfast.supervisor.control._unsupervised_proof`). Without one, the last three are about the process's own run alone.
"""

SUPERVISED = "inside_run"
"""The code of the error for a client that is inside of a tree, or has not proved that it is not."""

MOST_READ_ONLY: Final = 14
"""Read-only directories of one run."""

GONE = "keeper_gone"
"""The code of the error when the keeper ended before it answered."""

_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(tuple[str, list[Any]])
_answer = msgspec.msgpack.Decoder(tuple[Any, tuple[str, str, str, str | None, dict[str, Any] | None] | None])


def encode_request(method: str, *arguments: object) -> bytes:
    """A frame."""
    return _frame((method, arguments))


def decode_request(body: bytes) -> tuple[str, tuple[Any, ...]]:
    """The method and its arguments, of the right types. Raises `FormatError` naming what is wrong."""
    try:
        method, arguments = _request.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"request: {error}") from error
    if method not in SIGNATURES:
        raise FormatError(f"request: there is no method {method[:40]!r}")
    try:
        return method, msgspec.convert(arguments, SIGNATURES[method][0])
    except msgspec.MsgspecError as error:
        raise FormatError(f"{method}: {error}") from error


def encode_result(result: object) -> bytes:
    """A frame."""
    return _frame((result, None))


def encode_error(error: HoldfastError) -> bytes:
    """A frame that `decode_answer` raises on the other side."""
    return _frame((None, (type(error).__name__, error.code, error.message, error.hint, error.data)))


def decode_answer(method: str, body: bytes) -> Any:
    """The result. Raises the error that it holds instead; `FormatError` if it is no answer."""
    try:
        result, failure = _answer.decode(body)
        if failure is None:
            return msgspec.convert(result, SIGNATURES[method][1])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the keeper's answer to {method}: {error}") from error
    name, code, message, hint, data = failure
    raise rebuilt(name, message, hint=hint, code=code, data=data)


def _frame(value: object) -> bytes:
    body = _encoder.encode(value)
    return LENGTH.pack(len(body)) + body
