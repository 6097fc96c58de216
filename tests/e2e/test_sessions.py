"""The commands about sessions, as they are typed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..waiting import wait_until

HOLDFAST = [sys.executable, "-m", "holdfast"]


class Agent:
    """Somebody who works by the command line."""

    def __init__(self, tree: Path, home: Path) -> None:
        self.tree = tree
        self.environment = {**os.environ, "HOLDFAST_HOME": str(home), "HOLDFAST_AGENT": "me"}

    def try_to(self, *words: str, typed: str = "", **variables: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**self.environment, **variables}
        return subprocess.run(
            [*HOLDFAST, *words], cwd=self.tree, env=environment, input=typed.encode(), capture_output=True, check=False
        )

    def run(self, *words: str, **variables: str) -> Any:
        done = self.try_to("--json", "session", *words, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def fails(self, *words: str, **variables: str) -> tuple[int, str]:
        done = self.try_to("--json", "session", *words, **variables)
        return done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]["code"]


@pytest.fixture
def agent(tree: Path, home: Path) -> Iterator[Agent]:
    (tree / "sub").mkdir()
    found = Agent(tree, home)
    assert found.try_to("init").returncode == 0
    yield found
    assert found.try_to("verify", "--read-data").returncode == 0


def test_commands_of_a_session_follow_each_other_from_process_to_process(agent: Agent, tree: Path) -> None:
    assert agent.run("start", "one", "--env", "B=b")["root"] == str(tree)
    first = agent.try_to("session", "exec", "cd sub; export A=a; echo out; echo err >&2; exit 3")
    assert (first.returncode, first.stdout, first.stderr) == (3, b"out\n", b"err\n")
    second = agent.try_to("session", "exec", "--", "sh", "-c", 'echo "$PWD" $A $B', "--json")
    assert second.stdout == f"{tree}/sub a b\n".encode()
    assert agent.try_to("session", "exec", "wc -c", typed="four").stdout.strip() == b"4"
    done = agent.try_to("session", "exec", "--json", "--input", "fail", "--generated", "kill -9 $$")
    said = json.loads(done.stdout)
    assert (done.returncode, said["exit_code"], said["directory_after"]) == (137, 137, "sub")
    history = agent.run("history")["commands"]
    assert [(one["seq"], one["exit_code"], one["input"]) for one in history[:1]] == [(4, 137, "fail")]
    assert history[2]["command"] == "sh -c 'echo \"$PWD\" $A $B' --json"
    assert [one["command"] for one in agent.run("history", "-n", "1")["commands"]] == ["kill -9 $$"]


@pytest.mark.parametrize("name", [[], ["mine"]])
def test_what_is_begun_quietly_prints_its_name_alone_for_a_script(agent: Agent, name: list[str]) -> None:
    agent.run("start", "first")
    for verb in ("start", "fork"):
        done = agent.try_to("-q", "session", verb, *(f"{one}-{verb}" for one in name))
        made = done.stdout.decode().removesuffix("\n")
        assert (done.returncode, done.stderr) == (0, b"")
        assert agent.run("info", "-s", made)["id"] == made


def test_options_after_the_command_are_said_to_be_the_commands_where_it_fails(agent: Agent) -> None:
    agent.run("start", "one")
    said = b"--timeout after COMMAND is part of the command"
    for words in (["cd sub; true", "--timeout", "5"], ["ls", "--timeout=5"]):
        failed = agent.try_to("session", "exec", *words)
        assert failed.returncode
        assert said in failed.stderr
    assert said in agent.try_to("--json", "session", "exec", "ls", "--timeout", "5").stderr
    # It is no mistake where the command knows the option, nor where -- says whose it is.
    fine = agent.try_to("session", "exec", "echo", "--timeout", "5")
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, b"--timeout 5\n", b"")
    assert said not in agent.try_to("session", "exec", "--", "ls", "--timeout", "5").stderr


def test_a_variable_that_is_too_long_is_named_on_both_channels(agent: Agent) -> None:
    command = 'export BIG="$(head -c 200000 /dev/zero | tr "\\0" x)" OTHER=1'
    done = agent.try_to("--json", "session", "start", "one")
    done = agent.try_to("session", "exec", command)
    assert done.stdout == b""
    assert b"the variable BIG is too long to start a program with" in done.stderr
    done = agent.try_to("--json", "session", "exec", command)
    assert json.loads(done.stdout)["not_kept"] == ["BIG"]
    assert b"the variable BIG" in done.stderr
    done = agent.try_to("--json", "session", "exec", "echo ${BIG-none} $OTHER")
    said = json.loads(done.stdout)
    assert (said["not_kept"], said["stdout"], done.stderr) == ([], "none 1\n", b"")
    assert "BIG" not in agent.run("info")["env"]


def test_history_says_what_of_it_is_not_kept_any_more(agent: Agent) -> None:
    settings = {"COMMANDS": "1", "MIN_INTERVAL": "0", "MAX_CHECKPOINTS": "2", "MAX_HISTORY_BYTES": "1"}
    given = {f"HOLDFAST_SESSION_{name}": value for name, value in settings.items()}
    agent.run("start", "one", **given)
    for number in range(6):
        agent.run("exec", f"echo {number}", **given)
    said = agent.run("history")
    kept = len(said["commands"])
    assert 0 < kept < 6
    assert (said["commands"][0]["seq"], said["dropped"]) == (6, 6 - kept)
    assert agent.run("history", "-n", "1")["dropped"] is None
    lines = agent.try_to("session", "history").stdout.decode().splitlines()
    assert len(lines) == kept + 1
    assert f"{6 - kept} older command" in lines[-1]
    assert "session.max_history_bytes" in lines[-1]


def test_history_of_a_fork_is_whole_without_its_parent_and_a_bound_is_told_when_nothing_is_left(agent: Agent) -> None:
    agent.run("start", "one")
    for number in range(2):
        agent.run("exec", f"echo {number}")
    agent.run("fork", "side")
    agent.run("delete", "one")
    said = agent.run("history", "-s", "side")
    assert ([one["seq"] for one in said["commands"]], said["dropped"]) == ([2, 1], 0)
    given = {"HOLDFAST_SESSION_MAX_CHECKPOINTS": "2", "HOLDFAST_SESSION_MAX_HISTORY_BYTES": "1"}
    agent.run("checkpoint", "-s", "side", **given)
    said = agent.run("history", "-s", "side")
    assert (said["commands"], said["dropped"]) == ([], 2)
    assert b"2 older commands not kept any more (session.max_history_bytes)" in (
        agent.try_to("session", "history", "-s", "side").stdout
    )


def test_a_session_is_the_one_that_is_named_or_the_newest_of_ones_own(agent: Agent) -> None:
    assert agent.fails("info") == (3, "no_session")
    for name in ("one", "two"):
        agent.run("start", name)
    agent.run("start", "three", HOLDFAST_AGENT="another")
    assert agent.run("info")["id"] == "two"
    assert agent.run("info", HOLDFAST_SESSION="one")["id"] == "one"
    assert agent.run("info", "-s", "three", HOLDFAST_SESSION="one")["id"] == "three"
    assert [one["id"] for one in agent.run("list")["sessions"]] == ["one", "two", "three"]
    assert agent.try_to("-q", "session", "start", "four").stdout == b"four\n"
    assert agent.fails("start", "one") == (4, "session_exists")
    assert b"`holdfast session list --all`" in agent.try_to("session", "start", "one").stderr


def test_each_workspace_has_names_of_its_own(agent: Agent, tmp_path: Path) -> None:
    agent.run("start", "one")
    agent.run("fork", "two")
    (tmp_path / "other").mkdir()
    other = Agent(tmp_path / "other", Path(agent.environment["HOLDFAST_HOME"]))
    workspace = other.try_to("--json", "init")
    id_ = f"one.{json.loads(workspace.stdout)['workspace'][:8]}"
    assert other.run("start", "one")["id"] == id_
    assert other.fails("start", "one") == (4, "session_exists")
    for here, root in ((agent, agent.tree), (other, other.tree)):
        assert here.run("info", "-s", "one")["root"] == str(root)
        assert here.run("exec", "-s", "one", "pwd")["stdout"] == f"{root}\n"
        assert here.run("info", "-s", id_)["root"] == str(other.tree)
    fork = other.run("fork", "two", "-s", "one")["id"]
    assert (fork, other.run("info", "-s", "two")["id"]) == (id_.replace("one", "two"), fork)
    assert [other.try_to("session", "delete", name, "--yes").returncode for name in ("two", "one")] == [0, 0]
    assert sorted(one["id"] for one in agent.run("list", "--all")["sessions"]) == ["one", "two"]
    assert other.run("info", "-s", "one")["root"] == str(agent.tree), "that of another workspace is named as before"


def test_what_is_another_agents_is_refused_until_it_is_shared(agent: Agent) -> None:
    agent.run("start", "one")
    for words in (("exec", "true"), ("branch", "b"), ("checkout", "b"), ("fork",), ("checkpoint",), ("share", "x")):
        assert agent.fails(*words, "-s", "one", HOLDFAST_AGENT="other") == (4, "not_owner") or words[0] == "exec"
    assert agent.fails("exec", "-s", "one", "true", HOLDFAST_AGENT="other") == (4, "not_owner")
    assert agent.fails("delete", "one", HOLDFAST_AGENT="other") == (4, "not_owner")
    assert agent.run("share", "other")["shared"] == ["other"]
    assert agent.run("exec", "-s", "one", "echo hi", HOLDFAST_AGENT="other")["stdout"] == "hi\n"
    assert agent.run("share", "other", "--remove")["shared"] == []
    assert agent.fails("exec", "-s", "one", "true", HOLDFAST_AGENT="other") == (4, "not_owner")


def test_states_are_named_come_back_to_and_let_go_of(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    agent.run("exec", "echo 1 >file; cd sub; export A=1")
    assert agent.run("branch", "first", "-m", "one")["name"] == "branches/one/first"
    agent.run("exec", "echo 2 >../file; cd ..; export A=2")
    saved = agent.run("checkpoint", "-m", "two")
    back = agent.run("checkout", "first")
    assert ((tree / "file").read_text(), back["directory"]) == ("1\n", "sub")
    assert agent.run("exec", "echo $A")["stdout"] == "1\n"
    assert agent.run("checkout", saved["hash"][:12])["directory"] == "."
    assert (tree / "file").read_text() == "2\n"
    lines = agent.try_to("session", "branches").stdout.decode().splitlines()
    assert [line.split()[3:] for line in lines if "_auto" not in line] == [["first", "one"]]
    assert next(line.split("  ", 3)[3] for line in lines if "_auto" in line) == "before checkout of first"
    names = [one["name"] for one in agent.run("branches")["branches"]]
    assert names[-1] == "branches/one/first"
    assert len([name for name in names if name.startswith("branches/one/_auto/before-checkout-")]) == 2
    assert agent.run("branch", "first", "--remove")["removed"]
    assert agent.fails("checkout", "first") == (3, "no_state")


def test_a_fork_is_worked_in_taken_over_and_deleted(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    agent.run("exec", "echo 1 >file; cd sub; touch kept")
    made = agent.run("fork", "try")
    agent.run("exec", "-s", "try", "echo 2 >../file")
    assert ((tree / "file").read_text(), Path(made["root"], "file").read_text()) == ("1\n", "2\n")
    agent.run("checkpoint", "-s", "try")
    agent.run("checkout", "forks/try")
    assert (tree / "file").read_text() == "2\n"
    assert agent.run("delete", "try", "--dry-run") == {
        "id": "try",
        "deleted": False,
        "with_directory": True,
        "not_found": None,
        "now_at": None,
        "not_captured": [],
        "processes": [],
    }
    assert agent.fails("delete", "try") == (4, "declined")
    assert agent.run("delete", "try", "--yes")["deleted"]
    assert not Path(made["root"]).exists()
    gone = agent.run("delete", "one")
    assert (gone["deleted"], gone["with_directory"], gone["not_captured"]) == (True, False, [])
    assert (tree / "file").exists()


def test_a_command_is_ended_with_who_runs_it(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    # (Bash loses a signal that comes between its fork and the other program's start; that program does not.)
    words = [*HOLDFAST, "session", "exec", "cd sub; sh -c 'echo $$ >pid; exec sleep 60'"]
    process = subprocess.Popen(words, cwd=tree, env=agent.environment)
    pid = tree / "sub/pid"
    wait_until(lambda: pid.exists() and pid.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    last = agent.run("history")["commands"][0]
    assert (last["exit_code"], agent.run("info")["directory"]) == (143, "sub")


def test_a_killed_command_is_shown_as_one_that_nobody_knows_the_end_of(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    words = [*HOLDFAST, "session", "exec", "echo $$ >pid; exec sleep 60"]
    process = subprocess.Popen(words, cwd=tree, env=agent.environment)
    pid = tree / "pid"
    wait_until(lambda: pid.exists() and pid.read_text())
    process.kill()
    process.wait()
    os.killpg(int(pid.read_text()), signal.SIGKILL)
    assert agent.run("exec", "echo on")["stdout"] == "on\n"
    history = agent.run("history")["commands"]
    assert [(one["command"][:8], one["exit_code"]) for one in history] == [("echo on", 0), ("echo $$ ", None)]


def test_who_reads_no_more_ends_the_command(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    words = [*HOLDFAST, "session", "exec", "yes"]
    with subprocess.Popen(words, cwd=tree, env=agent.environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait() == 141
    assert agent.run("history")["commands"][0]["exit_code"] == 137


def test_time_is_limited(agent: Agent) -> None:
    agent.run("start", "one", "--timeout", "0.3", "--max-output", "2kB")
    done = agent.try_to("session", "exec", "sleep 60")
    assert (done.returncode, b"it took too long" in done.stderr) == (143, True)
    done = agent.try_to("session", "exec", "--timeout", "0", "--json", "sleep 0.4; head -c 5000 /dev/zero")
    said = json.loads(done.stdout)
    assert (said["exit_code"], said["timed_out"], said["truncated"], len(said["stdout"]) < 2100) == (
        0,
        False,
        True,
        True,
    )


def test_a_command_is_judged_without_being_run(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    agent.run("exec", "cd sub")
    assert agent.run("classify", "ls -la")["level"] == "safe"
    assert agent.run("classify", "rm -rf ../sub") == {"command": "rm -rf ../sub", "level": "risky"}
    assert (tree / "sub").exists()
    assert (
        agent.run("exec", "rm -rf /nowhere/at/all")["level"] == agent.run("classify", "rm -rf /nowhere/at/all")["level"]
    )


def test_what_makes_no_sense_is_refused(agent: Agent) -> None:
    assert agent.try_to("session").returncode == 2
    assert b"did you mean `holdfast session history`" in agent.try_to("session", "histori").stderr
    assert agent.fails("start", "a b") == (2, "usage")
    agent.run("start", "one")
    assert agent.fails("exec") == (2, "usage")
    assert agent.fails("exec", "--generated", "true") == (2, "usage")
    assert agent.fails("exec", " ") == (2, "usage")
    assert agent.fails("start", "two", "--timeout", "soon") == (2, "bad_config")
    assert agent.fails("start", "two", "--env", "1=2") == (2, "usage")


def test_info_and_list_show_what_made_it_where_it_works_and_its_newest_snapshot(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    fork = agent.run("fork", "side", "--provider", "holdfast")
    newest = agent.run("checkpoint", "-s", "side")["tree"]
    told = agent.try_to("session", "info", "-s", "side").stdout.decode()
    facts = dict(line.split(None, 1) for line in told.splitlines())
    assert facts["provider"] == "holdfast"
    assert facts["mode"] == "worktree"
    assert facts["path"] == fork["root"]
    assert facts["snapshot"].startswith(newest)
    assert facts["forks"] == "none"
    told = agent.try_to("session", "info", "-s", "one").stdout.decode()
    facts = dict(line.split(None, 1) for line in told.splitlines())
    assert facts["provider"].startswith("none")
    assert (facts["mode"], facts["path"], facts["forks"]) == ("in-place", str(tree), "side")
    lines = agent.try_to("session", "list", "--all").stdout.decode().splitlines()
    (side,) = [line for line in lines if line.startswith("side")]
    assert all(word in side for word in ("holdfast", "worktree", newest[:12], "from one", fork["root"]))
    (one,) = [line for line in lines if line.startswith("one")]
    assert all(word in one for word in ("none", "in-place", "1 fork", str(tree)))


@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_more_variables_than_a_program_can_have_take_none_away(agent: Agent, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    agent.run("start", "one", "--shell", shell)
    agent.run("exec", "export KEPT=1")
    agent.run("exec", "LARGE=$(head -c 200000 /dev/zero | tr '\\0' x); export LARGE")
    assert agent.run("exec", 'echo "$KEPT ${#LARGE} ${PATH:+path}"')["stdout"] == "1 0 path\n"


def test_a_machine_that_cannot_be_had_leaves_no_session(agent: Agent, home: Path) -> None:
    (home / "config.toml").write_text('[vm]\nimage = "none"\n')
    assert agent.fails("start", "one", "--isolation", "vm") == (3, "no_such_image")
    assert agent.fails("start", "one", "--isolation", "vm", "--unsupervised")[0] == 2
    refused = agent.try_to("session", "start", "one", "--isolation", "namespace")
    assert (refused.returncode, b"holdfast run --isolation namespace" in refused.stderr) == (1, True)
    assert agent.run("list")["sessions"] == []
    assert agent.run("start", "one")["config"]["isolation"] == "none"
    assert agent.fails("stop")[0] == 2
