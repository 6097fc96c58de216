"""The messages of a control channel, and who may say which when."""

from __future__ import annotations

import json

import pytest

from holdfast.model.errors import FormatError, UsageError
from holdfast.wire.control_channel import (
    MAX_ID,
    MAX_LINE_BYTES,
    Cancel,
    Execution,
    Failure,
    Output,
    Reply,
    RollbackNotify,
    StepCompleted,
    StepStarted,
    decode_reply,
    encode_request,
    exec_request,
)

STARTED = StepStarted(id=7)
OUTPUT = Output(id=7, stream="stdout", data="x")
COMPLETED = StepCompleted(id=7, exit_code=0)
FAILED = Failure(id=7, code="busy", message="no")


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (exec_request(1, "ls", cwd=b"/w", env={}), {"type": "exec", "id": 1, "command": "ls", "cwd": "/w"}),
        (
            exec_request(MAX_ID, "é", cwd=b"/\xff", env={"A": ""}),
            {"type": "exec", "id": MAX_ID, "command": "é", "cwd_base64": "L/8=", "env": {"A": ""}},
        ),
        (Cancel(id=2), {"type": "cancel", "id": 2}),
        (RollbackNotify(step_id=-3), {"type": "rollback_notify", "step_id": -3}),
    ],
)
def test_requests_are_lines_of_json(request_: object, line: dict[str, object]) -> None:
    encoded = encode_request(request_)  # type: ignore[arg-type]
    assert encoded.count(b"\n") == 1
    assert encoded.endswith(b"\n")
    assert json.loads(encoded) == line


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
        encode_request(exec_request(number, command, cwd=cwd, env=env))


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ('{"type":"step_started","id":7}', STARTED),
        ('{"type":"output","id":7,"stream":"stdout","data":"x"}', OUTPUT),
        (
            '{"type":"output","id":7,"stream":"stderr","data_base64":"/w=="}',
            Output(id=7, stream="stderr", data_base64=b"\xff"),
        ),
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


def test_output_is_the_same_bytes_as_text_and_as_bytes() -> None:
    assert Output(id=1, stream="stdout", data="é").content == "é".encode()
    assert Output(id=1, stream="stdout", data_base64=b"\xff").content == b"\xff"


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
        (b'{"type":"output","id":7,"stream":"stdin","data":"x"}', "stream"),
        (b'{"type":"output","id":7,"stream":"stdout"}', "data"),
        (b'{"type":"output","id":7,"stream":"stdout","data":""}', "data"),
        (b'{"type":"output","id":7,"stream":"stdout","data":"x","data_base64":"eA=="}', "data"),
        (b'{"type":"output","id":7,"stream":"stdout","data_base64":"!"}', "data_base64"),
        (b'{"type":"output","id":7,"stream":"stdout","data":"\xff"}', "(?i)utf-8"),
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


@pytest.mark.parametrize("replies", [[FAILED], [STARTED, COMPLETED], [STARTED, OUTPUT, OUTPUT, COMPLETED]])
def test_a_command_goes_like_this(replies: list[Reply]) -> None:
    execution = Execution(7)
    for reply in replies:
        execution.accept(reply)


@pytest.mark.parametrize(
    ("replies", "named"),
    [
        ([OUTPUT], "output of 7 out of turn"),
        ([COMPLETED], "step_completed of 7 out of turn"),
        ([STARTED, STARTED], "step_started of 7 out of turn"),
        ([STARTED, FAILED], "error of 7 out of turn"),
        ([STARTED, COMPLETED, OUTPUT], "output of 7 out of turn"),
        ([STARTED, COMPLETED, COMPLETED], "step_completed of 7 out of turn"),
        ([FAILED, STARTED], "step_started of 7 out of turn"),
        ([StepStarted(id=8)], "step_started of 8"),
        ([STARTED, StepCompleted(id=6, exit_code=0)], "step_completed of 6"),
        ([Failure(code="bad_request", message="what?")], "what?"),
    ],
)
def test_and_in_no_other_way(replies: list[Reply], named: str) -> None:
    execution = Execution(7)
    for reply in replies[:-1]:
        execution.accept(reply)
    with pytest.raises(FormatError, match=named.replace("?", r"\?")):
        execution.accept(replies[-1])
