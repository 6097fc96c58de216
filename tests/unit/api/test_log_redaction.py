"""What the log shows of a message at ``trace``."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast.api._log_redaction import Vocabulary, field_or_length, without_contents
from holdfast.api.mcp._log_vocabulary import protocol_vocabulary as known_of_mcp
from holdfast.api.stdio.schema import known

SECRET = "SECRET"
VOCABULARY = Vocabulary(known().names | known_of_mcp().names, known().words | known_of_mcp().words)


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
@pytest.mark.parametrize("ours", [False, True])
def test_what_files_hold_is_not_shown(message: dict[str, Any], ours: bool) -> None:
    shown = without_contents(json.dumps(message).encode(), VOCABULARY, ours=ours)
    assert SECRET not in shown
    assert re.search("<[0-9]+ (characters|items|members)>", shown)
    assert json.loads(shown).keys() == message.keys()


@pytest.mark.parametrize(
    "message",
    [
        {"params": {"name": "write_file", "arguments": {"path": "a", "encoding": SECRET}}},
        {"type": "session.start", "payload": {"isolation": {"level": SECRET}}},
        {"type": "fs.list", "payload": {SECRET: 1}},
        {"type": SECRET},
        {"jsonrpc": "2.0", "method": SECRET},
        {"method": "tools/call", "params": {"name": SECRET}},
        {"params": {"clientInfo": {"name": SECRET, "version": SECRET}}},
        {"error": {"code": SECRET, "message": SECRET}},
        {"error": {"code": "bad_request", "message": SECRET, "hint": SECRET, "data": {"field": f"payload.{SECRET}"}}},
        {"result": {"_meta": {"holdfast/error": {"code": "bad_arguments", "message": SECRET}}}},
        {"error": {"code": -32602, "message": SECRET}},
        {"type": "fs.list", "payload": {"access": [SECRET]}},
    ],
)
def test_what_is_one_of_several_is_shown_if_it_is(message: dict[str, Any]) -> None:
    shown = without_contents(json.dumps(message).encode(), VOCABULARY)
    assert SECRET not in shown
    assert re.search("<[0-9]+ characters>", shown)


@pytest.mark.parametrize("code", ["bad_request", "unknown_operation", "bad_arguments", "no_tool", -32602])
def test_errors_that_repeat_what_was_said_are_not_shown(code: str | int) -> None:
    message = {"error": {"code": code, "message": SECRET, "hint": None, "data": {"field": f"payload.{SECRET}"}}}
    assert SECRET not in without_contents(json.dumps(message).encode(), VOCABULARY, ours=True)


def test_two_names_of_one_length_are_two() -> None:
    shown = json.loads(without_contents(json.dumps({"x1": 1, "x2": 2}).encode(), VOCABULARY))
    assert sorted(shown.values()) == [1, 2]


@pytest.mark.parametrize(
    ("field", "shown"),
    [(None, None), ("payload.paths[0]", "payload.paths[0]"), (f"payload.{SECRET}", "<14 characters>")],
)
def test_a_field_is_named_if_it_is_known(field: str | None, shown: str | None) -> None:
    assert field_or_length(field, VOCABULARY.names) == shown


def test_what_is_known_to_be_harmless_is_shown_as_it_is() -> None:
    told = {"type": "fs.read", "payload": {"path": "ä", "limit": 1.5}, "request_id": "any"}
    assert json.loads(without_contents(json.dumps(told).encode(), VOCABULARY)) == told
    arguments = {"path": "a", "encoding": "base64"}
    called = {"method": "tools/call", "params": {"name": "write_file", "arguments": arguments}}
    assert json.loads(without_contents(json.dumps(called).encode(), VOCABULARY)) == called
    said = {"type": "response", "error": {"code": "barrier", "message": "no", "data": {"paths": ["a"]}}}
    assert json.loads(without_contents(json.dumps(said).encode(), VOCABULARY, ours=True)) == said


def test_bytes_as_numbers_are_contents_too() -> None:
    shown = without_contents(json.dumps({"payload": {"content": [83, 69, 67], "offset": 5}}).encode(), VOCABULARY)
    assert json.loads(shown) == {"payload": {"content": "<3 items>", "offset": 5}}


@pytest.mark.parametrize("line", [b'"SECRET"', b'["SECRET", {"x": ["SECRET"]}]'])
def test_what_is_no_object_is_hidden_too(line: bytes) -> None:
    assert "SECRET" not in without_contents(line, VOCABULARY)


@pytest.mark.parametrize("line", [b'{"content": "SECRET', b"SECRET\xff", b"[" * 100_000 + b"SECRET"])
def test_of_what_is_no_message_the_length_is_told(line: bytes) -> None:
    assert without_contents(line, VOCABULARY) == f"<{len(line)} bytes that are no message>"
