"""``--json``: the documented fields, one object on standard output, errors on standard error."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import holdfast
from holdfast.model.paths import parse_display

if TYPE_CHECKING:
    from e2e.conftest import Cli

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")
ID = re.compile(r"[0-9a-f]{24}\Z")
COUNTS = {"added": 1, "modified": 0, "deleted": 0}


def test_checkpoint(cli: Cli) -> None:
    cli.write("f", "1")
    made = cli.json("checkpoint", "-m", "one")
    assert list(made) == [
        "id", "parent", "label", "labels", "kind", "created", "labelled", "created_at", "changes", "total_files",
        "not_captured", "new_blobs", "stored_bytes", "elapsed_ms",
    ]  # fmt: skip
    assert ID.match(made["id"])
    assert TIME.match(made["created_at"])
    assert (made["parent"], made["label"], made["kind"], made["created"]) == (None, "one", "manual", True)
    assert (made["changes"], made["total_files"], made["new_blobs"]) == (COUNTS, 1, 1)
    assert made["stored_bytes"] > 0
    again = cli.json("checkpoint")
    assert (again["id"], again["created"]) == (made["id"], False)
    cli.write("f", "2")
    assert cli.json("checkpoint")["parent"] == made["id"]


def test_status(cli: Cli) -> None:
    cli.write("f", "1")
    fresh = cli.json("status")
    assert (fresh["last_checkpoint"], fresh["clean"], fresh["added"]) == (None, False, ["f"])
    made = cli.json("checkpoint")
    cli.write("f", "2")
    cli.write("g", "2")
    assert cli.json("status") == {
        "workspace": str(cli.root),
        "last_checkpoint": made["id"],
        "clean": False,
        "added": ["g"],
        "modified": ["f"],
        "deleted": [],
        "not_captured": [],
        "watching": False,
        "unfinished_restore": None,
        "watch_failure": None,
        "next_save_at": None,
        "next_save_by": None,
    }


def test_status_with_what_the_rules_leave_out(cli: Cli) -> None:
    for path in ("code.py", "run.log", "coverage/report", "build/deep/x", "sub/a.tmp", "sub/keep", ".env.local"):
        cli.write(path, "1")
    cli.write(".gitignore", "build/\n")
    cli.write("sub/.gitignore", "*.tmp\n")
    status = cli.json("status", "--ignored")
    assert status["ignored"] == [".env.local", "build/", "coverage/", "run.log", "sub/a.tmp"]
    assert status["added"] == [".gitignore", "code.py", "sub/.gitignore", "sub/keep"]
    assert "  coverage/\n" in cli("status", "--ignored").out


def test_log_and_show(cli: Cli) -> None:
    cli.write("f", "1")
    made = cli.json("checkpoint", "--message", "why", "--author", "ada")
    log = cli.json("log")
    assert log["head"] == made["id"]
    (item,) = log["checkpoints"]
    assert {key: item[key] for key in ("id", "parent", "label", "kind", "created_at", "changes", "message")} == {
        **{key: made[key] for key in ("id", "parent", "label", "kind", "created_at", "changes")},
        "message": "why",
    }
    assert [event["operation"] for event in log["events"]] == ["checkpoint"]
    shown = cli.json("show")
    assert {**item, "not_captured": []} == {key: shown[key] for key in item}
    assert shown["paths"] == {"added": ["f"], "modified": [], "deleted": []}
    assert cli.json("log", "-n", "1") == log
    cli.write("f", "2")
    second = cli.json("checkpoint")["id"]
    cli("undo")
    newest = cli.json("log", "-n", "1")
    assert [item["id"] for item in newest["checkpoints"]] == [second]
    assert [event["operation"] for event in newest["events"]] == ["undo", "checkpoint"]


def test_the_log_of_all_workspaces_says_which_each_checkpoint_belongs_to(cli: Cli) -> None:
    cli.write("f", "1")
    first = cli.json("checkpoint", "-m", "one")["id"]
    fork = cli.json("fork", str(cli.root.parent / "fork"))
    found = {item["id"]: item["workspace"] for item in cli.json("log", "--all")["checkpoints"]}
    here = cli.json("init")["workspace"]
    assert found == {first: here, fork["checkpoint"]: fork["workspace"]}
    assert cli.json("show")["workspace"] == cli.json("log")["checkpoints"][0]["workspace"] == here
    for options in ((), ("--graph",)):
        lines = cli("log", "--all", *options).out.splitlines()
        assert sorted(line[line.index("[") :] for line in lines if "[" in line) == sorted(
            (f"[{cli.root}]", f"[{cli.root.parent / 'fork'}]")
        )
    assert "[" not in cli("log").out


def test_diff(cli: Cli) -> None:
    cli.write("f", "1\n")
    cli.write("bin", b"\0")
    cli.write("gone", "g\n")
    cli.write("from", "some text that moves\n" * 9)
    base = cli.json("checkpoint")["id"]
    cli.write("f", "2\n")
    cli.write("bin", b"\0\0")
    (cli.root / "gone").unlink()
    (cli.root / "from").rename(cli.root / "to")
    cli.write("new", "abc\n")
    cli.write("same", "")
    diff = cli.json("diff")
    assert (diff["base"], diff["target"]) == (base, None)
    assert diff["added"] == [{"path": "new", "size": 4}, {"path": "same", "size": 0}]
    assert diff["deleted"] == [{"path": "gone"}]
    assert [item["path"] for item in diff["modified"]] == ["bin", "f"]
    assert "binary" in diff["modified"][0]
    assert diff["modified"][1] == {"path": "f", "diff": "@@ -1 +1 @@\n-1\n+2\n"}
    assert [(item["from"], item["to"]) for item in diff["renamed"]] == [("from", "to")]
    assert diff["stats"] == {"added": 2, "deleted": 1, "modified": 2, "renamed": 1, "unchanged": 0}


def test_restore_undo_redo(cli: Cli) -> None:
    cli.write("f", "1")
    first = cli.json("checkpoint")["id"]
    cli.write("f", "2")
    cli.write("g", "2")
    dry = cli.json("restore", first, "--dry-run")
    assert dry == {
        "checkpoint": first,
        "rescue": None,
        "written": ["f"],
        "deleted": ["g"],
        "skipped": [],
        "dry_run": True,
        "undo_command": None,
        "steps": [],
        "together": [],
        "stopped": [],
    }
    done = cli.json("restore", first)
    assert {**done, "rescue": None, "dry_run": True, "undo_command": None} == dry
    assert done["undo_command"] == "holdfast undo"
    events = cli.json("log")["events"]
    again = cli.json("restore", first)
    assert (again["written"], again["deleted"], again["undo_command"]) == ([], [], None)
    assert cli("restore", first).out == f"Nothing was changed: the tree is as {first[:12]} has it.\n"
    assert cli.json("log")["events"] == events
    assert ID.match(done["rescue"])
    undone = cli.json("undo")
    assert undone["checkpoint"] == done["rescue"]
    assert undone["undo_command"] == "holdfast redo"
    assert sorted(cli.json("redo")) == sorted(done)


def test_the_other_commands(bare: Cli) -> None:
    place = bare.root.parent
    started = bare.json("init")
    assert (started["path"], started["created"]) == (str(bare.root), True)
    assert bare.json("init") == {**started, "created": False}
    bare.write("f", "text")
    made = bare.json("checkpoint", "-m", "one")
    assert bare.json("cat", "@:f") == {"path": "f", "size": 4, "base64": "dGV4dA=="}
    fork = bare.json("fork", str(place / "fork"))
    assert list(fork) == ["workspace", "path", "checkpoint", "source", "written", "mounted"]
    assert (fork["path"], fork["source"], fork["written"]) == (str(place / "fork"), made["id"], 1)
    assert bare.json("export", "@", str(place / "b")) == {"file": str(place / "b"), "checkpoints": [made["id"]]}
    kept = bare.json("forget", "--dry-run")
    assert (kept["removed"], kept["dry_run"]) == ([], True)
    assert kept["kept"][0]["id"] == made["id"]
    assert kept["kept"][0]["reasons"]
    fields = ["blobs_deleted", "bytes_freed", "packs_deleted", "packs_rewritten", "counts_corrected"]
    fields += ["corrections", "dry_run"]
    assert list(bare.json("gc")) == list(bare.json("gc", "--dry-run")) == fields
    proof = bare.json("verify")
    assert (proof["ok"], proof["problems"]) == (True, [])
    stats = bare.json("stats")
    assert stats["workspaces"] == 2
    assert stats["largest"][0] == {"path": "f", "bytes": 4}
    assert "holdfast" in bare.json("completion", "bash")["script"]


def test_paths_that_are_not_utf8_round_trip(cli: Cli) -> None:
    name = b"back\\slash \xff\x1b[2J\n"
    (cli.root / os.fsdecode(name)).write_bytes(b"x")
    (path,) = cli.json("status")["added"]
    assert parse_display(path) == name
    assert "\x1b" not in cli("status").out
    cli("checkpoint")
    assert "\x1b" not in cli("show").out
    assert cli("cat", f"@:{os.fsdecode(name)}").out == "x"


def test_the_version(bare: Cli) -> None:
    for words in (["--version", "--json"], ["--json", "--version"]):
        assert bare(*words).json == {"version": holdfast.__version__}


def test_errors(bare: Cli) -> None:
    ran = bare("status", "--json", code=3)
    assert ran.out == ""
    assert ran.error["code"] == "no_workspace"
    assert "holdfast init" in ran.error["hint"]
    bare("init")
    assert bare("show", "--json", code=3).error["code"] == "not_found"
    assert bare("show", "ffff", "--json", code=3).error["code"] == "not_found"
    assert bare("checkpoint", "-m", "@x", "--json", code=2).error["code"] == "usage"
