"""I12: whatever is said to the holder of a session is a call, or an error that names what is wrong with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.wire.session_requests import (
    BranchRequest,
    ForkRequest,
    PingRequest,
    RemoveBranchRequest,
    SaveRequest,
    SessionCall,
    ShareRequest,
    decode_call,
    encode_call,
)

ASKS = [
    PingRequest(),
    SaveRequest(message="täglich", automatic=True, resting=True),
    BranchRequest(name="b", message="m"),
    RemoveBranchRequest(name="b"),
    ForkRequest(id="f", checkpoint="c", with_ignored=True, provider="p"),
    ShareRequest(name="you", remove=True),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("ask", ASKS)
def test_what_is_encoded_is_decoded(ask) -> None:
    call = SessionCall(ask=ask, agent="me", hook="word")
    assert decode_call(encode_call(call)) == call


@given(st.binary(max_size=200))
def test_i12_any_bytes(line: bytes) -> None:
    try:
        decode_call(line)
    except FormatError as error:
        assert error.message


@given(st.sampled_from(ASKS), st.sampled_from(["agent", "hook", "ask", "more"]), JSON)
def test_i12_any_field(ask, name: str, value: object) -> None:
    body = json.loads(encode_call(SessionCall(ask=ask, agent="me")))
    for changed in ({**body, name: value}, {**body, "ask": {**body["ask"], name: value}}):
        try:
            decode_call(json.dumps(changed).encode())
        except FormatError as error:
            assert error.message


@pytest.mark.parametrize(
    "call",
    [
        SessionCall(ask=SaveRequest(message="\ud800"), agent="me"),
        SessionCall(ask=SaveRequest(message="x" * 70_000), agent="me"),
    ],
)
def test_what_no_request_can_say_is_not_sent(call: SessionCall) -> None:
    with pytest.raises(FormatError):
        encode_call(call)
