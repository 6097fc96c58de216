"""Sessions whose commands, hooks and attempts are steps: `undo` takes back all that they change."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import holdfast
from holdfast.engine.running import session_tree
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.session_types import SessionConfig
from holdfast.supervisor.control.remote_service import connect

from ..waiting import has_ended, wait_until
from .test_session_shell import PROMPT
from .test_session_shell import begin as begin
from .test_sessions import HOLDFAST, Agent
from .test_sessions import agent as agent

if TYPE_CHECKING:
    from .test_session_shell import Begin


class Entry(NamedTuple):
    """What undo has to bring back of a path."""

    mode: int
    links: int
    modified_ns: int
    content: bytes


def everything(tree: Path) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for at, names, files in os.walk(tree):
        if ".holdfast" in names:
            names.remove(".holdfast")
        for name in names + files:
            path = Path(at, name)
            about = path.lstat()
            regular = stat.S_ISREG(about.st_mode)
            link = os.fsencode(os.readlink(path)) if path.is_symlink() else b""
            found[str(path.relative_to(tree))] = Entry(
                about.st_mode,
                about.st_nlink if regular else 0,
                about.st_mtime_ns if regular else 0,
                path.read_bytes() if regular else link,
            )
    return found


WORK = (
    "git init -q . && git add -A && git -c user.name=A -c user.email=a@example.org commit -qm one",
    "printf 'build/\\nnode_modules/\\n' > .gitignore",
    "mkdir -p node_modules/a/b build && seq 500 > node_modules/a/b/x && ln -s ../a node_modules/l",
    "export N=1; cd node_modules; ln a/b/x hard",
    "chmod 600 a/b/x; cd ..; tar cf build/all.tar node_modules",
    "rm -rf node_modules",
    "(sleep 0.1; echo late > late) & wait",
    "mv build sub/",
    "echo $N >> f; git add -A; git -c user.name=A -c user.email=a@example.org commit -qam two",
    "git checkout -q HEAD~1 2>&1; rm -rf sub/build",
    "git stash -q; git gc -q",
    "rm -rf .git .gitignore",
)


def test_every_command_is_a_step_and_is_taken_back_exactly(agent: Agent, tree: Path) -> None:
    """One by one, and forward again; with states that were saved in between."""
    (tree / "f").write_text("mine\n")
    agent.run("start", "one", "--supervised")
    states = [everything(tree)]
    for number, command in enumerate(WORK):
        agent.run("exec", command, HOLDFAST_SESSION_COMMANDS="5", HOLDFAST_SESSION_MIN_INTERVAL="0")
        if everything(tree) != states[-1]:
            states.append(everything(tree))
        if number % 4 == 2:
            agent.run("checkpoint")
    for state in reversed(states[:-1]):
        done = agent.try_to("undo")
        assert done.returncode == 0, done.stderr
        assert everything(tree) == state
    for state in states[1:]:
        done = agent.try_to("redo")
        assert done.returncode == 0, done.stderr
        assert everything(tree) == state
    assert agent.try_to("undo", "--step", f"1-{len(WORK)}").returncode == 0
    assert everything(tree) == states[0]


def test_a_step_that_left_nothing_but_a_time_is_named(agent: Agent, tree: Path) -> None:
    before = (tree / "sub").stat().st_mtime_ns
    agent.run("start", "one")
    agent.run("exec", "touch sub/x; rm sub/x")
    assert b"by step 1" in agent.try_to("undo").stdout.splitlines()[0]
    assert (tree / "sub").stat().st_mtime_ns == before


def test_a_session_is_supervised_unless_it_is_asked_not_to_be(agent: Agent, tree: Path) -> None:
    (tree / ".gitignore").write_text("ignored\n")
    (tree / "ignored").write_text("mine\n")
    assert agent.run("start", "recorded")["config"]["supervised"] is True
    agent.run("exec", "rm -rf ignored")
    assert b"bash -c rm -rf ignored" in agent.try_to("steps").stdout
    assert agent.try_to("undo").returncode == 0
    assert (tree / "ignored").read_text() == "mine\n"
    before = agent.try_to("steps").stdout
    assert agent.run("start", "plain", "--unsupervised")["config"]["supervised"] is False
    assert b"supervised   no: " in agent.try_to("session", "info", "-s", "plain").stdout
    agent.run("exec", "-s", "plain", "echo 1 > f")
    config = Path(agent.environment["HOLDFAST_HOME"]) / "config.toml"
    config.write_text("[session]\nsupervised = false\n")
    assert agent.run("start", "plain-too")["config"]["supervised"] is False
    agent.run("exec", "-s", "plain-too", "echo 2 > f")
    assert agent.try_to("steps").stdout == before
    assert agent.run("start", "other", "--supervised")["config"]["supervised"] is True


def test_a_command_ends_as_it_would_unsupervised(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    done = agent.try_to("session", "exec", "cat; echo out; echo err >&2; exit 7", typed="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in\nout\n", b"err\n")
    assert agent.try_to("session", "exec", "kill -9 $$").returncode == 137
    assert agent.try_to("session", "exec", "no-such-program").returncode == 127
    done = agent.try_to("session", "exec", "--timeout", "3", "echo begun; sleep 60")
    assert (done.returncode, done.stdout) == (143, b"begun\n")
    assert agent.run("history")["commands"][0]["timed_out"] is True
    agent.run("exec", "mkdir -p sub/deep; cd sub/deep; export A=a; rmdir ../deep")
    assert agent.run("exec", "pwd; echo $A ${HOLDFAST_RUN:+run}")["stdout"] == f"{tree}/sub\na run\n"
    assert not {"HOLDFAST_RUN", "HOLDFAST_SESSION"} & agent.run("info")["env"].keys()


def test_a_file_that_it_could_write_to_unseen_is_no_input(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    words = [*HOLDFAST, "session", "exec", "cat; echo more >&0"]
    (tree / "f").write_text("in\n")
    with (tree / "f").open("rb+") as given:
        done = subprocess.run(words, cwd=tree, env=agent.environment, stdin=given, capture_output=True, check=False)
    assert (done.returncode, (tree / "f").read_text()) == (4, "in\n")
    assert b"open for writing" in done.stderr
    with (tree / "f").open("rb") as given:
        done = subprocess.run(words, cwd=tree, env=agent.environment, stdin=given, capture_output=True, check=False)
    assert (done.stdout, (tree / "f").read_text()) == (b"in\n", "in\n")


def test_a_command_takes_checkpoints_of_the_workspace(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    me = " ".join(HOLDFAST)
    agent.run("exec", f"echo 1 > f; {me} checkpoint -m half; echo 2 > f")
    assert b"half" in agent.try_to("log").stdout
    done = agent.try_to("session", "exec", f"{me} undo")
    assert (done.returncode, b"--unsupervised" in done.stderr) == (4, True)
    assert (tree / "f").read_text() == "2\n"


def test_commands_belong_to_one_tree_as_long_as_something_of_it_lives(agent: Agent, tree: Path) -> None:
    """So a command can look into what an earlier one has left running, and end it."""
    agent.run("start", "one", "--supervised")
    first = agent.run("exec", "sleep 300 > /dev/null 2>&1 & echo $! > pid; echo $HOLDFAST_RUN")["stdout"]
    pid = int((tree / "pid").read_text())
    words = [*HOLDFAST, "session", "exec", "touch private"]
    subprocess.run(words, cwd=tree, env=agent.environment, umask=0o077, check=True)
    assert stat.S_IMODE((tree / "private").stat().st_mode) == 0o600, "what it is started with is its own"
    said = agent.run("exec", "echo $HOLDFAST_RUN; readlink /proc/$(cat pid)/fd/1; kill $(cat pid)")["stdout"]
    assert said.splitlines() == [first.strip(), "/dev/null"]
    wait_until(lambda: has_ended(pid))
    sessions = Path(agent.environment["HOLDFAST_HOME"]) / "sessions"
    wait_until(lambda: not _is_there(agent, first.strip()))
    assert agent.run("exec", "echo $HOLDFAST_RUN")["stdout"] != first
    assert list(sessions.glob("*/one.tree*")) == []
    assert [step.split()[3] for step in agent.try_to("steps").stdout.decode().splitlines()] == ["command"] * 2


IN_A_CONTAINER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))  # all is allowed
program = struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


IN_ONE = [sys.executable, "-c", IN_A_CONTAINER]


def _within(around: list[str], agent: Agent, tree: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [*around, *HOLDFAST, *words]
    return subprocess.run(command, cwd=tree, env=agent.environment, capture_output=True, check=False)


def test_a_tree_ends_also_where_all_processes_are_under_a_filter(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    done = _within(IN_ONE, agent, tree, "session", "exec", "grep Seccomp_filters /proc/self/status")
    assert (done.returncode, done.stdout.split()) == (0, [b"Seccomp_filters:", b"2"])
    sessions = Path(agent.environment["HOLDFAST_HOME"]) / "sessions"
    assert list(sessions.glob("*/one.tree*")) == []


def log_of(agent: Agent) -> Path:
    (log,) = Path(agent.environment["HOLDFAST_HOME"]).glob("**/undo")
    return log


def _is_there(agent: Agent, run: str) -> bool:
    keeper = connect(os.fsencode(log_of(agent)))
    if keeper is None:
        return False
    with keeper:
        try:
            keeper.connect_agent(run)[0].close()
        except HoldfastError:  # (the keeper may just have ended, too)
            return False
        return True


def test_an_open_session_goes_on_with_its_tree(tree: Path, home: Path) -> None:
    with Sessions(home=home, agent="me") as sessions:
        holdfast.init(tree, home=home).close()
        with sessions.start(tree, "one", config=SessionConfig(supervised=True)) as session:
            runs = set()
            for number in range(3):
                result = execute(session, f"echo {number} > f; echo $HOLDFAST_RUN").result
                assert result is not None
                runs.add(result.stdout)
            assert len(runs) == 1
            assert [step.paths for step in session.workspace.steps()] == [1, 1, 1]
            starter = execute(session, "echo $PPID").result
            assert starter is not None
            os.kill(int(starter.stdout), signal.SIGKILL)
            assert stdout(session, "echo on") == "on\n"
            session.workspace.undo()
        assert (tree / "f").read_text() == "1\n"


def test_a_command_that_stops_or_kills_what_started_it_is_ended(
    tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is not held up, the command does not go on unattended, and is never run a second time."""
    with Sessions(home=home, agent="me") as sessions:
        holdfast.init(tree, home=home).close()
        with sessions.start(tree, "one", config=SessionConfig(supervised=True)) as session:
            assert stdout(session, "echo on") == "on\n"
            monkeypatch.setattr(session_tree, "_ANSWER_SECONDS", 5.0)
            result = execute(session, "echo $PPID > starter; echo theirs > f; kill -STOP $PPID").result
            assert result is not None
            assert result.exit_code == 137
            starter = int((tree / "starter").read_text())
            wait_until(lambda: has_ended(starter))
            session.workspace.undo()
            assert not (tree / "f").exists()
            result = execute(session, "echo $$ >> times; sleep 0.5; kill -9 $PPID; sleep 300; touch went-on").result
            assert result is not None
            assert result.exit_code == 137
            (pid,) = map(int, (tree / "times").read_text().split())
            wait_until(lambda: has_ended(pid))
            assert not (tree / "went-on").exists()
            assert stdout(session, "echo on") == "on\n"
    ended = "the command was ended, because a process of its supervision was killed"
    assert [record.getMessage().startswith(ended) for record in caplog.records] == [True, True]
    caplog.clear()


ASKING = """
import sys
from holdfast.model.errors import HoldfastError
from holdfast.supervisor.control.remote_service import connect
try:
    connect(sys.argv[1].encode()).connect_agent(sys.argv[2])
except HoldfastError as error:
    print(error.code)
"""


@pytest.mark.parametrize("around", [[], IN_ONE], ids=["", "in a container"])
def test_what_is_supervised_elsewhere_has_no_command_started_in_a_session(
    agent: Agent, tree: Path, around: list[str]
) -> None:
    """What that changed would belong to no step of who asked for it. No filter of a container's changes that."""
    agent.run("start", "one", "--supervised")
    first = "sleep 300 > /dev/null 2>&1 & echo $! > server; echo $HOLDFAST_RUN"
    run = _within(around, agent, tree, "session", "exec", first).stdout.decode().strip()
    asked = agent.try_to("run", "--", sys.executable, "-c", ASKING, str(log_of(agent)), run)
    assert (asked.returncode, asked.stdout) == (0, b"inside_run\n")
    for where in ([], IN_ONE):
        done = _within(where, agent, tree, "session", "exec", "echo $HOLDFAST_RUN")
        assert (done.returncode, done.stdout.decode().strip()) == (0, run), "others go on with it"
    agent.run("exec", "kill $(cat server)")


def test_a_connection_is_for_runs_that_take_one(agent: Agent, tree: Path) -> None:
    words = [*HOLDFAST, "run", "--", "sh", "-c", "echo $HOLDFAST_RUN; read line"]
    with subprocess.Popen(words, cwd=tree, env=agent.environment, stdin=-1, stdout=-1) as run:
        assert run.stdout is not None
        id_ = run.stdout.readline().decode().strip()
        keeper = connect(os.fsencode(log_of(agent)))
        assert keeper is not None
        with keeper:
            for asked in ("no such run", id_):
                with pytest.raises(NotFoundError):
                    keeper.connect_agent(asked)
        run.communicate(b"\n")


def stdout(session: Session, command: str) -> str:
    result = execute(session, command).result
    assert result is not None
    return result.stdout


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("kill -SYS $$", True),
        ("sudo -n true; false", True),
        ("mount -t tmpfs none sub", True),
        ("/usr/bin/mount -t tmpfs none sub", True),
        ("printf 'x:\\n\\tkill 1\\n' > Makefile; make x", True),
        ("false /usr/bin/sudo.d", False),
        ("false src/mount", False),
        ("sudo() { :; }; sudo", False),
    ],
)
def test_what_supervision_may_have_refused_is_said(agent: Agent, command: str, named: bool) -> None:
    agent.run("start", "one", "--supervised")
    done = agent.try_to("session", "exec", command)
    assert (b"--unsupervised" in done.stderr) == named
    assert (b"holdfast: the command ended with SIGSYS, as every 32-bit program" in done.stderr) == ("SYS" in command)
    agent.run("start", "two", "--unsupervised")
    assert b"--unsupervised" not in agent.try_to("session", "exec", "-s", "two", command).stderr


NO_FILTERS = """
import os, struct, sys
from holdfast.supervisor.confinement import seccomp_notify as filters
refused = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, int(sys.argv[1]), 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
filters.give_up_privileges()
filters.install_unheard(refused)  # (from here on seccomp(2) is EPERM, as in some containers)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_where_the_kernel_cannot_supervise_a_session_works_by_saved_states(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    hook = f'before_checkpoint = ["/bin/sh", "-c", "echo hooked >> {tree.parent}/told"]'
    (Path(agent.environment["HOLDFAST_HOME"]) / "config.toml").write_text(f"[hooks]\n{hook}\n")
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]

    def without_filters(*words: str) -> subprocess.CompletedProcess[bytes]:
        start = [sys.executable, "-c", NO_FILTERS, str(number), *HOLDFAST, "session", *words]
        return subprocess.run(start, cwd=tree, env=agent.environment, capture_output=True, check=False)

    (tree / "sub/file").write_text("mine")
    done = without_filters("exec", "echo 1 > new; rm -rf sub; echo done")
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr
    assert b"this session records no steps" in done.stderr
    assert agent.try_to("steps").stdout == b""
    entry = agent.run("history")["commands"][0]
    assert entry["level"] == "risky"
    assert agent.try_to("cat", f"{entry['before']}:sub/file").returncode == 0, "it was saved before"
    done = without_filters("checkpoint")
    assert done.returncode == 0, done.stderr
    assert b"the changes of the hook before_checkpoint are no step" in done.stderr
    assert (tree.parent / "told").read_text().splitlines()[-1] == "hooked"
    assert not list(Path(agent.environment["HOLDFAST_HOME"]).glob("sessions/*/one.tree*"))


def test_a_session_of_another_home_works_by_saved_states_inside_of_a_run(agent: Agent, tree: Path) -> None:
    me = " ".join(HOLDFAST)
    inner = tree.parent / "inner"
    script = f"{me} init && {me} session start && {me} session exec 'echo 1 > made' && {me} undo && {me} redo"
    done = agent.try_to("run", "--", "env", f"HOLDFAST_HOME={inner}", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert b"this session records no steps" in done.stderr
    assert (tree / "made").read_text() == "1\n"
    assert agent.try_to("undo", "--run").returncode == 0
    assert not (tree / "made").exists()


def test_what_a_command_leaves_running_is_recorded_and_goes_on(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    go = tree.parent / "go"
    os.mkfifo(go)
    agent.run("exec", f"(read line < {go}; echo $line > late) > /dev/null 2>&1 &")
    agent.run("exec", "echo 2 > second")
    go.write_text("gone on\n")
    wait_until((tree / "late").exists)
    wait_until(lambda: (tree / "late").read_text() == "gone on\n")
    assert (tree / "second").read_text() == "2\n"


def test_a_fork_is_not_deleted_while_a_command_of_it_has_left_something_running(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    agent.run("fork", "two")
    agent.run("exec", "-s", "two", f"sleep 300 > /dev/null 2>&1 & echo $! > {tree}/pid; echo theirs > f")
    pid = int((tree / "pid").read_text())
    refused = agent.try_to("session", "delete", "two", "--yes")
    assert (refused.returncode, f"kill {pid}\n" in refused.stderr.decode()) == (4, True)
    assert agent.fails("delete", "two", "--dry-run") == (4, "left_running")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: agent.try_to("session", "delete", "two", "--yes").returncode == 0)


def test_what_stands_where_its_tree_is_noted_is_not_waited_for(agent: Agent, tree: Path) -> None:
    agent.run("start", "one")
    (folder,) = (Path(agent.environment["HOLDFAST_HOME"]) / "sessions").iterdir()
    os.mkfifo(folder / "one.tree.run")
    assert agent.run("exec", "echo on")["stdout"] == "on\n"


def test_a_killed_session_leaves_no_step_half_done(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    (tree / "f").write_text("mine\n")
    command = "echo theirs > f; echo $$ > pid; exec sleep 60"
    process = subprocess.Popen([*HOLDFAST, "session", "exec", command], cwd=tree, env=agent.environment)
    wait_until(lambda: (tree / "pid").exists() and (tree / "pid").read_text())
    process.kill()
    process.wait()
    assert agent.run("exec", "cat f")["stdout"] == "theirs\n"
    assert agent.run("history")["commands"][1]["exit_code"] is None
    assert agent.try_to("undo").returncode == 0
    assert (tree / "f").read_text() == "mine\n"


def test_a_tree_goes_on_after_its_holder_was_killed(agent: Agent, tree: Path) -> None:
    """The step of the command that was running is closed by who has the session next."""
    agent.run("start", "one", "--supervised")
    agent.run("exec", "sleep 300 > /dev/null 2>&1 & echo $! > server")
    command = "echo theirs > f; echo $$ > pid; exec sleep 60"
    process = subprocess.Popen([*HOLDFAST, "session", "exec", command], cwd=tree, env=agent.environment)
    wait_until(lambda: (tree / "pid").exists() and (tree / "pid").read_text())
    process.kill()
    process.wait()
    assert agent.run("exec", "cat f; kill $(cat server) && echo killed > f")["stdout"] == "theirs\n"
    for content in ("theirs\n", None):
        assert agent.try_to("undo").returncode == 0
        assert ((tree / "f").read_text() if (tree / "f").exists() else None) == content


def test_a_killed_keeper_is_said_and_the_next_command_takes_back_what_was_open(agent: Agent, tree: Path) -> None:
    agent.run("start", "one", "--supervised")
    (tree / "f").write_text("mine\n")
    command = "echo theirs > f; echo $$ > pid; exec sleep 60"
    words = [*HOLDFAST, "session", "exec", command]
    with subprocess.Popen(words, cwd=tree, env=agent.environment, stderr=subprocess.PIPE) as process:
        wait_until(lambda: (tree / "pid").exists() and (tree / "pid").read_text())
        found = subprocess.run(["pgrep", "-f", "holdfast.supervisor.keeper.keeper"], stdout=subprocess.PIPE, check=True)
        keepers = [int(number) for number in found.stdout.split() if _serves(int(number), agent)]
        assert keepers
        for keeper in keepers:
            os.kill(keeper, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 137
    assert b"the command was ended, because a process of its supervision was killed" in errors
    assert agent.run("exec", "cat f")["stdout"] == "mine\n"


def _serves(pid: int, agent: Agent) -> bool:
    home = agent.environment["HOLDFAST_HOME"]
    return any(home in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink())


def test_hooks_and_attempts_are_steps(agent: Agent, tree: Path) -> None:
    hook = tree.parent / "hook"
    hook.write_text("#!/bin/sh\necho hook >> hooked\n")
    hook.chmod(0o755)
    (tree / ".gitignore").write_text("ignored\n")
    agent.run("start", "one", "--supervised")
    config = Path(agent.environment["HOLDFAST_HOME"]) / "config.toml"
    config.write_text(f'[hooks]\nbefore_checkpoint = ["{hook}"]\n')
    agent.run("checkpoint")
    config.unlink()
    assert (tree / "hooked").read_text() == "hook\n"
    assert agent.try_to("undo").returncode == 0
    assert not (tree / "hooked").exists()
    (tree / "ignored").write_text("mine\n")
    attempt = "cp f kept; rm -f f; echo 1 > made"
    (tree / "f").write_text("f\n")
    done = agent.try_to("--json", "experiment", attempt, "--provider", "holdfast", "--keep")
    assert done.returncode == 0, done.stderr
    (fork,) = agent.run("info")["forks"]
    root = Path(agent.run("info", "-s", fork)["root"])
    assert (root / "made").exists()
    undone = subprocess.run([*HOLDFAST, "undo"], cwd=root, env=agent.environment, capture_output=True, check=False)
    assert undone.returncode == 0, undone.stderr
    assert ((root / "f").read_text(), (root / "made").exists()) == ("f\n", False)


LINES = (
    "echo 1 > l1",
    "echo 2 > l2; mkdir m; mkdir n",
    "for i in 1 2 3; do echo $i > k$i; mkdir d$i; done",
    "true",
    "git init -q . && git add -A; git -c user.name=A -c user.email=a@example.org commit -qm one",
    "echo 3 >> l1; rm -rf m .git | cat",
    "mv l1 n/l1; (echo by-another; cat l2) > n/both",
)


@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_each_line_is_a_step_whatever_programs_it_starts(begin: Begin, shell: str) -> None:
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    states = [everything(person.tree)]
    for line in LINES:
        terminal.type(f"{line}\r")
        terminal.expect(PROMPT)
        states.append(everything(person.tree))
    terminal.type("exit\r")
    assert terminal.end() == 0
    states.remove(states[LINES.index("true")])  # (which changed nothing, and is no step)
    assert len(person.run("steps")["steps"]) == len(states) - 1
    for state in reversed(states[:-1]):
        person.run("undo")
        assert everything(person.tree) == state
    for state in states[1:]:
        person.run("redo")
        assert everything(person.tree) == state


def test_a_step_that_is_begun_at_the_prompt_takes_in_the_lines_that_follow(begin: Begin) -> None:
    person = begin("bash")
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    before = everything(person.tree)
    me = f"{sys.executable} -m holdfast"
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    for line in (f"{me} step begin mine; echo 1 > l1", "echo 2 > l2", f"{me} step commit; echo 3 > l3", "echo 4 > l4"):
        terminal.type(f"{line}\r")
        terminal.expect(PROMPT)
    terminal.type("exit\r")
    assert terminal.end() == 0
    assert person.run("steps")["steps"][0]["command"] == ["mine"]
    person.run("undo")
    assert not (person.tree / "l4").exists()
    person.run("undo")
    assert not (person.tree / "l3").exists()
    assert (person.tree / "l2").exists()
    person.run("undo")
    assert everything(person.tree) == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_each_line_at_the_terminal_is_a_step(begin: Begin, shell: str) -> None:
    person = begin(shell, "--supervised")
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type("mkdir -p there/deep; touch there/deep/x; export A=1\r")
    terminal.expect(PROMPT)
    terminal.type("rm -rf there\r")
    terminal.expect(PROMPT)
    terminal.type("exit\r")
    assert terminal.end() == 0
    assert person.run("session", "info")["env"]["A"] == "1"
    assert not (person.tree / "there").exists()
    person.run("undo")
    assert (person.tree / "there/deep/x").exists()
