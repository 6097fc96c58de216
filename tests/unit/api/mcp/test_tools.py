"""What the tools are, and what they are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from holdfast.api.mcp import _tools as tools
from holdfast.api.mcp._dispatch import LISTED
from holdfast.model.errors import UsageError

PROJECT = Path(__file__).parents[4]

NAMES = [
    "execute_command",
    "read_file",
    "write_file",
    "edit_file",
    "list_directory",
    "begin_step",
    "commit_step",
    "rollback_step",
    "undo",
    "redo",
    "get_undo_history",
    "get_session_status",
    "checkpoint",
    "list_checkpoints",
    "diff",
    "restore",
    "fork",
    "next_reapply",
    "answer_reapply",
    "merge",
    "list_sessions",
    "get_session",
    "start_session",
    "execute_in_session",
    "fork_session",
    "merge_session",
    "end_session",
    "run_experiment",
]
"""What a model can do. Nothing that destroys history, passes a barrier, or answers a safeguard may ever join them."""

HARMLESS = (
    "checkpoint",
    "fork",
    "next_reapply",
    "answer_reapply",
    "start_session",
    "fork_session",
    "end_session",
    "begin_step",
    "commit_step",
)
"""What changes something, and takes nothing away."""


def test_nothing_destroys_history_or_approves_itself() -> None:
    """I9."""
    assert [tool.name for tool in LISTED] == NAMES
    fields = {name for tool in LISTED for name in tool.input_schema["properties"]}
    forbidden = {
        "force",
        "allow",
        "deny",
        "answer",
        "ticket",
        "forget",
        "discard",
        "gc",
        "thresholds",
        "limits",
        "guard",
        "supervised",
    }
    assert not fields & forbidden
    assert all(not tool.input_schema["additionalProperties"] for tool in LISTED)


def test_hints_are_true() -> None:
    hints = {tool.name: tool.annotations for tool in LISTED}
    reading = {name for name, hint in hints.items() if hint is not None and hint.read_only_hint}
    assert reading == {
        "read_file",
        "list_directory",
        "get_undo_history",
        "get_session_status",
        "list_checkpoints",
        "diff",
        "list_sessions",
        "get_session",
    }
    for name, hint in hints.items():
        assert hint is not None
        assert hint.destructive_hint is (name not in reading and name not in HARMLESS)
        assert hint.open_world_hint is (name in ("execute_command", "execute_in_session", "run_experiment"))


@pytest.mark.parametrize("tool", LISTED, ids=lambda tool: tool.name)
def test_schemas_are_schemas_in_one_piece(tool) -> None:
    for schema in (tool.input_schema, tool.output_schema):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert "$ref" not in json.dumps(schema)
        assert '"null"' not in json.dumps(schema)


def test_nothing_else_loads_the_sdk() -> None:
    for words in (["--version"], ["status", "--help"], ["mcp", "--help"]):
        code = f"import sys; from holdfast.cli.main import main; main({words!r}); print(*sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
        assert not {"mcp", "mcp_types", "pydantic", "anyio", "asyncio"} & set(done.stderr.split()), words


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("command", "ä" * 90_000),
        ("environment", {"A": "x" * (128 << 10)}),
        ("environment", {"A=B": "1"}),
        ("environment", {"": "1"}),
        ("environment", {"A": "1\0"}),
        ("environment", {"A" * (128 << 10): ""}),
        ("environment", {f"A{number}": "x" * 100_000 for number in range(6)}),
    ],
)
def test_a_command_that_could_not_be_started_is_refused_before_it_waits(field: str, given: object) -> None:
    arguments = {"command": "true"} | {field: given}
    with pytest.raises(UsageError, match=field) as caught:
        tools.convert(tools.BY_NAME["execute_command"], arguments)
    assert caught.value.code == "bad_arguments"
