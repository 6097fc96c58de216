"""What a command that is run with limits can do, and that nothing of it is left, however it behaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from holdfast.sandbox.limited_command import CommandEnd, CommandLimits, run_contained

from ...promoted import needs_isolation
from ...waiting import has_ended, wait_until

LIMITS = CommandLimits(seconds=30, memory=0, output=10_000, grace=0.3)


def run(tmp_path: Path, command: str, *, limits: CommandLimits = LIMITS, box=None, stop=None) -> tuple[CommandEnd, str]:
    output = os.fsencode(tmp_path / "output")
    done = run_contained(
        [b"sh", b"-c", command.encode()],
        box=box,
        directory=os.fsencode(tmp_path),
        environment={b"PATH": os.environb[b"PATH"]},
        limits=limits,
        output=output,
        stop=stop,
    )
    assert os.stat(output).st_mode & 0o777 == 0o600
    return done, Path(os.fsdecode(output)).read_text()


def test_it_gives_back_how_the_command_ended_and_what_it_printed(tmp_path: Path) -> None:
    assert run(tmp_path, "echo out; echo err >&2; exit 3") == (CommandEnd(3, ""), "out\nerr\n")
    assert run(tmp_path, "kill -9 $$")[0].exit_code == 137
    assert run(tmp_path, "cat")[0].exit_code == 0, "there is nothing to read"


def test_gigabytes_of_output_are_not_kept(tmp_path: Path) -> None:
    done, said = run(tmp_path, "echo begin; head -c 300000000 /dev/zero | tr '\\0' x; echo; echo end")
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
    done, _ = run(tmp_path, f"{sys.executable} daemon.py pid; {wait}; echo on")
    assert done == CommandEnd(0, "")
    assert has_ended(int((tmp_path / "pid.done").read_text()))


def test_what_takes_too_long_and_ignores_being_asked_is_killed(tmp_path: Path) -> None:
    done, said = run(
        tmp_path, "trap '' TERM; echo $$; while :; do sleep 0.05; done", limits=LIMITS._replace(seconds=0.2)
    )
    assert done == CommandEnd(124, "time")
    assert has_ended(int(said))


def test_what_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    greedy = f"{sys.executable} -c 'x = bytearray(200 << 20); import time; time.sleep(20)'"
    both = f"{greedy} & {greedy} & wait"  # each of them may, both together may not
    done, _ = run(tmp_path, both, limits=LIMITS._replace(memory=300 << 20))
    assert done == CommandEnd(137, "memory")
    done, said = run(tmp_path, f"{sys.executable} -c 'bytearray(1 << 30)'", limits=LIMITS._replace(memory=300 << 20))
    assert done.exit_code != 0
    assert "MemoryError" in said or done.why == "memory"


def test_it_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()

    def stop_it() -> None:
        wait_until((tmp_path / "begun").exists)
        stop.set()

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    assert run(tmp_path, "touch begun; sleep 100", stop=stop)[0].why == "stopped"
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
    done, _ = run(tmp_path, f"exec {sys.executable} bomb.py", limits=LIMITS._replace(seconds=0.5))
    assert done.why == "time"
    found = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout
    assert found == b""


def test_whoever_runs_it_is_killed_and_nothing_goes_on(tmp_path: Path) -> None:
    program = f"""
        import os, sys
        from holdfast.sandbox.limited_command import CommandLimits, run_contained
        run_contained([b"sh", b"-c", b"setsid sleep 100 & echo $! > pid; mv pid pid.done; wait"], box=None,
            directory={os.fsencode(tmp_path)!r}, environment=os.environb, limits=CommandLimits(100, 0, 1000, 0.1),
            output={os.fsencode(tmp_path / "output")!r})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        wait_until((tmp_path / "pid.done").exists)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    sleeping = int((tmp_path / "pid.done").read_text())
    wait_until(lambda: has_ended(sleeping))


@needs_isolation
def test_in_a_box_another_directory_is_seen_at_the_workspaces_path(tmp_path: Path) -> None:
    from holdfast.model.errors import UnsupportedError
    from holdfast.sandbox.isolation_probe import require_isolation
    from holdfast.sandbox.namespace import Namespace
    from holdfast.sandbox.policy import FileAccess, OpenNetwork, SandboxPolicy

    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "name").write_text("here")
    (there / "name").write_text("there")
    policy = SandboxPolicy(FileAccess(os.fsencode(here), origin=os.fsencode(there)), OpenNetwork())
    try:
        require_isolation(policy)
    except UnsupportedError as error:
        pytest.skip(error.message)
    output = os.fsencode(tmp_path / "output")
    done = run_contained(
        [b"sh", b"-c", b"pwd; cat name; echo new > new; echo x > ../outside; sleep 1000 & exit 4"],
        box=Namespace(policy),
        directory=os.fsencode(here),
        environment=dict(os.environb),
        limits=LIMITS,
        output=output,
    )
    assert done == CommandEnd(4, "")
    assert Path(os.fsdecode(output)).read_text().startswith(f"{here}\nthere")
    assert sorted(path.name for path in there.iterdir()) == ["name", "new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "output", "there"]
