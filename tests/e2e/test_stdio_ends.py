"""A client of `holdfast stdio` that does not read, or goes; and kills in the middle of a command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.processes.process_tree import descendants

from ..processes import command_of
from ..waiting import stop, wait_until
from .frontend import HOLDFAST, ROOT, Frontend, Message, Start

MIB = 1 << 20


def most_memory(pid: int) -> int:
    """The most bytes of memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def waits_to_be_read(client: Frontend, what: str = "a command waits") -> bool:
    """Whether something has been held because the client does not read, which is said at debug."""
    return any(record["message"] == f"{what} for the client to read" for record in client.logged)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_that_nobody_reads_holds_its_command_and_nothing_else(start: Start, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    client = start("--log-level", "debug")
    client.begin(tree, tmp_path / "other")
    before = most_memory(client.process.pid)
    size = 0

    def count(message: Message) -> None:
        nonlocal size
        if message["type"] == "event.terminal_output" and message["payload"]["request_id"] == flood:
            size += len(message["payload"]["data"])
        else:
            client.messages.append(message)

    client.taken = count
    client.reading.clear()
    megabyte = "head -c 1000000 /dev/zero | tr '\\0' a; echo >> written"
    flood = client.send("agent.execute", command=f"for i in $(seq 30); do {megabyte}; done")
    other = client.send("agent.execute", command="touch made", directory="other")
    forked = client.send("fork", path=str(tmp_path / "fork"))
    wait_until((tmp_path / "other/made").exists)
    wait_until((tmp_path / "fork").exists)
    client.write(json.dumps({"type": "session.status", "request_id": "status"}).encode() + b"\n")
    wait_until(lambda: any(r.get("request_id") == "status" and r["message"] == "response sent" for r in client.logged))
    wait_until(lambda: waits_to_be_read(client))
    written = tree / "written"
    assert not written.exists() or len(written.read_text()) < 6  # (so many megabytes are in all buffers together)
    client.reading.set()
    for identity in (flood, other, forked, "status"):
        assert client.answer(identity)["status"] == "ok"
    assert size == 30_000_000
    assert len(written.read_text()) == 30
    assert most_memory(client.process.pid) < before + 30 * MIB


def test_answers_that_nobody_reads_cost_bounded_memory(start: Start, tree: Path) -> None:
    (tree / "f").write_text("a" * (MIB // 2))
    client = start("--log-level", "debug")
    client.begin()
    before = most_memory(client.process.pid)
    answered: list[tuple[str, str]] = []

    def take(message: Message) -> None:
        if message["type"] == "response":
            answered.append((message["request_id"], message.get("error", {}).get("code") or message["status"]))

    client.taken = take
    client.reading.clear()
    count = 400
    writer = threading.Thread(target=lambda: [client.send("fs.read", path="f") for _ in range(count)])
    writer.start()
    wait_until(lambda: waits_to_be_read(client, "requests wait"))
    client.reading.set()
    writer.join()
    wait_until(lambda: len(answered) == count)
    assert len({identity for identity, _ in answered}) == count
    assert {result for _, result in answered} <= {"ok", "too_many_requests"}
    assert most_memory(client.process.pid) < before + 100 * MIB


@pytest.mark.parametrize("how", ["end of input", "signal", "hang up"])
def test_when_the_client_goes_all_ends_in_order(start: Start, tree: Path, how: str) -> None:
    client = start()
    client.begin()
    running = client.send("agent.execute", command="touch half; trap '' TERM; while :; do echo; done")
    waiting = client.send("agent.execute", command="touch never")
    wait_until((tree / "half").exists)
    children = descendants(client.process.pid)
    if how == "signal":
        client.process.send_signal(signal.SIGTERM)
    elif how == "hang up":
        client.hang_up()
    assert (client.end() if how == "end of input" else client.ended()) == 0
    wait_until(lambda: not any(map(alive, children)))
    if how != "hang up":
        assert client.answer(running)["error"]["code"] == "session_stopped"
        assert client.answer(waiting)["error"]["code"] == "session_stopped"
    assert os.listdir(tree) == ["half"]
    client = start()
    client.begin()
    assert client.events("recovery") == []
    (step,) = client.ask("undo.history")["steps"]
    assert step["state"] == "done"
    client.ask("undo.rollback")
    assert os.listdir(tree) == []


def test_the_end_waits_for_no_client_that_reads_nothing(start: Start, tree: Path) -> None:
    client = start("--log-level", "debug")
    client.begin()
    client.reading.clear()
    client.send("agent.execute", command="exec yes")
    wait_until(lambda: waits_to_be_read(client))
    client.process.send_signal(signal.SIGTERM)
    assert client.process.wait(60) == 0


@pytest.mark.parametrize("how", ["session.reset", "session.stop", "end of input"])
def test_what_waits_for_a_person_when_the_session_ends_does_not_happen(start: Start, tree: Path, how: str) -> None:
    """I9: also of a program that goes on when it is asked to end."""
    for number in range(9):
        (tree / f"d{number}").touch()
    client = start()
    client.begin()
    client.ask("safeguard.configure", delete_threshold=5)
    client.send("agent.execute", command="trap '' TERM; rm -f d*; touch over")
    client.event("safeguard_triggered")
    if how != "end of input":
        client.ask(how)
    assert client.end() == 0
    assert sorted(os.listdir(tree)) == [f"d{number}" for number in range(9)]


def killed(client: Frontend, victims: Callable[[int], list[int]]) -> list[int]:
    """Kill processes of a server in one moment; all that there were."""
    everything = [client.process.pid, *descendants(client.process.pid)]
    chosen = victims(client.process.pid)
    stop(*chosen)
    for pid in chosen:
        os.kill(pid, signal.SIGKILL)
    client.process.wait(60)
    return everything


def test_killed_in_the_middle_of_a_command_its_keeper_ends_the_step(start: Start, tree: Path) -> None:
    """I3."""
    client = start()
    client.begin()
    client.send("agent.execute", command="touch half; echo up; sleep 1000")
    client.event("terminal_output")
    processes = killed(client, lambda pid: [pid])
    wait_until(lambda: not any(map(alive, processes)))
    client = start()
    client.begin()
    assert client.events("recovery") == []
    (step,) = client.ask("undo.history")["steps"]
    assert (step["state"], os.listdir(tree)) == ("done", ["half"])
    client.ask("undo.rollback")
    assert os.listdir(tree) == []


def test_killed_with_its_keeper_the_next_start_takes_the_step_back_and_says_so(start: Start, tree: Path) -> None:
    """I3."""
    (tree / "f").write_text("before")
    client = start()
    client.begin()
    client.ask("agent.execute", command="touch kept")
    client.send("agent.execute", command="rm f; mkdir -p d/e; echo up; sleep 1000")
    client.event("terminal_output")
    killed(client, lambda pid: [pid, *descendants(pid)])
    assert sorted(os.listdir(tree)) == ["d", "kept"]
    client = start()
    client.begin()
    told = client.event("recovery")
    assert (told["steps"], told["directory"], told["conflicts"]) == ([2], 0, [])
    assert told["paths"] >= 3
    assert (sorted(os.listdir(tree)), (tree / "f").read_text()) == (["f", "kept"], "before")
    assert client.ask("agent.execute", command="cat f")["exit_code"] == 0
    assert len(client.events("recovery")) == 1


def test_killed_with_its_keeper_while_the_launcher_lives_the_next_start_says_so(start: Start, tree: Path) -> None:
    """I3: the launcher rolls the step back, and has nobody to tell."""
    client = start()
    client.begin()
    client.send("agent.execute", command="touch half; echo up; sleep 1000")
    client.event("terminal_output")

    def victims(server: int) -> list[int]:
        keeper = next(pid for pid in descendants(server) if b"supervisor.keeper" in command_of(pid))
        return [server, keeper]

    processes = killed(client, victims)
    wait_until(lambda: not any(map(alive, processes)))
    assert os.listdir(tree) == []
    client = start()
    client.begin()
    assert client.event("recovery")["steps"] == [1]
    client.ask("session.stop")
    client.ask("session.start")
    assert client.ask("agent.execute", command="true")["exit_code"] == 0
    assert len(client.events("recovery")) == 1


def test_what_runs_the_commands_is_killed_and_takes_all_that_it_has_started_with_it(start: Start, tree: Path) -> None:
    """I3: whoever is left would write beside the next command."""
    client = start()
    client.begin()
    server = [client.process.pid, *descendants(client.process.pid)]
    client.ask("agent.execute", command="setsid sleep 1000 > /dev/null 2>&1 &")
    running = client.send("agent.execute", command="trap '' TERM; touch half; echo up; while :; do echo >> half; done")
    client.event("terminal_output")
    shim = next(
        pid
        for pid in descendants(client.process.pid)
        if b"sandbox/shim.py" in command_of(pid).removesuffix(b"\0").rpartition(b"\0")[2]
    )
    commands = set(descendants(client.process.pid)) - set(server)
    assert len(commands) == 2
    os.kill(shim, signal.SIGKILL)
    failed = client.answer(running)["error"]
    assert not any(map(alive, commands))
    completed = client.wait(lambda message: message["type"] == "event.step_completed" and running in str(message))
    step = completed["payload"]
    assert (step["request_id"], step["affected_paths"]) == (running, ["half"])
    assert step["exit_code"] == step["step"]["exit_code"]
    assert client.event("error")["code"] == failed["code"] == "shim_gone"
    assert client.ask("session.status")["state"] == "error"
    assert client.ask("agent.execute", command="ls")["exit_code"] == 0
    assert client.ask("session.status")["state"] == "idle"
    assert [step["state"] for step in client.ask("undo.history")["steps"]] == ["done"]
    client.ask("session.stop")
    wait_until(lambda: not any(map(alive, set(server) - {client.process.pid})))
    assert descendants(client.process.pid) == []
    client.ask("session.start")
    client.ask("undo.rollback")
    assert os.listdir(tree) == []


def test_what_looks_after_the_commands_is_killed_alone_and_the_step_stays(start: Start, tree: Path) -> None:
    """I3: the keeper lives, and records what was done until then."""
    client = start()
    client.begin()
    running = client.send("agent.execute", command="touch half; echo up; sleep 1000")
    client.event("terminal_output")
    parent = next(pid for pid in descendants(client.process.pid) if b"supervisor.launch.tree_parent" in command_of(pid))
    os.kill(parent, signal.SIGKILL)
    failed = client.answer(running)["error"]
    assert failed["code"] == "parent_gone"
    assert "rolled back" not in failed["message"] + failed["hint"]
    assert [step["state"] for step in client.ask("undo.history")["steps"]] == ["done"]
    assert client.ask("agent.execute", command="ls")["exit_code"] == 0
    assert [event["code"] for event in client.events("error")] == ["parent_gone"]
    client.ask("undo.rollback")
    assert os.listdir(tree) == []


def test_what_looks_after_the_commands_is_killed_with_the_keeper_and_the_step_is_taken_back(
    start: Start, tree: Path
) -> None:
    """I3."""
    client = start()
    client.begin()
    running = client.send("agent.execute", command="touch half; echo up; sleep 1000")
    client.event("terminal_output")
    keeper, parent = (
        next(pid for pid in descendants(client.process.pid) if name in command_of(pid))
        for name in (b"supervisor.keeper", b"supervisor.launch.tree_parent")
    )
    stop(parent)
    os.kill(keeper, signal.SIGKILL)
    os.kill(parent, signal.SIGKILL)
    failed = client.answer(running)["error"]
    assert failed["code"] == "keeper_gone"
    assert client.event("recovery")["steps"] == [1]
    assert os.listdir(tree) == []


def test_inside_of_a_run_it_says_nothing_of_what_nobody_has_asked_for(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    client.end()
    client = start(program=[*HOLDFAST, "-q", "run", "--", sys.executable, "-P", *HOLDFAST])
    client.begin()
    client.ask("agent.execute", command="touch f")
    assert client.refused("undo.rollback")["code"] == "inside_run"
    assert client.end() == 0
    assert [record["message"] for record in client.logged if record["level"] == "warn"] == []
    assert os.listdir(tree) == ["f"]


def test_a_file_of_requests_is_answered_into_a_file(tree: Path, tmp_path: Path) -> None:
    """I13: and a person's own words on standard error are in neither."""
    requests = [("hello", {"versions": [1]}), ("session.status", {}), ("nonsense", {})]
    lines = [{"type": kind, "request_id": kind, "payload": payload} for kind, payload in requests]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines) + "the rest of a line")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_HOME": str(tmp_path / "home")}
    with (tmp_path / "in").open() as source, (tmp_path / "out").open("w") as target:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", "stdio"],
            stdin=source,
            stdout=target,
            stderr=subprocess.PIPE,
            cwd=tree,
            env=environment,
            check=True,
            timeout=60,
        )
    answers = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert {answer["request_id"]: answer["status"] for answer in answers} == {
        "hello": "ok",
        "session.status": "ok",
        "nonsense": "error",
    }
    (record,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (record["level"], record["component"], record["message"]) == ("warn", "stdio_api", "unknown operation")


CUT_SHORT = """
import os, signal, sys
from holdfast.engine.history import restore
from holdfast.cli.main import main
restore.record_end = lambda *_, **_k: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""
"""A server that is killed in the middle of a restore."""


def cut_short(start: Start, tree: Path, **more: object) -> tuple[Frontend, str]:
    """A frontend of the server that came after, and the checkpoint that the restore was to lead to."""
    (tree / "f").write_text("one")
    client = start(program=["-c", CUT_SHORT])
    client.begin()
    first = client.ask("checkpoint.create", label="one")["id"]
    client.ask("agent.execute", command="echo two > f; touch g")
    client.send("checkpoint.restore", checkpoint="one", **more)
    assert client.process.wait(60) == -signal.SIGKILL
    client = start()
    (directory,) = client.begin()["directories"]
    assert directory["unfinished_restore"] == first
    for operation in ("undo.rollback", "redo"):
        error = client.refused(operation)
        assert error["code"] == "unfinished_restore"
        assert "checkpoint.restore_continue" in error["hint"]
    assert client.refused("checkpoint.restore", checkpoint="one")["code"] == "unfinished_restore"
    return client, first


def is_settled(client: Frontend) -> bool:
    """Whether nothing is left of it."""
    (directory,) = client.ask("session.status")["directories"]
    again = client.refused("checkpoint.restore_continue"), client.refused("checkpoint.restore_abort")
    return directory["unfinished_restore"] is None and all(each["code"] == "nothing_unfinished" for each in again)


def test_a_restore_that_was_cut_short_is_told_and_finished(start: Start, tree: Path) -> None:
    client, first = cut_short(start, tree)
    assert client.ask("checkpoint.restore_continue")["checkpoint"] == first
    assert ((tree / "f").read_text(), os.listdir(tree)) == ("one", ["f"])
    assert is_settled(client)
    client.ask("undo.rollback")
    assert (tree / "f").read_text() == "two\n"
    assert client.ask("undo.rollback")["steps"] == [1]
    assert ((tree / "f").read_text(), os.listdir(tree)) == ("one", ["f"])
    assert client.ask("undo.history")["barriers"] == []


def test_a_restore_of_paths_that_was_cut_short_is_a_change_of_its_own(start: Start, tree: Path) -> None:
    client, _ = cut_short(start, tree, paths=["f"])
    client.ask("checkpoint.restore_continue")
    assert ((tree / "f").read_text(), sorted(os.listdir(tree))) == ("one", ["f", "g"])
    assert is_settled(client)
    status = client.ask("fs.status")
    assert (status["added"], status["modified"], status["deleted"]) == ([], [], [])
    assert client.ask("undo.rollback")["steps"] == []
    assert (tree / "f").read_text() == "two\n"
    assert client.ask("redo")["written"] == ["f"]


def test_what_a_command_has_changed_since_a_restore_was_cut_short_stays_i8(start: Start, tree: Path) -> None:
    client, _ = cut_short(start, tree)
    client.ask("agent.execute", command="echo three > f; touch new")
    done = client.ask("checkpoint.restore_continue")
    assert [one["path"] for one in done["skipped"]] == ["f"]
    assert "holdfast restore" in done["skipped"][0]["reason"]
    assert ((tree / "f").read_text(), sorted(os.listdir(tree))) == ("three\n", ["f", "new"])
    assert is_settled(client)
    # (All else had been done before it was cut short: the command is the newest change.)
    assert client.ask("undo.rollback")["steps"] == [2]
    assert ((tree / "f").read_text(), os.listdir(tree)) == ("one", ["f"])


def test_what_mends_a_restore_after_a_command_is_what_undo_takes_back(start: Start, tree: Path) -> None:
    client, _ = cut_short(start, tree)
    client.ask("agent.execute", command="echo three > f; touch new")
    done = client.ask("checkpoint.restore_abort")
    assert [one["path"] for one in done["skipped"]] == ["f"]
    assert "undo_command" not in done
    assert ((tree / "f").read_text(), sorted(os.listdir(tree))) == ("three\n", ["f", "g", "new"])
    assert is_settled(client)
    client.ask("undo.rollback")
    assert ((tree / "f").read_text(), sorted(os.listdir(tree))) == ("three\n", ["f", "new"])


def test_a_restore_that_was_cut_short_is_told_and_taken_back(start: Start, tree: Path) -> None:
    client, _ = cut_short(start, tree)
    assert "f" in client.ask("checkpoint.restore_abort")["written"]
    assert ((tree / "f").read_text(), sorted(os.listdir(tree))) == ("two\n", ["f", "g"])
    assert is_settled(client)
    assert client.ask("undo.rollback")["steps"] == [1]
    assert ((tree / "f").read_text(), os.listdir(tree)) == ("one", ["f"])
    assert client.ask("undo.history")["barriers"] == []
