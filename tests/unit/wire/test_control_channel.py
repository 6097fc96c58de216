"""The messages of a control channel, and who may say which when."""

from __future__ import annotations

import json

import pytest

from holdfast.model.errors import FormatError, UsageError
from holdfast.sandbox import shim
from holdfast.wire.control_channel import (
    INPUT_WINDOW,
    MAX_ID,
    MAX_LINE_BYTES,
    OUTPUT_WINDOW,
    PIECE_COST,
    Cancel,
    CommandReply,
    Continued,
    Execution,
    Failure,
    Foreground,
    Hello,
    Input,
    InputClosed,
    InputEnd,
    InputTaken,
    Output,
    OutputClose,
    OutputTaken,
    Reply,
    Resize,
    RollbackNotify,
    Signal,
    StepCompleted,
    StepStarted,
    Stopped,
    Terminal,
    cost,
    decode_reply,
    encode_request,
    exec_request,
    shell_words,
)

STARTED = StepStarted(id=7)
OUTPUT = Output(id=7, stream="stdout", data=b"x")
COMPLETED = StepCompleted(id=7, exit_code=0)
FAILED = Failure(id=7, code="busy", message="no")
STOPPED = Stopped(id=7, signal=20)
TAKEN = InputTaken(id=7, stream="stdin", bytes=3)
CLOSED = InputClosed(id=7, stream="stdin")


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (
            exec_request(1, [b"ls", b"\xff"], cwd=b"/w", env={}),
            {"type": "exec", "id": 1, "argv": ["bHM=", "/w=="], "cwd": "L3c="},
        ),
        (
            exec_request(MAX_ID, shell_words("é"), cwd=b"/\xff", env={"A": "é"}, stdin=True),
            {
                "type": "exec",
                "id": MAX_ID,
                "argv": ["L2Jpbi9zaA==", "LWM=", "LS0=", "w6k="],
                "cwd": "L/8=",
                "env": ["QT3DqQ=="],
                "stdin": True,
            },
        ),
        (
            exec_request(
                1,
                [b"vi"],
                cwd=b"/",
                env={b"A": b"\xff"},
                terminal=Terminal(
                    rows=24, columns=80, streams=("stdin", "stdout"), foreground=True, modes=(1, 2, 3, 4)
                ),
            ),
            {
                "type": "exec",
                "id": 1,
                "argv": ["dmk="],
                "cwd": "Lw==",
                "env": ["QT3/"],
                "terminal": {
                    "rows": 24,
                    "columns": 80,
                    "streams": ["stdin", "stdout"],
                    "foreground": True,
                    "modes": [1, 2, 3, 4],
                    "characters": "",
                },
            },
        ),
        (
            Input(id=2, stream="terminal", data=b"\x03"),
            {"type": "input", "id": 2, "stream": "terminal", "data": "Aw=="},
        ),
        (InputEnd(id=2), {"type": "input_end", "id": 2}),
        (
            OutputTaken(id=2, stream="stderr", bytes=9),
            {"type": "output_taken", "id": 2, "stream": "stderr", "bytes": 9},
        ),
        (OutputClose(id=2, stream="stdout"), {"type": "output_close", "id": 2, "stream": "stdout"}),
        (Signal(id=2, signal=15, group=True), {"type": "signal", "id": 2, "signal": 15, "group": True}),
        (Resize(id=2, rows=3, columns=4), {"type": "resize", "id": 2, "rows": 3, "columns": 4}),
        (Foreground(id=2, foreground=False), {"type": "foreground", "id": 2, "foreground": False}),
        (Cancel(id=2), {"type": "cancel", "id": 2}),
        (RollbackNotify(step_id=-3), {"type": "rollback_notify", "step_id": -3}),
    ],
)
def test_requests_are_lines_of_json_that_the_shim_understands(request_: object, line: dict[str, object]) -> None:
    encoded = encode_request(request_)  # type: ignore[arg-type]
    assert encoded.count(b"\n") == 1
    assert encoded.endswith(b"\n")
    assert json.loads(encoded) == line
    assert shim.parse(encoded)["type"] == line["type"]


@pytest.mark.parametrize(
    ("number", "command", "cwd", "env"),
    [
        (0, "ls", b"/", {}),
        (MAX_ID + 1, "ls", b"/", {}),
        (1, "a\0b", b"/", {}),
        (1, "ls", b"/\0", {}),
        (1, "ls", b"/", {"": "x"}),
        (1, "ls", b"/", {"A=B": "x"}),
        (1, "ls", b"/", {"A": "\0"}),
        (1, "\udcff", b"/", {}),
        (1, "x" * MAX_LINE_BYTES, b"/", {}),
    ],
)
def test_what_no_system_can_run_is_not_sent(number: int, command: str, cwd: bytes, env: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        encode_request(exec_request(number, shell_words(command), cwd=cwd, env=env))


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ('{"type":"step_started","id":7}', STARTED),
        ('{"type":"hello","version":2}', Hello(version=2)),
        ('{"type":"output","id":7,"stream":"stdout","data":"eA=="}', OUTPUT),
        ('{"type":"output","id":7,"stream":"terminal","data":"/w=="}', Output(id=7, stream="terminal", data=b"\xff")),
        ('{"type":"input_taken","id":7,"stream":"stdin","bytes":3}', TAKEN),
        ('{"type":"input_closed","id":7,"stream":"stdin"}', CLOSED),
        ('{"type":"stopped","id":7,"signal":20}', STOPPED),
        ('{"type":"continued","id":7}', Continued(id=7)),
        ('{"type":"step_completed","id":7,"exit_code":0}', COMPLETED),
        (
            '{"type":"step_completed","id":7,"exit_code":255,"output_open":true}',
            StepCompleted(id=7, exit_code=255, output_open=True),
        ),
        ('{"type":"error","id":7,"code":"busy","message":"no","of_a_later_version":[1]}', FAILED),
        ('{"type":"error","code":"bad_request","message":"no"}', Failure(code="bad_request", message="no")),
    ],
)
def test_replies_are_understood(line: str, reply: Reply) -> None:
    assert decode_reply(line.encode()) == reply


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"", "reply"),
        (b"[]", "object"),
        (b'{"id":7}', "type"),
        (b'{"type":"exec","id":7,"command":"ls"}', "exec"),
        (b'{"type":"step_started"}', "id"),
        (b'{"type":"step_started","id":0}', "id"),
        (b'{"type":"step_started","id":9007199254740992}', "id"),
        (b'{"type":"step_started","id":' + b"9" * 100_000 + b"}", "id"),
        (b'{"type":"hello"}', "version"),
        (b'{"type":"output","id":7,"stream":"stdin","data":"eA=="}', "stream"),
        (b'{"type":"output","id":7,"stream":"stdout"}', "data"),
        (b'{"type":"output","id":7,"stream":"stdout","data":""}', "data"),
        (b'{"type":"output","id":7,"stream":"stdout","data":"!"}', "data"),
        (b'{"type":"output","id":7,"stream":"stdout","data":"\xff"}', "data"),
        (b'{"type":"input_taken","id":7,"stream":"stdout","bytes":1}', "stream"),
        (b'{"type":"input_taken","id":7,"stream":"stdin","bytes":0}', "bytes"),
        (b'{"type":"stopped","id":7,"signal":0}', "signal"),
        (b'{"type":"stopped","id":7,"signal":65}', "signal"),
        (b'{"type":"step_completed","id":7,"exit_code":256}', "exit_code"),
        (b'{"type":"step_completed","id":7,"exit_code":-1}', "exit_code"),
        (b'{"type":"error","id":7}', "code"),
        (b"[" * 100_000, "reply"),
        (b'{"type":"step_started","id":7,"x":' + b"[" * 100_000, "reply"),
    ],
)
def test_what_is_no_reply_is_named(line: bytes, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        decode_reply(line)


@pytest.mark.parametrize(
    "replies",
    [
        [FAILED],
        [STARTED, COMPLETED],
        [STARTED, OUTPUT, STOPPED, OUTPUT, Continued(id=7), STOPPED, STOPPED, CLOSED, COMPLETED],
    ],
)
def test_a_command_goes_like_this(replies: list[CommandReply]) -> None:
    execution = Execution(7)
    for reply in replies:
        execution.accept(reply)
    assert execution.is_over


@pytest.mark.parametrize(
    ("replies", "named"),
    [
        ([OUTPUT], "output of 7 out of turn"),
        ([TAKEN], "input_taken of 7 out of turn"),
        ([STOPPED], "stopped of 7 out of turn"),
        ([COMPLETED], "step_completed of 7 out of turn"),
        ([STARTED, STARTED], "step_started of 7 out of turn"),
        ([STARTED, FAILED], "error of 7 out of turn"),
        ([STARTED, TAKEN], "input_taken: more of stdin"),
        ([STARTED, COMPLETED, OUTPUT], "output of 7 out of turn"),
        ([STARTED, COMPLETED, COMPLETED], "step_completed of 7 out of turn"),
        ([FAILED, STARTED], "step_started of 7 out of turn"),
        ([StepStarted(id=8)], "step_started of 8"),
        ([STARTED, StepCompleted(id=6, exit_code=0)], "step_completed of 6"),
    ],
)
def test_and_in_no_other_way(replies: list[CommandReply], named: str) -> None:
    execution = Execution(7)
    for reply in replies[:-1]:
        execution.accept(reply)
    with pytest.raises(FormatError, match=named):
        execution.accept(replies[-1])


@pytest.mark.parametrize("size", [1, 4096, 1 << 16])
def test_output_is_bounded_in_bytes_and_in_pieces(size: int) -> None:
    execution = Execution(7)
    execution.accept(STARTED)
    piece = Output(id=7, stream="stderr", data=bytes(size))
    fitting = OUTPUT_WINDOW // cost(piece)
    assert fitting <= OUTPUT_WINDOW // PIECE_COST
    for _ in range(fitting):
        execution.accept(piece)
    execution.accept(OUTPUT)  # of another stream
    execution.send(OutputTaken(id=7, stream="stderr", bytes=cost(piece)))
    execution.accept(piece)
    with pytest.raises(FormatError, match="more of stderr"):
        execution.accept(piece)


def test_input_has_room_until_it_is_taken() -> None:
    execution = Execution(7)
    execution.send(Input(id=7, stream="stdin", data=bytes(INPUT_WINDOW)))
    assert (execution.room("stdin"), execution.room("terminal")) == (0, INPUT_WINDOW)
    execution.accept(STARTED)
    execution.accept(TAKEN)
    assert execution.room("stdin") == 3
    execution.accept(CLOSED)
    assert (execution.room("stdin"), execution.room("terminal")) == (0, INPUT_WINDOW)
    execution.accept(COMPLETED)
    assert execution.room("terminal") == 0
