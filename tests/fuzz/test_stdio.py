"""I12: whatever a client of `holdfast stdio` writes is a request, or is refused by an error that names the field."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.stdio import _messages as messages
from holdfast.api.stdio._directory_operations import REQUESTS
from holdfast.api.stdio._messages import BadRequestError

PAYLOADS = {name: payload for name, (payload, _) in REQUESTS.items()}
FIELDS = sorted({field for payload in PAYLOADS.values() for field in payload.__struct_fields__})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["", "@", "allow", "read_only", "/", "\ud800", "none", 1, 0, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=3),
    max_leaves=9,
)
MESSAGES = st.builds(
    lambda kind, identity, payload, more: {"type": kind, "request_id": identity, "payload": payload, **more},
    st.sampled_from(sorted(PAYLOADS)) | VALUES,
    st.text(max_size=3) | VALUES,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4) | VALUES,
    st.dictionaries(st.text(max_size=3), VALUES, max_size=1),
)
LINES = st.binary(max_size=200) | MESSAGES.map(lambda message: json.dumps(message).encode())


@given(LINES)
@settings(max_examples=1000, deadline=None)
def test_any_line(line: bytes) -> None:
    try:
        request = messages.decode(line, PAYLOADS)
    except BadRequestError as error:
        assert error.code in ("bad_request", "unknown_operation")
        answer = json.loads(messages.refusal(error.request_id, error, {"field": error.field}))
        assert answer["request_id"] is None or len(answer["request_id"]) <= 128
        assert len(json.dumps(answer)) < 5000
        return
    assert type(request.payload) is PAYLOADS[request.type]
    assert 1 <= len(request.request_id) <= 128


@pytest.mark.parametrize("name", PAYLOADS)
def test_every_operation_names_the_field_that_it_does_not_know(name: str) -> None:
    line = json.dumps({"type": name, "request_id": "1", "payload": {"unheard_of": 1}}).encode()
    with pytest.raises(BadRequestError) as caught:
        messages.decode(line, PAYLOADS)
    field = caught.value.field or ""
    required = [f"payload.{each.name}" for each in msgspec.structs.fields(PAYLOADS[name]) if each.required]
    assert field in ("payload.unheard_of", *required)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * (1 << 20),
        b'{"a":' * (1 << 17),
        b'{"type":"hello","request_id":"1","payload":{"versions":[' + b"9" * 1_000_000 + b"]}}",
        b'{"type":"' + b"\\u0041" * 150_000 + b'","request_id":"1"}',
        b'{"type":"hello","request_id":"' + b"x" * 1_000_000 + b'"}',
        b'{"type":"hello","request_id":"1","payload":{"' + b"x" * 1_000_000 + b'":1}}',
    ],
)
def test_long_lines_have_short_answers(line: bytes) -> None:
    with pytest.raises(BadRequestError) as caught:
        messages.decode(line, PAYLOADS)
    assert len(caught.value.message) < 1000


@given(st.text(st.characters(), max_size=20))
def test_any_text_can_be_answered(text: str) -> None:
    error = BadRequestError(text, request_id=None, field=text)
    answer = json.loads(messages.refusal(None, error, {"field": text}))
    assert answer["error"]["message"] == text


@pytest.mark.parametrize("value", ["SECRET", "it's SECRET", "SECRET - at `$.x`\n", "SECRET" * 99])
@pytest.mark.parametrize(
    ("name", "payload", "field"),
    [
        ("safeguard.confirm", {"safeguard_id": "1", "action": ...}, "payload.action"),
        ("session.start", {"isolation": {"level": ...}}, "payload.isolation.level"),
        ("session.start", {"working_directories": [{"path": "/", "access": ...}]}, None),
        ("fs.read", {"path": "x", "offset": ...}, "payload.offset"),
        ("agent.execute", {"command": "x", "env": {"A": [...]}}, None),
    ],
)
def test_an_error_does_not_repeat_a_value(name: str, payload: object, field: str | None, value: str) -> None:
    message = {"type": name, "request_id": "1", "payload": payload}
    line = json.dumps(message, default=lambda _: value).encode()
    with pytest.raises(BadRequestError) as caught:
        messages.decode(line, PAYLOADS)
    assert "SECRET" not in caught.value.message
    assert "SECRET" not in (caught.value.field or "")
    assert field in (caught.value.field, None)
