"""Processes that go on by themselves: as a copy where that is sound, and as a new interpreter where it is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ...waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

TOLD = """
import json, os, signal, sys
from holdfast.processes.detached_worker import read_order, report

def main():
    order = read_order()
    assert order == b"tell", order
    inside = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) < 3}
    stray = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
    is_copy = hasattr(sys.modules["__main__"], "STARTER")
    report(json.dumps({
        "copy": is_copy, "pid": os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(), "in": inside["0"],
        "stray": len(stray),
    }).encode())
    os.write(1, b"late")
    signal.pause()

if __name__ == "__main__":
    main()
"""

STARTER = """
import os, sys, threading
from holdfast.processes.detached_worker import DetachedWorker
STARTER = True
os.dup2(os.open("/", os.O_RDONLY), 17, inheritable=True)
{before}
process = DetachedWorker("told")
said = process.ask(b"tell", 60)
process.detach()
process.close()
print(said.decode())
"""


@pytest.fixture(name="modules")
def _modules(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "told.py").write_text(TOLD)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}


def started(modules: dict[str, str], tmp_path: Path, before: str) -> tuple[dict[str, Any], str]:
    """What it has said of itself, and what was printed on standard error; it is ended by then."""
    with (tmp_path / "errors").open("w+") as errors:
        done = subprocess.run(
            [sys.executable, "-c", STARTER.format(before=before)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=modules,
            check=False,
        )
    said = json.loads(done.stdout)
    wait_until(lambda: "late" in (tmp_path / "errors").read_text())
    os.kill(said["pid"], signal.SIGKILL)
    return said, (tmp_path / "errors").read_text()


@pytest.mark.parametrize(
    ("before", "copy"),
    [
        ("", True),
        ("import sqlite3", False),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", False),
    ],
    ids=["alone", "sqlite", "thread"],
)
def test_it_is_a_copy_only_where_that_is_sound_and_has_nothing_of_its_starter(
    modules: dict[str, str], tmp_path: Path, before: str, copy: bool
) -> None:
    said, printed = started(modules, tmp_path, before)
    assert said["copy"] is copy
    assert said["session"] == said["pid"]
    assert said["cwd"] == "/"
    assert said["in"] == os.devnull
    assert said["stray"] == 0
    assert printed == "late"


def test_without_an_order_it_is_gone_with_its_starter_or_before(modules: dict[str, str]) -> None:
    ends = 'process = DetachedWorker("told"); print(process.pid); {}'
    for how in ("process.close()", "os._exit(0)"):
        ended = ends.format(f"sys.stdout.flush(); {how}")
        program = f"import os; from holdfast.processes.detached_worker import DetachedWorker; {ended}"
        words = [sys.executable, "-c", "import sys; " + program]
        done = subprocess.run(words, capture_output=True, env=modules, check=True)
        gone = int(done.stdout)
        wait_until(lambda gone=gone: not os.path.exists(f"/proc/{gone}") or is_zombie(gone))


def is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return ") Z " in file.read()


def test_one_that_fails_says_so_and_does_not_go_on_as_its_starter(modules: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("def main():\n    raise KeyError('broken')\n")
    program = """if 1:
        from holdfast.processes.detached_worker import DetachedWorker
        process = DetachedWorker("told")
        print(process.ask(b"tell", 60))
        process.close()
        print("once")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=modules, check=True)
    assert done.stdout == "b''\nonce\n"
    assert "KeyError: 'broken'" in done.stderr


@pytest.mark.parametrize("before", ["", "import sqlite3"], ids=["copy", "new"])
def test_who_lives_long_keeps_nothing_of_those_that_have_ended(modules: dict[str, str], before: str) -> None:
    program = f"""if 1:
        import os, signal
        from holdfast.processes.detached_worker import DetachedWorker
        STARTER = True
        {before}
        def one():
            process = DetachedWorker("told")
            process.ask(b"tell", 60)
            process.detach()
            process.close()
            return process.pid
        first = one()
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        second = one()
        print(os.path.exists(f"/proc/{{first}}"), os.path.exists(f"/proc/{{second}}"))
        os.kill(second, signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=modules, check=True)
    assert done.stdout == "False True\n", done.stderr
