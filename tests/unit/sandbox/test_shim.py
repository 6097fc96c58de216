"""The shim as a process, spoken to as a host speaks to it: every test is a dialogue."""

from __future__ import annotations

import ast
import base64
import json
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.sandbox import shim
from holdfast.sandbox.channel import shim_command
from holdfast.testing.exit_pipe import ExitPipe
from holdfast.wire import control_channel

from ...waiting import wait_until

Message = dict[str, object]
TERMINAL = {"rows": 24, "columns": 80, "streams": ["stdin", "stdout", "stderr"], "foreground": True}
IGNORES_TERM = "trap '' TERM; echo $$; while :; do sleep 1000; done"


def encoded(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def run_of(identity: int, command: str, *, cwd: str | bytes = "/", **fields: object) -> Message:
    """The request that has a shell run ``command``."""
    words = ["/bin/sh", "-c", "--", command]
    return {"type": "exec", "id": identity, "argv": [encoded(word) for word in words], "cwd": encoded(cwd), **fields}


class Talk:
    """A shim that runs, and its host's end."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(shim_command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.of = self.process.stdin, self.process.stdout
        assert self.hear() == {"type": "hello", "version": 2}

    def send(self, kind: str, **fields: object) -> None:
        self.write(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self.to.write(data)
        self.to.flush()

    def hear(self) -> Message:
        line = self.of.readline()
        assert line.endswith(b"\n"), "the shim has ended"
        return json.loads(line)

    def exec(self, identity: int, command: str, **fields: object) -> None:
        self.write(json.dumps(run_of(identity, command, **fields)).encode() + b"\n")  # type: ignore[arg-type]

    def start(self, identity: int, command: str, **fields: object) -> None:
        self.exec(identity, command, **fields)
        assert self.hear() == {"type": "step_started", "id": identity}

    def follow(self, identity: int) -> tuple[dict[str, bytearray], Message]:
        """What was written, by stream, and how it ended."""
        written = {"stdout": bytearray(), "stderr": bytearray()}
        while True:
            message = self.hear()
            assert message.pop("id") == identity
            kind = message.pop("type")
            if kind == "step_completed":
                return written, message
            if kind == "output":
                written.setdefault(str(message["stream"]), bytearray()).extend(content(message))
                self.take(identity, message)

    def take(self, identity: int, message: Message) -> None:
        """Have room again for a piece of output."""
        amount = len(content(message)) + control_channel.PIECE_COST
        self.send("output_taken", id=identity, stream=message["stream"], bytes=amount)

    def run(self, identity: int, command: str, **fields: object) -> tuple[dict[str, bytearray], Message]:
        self.start(identity, command, **fields)
        return self.follow(identity)

    def hang_up(self) -> int:
        """Close the channel; the shim's exit code."""
        self.to.close()
        self.of.close()
        return self.process.wait()

    def until_it_waits(self) -> int:
        """Until the shim reads no more of what a command writes without end; how much it has read, 50 MB at most."""
        before, now = -1, 0
        while before < now < 50_000_000:
            select.select([], [], [], 0.2)  # a pause of its that is longer only makes this return early
            found = re.search(r"rchar: (\d+)", Path(f"/proc/{self.process.pid}/io").read_text())
            assert found
            before, now = now, int(found[1])
        return now

    def peak(self) -> int:
        """The most memory that the shim has had."""
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        assert found
        return int(found[1]) << 10


def content(message: Message) -> bytes:
    return base64.b64decode(str(message["data"]))


@pytest.fixture
def begin() -> Iterator[Callable[..., Talk]]:
    started: list[Talk] = []

    def begin(*arguments: str) -> Talk:
        started.append(Talk(*arguments))
        return started[-1]

    yield begin
    for talk in started:
        if talk.process.returncode is None:
            assert talk.hang_up() == 0


@pytest.fixture
def talk(begin: Callable[..., Talk]) -> Talk:
    return begin()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_starts_says_something_and_completes(talk: Talk) -> None:
    talk.exec(42, "echo hello")
    assert [talk.hear() for _ in range(3)] == [
        {"type": "step_started", "id": 42},
        {"type": "output", "id": 42, "stream": "stdout", "data": encoded("hello\n")},
        {"type": "step_completed", "id": 42, "exit_code": 0},
    ]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("nothing-like-this", 127),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
    ],
)
def test_exit_codes_and_signals_are_told_as_a_shell_does(talk: Talk, command: str, code: int) -> None:
    assert talk.run(1, command)[1] == {"exit_code": code}


def test_what_is_written_comes_in_order_by_stream(talk: Talk) -> None:
    numbers = "".join(f"{number}\n" for number in range(1, 20001)).encode()
    written, _ = talk.run(1, "seq 20000; seq 20000 >&2")
    assert written == {"stdout": numbers, "stderr": numbers}


def test_commands_run_one_after_the_other(talk: Talk) -> None:
    assert [talk.run(number, f"exit {number}")[1]["exit_code"] for number in range(1, 20)] == list(range(1, 20))


def test_commands_run_side_by_side(talk: Talk, fifo: Path) -> None:
    talk.start(1, f"cat {fifo}")
    assert talk.run(2, "echo second; exit 2") == ({"stdout": b"second\n", "stderr": b""}, {"exit_code": 2})
    fifo.write_text("going on")
    assert talk.follow(1) == ({"stdout": b"going on", "stderr": b""}, {"exit_code": 0})


def test_only_so_many_run_at_once(talk: Talk, fifo: Path) -> None:
    for number in range(1, shim.MAX_COMMANDS + 1):
        talk.start(number, f"read line < {fifo}")
    talk.exec(1000, "true")
    refused = talk.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("error", 1000, "busy")
    for number in range(1, shim.MAX_COMMANDS + 1):
        talk.send("cancel", id=number)
    ended = [talk.hear() for _ in range(shim.MAX_COMMANDS)]
    assert {message["exit_code"] for message in ended} == {143}
    assert talk.run(1000, "true")[1] == {"exit_code": 0}


def test_an_id_is_one_commands(talk: Talk) -> None:
    talk.start(1, "exec sleep 1000")
    talk.exec(1, "true")
    assert talk.hear()["code"] == "busy"
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 143}


def test_the_directory(talk: Talk, tmp_path: Path) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    assert talk.run(1, "pwd", cwd=str(tmp_path))[0]["stdout"] == os.fsencode(tmp_path) + b"\n"
    assert talk.run(2, "pwd", cwd=odd)[0]["stdout"] == odd + b"\n"


@pytest.mark.parametrize("where", ["gone", "file"])
def test_a_directory_that_is_none(talk: Talk, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    talk.exec(1, "true", cwd=str(tmp_path / where))
    refused = talk.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("error", 1, "no_directory")
    assert str(tmp_path / where) in str(refused["message"])
    assert talk.run(2, "true")[1] == {"exit_code": 0}


def test_variables_come_to_those_that_there_are(monkeypatch: pytest.MonkeyPatch, begin: Callable[..., Talk]) -> None:
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("CHANGED", "before")
    written, _ = begin().run(1, 'echo "$KEPT $CHANGED $NEW"', env=[encoded("CHANGED=after"), encoded("NEW=é\n")])
    assert written["stdout"] == "kept after é\n\n".encode()


def test_a_command_that_begins_with_a_dash_is_no_option(talk: Talk) -> None:
    written, end = talk.run(1, "-e; echo ran")
    assert (written["stdout"], end) == (b"ran\n", {"exit_code": 0})
    assert b"-e" in written["stderr"]


def test_a_command_has_nothing_to_read_and_nothing_of_the_channel(talk: Talk) -> None:
    written, _ = talk.run(1, "cat; ls -l /proc/self/fd")
    kept = re.findall(rb" (\d+) -> ", written["stdout"])
    assert set(kept) <= {b"0", b"1", b"2", b"3"}  # 3 is the directory that ls reads
    assert b"0 -> /dev/null" in written["stdout"]


def test_a_command_has_signals_as_a_shell_gives_them(talk: Talk) -> None:
    written, _ = talk.run(1, "cat /proc/self/status")
    masks = re.findall(rb"^Sig(?:Blk|Ign|Cgt):\s+(\w+)$", written["stdout"], re.MULTILINE)
    blocked, ignored, caught = (int(mask, 16) for mask in masks)
    assert (blocked, caught) == (0, 0)
    # (What ignores more is who has started these tests, such as nohup.)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGTERM - 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"argv": [encoded("/bin/sh"), encoded("x" * 32 * mmap.PAGESIZE)]}, "cannot_start"),
        ({"argv": [encoded("/bin/sh"), encoded("a\0b")]}, "bad_request"),
        ({"argv": []}, "bad_request"),
        ({"argv": [encoded("no-such-program")]}, "no_command"),
        ({"argv": [encoded("/etc/passwd")]}, "cannot_start"),
        ({"env": [encoded("A")]}, "bad_request"),
        ({"cwd": encoded("\x7f" * 170_000)}, "no_directory"),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_what_cannot_be_started_is_said(talk: Talk, fields: Message, code: str, terminal: bool) -> None:
    also = {"terminal": TERMINAL} if terminal else {}
    talk.write(json.dumps({**run_of(1, "true"), **also, **fields}).encode() + b"\n")
    refused = talk.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("error", 1, code)
    assert len(str(refused["message"])) <= shim.MAX_WORDS
    assert talk.run(2, "true")[1] == {"exit_code": 0}


# -- output -----------------------------------------------------------------------------------------------------------


def test_output_that_is_no_text_survives(talk: Talk) -> None:
    assert talk.run(1, r"printf 'a\377\000b\n'")[0]["stdout"] == b"a\xff\0b\n"


def test_half_a_character_comes_at_once(talk: Talk, fifo: Path) -> None:
    talk.start(1, rf"printf 'a\303'; read line < {fifo}; printf '\251b'")
    assert content(talk.hear()) == b"a\xc3"
    fifo.write_text("\n")
    assert content(talk.hear()) == b"\xa9b"
    assert talk.hear()["exit_code"] == 0


def test_output_fits_into_lines_and_waits_for_room(talk: Talk) -> None:
    """As much comes as there is room for, and each piece has its share of it; then more by word of the host."""
    talk.start(1, "head -c 1000000 /dev/zero")
    pieces, length, held = [], 0, 0
    while (message := talk.hear())["type"] == "output":
        assert len(content(message)) <= shim.PIECE_BYTES
        pieces.append(message)
        length += len(content(message))
        held += len(content(message)) + control_channel.PIECE_COST
        assert held <= control_channel.OUTPUT_WINDOW
        if held + control_channel.PIECE_COST >= control_channel.OUTPUT_WINDOW or length == 1_000_000:
            held = 0
            for piece in pieces:
                talk.take(1, piece)
            pieces.clear()
    assert length == 1_000_000


def test_a_stream_that_waits_holds_no_other_up(talk: Talk) -> None:
    talk.start(1, "head -c 1000000 /dev/zero")
    waiting = 0
    while waiting + control_channel.PIECE_COST < control_channel.OUTPUT_WINDOW:
        waiting += len(content(talk.hear())) + control_channel.PIECE_COST
    talk.exec(2, "echo through")
    assert talk.hear() == {"type": "step_started", "id": 2}
    assert talk.follow(2) == ({"stdout": b"through\n", "stderr": b""}, {"exit_code": 0})
    talk.send("cancel", id=1)
    talk.send("output_taken", id=1, stream="stdout", bytes=waiting)
    assert len(talk.follow(1)[0]["stdout"]) > 0


def test_output_that_nothing_reads_any_more(talk: Talk) -> None:
    talk.start(1, "yes; echo $? >&2")
    talk.hear()
    talk.send("output_close", id=1, stream="stdout")
    written, end = talk.follow(1)
    assert (end, b"141" in written["stderr"] or b"Broken pipe" in written["stderr"]) == ({"exit_code": 0}, True)


def test_a_host_that_does_not_read_makes_the_command_wait(talk: Talk) -> None:
    """20 MB, and a host that begins to read when the shim has stopped to."""
    talk.start(1, "yes | head -c 20000000")
    now = talk.until_it_waits()
    assert now < 10_000_000
    written, end = talk.follow(1)
    assert len(written["stdout"]) == 20_000_000
    assert end == {"exit_code": 0}
    assert talk.peak() < 50_000_000


# -- input ------------------------------------------------------------------------------------------------------------


def test_input_comes_in_pieces_and_ends(talk: Talk) -> None:
    talk.start(1, "cat; echo over", stdin=True)
    for piece in (b"a\xff", b"\n"):
        talk.send("input", id=1, stream="stdin", data=encoded(piece))
        heard = sorted([talk.hear(), talk.hear()], key=lambda message: str(message["type"]))
        assert heard[0] == {"type": "input_taken", "id": 1, "stream": "stdin", "bytes": len(piece)}
        assert content(heard[1]) == piece
    talk.send("input_end", id=1)
    assert talk.follow(1) == ({"stdout": b"over\n", "stderr": b""}, {"exit_code": 0})


def test_input_that_waits_is_passed_on_before_its_end(talk: Talk, fifo: Path) -> None:
    talk.start(1, f"read line < {fifo}; wc -c", stdin=True)
    for _ in range(2):  # as much as a pipe holds, and as much as the shim does
        talk.send("input", id=1, stream="stdin", data=encoded(bytes(shim.INPUT_WINDOW)))
    talk.send("input_end", id=1)
    fifo.write_text("\n")
    written, _ = talk.follow(1)
    assert int(written["stdout"]) == 2 * shim.INPUT_WINDOW


def test_more_input_than_there_is_room_for_is_refused(talk: Talk) -> None:
    talk.start(1, "exec sleep 1000", stdin=True)
    for _ in range(3):
        talk.send("input", id=1, stream="stdin", data=encoded(bytes(shim.INPUT_WINDOW)))
    while (message := talk.hear())["type"] == "input_taken":
        pass
    assert (message["type"], message["code"], message.get("id")) == ("error", "bad_request", None)
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 143}


def test_input_that_nothing_reads_any_more_is_told(talk: Talk) -> None:
    talk.start(1, "exec 0<&-; exec sleep 1000", stdin=True)
    assert talk.hear() == {"type": "input_closed", "id": 1, "stream": "stdin"}
    talk.send("input", id=1, stream="stdin", data=encoded("nothing becomes of it"))
    talk.send("cancel", id=1)
    assert talk.hear() == {"type": "step_completed", "id": 1, "exit_code": 143}


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_command(talk: Talk, number: signal.Signals) -> None:
    talk.start(1, f"trap 'echo got it; exit 3' {int(number)}; echo ready; while :; do sleep 0.01; done")
    talk.hear()
    talk.send("signal", id=1, signal=int(number), group=False)
    written, end = talk.follow(1)
    assert (written["stdout"], end) == (b"got it\n", {"exit_code": 3})


@pytest.mark.parametrize("number", [65, -1, 0, 1 << 40])
def test_a_signal_that_is_none_is_nothing(talk: Talk, number: int) -> None:
    talk.start(1, "read line", stdin=True)
    talk.send("signal", id=1, signal=number, group=True)
    talk.send("input_end", id=1)
    assert talk.follow(1)[1] == {"exit_code": 1}


@pytest.mark.parametrize("terminal", [None, TERMINAL])
def test_that_it_stops_and_goes_on_is_told(talk: Talk, terminal: Message | None) -> None:
    also = {} if terminal is None else {"terminal": terminal}
    talk.start(1, "echo ready; exec sleep 1000", **also)
    talk.hear()
    for _ in range(2):
        talk.send("signal", id=1, signal=int(signal.SIGSTOP), group=True)
        assert talk.hear() == {"type": "stopped", "id": 1, "signal": signal.SIGSTOP}
        talk.send("signal", id=1, signal=int(signal.SIGCONT), group=True)
        assert talk.hear() == {"type": "continued", "id": 1}
    talk.send("signal", id=1, signal=int(signal.SIGKILL), group=True)
    assert talk.follow(1)[1] == {"exit_code": 137}


# -- terminals --------------------------------------------------------------------------------------------------------


def test_a_terminal_has_its_size_and_its_streams(talk: Talk) -> None:
    mixed = {**TERMINAL, "rows": 7, "columns": 9, "streams": ["stdout"]}
    script = "stty size < /dev/tty; for n in 0 1 2; do test -t $n && echo $n >&2; done; cat >&2"
    talk.start(1, script, stdin=True, terminal=mixed)
    talk.send("input", id=1, stream="stdin", data=encoded("piped\n"))
    talk.send("input_end", id=1)
    written, end = talk.follow(1)
    assert (written["terminal"], written["stderr"], end) == (b"7 9\r\n", b"1\npiped\n", {"exit_code": 0})


def test_a_terminal_has_the_modes_that_are_asked_for(talk: Talk) -> None:
    ours, its = os.openpty()
    modes = termios.tcgetattr(its)
    modes[6][termios.VINTR] = b"\x07"
    wanted = {"modes": [*modes[:3], modes[3] & ~termios.ECHO], "characters": encoded(b"".join(modes[6]))}
    for end in (ours, its):
        os.close(end)
    written, _ = talk.run(1, "stty -a", terminal={**TERMINAL, **wanted})
    assert b"intr = ^G" in written["terminal"]
    assert b"-echo " in written["terminal"]


def test_what_is_typed_makes_signals_and_the_size_changes(talk: Talk) -> None:
    script = "trap 'stty size' WINCH; trap 'echo int; exit 4' INT; echo ready; while :; do sleep 0.01; done"
    talk.start(1, script, terminal=TERMINAL)
    assert content(talk.hear()) == b"ready\r\n"
    talk.send("resize", id=1, rows=33, columns=44)
    assert content(talk.hear()) == b"33 44\r\n"
    talk.send("resize", id=1, rows=-1, columns=1 << 50)  # nothing becomes of it
    talk.send("input", id=1, stream="terminal", data=encoded("\x03"))
    written, end = talk.follow(1)
    assert (written["terminal"], end) == (b"^Cint\r\n", {"exit_code": 4})


def test_who_reads_in_the_background_stops_until_it_is_given_the_terminal(talk: Talk) -> None:
    talk.start(1, "read line; echo got $line", terminal={**TERMINAL, "foreground": False})
    assert talk.hear() == {"type": "stopped", "id": 1, "signal": signal.SIGTTIN}
    talk.send("foreground", id=1, foreground=True)
    talk.send("signal", id=1, signal=int(signal.SIGCONT), group=True)
    assert talk.hear() == {"type": "continued", "id": 1}
    talk.send("input", id=1, stream="terminal", data=encoded("x\n"))
    written, end = talk.follow(1)
    assert (written["terminal"], end) == (b"x\r\ngot x\r\n", {"exit_code": 0})


def test_it_stops_by_ctrl_z_and_stays_in_the_background(talk: Talk) -> None:
    talk.start(1, "echo ready; read line", terminal=TERMINAL)
    talk.hear()
    talk.send("input", id=1, stream="terminal", data=encoded("\x1a"))
    while (message := talk.hear())["type"] != "stopped":
        pass
    assert message["signal"] == signal.SIGTSTP
    talk.send("foreground", id=1, foreground=False)
    talk.send("signal", id=1, signal=int(signal.SIGCONT), group=True)
    assert talk.hear()["type"] == "continued"
    assert talk.hear() == {"type": "stopped", "id": 1, "signal": signal.SIGTTIN}
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 143}


def test_all_that_was_written_to_a_terminal_is_passed_on_whatever_keeps_it_open(begin: Callable[..., Talk]) -> None:
    talk = begin("--drain", "0")
    written, end = talk.run(1, "sleep 1000 2>&1 & seq 10000; echo $! > /dev/stderr", terminal=TERMINAL)
    lines = written["terminal"].split()
    os.kill(int(lines[-1]), signal.SIGKILL)
    assert (len(lines), end) == (10_001, {"exit_code": 0, "output_open": True})


def test_what_leads_the_session_may_be_killed(talk: Talk) -> None:
    talk.start(1, "echo $PPID; exec sleep 1000", terminal=TERMINAL)
    os.kill(int(content(talk.hear())), signal.SIGKILL)
    assert talk.follow(1)[1] == {"exit_code": 137}
    assert talk.run(2, "exit 2", terminal=TERMINAL)[1] == {"exit_code": 2}


def test_a_command_with_a_terminal_ends_with_the_channel(begin: Callable[..., Talk], leash: ExitPipe) -> None:
    talk = begin("--grace", "0.1")
    talk.start(1, f"exec 3> {leash.path}; {IGNORES_TERM}", terminal=TERMINAL)
    talk.hear()
    assert talk.hang_up() == 0
    leash.until_all_are_gone()


def test_a_command_can_be_cancelled_while_the_host_does_not_read(talk: Talk, leash: ExitPipe) -> None:
    talk.start(1, f"exec 3> {leash.path}; yes")
    talk.until_it_waits()
    talk.send("cancel", id=1)
    leash.until_all_are_gone()
    assert talk.follow(1)[1] == {"exit_code": 143}


# -- what goes on after the command -----------------------------------------------------------------------------------


def test_what_keeps_the_output_open_does_not_hold_the_end_back(talk: Talk) -> None:
    written, end = talk.run(1, "sleep 1000 & echo $!")
    assert end == {"exit_code": 0, "output_open": True}
    os.kill(int(written["stdout"]), signal.SIGKILL)


def test_what_was_written_before_the_end_is_passed_on_whatever_keeps_the_output_open(
    begin: Callable[..., Talk],
) -> None:
    written, end = begin("--drain", "0").run(1, "sleep 1000 & echo $! >&2; head -c 60000 /dev/zero")
    assert end == {"exit_code": 0, "output_open": True}
    os.kill(int(written["stderr"]), signal.SIGKILL)
    assert len(written["stdout"]) == 60_000


def test_what_ends_soon_after_the_command_is_waited_for(begin: Callable[..., Talk]) -> None:
    written, end = begin("--drain", "600").run(1, "(sleep 0.1; echo late) & echo early")
    assert (written["stdout"], end) == (b"early\nlate\n", {"exit_code": 0})


def test_what_goes_on_writing_goes_on_living(talk: Talk, fifo: Path, leash: ExitPipe, tmp_path: Path) -> None:
    goes_on = f"read line < {fifo}; head -c 1000000 /dev/zero && echo wrote > {tmp_path}/result"
    _, end = talk.run(1, f"exec 3> {leash.path}; ({goes_on}) &")
    assert end == {"exit_code": 0, "output_open": True}
    fifo.write_text("\n")
    leash.until_all_are_gone()
    assert (tmp_path / "result").read_text() == "wrote\n"
    assert talk.run(2, "echo clean")[0]["stdout"] == b"clean\n"


def test_pipes_of_earlier_commands_do_not_pile_up(begin: Callable[..., Talk], fifo: Path) -> None:
    talk = begin("--drain", "0")
    talk.start(1, f"echo ready; read line < {fifo}")
    talk.hear()
    before = len(os.listdir(f"/proc/{talk.process.pid}/fd")) - 2
    fifo.write_text("\n")
    talk.follow(1)
    pids = [int(talk.run(number, "sleep 1000 & echo $!")[0]["stdout"]) for number in range(2, 60)]
    try:
        assert len(os.listdir(f"/proc/{talk.process.pid}/fd")) <= before + shim.MAX_LEFT
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_cancel_is_a_signal_to_end_with(talk: Talk) -> None:
    talk.start(1, "echo ready; exec sleep 1000")
    talk.hear()
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 143}


def test_who_ignores_it_is_killed(begin: Callable[..., Talk]) -> None:
    talk = begin("--grace", "0.1")
    talk.start(1, IGNORES_TERM)
    talk.hear()
    talk.send("cancel", id=1)
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 137}


def test_the_whole_group_is_killed(begin: Callable[..., Talk]) -> None:
    """The shell ends at once; below it is one that ignores the signal, and holds the pipe open."""
    talk = begin("--grace", "0.1", "--drain", "600")
    talk.start(1, "sh -c \"trap '' TERM; sh -c 'echo \\$\\$; while :; do sleep 1000; done'\" & wait")
    pid = int(content(talk.hear()))
    assert is_alive(pid)
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 143}
    wait_until(lambda: not is_alive(pid))  # the kernel takes a moment to end what was killed


def test_the_whole_group_has_time_to_end(begin: Callable[..., Talk]) -> None:
    """As long as it takes, and no longer."""
    talk = begin("--grace", "600")
    script = "trap 'sleep 0.2; echo cleaned up; exit' TERM; echo ready; while :; do sleep 0.01; done"
    talk.start(1, f'sh -c "{script}" & wait')
    talk.hear()
    talk.send("cancel", id=1)
    written, end = talk.follow(1)
    assert (written["stdout"], end) == (b"cleaned up\n", {"exit_code": 143})


def test_one_that_is_stopped_ends_too(begin: Callable[..., Talk]) -> None:
    talk = begin("--grace", "600")
    talk.start(1, "echo ready; kill -STOP $$")
    talk.hear()
    talk.send("cancel", id=1)
    assert talk.follow(1)[1] == {"exit_code": 143}


def test_cancel_also_ends_what_only_holds_the_output_open(begin: Callable[..., Talk], leash: ExitPipe) -> None:
    talk = begin("--grace", "600", "--drain", "600")
    talk.start(1, f"exec 3> {leash.path}; sleep 1000 3>&- & echo ready")
    assert content(talk.hear()) == b"ready\n"
    leash.until_all_are_gone()
    talk.send("cancel", id=1)
    assert talk.hear() == {"type": "step_completed", "id": 1, "exit_code": 0}


def test_to_cancel_what_does_not_run_is_nothing(talk: Talk) -> None:
    talk.send("cancel", id=1)
    assert talk.run(1, "true")[1] == {"exit_code": 0}
    talk.send("cancel", id=1)
    talk.start(2, "echo ready; exec sleep 0.1")
    talk.send("cancel", id=1)
    assert talk.follow(2)[1] == {"exit_code": 0}


def test_a_rollback_is_taken_note_of(talk: Talk) -> None:
    talk.send("rollback_notify", step_id=-2)
    assert talk.run(1, "true")[1] == {"exit_code": 0}


# -- lines that are no requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        (b"", None),
        (b"\xff", None),
        (b"{}", None),
        (b"[]", None),
        (b"[" * 100_000, None),
        (b"9" * 900_000, None),
        (b'{"type":"cancel","id":NaN}', None),
        (b'{"type":"cancel","id":true}', None),
        (b'{"type":"cancel","id":9007199254740992}', None),
        (b'{"type":"cancel","id":1.0}', None),
        (b'{"type":"cancel"}', None),
        (b'{"type":"step_started","id":7}', 7),
        (b'{"type":"exec","id":7}', 7),
        (b'{"type":"exec","id":7,"argv":"true","cwd":"Lw=="}', 7),
        (b'{"type":"exec","id":7,"argv":["?"],"cwd":"Lw=="}', 7),
        (b'{"type":"exec","id":7,"argv":[],"cwd":null}', 7),
        (b'{"type":"exec","id":7,"argv":[],"cwd":"Lw==","env":{"A":1}}', 7),
        (b'{"type":"exec","id":7,"argv":[],"cwd":"Lw==","stdin":1}', 7),
        (b'{"type":"exec","id":7,"argv":[],"cwd":"Lw==","terminal":{"rows":1}}', 7),
        (b'{"type":"input","id":7,"stream":"stdin","data":"\xc3\xa9"}', 7),
        (b'{"type":"signal","id":7,"signal":1e999,"group":true}', 7),
        (b'{"type":"resize","id":7,"rows":99999999999999999999,"columns":1}', 7),
        (b'{"type":"rollback_notify","step_id":"1"}', None),
    ],
)
def test_what_is_no_request_is_answered_and_survived(talk: Talk, line: bytes, identity: int | None) -> None:
    talk.write(line + b"\n")
    refused = talk.hear()
    assert (refused["type"], refused["code"], refused.get("id")) == ("error", "bad_request", identity)
    assert talk.run(1, "true")[1] == {"exit_code": 0}


def test_a_line_of_10_mb_is_answered_and_survived_in_little_memory(talk: Talk) -> None:
    talk.run(1, "true")
    before = talk.peak()
    talk.write(b"x" * 10_000_000)
    assert talk.hear()["code"] == "line_too_long"
    talk.write(b"x\n")
    talk.exec(2, "true")
    assert talk.hear() == {"type": "step_started", "id": 2}
    assert talk.follow(2)[1] == {"exit_code": 0}
    assert talk.peak() - before < 8_000_000


def test_a_host_that_only_sends_is_not_read_without_end(talk: Talk) -> None:
    """What it would be answered waits; so does what it sends, in the pipe."""
    os.set_blocking(talk.to.fileno(), False)
    sent = 0
    while sent < 10_000_000 and select.select([], [talk.to], [], 1)[1]:
        sent += os.write(talk.to.fileno(), b"?\n" * 1000)
    assert sent < 10_000_000
    assert talk.peak() < 40_000_000


# -- the end ----------------------------------------------------------------------------------------------------------


def test_the_command_ends_with_the_channel(begin: Callable[..., Talk], leash: ExitPipe) -> None:
    talk = begin("--grace", "0.1")
    talk.start(1, f"exec 3> {leash.path}; {IGNORES_TERM}")
    talk.hear()
    assert talk.hang_up() == 0
    leash.until_all_are_gone()


def test_the_command_ends_when_nobody_reads_any_more(begin: Callable[..., Talk], leash: ExitPipe) -> None:
    talk = begin("--grace", "0.1")
    talk.start(1, f"exec 3> {leash.path}; {IGNORES_TERM}")
    talk.hear()
    talk.of.close()
    leash.until_all_are_gone()
    assert talk.process.wait() == 0
    talk.to.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_command_ends_with_the_shim(begin: Callable[..., Talk], leash: ExitPipe, number: signal.Signals) -> None:
    talk = begin("--grace", "0.1")
    talk.start(1, f"exec 3> {leash.path}; yes & {IGNORES_TERM}")
    talk.until_it_waits()
    talk.process.send_signal(number)
    leash.until_all_are_gone()
    assert talk.hang_up() == 0


def test_a_device_serves_as_well() -> None:
    ours, its = os.openpty()
    tty.setraw(its)
    device = os.ttyname(its)
    with subprocess.Popen(shim_command("--device", device)) as process, open(ours, "r+b", buffering=0) as end:
        end.write(json.dumps(run_of(1, "echo hello")).encode() + b"\n")
        received = b""
        while b"step_completed" not in received:
            received += end.read(1 << 16)
        assert [json.loads(line)["type"] for line in received.splitlines()] == [
            "hello",
            "step_started",
            "output",
            "step_completed",
        ]
        process.terminate()
    os.close(its)
    assert process.returncode == 0


def test_a_device_whose_host_hangs_up_ends_the_command(leash: ExitPipe) -> None:
    ours, its = os.openpty()
    tty.setraw(its)
    device = os.ttyname(its)
    with subprocess.Popen(shim_command("--device", device, "--grace", "0.1")) as process:
        with open(ours, "r+b", buffering=0) as end:
            end.write(json.dumps(run_of(1, f"exec 3> {leash.path}; {IGNORES_TERM}")).encode() + b"\n")
            received = b""
            while b"output" not in received:
                received += end.read(1 << 16)
            os.close(its)
        leash.until_all_are_gone()
    assert process.returncode == 0


def test_a_device_is_waited_for_until_its_host_is_there() -> None:
    """As a port whose host's side is not open, a terminal that was hung up is ready for all at once."""
    ours, its = os.openpty()
    os.close(ours)
    words = [sys.executable, "-c", WAITING, shim.__file__]
    with subprocess.Popen(words, stdin=its, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        assert process.poll() is None
        process.terminate()
        assert process.communicate()[0] == b"False\n"
    os.close(its)


WAITING = """
import os, runpy, signal, sys
signals, told = os.pipe()
os.set_blocking(told, False)
signal.set_wakeup_fd(told)
signal.signal(signal.SIGTERM, lambda *_: None)
print("waiting", flush=True)
print(runpy.run_path(sys.argv[1])["await_host"](0, signals))
"""


# -- what it is made of -----------------------------------------------------------------------------------------------


def test_it_needs_python_3_8_and_its_standard_library_alone() -> None:
    tree = ast.parse(Path(shim.__file__).read_text(), feature_version=(3, 8))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names


def test_both_ends_have_the_same_limits() -> None:
    for name in ("VERSION", "MAX_LINE_BYTES", "MAX_ID", "INPUT_WINDOW", "OUTPUT_WINDOW", "PIECE_COST"):
        assert getattr(shim, name) == getattr(control_channel, name)
