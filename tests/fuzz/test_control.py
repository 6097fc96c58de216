"""I12: whatever comes over a control channel, on either side of it, is answered with a value or with a typed error."""

from __future__ import annotations

import base64
import json
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.sandbox import shim
from holdfast.sandbox.channel import shim_command
from holdfast.wire import control_channel
from holdfast.wire.json_lines import Lines
from holdfast.wire.whole_characters import WholeCharacters, incomplete_utf8

TYPES = (
    *("exec", "input", "input_end", "output_taken", "output_close", "signal", "resize", "foreground", "cancel"),
    *("rollback_notify", "hello", "step_started", "output", "input_taken", "input_closed", "stopped", "continued"),
    *("step_completed", "error"),
)
TERMINAL = {"rows": 1, "columns": 1, "streams": ["stdin"], "foreground": True}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from([*TYPES, "stdin", "stdout", "terminal", "L/8=", "eA==", 1, 7]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
) | st.sampled_from([TERMINAL, {**TERMINAL, "modes": [1, 2, 3, 4]}, ["eA=="], []])
FIELDS = (
    *("id", "argv", "cwd", "env", "stdin", "terminal", "step_id", "stream", "data", "bytes", "signal", "group", "rows"),
    *("columns", "foreground", "version", "exit_code", "code", "message", "output_open"),
)
MESSAGES = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(TYPES) | VALUES,
    st.dictionaries(st.sampled_from(FIELDS), VALUES)
    | st.fixed_dictionaries({"id": st.just(7), "stream": st.just("stdin"), "bytes": st.integers(0, 9)}),
)
LINES = st.binary(max_size=200) | MESSAGES.map(lambda message: json.dumps(message).encode())


@given(LINES)
@settings(max_examples=600, deadline=None)
def test_replies(line: bytes) -> None:
    try:
        reply = control_channel.decode_reply(line)
    except FormatError:
        return
    if isinstance(reply, control_channel.Output):
        assert reply.data


@given(st.lists(LINES, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_conversation_is_in_turn_or_refused(lines: list[bytes]) -> None:
    execution = control_channel.Execution(7)
    try:
        for line in [b'{"type":"step_started","id":7}', *lines]:
            reply = control_channel.decode_reply(line)
            if not isinstance(reply, control_channel.Hello):
                execution.accept(reply)
            assert execution.room("stdin") <= control_channel.INPUT_WINDOW
    except FormatError:
        pass


@given(LINES)
@settings(max_examples=600, deadline=None)
def test_requests(line: bytes) -> None:
    try:
        request = shim.parse(line)
    except shim.BadRequestError as error:
        assert error.id is None or shim.is_id(error.id)
        return
    assert set(request) == {"type", "id", *shim.REQUESTS[request["type"]]}


@given(st.lists(LINES.map(lambda line: line.replace(b"\n", b"")), max_size=8), st.lists(st.integers(0, 99), max_size=8))
@settings(max_examples=300, deadline=None)
def test_requests_in_pieces(lines: list[bytes], sizes: list[int]) -> None:
    """Each line is answered by itself, whatever came before it and in what pieces."""
    data = b"".join(line + b"\n" for line in lines)
    requests = shim.RequestParser()
    found: list[object] = []
    for size in sizes:
        found += requests.feed(data[:size])
        data = data[size:]
    found += requests.feed(data)
    assert len(found) == len(lines)
    for line, item in zip(lines, found, strict=True):
        try:
            assert repr(shim.parse(line)) == repr(item)
        except shim.BadRequestError:
            assert isinstance(item, shim.BadRequestError)


@given(st.lists(st.binary(max_size=1 << 12), max_size=20))
@settings(deadline=None)
def test_neither_side_holds_more_than_a_line(pieces: list[bytes]) -> None:
    lines, requests = Lines(1 << 10), shim.RequestParser()
    for piece in pieces:
        lines.feed(piece)
        for _ in requests.feed(piece):
            pass
        while True:
            try:
                if lines.take() is None:
                    break
            except FormatError:
                pass
        assert len(lines._buffer) <= 1 << 10
        assert len(requests._rest) <= shim.MAX_LINE_BYTES


def test_a_line_without_end_takes_no_memory() -> None:
    requests = shim.RequestParser()
    found: list[object] = []
    for _ in range(100):
        found += requests.feed(bytes(1 << 17))
        assert len(requests._rest) <= shim.MAX_LINE_BYTES
    assert [item.code for item in found if isinstance(item, shim.BadRequestError)] == ["line_too_long"]


@given(st.text(max_size=20), st.integers(0, 80))
def test_a_character_is_never_cut(text: str, at: int) -> None:
    data = text.encode()[:at]
    back = incomplete_utf8(data)
    assert back < 4
    data[: len(data) - back].decode()


@given(st.binary(max_size=20))
def test_of_any_bytes_at_most_the_beginning_of_a_character_is_held_back(data: bytes) -> None:
    assert 0 <= incomplete_utf8(data) <= min(3, len(data))


@given(st.lists(st.binary(max_size=6), max_size=9))
def test_a_stream_in_pieces_of_whole_characters_is_the_same(pieces: list[bytes]) -> None:
    whole = WholeCharacters()
    passed = [whole.feed(piece) for piece in pieces]
    assert b"".join([*passed, whole.rest()]) == b"".join(pieces)


@given(st.lists(LINES.map(lambda line: line.replace(b"\n", b"")), max_size=30), st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_shim_survives_whatever_it_is_asked_for(lines: list[bytes], has_terminal: bool) -> None:
    """While a command runs that half of it is about; and then does what it is asked for."""
    words = [base64.b64encode(word).decode() for word in (b"sh", b"-c", b"cat; exec sleep 1000")]
    first: dict[str, object] = {"type": "exec", "id": 7, "argv": words, "cwd": "Lw==", "stdin": True}
    if has_terminal:
        first["terminal"] = {**TERMINAL, "streams": ["stdout"]}
    last = {"type": "exec", "id": 9_999_999, "argv": ["dHJ1ZQ=="], "cwd": "Lw=="}
    sent = [json.dumps(first).encode(), *lines, json.dumps(last).encode()]
    shim_process = subprocess.Popen(shim_command("--grace", "0"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with shim_process:
        assert shim_process.stdin is not None
        assert shim_process.stdout is not None
        shim_process.stdin.write(b"".join(line + b"\n" for line in sent))
        shim_process.stdin.flush()
        for line in shim_process.stdout:
            reply = control_channel.decode_reply(line.rstrip(b"\n"))
            if isinstance(reply, control_channel.StepCompleted) and reply.id == last["id"]:
                assert reply.exit_code == 0
                break
        shim_process.stdin.close()
        assert shim_process.wait(60) == 0
