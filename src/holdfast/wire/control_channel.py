"""What the host and the shim say to each other about commands (docs/internals/control-channel.md): lines of JSON.
Pure: no I/O.

The host encodes requests and decodes replies; the shim, which has to do without this package, has its own code for the
other half. Fields that are not known are ignored, so that either side can be the newer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINE_BYTES: Final = 1 << 20
"""The longest line in either direction, its newline not counted."""
MAX_ID: Final = (1 << 53) - 1
"""What every reader of JSON keeps exact."""

Stream = Literal["stdout", "stderr"]
CommandId = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Content = Annotated[bytes, msgspec.Meta(min_length=1)]


class Exec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="exec"):
    """Run a command; made by `exec_request`."""

    id: int
    command: str
    cwd: str | None = None
    cwd_base64: bytes | None = None
    """Instead of ``cwd`` where that is not UTF-8."""
    env: dict[str, str] = {}
    """Besides the variables that the shim itself has."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cancel"):
    """End a command, if it still runs: SIGTERM to its process group, then SIGKILL."""

    id: int


class RollbackNotify(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rollback_notify"):
    """A step was rolled back: what was read of the tree before may be out of date."""

    step_id: int


Request = Exec | Cancel | RollbackNotify


class StepStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step_started"):
    """The command runs. An acknowledgement, no authority: ids are the host's."""

    id: CommandId


class Output(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output"):
    """A piece of what the command wrote: text, or bytes where it is not UTF-8. Exactly one of them is there."""

    id: CommandId
    stream: Stream
    data: Text | None = None
    data_base64: Content | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError`, which msgspec makes its own."""
        if (self.data is None) == (self.data_base64 is None):
            raise ValueError("expected one of data and data_base64")

    @property
    def content(self) -> bytes:
        """The bytes, whichever way they came."""
        return self.data.encode() if self.data is not None else self.data_base64 or b""


class StepCompleted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step_completed"):
    """The command has ended, and all that it wrote was passed on."""

    id: CommandId
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """As a shell says it: 128 and the number of the signal that ended it."""
    output_open: bool = False
    """Something that it left running still holds its output; what that writes from now on goes nowhere."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """A request was not followed: the ``exec`` with this id, or without one, a line that told no id."""

    code: str
    message: str
    id: CommandId | None = None


Reply = StepStarted | Output | StepCompleted | Failure

_encoder = msgspec.json.Encoder()
_replies = json_decoder(Reply)


def exec_request(identity: int, command: str, *, cwd: bytes, env: Mapping[str, str]) -> Exec:
    """The request that runs ``command`` in the directory ``cwd``. Raises `UsageError` for what no system can run."""
    if not 1 <= identity <= MAX_ID:
        raise UsageError(f"id: expected a number from 1 to {MAX_ID}, found {identity}")
    if "\0" in command or b"\0" in cwd:
        raise UsageError("a command and its directory hold no NUL")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env: {name!r} cannot be a variable of this value")
    try:
        return Exec(id=identity, command=command, cwd=cwd.decode(), env=dict(env))
    except UnicodeDecodeError:
        return Exec(id=identity, command=command, cwd_base64=cwd, env=dict(env))


def encode_request(request: Request) -> bytes:
    """A line, with its newline. Raises `UsageError` if it would be too long, or holds what is no Unicode."""
    try:
        line = _encoder.encode(request)
    except UnicodeEncodeError as error:
        raise UsageError(f"a command and its variables are text: {error.reason}") from error
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"the command and its variables are longer than {MAX_LINE_BYTES} bytes together")
    return line + b"\n"


def decode_reply(line: bytes) -> Reply:
    """What the shim said in a line without its newline. Raises `FormatError` naming the field."""
    try:
        return _replies.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"reply: {error}") from error


class Execution:
    """What the shim may say, and in which order, from an ``exec`` on: one `Failure`, or `StepStarted`, any `Output`,
    and `StepCompleted`; all with the id of that ``exec``.
    """

    __slots__ = ("_id", "_is_over", "is_started")

    def __init__(self, identity: int) -> None:
        self._id = identity
        self.is_started = False
        self._is_over = False

    def accept(self, reply: Reply) -> None:
        """Go on by ``reply``. Raises `FormatError` if it may not be said now."""
        kind = reply.__struct_config__.tag
        if isinstance(reply, Failure) and reply.id is None:
            raise FormatError(f"the shim did not understand a line ({reply.code[:40]}): {reply.message[:400]}")
        if reply.id != self._id:
            raise FormatError(f"id: {kind} of {reply.id}, while {self._id} is running")
        begins = isinstance(reply, StepStarted | Failure)
        if self._is_over or begins == self.is_started:
            raise FormatError(f"type: {kind} of {reply.id} out of turn")
        self.is_started = self.is_started or isinstance(reply, StepStarted)
        self._is_over = isinstance(reply, StepCompleted | Failure)
