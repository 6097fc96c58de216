"""`run`, and all that takes back what ran, by the real command line under the real supervisor."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.journal.heartbeat import Heartbeat, encode_beat

from ..contexts import context_of
from ..processes import command_of
from .conftest import INSTALLED

if TYPE_CHECKING:
    from e2e.conftest import Cli


@pytest.fixture
def bench(cli: Cli) -> Cli:
    cli.write(".gitignore", "cache\n")
    cli.write("f", "0")
    cli.write("cache/old", "0")
    cli("checkpoint")
    return cli


def run(cli: Cli, *words: str, code: int = 0) -> tuple[str, str]:
    """`holdfast run` in a process of its own; what it says on standard output, and on standard error."""
    done = cli.process("run", *words, code=code, stdin=subprocess.DEVNULL)
    return done.stdout.decode(), done.stderr.decode()


def test_what_only_git_holds_is_said_to_be_in_no_checkpoint(bench: Cli) -> None:
    subprocess.run(("git", "init", "-q", bench.root), check=True)
    run(bench, "--", "sh", "-c", "git config holdfast.test 1; true")
    now = f"and {bench.json('log')['head'][:12]} is still the newest"
    for verb, back in (("undo", "redo"), ("redo", "undo")):
        said = bench(verb).out
        assert said.splitlines()[1:] == [
            "  M .git/config",
            f"No checkpoint holds those changes, {now}; `holdfast {back}` brings it back.",
        ]
        assert "by step 1: 1 file written, 0 deleted." in said


def test_what_undo_has_changed_is_named_with_letters_all_of_it_if_asked(bench: Cli) -> None:
    names = [f"w{number:02}" for number in range(12)]
    run(bench, "--", "sh", "-c", "rm cache/old; true")
    assert bench("undo").out.splitlines()[1:-1] == ["  A cache/old"]
    bench.write("f", "1")
    assert bench("undo").out.splitlines()[1:-1] == ["  M f"]
    for name in names:
        bench.write(name, "")
    (bench.root / "f").unlink()
    bench("checkpoint")
    rows = ["  A f", *(f"  D {name}" for name in names)]
    assert bench("undo").out.splitlines()[1:-1] == [*rows[:10], "  and 3 more"]
    bench("redo", "-q")
    assert bench("undo", "-v").out.splitlines()[1:-1] == rows


def test_an_undo_that_changes_nothing_does_not_say_that_it_went_back(bench: Cli) -> None:
    bench.write("g", "1")
    bench("checkpoint")
    with (bench.root / "g").open("a"):
        left = bench("undo", code=4)
    assert left.out == ""
    assert "could not change 1 path: " in left.err
    assert "; nothing was changed" in left.err
    assert (bench.root / "g").read_text() == "1"


def test_what_ran_is_taken_back_step_by_step_and_brought_forward(bench: Cli) -> None:
    before = photograph(bench.root)
    out, err = run(bench, "--", "sh", "-c", "rm -r cache; mkdir new; cp f new/g; echo said; rm f")
    assert out == "said\n"
    assert "holdfast undo --run" in err
    after = photograph(bench.root)
    steps = bench.json("steps")["steps"]
    assert [step["command"][0] for step in steps] == ["rm", "mkdir", "cp", "rm"]
    assert all(step["exit_code"] == 0 and step["protected"] and step["run"] for step in steps)
    assert bench.json("undo")["steps"] == [steps[-1]["id"]]
    assert (bench.root / "f").read_text() == "0"
    bench("undo", "3")
    assert differences(before, photograph(bench.root)) == []
    bench("redo", "4")
    assert differences(after, photograph(bench.root)) == []
    bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []
    bench("redo")
    assert differences(after, photograph(bench.root)) == []


def test_the_exit_code_is_the_commands_and_its_environment_names_the_run(bench: Cli) -> None:
    run(bench, "sh", "-c", "exit 7", code=7)
    run(bench, "sh", "-c", "kill -TERM $$", code=143)
    assert "every 32-bit program" in run(bench, "sh", "-c", "kill -SYS $$", code=159)[1]
    run(bench, "no-such-command", code=127)
    out, err = run(bench, "--json", "--one-step", "--", "sh", "-c", "echo $HOLDFAST_RUN; touch x; rm f; true")
    result = json.loads(err.splitlines()[-1])
    assert out.strip() == result["run"]
    assert [step["paths"] for step in result["steps"]] == [2]
    assert result["undo_command"] == f"holdfast undo --run {result['run']}"
    assert bench.is_documented("run", result)
    assert bench.is_documented("steps", result["steps"][0])
    bench("undo", "--run", result["run"])
    assert (bench.root / "f").read_text() == "0"
    assert not (bench.root / "x").exists()


def test_a_step_of_the_command_itself_has_its_exit_code(bench: Cli) -> None:
    # (A process with much memory takes its time between letting go of its filter and its end.)
    script = "import sys; memory = bytearray(300 << 20); open('x', 'w').write(sys.argv[1]); sys.exit(5)"
    for number, options in enumerate([(), ("--one-step",), ("--one-step",), ("--one-step",)]):
        run(bench, *options, "--", sys.executable, "-c", script, "x" * number, code=5)
    assert [step["exit_code"] for step in bench.json("steps")["steps"]] == [5] * 4


def test_nothing_runs_if_the_state_cannot_be_saved(bench: Cli) -> None:
    (bench.home / "config.toml").write_text("[lock]\ntimeout = '0.1s'\n")
    with holdfast.open(bench.root, home=bench.home) as workspace, context_of(workspace) as context, context.lock():
        _, err = run(bench, "--", "touch", "x", code=4)
    assert "busy" in err
    assert not (bench.root / "x").exists()


def test_an_edit_by_hand_in_between_is_not_lost(bench: Cli) -> None:
    before = bench.json("log")["head"]
    run(bench, "--", "sh", "-c", "echo 1 > f; exit")
    bench.write("f", "by hand")
    step = str(bench.json("steps")["steps"][-1]["id"])
    refused = bench("undo", "--step", step, "--json", code=4)
    assert refused.error["code"] == "barrier"
    assert "--force" in refused.error["hint"]
    assert f"`holdfast restore {before[:12]}` returns to the checkpoint before" in refused.error["hint"]
    assert (bench.root / "f").read_text() == "by hand"
    bench("undo", "--step", step, "--force")
    assert (bench.root / "f").read_text() == "0"
    bench("redo")
    assert (bench.root / "f").read_text() == "by hand"


def test_what_a_rename_replaced_is_shown_and_listed(bench: Cli) -> None:
    bench.write("g", "1")
    bench("checkpoint")
    run(bench, "--one-step", "--", "sh", "-c", "mv f g; echo new > cache/new; mv cache/new f")
    step = str(bench.json("steps")["steps"][-1]["id"])
    shown = [
        {"path": "f", "change": "added", "source": None},
        {"path": "g", "change": "deleted", "source": None},
        {"path": "g", "change": "renamed", "source": "f"},
    ]
    for act in ("undo", "redo"):
        assert bench.json("steps", "show", step)["changes"] == shown
        foreseen, done = bench.json(act, "--dry-run"), bench.json(act)
        assert [(one["written"], one["deleted"]) for one in (foreseen, done)] == [(["f", "g"], [])] * 2
    run(bench, "--", "sh", "-c", "mv f g; exit")
    assert "would delete" not in bench("undo", "--dry-run").out
    assert bench.json("undo")["deleted"] == []


def test_an_edit_by_hand_before_two_steps_is_in_the_way_of_the_step_before_it_alone(bench: Cli) -> None:
    run(bench, "--", "sh", "-c", "echo 1 > f; exit")
    (bench.root / "f").rename(bench.root / "g")
    bench.write("g", "by hand")
    bench("checkpoint")
    run(bench, "--", "sh", "-c", "sh -c 'echo new > f; exit'; sh -c 'mv g f; exit'")
    assert [barrier["paths"] for barrier in bench.json("barriers")["barriers"]] == [["f"], ["g"]]
    bench("undo", "--run")
    assert not (bench.root / "f").exists()
    assert (bench.root / "g").read_text() == "by hand"
    assert bench("undo", "--step", "1", "--json", code=4).error["code"] == "barrier"


@pytest.mark.parametrize("name", ["cache/old", "f"])
def test_an_edit_that_a_later_run_came_upon_is_not_lost(bench: Cli, name: str) -> None:
    """I8; ``cache`` is ignored: no checkpoint holds it."""
    run(bench, "--", "sh", "-c", f"echo A > {name}; exit")
    first = bench.json("steps")["steps"][-1]["run"]
    bench.write(name, "by hand")
    run(bench, "--", "sh", "-c", f"echo B > {name}; exit")
    second = bench.json("steps")["steps"][-1]["run"]
    bench("undo", "--run", second)
    assert (bench.root / name).read_text() == "by hand"
    refused = bench("undo", "--run", first, "--json", code=4)
    assert refused.error["code"] == "barrier"
    assert (bench.root / name).read_text() == "by hand"
    assert [barrier["paths"] for barrier in bench.json("barriers")["barriers"]] == [[name]]
    bench("undo", "--run", first, "--force")
    assert (bench.root / name).read_text() == "0"
    bench("redo")
    assert (bench.root / name).read_text() == "by hand"
    bench("undo", "--run", first, "--json", code=4)


def test_a_secret_edit_of_a_file_with_several_names_is_not_lost(bench: Cli) -> None:
    """I8: the same size, and the time set back."""
    os.link(bench.root / "cache/old", bench.root / "cache/linked")
    run(bench, "--", "sh", "-c", "echo A > cache/old; exit")
    found = (bench.root / "cache/old").stat()
    bench.write("cache/old", "b\n")
    os.utime(bench.root / "cache/old", ns=(found.st_atime_ns, found.st_mtime_ns))
    assert bench("undo", "--run", "--json", code=4).error["code"] == "barrier"
    assert (bench.root / "cache/linked").read_text() == "b\n"


def test_change_by_change_an_edit_in_between_is_taken_back_by_itself(bench: Cli) -> None:
    run(bench, "--", "sh", "-c", "echo A > f; exit")
    bench.write("f", "by hand")
    run(bench, "--", "sh", "-c", "echo B > f; exit")
    for content in ("by hand", "A\n", "0"):
        bench("undo")
        assert (bench.root / "f").read_text() == content
    for content in ("A\n", "by hand", "B\n"):
        bench("redo")
        assert (bench.root / "f").read_text() == content
    bench("undo", "3")
    assert (bench.root / "f").read_text() == "0"


def test_change_by_change_an_edit_of_what_is_ignored_is_not_lost(bench: Cli) -> None:
    run(bench, "--", "sh", "-c", "echo A > cache/old; exit")
    bench.write("cache/old", "by hand")
    run(bench, "--", "sh", "-c", "echo B > cache/old; exit")
    bench("undo")
    refused = bench("undo", "--json", code=4)
    assert refused.error["code"] == "barrier"
    assert (bench.root / "cache/old").read_text() == "by hand"
    bench("undo", "--force")
    assert (bench.root / "cache/old").read_text() == "0"


def test_a_step_is_not_undone_by_one_of_two_names_that_a_restore_has_parted(bench: Cli) -> None:
    """The other one, which is ignored, would keep what the step wrote."""
    os.link(bench.root / "f", bench.root / "cache" / "other")
    before = bench.json("checkpoint")["id"]
    run(bench, "--", "sh", "-c", "echo A > f; exit")
    bench("restore", before)
    bench("undo")
    assert "f has changed since step 1, outside of any step" in bench("undo", code=4).err
    assert (bench.root / "f").read_text() == (bench.root / "cache" / "other").read_text() == "A\n"


def test_a_range_of_steps_means_those_that_there_are(bench: Cli) -> None:
    for name in "abcd":
        run(bench, "--", "sh", "-c", f"echo 1 > {name}")
    steps = [step["id"] for step in bench.json("steps")["steps"]]
    assert sorted(steps) == [1, 2, 3, 4]
    bench("undo", "--step", "2")
    assert sorted(bench.json("undo", "--step", "1-3", "--dry-run")["steps"]) == [1, 3]
    assert sorted(bench.json("undo", "--step", "1-3")["steps"]) == [1, 3]
    assert "step 1 is undone already" in bench("undo", "--step", "1-3", code=3).err
    assert bench.json("undo", "--step", "3-200")["steps"] == [4]
    assert "there is no step 50" in bench("undo", "--step", "50-60", code=3).err
    assert "there is no step 50" in bench("undo", "--step", "50", code=3).err
    assert sorted(bench.json("redo", "--step", "2-90")["steps"]) == [2, 3, 4]
    assert "step 2 is not undone" in bench("redo", "--step", "2", code=3).err
    assert sorted(bench.json("redo", "--step", "1-4")["steps"]) == [1]


def test_an_edit_that_was_undone_and_redone_is_not_put_down_to_undo(bench: Cli) -> None:
    run(bench, "--", "sh", "-c", "echo A > f")
    bench.write("f", "by hand")
    bench("undo")
    bench("redo")
    refused = bench("undo", "--run", code=4).err
    assert "f has changed since step 1, outside of any step" in refused
    assert "--force undoes it nevertheless: redo gives back what that overwrites" in refused
    bench("undo", "--run", "--force", code=4)
    assert (bench.root / "f").read_text() == "by hand", "a restore has replaced the file of the step"


@pytest.mark.parametrize("forward", [False, True])
def test_what_git_has_written_to_its_index_since_is_left_with_no_lock_beside_it(bench: Cli, forward: bool) -> None:
    def git(*words: str) -> str:
        author = ("-c", "user.name=U", "-c", "user.email=u@example.org")
        return subprocess.run(["git", *author, *words], cwd=bench.root, check=True, capture_output=True).stdout.decode()

    git("init", "--quiet", "--initial-branch=main")
    git("add", "f")
    git("commit", "--quiet", "-m", "first")
    commit = "git -c user.name=U -c user.email=u@example.org commit -qam"
    run(bench, "--", "sh", "-c", f"echo A > f; {commit} second; echo B > f; {commit} third")
    if forward:
        bench("undo", "--run")
    git("add", "--refresh", "f")
    git("rm", "--quiet", "--cached", "f")
    there = {path.name for path in (bench.root / ".git").iterdir()} | {"COMMIT_EDITMSG"}
    index = (bench.root / ".git/index").read_bytes()
    words = ("redo",) if forward else ("undo", "--run")
    refused = bench(*words, code=4).err
    assert f"--force {'redoes' if forward else 'undoes'} the rest and leaves the index; then `git reset`" in refused
    done = bench(*words, "--force", "--json", code=4).json
    assert {one["path"] for one in done["skipped"]} == {".git/index"}
    assert {path.name for path in (bench.root / ".git").iterdir()} <= there
    assert (bench.root / ".git/index").read_bytes() == index
    git("reset", "--quiet")
    assert git("status", "--porcelain", "f") == ""
    assert git("log", "--format=%s").split() == (["third", "second", "first"] if forward else ["first"])


def test_steps_are_shown_and_forgotten(bench: Cli) -> None:
    run(bench, "--one-step", "--", "sh", "-c", "mv f g; mkdir cache/new; rm cache/old")
    step = bench.json("steps")["steps"][0]
    shown = bench.json("steps", "show", str(step["id"]))
    assert {(each["change"], each["path"]) for each in shown["changes"]} >= {
        ("added", "cache/new"),
        ("deleted", "cache/old"),
    }
    assert bench.is_documented("steps", shown["changes"][0])
    assert f"step          {step['id']}" in bench("steps", "show", str(step["id"])).out
    assert bench("steps", "show", "99", code=3)
    assert bench.json("steps", "--discard") == {"discarded": 1}
    assert bench.json("steps") == {"steps": []}
    assert bench("undo", "--run", "--json", code=4).error["code"] == "steps_forgotten"
    assert bench.json("undo", "--run", "--force")["steps"] == []
    assert (bench.root / "f").read_text() == "0"


def of_another_version(bench: Cli) -> Path:
    """Let the undo log be one of another version; its directory."""
    with holdfast.open(bench.root, home=bench.home) as workspace:
        log = Path(os.fsdecode(workspace.folder)) / "undo"
    (log / "version").write_text("HFUNDO 9\n")
    return log


def test_a_log_of_another_version_is_left_alone_until_it_is_discarded(bench: Cli) -> None:
    run(bench, "--", "rm", "f")
    with holdfast.open(bench.root, home=bench.home) as workspace:
        first = workspace.log().checkpoints[-1].id
    of_another_version(bench)
    for words in (("undo",), ("undo", "--run"), ("redo",), ("steps",)):
        refused = bench(*words, "--json", code=5).error
        assert refused["code"] == "undo_version_mismatch"
        assert "holdfast steps --discard" in refused["hint"]
    assert not (bench.root / "f").exists()
    bench.write("by hand", "1")
    for words in (("status",), ("diff", "@-"), ("checkpoint",), ("log",), ("show", "@")):
        assert bench(*words).err == ""
    said = bench("restore", first).err
    assert said.count("another version") == 1
    assert "holdfast steps --discard" in said
    assert (bench.root / "f").exists()
    assert bench.json("steps", "--discard") == {"discarded": None}
    assert bench.json("steps") == {"steps": []}
    run(bench, "--", "rm", "f")
    assert [step["id"] for step in bench.json("steps")["steps"]] == [2]  # no step that the history knows has its number


def test_a_run_sets_a_log_of_another_version_aside(bench: Cli) -> None:
    """What is recorded from then on is undone; undo does not go past it by checkpoints unasked."""
    run(bench, "--", "sh", "-c", "rm f; echo 1 > cache/old")
    (theirs,) = {step["run"] for step in bench.json("steps")["steps"]}
    bench("undo")
    bench("redo")
    bench("undo")
    undone = photograph(bench.root)
    log = of_another_version(bench)
    _, said = run(bench, "--", "sh", "-c", "echo 2 > f; echo 2 > cache/old")
    assert said.count("another version") == 1
    assert "holdfast steps --discard" in said
    _, said = run(bench, "--", "mkdir", "more")
    assert "another version" not in said
    assert len(list(log.glob("other-version/*/steps/*"))) == 2
    ours = [step["id"] for step in bench.json("steps")["steps"]]
    assert min(ours) > 2
    after = photograph(bench.root)
    bench("undo", "--run")
    bench("undo")
    assert differences(undone, photograph(bench.root)) == []
    for words in (
        ("undo",),
        ("undo", "--dry-run"),
        ("undo", "--step", "1"),
        ("undo", "--run", theirs),
        ("redo", "--step", "1"),
        ("redo", "--step", "1", "--dry-run"),
    ):
        refused = bench(*words, "--json", code=5).error
        assert refused["code"] == "undo_version_mismatch", words
        assert "holdfast steps --discard" in refused["hint"]
        assert "holdfast restore" in refused["hint"]
    assert differences(undone, photograph(bench.root)) == []
    bench("redo", "2")
    assert differences(after, photograph(bench.root)) == []
    bench("undo", "3", "--json", code=5)
    assert differences(after, photograph(bench.root)) == []
    assert bench.json("steps", "--discard") == {"discarded": len(ours)}
    assert not list(log.glob("other-version*"))
    bench("undo")


def test_redo_does_not_pass_what_another_version_has_undone(bench: Cli) -> None:
    run(bench, "--", "sh", "-c", "rm f; echo 1 > cache/old")
    bench("undo", "--run")
    log = of_another_version(bench)
    bench("run", "--", "true")
    assert list(log.glob("other-version/*"))
    for words in (("redo",), ("redo", "--dry-run")):
        assert bench(*words, "--json", code=5).error["code"] == "undo_version_mismatch"
    assert (bench.root / "f").exists()
    bench("redo", "--force")
    assert not (bench.root / "f").exists()


def test_nothing_is_built_on_a_half_done_step_of_another_version(bench: Cli) -> None:
    """I3: that version alone can roll it back, so its log stays where that finds it; what only looks says so."""
    run(bench, "--", "rm", "f")
    log = of_another_version(bench)
    (log / "beat").write_bytes(encode_beat(Heartbeat(5, 1, 0, 9)))
    for words in (("status",), ("checkpoint",)):
        assert "recovery is needed" in bench(*words).err
    _, said = run(bench, "--", "touch", "made", code=5)
    assert "any command of that version rolls them back" in said
    assert not (bench.root / "made").exists()
    assert not (log / "other-version").exists()
    bench("steps", "--discard")
    run(bench, "--", "touch", "made")
    assert bench("status").err == ""


def test_what_nobody_allows_does_not_happen_and_what_somebody_does_goes_on(bench: Cli) -> None:
    """I9."""
    for number in range(5):
        bench.write(f"many/{number}", "x")
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 3\n")
    before = photograph(bench.root)
    for answer, code in (("deny", 1), ("allow", 0)):
        with bench.start("run", "--", "rm", "-r", "many") as process:
            deadline = time.monotonic() + 30
            while not (held := bench.json("safeguard")["held"]):
                assert time.monotonic() < deadline
            assert bench.is_documented("safeguard", held[0])
            assert "many/" in held[0]["path"]
            bench("safeguard", answer, str(held[0]["id"]))
            process.communicate(timeout=30)
            assert process.returncode == code
        if answer == "deny":
            assert differences(before, photograph(bench.root)) == []
    assert not (bench.root / "many").exists()
    bench("undo")
    assert differences(before, photograph(bench.root)) == []


def test_a_group_of_commands_is_committed_or_rolled_back_as_one_step(bench: Cli) -> None:
    assert bench("step", "begin", code=3)
    go = bench.root / "go"
    os.mkfifo(go)
    command = "touch one; echo > go; read x < go; rm f; echo > go; read x < go; touch three"
    with bench.start("run", "--", "sh", "-c", command) as process:
        go.read_text()
        step = bench.json("step", "begin", "the middle")["id"]
        go.write_text("\n")
        go.read_text()
        assert not (bench.root / "f").exists()
        assert bench.json("step", "rollback")["steps"] == [step]
        assert (bench.root / "f").read_text() == "0"
        go.write_text("\n")
        process.communicate(timeout=30)
    assert (bench.root / "one").exists()
    assert (bench.root / "three").exists()


def keeper_of(home: Path) -> int:
    """The process that keeps the undo log in a home."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended meanwhile
            if b"holdfast.supervisor.keeper.keeper" not in command_of(int(pid)).split(b"\0"):
                continue
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # it was closed meanwhile
                    if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(str(home)):
                        return int(pid)
    raise AssertionError("there is no keeper")


def test_a_killed_keeper_is_told_of_and_its_step_rolled_back_and_forward(bench: Cli, tmp_path: Path) -> None:
    """I3."""
    before = photograph(bench.root)
    go = tmp_path / "go"
    os.mkfifo(go)
    with bench.start("run", "--", "sh", "-c", f"printf half > f; : > cache/new; echo > {go}; sleep 60") as process:
        go.read_text()
        os.kill(keeper_of(bench.home), signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert b"rolled back" in err
    assert differences(before, photograph(bench.root)) == []
    steps = [step for step in bench.json("steps")["steps"] if step["state"] == "undone"]
    assert len(steps) == 1
    bench("redo", "--step", str(steps[0]["id"]))
    assert (bench.root / "f").read_text() == "half"
    assert (bench.root / "cache" / "new").exists()
    bench("undo")
    assert differences(before, photograph(bench.root)) == []


def test_a_watcher_beside_a_run_keeps_working(bench: Cli) -> None:
    bench("watch", "--detach")
    try:
        run(bench, "--", "sh", "-c", "echo 1 > f; rm cache/old; true")
        assert bench.json("status")["clean"]
        bench("undo", "--run")
        assert (bench.root / "f").read_text() == "0"
        assert (bench.root / "cache" / "old").exists()
    finally:
        bench("watch", "--stop")


INTERLEAVED = """
mkfifo ../one ../two
(echo a >>f; echo >../one; read _ <../two; echo a >x) &
(read _ <../one; echo b >>g; echo b >y; echo >../two) &
wait
rm ../one ../two
"""
"""Two steps, each of which changes an object after the other has begun to and before the other ends."""


def test_steps_that_depend_on_each_other_are_undone_together(bench: Cli) -> None:
    os.link(bench.root / "f", bench.root / "g")
    bench("checkpoint")
    before = photograph(bench.root)
    run(bench, "--", "sh", "-c", INTERLEAVED)
    after = photograph(bench.root)
    steps = [step["id"] for step in bench.json("steps")["steps"]]
    assert len(steps) == 2
    one, two = steps
    refused = bench("undo", "--step", str(one), code=4)
    assert f"step {two} " in refused.err
    assert f"holdfast undo --step {one} --step {two}" in refused.err
    dry = bench.json("undo", "--dry-run")
    assert (sorted(dry["steps"]), [sorted(group) for group in dry["together"]]) == (steps, [steps])
    said = bench("undo").out
    assert f"Steps {one} and {two} depend on each other, and were undone together." in said
    assert differences(before, photograph(bench.root)) == []
    refused = bench("redo", "--step", str(one), code=4)
    assert f"holdfast redo --step {one} --step {two}" in refused.err
    assert bench.json("redo", "--dry-run")["together"] == [steps]
    said = bench("redo").out
    assert f"Steps {one} and {two} depend on each other, and were brought forward together." in said
    assert differences(after, photograph(bench.root)) == []
    done = bench.json("undo", "--step", str(two), "--step", str(one))
    assert (sorted(done["steps"]), done["together"]) == (steps, [])
    assert differences(before, photograph(bench.root)) == []
    bench("redo", "--step", str(one), "--step", str(two))
    assert differences(after, photograph(bench.root)) == []


def test_a_dry_run_knows_of_a_connected_step_that_goes_on(bench: Cli) -> None:
    go = bench.root.parent / "go"
    os.mkfifo(go)
    with bench.start("run", "--one-step", "--", "sh", "-c", f"echo a >> f; echo > {go}; read _ < {go}") as process:
        go.read_text()
        run(bench, "--one-step", "--", "sh", "-c", "echo b > other; echo b >> f")
        for words in (("undo", "--dry-run"), ("undo", "--dry-run", "--step", "2"), ("undo",)):
            refused = bench(*words, "--json", code=4).error
            assert refused["code"] == "step_open"
            assert "step 1 has to do with f too, and still going on" in refused["message"]
        go.write_text("\n")
        process.communicate(timeout=60)
    assert (bench.root / "f").read_text() == "0a\nb\n"


def test_a_run_of_more_steps_than_the_log_keeps_runs_is_undone_whole(bench: Cli) -> None:
    (bench.home / "config.toml").write_text("[undo]\nmax_steps = 2\n")
    before = photograph(bench.root)
    run(bench, "--", "sh", "-c", "rm cache/old; touch cache/new; mkdir g; touch g/h")
    _, err = run(bench, "--", "sh", "-c", "rm -r g; touch cache/new; rm f; mv cache/new f; touch cache/more")
    assert "cannot be undone" not in err
    assert len(bench.json("steps")["steps"]) == 9
    for _ in range(2):
        bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []
    _, err = run(bench, "--", "touch", "one more")
    assert "can no longer be undone completely" in err
    assert len(bench.json("steps")["steps"]) == 6


def test_a_run_that_a_full_log_holds_in_part_is_undone_if_forced(bench: Cli) -> None:
    (bench.home / "config.toml").write_text("[undo]\nmax_log_bytes = '40KiB'\n")
    for name in "abc":
        bench.write(name, name * 30_000)
    before = bench.tree()
    _, err = run(bench, "--", "sh", "-c", "rm a; rm b; rm c; rm cache/old")
    left = len(bench.json("steps")["steps"])
    assert left < 4
    assert "the run had 4 steps; the undo log was full (undo.max_log_bytes, undo.max_steps) or discarded" in err
    assert f"forgot {4 - left} of them" in err
    assert "holdfast undo --run" in err.splitlines()[-1]
    assert "--force" in err.splitlines()[-1]
    after = bench.tree()
    refused = bench("undo", "--run", "--json", code=4).error
    assert refused["code"] == "steps_forgotten"
    assert "has forgotten steps of the run" in refused["message"]
    assert bench.tree() == after
    done = bench("undo", "--run", "--force", "--json")
    assert "ignored files that they changed stay as they are" in done.err
    assert bench.tree() == before
    bench("undo", "--run", code=3)
    assert bench.tree() == before
    for command in done.json["undo_command"].split(" && "):
        bench(*command.split()[1:])
    assert bench.tree() == after
    for name in "abc":
        bench.write(name, name * 30_000)
    _, err = run(bench, "--json", "--", "sh", "-c", "rm a; rm b; rm c; true")
    result = json.loads(err.splitlines()[-1])
    assert result["forgotten_steps"] > 0
    assert len(result["steps"]) + result["forgotten_steps"] == 3
    assert result["undo_command"] == f"holdfast undo --run {result['run']} --force"


@pytest.mark.parametrize("is_json", [False, True])
def test_who_runs_a_script_learns_what_was_held_and_that_no_answer_came(
    bench: Cli, monkeypatch: pytest.MonkeyPatch, is_json: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_SAFEGUARD_TIMEOUT", "1s")
    monkeypatch.setenv("HOLDFAST_SAFEGUARD_DELETES", "2")
    for name in "ab":
        bench.write(name, name)
    before = bench.tree()
    _, err = run(bench, *["--json"] * is_json, "--", "sh", "-c", "rm a b || true; true")
    assert "Operation not permitted" in err
    if is_json:
        result = json.loads(err.splitlines()[-1])
        (meanwhile,) = [json.loads(line) for line in err.splitlines() if '"level":' in line]
        assert "is about to delete its file number 2: b" in meanwhile["message"]
        assert "`holdfast safeguard allow 1` or `deny 1`" in meanwhile["message"]
        (held,) = result["unanswered"]
        assert held["step"] == result["steps"][0]["id"]
        assert (held["danger"], held["path"], held["seconds"]) == ("delete", "b", 1)
        assert bench.is_documented("run", result)
        assert bench.is_documented("run", {"seconds": 1})
    else:
        meanwhile, how, said = [line for line in err.splitlines() if "safeguard" in line or "is about to" in line]
        assert meanwhile == "holdfast: step 1 (rm a b) is about to delete its file number 2: b (2 bytes in all)"
        assert re.fullmatch(r"  held: `holdfast safeguard allow 1` or `deny 1` in another terminal, within [01] s", how)
        assert "\a" not in err, "no terminal shows it"
        assert "`delete`: step 1 (rm a b) is about to delete its file number 2: b" in said
        assert "No answer came within 1 s, so Holdfast took the step back." in said
        assert "`holdfast safeguard list`" in said
    assert bench.tree() == before


def test_a_run_that_goes_on_and_that_a_full_log_holds_in_part_is_undone_whole_if_forced(
    bench: Cli, tmp_path: Path
) -> None:
    (bench.home / "config.toml").write_text("[undo]\nmax_log_bytes = '40KiB'\n")
    for name in "abc":
        bench.write(name, name * 30_000)
    before = bench.tree()
    for name in ("there", "over"):
        os.mkfifo(tmp_path / name)
    going = bench.start("run", "--", "sh", "-c", f"rm a; rm b; rm c; : >{tmp_path}/there; read _ <{tmp_path}/over")
    (tmp_path / "there").read_text()
    after = bench.tree()
    assert "the state at its end is not known" in bench("undo", "--run", code=4).err
    assert bench.tree() == after
    done = bench("undo", "--run", "--force")
    assert "ignored files that they changed stay as they are" in done.err
    assert bench.tree() == before
    (tmp_path / "over").write_text("\n")
    _, err = going.communicate(timeout=60)
    assert going.returncode == 0, err
    assert bench.tree() == before


class Person:
    """Somebody at the terminal of a run."""

    def __init__(self, *words: str, command: str = "run") -> None:
        self.shown = self.all = ""
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            try:
                os.execvp(INSTALLED[0], [*INSTALLED, command, *words])
            finally:
                os._exit(99)

    def type(self, line: str) -> None:
        os.write(self._terminal, f"{line}\n".encode())

    def asked(self) -> str:
        """Wait for a question; the number that it shows."""
        while not (found := re.search(r"type (\d+) to allow it", self.shown)):
            self._look()
        self.shown = self.shown[found.end() :]
        return found[1]

    def code(self) -> int:
        with suppress(OSError):  # how Linux says that the other end is closed
            while True:
                self._look()
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _look(self) -> None:
        ready, _, _ = select.select([self._terminal], [], [], 30)
        assert ready, self.shown
        text = os.read(self._terminal, 4096).decode()
        self.shown += text
        self.all += text


@pytest.fixture(name="guarded")
def _guarded(bench: Cli) -> Cli:
    for number in range(5):
        bench.write(f"many/{number}", "x")
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 3\n")
    return bench


@pytest.mark.parametrize("answer", ["a", "allow", "", "d"])
def test_at_the_terminal_only_the_number_that_is_shown_allows_it(guarded: Cli, answer: str) -> None:
    before = photograph(guarded.root)
    person = Person("--", "rm", "-r", "many")
    person.asked()
    person.type(answer)
    assert person.code() == 1
    assert differences(before, photograph(guarded.root)) == []


def test_what_was_typed_before_the_question_does_not_answer_it(guarded: Cli) -> None:
    person = Person("--", "rm", "-r", "many")
    for line in ("a", "allow", "n"):
        person.type(line)
    person.type(person.asked())
    assert person.code() == 0
    assert person.all.count("\a") == 1, "the terminal rings once for a question"
    assert not (guarded.root / "many").exists()


TYPING = """
import fcntl, os, subprocess, sys
answered = {}
CALLS = {"type": (0x5412, b"a"), "paste": (0x541C, b"\\3"), "take": (0x540E, 1), "kind": (0x5423, b"\\0" * 4)}
for name, (request, argument) in CALLS.items():
    try:
        fcntl.ioctl(0, request, argument)
        answered[name] = "done"
    except OSError as error:
        answered[name] = error.errno
print("said", sorted(set(answered.values())), flush=True)
"""


def test_what_runs_cannot_type_or_take_the_terminal(bench: Cli) -> None:
    person = Person("--", sys.executable, "-c", TYPING)
    assert person.code() == 0
    assert f"said [{errno.EPERM}]" in person.shown
    assert bench.json("steps") == {"steps": []}


def test_a_list_has_the_names_of_its_columns_on_a_terminal_and_nowhere_else(bench: Cli) -> None:
    for command in ("steps", "barriers", "safeguard"):
        empty = Person(command=command)
        assert empty.code() == 0
        assert len(empty.all.splitlines()) <= 1, "no heading"
    run(bench, "--", "touch", "made")
    person = Person(command="steps")
    assert person.code() == 0
    heading, row = (re.sub(r"\x1b\[\d*m", "", line) for line in person.all.splitlines())
    assert heading.split() == ["step", "began", "kind", "changed", "command"]
    assert row == bench("steps").out.removesuffix("\n")
    assert row.index("touch made") == heading.index("command")
