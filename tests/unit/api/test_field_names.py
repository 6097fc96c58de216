"""A field by a name that it has elsewhere."""

from __future__ import annotations

import pytest

from holdfast.api.mcp import _tools as tools
from holdfast.api.rest import _request_types as request_types
from holdfast.api.rest._request_reader import decode_body
from holdfast.api.stdio import _messages as messages
from holdfast.api.stdio._directory_operations import REQUESTS
from holdfast.model.errors import UsageError

PAYLOADS = {name: payload for name, (payload, _) in REQUESTS.items()}


@pytest.mark.parametrize(
    ("operation", "field", "own"),
    [
        ("session.start", "network_policy", "isolation.network"),
        ("session.start", "directories", "working_directories"),
        ("undo.rollback", "count", "steps"),
        ("undo.rollback", "step", "step_id"),
        ("undo.configure", "max_log_size", "max_log_size_bytes"),
        ("safeguard.configure", "timeout_ms", "timeout_seconds"),
        ("session.start", "dir", "working_directories"),
        ("agent.execute", "environment", "env"),
        ("agent.execute", "cmd", "command"),
        ("agent.execute", "dir", "directory"),
        ("fs.read", "file_path", "path"),
        ("checkpoint.create", "mesage", "message"),
    ],
)
def test_a_frontend_is_told_what_a_field_is_called(operation: str, field: str, own: str) -> None:
    line = f'{{"type": "{operation}", "request_id": "1", "payload": {{"{field}": 1}}}}'.encode()
    with pytest.raises(messages.BadRequestError, match=field) as caught:
        messages.decode(line, PAYLOADS)
    assert caught.value.field == f"payload.{field}"
    assert caught.value.hint == f"it is called {own} here"


@pytest.mark.parametrize(
    ("payload", "hint"),
    [
        ('{"command": "x", "timeout_ms": 1}', "a command has no time limit here; agent.cancel ends it"),
        ('{"command": "x", "options": {"timeout_ms": 1}}', "there is no object options here: its fields stand in the"),
    ],
)
def test_a_field_that_has_no_like_here_is_told(payload: str, hint: str) -> None:
    line = f'{{"type": "agent.execute", "request_id": "1", "payload": {payload}}}'.encode()
    with pytest.raises(messages.BadRequestError) as caught:
        messages.decode(line, PAYLOADS)
    assert (caught.value.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("payload", "own"),
    [
        ('{"isolation": {"network_policy": "open"}}', "network"),
        ('{"isolation": {"envronment": []}}', "environment"),
        ('{"working_directories": [{"dir_path": "/", "file_path": "/"}]}', None),
        ('{"working_directories": [{"file_path": "/"}]}', "path"),
    ],
)
def test_a_field_of_an_object_inside_is_told(payload: str, own: str | None) -> None:
    line = f'{{"type": "session.start", "request_id": "1", "payload": {payload}}}'.encode()
    with pytest.raises(messages.BadRequestError) as caught:
        messages.decode(line, PAYLOADS)
    assert caught.value.hint == (own and f"it is called {own} here")


def test_a_field_beside_the_payload_is_told_where_it_belongs() -> None:
    with pytest.raises(messages.BadRequestError) as caught:
        messages.decode(b'{"type": "agent.execute", "request_id": "1", "command": "ls"}', PAYLOADS)
    assert caught.value.hint == "the fields of an operation stand in payload"


def test_what_is_like_nothing_has_no_hint() -> None:
    line = b'{"type": "session.start", "request_id": "1", "payload": {"zzzz": "persistent"}}'
    with pytest.raises(messages.BadRequestError, match="zzzz") as caught:
        messages.decode(line, PAYLOADS)
    assert caught.value.hint is None


def test_a_model_is_told() -> None:
    for tool, field, own in (
        ("undo", "num_steps", "count"),
        ("undo", "step_id", "step"),
        ("edit_file", "old_string", "old_text"),
        ("edit_file", "new_string", "new_text"),
        ("execute_command", "cmd", "command"),
        ("execute_command", "timeout_ms", "timeout_seconds"),
    ):
        with pytest.raises(UsageError, match=field) as caught:
            tools.convert(tools.BY_NAME[tool], {field: 1})
        assert caught.value.hint == f"it is called {own} here"


def test_a_client_of_the_rest_api_is_told() -> None:
    with pytest.raises(UsageError, match="checkpoint_id") as caught:
        decode_body(request_types.Restore, b'{"checkpoint_id": "1"}')
    assert caught.value.hint == "it is called checkpoint here"
