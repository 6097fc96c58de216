"""The messages between the host and the shim about commands (docs/internals/control-channel.md): lines of JSON. Pure:
no I/O.

The host encodes requests and decodes replies; the shim, which cannot use this package, has its own code for the other
half. All bytes, such as a command's arguments, input and output, are in Base64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION: Final = 2
MAX_LINE_BYTES: Final = 1 << 20
"""The longest line in either direction, its newline not counted."""
MAX_ID: Final = (1 << 53) - 1
"""Largest integer that every reader of JSON keeps exact."""
INPUT_WINDOW: Final = 1 << 16
"""Number of unread bytes of one stream that the shim keeps for a command."""
OUTPUT_WINDOW: Final = 1 << 18
"""So much output of one stream the host holds, by `cost`."""
PIECE_COST: Final = 1 << 8
"""The cost of a piece of output besides its bytes, so that pieces of one byte are limited too."""

Stream = Literal["stdout", "stderr"]
OutputStream = Literal["stdout", "stderr", "terminal"]
InputStream = Literal["stdin", "terminal"]
StandardStream = Literal["stdin", "stdout", "stderr"]
CommandId = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
Content = Annotated[bytes, msgspec.Meta(min_length=1)]
SignalNumber = Annotated[int, msgspec.Meta(ge=1, le=64)]


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The pseudo-terminal for a command."""

    rows: int
    columns: int
    streams: tuple[StandardStream, ...]
    """The standard streams that are the terminal; the others are pipes."""
    foreground: bool
    """Whether its process group has the terminal from the start. Else it stops by SIGTTIN as it reads from it."""
    modes: tuple[int, ...] = ()
    """The flags of ``termios``: of input, output, control, and local; none: those of a new pseudo-terminal."""
    characters: bytes = b""
    """The control characters of ``termios``, in the order of ``c_cc``."""


class Exec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="exec"):
    """Run a command; made by `exec_request`."""

    id: int
    argv: tuple[bytes, ...]
    cwd: bytes
    env: tuple[bytes, ...] = ()
    """``NAME=VALUE``, besides the shim's own variables."""
    stdin: bool = False
    """Whether input comes for it; else it reads an end at once, unless its standard input is the terminal."""
    terminal: Terminal | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input"):
    """A piece of its standard input, or of the input at its terminal: as much as fits in the window."""

    id: int
    stream: InputStream
    data: bytes


class InputEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_end"):
    """Nothing more comes for its standard input."""

    id: int


class OutputTaken(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_taken"):
    """So much of a stream, by `cost`, the host holds no more: as much can be sent again."""

    id: int
    stream: OutputStream
    bytes: int


class OutputClose(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_close"):
    """Nothing reads this stream any more: the command gets SIGPIPE as it writes to it."""

    id: int
    stream: Stream


class Signal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="signal"):
    """A signal for the command, or with ``group`` for its process group."""

    id: int
    signal: int
    group: bool


class Resize(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="resize"):
    """The terminal has another size."""

    id: int
    rows: int
    columns: int


class Foreground(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="foreground"):
    """Give the terminal to the command's process group, or take it back."""

    id: int
    foreground: bool


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cancel"):
    """End a command, if it still runs: SIGTERM to its process group, then SIGKILL."""

    id: int


class RollbackNotify(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rollback_notify"):
    """A step was rolled back: content of the tree that was read before may be outdated."""

    step_id: int


Request = Exec | Input | InputEnd | OutputTaken | OutputClose | Signal | Resize | Foreground | Cancel | RollbackNotify


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """The first line of a shim."""

    version: int


class StepStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step_started"):
    """The command runs. An acknowledgement, no authority: ids are the host's."""

    id: CommandId


class Output(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output"):
    """A piece of what the command wrote."""

    id: CommandId
    stream: OutputStream
    data: Content


class InputTaken(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_taken"):
    """The shim has passed on so many bytes of input: as many more can be sent."""

    id: CommandId
    stream: InputStream
    bytes: Count


class InputClosed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_closed"):
    """Nothing reads this input any more."""

    id: CommandId
    stream: InputStream


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="stopped"):
    """A signal has stopped the command."""

    id: CommandId
    signal: SignalNumber


class Continued(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="continued"):
    """The command continues."""

    id: CommandId


class StepCompleted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step_completed"):
    """The command has ended, and all that it wrote was passed on."""

    id: CommandId
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """As a shell says it: 128 and the number of the signal that ended it."""
    output_open: bool = False
    """A process left running still has its output open; later output is discarded."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """A request was refused: the ``exec`` with this id, or without one, a line without an id."""

    code: str
    message: str
    id: CommandId | None = None


CommandReply = StepStarted | Output | InputTaken | InputClosed | Stopped | Continued | StepCompleted | Failure
Reply = Hello | CommandReply

_encoder = msgspec.json.Encoder()
_replies = json_decoder(Reply)


def shell_words(command: str) -> tuple[bytes, ...]:
    """The arguments for ``sh`` to run ``command``, whatever it begins with. Raises `UsageError` if it is no Unicode."""
    return b"/bin/sh", b"-c", b"--", _encoded(command)


def exec_request(
    identity: int,
    argv: Sequence[bytes],
    *,
    cwd: bytes,
    env: Mapping[str, str] | Mapping[bytes, bytes],
    stdin: bool = False,
    terminal: Terminal | None = None,
) -> Exec:
    """The request that runs ``argv`` in the directory ``cwd``. Raises `UsageError` for what no system can run."""
    if not 1 <= identity <= MAX_ID:
        raise UsageError(f"id: expected a number from 1 to {MAX_ID}, found {identity}")
    if not argv or any(b"\0" in word for word in (*argv, cwd)):
        raise UsageError("a command and its directory hold no NUL")
    variables: list[bytes] = []
    for name, value in ((_encoded(name), _encoded(value)) for name, value in env.items()):
        if not name or b"=" in name or b"\0" in name + value:
            raise UsageError(f"env: {name!r} cannot be a variable of this value")
        variables.append(name + b"=" + value)
    return Exec(id=identity, argv=tuple(argv), cwd=cwd, env=tuple(variables), stdin=stdin, terminal=terminal)


def _encoded(text: str | bytes) -> bytes:
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise UsageError(f"a command and its variables are text: {error.reason}") from error


def encode_request(request: Request) -> bytes:
    """A line, with its newline. Raises `UsageError` if it would be too long."""
    line = _encoder.encode(request)
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"the command and its variables are longer than {MAX_LINE_BYTES * 3 // 4} bytes together")
    return line + b"\n"


def decode_reply(line: bytes) -> Reply:
    """Decode a line of the shim without its newline. Raises `FormatError` naming the field."""
    try:
        return _replies.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"reply: {error}") from error


def cost(output: Output) -> int:
    """The cost of a piece in the window of its stream."""
    return len(output.data) + PIECE_COST


class Execution:
    """The permitted order and amount of the shim's replies after an ``exec``: one `Failure`, or `StepStarted`, any
    number of others within the windows, and `StepCompleted`; all with the id of that ``exec``.
    """

    __slots__ = ("_held", "_id", "_unread", "closed", "is_over", "is_started")

    def __init__(self, identity: int) -> None:
        self._id = identity
        self._held: dict[OutputStream, int] = {"stdout": 0, "stderr": 0, "terminal": 0}
        self._unread: dict[InputStream, int] = {"stdin": 0, "terminal": 0}
        self.is_started = False
        self.is_over = False
        self.closed: set[InputStream] = set()
        """Input that nothing reads any more."""

    def room(self, stream: InputStream) -> int:
        """How many bytes can be sent now."""
        return 0 if self.is_over or stream in self.closed else INPUT_WINDOW - self._unread[stream]

    def send(self, request: Request) -> None:
        """Go on by what the host says. `Input` has to have `room`."""
        if isinstance(request, Input):
            self._unread[request.stream] += len(request.data)
        elif isinstance(request, OutputTaken):
            self._held[request.stream] -= request.bytes

    def accept(self, reply: CommandReply) -> None:
        """Advance by ``reply``. Raises `FormatError` if it is not allowed now."""
        kind = reply.__struct_config__.tag
        begins = isinstance(reply, StepStarted | Failure)
        if reply.id != self._id or self.is_over or begins == self.is_started:
            raise FormatError(f"type: {kind} of {reply.id} out of turn")
        if isinstance(reply, Output):
            self._held[reply.stream] += cost(reply)
            if self._held[reply.stream] > OUTPUT_WINDOW:
                raise FormatError(f"output: more of {reply.stream} than there is room for")
        elif isinstance(reply, InputTaken):
            self._unread[reply.stream] -= reply.bytes
            if self._unread[reply.stream] < 0:
                raise FormatError(f"input_taken: more of {reply.stream} than was sent")
        elif isinstance(reply, InputClosed):
            self.closed.add(reply.stream)
        self.is_started = self.is_started or isinstance(reply, StepStarted)
        self.is_over = isinstance(reply, StepCompleted | Failure)
