"""What each face answers is what its published schema says, with no field besides. (What commands print with
``--json``, `Cli.json` checks wherever it is called.)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.api.rest._openapi import document
from holdfast.api.stdio import schema as stdio_schema

from ..answers import check_command, closed, validator
from . import mcp_client, rest
from .conftest import Cli
from .frontend import Start
from .mcp_client import call, run


def refuse(errors: Any) -> None:
    """Fail with what is wrong, if anything is."""
    assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == []


def test_commands_of_sessions_runs_and_stores(cli: Cli) -> None:
    cli.write("f", "1\n")
    cli.write("big", b"\0\xff")
    for words in (
        "status --ignored", "checkpoint -m one", "barriers", "safeguard list", "show", "log", "cat @:f", "diff",
        "stats", "verify", "gc --dry-run", "store info", "store probe", "doctor", "forget --keep-last 1 --dry-run",
        "promote --list", "promote --sweep", "completion bash", "session start main", "session list",
        "session info -s main", "session history -s main", "session checkpoint -s main", "session branch -s main b",
        "session branches -s main", "session fork -s main k", "session share -s main ada", "session checkout -s main b",
        "session delete k --dry-run", "session merge -s main k", "serve token create", "serve token list",
        "integrate claude --dry-run",
    ):  # fmt: skip
        cli.json(*words.split())
    # (Whatever stands behind these is a command's.)
    for title, words in (
        ("session exec", ["-s", "main", "echo 1 > made"]),
        ("session classify", ["ls"]),
        ("experiment", ["-s", "main", "true"]),
    ):
        check_command(title, cli("--json", *title.split(), *words).json)
    cli.write("f", "2\n")
    check_command("run", json.loads(cli("--json", "run", "--", "rm", "f").err.splitlines()[-1]))
    cli.json("steps")
    cli.json("steps", "show", "1")
    cli.json("undo")
    cli.json("redo")


def test_messages_of_a_frontend(start: Start, tree: Path) -> None:
    (tree / "f").write_text("1\n")
    client = start()
    client.begin()
    client.ask("agent.execute", command="echo out; rm f; mkdir d; echo 1 > d/f")
    for kind, payload in (
        ("session.status", {}),
        ("undo.history", {}),
        ("fs.list", {}),
        ("fs.read", {"path": "d/f"}),
        ("fs.status", {}),
        ("checkpoint.create", {"label": "one"}),
        ("checkpoint.list", {}),
        ("checkpoint.diff", {}),
        ("checkpoint.read", {"path": "d/f"}),
        ("undo.configure", {"max_step_count": 50}),
        ("undo.rollback", {"step_id": 1}),
        ("redo", {"step_id": 1}),
        ("checkpoint.restore", {"checkpoint": "one"}),
        ("fork", {"path": f"{tree}-fork"}),
    ):
        client.ask(kind, **payload)
    client.refused("undo.rollback", step_id=99)
    client.refused("undo.rollback", step_id="one")
    client.ask("safeguard.configure", delete_threshold=1, timeout_seconds=60)
    denied = client.send("agent.execute", command="rm -r d")
    client.ask("safeguard.confirm", safeguard_id=client.event("safeguard_triggered")["safeguard_id"], action="deny")
    client.answer(denied)
    client.ask("session.stop")
    assert client.end() == 0
    says = Draft202012Validator(closed({"$ref": "#/$defs/server", "$defs": stdio_schema.schema()["$defs"]}))
    assert len(client.messages) > 20
    for message in client.messages:
        refuse(says.iter_errors(message))


def test_answers_of_tools(tmp_path: Path) -> None:
    place = mcp_client.Place(tmp_path)
    (place.tree / "f").write_text("1\n")

    async def work() -> None:
        async with place.client() as client:
            says = {tool.name: validator(tool.output_schema) for tool in (await client.list_tools()).tools}
            for name, arguments in (
                ("get_session_status", {"compare": True}),
                ("checkpoint", {"label": "one"}),
                ("execute_command", {"command": "echo out; rm f"}),
                ("write_file", {"path": "a/b", "content": "one\n"}),
                ("edit_file", {"path": "a/b", "old_text": "one", "new_text": "two"}),
                ("read_file", {"path": "a/b"}),
                ("list_directory", {}),
                ("get_undo_history", {}),
                ("get_undo_history", {"step": 1}),
                ("diff", {"format": "stat"}),
                ("undo", {}),
                ("redo", {}),
                ("list_checkpoints", {}),
                ("restore", {"checkpoint": "one"}),
                ("fork", {"name": "fork"}),
                ("next_reapply", {}),
            ):
                refuse(says[name].iter_errors(await call(client, name, **arguments)))

    run(work)


def test_answers_of_the_rest_api(tmp_path: Path) -> None:
    place = rest.Place(tmp_path)
    path = place.directory("one", a="1\n", b="2\n")
    published: Any = closed(document(ENDPOINTS))

    with place.server(watch_debounce="200ms") as server:
        client = server.client(place.token())

        def ask(method: str, where: str, body: Any = None) -> Any:
            answer = client.ask(method, where, body)
            assert answer.status == 200, answer
            paths = published["paths"]
            route = next(path for path in paths if method.lower() in paths[path] and _fits(path, where))
            content = paths[route][method.lower()]["responses"]["200"]["content"]
            says = content["application/json"]["schema"] | {"components": published["components"]}
            refuse(Draft202012Validator(says).iter_errors(answer.json))
            return answer.json

        here = "/api/exports/one"
        ask("POST", "/api/exports", {"name": "one", "path": str(path), "project": "p", "auto_checkpoint": False})
        rest.watched(client, "one")
        one = ask("POST", f"{here}/checkpoint", {"label": "one"})["checkpoint_id"]
        (path / "a").write_text("3\n")
        ask("GET", f"{here}/status")
        two = ask("POST", "/api/projects/p/checkpoints", {})["checkpoint_id"]
        for where in (
            here, "/api/exports", f"{here}/checkpoints", "/api/projects/p/checkpoints", f"/api/checkpoints/{one}",
            f"/api/checkpoints/{one}/files", f"/api/checkpoints/{one}/diff/{two}",
            f"/api/checkpoints/{one}/diff/{two}?content=false", f"{here}/promotions", f"{here}/reapplies",
            "/api/health",
        ):  # fmt: skip
            ask("GET", where)
        for where in ("undo", "redo"):
            ask("POST", f"{here}/{where}", {})
        ask("POST", f"{here}/restore", {"checkpoint": "one", "dry_run": True})
        ask("POST", f"{here}/fork", {"checkpoint": one, "name": "two", "path": str(place.root / "two")})
        plan = {"writes": [{"path": "a", "content": "4\n", "mode": "0644"}], "deletes": ["b"]}
        theirs = ask("POST", "/api/exports/two/write-files", plan)["checkpoint"]
        found = ask("POST", "/api/merge", {"production_checkpoint": two, "promote_checkpoint": theirs})
        assert found["result"] == "needs_reapply"
        ask("POST", f"{here}/reapplies/take", {})
        name = ask("POST", f"{here}/promote", {"fork": "two"})["id"]
        ask("GET", f"{here}/promotions")
        ask("GET", f"{here}/promotions/{name}")
        refuse(
            Draft202012Validator(
                {"$ref": "#/components/schemas/Problem", "components": published["components"]}
            ).iter_errors(client.ask("GET", f"/api/checkpoints/{'0' * 24}").json)
        )
        assert server.stop() == 0


def _fits(pattern: str, where: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", pattern), where.partition("?")[0]) is not None


@pytest.mark.parametrize("extra", [{}, {"more": 1}])
def test_a_field_that_is_not_described_is_found(extra: dict[str, int]) -> None:
    from holdfast.model.answers.workspace import Counts

    from ..answers import wrong

    assert bool(wrong({"added": 1, "modified": 0, "deleted": 0, **extra}, Counts)) == bool(extra)
