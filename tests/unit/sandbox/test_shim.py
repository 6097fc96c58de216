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
IGNORES_TERM = "trap '' TERM; echo $$; while :; do sleep 1000; done"


class Talk:
    """A shim that runs, and its host's end."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(shim_command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.of = self.process.stdin, self.process.stdout

    def send(self, kind: str, **fields: object) -> None:
        self.write(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self.to.write(data)
        self.to.flush()

    def hear(self) -> Message:
        line = self.of.readline()
        assert line.endswith(b"\n"), "the shim has ended"
        return json.loads(line)

    def start(self, identity: int, command: str, **fields: object) -> None:
        self.send("exec", id=identity, command=command, **fields)
        assert self.hear() == {"type": "step_started", "id": identity}

    def follow(self, identity: int) -> tuple[dict[str, bytearray], Message]:
        """What was written, by stream, and how it ended."""
        written = {"stdout": bytearray(), "stderr": bytearray()}
        while True:
            message = self.hear()
            assert message.pop("id") == identity
            if message.pop("type") == "step_completed":
                return written, message
            written[str(message["stream"])] += content(message)

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
    text = message.get("data")
    return text.encode() if isinstance(text, str) else base64.b64decode(str(message["data_base64"]))


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
    talk.send("exec", id=42, command="echo hello", cwd="/")
    assert [talk.hear() for _ in range(3)] == [
        {"type": "step_started", "id": 42},
        {"type": "output", "id": 42, "stream": "stdout", "data": "hello\n"},
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


def test_a_second_command_is_refused_and_the_first_goes_on(talk: Talk, fifo: Path) -> None:
    talk.start(1, f"cat {fifo}")
    talk.send("exec", id=2, command="true")
    refused = talk.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("error", 2, "busy")
    fifo.write_text("going on")
    assert talk.follow(1) == ({"stdout": b"going on", "stderr": b""}, {"exit_code": 0})
    assert talk.run(2, "true")[1] == {"exit_code": 0}


def test_the_directory(talk: Talk, tmp_path: Path) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    assert talk.run(1, "pwd", cwd=str(tmp_path))[0]["stdout"] == os.fsencode(tmp_path) + b"\n"
    assert talk.run(2, "pwd", cwd_base64=base64.b64encode(odd).decode())[0]["stdout"] == odd + b"\n"


@pytest.mark.parametrize("where", ["gone", "file"])
def test_a_directory_that_is_none(talk: Talk, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    talk.send("exec", id=1, command="true", cwd=str(tmp_path / where))
    refused = talk.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("error", 1, "no_directory")
    assert str(tmp_path / where) in str(refused["message"])
    assert talk.run(2, "true")[1] == {"exit_code": 0}


def test_variables_come_to_those_that_there_are(monkeypatch: pytest.MonkeyPatch, begin: Callable[..., Talk]) -> None:
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("CHANGED", "before")
    written, _ = begin().run(1, 'echo "$KEPT $CHANGED $NEW"', env={"CHANGED": "after", "NEW": "é\n"})
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
        ({"command": "x" * 32 * mmap.PAGESIZE}, "cannot_start"),
        ({"command": "a\0b"}, "bad_request"),
        ({"command": "\ud800"}, "bad_request"),
        ({"command": "true", "env": {"A=": ""}}, "bad_request"),
        ({"command": "true", "cwd_base64": "?"}, "bad_request"),
        ({"command": "true", "cwd": "\x7f" * 170_000}, "no_directory"),
    ],
)
def test_what_cannot_be_started_is_said(talk: Talk, fields: Message, code: str) -> None:
    talk.send("exec", id=1, **fields)
    refused = talk.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("error", 1, code)
    assert len(str(refused["message"])) <= shim.MAX_WORDS
    assert talk.run(2, "true")[1] == {"exit_code": 0}


# -- output -----------------------------------------------------------------------------------------------------------


def test_output_that_is_no_text_survives(talk: Talk) -> None:
    assert talk.run(1, r"printf 'a\377\000b\n'")[0]["stdout"] == b"a\xff\0b\n"


def test_a_character_is_not_cut_where_it_was_written_in_two(talk: Talk, fifo: Path) -> None:
    talk.start(1, rf"printf 'a\303'; read line < {fifo}; printf '\251b'")
    assert talk.hear()["data"] == "a"
    fifo.write_text("\n")
    assert talk.hear()["data"] == "éb"
    assert talk.hear()["exit_code"] == 0


def test_half_a_character_at_the_end_survives(talk: Talk) -> None:
    assert talk.run(1, r"printf 'a\342\202'")[0]["stdout"] == b"a\xe2\x82"


def test_long_text_stays_text(talk: Talk) -> None:
    talk.start(1, "yes 'äöü€🙂' | head -n 100000")
    text = ""
    while (message := talk.hear())["type"] == "output":
        text += str(message["data"])
    assert text == "äöü€🙂\n" * 100_000


def test_the_worst_output_fits_into_lines(talk: Talk) -> None:
    talk.start(1, r"head -c 1000000 /dev/zero | tr '\0' '\1'")
    length = 0
    while True:
        line = talk.of.readline()
        assert len(line) <= control_channel.MAX_LINE_BYTES
        message = json.loads(line)
        if message["type"] == "step_completed":
            break
        length += len(content(message))
    assert length == 1_000_000


def test_a_host_that_does_not_read_makes_the_command_wait(talk: Talk) -> None:
    """100 MB, and a host that begins to read when the shim has stopped to."""
    talk.start(1, "yes | head -c 100000000")
    now = talk.until_it_waits()
    assert now < 50_000_000
    written, end = talk.follow(1)
    assert len(written["stdout"]) == 100_000_000
    assert end == {"exit_code": 0}
    assert talk.peak() < 50_000_000


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
    pid = int(str(talk.hear()["data"]))
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
    assert talk.hear()["data"] == "ready\n"
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
        (b'{"type":"exec","id":NaN,"command":"true"}', None),
        (b'{"type":"exec","id":true,"command":"true"}', None),
        (b'{"type":"exec","id":9007199254740992,"command":"true"}', None),
        (b'{"type":"exec","id":1.0,"command":"true"}', None),
        (b'{"type":"step_started","id":7}', 7),
        (b'{"type":"exec","id":7}', 7),
        (b'{"type":"exec","id":7,"command":["true"]}', 7),
        (b'{"type":"exec","id":7,"command":"true","cwd":null}', 7),
        (b'{"type":"exec","id":7,"command":"true","env":[]}', 7),
        (b'{"type":"exec","id":7,"command":"true","env":{"A":1}}', 7),
        (b'{"type":"cancel"}', None),
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
    talk.write(b'x\n{"type":"exec","id":2,"command":"true"}\n')
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


def test_a_device_serves_as_well(tmp_path: Path) -> None:
    ours, its = os.openpty()
    tty.setraw(its)
    device = os.ttyname(its)
    with subprocess.Popen(shim_command(device)) as process, open(ours, "r+b", buffering=0) as end:
        end.write(b'{"type":"exec","id":1,"command":"echo hello"}\n')
        received = b""
        while b"step_completed" not in received:
            received += end.read(1 << 16)
        assert [json.loads(line)["type"] for line in received.splitlines()] == [
            "step_started",
            "output",
            "step_completed",
        ]
        process.terminate()
    os.close(its)
    assert process.returncode == 0


# -- what it is made of -----------------------------------------------------------------------------------------------


def test_it_needs_python_3_8_and_its_standard_library_alone() -> None:
    tree = ast.parse(Path(shim.__file__).read_text(), feature_version=(3, 8))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names


def test_both_ends_have_the_same_limits() -> None:
    assert (shim.MAX_LINE_BYTES, shim.MAX_ID) == (control_channel.MAX_LINE_BYTES, control_channel.MAX_ID)
