"""A child gets its input and is held to its limits, and nothing of it is left, however it behaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import StorageError
from holdfast.processes import child
from holdfast.processes.child import (
    Ended,
    Excerpt,
    FileLimits,
    Limits,
    run_at_terminal,
    run_contained_to_file,
    run_with_input_at_terminal,
)

from ...waiting import has_ended, wait_until

Run = Callable[..., Ended]

LIMITS = Limits(30, 10_000)


def _run(words: list[str], limits: Limits = LIMITS, *, stdin: bytes = b"") -> Ended:
    return child.run(words, limits, stdin=stdin, cwd=os.fsencode(os.getcwd()), environment=os.environ)


def _contained(words: list[str], limits: Limits = LIMITS, *, stdin: bytes = b"") -> Ended:
    return child.run_contained(words, limits, stdin=stdin, cwd=os.fsencode(os.getcwd()), environment=os.environ)


@pytest.fixture(params=[_run, _contained], ids=["run", "run_contained"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return request.param


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]


def ended_pid(path: Path) -> None:
    """The process whose number is in the file has ended, or is about to: it was killed."""
    pid = int(path.read_text())
    wait_until(lambda: has_ended(pid), "its end")


# -- run, run_contained ------------------------------------------------------------------------------------------------


def test_it_gets_its_input_and_gives_back_what_it_says(run: Run, tmp_path: Path) -> None:
    ended = run(shell("cat; pwd; echo no >&2; exit 3"), stdin=b"said\n")
    assert ended == Ended(3, "", f"said\n{tmp_path}\n".encode(), b"no\n")
    assert run(shell("cat")) == Ended(0), "there is nothing to read"
    killed = run(shell("kill -9 $$"))
    assert (killed.code, killed.exit_code, killed.why) == (-9, 137, "")


def test_much_input_and_much_output_at_a_time(run: Run) -> None:
    given = os.urandom(5 << 20)
    assert run(["cat"], Limits(60, len(given)), stdin=given).output == given


def test_one_that_floods_its_errors_while_it_is_given_its_input(run: Run) -> None:
    program = python(
        """
        import os, sys
        for _ in range(2000):
            os.write(2, b"x" * 9999)
        os.write(2, b"\\nthe end\\n")
        os.write(1, b"%d" % len(sys.stdin.buffer.read()))
        """
    )
    tracemalloc.start()
    try:
        ended = run(program, stdin=bytes(3 << 20))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (ended.code, ended.output) == (0, b"%d" % (3 << 20))
    assert ended.errors.startswith(b"xxx")
    assert ended.errors.endswith(b"x\nthe end\n")
    assert b"bytes left out" in ended.errors
    assert len(ended.errors) < 8300


def test_one_that_does_not_want_its_input(run: Run) -> None:
    assert run(shell("exec <&-; echo on"), stdin=bytes(1 << 20)).output == b"on\n"


def test_one_that_writes_too_much_is_ended(run: Run) -> None:
    tracemalloc.start()
    try:
        ended = run(["cat", "/dev/zero"])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert ended.why == "output"
    assert run(shell("head -c 10000 /dev/zero"))[:2] == (0, "")
    assert run(shell("head -c 10001 /dev/zero")).why == "output"


def test_output_that_is_not_wanted_goes_nowhere(run: Run) -> None:
    assert run(shell("head -c 50M /dev/zero; echo no >&2"), Limits(60)) == Ended(0, "", b"", b"no\n")


def timed_out(run: Run, text: str, path: Path, *, stdin: bytes = b"") -> None:
    """What a shell runs is ended at its time, also the process whose number it writes to ``path``."""
    for seconds in (0.3, 3.0, 30.0):  # (a busy machine may not even have begun it)
        assert run(shell(text), Limits(seconds, 10), stdin=stdin).why == "time"
        if path.exists() and path.read_text().endswith("\n"):
            break
    ended_pid(path)


def test_at_its_time_it_ends_with_its_grandchildren(run: Run, tmp_path: Path) -> None:
    timed_out(run, "trap '' TERM; sleep 1000 & echo $! > pid; wait; while :; do sleep 1; done", tmp_path / "pid")


def test_one_that_closes_its_streams_and_goes_on_has_its_time(run: Run, tmp_path: Path) -> None:
    timed_out(run, "echo $$ > pid; exec <&- >&- 2>&- sleep 1000", tmp_path / "pid", stdin=b"x")
    assert run(shell("exec <&- >&- 2>&-; sleep 0.1; exit 3"), stdin=b"x") == Ended(3)


def test_what_it_leaves_running_ends_with_it_and_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    ended = run(shell("sleep 1000 & echo $! > pid; echo done"))
    assert ended == Ended(0, "", b"done\n")
    ended_pid(tmp_path / "pid")


def test_what_goes_on_writing_in_a_session_of_its_own_is_not_listened_to(tmp_path: Path) -> None:
    """Of what `run` runs, that alone is left."""
    program = python(
        f"""
        import os
        if not os.fork():
            os.setsid()
            with open({str(tmp_path / "new")!r}, "w") as file:
                file.write(str(os.getpid()))
            os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "pid")!r})
            while True:
                os.write(2, b"x" * 65536)
        while not os.path.exists({str(tmp_path / "pid")!r}):
            pass
        """
    )
    try:
        ended = child.run(program, LIMITS)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (ended.code, ended.why) == (0, "")


def test_no_descriptor_is_left_or_passed_on(run: Run) -> None:
    before = os.listdir("/proc/self/fd")
    secret = os.open("/", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        # (A directory is open to be listed.)
        listed = run(python("import os; print(*os.listdir('/proc/self/fd'))"), stdin=b"x").output.split()
        assert sorted(map(int, listed)) == [0, 1, 2, 3]
    finally:
        os.close(secret)
    run(["true"], stdin=b"x")
    run(shell("sleep 100"), Limits(0.2))
    with pytest.raises(OSError, match=r"no-such-directory|No such file"):
        child.run(["true"], LIMITS, cwd=b"no-such-directory")
    # (The first one has started what ends programs if this process is killed, and has its socket.)
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1


def test_one_that_is_not_there(run: Run) -> None:
    with pytest.raises(FileNotFoundError):
        child.run(["/no/such/program"], LIMITS)
    ended = _contained(["/no/such/program"])
    assert ended == Ended(127, "", b"", b"holdfast: cannot run /no/such/program: No such file or directory\n")
    with pytest.raises(FileNotFoundError):
        child.run_contained(["true"], LIMITS, cwd=b"/no/such/directory", environment=os.environ)


def test_descriptors_that_it_is_to_have(tmp_path: Path) -> None:
    ours, its = os.pipe()
    assert child.run(python(f"import os; os.write({its}, b'x')"), LIMITS, pass_fds=[its]) == Ended(0)
    os.close(its)
    with open(ours, "rb") as file:
        assert file.read() == b"x"


def test_it_reads_a_file_by_its_descriptor(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    with open(tmp_path / "file", "rb") as file:
        file.seek(40_000)
        assert child.run(["wc", "-c"], LIMITS, stdin=file.fileno()).output.strip() == b"60000"


def test_the_errors_of_a_contained_one_are_followed(tmp_path: Path) -> None:
    pieces: list[bytes] = []

    def follow(data: bytes) -> None:
        pieces.append(data)
        (tmp_path / "seen").touch()

    script = "echo first >&2; while [ ! -e seen ]; do sleep 0.01; done; echo second >&2"
    ended = child.run_contained(
        ["sh", "-c", script], LIMITS, cwd=bytes(tmp_path), environment=os.environ, follow_errors=follow
    )
    assert (ended.code, b"".join(pieces), ended.errors) == (0, b"first\nsecond\n", b"first\nsecond\n")


def test_an_interrupted_one_has_its_grace(tmp_path: Path) -> None:
    def interrupt(_: bytes) -> None:
        raise KeyboardInterrupt

    script = "trap 'touch tidied; exit' TERM; echo begun >&2; while :; do sleep 0.01; done"
    with pytest.raises(KeyboardInterrupt):
        child.run_contained(
            ["sh", "-c", script], LIMITS, cwd=bytes(tmp_path), environment=os.environ, grace=30, follow_errors=interrupt
        )
    assert (tmp_path / "tidied").exists()


def test_a_contained_one_is_stopped_also_with_its_daemons(tmp_path: Path) -> None:
    stop = threading.Event()

    def stop_it() -> None:
        wait_until((tmp_path / "begun").exists)
        stop.set()

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    ended = child.run_contained(
        shell("setsid sleep 1000 & echo $! > pid; echo $$ > own; touch begun; sleep 1000"),
        LIMITS,
        cwd=bytes(tmp_path),
        environment=os.environ,
        stop=stop,
    )
    stopping.join()
    assert ended.why == "stopped"
    assert has_ended(int((tmp_path / "own").read_text()))
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_one_that_kills_what_watches_over_it_is_said_to_have_been_ended() -> None:
    assert _contained(shell("kill -9 $PPID; sleep 0.1")) == Ended(-9, "stopped")


def test_an_interrupt_ends_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_fd: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(shell("echo $$ > pid; echo on; sleep 1000"))
    ended_pid(tmp_path / "pid")


STARTER = """
import os, sys
from holdfast.processes import child

words = ["sh", "-c", "setsid sleep 1000 & echo $! > daemon; sleep 1000 & echo $! > pid; mv pid pid.done; wait"]
given = {"cwd": os.getcwdb(), "environment": os.environb}
if sys.argv[1] == "run_contained":
    child.run_contained(words, child.Limits(100), **given)
else:
    child.run_contained_to_file(words, child.FileLimits(100, 0, 1000, 0.1), b"output", **given)
"""


@pytest.mark.parametrize("way", ["run_contained", "run_contained_to_file"])
def test_its_starter_is_killed_and_nothing_goes_on(tmp_path: Path, way: str) -> None:
    """The same of `run`: ``test_kill_on_exit.py``."""
    starter = subprocess.Popen([sys.executable, "-c", STARTER, way], cwd=tmp_path)
    try:
        wait_until((tmp_path / "pid.done").exists)
    finally:
        starter.kill()
        starter.wait()
    ended_pid(tmp_path / "pid.done")
    ended_pid(tmp_path / "daemon")


# -- run_at_terminal ---------------------------------------------------------------------------------------------------


def test_at_the_terminal_it_is_in_our_session_and_its_errors_are_ours(capfd: pytest.CaptureFixture[str]) -> None:
    ended = run_at_terminal(
        python("import os, sys; print(os.getsid(0), os.getpgrp()); print('?', file=sys.stderr)"), LIMITS
    )
    assert ended == Ended(0, "", b"%d %d\n" % (os.getsid(0), os.getpgrp()))
    assert capfd.readouterr() == ("", "?\n")


def test_at_the_terminal_what_goes_on_is_left_but_not_at_its_time(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert run_at_terminal(shell(f"sleep 1000 & echo $! > {pid}"), LIMITS) == Ended(0)
    agent = int(pid.read_text())
    assert not has_ended(agent)
    os.kill(agent, signal.SIGKILL)
    pid.unlink()
    timed_out(lambda words, limits, stdin: run_at_terminal(words, limits), f"sleep 1000 & echo $! > {pid}; wait", pid)
    assert run_at_terminal(["cat", "/dev/zero"], LIMITS).why == "output"
    with pytest.raises(FileNotFoundError):
        run_at_terminal(["/no/such/program"], LIMITS)


def test_a_program_at_the_terminal_reads_as_much_as_it_wants(tmp_path: Path) -> None:
    made: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(10_000):
            made.append(number)
            yield b"%d\n" % number * 1000

    environment = dict(os.environ) | {"WHERE": str(tmp_path / "read")}
    run_with_input_at_terminal(shell('cat > "$WHERE"'), iter((b"all ", b"of it")), environment=environment)
    assert (tmp_path / "read").read_text() == "all of it"
    run_with_input_at_terminal(shell('head -n 1 > "$WHERE"'), pieces(), environment=environment)
    assert (tmp_path / "read").read_text() == "0\n"
    assert 0 < len(made) < 5_000
    made.clear()
    with pytest.raises(FileNotFoundError):
        run_with_input_at_terminal(["/no/such/program"], pieces(), environment=environment)
    assert made == []


# -- run_contained_to_file ---------------------------------------------------------------------------------------------

FILE_LIMITS = FileLimits(seconds=30, memory=0, output=10_000, grace=0.3)


def to_file(
    tmp_path: Path, command: str, *, limits: FileLimits = FILE_LIMITS, stop: threading.Event | None = None
) -> tuple[Ended, str]:
    output = tmp_path / "output"
    done = run_contained_to_file(
        [b"sh", b"-c", command.encode()],
        limits,
        bytes(output),
        cwd=bytes(tmp_path),
        environment={b"PATH": os.environb[b"PATH"]},
        stop=stop,
    )
    assert output.stat().st_mode & 0o777 == 0o600
    return done, output.read_text()


def test_it_gives_back_how_the_command_ended_and_what_it_printed(tmp_path: Path) -> None:
    assert to_file(tmp_path, "echo out; echo err >&2; exit 3") == (Ended(3), "out\nerr\n")
    killed, _ = to_file(tmp_path, "kill -9 $$")
    assert (killed.code, killed.exit_code) == (-9, 137)
    assert to_file(tmp_path, "cat")[0].exit_code == 0, "there is nothing to read"


def test_gigabytes_of_output_are_not_kept(tmp_path: Path) -> None:
    done, said = to_file(tmp_path, "echo begin; head -c 300000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert done.exit_code == 0
    assert len(said) < 11_000
    assert said.startswith("begin\nx")
    assert said.endswith("x\nend\n")
    assert "bytes left out" in said


def test_daemons_end_with_the_command(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, time
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.fork(): os._exit(0)
        os.setsid()
        if os.fork(): os._exit(0)
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.rename(sys.argv[1], sys.argv[1] + ".done")
        time.sleep(100)
    """
    (tmp_path / "daemon.py").write_text(textwrap.dedent(program))
    wait = "while ! test -e pid.done; do sleep 0.01; done"
    done, _ = to_file(tmp_path, f"{sys.executable} daemon.py pid; {wait}; echo on")
    assert done == Ended(0)
    assert has_ended(int((tmp_path / "pid.done").read_text()))


def test_what_takes_too_long_and_ignores_being_asked_is_killed(tmp_path: Path) -> None:
    done, said = to_file(
        tmp_path, "trap '' TERM; echo $$; while :; do sleep 0.05; done", limits=FILE_LIMITS._replace(seconds=0.2)
    )
    assert done == Ended(124, "time")
    assert has_ended(int(said))


def test_what_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    greedy = f"{sys.executable} -c 'x = bytearray(200 << 20); import time; time.sleep(20)'"
    both = f"{greedy} & {greedy} & wait"  # each of them may, both together may not
    done, _ = to_file(tmp_path, both, limits=FILE_LIMITS._replace(memory=300 << 20))
    assert done == Ended(137, "memory")
    done, said = to_file(
        tmp_path, f"{sys.executable} -c 'bytearray(1 << 30)'", limits=FILE_LIMITS._replace(memory=300 << 20)
    )
    assert done.exit_code != 0
    assert "MemoryError" in said or done.why == "memory"


def test_it_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()

    def stop_it() -> None:
        wait_until((tmp_path / "begun").exists)
        stop.set()

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    assert to_file(tmp_path, "touch begun; sleep 100", stop=stop)[0].why == "stopped"
    stopping.join()


def test_a_fork_bomb_is_ended(tmp_path: Path) -> None:
    bomb = """
        import os, time
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:
                if not os.fork() and len(os.listdir("/proc/self/task")) and os.getpid() % 7:
                    time.sleep(3)
            except OSError:
                pass
            time.sleep(0.01)
    """
    (tmp_path / "bomb.py").write_text(textwrap.dedent(bomb))
    done, _ = to_file(tmp_path, f"exec {sys.executable} bomb.py", limits=FILE_LIMITS._replace(seconds=0.5))
    assert done.why == "time"
    found = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout
    assert found == b""


def test_a_file_or_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("output")
    here = bytes(tmp_path)
    with pytest.raises(StorageError, match=r"cannot write .*/link"):
        run_contained_to_file([b"true"], FILE_LIMITS, here + b"/link", cwd=here, environment=os.environb)
    with pytest.raises(StorageError, match="true cannot be started: No such file") as caught:
        run_contained_to_file([b"true"], FILE_LIMITS, here + b"/output", cwd=here + b"/none", environment=os.environb)
    assert caught.value.code == "cannot_start"


def test_an_excerpt_is_exact_until_something_is_left_out() -> None:
    for most in (1, 2, 10, 11):
        for size in range(30):
            for step in (1, 3, 30):
                excerpt, text = Excerpt(most), bytes(range(65, 65 + size))
                for at in range(0, size, step):
                    excerpt.add(text[at : at + step])
                kept, half = excerpt.kept(), max(1, most // 2)
                if size <= 2 * half:
                    assert kept == text
                else:
                    assert kept == text[:half] + b"\n[... %d bytes left out ...]\n" % (size - 2 * half) + text[-half:]
