"""A server that a client starts inside of `holdfast run`, as `integrate` sets it up: all of it is recorded already."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.model.errors import HoldfastError
from holdfast.processes.process_tree import descendants
from holdfast.sandbox.isolation_probe import require_isolation
from holdfast.sandbox.policy import FileAccess, SandboxPolicy
from holdfast.testing.tree_state import differences, photograph

from ..processes import command_of
from .conftest import INSTALLED
from .mcp_client import Place, call, refused, run, text, until
from .test_supervisor_runs import wait_until

CLIENT = ["sh", "-c", '"$@"; exit $?', "sh"]
"""Of the run's own command the server is a child, as it is a client's."""


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Generator[Place]:
    before = set(descendants(os.getpid()))
    place = Place(tmp_path)
    place.holdfast("init", str(place.tree))
    yield place
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    with holdfast.open_home(place.home) as home:
        assert home.verify().ok


def under_run(place: Place, *options: str) -> list[str]:
    words = [*INSTALLED, "--home", str(place.home), "-w", str(place.tree), "run", *options, "--"]
    return [*words, *CLIENT]


async def finished(client: Any) -> list[dict[str, Any]]:
    """The steps that are over; what the server tries by itself may have an open one, in which nothing is."""
    steps = (await call(client, "get_undo_history"))["steps"]
    assert [step["paths"] for step in steps if step["state"] == "open"] in ([], [0])
    return [step for step in steps if step["state"] != "open"]


def test_each_command_and_each_write_is_a_step_of_the_run(place: Place) -> None:
    """I1."""
    (place.tree / ".gitignore").write_text("ignored\n")
    (place.tree / "ignored").write_text("1")
    before = photograph(place.tree)

    async def work() -> None:
        async with place.client(under=under_run(place)) as client:
            (directory,) = (await call(client, "get_session_status"))["directories"]
            assert directory["access"] == "read_write"
            written = await call(client, "write_file", path="a/b.txt", content="one\ntwo\n")
            assert (written["step"]["state"], written["step"]["command"]) == ("done", ["write a/b.txt"])
            read = await call(client, "read_file", path="a/b.txt")
            assert (read["content"], read["hash"]) == ("one\ntwo\n", written["hash"])
            edited = await call(client, "edit_file", path="a/b.txt", old_text="two", new_text="three")
            assert edited["step"]["paths"] == 1
            again: dict[str, Any] = {"path": "a/b.txt", "content": "", "expected_hash": read["hash"]}
            assert await refused(client, "write_file", **again) == "changed"
            assert await refused(client, "write_file", path="a", content="") == "not_a_file"
            done = await client.call_tool(
                "execute_command",
                {"command": "cat b.txt; echo $X >&2; rm ../ignored; exit 3", "cwd": "a", "environment": {"X": "no"}},
            )
            value: Any = done.structured_content
            assert (value["exit_code"], value["stdout"], value["stderr"]) == (3, "one\nthree\n", "no\n")
            assert [change["path"] for change in value["step"]["changes"]] == ["ignored"]
            assert [one.name for one in (await client.list_prompts()).prompts] == ["log"], "undo is for outside"
            with pytest.raises(MCPError, match="outside of a run"):
                await client.get_prompt("undo", None)
            assert "step" not in await call(client, "execute_command", command="true")
            steps = await finished(client)
            assert [step["id"] for step in steps] == [
                value["step"]["id"],
                edited["step"]["id"],
                written["step"]["id"],
            ]
            (directory,) = (await call(client, "get_session_status"))["directories"]
            assert {step["run"] for step in steps} == {directory["run"]}
            made = await call(client, "checkpoint", label="half")
            assert made["created"]
            assert [each["label"] for each in (await call(client, "list_checkpoints"))["checkpoints"]] == ["half", ""]
            assert (await call(client, "diff", format="names"))["total"] == 0

    run(work)
    place.holdfast("undo")
    assert (place.tree / "ignored").read_text() == "1"
    place.holdfast("undo", "2")
    assert differences(before, photograph(place.tree)) == []
    place.holdfast("redo", "3")
    place.holdfast("undo", "--run")
    assert differences(before, photograph(place.tree)) == []


def test_what_goes_back_is_for_outside_and_says_so(place: Place) -> None:
    """I9."""

    async def work() -> None:
        async with place.client(under=under_run(place)) as client:
            await call(client, "write_file", path="f", content="1")
            names = {tool.name for tool in (await client.list_tools()).tools}
            outside = {
                "undo": {},
                "redo": {},
                "restore": {"checkpoint": "@"},
                "fork": {"name": "try"},
                "merge": {"fork": "try"},
                "start_session": {},
            }
            assert not names & outside.keys()
            assert {"execute_command", "write_file", "edit_file", "checkpoint", "diff"} <= names
            for tool, arguments in outside.items():
                assert await refused(client, tool, **arguments) == "inside_run"
                assert "another terminal" in text(await client.call_tool(tool, arguments))
            assert not (place.base / "tree.forks").exists()
            assert "only a person" in (client.instructions or "")

    run(work)
    assert (place.tree / "f").read_text() == "1"


def test_a_safeguard_holds_denies_and_lets_happen(place: Place) -> None:
    """I9: what is denied changes nothing more."""
    for number in range(3):
        (place.tree / f"f{number}").write_text("1")
    (place.home / "config.toml").write_text("[safeguard]\ndeletes = 2\n")
    before = photograph(place.tree)

    async def work() -> None:
        async with place.client(under=under_run(place)) as client:

            async def held(tool: str, answer: str, **arguments: Any) -> Any:
                results: list[Any] = []
                told = anyio.Event()

                async def note(progress: float, total: float | None, message: str | None) -> None:
                    assert progress >= 0
                    assert total is None
                    if message and message.startswith("waiting for a person"):
                        told.set()

                async def ask() -> None:
                    results.append(await client.call_tool(tool, arguments, progress_callback=note))

                async with anyio.create_task_group() as group:
                    group.start_soon(ask)
                    await told.wait()  # (an answer that is quicker than this news is not in the result)
                    (waiting,) = (await call(client, "get_session_status"))["held"]
                    number = str(waiting["id"])
                    await anyio.to_thread.run_sync(lambda: place.holdfast("safeguard", answer, number))
                return results[0].structured_content

            denied = await held("execute_command", "deny", command="rm f0 f1 f2; touch more")
            assert denied["denied"]
            assert denied["step"]["state"] == "undone"
            assert [ticket["danger"] for ticket in denied["held"]] == ["delete"]
            assert differences(before, photograph(place.tree)) == []
            allowed = await held("execute_command", "allow", command="rm f0 f1 f2; touch more")
            assert not allowed["denied"]
            assert allowed["step"]["state"] == "done"
            assert sorted(os.listdir(place.tree)) == ["more"]

    run(work)


def test_a_command_is_cancelled_and_a_lost_shim_takes_all_with_it(place: Place) -> None:
    """I3."""

    async def work() -> None:
        async with place.client(under=under_run(place)) as client:
            late = await call(client, "execute_command", command="touch half; sleep 1000", timeout_seconds=5)
            assert late["timed_out"]
            assert late["step"]["paths"] == 1
            before = set(descendants(os.getpid()))
            (shim,) = [pid for pid in before if b"sandbox/shim.py" in command_of(pid)]
            results: list[str] = []
            commands = set[int]()

            async def ask() -> None:
                results.append(
                    await refused(client, "execute_command", command="trap '' TERM; while :; do echo > beat; done")
                )

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await until((place.tree / "beat").exists)
                commands |= set(descendants(shim))
                assert commands
                os.kill(shim, signal.SIGKILL)
            assert results == ["shim_gone"]
            assert not commands & set(descendants(os.getpid()))
            assert (await call(client, "execute_command", command="ls"))["stdout"] == "beat\nhalf\n"
            assert [step["state"] for step in await finished(client)] == ["done", "done"]

    run(work)


def test_in_a_workspace_that_is_not_the_runs_nothing_is_changed(place: Place) -> None:
    other = place.base / "other"
    other.mkdir()
    place.holdfast("init", str(other))
    (other / "f").write_text("1")

    async def work() -> None:
        async with place.client("--add", str(other), under=under_run(place)) as client:
            which = {"directory": "other"}
            assert (await call(client, "read_file", path="f", **which))["content"] == "1"
            assert await refused(client, "write_file", path="f", content="2", **which) == "other_run"
            assert await refused(client, "execute_command", command="touch g", **which) == "other_run"
            assert (await call(client, "execute_command", command="touch g"))["step"]["paths"] == 1

    run(work)
    assert sorted(os.listdir(other)) == ["f"]
    assert (other / "f").read_text() == "1"
    unknown = place.base / "unknown"
    unknown.mkdir()
    words = [*CLIENT, *INSTALLED, "--home", str(place.home), "-w", str(unknown), "mcp"]
    place.holdfast("run", "--", *words, code=4)


def test_apart_from_the_home_it_says_that_it_cannot_work(place: Place) -> None:
    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    except HoldfastError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    place.holdfast("run", "--isolation", "namespace", "--", *CLIENT, *place.words(), code=4)
