"""A field by a name that it has elsewhere."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from holdfast.api.mcp import _tools as tools
from holdfast.api.rest import _request_types as request_types
from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.api.rest._request_reader import body_of
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
        ("agent.execute", "environment", "env"),
        ("checkpoint.create", "mesage", "message"),
    ],
)
def test_a_frontend_is_told_what_a_field_is_called(operation: str, field: str, own: str) -> None:
    line = f'{{"type": "{operation}", "request_id": "1", "payload": {{"{field}": 1}}}}'.encode()
    with pytest.raises(messages.BadRequestError, match=field) as caught:
        messages.decode(line, PAYLOADS)
    assert caught.value.field == f"payload.{field}"
    assert caught.value.hint == f"it is called {own} here"


def test_what_is_like_nothing_has_no_hint() -> None:
    line = b'{"type": "session.start", "request_id": "1", "payload": {"vm_mode": "persistent"}}'
    with pytest.raises(messages.BadRequestError, match="vm_mode") as caught:
        messages.decode(line, PAYLOADS)
    assert caught.value.hint is None


def test_a_model_is_told() -> None:
    for tool, field, own in (("undo", "num_steps", "count"), ("undo", "step_id", "step")):
        with pytest.raises(UsageError, match=field) as caught:
            tools.convert(tools.BY_NAME[tool], {field: 1})
        assert caught.value.hint == f"it is called {own} here"


def test_a_client_of_the_rest_api_is_told() -> None:
    (restore,) = [one for one in ENDPOINTS if one.body is request_types.Restore]
    with pytest.raises(UsageError, match="checkpoint_id") as caught:
        body_of(restore, Headers({"content-type": "application/json"}), b'{"checkpoint_id": "1"}')
    assert caught.value.hint == "it is called checkpoint here"
