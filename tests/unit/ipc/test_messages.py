"""Frames, requests and answers: what goes in comes out, and what is none is named."""

from __future__ import annotations

import json
import math

import pytest

from holdfast.ipc import messages
from holdfast.model.errors import FormatError, HoldfastError, LockedError, NotFoundError


def test_a_frame_says_how_long_its_body_is() -> None:
    frame = messages.frame(b"body")
    assert messages.body_bytes(frame, 4) == 4
    assert frame[messages.HEADER_BYTES :] == b"body"
    with pytest.raises(FormatError, match="4 bytes, and 3 are allowed"):
        messages.body_bytes(frame, 3)


def test_another_protocol_is_named_as_such() -> None:
    with pytest.raises(FormatError, match="another protocol") as caught:
        messages.body_bytes(b'{"v":1,"op"', 1 << 20)
    assert "another version" in (caught.value.hint or "")


def test_requests_and_results_come_out_as_they_went_in() -> None:
    request = messages.encode_request("do", [1, {"a": ["ä", None, True, "\ud800"]}])
    assert messages.decode_request(request) == ("do", [1, {"a": ["ä", None, True, "\ud800"]}])
    assert messages.decode_result(messages.encode_result({"a": [1]})) == {"a": [1]}
    assert messages.decode_result(messages.encode_result()) is None


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_what_json_cannot_say_is_not_sent(value: object) -> None:
    with pytest.raises(FormatError, match="cannot be sent"):
        messages.encode_result(value)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"garbage", b"\xff\xfe", b"7", b"[1]", b"{}", b'["a"]', b'["a",{}]', b"[7,[]]", b'["a",[],[]]'),
        *(b'{"error":7}', b"[" * 100_000, b"9" * 10_000),
    ],
)
def test_what_is_no_message_is_named(body: bytes) -> None:
    """I12."""
    for decode in (messages.decode_request, messages.decode_result):
        with pytest.raises(FormatError):
            decode(body)


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("no such thing", hint="look elsewhere", code="no_such"),
        LockedError("locked"),
        HoldfastError("x", data={"steps": [1, 2]}),
    ],
)
def test_an_error_is_raised_again_as_what_it_was(error: HoldfastError) -> None:
    with pytest.raises(HoldfastError) as caught:
        messages.decode_result(messages.encode_error(error))
    found = caught.value
    assert type(found) is type(error)
    told = (found.message, found.hint, found.code, found.data)
    assert told == (error.message, error.hint, error.code, error.data)


def test_every_error_can_be_said() -> None:
    """Else its answer would never come."""
    error = HoldfastError("of \udcff", hint="\ud800", data={"path": b"x", "more": {1}, "huge": math.inf})
    with pytest.raises(HoldfastError, match=r"of \?") as caught:
        messages.decode_result(messages.encode_error(error))
    assert caught.value.hint == "?"


@pytest.mark.parametrize("details", [{}, {"type": "BaseException"}, {"type": 7, "message": [], "hint": 1, "data": 2}])
def test_half_an_error_is_an_error(details: object) -> None:
    with pytest.raises(HoldfastError) as caught:
        messages.decode_result(json.dumps({"error": details}).encode())
    assert type(caught.value) is HoldfastError
