"""Whether calls are carried out natively is said, can be switched off, and changes nothing that a person sees."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.files.linux.native import SWITCH

from .conftest import INSTALLED, Cli
from .ordinary import ME, as_user, give_away
from .test_run import keeper_of


def _natively(bench: Cli) -> int:
    (log,) = bench.home.glob("workspaces/*/undo/keeper.log")
    told = [json.loads(line) for line in log.read_text().splitlines()]
    return sum(line["natively"] for line in told if "natively" in line)


def test_what_a_command_does_is_carried_out_natively_unless_that_is_switched_off(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("holdfast._hot") is None:
        pytest.skip("it was not built")
    cli.write("kept", "1")
    for switch, is_native in (("1", True), ("0", False)):
        monkeypatch.setenv(SWITCH, switch)
        before = 0 if is_native else _natively(cli)
        command = "for n in 1 2 3 4 5; do : > made$n; done; rm kept made*"
        with cli.start("--log-level", "info", "run", "--", "sh", "-c", command):
            pass
        assert (_natively(cli) > before) == is_native
        assert not (cli.root / "kept").exists()
        cli("undo")
        assert (cli.root / "kept").read_text() == "1"
    with cli.start("doctor", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        findings = json.load(process.stdout)["findings"]
    assert any("HOLDFAST_NATIVE=0 is set" in finding["message"] for finding in findings)


@pytest.mark.parametrize("switch", ["1", "0"])
def test_what_may_only_be_appended_to_says_why_it_is_not_cut_short(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    file = cli.write("log", "1")
    if subprocess.run(("chattr", "+a", str(file)), capture_output=True, check=False).returncode:
        pytest.skip("needs CAP_LINUX_IMMUTABLE, and a file system with such files")
    try:
        # (By the bare call: Python tries again for as long as that is said to be interrupted.)
        code = (
            "import ctypes, os; open('first', 'w'); libc = ctypes.CDLL(None, use_errno=True);"
            "print(libc.open(b'log', os.O_WRONLY | os.O_APPEND | os.O_TRUNC), ctypes.get_errno())"
        )
        done = cli.process("run", "--", sys.executable, "-c", code)
    finally:
        subprocess.run(("chattr", "-a", str(file)), check=True)
    assert done.stdout.split() == [b"-1", b"%d" % errno.EPERM]


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_time_after_2262_comes_back(cli: Cli, monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setenv(SWITCH, switch)
    late = 15_000_000_000
    names = ("changed", "removed", "directory")
    (cli.root / "directory").mkdir()
    for name in names:
        path = cli.root / name
        if name != "directory":
            path.touch()
        os.utime(path, (late, late))
        if int(path.stat().st_mtime) != late:
            pytest.skip("the file system knows no such time")
    code = "open('first', 'w'); os.chmod('changed', 0o700); os.remove('removed'); open('directory/new', 'w')"
    cli.process("run", "--", sys.executable, "-c", f"import os; {code}")
    cli.process("undo")
    assert [int((cli.root / name).stat().st_mtime) for name in names] == [late] * len(names)


def test_to_make_a_file_or_open_it_fails_for_no_other_process_that_does_so(cli: Cli) -> None:
    code = (
        "import os; open('first', 'w');"
        "told = set();\n"
        "for _ in range(20_000):\n"
        "    try: os.close(os.open('raced', os.O_CREAT | os.O_WRONLY))\n"
        "    except OSError as error: told.add(error.errno)\n"
        "print(sorted(told))"
    )
    is_over = threading.Event()

    def make_and_remove() -> None:
        while not is_over.is_set():
            (cli.root / "raced").touch()
            (cli.root / "raced").unlink(missing_ok=True)

    other = threading.Thread(target=make_and_remove)
    other.start()
    try:
        told = json.loads(cli.process("run", "--", sys.executable, "-c", code).stdout)
    finally:
        is_over.set()
        other.join()
    assert errno.EEXIST not in told


_PIPE = """
import os, threading
opened = threading.Event()
os.unlink("/dev/null")
os.mkfifo("/dev/null")

def write():
    for number in range(100):
        open(f"made{number}", "w").close()
    opened.set()
    os.open("/dev/null", os.O_WRONLY)  # (which waits for a reader)

threading.Thread(target=write, daemon=True).start()
opened.wait()
for number in range(100):
    open(f"more{number}", "w").close()
print("done", flush=True)
os._exit(0)
"""
_DEVICES = """
mount -t tmpfs devices /dev && mkdir /dev/shm /dev/pts && ln -s /proc/self/fd /dev/fd &&
mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/urandom c 1 9 && exec "$@"
"""


def test_a_pipe_in_the_place_of_the_null_device_holds_up_no_other_call(cli: Cli) -> None:
    alone = ("unshare", "--mount", "sh", "-c", _DEVICES, "sh")
    if subprocess.run((*alone, "true"), capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace with devices of its own")
    command = (*alone, "timeout", "--signal=KILL", "30", *INSTALLED, "run", "--", sys.executable, "-c", _PIPE)
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.stdout == b"done\n", done


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_directory_that_its_owner_may_not_write_to_is_removed_all_the_same(tmp_path: Path, switch: str) -> None:
    """It cannot be renamed into the log."""
    (tmp_path / "user/work").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    give_away(tmp_path)
    code = "import os; open('first', 'w'); os.rmdir('closed'); os.rmdir('open')"
    script = (
        "mkdir -m 555 closed; mkdir -m 755 open; stat -c '%a %Y' closed > ../before;"
        f'{ME} init -q; {ME} run -- {sys.executable} -c "{code}"; ls; {ME} undo -q;'
        "ls; stat -c '%a %Y' closed > ../after; cmp ../before ../after"
    )
    done = as_user(tmp_path, script, **{SWITCH: switch})
    assert (done.returncode, done.stdout) == (0, "first\nclosed\nopen\n"), done


_CALLS = """
import os, sys
open("first", "w").close()
print(end="\\n", flush=True)
sys.stdin.readline()
for n in range(10):
    os.close(os.open(f"new{n}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC))
    os.mkdir(f"directory{n}")
    os.symlink("target", f"link{n}")
    os.close(os.open(f"small{n}", os.O_WRONLY | os.O_TRUNC))
    os.close(os.open(f"large{n}", os.O_WRONLY | os.O_TRUNC))
    os.chmod(f"mode{n}", 0o700)
    os.chown(f"owner{n}", 12345, 12345)
    os.utime(f"time{n}", (1, 2))
    os.rename(f"source{n}", f"over{n}")
    os.unlink(f"removed{n}")
    os.rmdir(f"empty{n}")
"""
_OPERATIONS = re.compile(
    r"(mkdirat|symlinkat|renameat2|unlinkat|ftruncate|fchownat|utimensat|fchmodat2|syscall_0x1c4|openat)\("
)


def _calls_as_carried_out(traced: str) -> Iterator[list[str]]:
    """What one thread of the keeper asks the kernel for, from a call's receipt to its answer."""
    since: list[str] = []
    for line in traced.splitlines():
        if "SECCOMP_IOCTL_NOTIF_RECV" in line:
            since = []
        elif "SECCOMP_IOCTL_NOTIF_SEND" in line:
            yield since
        else:
            since.append(line)


def test_a_call_is_recorded_before_it_is_carried_out_and_its_caller_asked_for_before_both(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, and that nothing happens in the name of a process that is gone, or of another one with its number."""
    if importlib.util.find_spec("holdfast._hot") is None or shutil.which("strace") is None:
        pytest.skip("needs strace, and the native part")
    monkeypatch.setenv(SWITCH, "1")
    for number in range(10):
        for name in ("small", "mode", "owner", "time", "source", "over", "removed"):
            cli.write(f"{name}{number}", name)
        cli.write(f"large{number}", "." * 100_000)
        (cli.root / f"empty{number}").mkdir()
    with subprocess.Popen(
        [*INSTALLED, "--log-level", "info", "run", "--", sys.executable, "-c", _CALLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        tracer = subprocess.Popen(
            ["strace", "-ff", "-y", "-o", str(cli.home / "trace"), "-p", str(keeper_of(cli.home))],
            stderr=subprocess.PIPE,
        )
        assert tracer.stderr is not None
        if b"attached" not in tracer.stderr.readline():
            tracer.wait()
            run.communicate(b"\n")
            pytest.skip("a process cannot be traced here")
        run.communicate(b"\n")
    tracer.communicate(timeout=60)
    assert _natively(cli) >= 60
    done: list[str] = []
    for trace in sorted(cli.home.glob("trace.*")):
        for asked in _calls_as_carried_out(trace.read_text()):
            waits, is_recorded = False, False
            for line in asked:
                operation = _OPERATIONS.match(line)
                if "SECCOMP_IOCTL_NOTIF_ID_VALID" in line:
                    waits = True
                elif re.match(r"write\(\d+<[^>]*/journal-", line):
                    assert waits or is_recorded, asked
                    waits, is_recorded = False, True
                elif operation and "/kept" not in line.split(",")[0] and ("openat" not in line or "O_EXCL" in line):
                    assert is_recorded, asked
                    assert waits, asked
                    done.append(operation[1])
    # (What Python has taken may be carried out by another thread than the one that has received it, and is not seen.)
    names = Counter(name.replace("syscall_0x1c4", "fchmodat2") for name in done)
    assert names["renameat2"] >= 20, names
    for name in ("openat", "mkdirat", "symlinkat", "ftruncate", "fchmodat2", "fchownat", "utimensat"):
        assert names[name] >= 5, names
