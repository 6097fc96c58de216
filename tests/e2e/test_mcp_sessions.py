"""Sessions, experiments and merges as tools of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

import holdfast
from holdfast.processes.process_tree import descendants
from holdfast.sandbox.isolation_probe import require_isolation
from holdfast.sandbox.policy import FileAccess, SandboxPolicy
from holdfast.testing.tree_state import differences, photograph

from ..waiting import wait_until
from .mcp_client import Place, call, refused, run, text, until

UNCONFINED = {
    "start_session",
    "execute_in_session",
    "fork_session",
    "merge_session",
    "end_session",
    "run_experiment",
}


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Generator[Place]:
    before = set(descendants(os.getpid()))
    place = Place(tmp_path)
    yield place
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    with holdfast.open_home(place.home) as home:
        assert home.verify().ok
    for line in place.logged():
        assert "exception" not in line, line


def no_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return all(each is not None and no_nulls(each) for each in value.values())
    return all(no_nulls(each) for each in value) if isinstance(value, list) else True


def test_a_session_keeps_its_shell_and_its_commands_are_steps(place: Place) -> None:
    """I1."""
    (place.tree / ".gitignore").write_text("ignored\n")
    (place.tree / "ignored").write_text("1")
    (place.tree / "sub").mkdir()
    before = photograph(place.tree)

    async def work() -> None:
        async with place.client() as client:
            started = await call(client, "start_session", session="one", environment={"WHO": "me"})
            assert (started["id"], started["config"]["supervised"]) == ("one", True)
            done = await client.call_tool(
                "execute_in_session", {"session": "one", "command": "cd sub; export X=$WHO; rm ../ignored; exit 3"}
            )
            value: Any = done.structured_content
            assert value["exit_code"] == 3
            assert "exit code 3" in text(done)
            value = await call(client, "execute_in_session", session="one", command="pwd; echo $X")
            assert value["stdout"].split() == [str(place.tree / "sub"), "me"]
            assert no_nulls(value)
            (step,) = (await call(client, "get_undo_history"))["steps"]
            assert (step["kind"], step["paths"]) == ("command", 1)
            assert (await call(client, "undo"))["steps"] == [step["id"]]
            assert differences(before, photograph(place.tree)) == []
            shown = await call(client, "get_session", session="one", history=1)
            assert [one["command"] for one in shown["history"]] == ["pwd; echo $X"]
            assert shown["directory"] == "sub"
            listed = await call(client, "list_sessions")
            assert [one["id"] for one in listed["sessions"]] == ["one"]
            assert listed["total"] == 1
            assert no_nulls(listed)
            assert no_nulls(shown)

    run(work)


def test_a_fork_is_merged_when_its_conflicts_are_decided(place: Place) -> None:
    (place.tree / "f").write_bytes(b"\0one")

    async def work() -> None:
        async with place.client() as client:
            await call(client, "start_session", session="one")
            fork = await call(client, "fork_session", session="one", fork="two")
            assert fork["id"] == "two"
            await call(client, "execute_in_session", session="two", command=r"printf '\0two' > f; echo new > g")
            await call(client, "execute_in_session", session="one", command=r"printf '\0here' > f")
            listed = (await call(client, "list_sessions"))["sessions"]
            assert {one["id"]: one.get("parent") for one in listed} == {"one": None, "two": "one"}
            arguments: dict[str, Any] = {"session": "one", "other": "two"}
            found = await call(client, "merge_session", **arguments)
            assert [one["path"] for one in found["overlapping_files"]] == ["f"]
            assert not (place.tree / "g").exists()
            decided = [{"path": "f", "use": "theirs"}]
            planned = await call(client, "merge_session", **arguments, resolutions=decided, dry_run=True)
            assert (planned["added"], (place.tree / "g").exists()) == (["g"], False)
            merged = await call(client, "merge_session", **arguments, resolutions=decided)
            assert merged["restored"]["written"] == ["f", "g"]
            assert (place.tree / "f").read_bytes() == b"\0two"
            assert "holdfast" not in json.dumps(merged["restored"])
            await call(client, "undo")
            assert (place.tree / "f").read_bytes() == b"\0here"
            assert not (place.tree / "g").exists()

    run(work)


def test_what_fork_wrote_out_is_merged_and_no_other_directory(place: Place, tmp_path: Path) -> None:
    (place.tree / "f").write_bytes(b"\0one")
    elsewhere = tmp_path / "elsewhere"
    place.holdfast("init")
    place.holdfast("checkpoint")
    place.holdfast("fork", "@", str(elsewhere))

    async def work() -> None:
        async with place.client() as client:
            await call(client, "checkpoint")
            fork = Path((await call(client, "fork", name="try"))["path"])
            (fork / "f").write_bytes(b"\0two")
            (fork / "g").write_text("new")
            (place.tree / "f").write_bytes(b"\0here")
            found = await call(client, "merge", fork="try", dry_run=True)
            assert [one["path"] for one in found["overlapping_files"]] == ["f"]
            assert await refused(client, "merge", fork="try", resolutions=[{"path": "f", "use": "content"}]) == (
                "bad_arguments"
            )
            version = found["overlapping_files"][0]["version"]
            given = [{"path": "f", "use": "content", "content": "both", "version": version}]
            assert no_nulls(await call(client, "merge", fork="try", resolutions=given))
            assert ((place.tree / "f").read_text(), (place.tree / "g").read_text()) == ("both", "new")
            for name in (str(elsewhere), "../elsewhere", ".."):
                assert await refused(client, "merge", fork=name) == "not_found"

    run(work)


def test_an_experiment_is_compared_and_the_best_adopted(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            commands = ["echo bad > f; exit 1", "echo good > f"]
            found = await call(client, "run_experiment", commands=commands)
            assert [one["status"] for one in found["attempts"]] == ["done", "failed"]
            assert (found["winner"], (place.tree / "f").exists()) == (2, False)
            assert no_nulls(found)
            found = await call(client, "run_experiment", commands=commands, adopt=True)
            assert found["adopted"]["written"] == ["f"]
            assert (place.tree / "f").read_text() == "good\n"
            assert len((await call(client, "list_sessions"))["sessions"]) == 1

    run(work)


def test_what_a_session_left_running_is_ended_and_its_history_stays(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            await call(client, "start_session", session="one")
            await call(client, "execute_in_session", session="one", command="sleep 1000 & echo $! > pid")
            pid = int((place.tree / "pid").read_text())
            os.kill(pid, 0)
            ended = await call(client, "end_session", session="one")
            assert (ended["id"], ended["ended"]) == ("one", 1)
            await until(lambda: not os.path.exists(f"/proc/{pid}"))
            again = await call(client, "execute_in_session", session="one", command="cat pid")
            assert again["stdout"] == f"{pid}\n"
            assert len((await call(client, "get_session", session="one"))["history"]) == 2

    run(work)


def test_a_command_of_a_session_ends_with_its_call(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            await call(client, "start_session", session="one")
            command = "echo $$ > pid; exec sleep 1000"
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: call(client, "execute_in_session", session="one", command=command))
                await until(lambda: (place.tree / "pid").exists() and bool((place.tree / "pid").read_text()))
                group.cancel_scope.cancel()
            pid = int((place.tree / "pid").read_text())
            await until(lambda: not os.path.exists(f"/proc/{pid}"))
            timed = await call(client, "execute_in_session", session="one", command="sleep 1000", timeout_seconds=0.2)
            assert timed["timed_out"]

    run(work)


def test_sessions_of_other_workspaces_and_those_that_record_nothing_are_out_of_reach(
    place: Place, tmp_path: Path
) -> None:
    """I9: what is not supervised could answer a safeguard."""
    other = tmp_path / "other"
    other.mkdir()
    place.holdfast("-w", str(other), "session", "start", "theirs")
    place.holdfast("session", "start", "bare", "--unsupervised")

    async def work() -> None:
        async with place.client() as client:
            for tool, more in (("get_session", {}), ("execute_in_session", {"command": "true"}), ("end_session", {})):
                assert await refused(client, tool, session="theirs", **more) == "no_session"
            assert await refused(client, "execute_in_session", session="bare", command="true") == "not_recorded"
            listed = (await call(client, "list_sessions"))["sessions"]
            assert [one["id"] for one in listed] == ["bare"]

    run(work)


def test_a_server_that_confines_commands_has_no_sessions(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()

    async def work(*options: str) -> None:
        async with place.client(*options) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert not names & UNCONFINED
            assert {"list_sessions", "merge"} <= names
            assert await refused(client, "start_session") == "confined"

    run(lambda: work("--add-read-only", str(other)))
    require_isolation(SandboxPolicy(files=FileAccess(os.fsencode(place.tree))))
    run(lambda: work("--isolation", "namespace"))


def test_safeguards_hold_in_sessions_and_no_tool_answers(place: Place) -> None:
    """I9."""
    for number in range(60):
        (place.tree / f"f{number}").write_text("1")
    before = photograph(place.tree)

    async def work() -> None:
        async with place.client("--guard") as client:
            await call(client, "start_session", session="one")
            said: list[str] = []

            async def note(progress: float, total: float | None, message: str | None) -> None:
                assert total is None
                assert progress >= 0
                said.append(message or "")

            async def rm() -> None:
                result = await client.call_tool(
                    "execute_in_session", {"session": "one", "command": "rm f*"}, progress_callback=note
                )
                value: Any = result.structured_content
                assert value["exit_code"] != 0

            async with anyio.create_task_group() as group:
                group.start_soon(rm)
                await until(lambda: any("waiting for a person" in one for one in said))
                place.holdfast("safeguard", "deny", "1")
            assert differences(before, photograph(place.tree)) == []

    run(work)


def test_what_is_done_between_begin_and_commit_is_one_step(place: Place) -> None:
    """I1."""
    before = photograph(place.tree)

    async def work() -> None:
        async with place.client() as client:
            begun = (await call(client, "begin_step", label="both"))["id"]
            await call(client, "execute_command", command="echo 1 > f")
            await call(client, "write_file", path="g", content="2")
            step = await call(client, "commit_step")
            assert (step["id"], [change["path"] for change in step["changes"]]) == (begun, ["f", "g"])
            assert (await call(client, "undo"))["steps"] == [begun]
            assert differences(before, photograph(place.tree)) == []
            begun = (await call(client, "begin_step"))["id"]
            await call(client, "execute_command", command="echo 1 > f")
            assert (await call(client, "rollback_step"))["steps"] == [begun]
            assert differences(before, photograph(place.tree)) == []
            assert await refused(client, "commit_step") == "no_open_step"

    run(work)


def test_a_step_of_a_person_is_not_for_a_model_to_end(place: Place) -> None:
    """I9."""

    async def work() -> None:
        async with place.client() as client:
            await call(client, "execute_command", command="echo 1 > f")
            place.holdfast("step", "begin")
            assert await refused(client, "begin_step") == "refused"
            for tool in ("commit_step", "rollback_step"):
                assert await refused(client, tool) == "no_open_step"
            place.holdfast("step", "commit")

    run(work)
