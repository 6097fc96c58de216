"""The Model Context Protocol on standard input and output, by the official client."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
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
from ..waiting import stop, wait_until
from .mcp_client import Place, call, refused, run, text, until
from .test_hosting import torn


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Generator[Place]:
    before = set(descendants(os.getpid()))
    place = Place(tmp_path)
    yield place
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    if place.home.exists():
        with holdfast.open_home(place.home) as home:
            assert home.verify().ok
    for line in place.logged() if place.log.exists() else ():
        assert "exception" not in line, line
        assert {"timestamp", "level", "component", "message"} <= line.keys()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_what_a_model_does_is_steps_and_can_be_undone(place: Place, mode: str) -> None:
    """I1: both eras of the protocol."""
    (place.tree / ".gitignore").write_text("ignored\n")
    (place.tree / "ignored").write_text("1")
    before = photograph(place.tree)

    async def work() -> None:
        async with place.client(mode=mode) as client:
            written = await call(client, "write_file", path="a/b.txt", content="one\ntwo\n")
            assert written["step"]["kind"] == "api"
            read = await call(client, "read_file", path=f"{place.tree}/a/b.txt")
            assert (read["content"], read["hash"]) == ("one\ntwo\n", written["hash"])
            assert "next_cursor" not in read
            edited = await call(client, "edit_file", path="a/b.txt", old_text="two", new_text="three")
            assert edited["replaced"] == 1
            done = await client.call_tool(
                "execute_command",
                {"command": "cat b.txt; echo $X >&2; rm ../ignored; exit 3", "cwd": "a", "environment": {"X": "no"}},
            )
            value: Any = done.structured_content
            assert (value["exit_code"], value["stdout"], value["stderr"]) == (3, "one\nthree\n", "no\n")
            assert [change["path"] for change in value["step"]["changes"]] == ["ignored"]
            assert text(done).splitlines()[:3] == ["one", "three", "no"]
            assert "exit code 3" in text(done)
            nothing = await call(client, "execute_command", command="true")
            assert "step" not in nothing
            undone = await call(client, "undo", count=3)
            assert undone["steps"] == [3, 2, 1]
            assert differences(before, photograph(place.tree)) == []
            assert (await call(client, "redo", count=3))["steps"] == [1, 2, 3]
            run_id = value["step"]["run"]
            assert (await call(client, "undo", run=run_id))["steps"] == [3]
            assert (place.tree / "ignored").read_text() == "1"
            assert (await call(client, "redo", step=3))["steps"] == [3]
            assert (await call(client, "undo", step=3))["steps"] == [3]

    run(work)
    with holdfast.open(place.tree, home=place.home) as workspace:
        (command,) = [item.command for item in workspace.log_rows() if item.kind == "run"]
    assert command == "mcp: cat b.txt; echo $X >&2; rm ../ignored; exit 3"
    called = [line for line in place.logged() if line["message"] == "tool called"]
    assert {line["component"] for line in called} == {"mcp"}
    assert len({line["request_id"] for line in called}) == len(called) == 10


def test_the_history_tells_what_a_forced_undo_has_left_alone(place: Place) -> None:
    (place.tree / "f").write_text("1")

    async def work() -> None:
        async with place.client() as client:
            done = await call(client, "execute_command", command="mv f g")
            assert done["step"]["conflicts"] == []
            (place.tree / "g").unlink()
            (place.tree / "g").write_text("by hand")
            place.holdfast("undo", "--step", "1", "--force", code=4)
            for asked in (dict[str, int](), {"step": 1}):
                (step,) = (await call(client, "get_undo_history", **asked))["steps"]
                assert step["state"] == "partly"
                assert [one["path"] for one in step["conflicts"]] == ["g"]

    run(work)
    assert (place.tree / "g").read_text() == "by hand"


def test_undo_leaves_alone_what_others_have_changed_and_takes_steps_together(place: Place) -> None:
    """I8, I9."""
    (place.tree / "f").write_text("by hand")

    async def work() -> None:
        async with place.client() as client:
            await call(client, "checkpoint", label="begin")
            (place.tree / "f").write_text("by hand again")
            await call(client, "checkpoint", label="theirs")
            await call(client, "execute_command", command="echo 1 > g")
            await call(client, "edit_file", path="g", old_text="1", new_text="2")
            result = await client.call_tool("undo", {"count": 3})
            assert result.is_error
            assert result.meta is not None
            error: Any = result.meta["holdfast/error"]
            assert (error["code"], error["data"]["paths"]) == ("barrier", ["f"])
            assert error["data"]["barriers"] == []
            assert (place.tree / "g").read_text() == "2\n"
            result = await client.call_tool("undo", {"step": 1})
            assert result.meta is not None
            error = result.meta["holdfast/error"]
            assert (error["code"], error["data"]) == ("steps_connected", {"together": [1, 2]})
            assert "holdfast" not in text(result)
            assert (await call(client, "undo", steps=[1, 2]))["steps"] == [2, 1]
            assert (await call(client, "redo", steps=[1, 2]))["steps"] == [1, 2]
            assert (await call(client, "undo", count=2))["steps"] == [2, 1]
            assert await refused(client, "undo") == "barrier"
            assert (place.tree / "f").read_text() == "by hand again"

    run(work)


def test_an_error_by_edits_of_others_has_the_latest_of_them(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            await call(client, "execute_command", command="echo 1 > f")
            (place.tree / "f").write_text("by hand")
            result = await client.call_tool("undo", {"step": 1})
            assert result.meta is not None
            error: Any = result.meta["holdfast/error"]
            assert error["code"] == "barrier"
            assert [barrier["paths"] for barrier in error["data"]["barriers"]] == [["f"]]

    run(work)


def test_commands_run_apart_if_that_is_asked_for(place: Place) -> None:
    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    except HoldfastError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    mine, other, third = (place.base / name for name in ("mine", "near/other", "near/third"))
    for path in (mine, other, third):
        path.mkdir(parents=True)
        (path / "f").write_text("1")

    async def work() -> None:
        more = ("--add", str(other), "--add-read-only", str(third))
        async with place.client("--isolation", "namespace", *more) as client:
            done = await call(client, "execute_command", command=f"echo 1 > in; echo 2 > {mine}/f")
            assert done["exit_code"] != 0
            assert [change["path"] for change in done["step"]["changes"]] == ["in"]
            for path in (other, third):
                assert (await call(client, "execute_command", command=f"cat {path}/f"))["stdout"] == "1"
                done = await call(client, "execute_command", command=f"echo 2 > {path}/f")
                assert (done["exit_code"] != 0, "Read-only file system" in done["stderr"]) == (True, True)
            seen = await call(client, "execute_command", command=f"cat {place.tree}/in", directory="other")
            assert seen["stdout"] == "1\n"

    run(work)
    assert [(path / "f").read_text() for path in (mine, other, third)] == ["1"] * 3


def test_the_log_is_for_programs_unless_a_person_sits_there(place: Place) -> None:
    """I13."""
    words = [word for word in place.words() if word not in ("--log-level", "info")]
    done = subprocess.run(words, input="no message\n", capture_output=True, check=True, text=True)
    begun, record = [json.loads(line) for line in done.stderr.splitlines()]
    assert "was in no workspace" in begun["message"]
    assert (record["level"], record["component"]) == ("warn", "mcp")


def test_checkpoints_are_compared_restored_and_forked(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            for name in ("one", "two"):
                await call(client, "write_file", path="f", content=f"{name}\n")
                made = await call(client, "checkpoint", label=name, message="why")
                assert (made["created"], made["label"]) == (True, name)
            assert not (await call(client, "checkpoint"))["created"]
            listed = await call(client, "list_checkpoints")
            assert [each["label"] for each in listed["checkpoints"]] == ["two", "one"]
            assert listed["head"] == listed["checkpoints"][0]["id"]
            differs = await call(client, "diff", base="one", target="two")
            assert differs["patch"].endswith("@@ -1 +1 @@\n-one\n+two\n")
            stat = (await call(client, "diff", base="one", target="two", format="stat"))["files"]
            assert [(row["path"], row["status"], row["added"], row["removed"]) for row in stat] == [("f", "M", 1, 1)]
            assert (await call(client, "diff"))["total"] == 0
            dry = await call(client, "restore", checkpoint="one", dry_run=True)
            assert (dry["written"], dry["dry_run"]) == (["f"], True)
            assert (place.tree / "f").read_text() == "two\n"
            restored = await call(client, "restore", checkpoint="one", paths=["f"])
            assert restored["rescue"] == listed["head"]
            assert (place.tree / "f").read_text() == "one\n"
            assert (await call(client, "undo"))["written"] == ["f"]
            assert (place.tree / "f").read_text() == "two\n"
            forked = await call(client, "fork", name="try", checkpoint="one")
            assert Path(forked["path"]).parent == place.base / "tree.forks"
            assert (Path(forked["path"]) / "f").read_text() == "one\n"
            assert await refused(client, "fork", name="try") == "exists"
            (place.tree / "f").write_text("unsaved\n")
            present = await call(client, "fork", name="present")
            assert (Path(present["path"]) / "f").read_text() == "unsaved\n"
            for name in ("../x", "a/b", ".ssh", "", "a\n"):
                assert await refused(client, "fork", name=name) == "bad_arguments"

    run(work)


def test_what_was_written_before_a_restore_that_was_undone_is_undone(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            await call(client, "checkpoint", label="b")
            written = await call(client, "write_file", path="f", content="one\n")
            edited = await call(client, "edit_file", path="f", old_text="one", new_text="two")
            await call(client, "restore", checkpoint="b")
            assert (await call(client, "undo"))["written"] == ["f"]
            for one in (edited, written):
                assert (await call(client, "undo"))["steps"] == [one["step"]["id"]]
            assert list(place.tree.iterdir()) == []
            assert (await call(client, "get_session_status"))["barriers"] == []

    run(work)


def test_long_answers_come_in_pages(place: Place) -> None:
    for number in range(25):
        (place.tree / f"f{number:02}").write_text("1")
    lines = "".join(f"line {number} ä\n" for number in range(1000))
    (place.tree / "long").write_text(lines)
    (place.tree / "binary").write_bytes(bytes(range(256)) * 20)
    (place.tree / "one-line").write_text("ä" * 3000)

    async def everything(client: Any, tool: str, field: str, **arguments: Any) -> list[Any]:
        out: list[Any] = []
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            value = await call(client, tool, **arguments, **({} if cursor is None else {"cursor": cursor}))
            out += value[field] if isinstance(value[field], list) else [value]
            cursor, pages = value.get("next_cursor"), pages + 1
        assert pages > 1
        return out

    async def work() -> None:
        async with place.client() as client:
            names = [entry["name"] for entry in await everything(client, "list_directory", "entries", limit=10)]
            assert names == sorted(os.listdir(place.tree))
            for name in ("long", "one-line"):
                pages = await everything(client, "read_file", "content", path=name, max_bytes=1024)
                assert "".join(page["content"] for page in pages) == (place.tree / name).read_text()
                assert all(page["encoding"] == "utf-8" for page in pages)
            pages = await everything(client, "read_file", "content", path="binary", max_bytes=2048)
            content = b"".join(base64.b64decode(page["content"]) for page in pages)
            assert content == (place.tree / "binary").read_bytes()
            for number in range(5):
                await call(client, "write_file", path=f"g{number}", content=str(number))
                await call(client, "checkpoint", label=str(number))
            steps = await everything(client, "get_undo_history", "steps", limit=2)
            assert [step["id"] for step in steps] == [5, 4, 3, 2, 1]
            found = await everything(client, "list_checkpoints", "checkpoints", limit=2)
            assert [each["label"] for each in found] == ["4", "3", "2", "1", "0"]
            files = await everything(client, "diff", "files", base="0", limit=2)
            assert [row["path"] for row in files] == ["g1", "g2", "g3", "g4"]
            await call(client, "execute_command", command="mkdir d; cd d; touch $(seq 300)")
            (step,) = (await call(client, "get_undo_history", limit=1))["steps"]
            assert step["totals"] == {"changes": 301}
            detail = await call(client, "get_undo_history", step=step["id"], limit=150)
            again = await call(client, "get_undo_history", step=step["id"], cursor=detail["next_cursor"], limit=151)
            paths = [change["path"] for part in (detail, again) for change in part["steps"][0]["changes"]]
            assert sorted(paths) == sorted(["d", *(f"d/{number}" for number in range(1, 301))])
            os.unlink(place.tree / "f09")
            first = await call(client, "list_directory", limit=3)
            last = first["entries"][-1]["name"]
            os.unlink(place.tree / last)
            following = await call(client, "list_directory", limit=3, cursor=first["next_cursor"])
            assert min(entry["name"] for entry in following["entries"]) > last

    run(work)


def test_a_patch_that_is_long_comes_in_pages_too(place: Place) -> None:
    def write(text: str) -> None:
        for name in ("a", "b", "c"):
            (place.tree / name).write_text(f"{text}\n" * 20_000)
        (place.tree / "huge").write_text(f"{text} and more\n" * 200_000)

    write("before")

    async def work() -> None:
        async with place.client() as client:
            await call(client, "checkpoint", label="one")
            write("after")
            seen: list[str] = []
            cursor: dict[str, str] = {}
            while not seen or cursor:
                value = await call(client, "diff", base="one", **cursor)
                seen += [row["path"] for row in value["files"]]
                assert len(value["patch"]) < 600_000
                assert (value["patch_omitted"] > 0) == (value["files"][-1]["path"] in ("a", "b", "c", "huge"))
                cursor = {"cursor": value["next_cursor"]} if "next_cursor" in value else {}
            assert seen == ["a", "b", "c", "huge"]

    run(work)


def test_output_is_bounded_and_says_what_was_left_out(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            value = await call(
                client,
                "execute_command",
                command="echo begin; seq 1000000; echo end; echo e >&2",
                max_output_bytes=4096,
            )
            assert value["stdout"].startswith("begin\n1\n")
            assert value["stdout"].endswith("1000000\nend\n")
            assert value["stdout_omitted"] == len("begin\nend\n") + 6_888_896 - 4096
            assert f"{value['stdout_omitted']} bytes left out" in value["stdout"]
            assert (value["stderr"], value["stderr_omitted"]) == ("e\n", 0)

    run(work)


def test_resources_are_checkpoints_and_the_files_in_them(place: Place) -> None:
    (place.tree / "d").mkdir()
    (place.tree / "d" / "ä b").write_text("ä\n")
    (place.tree / "binary").write_bytes(b"\xff\0")
    (place.tree / "large").write_bytes(b"1" * (1 << 20) + b"2")

    async def work() -> None:
        async with place.client() as client:
            made = await call(client, "checkpoint", label="one")
            (resource,) = (await client.list_resources()).resources
            assert resource.uri == f"holdfast://checkpoints/{made['id']}"
            (content,) = (await client.read_resource(resource.uri)).contents
            value: Any = content
            assert json.loads(value.text)["paths"]["added"] == ["binary", "d/ä b", "large"]
            templates = (await client.list_resource_templates()).resource_templates
            assert [each.uri_template for each in templates] == [
                "holdfast://checkpoints/{id}",
                "holdfast://checkpoints/{id}/{+path}",
            ]
            value = (await client.read_resource(f"{resource.uri}/d/%C3%A4%20b")).contents[0]
            assert (value.text, value.mime_type) == ("ä\n", "text/plain")
            value = (await client.read_resource("holdfast://checkpoints/one/binary")).contents[0]
            assert base64.b64decode(value.blob) == b"\xff\0"
            for uri, message in (
                (f"{resource.uri}/missing", "missing"),
                (f"{resource.uri}/../../etc/passwd", "refused|is not"),
                ("holdfast://checkpoints/none", "none"),
                ("holdfast://other/x", "no resource"),
                (f"{resource.uri}/large", "larger"),
            ):
                with pytest.raises(Exception, match=message):
                    await client.read_resource(uri)

    run(work)


def test_prompts_are_what_a_person_asks_for_by_name(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            listed = (await client.list_prompts()).prompts
            assert [(one.name, [each.name for each in one.arguments or ()]) for one in listed] == [
                ("undo", ["count"]),
                ("log", ["count"]),
            ]
            tools = {tool.name for tool in (await client.list_tools()).tools}
            for name, given, said in (
                ("undo", None, "count 1."),
                ("undo", {"count": "3"}, "count 3."),
                ("log", {}, "limit 20,"),
            ):
                (message,) = (await client.get_prompt(name, given)).messages
                text: Any = message.content
                assert said in text.text
                assert (
                    {"undo", "redo"} <= tools if name == "undo" else {"get_undo_history", "list_checkpoints"} <= tools
                )
            for name, given, wrong in (
                ("undo", {"count": "0"}, "from 1 to 1000"),
                ("undo", {"count": "9" * 5000}, "from 1 to 1000"),
                ("undo", {"number": "1"}, "no argument 'number'"),
                ("none", None, "no prompt 'none'"),
            ):
                with pytest.raises(MCPError, match=wrong):
                    await client.get_prompt(name, given)

    run(work)


def test_a_cancelled_call_ends_its_command_and_one_that_waits_never_begins(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            async with anyio.create_task_group() as group:
                first, second = anyio.CancelScope(), anyio.CancelScope()

                async def execute(scope: anyio.CancelScope, command: str) -> None:
                    with scope:
                        await client.call_tool("execute_command", {"command": command})

                group.start_soon(execute, first, "trap '' TERM; touch begun; while :; do sleep 0.05; done")
                await until((place.tree / "begun").exists)
                group.start_soon(execute, second, "touch never")
                await until(lambda: len([1 for line in place.logged() if line["message"] == "tool called"]) == 2)
                status = await call(client, "get_session_status")
                assert status["directories"][0]["state"] == "running"
                second.cancel()
                first.cancel()
            assert (await call(client, "execute_command", command="ls"))["stdout"] == "begun\n"
            assert (await call(client, "get_undo_history"))["steps"][0]["exit_code"] == 137
            value = await call(client, "execute_command", command="touch late; sleep 100", timeout_seconds=1)
            assert (value["timed_out"], value["exit_code"]) == (True, 143)
            await call(client, "undo", count=2)
            assert os.listdir(place.tree) == []

    run(work)


@pytest.mark.parametrize("allow", [False, True])
def test_a_person_answers_a_safeguard_and_no_model_can(place: Place, allow: bool) -> None:
    """I9."""
    for number in range(60):
        (place.tree / f"f{number}").write_text("1")
    before = photograph(place.tree)
    said: list[str] = []
    answer = ("safeguard", "allow" if allow else "deny")

    async def note(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")

    def asked() -> list[str]:
        return [message for message in said if message.startswith("waiting for a person: ")]

    async def work() -> None:
        async with place.client("--guard") as client:
            words = f"holdfast --home {place.home} -w {place.tree} safeguard allow"
            sneaky = f"(for n in $(seq 6); do {words} 1; {words} 2; done) >/dev/null 2>&1 &"
            await call(client, "execute_command", command=sneaky)
            results: list[Any] = []

            async def remove() -> None:
                results.append(
                    await client.call_tool("execute_command", {"command": "rm -f f*"}, progress_callback=note)
                )

            async with anyio.create_task_group() as group:
                group.start_soon(remove)
                await until(lambda: bool(asked()))
                assert "safeguard allow 1" in asked()[0]
                assert "delete" in asked()[0]
                status = await call(client, "get_session_status")
                assert status["guarded"]
                assert [ticket["id"] for ticket in status["held"]] == [1]
                place.holdfast(*answer, "1")
            (result,) = results
            value = result.structured_content
            assert value["denied"] != allow
            assert [ticket["danger"] for ticket in value["held"]] == ["delete"]
            if allow:
                assert os.listdir(place.tree) == []
                await call(client, "undo")
            else:
                assert "denied" in text(result)
            assert differences(before, photograph(place.tree)) == []

    run(work)


def test_a_write_can_be_held_too(place: Place) -> None:
    """I9: also where no command has begun a session."""
    (place.tree / "large").write_bytes(b"1" * 10_000_000)
    before = photograph(place.tree)
    said: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")

    async def work() -> None:
        async with place.client("--guard") as client:
            results: list[Any] = []

            async def write() -> None:
                arguments = {"path": "large", "content": "small"}
                results.append(await client.call_tool("write_file", arguments, progress_callback=note))

            async with anyio.create_task_group() as group:
                group.start_soon(write)
                await until(lambda: any("large" in message and "waiting" in message for message in said))
                place.holdfast("safeguard", "deny", "1")
            assert results[0].is_error
            assert results[0].meta["holdfast/error"]["code"] == "denied"
            assert "it was held" in text(results[0])
            assert differences(before, photograph(place.tree)) == []

    run(work)


def test_several_directories_each_with_its_own_history(place: Place) -> None:
    """I10."""
    other, third = place.base / "other", place.base / "third"
    other.mkdir()
    third.mkdir()
    (third / "f").write_text("3")

    async def work() -> None:
        async with place.client("--add", str(other), "--add-read-only", str(third)) as client:
            for which in (None, 1, "1"):
                more = {} if which is None else {"directory": which}
                await call(client, "execute_command", command="echo 1 >> f", **more)
            await call(client, "undo", directory="other")
            assert ((place.tree / "f").read_text(), (other / "f").read_text()) == ("1\n", "1\n")
            assert (await call(client, "read_file", path="f", directory="2"))["content"] == "3"
            for tool, arguments in (
                ("write_file", {"path": "g", "content": ""}),
                ("execute_command", {"command": "true"}),
                ("undo", {}),
                ("checkpoint", {}),
            ):
                assert await refused(client, tool, **arguments, directory="2") == "read_only"
            for path in (other, third):
                done = await call(client, "execute_command", command=f"echo 2 > {path}/f")
                assert (done["exit_code"] != 0, "Read-only file system" in done["stderr"]) == (True, True)
            assert ((other / "f").read_text(), (third / "f").read_text()) == ("1\n", "3")
            for wrong in ("3", "9" * 10_000, "٣"):
                assert await refused(client, "read_file", path="f", directory=wrong) == "no_directory"
            listed = (await call(client, "get_session_status", directory="2"))["directories"]
            assert [each["access"] for each in listed] == ["read_write", "read_write", "read_only"]

    run(work)


def test_a_killed_keeper_is_told_of_by_this_server_and_by_the_next(place: Place) -> None:
    """I3."""

    def keeper() -> int:
        return next(pid for pid in descendants(os.getpid()) if b"supervisor.keeper" in command_of(pid))

    async def first() -> None:
        async with place.client() as client:
            failed: list[Any] = []

            async def execute(command: str) -> None:
                failed.append(await client.call_tool("execute_command", {"command": command}))

            async with anyio.create_task_group() as group:
                group.start_soon(execute, "touch half; sleep 1000")
                await until((place.tree / "half").exists)
                os.kill(keeper(), signal.SIGKILL)
            assert failed[0].meta["holdfast/error"]["code"] == "keeper_gone"
            assert "rolled back" in failed[0].meta["holdfast/error"]["hint"]
            assert not (place.tree / "half").exists()
            assert (await call(client, "get_session_status"))["recovered"] == [{"steps": [1], "paths": 1}]
            assert (await call(client, "execute_command", command="true"))["exit_code"] == 0

    async def second() -> None:
        with anyio.CancelScope() as scope:
            async with place.client() as client, anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "execute_command", {"command": "touch half; sleep 1000"})
                await until((place.tree / "half").exists)
                (server,) = [pid for pid in descendants(os.getpid()) if b"mcp" in command_of(pid)]
                victims = (server, keeper())
                stop(*victims)
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                scope.cancel()

    async def third() -> None:
        async with place.client() as client:
            assert len((await call(client, "get_session_status"))["recovered"]) == 1
            assert os.listdir(place.tree) == []

    run(first)
    run(second)
    wait_until(lambda: not (place.tree / "half").exists())
    run(third)


def test_mistakes_are_answered_with_what_is_wrong(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            for tool, arguments, code in (
                ("read_file", {}, "bad_arguments"),
                ("read_file", {"path": 1}, "bad_arguments"),
                ("read_file", {"path": "f", "force": True}, "bad_arguments"),
                ("read_file", {"path": "missing"}, "no_such_path"),
                ("read_file", {"path": "../home/catalog.db"}, "escape"),
                ("read_file", {"path": "/etc/passwd"}, "escape"),
                ("read_file", {"path": "a\0b"}, "escape"),
                ("read_file", {"path": "f", "cursor": "none"}, "bad_cursor"),
                ("write_file", {"path": "f", "content": "!", "encoding": "base64"}, "usage"),
                ("write_file", {"path": "f", "content": "", "expected_hash": "x"}, "usage"),
                ("write_file", {"path": "..", "content": ""}, "escape"),
                ("write_file", {"path": "a/.git/config", "content": ""}, "escape"),
                ("execute_command", {"command": "true", "environment": {"A=B": "1"}}, "bad_arguments"),
                ("execute_command", {"command": "true", "cwd": "none"}, "no_directory"),
                ("execute_command", {"command": "true", "cwd": "/"}, "escape"),
                ("undo", {}, "nothing_to_undo"),
                ("restore", {"checkpoint": "none"}, "not_found"),
                ("no_such_tool", {}, "no_tool"),
            ):
                assert await refused(client, tool, **arguments) == code, (tool, arguments)
            await call(client, "checkpoint")
            result = await client.call_tool("diff", {"paths": ["nix"]})
            assert "nix is in neither state" in text(result)
            assert "current directory" not in text(result)
            result = await client.call_tool("write_file", {"path": ".git/hooks/x", "content": ""})
            assert "Git's own" in text(result)

    run(work)


def test_no_link_says_where_forks_are_written(place: Place) -> None:
    (place.base / "elsewhere").mkdir()
    (place.base / "tree.forks").symlink_to("elsewhere")

    async def work() -> None:
        async with place.client() as client:
            await call(client, "checkpoint")
            assert await refused(client, "fork", name="x") == "not_a_directory"
            assert os.listdir(place.base / "elsewhere") == []

    run(work)


def test_what_fails_leaves_nothing_behind(place: Place) -> None:
    async def work() -> None:
        async with place.client() as client:
            assert await refused(client, "fork", checkpoint="none", name="x") == "not_found"
            assert not (place.base / "tree.forks").exists()
            for path in ("d/", "a/d/", "a/."):
                assert await refused(client, "write_file", path=path, content="1") == "not_a_file"
            assert not (place.tree / "d").exists()
            assert not (place.tree / "a").exists()

    run(work)


def test_a_killed_server_leaves_what_the_next_one_can_undo(place: Place) -> None:
    """I3."""
    before = photograph(place.tree)
    server = subprocess.Popen(place.words(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin is not None
    for message in (
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {
                "name": "execute_command",
                "arguments": {"command": "touch a; echo $$ >pid; touch b; sleep 99"},
            },
        },
    ):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    server.stdin.flush()
    wait_until((place.tree / "b").exists)
    command = int((place.tree / "pid").read_text())
    os.kill(server.pid, signal.SIGKILL)
    server.communicate()
    wait_until(lambda: not Path(f"/proc/{command}").exists())

    async def work() -> None:
        async with place.client() as client:
            assert (await call(client, "execute_command", command="ls"))["stdout"] == "a\nb\npid\n"
            await call(client, "undo")
            assert differences(before, photograph(place.tree)) == []

    run(work)


def test_what_was_torn_is_whole_again_before_anybody_is_served(place: Place) -> None:
    """I3."""
    torn(place.tree, place.home)

    async def work() -> None:
        async with place.client() as client:
            assert (await call(client, "read_file", path="f"))["content"] == "before"
            (recovered,) = (await call(client, "get_session_status"))["recovered"]
            assert recovered["steps"] == [1]

    run(work)


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def converse(place: Place, *lines: bytes, words: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Send lines to a server of its own and return what it answers, each line of it."""
    done = subprocess.run(
        place.words(*words),
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        check=False,
        timeout=60,
    )
    place.log.write_bytes(done.stderr)
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_no_message_is_answered_and_survived(place: Place) -> None:
    """I12, I13, case 14."""
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode()
    ready = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    answers = converse(
        place,
        b"\xff\xfe",
        b"{",
        b"[]",
        b"7",
        b"[" * 100_000,
        b"x" * (33 << 20),
        b'{"jsonrpc":"2.0","id":9,"method":"tools/list"',
        b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        b"",
        hello,
        ready,
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":"much"}}',
        b'{"jsonrpc":"2.0","id":2,"method":"no/such"}',
        b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":7}}',
        b'{"jsonrpc":"2.0","id":4,"method":"ping"}',
    )
    found = [(answer.get("id"), answer["error"]["code"] if "error" in answer else "ok") for answer in answers]
    refusals = [-32700, -32700, -32600, -32600, -32600, -32600, -32700, -32600, -32600]
    assert found[:9] == [(None, code) for code in refusals]
    assert sorted(found[9:], key=str) == [(1, "ok"), (2, -32601), (3, -32602), (4, "ok")]
    logged = [line for line in place.logged() if line["level"] == "warn"]
    assert [line["component"] for line in logged].count("engine") == 1  # (that a workspace begins)
    assert {line["component"] for line in logged} == {"engine", "mcp"}
    assert any("malformed params" in line["message"] for line in logged)  # the SDK's own


def test_a_client_that_asks_too_much_at_once_is_told(place: Place) -> None:
    (place.tree / "f").write_text("1" * (1 << 19))
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}).encode() + b"\n"
    server = subprocess.Popen(place.words(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(hello)
    server.stdin.flush()
    assert "result" in json.loads(server.stdout.readline())
    arguments = {"path": "f", "max_bytes": 1 << 20}
    request = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "read_file", "arguments": arguments}}
    os.set_blocking(server.stdin.fileno(), False)
    sent = 0
    blocked = 0.0
    while blocked < 3 and sent < 20_000:  # until it takes in nothing more
        line = json.dumps({**request, "id": sent + 1}).encode() + b"\n"
        try:
            assert os.write(server.stdin.fileno(), line) == len(line)
            sent += 1
            blocked = 0
        except BlockingIOError:
            select_for(0.1)
            blocked += 0.1
    assert sent < 20_000
    with open(f"/proc/{server.pid}/status") as status:
        (peak,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    assert peak < 600_000
    answers = [json.loads(server.stdout.readline()) for _ in range(sent)]
    assert sorted(answer["id"] for answer in answers) == list(range(1, sent + 1))
    assert all(answer["error"]["code"] == -32000 for answer in answers if "error" in answer)
    assert sum("result" in answer for answer in answers) >= 64
    server.stdin.close()
    assert server.wait(60) == 0
    server.stdout.close()


def select_for(seconds: float) -> None:
    """Let the others go on."""
    import select

    select.select([], [], [], seconds)
