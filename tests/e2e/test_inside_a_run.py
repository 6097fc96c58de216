"""Holdfast inside of a run: the home is closed there, and checkpoints are taken all the same, by the launcher."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing.tree_state import differences, photograph

from ..waiting import wait_until

if TYPE_CHECKING:
    from e2e.conftest import Cli

HOLDFAST = shlex.join([sys.executable, "-P", "-m", "holdfast"])


@pytest.fixture
def bench(cli: Cli) -> Cli:
    cli.write(".gitignore", "cache\n")
    cli.write("f", "0")
    cli.write("cache/old", "0")
    cli("checkpoint", "-m", "begin")
    return cli


def run(cli: Cli, script: str, *options: str, code: int = 0) -> tuple[list[Any], str]:
    """`holdfast run` of a script; the objects on its standard output, and all of its standard error."""
    done = cli.process("run", *options, "--", "sh", "-c", script, code=code, stdin=subprocess.DEVNULL)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_a_checkpoint_is_taken_at_any_time_as_if_from_outside(bench: Cli) -> None:
    before = photograph(bench.root)
    save = f"{HOLDFAST} checkpoint --json -m half --message why --author agent --command line"
    again = f"{HOLDFAST} checkpoint --json --full-hash"
    (made, found), _ = run(bench, f"echo 1 > f; rm cache/old; {save}; {again}; echo 2 > f")
    assert made["created"]
    assert not found["created"]
    assert found["id"] == made["id"]
    log = bench.json("log")["checkpoints"]
    assert [each["label"] for each in log] == ["", "half", "begin"]
    assert log[1]["id"] == made["id"]
    assert [log[1][key] for key in ("kind", "message", "author", "command")] == ["manual", "why", "agent", "line"]
    assert bench("cat", "half:f").out == "1\n"
    after = photograph(bench.root)
    bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []
    bench("redo")
    assert differences(after, photograph(bench.root)) == []


def test_what_looks_works_and_leaves_no_trace(bench: Cli) -> None:
    looks = ("status", "log", "diff", "show", "stats", "steps", "verify")
    found, _ = run(bench, "; ".join(["echo 1 > f", *(f"{HOLDFAST} {look} --json" for look in looks)]))
    of = dict(zip(looks, found, strict=True))
    assert not of["status"]["clean"]
    assert [each["label"] for each in of["log"]["checkpoints"]] == ["begin"]
    assert [each["path"] for each in of["diff"]["modified"]] == ["f"]
    assert of["verify"]["problems"] == []
    assert [step["paths"] for step in bench.json("steps")["steps"]] == [1]


@pytest.mark.parametrize(
    "command",
    [
        "undo",
        "undo --run",
        "redo",
        "restore begin",
        "forget begin",
        "gc",
        "fork begin ../fork",
        "run true",
    ],
)
def test_what_goes_back_or_lets_go_is_refused(bench: Cli, command: str) -> None:
    out, err = run(bench, f"echo 1 > f; {HOLDFAST} --json {command}; exit $?", code=4)
    assert out == []
    error = json.loads(err.splitlines()[0])["error"]
    assert error["code"] == "inside_run"
    assert "another terminal" in error["hint"]
    assert (bench.root / "f").read_text() == "1\n"


def test_the_watcher_is_asked_where_there_is_one(bench: Cli) -> None:
    bench("watch", "--detach")
    try:
        (made,), _ = run(bench, f"echo 1 > f; {HOLDFAST} checkpoint --json -m half")
    finally:
        bench("watch", "--stop")
    assert made["label"] == "half"
    assert bench("cat", "half:f").out == "1\n"


def test_what_a_run_has_left_running_is_told_that_nobody_answers(bench: Cli, tmp_path: Path) -> None:
    go, told = tmp_path / "go", tmp_path / "told"
    os.mkfifo(go)
    os.mkfifo(told)
    run(bench, f"(read x < {go}; {HOLDFAST} checkpoint --json 2> {told}) > /dev/null 2>&1 &")
    go.write_text("\n")
    error = json.loads(told.read_text().splitlines()[-1])["error"]
    assert error["code"] == "inside_run"
    assert "is over" in error["message"]


def test_a_run_that_somebody_else_names_is_none(bench: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN", "0123456789ab")
    bench.write("f", "1")
    assert bench.json("checkpoint")["created"]
    bench("undo")
    assert (bench.root / "f").read_text() == "0"


def test_what_a_run_groups_by_itself_belongs_to_it_and_ends_with_it(bench: Cli) -> None:
    before = photograph(bench.root)
    script = (
        f"{HOLDFAST} step begin one; echo 1 > f; rm cache/old; {HOLDFAST} step commit; "
        f"{HOLDFAST} step begin looked; cat f; {HOLDFAST} step commit; {HOLDFAST} step begin open; echo 2 > f"
    )
    bench.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    steps = [step for step in bench.json("steps")["steps"] if step["kind"] == "explicit"]
    assert [(step["command"], step["state"], step["paths"]) for step in steps] == [
        (["one"], "done", 2),
        (["open"], "done", 1),
    ]
    assert all(step["run"] for step in steps)
    assert (bench.root / "f").read_text() == "2\n"
    bench("undo")
    assert (bench.root / "f").read_text() == "1\n"
    bench("redo")
    bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []


def test_what_a_person_has_left_open_is_no_killed_step_when_the_run_ends(bench: Cli) -> None:
    go = bench.root.parent / "go"  # what goes through a pipe in the tree would be a step
    os.mkfifo(go)
    with bench.start("run", "--", "sh", "-c", f"echo > {go}; read x < {go}; echo 1 > f") as process:
        go.read_text()
        bench("step", "begin", "forgotten")
        go.write_text("\n")
        process.communicate(timeout=60)
    assert [step["state"] for step in bench.json("steps")["steps"]] == ["done"]
    assert (bench.root / "f").read_text() == "1\n"


def test_what_a_run_groups_by_itself_holds_nothing_of_another_run(bench: Cli) -> None:
    """I10: neither is taken back with the other, and no run closes what it has not begun."""
    go, done = bench.root.parent / "go", bench.root.parent / "done"
    os.mkfifo(go)
    os.mkfifo(done)
    script = (
        f"{HOLDFAST} step begin mine; echo 1 > a; echo > {go}; read x < {done}; echo 2 > b; {HOLDFAST} step rollback"
    )
    with bench.start("run", "--", "sh", "-c", script) as process:
        go.read_text()
        steals = f"echo important > c; {HOLDFAST} step rollback; echo $? > told; {HOLDFAST} step begin own; echo 3 > d"
        bench.process("run", "--", "sh", "-c", steals, stdin=subprocess.DEVNULL)
        done.write_text("\n")
        process.communicate(timeout=60)
    found = {path.name for path in bench.root.iterdir()}
    assert {"a", "b", "c", "d", "told"} & found == {"c", "d", "told"}
    assert (bench.root / "told").read_text() != "0\n"
    assert (bench.root / "c").read_text() == "important\n"


def test_a_step_of_a_persons_holds_all_runs_and_no_run_closes_it(bench: Cli) -> None:
    go = bench.root.parent / "go"
    os.mkfifo(go)
    before = photograph(bench.root)
    with bench.start("run", "--", "sh", "-c", f"echo > {go}; read x < {go}; echo 1 > a") as process:
        go.read_text()
        number = bench.json("step", "begin", "all")["id"]
        script = f"echo 2 > b; {HOLDFAST} step commit || echo $? > told; {HOLDFAST} step begin more || echo $? >> told"
        try:
            bench.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
        finally:
            go.write_text("\n")
            process.communicate(timeout=60)
    assert (bench.root / "told").read_text() == "3\n4\n"
    (step,) = bench.json("steps")["steps"]
    assert (step["id"], step["paths"]) == (number, 3)
    bench("undo")
    assert differences(before, photograph(bench.root)) == []


def test_nobody_begins_to_watch_there_or_answers_what_is_held(bench: Cli) -> None:
    asked = (f"{HOLDFAST} watch --detach", f"{HOLDFAST} safeguard allow 1")
    _, said = run(bench, "; ".join(f"{command}; echo $? >> cache/codes" for command in asked))
    assert "cannot ask for watching" in said
    assert "a supervised process may not allow or deny held operations" in said
    assert (bench.root / "cache/codes").read_text().split() == ["4", "4"]


@pytest.mark.parametrize("also", [False, True])
def test_what_was_rolled_back_inside_is_not_told_of_as_changed(bench: Cli, also: bool) -> None:
    """Nor is an undo named that would take back something else, or nothing."""
    run(bench, "echo earlier > f")
    quiet = f"{HOLDFAST} -q step"
    script = f"{quiet} begin x; echo inside > f; {quiet} rollback{'; echo $$ > new' if also else ''}"
    said = run(bench, script)[1]
    result = json.loads(run(bench, script, "--json")[1].splitlines()[-1])
    rolled_back = next(step for step in result["steps"] if step["kind"] == "explicit")
    assert (rolled_back["state"], rolled_back["directory"]) == ("undone", "")
    assert (bench.root / "f").read_text() == "earlier\n"
    if also:
        assert "1 step, 1 path changed; step " in said
        bench("undo", "--run", result["run"])
    else:
        assert "nothing is left of the run's changes: step " in said
        assert "holdfast undo" not in said
        assert result["undo_command"] is None


def test_what_others_changed_meanwhile_is_left_and_told_of_by_all_who_speak_of_it(bench: Cli) -> None:
    one, two = (bench.root.parent / name for name in ("one", "two"))
    for fifo in (one, two):
        os.mkfifo(fifo)
    step = f"{HOLDFAST} step"
    script = f"{step} begin x; echo s > f; echo y > z; echo >{one}; read _ <{two}; {step} rollback; echo $?"
    with bench.start("run", "--", "sh", "-c", script, stdout=subprocess.PIPE) as process:
        one.read_text()
        with (bench.root / "f").open("a") as file:
            file.write("HAND\n")
        two.write_text("\n")
        out, err = (said.decode() for said in process.communicate(timeout=60))
    assert (bench.root / "f").read_text() == "s\nHAND\n"
    assert not (bench.root / "z").exists()
    (number,) = (str(each["id"]) for each in bench.json("steps")["steps"] if each["state"] == "partly")
    (left,) = bench.json("steps", "show", number)["conflicts"]
    assert (left["path"], Path(left["kept"]).read_text()) == ("f", "0")
    for said in (out, bench("steps", "show", number).out):
        assert "f: " in said
        assert left["kept"] in said
    assert f"Took step {number} back, except for these paths:" in out
    assert out.splitlines()[-1] == "4"
    assert "could not change 1 path: " in err
    assert "nothing is left of the run's changes" not in err
    assert f"`holdfast steps show {number}` lists them" in err


def test_what_others_changed_meanwhile_is_left_and_told_of_when_a_step_is_denied(bench: Cli) -> None:
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 2\n")
    bench.write("a", "a")
    bench.write("b", "b")
    with bench.start("run", "--one-step", "--", "sh", "-c", "echo s > f; rm a b") as process:
        wait_until(lambda: bench.json("safeguard")["held"])
        with (bench.root / "f").open("a") as file:
            file.write("HAND\n")
        (held,) = bench.json("safeguard")["held"]
        denied = bench("safeguard", "deny", str(held["id"]), code=4)
        _, err = process.communicate(timeout=60)
    assert (bench.root / "a").exists()
    (left,) = bench.json("steps", "show", str(held["step"]))["conflicts"]
    assert (left["path"], Path(left["kept"]).read_text()) == ("f", "0")
    assert f"Denied; step {held['step']} was taken back, except for these paths:\n  f: {left['reason']}" in denied.out
    assert left["kept"] in denied.out
    assert f"`holdfast steps show {held['step']}` lists them" in err.decode()
