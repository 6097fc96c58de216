"""``experiment`` as people use it: what it prints, adopts, keeps, and that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.sessions.registry import Sessions

from ..waiting import has_ended, wait_until
from .conftest import INSTALLED

if TYPE_CHECKING:
    from .conftest import Cli


@pytest.fixture
def trying(cli: Cli) -> Cli:
    """The command line in a workspace with a file and a session."""
    cli.write("a", "before\n")
    with Sessions() as sessions, sessions.start(os.fsencode(cli.root), "main"):
        pass
    return cli


def left(cli: Cli) -> tuple[list[str], list[str]]:
    """The sessions that there are, and the directories of forks."""
    with Sessions() as sessions:
        there = [str(one.id) for one in sessions.list()]
    forks = Path(f"{cli.home}-forks")
    return there, sorted(path.name for path in forks.iterdir()) if forks.exists() else []


def test_a_table_with_the_best_first_and_nothing_else_changed(trying: Cli) -> None:
    ran = trying("experiment", "echo one > a; echo said", "echo why >&2; exit 3", "--name", "first", "--name", "second")
    lines = ran.out.splitlines()
    assert lines[0].endswith(": 2 attempts, 1 succeeded")
    assert lines[3].split()[:4] == ["1", "first", "exit", "0"]
    assert lines[4].split()[:4] == ["2", "second", "exit", "3"]
    assert lines[5] == "   why"
    assert lines[-1] == "The best is first."
    assert trying.tree() == {"a": b"before\n"}
    assert left(trying) == (["main"], [])


def test_what_no_checkpoint_holds_is_named_and_stays_in_its_fork(trying: Cli) -> None:
    (trying.home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    command = "head -c 70000 /dev/zero > a; echo n > note"
    ran = trying("experiment", command, "--name", "way", "--adopt")
    assert ran.out.splitlines()[3].endswith("  +1, 1 not captured")
    (fork,) = [name for name in left(trying)[0] if name != "main"]
    assert "way has left 1 path that no checkpoint holds, in its fork alone:\n  a: too large" in ran.out
    assert f"That fork stays, as the session {fork}, in " in ran.out
    assert trying.tree() == {"a": b"before\n", "note": b"n\n"}
    (attempt,) = trying.json("experiment", command, "--name", "way")["attempts"]
    assert [one["path"] for one in attempt["not_captured"]] == ["a"]
    assert (Path(attempt["directory"]) / "a").stat().st_size == 70_000


def test_of_one_path_that_goes_it_is_said_that_it_goes(trying: Cli) -> None:
    (trying.home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    other = "head -c 70000 /dev/zero > a; exit 1"
    out = trying("experiment", "true", other, "--name", "best", "--name", "other").out
    assert "other has left 1 path that no checkpoint holds, and that goes with its fork:" in out


def test_the_best_is_adopted_and_undone_i6(trying: Cli) -> None:
    ran = trying("experiment", "echo long long > a", "echo short > a; echo x", "--compare-by", "output", "--adopt")
    assert "Adopted echo long long > a: 1 file written, 0 deleted." in ran.out
    assert "`holdfast undo` brings it back" in ran.out
    assert trying.tree() == {"a": b"long long\n"}
    trying("undo")
    assert trying.tree() == {"a": b"before\n"}


def test_every_field_is_documented(trying: Cli) -> None:
    words = ("echo x > new; echo one", "sleep 60", "--timeout", "4", "--adopt", "--setup", "true")
    found = trying.json("experiment", *words)
    assert found["winner"] == 1
    attempts = {one["attempt"]: one for one in found["attempts"]}
    assert attempts[1]["stdout"] == "one\n"
    assert attempts[1]["changed"] == {"added": ["new"], "modified": [], "deleted": [], "renamed": []}
    assert (attempts[2]["status"], attempts[2]["fork"]) == ("timed out", None)
    assert found["adopted"]["written"] == ["new"]
    for part in (attempts[1], found["differences"][0], found["statistics"]):
        assert trying.is_documented("experiment", part)


def test_differences_are_shown(trying: Cli) -> None:
    out = trying("experiment", "echo one > a; echo one", "echo two > a; echo two; sleep 2", "--diff").out
    assert "+two" in out
    assert "diff --git a/a b/a" in out


def test_nothing_is_any_good(trying: Cli) -> None:
    ran = trying("experiment", "exit 1", "exit 2", "--adopt", code=1)
    assert "No attempt succeeded" in ran.out
    assert trying("experiment", "false", "--json", code=1).json["winner"] is None


def test_forks_are_kept_as_sessions(trying: Cli) -> None:
    found = trying.json("experiment", "echo x > a", "true", "--keep")
    for one in found["attempts"]:
        assert (Path(one["directory"]) / "a").exists()
    there, _ = left(trying)
    assert sorted(there) == sorted(["main", *(one["fork"] for one in found["attempts"])])


@pytest.mark.parametrize("output", ["--json", "--diff"])
@pytest.mark.parametrize("nobody", ["a pipe", "/dev/full"])
def test_forks_are_kept_though_nobody_reads_what_came_of_it(trying: Cli, nobody: str, output: str) -> None:
    reading, writing = os.pipe() if nobody == "a pipe" else (None, os.open(nobody, os.O_WRONLY))
    if reading is not None:
        os.close(reading)
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    words = ("experiment", "echo x > a", "true", "--keep", output)
    running = trying.start(*words, stdout=writing, env=environ)
    os.close(writing)
    running.communicate(timeout=60)
    assert running.returncode == (141 if reading is not None else 1)
    with Sessions() as sessions:
        roots = [one.root for one in sessions.list()]
    assert len(roots) == 3
    assert all(root is not None and os.path.isfile(root + b"/a") for root in roots)


def test_what_was_not_adopted_is_kept_and_merged(trying: Cli) -> None:
    """The session's files were changed meanwhile; the results of all attempts are told, too."""
    command = f"echo edited > {trying.root}/b; echo mine > new"
    ran = trying("experiment", command, "exit 1", "--name", "one", "--name", "two", "--adopt", code=4)
    (fork,) = [name for name in left(trying)[0] if name != "main"]
    assert ran.out.splitlines()[0].endswith(": 2 attempts, 1 succeeded")
    assert "The best is one; it was not adopted." in ran.out
    assert f"  {fork}  " in ran.out
    merge = f"holdfast session merge {fork} -s main"
    assert f"`{merge}`" in ran.out
    assert f"`{merge}`" in ran.err
    trying(*merge.split()[1:])
    assert trying.tree() == {"a": b"before\n", "b": b"edited\n", "new": b"mine\n"}


@pytest.mark.parametrize("keep", [True, False])
def test_what_was_not_adopted_is_in_the_answer_for_programs(trying: Cli, keep: bool) -> None:
    command = f"echo edited > {trying.root}/b; echo mine > new"
    ran = trying("experiment", command, "exit 1", "--adopt", "--json", *(["--keep"] if keep else []), code=4)
    assert ran.error["code"] == "changed_meanwhile"
    found = ran.json
    assert (found["winner"], found["adopted"], found["kept"]) == (1, None, keep)
    kept = {one["attempt"]: one["fork"] for one in found["attempts"]}
    assert (Path(found["attempts"][0]["directory"]) / "new").read_text() == "mine\n"
    assert (kept[2] is not None) == keep
    assert sorted(left(trying)[0]) == sorted(["main", *(fork for fork in kept.values() if fork is not None)])


@pytest.mark.parametrize("keep", [True, False])
def test_the_fork_stays_where_not_all_of_it_was_adopted(trying: Cli, keep: bool) -> None:
    trying.write(".gitignore", "zz\n")
    trying.write("zz", "not captured\n")
    command = "rm .gitignore; echo new > zz; echo more > more"
    ran = trying("experiment", command, "--adopt", *(["--keep"] if keep else []), code=4)
    assert "could not change 1 path: " in ran.err
    assert trying.tree() == {"a": b"before\n", "more": b"more\n", "zz": b"not captured\n"}
    (fork,) = [name for name in left(trying)[0] if name != "main"]
    with Sessions() as sessions:
        root = sessions.info(fork).root
    assert root is not None
    assert (Path(os.fsdecode(root)) / "zz").read_text() == "new\n"
    assert fork in ran.out


def test_a_score_by_a_function_of_a_file(trying: Cli) -> None:
    (trying.root.parent / "mine.py").write_text(
        "import os\ndef size(outcome):\n    return os.path.getsize(outcome.root + b'/a')\n"
    )
    function = f"{trying.root.parent}/mine.py:size"
    found = trying.json("experiment", "echo longer > a", "echo x > a", "--score-function", function, "--highest")
    assert [(one["attempt"], one["score"]) for one in found["attempts"]] == [(1, 7.0), (2, 2.0)]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["true", "--highest"],
        ["true", "false", "--with", "A=1"],
        ["true", "--timeout", "soon"],
        ["true", "--score", "echo 1", "--compare-by", "output"],
        ["true", "--name", "a", "--name", "b"],
    ],
)
def test_what_makes_no_sense(trying: Cli, words: list[str]) -> None:
    trying("experiment", *words, code=2)
    assert left(trying) == (["main"], [])


def test_without_a_session_one_begins(cli: Cli, tmp_path: Path) -> None:
    ran = cli("experiment", "echo 1 > made", "--adopt")
    assert "No session works here yet: " in ran.out
    assert (cli.root / "made").read_text() == "1\n"
    (begun,) = cli.json("session", "list")["sessions"]
    assert begun["id"] in ran.out
    again = cli("experiment", "true")
    assert "begins" not in again.out
    assert again.err == f"holdfast: this goes from session {begun['id']}, in {cli.root}; -s ID names another\n"
    assert cli("experiment", "-s", begun["id"], "true").err == ""
    assert cli.process("--json", "experiment", "true").stderr == b""
    assert "no session" in cli("experiment", "-s", "other", "true", code=3).err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_and_leaves_nothing(trying: Cli, number: signal.Signals, tmp_path: Path) -> None:
    command = f"echo $$ > {tmp_path}/shell; sleep 600"
    running = trying.start("experiment", command, "sleep 600", "--keep", "-j", "2")
    wait_until(lambda: (tmp_path / "shell").exists() and (tmp_path / "shell").read_text(), what="the attempt")
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert b"cancelled; nothing of it is left" in errors
    assert has_ended(int((tmp_path / "shell").read_text()))
    assert left(trying) == (["main"], [])
    assert trying.tree() == {"a": b"before\n"}


def test_what_a_killed_experiment_leaves_goes_with_the_next_command(trying: Cli, tmp_path: Path) -> None:
    command = f"echo $$ > {tmp_path}/shell; sleep 600"
    running = trying.start("experiment", command, "sleep 600")
    wait_until(lambda: (tmp_path / "shell").exists() and (tmp_path / "shell").read_text(), what="the attempt")
    running.kill()
    running.communicate(timeout=60)
    assert left(trying)[1] != []
    trying("experiment", "true")
    assert has_ended(int((tmp_path / "shell").read_text()))
    assert left(trying) == (["main"], [])


def test_what_no_checkpoint_holds_of_a_killed_experiment_stays(trying: Cli, tmp_path: Path) -> None:
    running = trying.start("experiment", f"mkfifo pipe; echo $$ > {tmp_path}/shell; sleep 600", "sleep 600")
    wait_until(lambda: (tmp_path / "shell").exists() and (tmp_path / "shell").read_text(), what="the attempt")
    running.kill()
    running.communicate(timeout=60)
    said = trying("session", "exec", "-s", "main", "true").err
    assert has_ended(int((tmp_path / "shell").read_text()))
    (kept,) = re.findall("the fork (.*) stays, because .* holds files that no checkpoint holds \\(pipe: ", said)
    assert f"`holdfast session delete {kept}` deletes it" in said
    assert left(trying)[0] == ["main", kept]
    assert "stays" not in trying("session", "exec", "-s", "main", "true").err
    trying("session", "delete", kept, "--yes")
    assert left(trying) == (["main"], [])


def test_a_terminal_shows_the_attempts_while_they_run(trying: Cli) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    words = [*INSTALLED, "experiment", "echo hello; sleep 0.7", "true", "--name", "slow", "--name", "quick"]
    running = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environ)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # nobody is at the other end any more
        pass
    out, _ = running.communicate(timeout=60)
    os.close(ours)
    assert running.returncode == 0
    assert b"slow" in shown
    assert b"running" in shown
    assert b"hello" in shown
    assert b"running" not in out
    assert b"The best is" in out


def test_in_a_pipe_there_is_no_progress(trying: Cli) -> None:
    done = trying.process("experiment", "echo hello", "--json")
    assert done.stderr == b""
    assert json.loads(done.stdout)["winner"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts in the file systems of all")
@pytest.mark.parametrize("provider", ["git", "holdfast"])
def test_what_an_attempt_has_mounted_in_its_fork_outlives_that(trying: Cli, provider: str, tmp_path: Path) -> None:
    """A fork that goes does not take along what was bound into it from elsewhere."""
    subprocess.run(["git", "init", "-q", trying.root], check=True)
    subprocess.run(["git", "-C", trying.root, "add", "a"], check=True)
    as_me = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "-C", trying.root, *as_me, "commit", "-q", "-m", "a"], check=True)
    trying("session", "start", "mounts", "--unsupervised")  # (what is supervised mounts nothing)
    mine = tmp_path / "mine"
    (mine / "inside").mkdir(parents=True)
    (mine / "inside/kept").write_text("kept")
    mine.chmod(0o755)
    binding = f"mkdir m && mount -t tmpfs none m && mkdir m/n && mount --bind {mine} m/n && test -e m/n/inside/kept"
    trying("experiment", "-s", "mounts", binding, "--provider", provider)
    assert (mine / "inside/kept").read_text() == "kept"
    assert mine.stat().st_mode & 0o777 == 0o755
    assert left(trying) == (["main", "mounts"], [])
    assert os.fsencode(mine.name) not in Path("/proc/self/mountinfo").read_bytes()


def test_a_scoring_function_that_exits_has_only_failed(trying: Cli) -> None:
    (Path(trying.home) / "rating.py").write_text("import sys\ndef rate(outcome):\n    sys.exit(7)\n")
    ran = trying("experiment", "echo x > a", "--score-function", f"{trying.home}/rating.py:rate", code=1)
    assert "the scoring function failed: SystemExit: 7" in ran.out
    assert left(trying) == (["main"], [])


def test_an_attempt_cannot_be_given_the_name_of_another_session(trying: Cli, tmp_path: Path) -> None:
    """What it leaves running would not be found."""
    command = f"sleep 600 & echo $! > {tmp_path}/sleeper; echo $HOLDFAST_SESSION"
    found = trying.json("experiment", command, "--with", "HOLDFAST_SESSION=main")
    assert found["attempts"][0]["stdout"].startswith("try-")
    assert has_ended(int((tmp_path / "sleeper").read_text()))
