"""What the log shows of a message at ``trace``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.api.tracing import without_contents

SECRET = "SECRET"


@pytest.mark.parametrize(
    "message",
    [
        {"method": "tools/call", "params": {"name": "write_file", "arguments": {"path": "a", "content": SECRET}}},
        {"params": {"name": "edit_file", "arguments": {"path": "a", "old_text": SECRET, "new_text": SECRET}}},
        {"params": {"name": "execute_command", "arguments": {"command": "true", "environment": {"TOKEN": SECRET}}}},
        {"result": {"content": [{"type": "text", "text": SECRET}], "structuredContent": {"content": SECRET}}},
        {"result": {"structuredContent": {"stdout": SECRET, "stderr": SECRET, "patch": SECRET}}},
        {"result": {"contents": [{"uri": "holdfast://a", "text": SECRET}, {"blob": SECRET}]}},
        {"method": "notifications/progress", "params": {"progressToken": 1, "message": SECRET}},
        {"type": "response", "payload": {"path": "a", "data": SECRET, "data_base64": SECRET}},
        {"type": "event.terminal_output", "payload": {"data": SECRET}},
        {"type": "agent.prompt", "payload": {"prompt": SECRET, "env": {"TOKEN": SECRET}}},
        {"content": [SECRET, [SECRET], {"other": [{"text": SECRET}]}]},
    ],
)
def test_what_files_hold_is_not_shown(message: dict[str, Any]) -> None:
    shown = without_contents(json.dumps(message).encode())
    assert SECRET not in shown
    assert "<6 characters>" in shown
    assert json.loads(shown).keys() == message.keys()


def test_everything_else_is_shown_as_it_is() -> None:
    message = {"type": "x", "error": {"message": "no", "data": {"paths": ["a"]}}, "payload": {"path": "ä", "n": 1.5}}
    assert json.loads(without_contents(json.dumps(message).encode())) == message


@pytest.mark.parametrize("line", [b'{"content": "SECRET', b"SECRET\xff", b"[" * 100_000 + b"SECRET"])
def test_of_what_is_no_message_the_length_is_told(line: bytes) -> None:
    assert without_contents(line) == f"<{len(line)} bytes that are no message>"
