"""I12: whatever comes over a control channel, on either side of it, is answered with a value or with a typed error."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.sandbox import shim
from holdfast.wire import control_channel
from holdfast.wire.json_lines import Lines

TYPES = ("exec", "cancel", "rollback_notify", "step_started", "output", "step_completed", "error")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from([*TYPES, "stdout", "/", "L/8=", 1, 7]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)
FIELDS = ("id", "command", "cwd", "cwd_base64", "env", "step_id", "stream", "data", "data_base64", "exit_code", "code")
MESSAGES = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(TYPES) | VALUES,
    st.dictionaries(st.sampled_from([*FIELDS, "message", "output_open"]), VALUES),
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
        assert reply.content


@given(st.lists(LINES, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_conversation_is_in_turn_or_refused(lines: list[bytes]) -> None:
    execution = control_channel.Execution(7)
    try:
        for line in lines:
            execution.accept(control_channel.decode_reply(line))
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
    assert request["type"] in ("exec", "cancel", "rollback_notify")


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
        assert len(requests._buffer) <= shim.MAX_LINE_BYTES


def test_a_line_without_end_takes_no_memory() -> None:
    requests = shim.RequestParser()
    found: list[object] = []
    for _ in range(100):
        found += requests.feed(bytes(1 << 17))
        assert len(requests._buffer) <= shim.MAX_LINE_BYTES
    assert [item.code for item in found if isinstance(item, shim.BadRequestError)] == ["line_too_long"]


@given(st.text(max_size=20), st.integers(0, 80))
def test_a_character_is_never_cut(text: str, at: int) -> None:
    data = text.encode()[:at]
    back = shim.incomplete_utf8(data)
    assert back < 4
    data[: len(data) - back].decode()


@given(st.binary(max_size=20))
def test_of_any_bytes_at_most_the_beginning_of_a_character_is_held_back(data: bytes) -> None:
    assert 0 <= shim.incomplete_utf8(data) <= min(3, len(data))
