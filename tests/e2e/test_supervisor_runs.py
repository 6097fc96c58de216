"""Whole programs under supervision: what they do, what they return, and that undo takes back each of their steps."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.ipc.private_socket import address, peer_of
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.processes.process_tree import descendants, end_descendants
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.service import StepInfo

from ..waiting import wait_until
from . import afterwards

ROOT = Path(__file__).parents[2]


class Place(NamedTuple):
    """A tree, its undo log, and how to run something in it."""

    tree: Path
    log: Path

    def words(self, *command: str, one_step: bool = False) -> list[str]:
        options = ["--one-step"] if one_step else []
        launch = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run"]
        return [*launch, "--log", str(self.log), "--root", str(self.tree), *options, "--", *command]

    def start(self, *command: str, one_step: bool = False, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words(*command, one_step=one_step), cwd=self.tree, text=True, env=environment(), **options
        )

    def run(self, *command: str, one_step: bool = False, code: int = 0, **options: Any) -> str:
        """What the command printed; its exit code is checked, and the keeper must not have complained."""
        with self.start(*command, one_step=one_step, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as run:
            out, err = run.communicate(timeout=120)
        assert run.returncode == code, (out, err, self.notes())
        assert self.notes() == ""
        return out

    def sh(self, script: str, **options: Any) -> str:
        return self.run("sh", "-c", script, **options)

    def notes(self) -> str:
        path = self.log / "keeper.log"
        return path.read_text() if path.exists() else ""

    def is_kept(self) -> bool:
        """Whether there is a keeper."""
        remote = connect(os.fsencode(self.log))
        if remote is not None:
            remote.close()
        return remote is not None

    def remote(self) -> RemoteUndoService:
        """The keeper."""
        remote = connect(os.fsencode(self.log))
        assert remote is not None
        return remote

    def service(self) -> AbstractContextManager[LocalUndoService]:
        return afterwards.service(self.log, self.tree)

    def steps(self) -> list[StepInfo]:
        with self.service() as service:
            return list(service.steps())

    def undo_all(self) -> None:
        """Undo every step: at once, as those that overlap cannot be undone alone."""
        with self.service() as service:
            if steps := [step.id for step in service.steps() if step.state == "done"]:
                assert service.undo(steps).conflicts == ()

    def undo_each(self) -> None:
        afterwards.undo_each(self.log, self.tree)


def environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def keeper_of(place: Place) -> int:
    """The process that has the undo log."""

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with address(os.fsencode(place.log), KEEPER_SOCKET) as path:
            connection.connect(path)
        return peer_of(connection).pid


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Generator[Place]:
    (tmp_path / "tree").mkdir()
    place = Place(tmp_path / "tree", tmp_path / "log")
    before = set(descendants(os.getpid()))
    yield place
    left = [pid for pid in descendants(os.getpid()) if pid not in before]
    try:
        wait_until(lambda: not place.is_kept())
    finally:
        end_descendants(before)
    assert not left


@contextmanager
def taken_back(place: Place, *, each: bool = False) -> Generator[dict[bytes, PathState]]:
    """What is done inside is undone afterwards, and the tree must be as it was."""
    before = photograph(place.tree)
    yield before
    if each:
        place.undo_each()
    else:
        place.undo_all()
    assert differences(before, photograph(place.tree)) == []


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


# What comes back ------------------------------------------------------------------------------------------------------


def test_a_child_of_the_agent_is_a_step(place: Place) -> None:
    (place.tree / "old").write_text("old")
    with taken_back(place, each=True):
        place.sh("mkdir d; cp old d/new; mv old moved; rm d/new; exit 0")
        steps = place.steps()
        assert [step.command[0] for step in steps] == [b"mkdir", b"cp", b"mv", b"rm"]
        assert [step.exit_code for step in steps] == [0, 0, 0, 0]
        assert {step.directory for step in steps} == {os.fsencode(place.tree)}
        assert sorted(os.listdir(place.tree)) == ["d", "moved"]


def test_what_the_agent_does_itself_is_a_step_and_a_whole_run_can_be(place: Place) -> None:
    with taken_back(place):
        place.sh("echo 1 > a; echo 2 > b")
        assert [(step.command[0], step.paths) for step in place.steps()] == [(b"sh", 2)]
        place.sh("touch c; touch d", one_step=True)
        assert len(place.steps()) == 2


def test_everything_below_a_child_is_its_step_even_when_orphaned(place: Place) -> None:
    with taken_back(place):
        place.sh(
            'sh -c \'echo 1 > a; (sh -c "echo 2 > b"; sleep 0.2; echo 3 > c) & setsid sh -c "echo 4 > d; sleep 0.3;'
            " echo 5 > e\" & '; while ! test -e e; do sleep 0.05; done; true"
        )
        steps = place.steps()
        assert [step.paths for step in steps if step.paths] == [5], steps


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137), ("true", 0)])
def test_exit_codes_and_signals_are_passed_on(place: Place, script: str, code: int) -> None:
    assert place.sh(f"echo before; {script}", code=code) == "before\n"


def test_what_cannot_be_run_says_so(place: Place) -> None:
    with place.start("/never/there", stderr=subprocess.PIPE) as run:
        _, err = run.communicate(timeout=60)
    assert run.returncode == 127
    assert "/never/there" in err
    (place.tree / "plain").write_text("no program")
    place.run("./plain", code=126)


def test_input_output_and_environment_are_the_commands_own(place: Place) -> None:
    with place.start("sh", "-c", "cat; echo $GIT_AUTHOR_NAME; pwd; echo e >&2", stdin=-1, stdout=-1, stderr=-1) as run:
        out, err = run.communicate("typed\n", timeout=60)
    assert (out, err) == (f"typed\na\n{place.tree}\n", "e\n")


# Real work ------------------------------------------------------------------------------------------------------------


@needs("git")
def test_git(place: Place) -> None:
    (place.tree / "kept").write_text("kept")
    with taken_back(place):
        place.sh(
            "set -e; git init -q .; git add -A; git commit -q -m one; echo 2 > second; mkdir d; echo 3 > d/third;"
            "git add -A; git commit -q -m two; git checkout -q HEAD~1; git checkout -q -;"
            "git gc -q; git status --short;"
            "git clone -q . d/clone; git -C d/clone checkout -q HEAD~1"
        )
        assert (place.tree / "d" / "clone" / "kept").read_text() == "kept"


@needs("tar")
def test_tar_and_rm(place: Place) -> None:
    for n in range(200):
        path = place.tree / f"d{n % 7}" / f"e{n % 3}" / f"file{n}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content {n}" * n)
    os.symlink("d1/e1", place.tree / "link")
    os.link(place.tree / "d0" / "e0" / "file0", place.tree / "hard")
    with taken_back(place, each=True):
        place.sh(
            "tar cf all.tar d* link hard; mkdir to; tar xf all.tar -C to; rm -rf d* link hard; mv to/* .; rmdir to"
        )
        assert len(place.steps()) == 6


@needs("make")
@needs("gcc")
def test_make(place: Place) -> None:
    (place.tree / "main.c").write_text('#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n')
    (place.tree / "Makefile").write_text("main: main.o\n\tgcc -o $@ $^\nmain.o: main.c\n\tgcc -c -o $@ $<\n")
    with taken_back(place):
        assert place.sh("make -s && ./main && touch main.c && make -s -j4 && ./main").count("built") == 2


def test_sqlite_in_wal_mode(place: Place) -> None:
    program = (
        "import sqlite3,sys; c=sqlite3.connect('db'); c.execute('pragma journal_mode=wal');"
        "c.execute('create table if not exists t (x)'); c.executemany('insert into t values (?)',"
        " [(n,) for n in range(5000)]); c.commit(); print(c.execute('select count(*) from t').fetchone()[0]);"
        "c.close()"
    )
    with taken_back(place, each=True):
        out = place.sh(f'for n in 1 2 3; do {sys.executable} -c "{program}"; done')
        assert out.split() == ["5000", "10000", "15000"]
        assert len(place.steps()) == 3


@needs("vim")
def test_an_editor(place: Place) -> None:
    (place.tree / "text").write_text("one\n")
    with taken_back(place):
        place.sh("vim -es -u NONE -c 's/one/two/' -c 'wq' text; cat text", code=0)
        assert (place.tree / "text").read_text() == "two\n"


@needs("node")
def test_node(place: Place) -> None:
    with taken_back(place):
        out = place.run(
            "node",
            "-e",
            "const fs=require('fs');fs.mkdirSync('a/b',{recursive:true});fs.writeFileSync('a/b/c','x');"
            "fs.appendFileSync('a/b/c','y');fs.renameSync('a/b/c','a/d');console.log(fs.readFileSync('a/d','utf8'))",
        )
        assert out == "xy\n"


def test_many_processes_at_once(place: Place) -> None:
    script = "for i in $(seq 40); do echo $i > $0.$i; mv $0.$i $0-$i; done; rm $0-*"
    before = photograph(place.tree)
    place.sh(f"for n in 1 2 3 4 5 6 7 8; do sh -c '{script}' d$n & done; wait")
    steps = place.steps()
    assert len(steps) == 8
    assert os.listdir(place.tree) == []
    with place.service() as service:
        service.undo([step.id for step in steps])  # they all changed the same directory
    assert differences(before, photograph(place.tree)) == []


def test_a_thousand_short_lives_leave_no_descriptors_behind(place: Place) -> None:
    script = "i=0; while [ $i -lt 1000 ]; do (: > f); i=$((i+1)); done; echo done; read end"
    with place.start("sh", "-c", script, stdin=-1, stdout=-1) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "done\n"
        keeper = keeper_of(place)
        wait_until(lambda: len(os.listdir(f"/proc/{keeper}/fd")) < 400)  # some threads that were seen, at most
        run.communicate("end\n", timeout=60)
    assert run.returncode == 0
    assert max(step.id for step in place.steps()) == 1000


# Ends -----------------------------------------------------------------------------------------------------------------


BUSY = "echo 1 > own; (while :; do echo x >> busy; done) & setsid sh -c 'while :; do echo y >> other; done' & read end"


def started(place: Place) -> tuple[subprocess.Popen[str], int]:
    """A run in the middle of its work, and its keeper."""
    run = place.start("sh", "-c", BUSY, stdin=-1, stdout=-1, stderr=-1)
    wait_until(lambda: (place.tree / "busy").exists() and (place.tree / "other").exists())
    return run, keeper_of(place)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_with_the_keeper_the_tree_ends_and_its_step_is_rolled_back(place: Place) -> None:
    before = photograph(place.tree)
    run, keeper = started(place)
    tree = descendants(run.pid)
    assert len(tree) >= 4
    os.kill(keeper, signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "keeper" in err
    assert not any(is_alive(pid) for pid in tree)
    with place.service():
        assert differences(before, photograph(place.tree)) == []


def test_with_the_launcher_the_tree_ends_and_its_steps_are_finished(place: Place) -> None:
    with taken_back(place):
        run, _ = started(place)
        tree = descendants(run.pid)
        run.kill()
        run.wait(60)  # (`communicate` ends the command's input: it would end, too, while the launcher is being killed)
        run.communicate(timeout=60)
        wait_until(lambda: not any(is_alive(pid) for pid in tree))
        assert {step.state for step in place.steps()} == {"done"}


def test_with_the_parent_the_tree_ends_too(place: Place) -> None:
    with taken_back(place):
        run, keeper = started(place)
        tree = descendants(run.pid)
        os.kill(tree[0], signal.SIGKILL)
        _, err = run.communicate(timeout=60)
        assert run.returncode == 1
        assert "ended" in err
        assert not any(is_alive(pid) for pid in tree if pid != keeper)
        wait_until(lambda: not is_alive(keeper))


def test_a_keeper_that_is_asked_to_end_finishes_its_steps(place: Place) -> None:
    with taken_back(place):
        run, keeper = started(place)
        os.kill(keeper, signal.SIGTERM)
        run.communicate(timeout=60)
        assert {step.state for step in place.steps()} == {"done"}
        assert place.notes() == ""


COUNTS = """
import signal
told = {signal.SIGCONT: "continued", signal.SIGUSR1: "asked"}
signal.pthread_sigmask(signal.SIG_BLOCK, told)
print("ready", flush=True)
for _ in range(5):
    print(told[signal.sigwait(told)], flush=True)
"""


def test_a_launcher_that_is_continued_passes_it_on_once(place: Place) -> None:
    """It is in the group that is continued, and would go on telling itself."""
    with place.start(sys.executable, "-c", COUNTS, stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        said: list[str] = []
        for number in (signal.SIGCONT, *[signal.SIGUSR1] * 4):
            run.send_signal(number)
            said.append(run.stdout.readline())
        assert said == ["continued\n", *["asked\n"] * 4]
        assert run.stdout.read() == ""


def test_a_signal_to_the_launcher_is_the_commands(place: Place) -> None:
    with place.start(
        "sh", "-c", "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done", stdout=-1
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGTERM)
        assert run.stdout.readline() == "got\n"
        assert run.wait(60) == 5


def test_what_lives_on_is_supervised_until_it_ends(place: Place) -> None:
    with taken_back(place):
        place.sh("(while ! test -e ../end; do sleep 0.05; done; echo 1 > late) > /dev/null 2>&1 &")
        assert place.is_kept()
        (place.tree.parent / "end").touch()
        wait_until(lambda: not place.is_kept())
        assert [step.paths for step in place.steps()] == [1]


MOVES = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE = 2
def move(old, new, flags=0):
    done = libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags)
    print(old, new, flags, errno.errorcode[ctypes.get_errno()] if done else "moved")
log, other = sys.argv[1:]
above = os.path.dirname(log)
os.makedirs(other + "/" + os.path.basename(log))
for old, new in ((above, other), (other, above), (above, above + "2"), (log, other + "/x"), (other + "/x", log)):
    for flags in (0, EXCHANGE):
        move(old, new, flags)
"""


@pytest.mark.parametrize("where", ["tree/.holdfast/undo", "beside/log"])
@pytest.mark.parametrize("other", ["tree/other", "elsewhere"])
def test_what_is_out_of_reach_cannot_be_moved_from_either_side(tmp_path: Path, where: str, other: str) -> None:
    """I7, I14."""
    (tmp_path / "tree").mkdir()
    place = Place(tmp_path / "tree", tmp_path / where)
    before = photograph(place.tree)
    out = place.run(sys.executable, "-c", MOVES, str(place.log), str(tmp_path / other))
    assert len(out.splitlines()) == 10
    assert "moved" not in out
    assert (place.log / "version").exists()
    place.undo_all()
    left = differences(before, photograph(place.tree))
    assert [line for line in left if not line.startswith(("b'': mtime", "b'.holdfast"))] == []


def test_two_runs_share_a_keeper_and_are_told_apart(place: Place) -> None:
    with taken_back(place):
        first = place.start("sh", "-c", "touch a; read end; touch c", stdin=-1)
        wait_until((place.tree / "a").exists)
        place.sh("touch b")
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait(60) == 0
        assert [step.command[1] for step in place.steps()] == [b"a", b"b", b"c"]


def test_undo_goes_through_the_keeper_while_a_run_goes_on(place: Place) -> None:
    (place.tree / "old").write_text("old")
    before = photograph(place.tree)
    with place.start("sh", "-c", "rm old; mkdir d; touch d/done; read end", stdin=-1, stdout=-1) as run:
        wait_until((place.tree / "d" / "done").exists)
        with place.remote() as remote:
            wait_until(lambda: [step.state for step in remote.steps()] == ["done"] * 3)
            for step in (3, 2, 1):
                assert remote.undo([step]).conflicts == ()
            assert differences(before, photograph(place.tree)) == []
            with remote.quiet():
                assert remote.held() == []
        run.communicate("end\n", timeout=60)
        assert run.returncode == 0


# Terminals ------------------------------------------------------------------------------------------------------------


class Terminal:
    """A program that is the leader of a session on a terminal of its own."""

    def __init__(self, place: Place, *words: str) -> None:
        self.shown = ""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            try:
                os.chdir(place.tree)
                os.execve(words[0], words, environment() | {"PS1": "$ ", "TERM": "dumb", "HISTFILE": ""})
            finally:
                os._exit(99)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def command(self, line: str) -> None:
        """Type a line for the shell when it asks for one: what comes before, it may throw away."""
        self.expect("$ ")
        self.type(line + "\n")

    def expect(self, text: str) -> None:
        """Read until ``text`` has been shown, and forget what was shown before it."""
        end = time.monotonic() + 20
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} was not shown: {self.shown!r}"
            try:
                self.shown += os.read(self.fd, 4096).decode()
            except OSError:
                raise AssertionError(f"{text!r} was not shown before the end: {self.shown!r}") from None
        self.shown = self.shown.partition(text)[2]

    def sleeps(self) -> None:
        """Wait until a ``sleep`` below the program has the terminal, and is not stopped."""
        wait_until(lambda: any(map(self._sleeps, descendants(self.pid))))

    def _sleeps(self, pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return False
        group, terminal = state[2], state[5]
        return command_of(pid).startswith(b"sleep\0") and state[0] != "T" and group == terminal

    def code(self) -> int:
        os.set_blocking(self.fd, False)

        def is_over() -> bool:
            try:
                os.read(self.fd, 4096)
            except OSError:
                pass
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return found is not None

        wait_until(is_over)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


BASH = shutil.which("bash") or "bash"


@needs("bash")
def test_an_interactive_shell_with_jobs(place: Place) -> None:
    with taken_back(place):
        terminal = Terminal(place, *place.words(BASH, "--norc", "--noprofile", "-i"))
        terminal.command("echo 1 > one; sleep 50")
        terminal.expect("sleep 50")
        terminal.sleeps()
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.command("jobs; fg")
        terminal.expect("Stopped")
        terminal.expect("sleep 50")
        terminal.sleeps()
        terminal.type("\x03")
        terminal.command("echo code=$?")
        terminal.expect("code=130")
        fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        terminal.command("stty size")
        terminal.expect("33 99")
        terminal.command("sh -c 'echo 2 > two' & wait; exit 3")
        assert terminal.code() == 3
        assert sorted(os.listdir(place.tree)) == ["one", "two"]


@needs("bash")
def test_a_shell_outside_stops_and_continues_it(place: Place) -> None:
    with taken_back(place):
        terminal = Terminal(place, BASH, "--norc", "--noprofile", "-i")
        terminal.command(shlex.join(place.words("sh", "-c", "echo u''p; read x; echo got $x > file; cat file")))
        terminal.expect("\nup")
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.command("fg")
        terminal.expect("cat file")
        terminal.type("word\n")
        terminal.expect("got word")
        terminal.command("exit 0")
        assert terminal.code() == 0


@needs("bash")
def test_a_command_that_does_not_stop_keeps_the_terminal(place: Place) -> None:
    terminal = Terminal(place, BASH, "--norc", "--noprofile", "-i")
    terminal.command(shlex.join(place.words("sh", "-c", "trap '' TSTP; echo u''p; read x; echo got $x; exit 5")))
    terminal.expect("\nup")
    terminal.type("\x1aword\n")
    terminal.expect("got word")
    terminal.command("exit $?")
    assert terminal.code() == 5


def test_an_interrupt_ends_the_command_and_is_its_code(place: Place) -> None:
    terminal = Terminal(place, *place.words("sh", "-c", "sleep 50"))
    terminal.sleeps()
    terminal.type("\x03")
    assert terminal.code() == 130
    terminal = Terminal(place, *place.words("sh", "-c", "trap 'echo caught; exit 4' INT; sleep 50"))
    terminal.sleeps()
    terminal.type("\x03")
    terminal.expect("caught")
    assert terminal.code() == 4


def test_without_a_shell_above_nothing_stays_stopped(place: Place) -> None:
    terminal = Terminal(place, *place.words("sh", "-c", "echo up; read x; echo got $x"))
    terminal.expect("up")
    terminal.type("\x1aword\n")
    terminal.expect("got word")
    assert terminal.code() == 0


def test_a_terminal_that_hangs_up_ends_the_command(place: Place) -> None:
    with taken_back(place):
        terminal = Terminal(place, *place.words("sh", "-c", "echo 1 > file; echo up; sleep 50"))
        terminal.expect("up")
        os.close(terminal.fd)
        wait_until(lambda: os.waitid(os.P_PID, terminal.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        os.waitpid(terminal.pid, 0)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


_MANY = """
import os
os.mkdir("many")
for number in range(20_000):
    os.close(os.open(f"many/{number}", os.O_WRONLY | os.O_CREAT))
"""


def test_a_step_right_behind_a_large_one_is_not_taken_for_a_part_of_it(place: Place) -> None:
    """What the large one left is known before the next begins, however long it takes to write it down."""
    before = photograph(place.tree)
    place.run(
        sys.executable,
        "-c",
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {_MANY!r}], check=True)\n"
        "subprocess.run(['sh', '-c', 'echo more >> many/19999; rm many/0'], check=True)\n",
    )
    with place.service() as service:
        large, small = service.steps()
        assert (large.paths, small.paths) == (20_001, 2)
        assert service.undo([small.id]).conflicts == ()
        assert service.undo([large.id]).conflicts == ()
    assert differences(before, photograph(place.tree)) == []
