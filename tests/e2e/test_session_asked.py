"""A session that is open is asked: from inside of it, from its hooks, from another terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.sessions.registry import Sessions
from holdfast.ipc import messages

from ..waiting import wait_until
from .test_sessions import HOLDFAST, Agent
from .test_sessions import agent as agent

ME = f"{sys.executable} -m holdfast"


class Open:
    """A session that another process has open, by a command that waits until it is let go of."""

    def __init__(self, agent: Agent, *words: str, ready: str = "ready") -> None:
        self.go = agent.tree.parent / "go"
        os.mkfifo(self.go)
        self.process = subprocess.Popen(
            [*HOLDFAST, *(words or ("session", "exec", f"touch {ready}; read line < {self.go}; echo $line"))],
            cwd=agent.tree,
            env=agent.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._ready = agent.tree / ready
        self.over = False

    def wait(self) -> None:
        wait_until(self._ready.exists, "the command to begin")

    def let_go(self) -> bytes:
        self.go.write_text("gone on\n")
        out, errors = self.process.communicate(timeout=30)
        self.over = True
        assert self.process.returncode == 0, errors
        return out


@contextmanager
def held(agent: Agent) -> Generator[Open]:
    found = Open(agent)
    try:
        found.wait()
        yield found
    finally:
        if found.process.poll() is None:
            os.killpg(found.process.pid, signal.SIGKILL)
        if not found.over:
            found.process.communicate()
        with suppress(OSError):  # (A command whose Holdfast was killed goes on, with its keeper.)
            os.close(os.open(found.go, os.O_WRONLY | os.O_NONBLOCK))
        found.go.unlink()


def tree_of(agent: Agent, point: dict[str, Any], path: str) -> bytes:
    return agent.try_to("cat", f"{point['tree']}:{path}").stdout


@pytest.mark.parametrize("supervised", [True, False])
def test_a_command_saves_the_session_that_it_runs_in(agent: Agent, tree: Path, supervised: bool) -> None:
    agent.run("start", "one", "--supervised" if supervised else "--unsupervised")
    agent.run("exec", "export A=before")
    script = f"export A=within; echo 1 > f; {ME} --json session checkpoint -m half; echo 2 > f"
    point = json.loads(agent.run("exec", script)["stdout"])
    assert tree_of(agent, point, "f") == b"1\n"
    assert point["message"] == "half"
    assert (tree / "f").read_text() == "2\n"
    assert [(one["seq"], one["exit_code"]) for one in agent.run("history")["commands"]] == [(2, 0), (1, 0)]
    agent.run("exec", "echo 3 > f")
    agent.run("checkout", point["hash"][:12])
    assert (tree / "f").read_text() == "1\n"
    assert agent.run("exec", "echo $A")["stdout"] == "before\n", "the shell as it was before the command"
    assert [one["seq"] for one in agent.run("history")["commands"]][-1] == 1


def test_a_command_that_runs_is_told_from_one_that_was_cut_short(agent: Agent) -> None:
    agent.run("start", "one")
    with held(agent):
        (line,) = agent.try_to("session", "history").stdout.splitlines()
    assert (b"running" in line, b"cut short" in line, b"changed files" in line) == (True, False, False)
    (line,) = agent.try_to("session", "history").stdout.splitlines()
    assert (b"running" in line, b"cut short" in line) == (False, True)


def test_what_adds_can_be_asked_for_inside_of_a_supervised_session(agent: Agent) -> None:
    agent.run("start", "one", "--supervised")
    words = ("branch here", "fork side --provider holdfast", "info", "history", "branches")
    said = agent.run("exec", " && ".join(f"{ME} --json session {one}" for one in words))
    assert said["exit_code"] == 0, said["stderr"]
    answers = [json.loads(line) for line in said["stdout"].splitlines()]
    assert (answers[0]["name"], answers[1]["id"]) == ("branches/one/here", "side")
    assert answers[2]["running"] is not None
    for word in ("branch --remove here", "share you"):
        refused = agent.try_to("session", "exec", f"{ME} --json session {word}")
        assert (refused.returncode, json.loads(refused.stderr)["error"]["code"]) == (4, "inside_run")
    assert agent.run("info")["shared"] == []
    assert [one["name"] for one in agent.run("branches")["branches"]] == ["branches/one/here"]


def test_all_that_can_be_asked_works_inside_of_an_unsupervised_session(agent: Agent) -> None:
    agent.run("start", "one", "--unsupervised")
    said = agent.run(
        "exec",
        " && ".join(
            f"{ME} --json session {words}"
            for words in (
                "branch here",
                "branch there",
                "branch --remove there",
                "fork side --provider holdfast",
                "share you",
                "info",
                "history",
                "branches",
            )
        ),
    )
    assert said["exit_code"] == 0, said["stderr"]
    answers = [json.loads(line) for line in said["stdout"].splitlines()]
    assert [one["name"] for one in answers[:3]] == ["branches/one/here", "branches/one/there", "branches/one/there"]
    assert (answers[3]["id"], answers[4]["shared"]) == ("side", ["you"])
    assert answers[5]["running"] is not None
    assert [one["seq"] for one in answers[6]["commands"]] == [1]
    assert len(answers[7]["branches"]) == 1
    assert agent.run("info")["shared"] == ["you"]
    assert agent.run("exec", "-s", "side", "pwd")["exit_code"] == 0
    assert agent.run("history", "-n", "1")["commands"][0]["exit_code"] == 0


@pytest.mark.parametrize("supervised", [True, False])
def test_what_would_wait_for_itself_is_refused_at_once(agent: Agent, supervised: bool) -> None:
    agent.run("start", "one", "--supervised" if supervised else "--unsupervised")
    agent.run("branch", "here")
    agent.run("fork", "side", "--provider", "holdfast")
    words = ("exec true", "checkout here", "delete one --yes", "merge side", "start one")
    script = "; ".join(f"{ME} --json session {one} && exit 1" for one in words) + "; exit 0"
    done = agent.try_to("session", "exec", script, HOLDFAST_LOCK_TIMEOUT="60")
    assert done.returncode == 0, done.stdout
    codes = [json.loads(line)["error"]["code"] for line in done.stderr.splitlines()]
    assert codes == (["inside_run"] * 5 if supervised else [*["own_session"] * 4, "session_exists"])
    assert agent.run("info")["busy"] is False


def test_another_terminal_asks_while_a_command_runs(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    with held(agent) as other:
        (socket_path,) = Path(agent.environment["HOLDFAST_HOME"]).glob("sessions/*/one.sock")
        assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
        (tree / "f").write_text("now")
        point = agent.run("checkpoint", "-m", "from beside")
        assert tree_of(agent, point, "f") == b"now"
        assert agent.run("branch", "beside")["name"] == "branches/one/beside"
        assert agent.run("fork", "side", "--provider", "holdfast")["id"] == "side"
        assert agent.run("info")["running"]["seq"] == 1
        assert agent.fails("checkpoint", "-s", "one", HOLDFAST_AGENT="you") == (4, "not_owner")
        assert agent.fails("exec", "true", HOLDFAST_LOCK_TIMEOUT="0") == (4, "session_busy")
        assert agent.run("checkout", "-s", "side", "branches/one/beside")["restored"]["skipped"] == []
        assert agent.fails("merge", "one", "-s", "side") == (4, "session_running")
        assert other.let_go() == b"gone on\n"
    assert not socket_path.exists()
    assert [(one["seq"], one["exit_code"]) for one in agent.run("history")["commands"]] == [(1, 0)]


def test_what_was_asked_for_is_done_although_the_session_is_let_go_of_meanwhile(agent: Agent) -> None:
    agent.run("start", "one")
    home = agent.environment["HOLDFAST_HOME"]
    with held(agent) as other, Sessions(home=home, agent="me") as sessions, sessions.use("one") as session:
        assert session.branch("before").name == "branches/one/before"
        other.let_go()
        assert session.checkpoint("behind").message == "behind"
        assert session.branch("behind").name == "branches/one/behind"
    assert [one["exit_code"] for one in agent.run("history")["commands"]] == [0]


def test_what_a_killed_holder_has_left_is_in_nobodys_way(agent: Agent) -> None:
    agent.run("start", "one")
    with held(agent) as other:
        agent.run("checkpoint", "-m", "while it runs")
        os.kill(other.process.pid, signal.SIGKILL)
        other.process.wait()
        assert agent.run("checkpoint", "-m", "behind it")["message"] == "behind it"
    assert [one["exit_code"] for one in agent.run("history")["commands"]] == [None]


def test_an_experiment_leaves_its_session_to_be_asked(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    go, ready = tree.parent / "go", tree.parent / "ready"
    os.mkfifo(go)
    attempt = f"touch {ready}; read line < {go}"
    running = subprocess.Popen(
        [*HOLDFAST, "--json", "experiment", attempt, "--provider", "holdfast"],
        cwd=tree,
        env=agent.environment,
        stdout=subprocess.PIPE,
    )
    try:
        wait_until(ready.exists, "the attempt to begin")
        assert agent.run("checkpoint", "-m", "meanwhile")["message"] == "meanwhile"
        (fork,) = agent.run("info")["forks"]
        assert agent.run("branch", "-s", fork, "half")["name"] == f"branches/{fork}/half", "and so do its attempts"
        assert agent.run("checkpoint", "-m", "again")["message"] == "again"
    finally:
        go.write_text("on\n")
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert json.loads(out)["winner"] == 1


HOOK = f"""#!/bin/sh
cat > /dev/null
case $1 in
  after_checkpoint) {ME} session branch "saved-$(date +%s%N)" ;;
  before_branch) {ME} session checkpoint -m 'by a hook' ;;
  before_fork) {ME} session info > /dev/null && {ME} session history > /dev/null && {ME} session exec true ;;
esac
"""


def test_hooks_use_the_session_that_they_are_run_for(agent: Agent, tree: Path) -> None:
    home = Path(agent.environment["HOLDFAST_HOME"])
    hook = tree.parent / "hook"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    events = ("after_checkpoint", "before_branch", "before_fork")
    lines = "".join(f'{event} = ["{hook}", "{event}"]\n' for event in events)
    (home / "config.toml").write_text(f"[hooks]\n{lines}")
    agent.run("start", "one")
    began = len(agent.run("branches")["branches"])
    done = agent.try_to("--json", "session", "checkpoint", "-m", "mine")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(agent.run("branches")["branches"]) == began + 1, "without hooks in its turn"
    agent.run("branch", "named")
    assert agent.run("exec", f"{ME} --json session checkpoint -m within")["exit_code"] == 0
    done = agent.try_to("--json", "session", "fork", "side", HOLDFAST_LOCK_TIMEOUT="60")
    assert done.returncode == 4, "a hook that would wait for itself is told so, and refuses by that"
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "hook_refused"
    assert b"each would wait for the other" in done.stderr or b"a run may look, and take checkpoints" in done.stderr


def test_what_is_started_in_a_session_asks_as_who_uses_it(agent: Agent, tree: Path) -> None:
    """Commands, attempts and hooks; also of those with whom it is shared, one after the other."""
    agent.run("start", "one", "--unsupervised", "--agent", "ann")
    agent.run("share", "bob", "-s", "one", "--agent", "ann")
    ask = f"{ME} session checkpoint -s one -m within"
    for who in ("ann", "bob", "ann"):
        done = agent.run("exec", "-s", "one", "--agent", who, f"{ask} && echo $HOLDFAST_AGENT")
        assert done["exit_code"] == 0, done["stderr"]
        assert done["stdout"].splitlines()[-1] == who
    assert "HOLDFAST_AGENT" not in agent.run("info", "-s", "one")["env"]
    done = agent.try_to("--json", "experiment", "-s", "one", "--agent", "bob", f"{ME} session checkpoint && {ask}")
    assert done.returncode == 0, done.stdout
    told = tree.parent / "told"
    hook = tree.parent / "hook"
    hook.write_text(f"#!/bin/sh\n{ask} 2>> {told}; echo $? $HOLDFAST_AGENT >> {told}\n")
    hook.chmod(0o755)
    config = Path(agent.environment["HOLDFAST_HOME"]) / "config.toml"
    config.write_text(f'[hooks]\nafter_checkpoint = ["{hook}"]\n')
    agent.run("checkpoint", "-s", "one", "--agent", "bob")
    assert told.read_text() == "0 bob\n"


ATTACK = """
import json, os, socket, struct, sys
from pathlib import Path

(door,) = Path(sys.argv[1]).glob("sessions/*/one.sock")
lock = door.with_suffix(".lock")
found = []
for flags in (None, os.O_RDONLY, os.O_PATH, os.O_RDWR):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    body = json.dumps({"agent": "me", "ask": {"op": "checkpoint", "message": "forged"}}).encode()
    try:
        connection.connect(os.fspath(door))
        fds = [] if flags is None else [os.open(lock, flags)]
        socket.send_fds(connection, [b"HFM1" + struct.pack("<I", len(body)) + body], fds)
        connection.shutdown(socket.SHUT_WR)
        answer = json.loads(connection.makefile("rb").read()[8:])
        found.append(answer["error"]["code"] if "error" in answer else "done")
    except OSError as error:
        found.append(error.strerror)
print(json.dumps(found))
"""


@pytest.mark.parametrize("isolation", ["none", "namespace"])
def test_i10_what_runs_supervised_cannot_ask(agent: Agent, tree: Path, tmp_path: Path, isolation: str) -> None:
    if isolation == "namespace" and agent.try_to("run", "--isolation", "namespace", "--", "true").returncode:
        pytest.skip("needs namespaces that an ordinary user may make, and bubblewrap")
    attack = tree / "attack.py"
    attack.write_text(ATTACK)
    agent.run("start", "one", "--unsupervised")
    with held(agent):
        before = agent.run("info")["checkpoint"]
        words = ["run", "--isolation", isolation, "--"]
        done = agent.try_to(*words, sys.executable, str(attack), agent.environment["HOLDFAST_HOME"])
        if isolation == "none":
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert found[:3] == ["inside_run"] * 3
            assert found[3] in (os.strerror(30), os.strerror(13)), "it cannot open the lock for writing"
        else:
            assert done.returncode != 0, "there is no home to look for a socket in"
        done = agent.try_to(*words, *HOLDFAST, "--json", "session", "checkpoint", "-m", "forged")
        assert done.returncode != 0
        assert isolation == "namespace" or b"inside_run" in done.stderr, "the home is not there at all"
        assert agent.run("info")["checkpoint"] == before
    inside = f"{ME} run --isolation {isolation} -- {ME} --json session branch forged"
    done = agent.try_to("session", "exec", inside)
    assert done.returncode != 0
    assert isolation == "namespace" or b"inside_run" in done.stderr
    assert agent.run("branches")["branches"] == []


GARBAGE = [
    b"",
    b"\0" * 100,
    messages.frame(b""),
    messages.frame(b"{}"),
    messages.frame(b'{"agent":"me","ask":{"op":"delete"}}'),
    messages.frame(b'{"agent":"me","ask":{"op":"ping"}}')[:-1],
    messages.frame(b'{"agent":"me","ask":{"op":"checkpoint","message":"' + b"x" * 70_000 + b'"}}'),
    messages.frame(b'{"agent":"me","ask":' + b"[" * 60_000),
    b"x" * 200_000,
]


def test_i12_garbage_costs_its_own_connection_alone(agent: Agent) -> None:
    agent.run("start", "one")
    with held(agent) as other:
        (door,) = Path(agent.environment["HOLDFAST_HOME"]).glob("sessions/*/one.sock")
        for garbage in GARBAGE:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(os.fspath(door))
                with suppress(BrokenPipeError):
                    connection.sendall(garbage)
                    connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    answer = connection.makefile("rb").read()
                    assert not answer or json.loads(answer[messages.HEADER_BYTES :])["error"]["code"] == "bad_format"
        assert agent.run("checkpoint", "-m", "still")["message"] == "still"
        assert other.let_go() == b"gone on\n"
