"""The host's end of a control channel: with a shim, and with what only says that it is one."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import ChannelError, HoldfastError, NotFoundError, UsageError
from holdfast.sandbox.channel import Channel, shim_command
from holdfast.testing.exit_pipe import ExitPipe
from holdfast.wire.control_channel import (
    MAX_LINE_BYTES,
    OUTPUT_WINDOW,
    PIECE_COST,
    StepCompleted,
    StepStarted,
    exec_request,
)

from ...waiting import wait_until

HELLO = b'{"type":"hello","version":2}\n'
STARTED = b'{"type":"step_started","id":1}\n'
OUTPUT = b'{"type":"output","id":1,"stream":"stdout","data":"eA=="}\n'
COMPLETED = b'{"type":"step_completed","id":1,"exit_code":0}\n'
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1000; done"


def ignore(_stream: str, _data: bytes) -> None:
    """Whoever does not want to know."""


class Shim(subprocess.Popen[bytes]):
    """A real one, and the channel to it."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(shim_command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.stdout is not None
        assert self.stdin is not None
        self.channel = Channel(self.stdout, self.stdin)


@pytest.fixture
def begin() -> Iterator[Callable[..., Shim]]:
    started: list[Shim] = []

    def begin(*arguments: str) -> Shim:
        started.append(Shim(*arguments))
        return started[-1]

    yield begin
    for shim in started:
        shim.channel.close()
        shim.wait()


@pytest.fixture
def channel(begin: Callable[..., Shim]) -> Channel:
    return begin().channel


# -- with a shim ------------------------------------------------------------------------------------------------------


def test_a_command_runs_in_its_directory_with_its_variables(channel: Channel, tmp_path: Path) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    written: list[tuple[str, bytes]] = []
    done = channel.execute(
        1, 'pwd; echo "$A"', cwd=odd, env={"A": "é"}, on_output=lambda stream, data: written.append((stream, data))
    )
    assert done == StepCompleted(id=1, exit_code=0)
    assert {stream for stream, _ in written} == {"stdout"}
    assert b"".join(data for _, data in written) == odd + b"\n" + "é\n".encode()


def test_commands_run_one_after_the_other_from_any_thread(channel: Channel) -> None:
    codes: list[int] = []

    def run(number: int) -> None:
        codes.append(channel.execute(number, f"exit {number}", cwd=b"/", on_output=ignore).exit_code)

    for number in (1, 2, 3):
        thread = threading.Thread(target=run, args=(number,))
        thread.start()
        thread.join()
    assert codes == [1, 2, 3]


def test_what_holds_the_output_open_is_told(channel: Channel) -> None:
    written = bytearray()
    done = channel.execute(1, "sleep 1000 & echo $!", cwd=b"/", on_output=lambda _, data: written.extend(data))
    os.kill(int(written), signal.SIGKILL)
    assert done.output_open


def test_a_directory_that_is_gone_is_named_and_the_next_command_runs(channel: Channel) -> None:
    with pytest.raises(NotFoundError, match="/is/gone") as caught:
        channel.execute(1, "true", cwd=b"/is/gone", on_output=ignore)
    assert caught.value.code == "no_directory"
    assert channel.execute(2, "exit 4", cwd=b"/", on_output=ignore).exit_code == 4


def test_what_the_kernel_does_not_start_is_said(channel: Channel) -> None:
    with pytest.raises(HoldfastError, match="too long") as caught:
        channel.execute(1, "x" * 32 * mmap.PAGESIZE, cwd=b"/", on_output=ignore)
    assert caught.value.code == "cannot_start"
    assert channel.execute(2, "exit 4", cwd=b"/", on_output=ignore).exit_code == 4


def test_what_cannot_be_sent_changes_nothing(channel: Channel) -> None:
    with pytest.raises(UsageError):
        channel.execute(1, "x" * MAX_LINE_BYTES, cwd=b"/", on_output=ignore)
    assert channel.execute(1, "exit 4", cwd=b"/", on_output=ignore).exit_code == 4


def test_a_second_command_at_once_runs_too(channel: Channel) -> None:
    codes: list[int] = []

    def meanwhile(_stream: str, _data: bytes) -> None:
        codes.append(channel.execute(2, "exit 4", cwd=b"/", on_output=ignore).exit_code)

    assert channel.execute(1, "echo; exit 5", cwd=b"/", on_output=meanwhile).exit_code == 5
    assert codes == [4]


def test_commands_of_many_threads_run_side_by_side(channel: Channel, tmp_path: Path) -> None:
    """Each waits for all others, and then says as much as would fill the channel if it was not taken."""
    count = 8
    written = {number: bytearray() for number in range(1, count + 1)}
    wait = f"> $A; while [ $(ls | wc -l) -lt {count} ]; do sleep 0.01; done; yes $A | head -n 100000"

    def run(number: int) -> None:
        channel.execute(
            number,
            wait,
            cwd=os.fsencode(tmp_path),
            env={"A": str(number)},
            on_output=lambda _stream, data: written[number].extend(data),
        )

    threads = [threading.Thread(target=run, args=(number,)) for number in written]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, data in written.items():
        assert data == f"{number}\n".encode() * 100_000


def test_one_that_is_not_listened_to_holds_no_other_up(channel: Channel) -> None:
    listened = threading.Event()

    def take(_stream: str, _data: bytes) -> None:
        listened.wait()

    thread = threading.Thread(
        target=channel.execute, args=(1, "head -c 3000000 /dev/zero"), kwargs={"cwd": b"/", "on_output": take}
    )
    thread.start()
    length = 0

    def count(_stream: str, data: bytes) -> None:
        nonlocal length
        length += len(data)

    channel.execute(2, "head -c 3000000 /dev/zero", cwd=b"/", on_output=count)
    assert length == 3_000_000
    listened.set()
    thread.join()


def test_of_many_commands_one_is_cancelled(channel: Channel) -> None:
    codes: dict[int, int] = {}
    ready = threading.Barrier(3)

    def take(_stream: str, _data: bytes) -> None:
        ready.wait()

    def run(number: int) -> None:
        done = channel.execute(number, "echo; exec sleep 1000", cwd=b"/", on_output=take)
        codes[number] = done.exit_code

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert channel.cancel(2)
    threads[1].join()
    assert codes == {2: 143}
    assert channel.cancel(1)
    threads[0].join()
    assert codes == {1: 143, 2: 143}


def test_an_id_that_runs_is_no_other_commands(channel: Channel) -> None:
    def meanwhile(_stream: str, _data: bytes) -> None:
        with pytest.raises(UsageError):
            channel.execute(1, "true", cwd=b"/", on_output=ignore)
        channel.cancel(1)

    assert channel.execute(1, "echo; exec sleep 1000", cwd=b"/", on_output=meanwhile).exit_code == 143


def test_no_piece_ends_inside_a_character(channel: Channel) -> None:
    pieces: list[bytes] = []
    channel.execute(
        1, r"printf 'a\303'; sleep 0.1; printf '\251b\342\202'", cwd=b"/", on_output=lambda _, data: pieces.append(data)
    )
    assert b"".join(pieces) == b"a\xc3\xa9b\xe2\x82"
    assert pieces[0] == b"a"
    pieces.clear()
    channel.execute(2, "yes 'äöü€🙂' | head -n 100000", cwd=b"/", on_output=lambda _, data: pieces.append(data))
    assert "".join(piece.decode() for piece in pieces) == "äöü€🙂\n" * 100_000


def test_the_shim_is_waited_for(begin: Callable[..., Shim]) -> None:
    channel = begin().channel
    channel.await_shim(60)
    channel.await_shim(60)
    assert channel.execute(1, "exit 3", cwd=b"/", on_output=ignore).exit_code == 3


def test_a_command_is_cancelled(begin: Callable[..., Shim]) -> None:
    channel = begin("--grace", "0.1").channel
    assert not channel.cancel(1)
    answers: list[bool] = []

    def meanwhile(_stream: str, _data: bytes) -> None:
        answers.extend([channel.cancel(2), channel.cancel(1), channel.cancel(1)])

    assert channel.execute(1, STUBBORN, cwd=b"/", on_output=meanwhile).exit_code == 137
    assert answers == [False, True, True]
    assert not channel.cancel(1)


def test_a_command_that_is_silent_is_cancelled_from_another_thread(begin: Callable[..., Shim], leash: ExitPipe) -> None:
    channel = begin().channel

    def cancel() -> None:
        with open(leash.path, "rb"):
            channel.cancel(1)

    thread = threading.Thread(target=cancel)
    thread.start()
    assert channel.execute(1, f"exec sleep 1000 3> {leash.path}", cwd=b"/", on_output=ignore).exit_code == 143
    thread.join()


def test_a_rollback_can_be_told_at_any_time(channel: Channel) -> None:
    channel.notify_rollback(3)
    done = channel.execute(1, "echo; exit 6", cwd=b"/", on_output=lambda _stream, _data: channel.notify_rollback(-1))
    assert done.exit_code == 6


def test_while_nobody_takes_the_output_little_is_read(begin: Callable[..., Shim], tmp_path: Path) -> None:
    """20 MB: when the first of it is taken, the command has not come far."""
    length = 0

    def take(_stream: str, data: bytes) -> None:
        nonlocal length
        length += len(data)
        if length < 10_000_000:
            assert not (tmp_path / "done").exists()

    channel = begin().channel
    channel.execute(1, "yes | head -c 20000000; > done", cwd=os.fsencode(tmp_path), on_output=take)
    assert (length, (tmp_path / "done").exists()) == (20_000_000, True)


def test_a_shim_that_is_killed_is_gone_for_good(begin: Callable[..., Shim]) -> None:
    shim = begin()
    pids = bytearray()

    def kill(_stream: str, data: bytes) -> None:
        pids.extend(data)
        shim.kill()

    with pytest.raises(ChannelError) as caught:
        shim.channel.execute(1, "echo $$; exec sleep 1000", cwd=b"/", on_output=kill)
    assert caught.value.code == "shim_gone"
    # Its command, which it cannot end any more, is for those to end who have started the shim.
    os.kill(int(pids), signal.SIGKILL)
    for again in (
        lambda: shim.channel.execute(2, "true", cwd=b"/", on_output=ignore),
        lambda: shim.channel.cancel(1),
        lambda: shim.channel.notify_rollback(1),
    ):
        with pytest.raises(ChannelError) as caught:
            again()
        assert caught.value.code == "shim_gone"


def test_a_shim_that_has_ended_between_commands_is_noticed(begin: Callable[..., Shim]) -> None:
    shim = begin()
    shim.kill()
    shim.wait()
    with pytest.raises(ChannelError) as caught:
        shim.channel.execute(1, "true", cwd=b"/", on_output=ignore)
    assert caught.value.code == "shim_gone"


def test_a_host_that_is_killed_takes_the_command_with_it(leash: ExitPipe) -> None:
    host = textwrap.dedent("""
        import subprocess, sys
        from holdfast.sandbox.channel import Channel, shim_command
        shim = subprocess.Popen(shim_command("--grace", "0.1"), stdin=-1, stdout=-1, bufsize=0)
        channel = Channel(shim.stdout, shim.stdin)
        channel.execute(1, sys.argv[1], cwd=b"/", on_output=lambda _, data: print("ready", flush=True))
    """)
    command = f"exec 3> {leash.path}; {STUBBORN}"
    with subprocess.Popen([sys.executable, "-c", host, command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    leash.until_all_are_gone()


def test_who_fails_to_take_the_output_ends_the_command(begin: Callable[..., Shim], leash: ExitPipe) -> None:
    shim = begin("--grace", "0.1")

    def fail(_stream: str, _data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shim.channel.execute(1, f"exec 3> {leash.path}; {STUBBORN}", cwd=b"/", on_output=fail)
    leash.until_all_are_gone()
    with pytest.raises(ChannelError) as caught:
        shim.channel.execute(2, "true", cwd=b"/", on_output=ignore)
    assert caught.value.code == "channel_closed"


def test_to_close_it_ends_the_command(begin: Callable[..., Shim], leash: ExitPipe) -> None:
    shim = begin("--grace", "0.1")
    ready = threading.Event()

    def close() -> None:
        ready.wait()
        shim.channel.close()

    thread = threading.Thread(target=close)
    thread.start()
    with shim.channel as channel, pytest.raises(ChannelError) as caught:
        channel.execute(1, f"exec 3> {leash.path}; {STUBBORN}", cwd=b"/", on_output=lambda _stream, _data: ready.set())
    assert caught.value.code == "channel_closed"
    leash.until_all_are_gone()
    thread.join()
    assert shim.wait() == 0


# -- with what only says that it is one -------------------------------------------------------------------------------


class Fake:
    """The other end of a channel, which says what a test says."""

    def __init__(self, *, start_seconds: float = 30, cancel_seconds: float = 30, hello: bytes = HELLO) -> None:
        ours, self.end = socket.socketpair()
        self.end.sendall(hello)
        self.channel = Channel(ours, ours, start_seconds=start_seconds, cancel_seconds=cancel_seconds)

    def execute(self, on_output: Callable[[str, bytes], None] = ignore) -> StepCompleted:
        return self.channel.execute(1, "true", cwd=b"/", on_output=on_output)


@pytest.fixture
def pretend() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def pretend(**settings: Any) -> Fake:
        made.append(Fake(**settings))
        return made[-1]

    yield pretend
    for fake in made:
        fake.channel.close()
        fake.end.close()


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"garbage\n",
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b'{"type":"exec","id":1,"command":"true"}\n',
        OUTPUT,
        COMPLETED,
        STARTED.replace(b"1", b"2"),
        STARTED + STARTED,
        STARTED + OUTPUT.replace(b"1", b"2"),
        STARTED + OUTPUT + b'{"type":"error","id":1,"code":"busy","message":"no"}\n',
        STARTED + b'{"type":"step_completed","id":1,"exit_code":256}\n',
        STARTED + b'{"type":"input_taken","id":1,"stream":"stdin","bytes":1}\n',
        STARTED + OUTPUT.replace(b"eA==", b"?"),
        STARTED + OUTPUT * 2000,
        b'{"type":"error","code":"bad_request","message":"what?"}\n',
        HELLO,
    ],
)
def test_what_is_said_out_of_turn_ends_the_channel(pretend: Callable[..., Fake], said: bytes) -> None:
    fake = pretend()
    fake.end.sendall(said + STARTED + COMPLETED)
    with pytest.raises(ChannelError) as caught:
        fake.execute()
    assert caught.value.code == "shim_violation"
    fake.end.settimeout(10)
    with suppress(ConnectionResetError):  # (some of what was said had not been read)
        while fake.end.recv(1 << 16):
            pass  # what was sent before; then it is closed
    with pytest.raises(ChannelError, match="protocol"):
        fake.execute()


def test_what_is_said_when_nothing_runs_ends_the_channel(pretend: Callable[..., Fake]) -> None:
    fake = pretend()
    fake.end.sendall(STARTED + COMPLETED)
    assert fake.execute().exit_code == 0
    fake.end.sendall(OUTPUT)
    with pytest.raises(ChannelError, match="output of 1, which does not run") as caught:
        fake.channel.execute(2, "true", cwd=b"/", on_output=ignore)
    assert caught.value.code == "shim_violation"


@pytest.mark.parametrize(
    ("hello", "match"),
    [
        (b'{"type":"hello","version":1}\n', "its version is 1, and ours 2"),
        (STARTED, "expected as the first line"),
        (HELLO + HELLO, "expected as the first line"),
        (b"Welcome to the machine\n", "does not keep to the protocol"),
    ],
)
def test_one_that_does_not_say_hello_is_none(pretend: Callable[..., Fake], hello: bytes, match: str) -> None:
    fake = pretend(hello=hello)
    with pytest.raises(ChannelError, match=match):
        fake.execute()


def test_one_that_never_says_hello_is_silent(pretend: Callable[..., Fake]) -> None:
    fake = pretend(hello=b"")
    with pytest.raises(ChannelError, match="has not begun within") as caught:
        fake.channel.await_shim(0.05)
    assert caught.value.code == "shim_silent"


def test_what_hinders_the_box_is_not_counted(pretend: Callable[..., Fake]) -> None:
    fake = pretend(hello=b"")

    def hindered() -> float:
        fake.end.sendall(HELLO)
        return 60

    fake.channel.await_shim(0.05, hindered)


def test_stopped_and_continued_without_end_take_no_memory(pretend: Callable[..., Fake]) -> None:
    fake = pretend()
    changes = b'{"type":"stopped","id":1,"signal":19}\n{"type":"continued","id":1}\n' * 20_000
    with fake.channel.begin(exec_request(1, [b"true"], cwd=b"/", env={})) as command:
        fake.end.sendall(STARTED + changes + COMPLETED)
        wait_until(lambda: command.is_over)
        assert len(command._replies) == 3


def test_a_violation_ends_all_commands(pretend: Callable[..., Fake]) -> None:
    fake = pretend()
    with fake.channel.begin(exec_request(1, [b"true"], cwd=b"/", env={})) as command:
        fake.end.sendall(STARTED)
        assert command.next() == StepStarted(id=1)
        fake.end.sendall(STARTED.replace(b"1", b"2") + b"x\n")
        with pytest.raises(ChannelError) as caught:
            fake.channel.execute(2, "true", cwd=b"/", on_output=ignore)
        assert caught.value.code == "shim_violation"
        with pytest.raises(ChannelError):
            command.next()


def test_a_line_of_10_mb_ends_the_channel_and_takes_little_memory(pretend: Callable[..., Fake]) -> None:
    fake = pretend()

    def flood() -> None:
        try:
            fake.end.sendall(STARTED + b"x" * 10_000_000)
        except OSError:
            pass  # the channel has been closed

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(ChannelError, match="longer than") as caught:
        fake.execute()
    assert caught.value.code == "shim_violation"
    assert len(fake.channel._lines._buffer) <= MAX_LINE_BYTES
    thread.join()


@pytest.mark.parametrize("said", [b"", STARTED, STARTED + OUTPUT + COMPLETED[:-1]])
def test_one_that_goes_in_the_middle_is_gone(pretend: Callable[..., Fake], said: bytes) -> None:
    fake = pretend()
    fake.end.sendall(said)
    fake.end.shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelError) as caught:
        fake.execute()
    assert caught.value.code == "shim_gone"


def test_one_that_never_begins_is_silent(pretend: Callable[..., Fake]) -> None:
    with pytest.raises(ChannelError, match="has not begun") as caught:
        pretend(start_seconds=0.05).execute()
    assert caught.value.code == "shim_silent"


def test_one_that_does_not_read_is_silent(pretend: Callable[..., Fake]) -> None:
    fake = pretend(start_seconds=0.05)
    with pytest.raises(ChannelError, match="does not read") as caught:
        fake.channel.execute(1, "x" * 700_000, cwd=b"/", on_output=ignore)
    assert caught.value.code == "shim_silent"


def test_a_command_may_be_silent_but_not_after_a_cancel(pretend: Callable[..., Fake]) -> None:
    fake = pretend(start_seconds=0.01, cancel_seconds=0.05)
    fake.end.sendall(STARTED + OUTPUT)
    with pytest.raises(ChannelError, match="has not ended a cancelled command") as caught:
        fake.execute(lambda _stream, _data: None if fake.channel.cancel(1) else pytest.fail("it runs"))
    assert caught.value.code == "shim_silent"


def test_output_without_end_is_no_answer_to_a_cancel(pretend: Callable[..., Fake]) -> None:
    fake = pretend(cancel_seconds=0.1)

    def flood() -> None:
        try:
            fake.end.sendall(STARTED)
            with fake.end.makefile("rb") as requests:
                while True:  # as fast as there is room for it
                    fake.end.sendall(OUTPUT * (OUTPUT_WINDOW // PIECE_COST // 4))
                    while b"output_taken" not in (line := requests.readline()):
                        assert line
        except (OSError, AssertionError):
            pass  # the channel has been closed

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(ChannelError, match="has not ended a cancelled command"):
        fake.execute(lambda _stream, _data: None if fake.channel.cancel(1) else pytest.fail("it runs"))
    thread.join()


def test_the_time_that_nobody_listens_is_not_the_shims(pretend: Callable[..., Fake]) -> None:
    """A cancel, and then somebody who takes a thousand seconds over each piece of output."""
    now = 0.0
    ours, end = socket.socketpair()

    def take(_stream: str, _data: bytes) -> None:
        nonlocal now
        now += 1000
        channel.cancel(1)
        end.sendall(said.pop(0))

    said = [OUTPUT, OUTPUT, COMPLETED]
    with Channel(ours, ours, cancel_seconds=10, clock=lambda: now) as channel, end:
        end.sendall(HELLO + STARTED + OUTPUT)
        assert channel.execute(1, "true", cwd=b"/", on_output=take).exit_code == 0
    assert now == 3000
