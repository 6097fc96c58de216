"""Dialogues with `holdfast stdio`, good and bad: each is with a process of its own."""

from __future__ import annotations

import base64
import json
import os
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import holdfast
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.journal.heartbeat import Heartbeat, encode_beat

from ..waiting import wait_until
from . import hostile
from .frontend import Frontend, Message, Start
from .isolated import need_namespaces


def output(frontend: Frontend, identity: str, kind: str = "terminal_output") -> str:
    return "".join(said["data"] for said in frontend.events(kind) if said["request_id"] == identity)


def test_a_session_from_beginning_to_end(start: Start, tree: Path) -> None:
    (tree / ".gitignore").write_text("ignored\n")
    (tree / "ignored").write_text("1")
    before = photograph(tree)
    client = start()
    welcome = client.ask("hello", versions=[7, 1])
    assert welcome["version"] == 1
    assert welcome["server"] == {"name": "holdfast", "version": holdfast.__version__}
    assert client.ask("session.status") == {"state": "stopped", "backend": "supervisor", "directories": []}
    (directory,) = client.ask("session.start")["directories"]
    assert (directory["path"], directory["state"], directory["access"]) == (str(tree), "idle", "read_write")

    first = client.send("agent.execute", command="echo out; echo err >&2; rm ignored; mkdir d; echo 1 > d/f; exit 3")
    answer = client.answer(first)
    assert answer["payload"] == {"step_id": 1, "exit_code": 3, "cancelled": False, "denied": False, "changed": 3}
    completed = client.event("step_completed")
    assert completed["affected_paths"] == ["d", "d/f", "ignored"]
    assert (completed["step_id"], completed["exit_code"], completed["request_id"]) == (1, 3, first)
    assert completed["step"]["paths"] == 3
    assert output(client, first) in ("out\nerr\n", "err\nout\n")
    of = [(message, message.get("request_id") or message["payload"].get("request_id")) for message in client.messages]
    order = [message["type"] for message, identity in of if identity == first]
    assert (order[0], order[-2:]) == ("event.step_started", ["event.step_completed", "response"])

    second = client.send("agent.execute", command="pwd; echo $X; printf '\\377'", cwd="d", env={"X": "set"})
    assert client.answer(second)["payload"]["changed"] == 0
    said = [each for each in client.events("terminal_output") if each["request_id"] == second]
    assert base64.b64decode(said[-1]["data_base64"] or "").endswith(b"\xff")

    history = client.ask("undo.history")
    (step,) = history["steps"]
    assert [change["change"] for change in step["changes"]] == ["added", "added", "deleted"]
    assert (history["next"], history["barriers"]) == (None, [])
    assert [entry["name"] for entry in client.ask("fs.list")["entries"]] == [".gitignore", "d"]
    assert client.ask("fs.read", path="d/f")["data"] == "1\n"

    assert client.ask("undo.rollback", dry_run=True)["steps"] == [1]
    assert client.ask("undo.rollback")["steps"] == [1]
    assert differences(before, photograph(tree)) == []
    assert client.ask("redo")["steps"] == [1]
    assert (tree / "d/f").read_text() == "1\n"
    assert client.ask("undo.rollback", run="")["steps"] == [1]
    assert client.ask("session.stop") == {}
    assert client.refused("agent.execute", command="true")["code"] == "no_session"
    assert client.ask("session.status")["state"] == "stopped"
    assert client.end() == 0
    records = client.logged
    assert {"stdio_api", "session"} <= {record["component"] for record in records}
    said_of_first = [
        (record["message"], record.get("step_id")) for record in records if record.get("request_id") == first
    ]
    assert ("request received", None) in said_of_first
    assert any(step == 1 for _, step in said_of_first)
    assert ("response sent", None) in said_of_first


def test_checkpoints(start: Start, tree: Path, tmp_path: Path) -> None:
    (tree / "f").write_text("one\n")
    client = start()
    client.begin()
    first = client.ask("checkpoint.create", label="first", message="why", author="me")
    assert (first["label"], first["totals"]) == ("first", {"not_captured": 0})
    client.answer(client.send("agent.execute", command="echo two > f; mkfifo p; echo new > g"))
    status = client.ask("fs.status")
    assert (status["modified"], status["added"]) == (["f"], ["g"])
    assert [each["path"] for each in status["not_captured"]] == ["p"]
    diff = client.ask("checkpoint.diff", base="first")
    assert diff["modified"] == [{"path": "f", "diff": "@@ -1 +1 @@\n-one\n+two\n"}]
    assert client.ask("checkpoint.diff", base="first", paths=["g"])["modified"] == []
    second = client.ask("checkpoint.create", label="second")
    page = client.ask("checkpoint.list", limit=1)
    assert [each["id"] for each in page["checkpoints"]] == [second["id"]]
    following = client.ask("checkpoint.list", before=page["next"])
    assert first["id"] in [each["id"] for each in following["checkpoints"]]
    assert following["next"] is None
    forked = client.ask("fork", checkpoint="second", path=str(tmp_path / "fork"))
    assert (forked["source"], (tmp_path / "fork/f").read_text()) == (second["id"], "two\n")
    planned = client.ask("checkpoint.restore", checkpoint="first", dry_run=True)
    assert (planned["written"], planned["deleted"], planned["dry_run"]) == (["f"], ["g"], True)
    done = client.ask("checkpoint.restore", checkpoint="first", paths=["f"])
    assert (done["written"], (tree / "f").read_text(), (tree / "g").exists()) == (["f"], "one\n", True)
    assert client.refused("checkpoint.restore", checkpoint="third")["code"] == "not_found"
    assert client.refused("fork", path="relative")["code"] == "usage"
    (tree / "f").write_text("unsaved\n")
    client.ask("fork", path=str(tmp_path / "present"))
    assert (tmp_path / "present/f").read_text() == "unsaved\n"


def test_a_file_in_a_checkpoint_is_read_in_parts(start: Start, tree: Path) -> None:
    large = random.Random(1).randbytes(3 << 20)
    (tree / "f").write_text("aä\n")
    (tree / "d").mkdir()
    (tree / "d/large").write_bytes(large)
    (tree / "link").symlink_to("f")
    client = start()
    client.begin()
    client.ask("checkpoint.create", label="one")
    of_the_tree = client.ask("fs.read", path="f")
    client.ask("agent.execute", command="rm -r f d link; touch f")
    assert client.ask("checkpoint.read", checkpoint="one", path=str(tree / "f")) == of_the_tree
    assert client.ask("checkpoint.read", path="f")["data"] == "aä\n"
    part = client.ask("checkpoint.read", checkpoint="one", path="f", limit=2)
    assert (part["data"], part["size"], part["hash"], part["next_offset"]) == ("a", 4, None, 1)
    assert client.ask("checkpoint.read", checkpoint="one", path="f", offset=1)["data"] == "ä\n"
    assert client.ask("checkpoint.read", checkpoint="one", path="f", offset=9)["data"] == ""
    content, at = b"", 0
    while at is not None:
        part = client.ask("checkpoint.read", checkpoint="one", path="d/large", offset=at, limit=1_000_000)
        content, at = content + base64.b64decode(part["data_base64"]), part["next_offset"]
    assert content == large
    assert client.refused("checkpoint.read", checkpoint="one", path="../f")["code"] == "escape"
    assert client.refused("checkpoint.read", checkpoint="one", path="d")["code"] == "no_such_path"
    assert client.refused("checkpoint.read", checkpoint="one", path="gone")["code"] == "no_such_path"
    assert client.refused("checkpoint.read", checkpoint="one", path="f", limit=2 << 20)["code"] == "bad_request"
    refused = client.refused("checkpoint.read", checkpoint="one", path="link")
    assert (refused["code"], "link to f" in refused["message"]) == ("not_a_file", True)


def test_several_directories(start: Start, tree: Path, tmp_path: Path) -> None:
    """I10."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "three/f").write_text("3")
    client = start()
    started = client.begin(
        tmp_path / "one",
        {"path": "../two", "label": "second"},
        {"path": str(tmp_path / "three"), "access": "read_only"},
    )
    assert [each["label"] for each in started["directories"]] == ["one", "second", "three"]
    assert started["directories"][2]["undo"] is None
    client.ask("agent.execute", command="touch f")
    client.ask("agent.execute", command="touch f", directory="second")
    client.ask("undo.rollback", directory=1)
    assert (os.listdir(tmp_path / "one"), os.listdir(tmp_path / "two"), os.listdir(tree)) == (["f"], [], [])
    assert {each["directory"] for each in client.events("step_completed")} == {0, 1}
    assert client.ask("fs.read", directory=str(tmp_path / "three"), path="f")["data"] == "3"
    for operation, payload in (
        ("agent.execute", {"command": "touch g"}),
        ("undo.rollback", {}),
        ("checkpoint.create", {}),
        ("fs.status", {}),
        ("undo.configure", {}),
    ):
        assert client.refused(operation, directory="three", **payload)["code"] == "read_only"
    assert client.refused("agent.execute", command="true", directory=3)["code"] == "no_directory"
    assert client.refused("session.start")["code"] == "session_exists"
    again = client.ask("session.reset")
    assert again["directories"][0]["run"] != started["directories"][0]["run"]
    client.ask("undo.rollback", directory="one")
    assert os.listdir(tmp_path / "one") == []


def test_a_command_changes_no_other_directory(start: Start, tree: Path, tmp_path: Path) -> None:
    """I10."""
    kept, other = (hostile.furnish(tmp_path / "around" / name) for name in ("kept", "other"))
    before = photograph(tmp_path / "around")
    client = start()
    client.begin(tree, other, {"path": str(kept), "access": "read_only"})
    for path in (kept, other):
        asked = client.send("agent.execute", command=hostile.command(path))
        assert client.answer(asked)["payload"]["exit_code"] == 0
        hostile.judge(output(client, asked))
        client.ask("undo.rollback")
        assert os.listdir(tree) == []
    for path in (kept, other):
        assert client.refused("fork", path=str(path / "fork"))["code"] == "refused"
    assert differences(before, photograph(tmp_path / "around")) == []


@pytest.mark.parametrize("tmp", ["own", "shared"])
def test_a_command_in_namespaces_sees_every_directory_and_changes_no_other(start: Start, tree: Path, tmp: str) -> None:
    """I10: also where the box has something of its own in place of what is around a directory."""
    need_namespaces()
    around = [Path("/tmp"), Path("/tmp"), Path("/var/tmp"), Path.home(), Path("/dev/shm")]
    with ExitStack() as context:
        places = [Path(context.enter_context(TemporaryDirectory(dir=place))) for place in around]
        others = [hostile.furnish(place / "in" / "other") for place in places]
        before = [photograph(path) for path in others]
        client = start()
        client.begin(
            tree,
            *({"path": str(path), "access": "read_only"} for path in others[1:]),
            others[0],
            isolation={"level": "namespace", "tmp": tmp, "writable": [str(others[0].parent)]},
        )
        for path in others:
            asked = client.send("agent.execute", command=f"cat {path}/file && {hostile.command(path)}")
            assert client.answer(asked)["payload"]["exit_code"] == 0, output(client, asked)
            content, _, said = output(client, asked).partition("[")
            assert content.encode() == (path / "file").read_bytes()
            hostile.judge(f"[{said}")
            moved = f"mv {path.parent} {path.parent}.moved; mkdir -p {path}/more; cat {path}/file"
            assert client.ask("agent.execute", command=moved)["exit_code"] == 0
            client.ask("undo.rollback")
        asked = client.send("agent.execute", command="echo 2 > file", directory=len(others))
        assert client.answer(asked)["payload"]["exit_code"] == 0
        assert (others[0] / "file").read_bytes() == b"2\n"
        client.ask("undo.rollback", directory=len(others))
        client.end()
        for path, photo in zip(others, before, strict=True):
            assert differences(photo, photograph(path)) == []


def test_what_makes_no_sense_is_refused_and_survived(start: Start, tree: Path, tmp_path: Path) -> None:
    """I12."""
    client = start()
    assert client.refused("session.start")["code"] == "hello_first"
    unsupported = client.refused("hello", versions=[2, 3])
    assert unsupported["code"] == "unsupported_version"
    assert client.refused("hello", versions=[])["data"] == {"field": "payload.versions"}
    for line, identity, field in (
        (b"", None, None),
        (b"{", None, None),
        (b"[1]", None, None),
        (b'{"type":"hello"}', None, "request_id"),
        (b'{"request_id":"a"}', "a", "type"),
        (b'{"type":"hello","request_id":"b","payload":{"versions":["1"]}}', "b", "payload.versions[0]"),
        (b'{"type":"hello","request_id":"c","payload":{"versions":[1],"x":1}}', "c", "payload.x"),
        (b'{"type":"hello","request_id":"d","more":1}', "d", "more"),
        (b'{"type":"hello","request_id":"e","payload":null}', "e", "payload"),
        (b'{"type":"hello","request_id":7}', None, "request_id"),
        (b'{"type":"\xff","request_id":"f"}', "f", None),
        (b"[" * 100_000, None, None),
    ):
        count = len(client.messages)
        client.write(line + b"\n")
        answer = client.wait(lambda _: True, since=count)
        assert (answer["request_id"], answer["error"]["code"]) == (identity, "bad_request"), line
        assert answer["error"]["data"] == {"field": field}
    count = len(client.messages)
    client.write(b"x" * (1 << 20) + b"x" * 5000 + b"\n")
    assert client.wait(lambda _: True, since=count)["error"]["code"] == "line_too_long"
    client.ask("hello", versions=[1])
    assert client.refused("hello", versions=[1])["code"] == "hello_twice"
    assert client.refused("undo.everything")["code"] == "unknown_operation"
    for operation in ("agent.execute", "fs.list", "session.reset", "agent.cancel", "safeguard.confirm"):
        payload = {"agent.execute": {"command": "true"}, "agent.cancel": {"request_id": "1"}}.get(operation, {})
        payload = {"safeguard_id": "0-1-2", "action": "deny"} if operation == "safeguard.confirm" else payload
        assert client.refused(operation, **payload)["code"] == "no_session"
    for wrong, code in (
        ({"working_directories": [{"path": str(tmp_path / "nowhere")}]}, ("no_such_path", "not_found", "storage")),
        ({"working_directories": [{"path": "/"}]}, ("refused",)),
        ({"working_directories": []}, ("bad_request",)),
        ({"working_directories": [{"path": "."}, {"path": str(tree)}]}, ("refused",)),
        ({"working_directories": [{"path": ".", "access": "all"}]}, ("bad_request",)),
        ({"isolation": {"network": "disabled"}}, ("usage",)),
        ({"isolation": {"level": "moon"}}, ("bad_request",)),
        ({"network_policy": "open"}, ("bad_request",)),
    ):
        assert client.refused("session.start", **wrong)["code"] in code, wrong
    client.ask("session.start")
    for operation, payload, code in (
        ("agent.execute", {"command": ""}, "bad_request"),
        ("agent.execute", {"command": "a\0b"}, "usage"),
        ("agent.execute", {"command": "true", "cwd": "nowhere"}, "no_directory"),
        ("agent.execute", {"command": "true", "env": {"A=B": "1"}}, "usage"),
        ("agent.execute", {"command": "x" * (1 << 17)}, "too_large"),
        ("agent.prompt", {"prompt": "do"}, "no_agent"),
        ("fs.read", {"path": "../home"}, "escape"),
        ("fs.read", {"path": "."}, "not_a_file"),
        ("fs.read", {"path": "nowhere"}, "no_such_path"),
        ("fs.read", {"path": "\\q"}, "usage"),
        ("fs.list", {"path": "/etc"}, "escape"),
        ("fs.list", {"limit": 0}, "bad_request"),
        ("undo.rollback", {}, "nothing_to_undo"),
        ("undo.rollback", {"step_id": 99}, "not_found"),
        ("undo.rollback", {"step_id": 10**400}, "bad_request"),
        ("undo.history", {"before": 99}, "not_found"),
        ("undo.discard", {}, "not_mismatched"),
        ("safeguard.confirm", {"safeguard_id": "x", "action": "allow"}, "not_found"),
        ("safeguard.confirm", {"safeguard_id": "0-1-2", "action": "allow"}, "not_found"),
        ("safeguard.configure", {"timeout_seconds": 0}, "bad_request"),
        ("checkpoint.diff", {"base": "nothing"}, "not_found"),
    ):
        assert client.refused(operation, **payload)["code"] == code, operation
    assert client.ask("agent.cancel", request_id="nobody") == {"cancelled": False}
    identity = client.send("agent.execute", command="read line; echo $line")
    client.answer(identity)
    assert output(client, identity) == "\n"  # (it does not read what is the server's)
    assert client.ask("agent.execute", command="echo still there")["exit_code"] == 0


def test_paths_are_those_in_the_directory_however_they_are_written(start: Start, tree: Path, tmp_path: Path) -> None:
    """I7."""
    (tree / "d").mkdir()
    (tree / "d" / "f").write_text("1")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "f").write_text("2")
    client = start()
    client.begin()
    for path in ("d/f", f"{tree}/d/f", "d/../d/f"):
        assert client.ask("fs.read", path=path)["path"] == "d/f"
    for cwd in ("d", f"{tree}/d"):
        assert output(client, client.answer(client.send("agent.execute", command="pwd", cwd=cwd))["request_id"]) == (
            f"{tree}/d\n"
        )
    started = len(client.events("step_started"))
    for outside in ("../beside", f"{tmp_path}/beside"):
        assert client.refused("agent.execute", command="true", cwd=outside)["code"] == "escape"
        assert client.refused("agent.prompt", prompt="x", cwd=outside)["code"] in ("escape", "no_agent")
        assert client.refused("fs.list", path=outside)["code"] == "escape"
        said = client.refused("fs.read", path=f"{outside}/f")
        assert (said["code"], "outside of the working directory" in said["message"]) == ("escape", True)
    for nowhere in ("nowhere", "d/f"):
        assert client.refused("agent.execute", command="true", cwd=nowhere)["code"] == "no_directory"
    assert len(client.events("step_started")) == started
    for named in ({"step_id": 1}, {"step_ids": [1]}, {"run": ""}):
        for count in (1, 2):
            said = client.refused("undo.rollback", steps=count, **named)
            assert (said["code"], "steps counts changes" in said["message"]) == ("usage", True)
    assert client.refused("redo", steps=1, step_id=1)["code"] == "usage"
    for operation in ("undo.rollback", "redo"):
        said = client.refused(operation, step_id=1, step_ids=[2])
        assert (said["code"], said["hint"]) == ("usage", "name all in step_ids")


def test_directories_in_each_other_are_named_as_they_were_given(start: Start, tree: Path) -> None:
    (tree / "sub").mkdir()
    client = start()
    client.ask("hello", versions=[1])
    directories = [{"path": str(tree)}, {"path": str(tree / "sub")}]
    said = client.refused("session.start", working_directories=directories)
    assert f"{tree / 'sub'} and {tree} lie in each other" in said["message"]


def test_commands_queue_and_are_cancelled(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    running = client.send("agent.execute", command="touch began; trap '' TERM; while :; do sleep 0.05; done")
    waiting = [client.send("agent.execute", command=f"echo {number} >> order") for number in range(3)]
    wait_until((tree / "began").exists)
    # Everything else goes on meanwhile.
    status = client.ask("session.status")
    assert (status["state"], status["directories"][0]["queued"]) == ("running", 3)
    assert client.ask("checkpoint.create")["created"] in (True, False)
    client.write(json.dumps({"type": "fs.list", "request_id": running}).encode() + b"\n")
    assert (
        client.wait(lambda m: m["type"] == "response" and m["request_id"] == running)["error"]["code"]
        == "duplicate_request_id"
    )
    count = len(client.messages)
    assert client.ask("agent.cancel", request_id=waiting[1]) == {"cancelled": True}
    assert client.answer(waiting[1])["error"]["code"] == "cancelled"
    assert client.ask("agent.cancel", request_id=running) == {"cancelled": True}
    ended = client.wait(lambda m: m["type"] == "response" and m["request_id"] == running, since=count)["payload"]
    assert (ended["exit_code"], ended["cancelled"]) == (137, True)
    for each in (waiting[0], waiting[2]):
        assert client.answer(each)["payload"]["exit_code"] == 0
    assert (tree / "order").read_text() == "0\n2\n"
    assert client.ask("agent.cancel", request_id=running) == {"cancelled": False}


def test_a_cancel_that_follows_at_once_is_never_lost(start: Start) -> None:
    client = start()
    client.begin()
    for _ in range(10):
        identity = client.send("agent.execute", command="sleep 1000")
        assert client.ask("agent.cancel", request_id=identity) == {"cancelled": True}
        answer = client.answer(identity)
        assert answer.get("error", {}).get("code") == "cancelled" or answer["payload"]["cancelled"]


def test_the_queue_and_the_requests_are_bounded(start: Start, tree: Path) -> None:
    client = start()
    limits = client.ask("hello", versions=[1])["limits"]
    client.ask("session.start")
    running = client.send("agent.execute", command="touch began; sleep 1000")
    wait_until((tree / "began").exists)
    many = [client.send("agent.execute", command="true") for _ in range(limits["queued_commands"] + 1)]
    assert client.answer(many[-1])["error"]["code"] == "queue_full"
    client.ask("session.stop")
    assert client.answer(running)["error"]["code"] == "session_stopped"
    assert {client.answer(each)["error"]["code"] for each in many[:-1]} == {"session_stopped"}


def test_a_prompt_goes_to_the_configured_agent(start: Start, tree: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("import sys; print(sys.argv[1:], sys.stdin.read()); open('made', 'w').close()\n")
    prompt = 'it\'s a $(touch no) "prompt"\n\\n {prompt} %s ä'
    for words, expected in (
        ([sys.executable, str(agent), "-p", "<{prompt}>"], f"{['-p', '<' + prompt + '>']} \n"),
        ([sys.executable, str(agent), "a b"], f"['a b'] {prompt}\n"),
    ):
        client = start(HOLDFAST_AGENT_COMMAND="\n".join(words))
        client.begin()
        identity = client.send("agent.prompt", prompt=prompt)
        done = client.answer(identity)["payload"]
        assert (done["exit_code"], done["changed"]) == (0, 1)
        assert output(client, identity, "agent_output") == expected
        assert client.event("step_completed")["affected_paths"] == ["made"]
        client.ask("undo.rollback")
        assert os.listdir(tree) == []
        assert client.end() == 0


def test_a_prompt_is_a_row_of_the_history_and_a_run_names_its_commands(
    start: Start, tree: Path, tmp_path: Path
) -> None:
    client = start(HOLDFAST_AGENT_COMMAND="touch\nby-the-agent")
    client.begin()
    for number in range(4):
        client.ask("agent.execute", command=f"touch {number}")
    client.ask("agent.prompt", prompt="make it\nso")
    client.ask("agent.execute", command="touch later")
    assert client.end() == 0
    with holdfast.open(tree, home=tmp_path / "home") as workspace:
        rows = [*workspace.log_rows()]
        run, prompt = (next(row for row in rows if row.kind == kind) for kind in ("run", "prompt"))
        assert (prompt.text, prompt.author) == ("make it\nso", "touch")
        assert run.command == "stdio: touch 0; touch 1; touch 2; and 3 more"
        workspace.undo(to=prompt.number)
    assert sorted(os.listdir(tree)) == ["0", "1", "2", "3"]


def fill(tree: Path, count: int = 60) -> None:
    for number in range(count):
        (tree / f"f{number}").write_text("1")


def test_safeguards(start: Start, tree: Path) -> None:
    """I9."""
    fill(tree)
    before = photograph(tree)
    client = start()
    client.begin()
    assert client.ask("safeguard.configure", delete_threshold=50, timeout_seconds=40) == {
        "delete_threshold": 50,
        "overwrite_threshold_bytes": 0,
        "rename_over": False,
        "unprotected": False,
        "timeout_seconds": 40.0,
        "own": None,
    }
    for action in ("deny", "allow"):
        count = len(client.messages)
        identity = client.send("agent.execute", command="rm f*; touch after")
        held = client.event("safeguard_triggered", since=count)
        assert (held["danger"], held["delete_count"], len(held["sample_paths"])) == ("delete", 49, 20)
        assert client.ask("session.status")["directories"][0]["held"][0]["safeguard_id"] == held["safeguard_id"]
        other = held["safeguard_id"].rpartition("-")[0] + "-1"  # as of a keeper before this one
        assert client.refused("safeguard.confirm", safeguard_id=other, action="allow")["code"] == "not_found"
        assert client.ask("safeguard.confirm", safeguard_id=held["safeguard_id"], action=action)["action"] == action
        assert client.answer(identity)["payload"]["denied"] == (action == "deny")
        if action == "deny":
            assert differences(before, photograph(tree)) == []
        stale = client.refused("safeguard.confirm", safeguard_id=held["safeguard_id"], action="allow")
        assert stale["code"] == "not_found"
    assert os.listdir(tree) == ["after"]


def test_edits_by_others_are_told_and_stop_undo(start: Start, tree: Path) -> None:
    """I8."""
    client = start()
    client.begin()
    client.ask("agent.execute", command="echo 1 > f")
    (tree / "f").write_text("theirs")
    told = client.event("external_modification")
    assert (told["paths"], told["directory"]) == (["f"], 0)
    refused = client.refused("undo.rollback", step_id=1)
    assert refused["code"] == "barrier"
    assert [barrier["id"] for barrier in refused["data"]["barriers"]] == [told["id"]]
    assert [barrier["id"] for barrier in client.ask("undo.history")["barriers"]] == [told["id"]]
    client.ask("undo.rollback", step_id=1, force=True)
    assert os.listdir(tree) == []


def test_edits_by_others_that_were_saved_stop_undo_too(start: Start, tree: Path) -> None:
    """I8."""
    client = start()
    client.begin()
    client.ask("agent.execute", command="touch f")
    client.ask("undo.rollback")
    (tree / "theirs").write_text("1")
    for _ in range(2):
        refused = client.refused("undo.rollback")
        assert refused["code"] == "barrier"
        assert refused["data"]["paths"] == ["theirs"]
        assert "force" in refused["hint"]
        assert "--force" not in refused["hint"]
        client.ask("checkpoint.create", label="theirs")
    client.ask("agent.execute", command="touch g")
    assert client.refused("undo.rollback", steps=2)["code"] == "barrier"
    said = client.refused("undo.rollback", steps=50, force=True)
    assert (said["code"], said["data"]) == ("nothing_to_undo", {"available": 2})
    assert sorted(os.listdir(tree)) == ["g", "theirs"]
    client.ask("undo.rollback", steps=2, force=True)
    assert os.listdir(tree) == []


def test_steps_that_go_together_are_named_and_taken_together(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    client.ask("agent.execute", command="echo 1 > f")
    client.ask("agent.execute", command="echo 2 > f")
    for operation, taken in (("undo.rollback", []), ("redo", ["f"])):
        refused = client.refused(operation, step_id=1 if taken == [] else 2)
        assert refused["code"] == "steps_connected"
        assert refused["data"] == {"together": [1, 2]}
        assert "holdfast" not in refused["hint"]
        assert sorted(client.ask(operation, step_ids=refused["data"]["together"])["steps"]) == [1, 2]
        assert os.listdir(tree) == taken
    assert client.refused("undo.rollback", step_ids=[])["code"] == "bad_request"


def test_what_one_frontend_asks_for_another_one_does_not_switch_off(start: Start, tree: Path) -> None:
    """I9."""
    fill(tree)
    one, other = start(), start()
    own = {"overwrite_threshold_bytes": 0, "rename_over": False, "unprotected": False, "timeout_seconds": 30.0}
    own |= {"delete_threshold": 0}
    one.begin(guard=True)
    asked = one.ask("safeguard.configure", timeout_seconds=2)
    assert asked["own"] is None
    assert other.begin()["directories"][0]["safeguard"] == asked | {"own": own}
    assert other.ask("safeguard.configure", delete_threshold=0)["delete_threshold"] == asked["delete_threshold"]
    limits = one.ask("undo.configure", max_step_count=7)
    assert other.ask("session.status")["directories"][0]["undo"] == limits
    assert other.answer(other.send("agent.execute", command="rm f*; true"))["payload"]["denied"]
    assert len(os.listdir(tree)) == 60
    one.ask("session.stop")
    assert other.ask("session.status")["directories"][0]["safeguard"] == own | {"own": None}


def test_the_log_is_configured_and_listed_in_pages(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    for number in range(5):
        client.ask("agent.execute", command=f"mkdir d{number}; touch d{number}/a d{number}/b")
    first = client.ask("undo.history", limit=2, changes=1)
    assert [step["id"] for step in first["steps"]] == [5, 4]
    assert [(len(step["changes"]), step["totals"]) for step in first["steps"]] == [(1, {"changes": 3})] * 2
    rest = client.ask("undo.history", before=first["next"])
    assert ([step["id"] for step in rest["steps"]], rest["next"]) == ([3, 2, 1], None)
    assert client.ask("undo.configure", max_step_count=2) == {
        "max_log_size_bytes": 1 << 30,
        "max_step_count": 2,
        "max_single_step_size_bytes": 200 << 20,
    }
    client.ask("agent.execute", command="echo content > last")
    assert [step["id"] for step in client.ask("undo.history")["steps"]] == [6, 5, 4, 3, 2, 1]  # they are one run
    assert client.ask("undo.configure", max_log_size_bytes=1)["max_step_count"] == 2
    client.ask("agent.execute", command="rm last")
    assert [step["id"] for step in client.ask("undo.history")["steps"]] == [7]
    assert [warning["code"] for warning in client.events("warning")] == ["forgotten"]
    assert client.ask("undo.discard", force=True) == {"discarded": 1}
    listed = client.ask("fs.list", limit=3)
    assert ([entry["name"] for entry in listed["entries"]], listed["next"]) == (["d0", "d1", "d2"], "d2")
    assert [entry["name"] for entry in client.ask("fs.list", after="d2")["entries"]] == ["d3", "d4"]


def test_files_are_read_in_parts_that_cut_no_character(start: Start, tree: Path) -> None:
    text = "äöü" * 5
    (tree / "text").write_text(text)
    (tree / "bytes").write_bytes(b"\xff\x00")
    os.mkfifo(tree / "fifo")
    client = start()
    client.begin({"path": ".", "access": "read_only"})
    parts: list[Message] = []
    at: int | None = 0
    while at is not None:
        parts.append(client.ask("fs.read", path="text", offset=at, limit=7))
        at = parts[-1]["next_offset"]
    assert "".join(part["data"] for part in parts) == text
    assert parts[0]["size"] == len(text.encode())
    found = client.ask("fs.read", path="bytes")
    assert (found["data"], base64.b64decode(found["data_base64"])) == (None, b"\xff\x00")
    assert client.refused("fs.read", path="fifo")["code"] == "not_a_file"


def test_an_undo_log_of_another_version(start: Start, tree: Path, tmp_path: Path) -> None:
    version = recorded_by_another_version(start, tmp_path)
    client = start()
    assert client.begin()["directories"][0]["state"] == "idle"
    assert client.event("undo_version_mismatch")["directory"] == 0
    assert client.ask("undo.history")["steps"] == []
    step = client.ask("agent.execute", command="touch g")["step_id"]
    assert step > 1
    assert client.ask("undo.rollback", steps=1)["steps"] == [step]
    assert client.refused("undo.rollback", step_id=1)["code"] == "undo_version_mismatch"
    assert (tree / "f").exists()
    assert not (tree / "g").exists()
    assert client.ask("undo.discard") == {"discarded": None}
    assert [step["id"] for step in client.ask("undo.history")["steps"]] == [step]
    assert client.refused("undo.discard")["code"] == "not_mismatched"
    assert not list(version.parent.glob("other-version*"))
    assert len(client.events("undo_version_mismatch")) == 1


def test_an_undo_log_of_another_version_with_a_half_done_step(start: Start, tmp_path: Path) -> None:
    version = recorded_by_another_version(start, tmp_path)
    (version.parent / "beat").write_bytes(encode_beat(Heartbeat(5, 1, 0, 9)))
    client = start()
    assert client.begin()["directories"][0]["state"] == "stopped"
    assert client.event("undo_version_mismatch")["directory"] == 0
    for operation, payload in (("agent.execute", {"command": "touch g"}), ("undo.history", {}), ("undo.rollback", {})):
        assert client.refused(operation, **payload)["code"] == "undo_version_mismatch"
    assert len(client.events("undo_version_mismatch")) == 1
    assert client.ask("fs.list")["entries"][0]["name"] == "f"
    assert client.ask("checkpoint.create", label="meanwhile")["label"] == "meanwhile"
    assert client.ask("undo.discard") == {"discarded": None}
    assert client.ask("agent.execute", command="touch g")["changed"] == 1
    assert client.ask("session.status")["state"] == "idle"


def recorded_by_another_version(start: Start, tmp_path: Path) -> Path:
    """Record a step, and let its undo log be one of another version; the file that says so."""
    client = start()
    client.begin()
    client.ask("agent.execute", command="touch f")
    client.end()
    (version,) = (tmp_path / "home").glob("**/undo/version")
    version.write_text("holdfast-undo 999\n")
    return version


def test_two_frontends_share_a_keeper(start: Start, tree: Path) -> None:
    """I9: what one asks for, a person at the other may answer."""
    fill(tree)
    one, other = start(), start()
    one.begin(guard=True)
    other.begin(guard=True)
    identity = one.send("agent.execute", command="rm f*; true")
    held = other.event("safeguard_triggered")
    assert held["safeguard_id"] == one.event("safeguard_triggered")["safeguard_id"]
    other.ask("safeguard.confirm", safeguard_id=held["safeguard_id"], action="allow")
    assert one.answer(identity)["payload"]["changed"] == 60
    other.ask("agent.execute", command="touch theirs")
    assert [step["id"] for step in one.ask("undo.history")["steps"]] == [2, 1]
    one.ask("undo.rollback", steps=2)
    assert len(os.listdir(tree)) == 60


def test_half_of_a_surrogate_pair_is_refused_under_its_id(start: Start) -> None:
    client = start()
    client.write(b'{"type": "fs.read", "request_id": "r5", "payload": {"path": "\\ud800"}}\n')
    error = client.answer("r5")["error"]
    assert error["code"] == "bad_request"
    assert "surrogate" in error["message"]
    client.write(b'{"type": "fs.read", "request_id": "\\ud800", "payload": {}}\n')
    assert client.answer(None)["error"]["code"] == "bad_request"


def test_at_trace_the_log_has_what_went_over_the_wire_without_contents(start: Start, tree: Path) -> None:
    (tree / "f").write_text("SECRET in a file")
    client = start("--log-level", "trace")
    client.begin()
    assert client.ask("fs.read", path="f")["data"] == "SECRET in a file"
    client.ask("agent.execute", command="cat f; echo $TOKEN", env={"TOKEN": "SECRET in a variable"})
    client.end()
    told = [line for line in client.logged if line["message"] in ("received", "sent")]
    assert {line["message"] for line in told} == {"received", "sent"}
    assert any("fs.read" in line["line"] for line in told)
    assert "SECRET" not in json.dumps(client.logged)


def test_an_open_step_is_no_step_that_is_not_there(start: Start) -> None:
    client = start()
    client.begin()
    running = client.send("agent.execute", command="touch a; echo up; sleep 1000")
    client.event("terminal_output")
    for dry_run in (False, True):
        assert client.refused("undo.rollback", step_id=1, dry_run=dry_run)["code"] == "step_open"
    client.ask("agent.cancel", request_id=running)
    client.answer(running)


def test_a_directory_that_stays_is_not_told_as_deleted(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    client.ask("agent.execute", command="mkdir new; touch new/a")
    (tree / "new/by hand").write_text("1")
    done = client.ask("undo.rollback", step_id=1, force=True)
    assert done["deleted"] == ["new/a"]
    assert [one["path"] for one in done["skipped"]] == ["new"]
    assert os.listdir(tree / "new") == ["by hand"]


def test_labels_that_mean_two_directories_are_refused(start: Start, tree: Path) -> None:
    for name in ("a", "b"):
        (tree / name).mkdir()
    client = start()
    client.ask("hello", versions=[1])
    for label in ("one", "1"):
        given = [{"path": str(tree / "a"), "label": "one"}, {"path": str(tree / "b"), "label": label}]
        error = client.refused("session.start", working_directories=given)
        assert (error["code"], error["data"]) == ("usage", {"field": "payload.working_directories[1].label"})
    assert client.ask("session.status")["state"] == "stopped"


def test_what_the_session_ends_has_one_exit_code(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    running = client.send("agent.execute", command="touch f; echo up; sleep 100")
    client.event("terminal_output")
    client.ask("session.stop")
    assert client.answer(running)["error"]["code"] == "session_stopped"
    completed = client.event("step_completed")
    assert completed["exit_code"] == completed["step"]["exit_code"] is not None
    assert (tree / "f").exists()


def test_a_log_that_was_discarded_was_not_full(start: Start) -> None:
    client = start()
    client.begin()
    client.ask("agent.execute", command="touch f")
    assert client.ask("undo.discard", force=True) == {"discarded": 1}
    client.ask("session.reset")
    assert not any("at its limit" in record["message"] for record in client.logged)


def test_where_the_tree_has_changed_since_an_undo_it_is_said_what_can_be_done(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    client.ask("agent.execute", command="touch f")
    client.ask("undo.rollback")
    (tree / "theirs").write_text("by hand")
    error = client.refused("redo")
    assert error["code"] == "changed_since_undo"
    assert "redo with step_id" in error["hint"]
    assert client.refused("undo.rollback")["code"] == "barrier"
    assert client.ask("redo", step_id=1)["steps"] == [1]
    assert sorted(path.name for path in tree.iterdir()) == ["f", "theirs"]
