"""A command at a channel that is connected with the streams and the terminal of its caller: by a real shim, at real
terminals, under a real shell.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ...waiting import wait_until

RUN = textwrap.dedent(f"""\
    #!{sys.executable}
    import os, subprocess, sys
    sys.path[:0] = {sys.path!r}
    from holdfast.model.errors import HoldfastError
    from holdfast.sandbox.channel import Channel, shim_command
    from holdfast.sandbox.terminal_command import run_at_channel
    shim = subprocess.Popen(shim_command("--grace", "0.1"), stdin=-1, stdout=-1, bufsize=0, start_new_session=True)
    if at := os.environ.get("SHIM"):
        open(at, "w").write(str(shim.pid))
    with Channel(shim.stdout, shim.stdin) as channel:
        try:
            code = run_at_channel(channel, 1, list(map(os.fsencode, sys.argv[1:])), os.getcwdb(), os.environb)
        except HoldfastError as error:
            print(error.code, file=sys.stderr)
            code = 99
    sys.exit(code)
    """)
NEEDS_BASH = pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A program that runs its arguments at a channel to a shim of its own."""
    path = tmp_path / "run"
    path.write_text(RUN)
    path.chmod(0o755)
    return str(path)


LONG = str(1_000_000 + os.getpid())
"""Seconds of a ``sleep`` that is that of these tests."""


def is_asleep() -> bool:
    """Whether it runs, and is not stopped."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cmdline").read_bytes() == b"sleep\0" + LONG.encode() + b"\0":
                return state(int(each.name)) == "S"
        except OSError:
            continue
    return False


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]


# -- without a terminal -----------------------------------------------------------------------------------------------


def piped(words: Sequence[str], **how: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, capture_output=True, start_new_session=True, timeout=60, check=False, **how)  # type: ignore[call-overload]


def test_bytes_go_through_as_they_are(run: str) -> None:
    """Megabytes of them, either way at once; what is no UTF-8 too."""
    data = os.urandom(3_000_000)
    done = piped([run, "cat"], input=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == data


def test_a_byte_that_begins_a_character_comes_at_once(run: str, tmp_path: Path) -> None:
    """What talks over pipes may wait for an answer to it."""
    words = [run, "sh", "-c", r"printf '\303'; read line; echo $line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\xc3"
        assert process.communicate(b"answer\n", timeout=60)[0] == b"answer\n"


def test_arguments_directory_and_variables_are_bytes(run: str, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(odd)
    words = [os.fsencode(run), b"sh", b"-c", b'pwd; printf "%s" "$1" "$ODD" >&2', b"sh", b"\xff\n"]
    done = piped(words, cwd=odd, env={**os.environb, b"ODD": b"\xfe"})  # type: ignore[arg-type]
    assert (done.stdout, done.stderr) == (odd + b"\n", b"\xff\n\xfe")


@pytest.mark.parametrize(
    ("words", "code", "err"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "exit 7"], 7, ""),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["no-such-program"], 127, "holdfast: cannot run no-such-program: No such file or directory\n"),
        (["/etc/passwd"], 126, "holdfast: cannot run /etc/passwd: Permission denied\n"),
    ],
)
def test_exit_codes(run: str, words: Sequence[str], code: int, err: str) -> None:
    done = piped([run, *words])
    assert (done.returncode, done.stderr.decode()) == (code, err)


def test_a_reader_that_goes_ends_the_writer(run: str) -> None:
    done = piped(["bash", "-c", f"{run} yes | head -n 2; echo ${{PIPESTATUS[@]}}"])
    assert done.stdout == b"y\ny\n141 0\n"


def test_a_command_need_not_read_what_comes(run: str) -> None:
    assert piped(["bash", "-c", f"yes | {run} head -n 1; echo ${{PIPESTATUS[@]}}"]).stdout == b"y\n141 0\n"


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_standard_streams_may_be_closed(run: str, closed: str) -> None:
    done = piped(["sh", "-c", f"{run} sh -c 'cat; echo out; echo err >&2; exit 3' {closed}"])
    assert done.returncode == 3
    assert done.stdout == (b"" if "1>" in closed else b"out\n")
    assert done.stderr == (b"" if "2>" in closed else b"err\n")


def test_while_one_stream_waits_the_other_goes_on(run: str) -> None:
    words = [run, "sh", "-c", "head -c 5000000 /dev/zero & echo told >&2; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"told\n"
        assert len(process.stdout.read()) == 5_000_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_is_passed_on(run: str, number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 5' {int(number)}; echo ready; while :; do sleep 0.01; done"
    with subprocess.Popen([run, "sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == b"got it\n"
        assert process.wait(60) == 5


def test_a_signal_that_ends_the_command_is_its_exit_code(run: str) -> None:
    words = [run, "sh", "-c", "echo ready; exec sleep 1000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait(60) == 143


def test_it_stops_as_the_command_does_and_both_go_on(run: str) -> None:
    words = [run, "sh", "-c", "echo $$; read line; echo $line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        os.kill(command, signal.SIGSTOP)
        wait_until(lambda: state(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state(command) != "T")
        assert process.communicate(b"on\n", timeout=60)[0] == b"on\n"
        assert process.returncode == 0


# -- at a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """A program that leads a session on a terminal of its own."""

    def __init__(self, words: Sequence[str], directory: Path) -> None:
        self.shown = ""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            try:
                os.chdir(directory)
                own = {"PS1": "$ ", "TERM": "dumb", "HISTFILE": "", "SHIM": str(directory / "shim")}
                os.execve(words[0], list(words), os.environ | own)
            finally:
                os._exit(99)
        self.resize(24, 80)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def command(self, line: str) -> None:
        """Type a line for the shell when it asks for one: what comes before, it may throw away."""
        self.expect("$ ")
        self.type(line + "\n")

    def expect(self, text: str) -> str:
        """Read until ``text`` has been shown, and forget what was shown before it, which is returned."""
        end = time.monotonic() + 30
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} was not shown: {self.shown!r}"
            try:
                self.shown += os.read(self.fd, 4096).decode()
            except OSError:
                raise AssertionError(f"{text!r} was not shown before the end: {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(text)
        return before

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.fd)

    def is_raw(self) -> bool:
        """As a command has it; a shell that asks for a line leaves the keys for signals on."""
        return not termios.tcgetattr(self.fd)[3] & termios.ISIG

    def end(self) -> int:
        """Read all, and wait for the program; its exit code."""
        try:
            while True:
                self.shown += os.read(self.fd, 4096).decode()
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def at_terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def at_terminal(*words: str) -> Terminal:
        started.append(Terminal(words, tmp_path))
        return started[-1]

    yield at_terminal
    for terminal in started:
        os.close(terminal.fd)
        try:
            os.kill(terminal.pid, signal.SIGKILL)
            os.waitpid(terminal.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def shell(at_terminal: Callable[..., Terminal], run: str) -> Terminal:
    terminal = at_terminal(shutil.which("bash") or "", "--norc", "--noprofile", "-i")
    # It says at once when a job has stopped: the state of the job's first thread changes before the shell knows.
    terminal.command("PATH=$PWD:$PATH; set -b")
    return terminal


def test_a_terminal_is_one_there_too(at_terminal: Callable[..., Terminal], run: str) -> None:
    terminal = at_terminal(run, "sh", "-c", "tty; test -t 0 && test -t 1 && test -t 2 && stty size && exit 4")
    assert terminal.end() == 4
    lines = terminal.shown.splitlines()
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:] == ["24 80"]


def test_what_is_typed_is_shown_once(at_terminal: Callable[..., Terminal], run: str) -> None:
    terminal = at_terminal(run, "sh", "-c", "echo ready; read line; echo got $line")
    terminal.expect("ready\r\n")
    wait_until(terminal.is_raw)
    terminal.type("hellp\x7fo\n")
    assert terminal.end() == 0
    assert terminal.shown == "hellp\b \bo\r\ngot hello\r\n"


def test_ctrl_d_is_the_end_of_what_is_typed(at_terminal: Callable[..., Terminal], run: str) -> None:
    terminal = at_terminal(run, "sh", "-c", "echo ready; wc -c")
    terminal.expect("ready")
    wait_until(terminal.is_raw)
    terminal.type("abc\n\x04")
    assert terminal.end() == 0
    assert terminal.shown.split()[-1] == "4"


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x1c", 131)])
def test_ctrl_c_ends_the_command(at_terminal: Callable[..., Terminal], run: str, key: str, code: int) -> None:
    terminal = at_terminal(run, "sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000")
    terminal.expect("ready")
    wait_until(terminal.is_raw)
    terminal.type(key)
    assert terminal.end() == code


@NEEDS_BASH
def test_a_shell_with_jobs_within(at_terminal: Callable[..., Terminal], run: str) -> None:
    terminal = at_terminal(run, "bash", "--norc", "--noprofile", "-i")
    terminal.command(f"sleep {LONG}")
    wait_until(is_asleep)
    terminal.type("\x1a")
    terminal.expect("Stopped")
    terminal.command("jobs; fg")
    terminal.expect("Stopped")
    wait_until(is_asleep)
    terminal.type("\x03")
    terminal.command("echo code=$?")
    terminal.expect("code=130")
    terminal.resize(33, 99)
    terminal.command("stty size")
    terminal.expect("33 99")
    terminal.command("exit 3")
    assert terminal.end() == 3


@NEEDS_BASH
def test_a_shell_outside_stops_it_and_continues_it(shell: Terminal) -> None:
    shell.command("run sh -c 'echo begun; read line; echo got $line; exit 6'")
    shell.expect("begun\r\n")
    wait_until(shell.is_raw)
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.command("jobs; fg")
    shell.expect("Stopped")
    shell.expect("exit 6'\r\n")
    wait_until(shell.is_raw)
    shell.type("more\n")
    shell.expect("more\r\ngot more\r\n")
    shell.command("echo code=$?")
    shell.expect("code=6")


@NEEDS_BASH
def test_stopped_and_continued_in_the_background_and_back(shell: Terminal, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    shell.command("run sh -c 'echo begun; read go < go; echo on; read line; echo got $line'")
    shell.expect("begun\r\n")
    wait_until(shell.is_raw)
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.command("bg")
    shell.command("echo > go")
    shell.expect("on\r\n")  # it writes in the background, but cannot read
    shell.expect("Stopped")
    shell.type("fg\n")
    shell.expect("fg\r\n")
    wait_until(shell.is_raw)
    shell.type("more\n")
    shell.expect("got more\r\n")


@NEEDS_BASH
def test_what_reads_in_the_background_stops(shell: Terminal) -> None:
    shell.command("run cat &")
    shell.expect("Stopped")
    shell.type("fg\n")
    shell.expect("fg\r\n")
    wait_until(shell.is_raw)
    shell.type("x\n\x04")
    shell.expect("x\r\nx\r\n")
    shell.command("echo code=$?")
    shell.expect("code=0")


@NEEDS_BASH
@pytest.mark.parametrize("line", ["run sleep {} | cat", "echo | run sleep {}", "run sleep {} > out"])
def test_in_a_pipeline_ctrl_c_and_ctrl_z_are_the_terminals(shell: Terminal, line: str) -> None:
    shell.command(line.format(LONG))
    wait_until(is_asleep)
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.command("fg")
    wait_until(is_asleep)
    shell.type("\x03")
    shell.command("echo co''de=${PIPESTATUS[@]}")
    shell.expect("code=")
    assert "130" in shell.expect("\r\n").split()


@NEEDS_BASH
def test_in_a_pipeline_the_terminal_is_there_for_what_asks_for_it(shell: Terminal) -> None:
    """As a pager does, whose standard input is what it shows."""
    shell.command("echo data | run sh -c 'cat; read key < /dev/tty; echo key=$key'")
    shell.expect("data\r\n")
    wait_until(shell.is_raw)
    shell.type("q\n")
    shell.expect("key=q\r\n")


@NEEDS_BASH
def test_what_is_typed_is_left_to_others_of_a_pipeline(shell: Terminal) -> None:
    shell.command("run echo data | sh -c 'cat; read key < /dev/tty; echo key=$key'")
    shell.expect("data\r\n")
    shell.type("q\n")
    shell.expect("key=q\r\n")


@NEEDS_BASH
def test_only_what_is_the_terminal_is_one(shell: Terminal) -> None:
    asks = 'for n in 0 1 2; do test -t $n && printf "$n " >> kinds; done; echo >> kinds'
    for redirected in ("", "< /dev/null", "> out", "2> err", "> out 2> err < /dev/null"):
        shell.command(f"run sh -c '{asks}' {redirected}; echo d''one")
        shell.expect("done")
    shell.command("cat kinds; echo th''at")
    kinds = shell.expect("that").splitlines()[-5:]
    assert [line.strip() for line in kinds] == ["0 1 2", "1 2", "0 2", "0 1", ""]


def test_a_raw_program_gets_every_key(at_terminal: Callable[..., Terminal], run: str) -> None:
    program = (
        "import os, sys, tty; tty.setraw(0); print('ready', end='', flush=True); keys = b''\n"
        "while len(keys) < 256: keys += os.read(0, 256)\n"
        "os.write(1, keys.hex().encode() + b'end')"
    )
    terminal = at_terminal(run, sys.executable, "-c", program)
    terminal.expect("ready")
    wait_until(terminal.is_raw)
    os.write(terminal.fd, bytes(range(256)))
    assert terminal.expect("end") == bytes(range(256)).hex()
    assert terminal.end() == 0


@pytest.mark.skipif(not shutil.which("vim"), reason="vim is not installed")
def test_an_editor(at_terminal: Callable[..., Terminal], run: str, tmp_path: Path) -> None:
    terminal = at_terminal(run, "vim", "-u", "NONE", "file")
    terminal.expect("file")
    wait_until(terminal.is_raw)
    terminal.type("ihello\x1b:wq\n")
    assert terminal.end() == 0
    assert (tmp_path / "file").read_text() == "hello\n"


def test_the_size_changes_while_it_runs(at_terminal: Callable[..., Terminal], run: str) -> None:
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done"
    terminal = at_terminal(run, "sh", "-c", script)
    terminal.expect("ready")
    wait_until(terminal.is_raw)
    terminal.resize(50, 132)
    terminal.expect("50 132")


@pytest.mark.parametrize("way", ["exit", "kill", "shim"])
def test_the_terminal_has_its_modes_again(
    at_terminal: Callable[..., Terminal], run: str, tmp_path: Path, way: str
) -> None:
    terminal = at_terminal(
        "/bin/sh", "-c", f"{run} sh -c 'stty -echo raw; echo ready; read line'; echo code=$?; read line"
    )
    before = terminal.modes()
    terminal.expect("ready")
    wait_until(terminal.is_raw)
    if way == "exit":
        terminal.type("\n")
        terminal.type("\x04")
    elif way == "kill":
        (pid,) = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children").read_text().split()
        os.kill(int(pid), signal.SIGHUP)
    else:
        os.kill(int((tmp_path / "shim").read_text()), signal.SIGKILL)
    code = terminal.expect("code=") and terminal.expect("\r\n")
    assert code == {"exit": "0", "kill": "129", "shim": "99"}[way]
    assert terminal.modes() == before


def test_the_terminal_is_hung_up(at_terminal: Callable[..., Terminal], run: str, tmp_path: Path) -> None:
    terminal = at_terminal(
        run, "sh", "-c", "trap 'echo hung up > told; exit' HUP; echo ready; while :; do sleep 0.01; done"
    )
    terminal.expect("ready")
    wait_until(terminal.is_raw)
    os.close(terminal.fd)
    terminal.fd = os.open(os.devnull, os.O_RDONLY)
    wait_until((tmp_path / "told").exists)


def test_much_output_at_a_terminal(at_terminal: Callable[..., Terminal], run: str) -> None:
    terminal = at_terminal(run, "seq", "100000")
    assert terminal.end() == 0
    assert terminal.shown.split() == [str(number) for number in range(1, 100_001)]


def test_a_terminal_that_is_not_that_of_the_session(run: str, tmp_path: Path) -> None:
    ours, its = os.openpty()
    words = [run, "sh", "-c", "read line; test -t 2 && echo got $line"]
    with subprocess.Popen(words, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        os.close(its)
        os.write(ours, b"x\n")
        shown = b""
        while b"got x\r\n" not in shown:
            assert select.select([ours], [], [], 30)[0]
            shown += os.read(ours, 4096)
        assert process.wait(60) == 0
    os.close(ours)
