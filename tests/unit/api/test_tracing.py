"""What the log shows of a message at ``trace``."""

from __future__ import annotations

import json
import re
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
        {"type": "response", "payload": {"modified": [{"path": "a", "diff": SECRET}, {"diff_base64": SECRET}]}},
        {"type": "checkpoint.create", "payload": {"message": SECRET}},
        {"method": "tools/call", "params": {"name": "write_file", "arguments": {"Content": SECRET}}},
        {"params": {"arguments": {"path": "a", "file_text": SECRET, "new_string": [SECRET]}}},
        {"params": {"arguments": {"new_text": {"path": SECRET, SECRET: [1]}, "old_text": [{"path": SECRET}]}}},
        {"params": {"arguments": {"path": {"path": SECRET}, "content": [[83, 69], SECRET]}}},
        {"params": {"arguments": SECRET}},
        {"type": "fs.read", "payload": SECRET},
        {"params": [SECRET, {"text": SECRET}]},
        {"method": "tools/call", "params": {"_meta": {"other": SECRET}}},
    ],
)
def test_what_files_hold_is_not_shown(message: dict[str, Any]) -> None:
    shown = without_contents(json.dumps(message).encode())
    assert SECRET not in shown
    assert re.search("<[0-9]+ (characters|items|members)>", shown)
    assert json.loads(shown).keys() == message.keys()


def test_what_is_known_to_be_harmless_is_shown_as_it_is() -> None:
    message = {"type": "x", "error": {"message": "no", "data": {"paths": ["a"]}}, "payload": {"path": "ä", "n": 1.5}}
    assert json.loads(without_contents(json.dumps(message).encode())) == message


def test_bytes_as_numbers_are_contents_too() -> None:
    shown = without_contents(json.dumps({"payload": {"content": [83, 69, 67], "offset": 5}}).encode())
    assert json.loads(shown) == {"payload": {"content": "<3 items>", "offset": 5}}


@pytest.mark.parametrize("line", [b'"SECRET"', b'["SECRET", {"x": ["SECRET"]}]'])
def test_what_is_no_object_is_hidden_too(line: bytes) -> None:
    assert "SECRET" not in without_contents(line)


@pytest.mark.parametrize("line", [b'{"content": "SECRET', b"SECRET\xff", b"[" * 100_000 + b"SECRET"])
def test_of_what_is_no_message_the_length_is_told(line: bytes) -> None:
    assert without_contents(line) == f"<{len(line)} bytes that are no message>"
