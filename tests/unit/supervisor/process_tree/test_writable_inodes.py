"""What processes may still write to, whichever of their threads has it: real ones, held where the test needs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.supervisor.process_tree import writable_inodes
from holdfast.supervisor.process_tree.writable_inodes import inodes_held_for_writing

PRELUDE = """
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None)
CLONE_FILES = 0x400
path, SYS_EXIT = sys.argv[1], {"x86_64": 60, "aarch64": 93}[os.uname().machine]

def begin(*acts):
    # A thread that does these, says so, and stays.
    def work():
        for act in acts:
            act()
        os.write(1, b"up\\n")
        sys.stdin.read()
        os._exit(0)
    threading.Thread(target=work).start()

def leader_ends():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(") ")[2][0] != "Z":
        pass

def own_table():
    assert not libc.unshare(CLONE_FILES)

def opens():
    os.open(path, os.O_WRONLY)

def maps():
    global area
    fd = os.open(path, os.O_RDWR)
    area = mmap.mmap(fd, 1)
    os.close(fd)
"""
HOLDERS = {
    "it alone": "begin(opens)",
    "a thread with a table of its own": "begin(own_table, opens)",
    "one beside others with the first's": "begin(own_table, opens)\nbegin(lambda: None)",
    "a thread after the first has ended": "begin(leader_ends, opens)\nlibc.syscall(SYS_EXIT, 0)",
    "a mapping, after the first thread has ended": "begin(leader_ends, maps)\nlibc.syscall(SYS_EXIT, 0)",
}


@contextmanager
def running(script: str, path: Path) -> Generator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", PRELUDE + script, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(script.count("begin(")):
            assert process.stdout.readline() == "up\n"
        yield process


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content")
    return tmp_path / "file"


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_is_seen_whichever_thread_has_it(path: Path, holder: str) -> None:
    with running(HOLDERS[holder], path) as process:
        found = inodes_held_for_writing(lambda: [process.pid])
        assert found is not None
        assert path.stat().st_ino in found
    assert inodes_held_for_writing(lambda: [process.pid]) == frozenset()


@pytest.mark.parametrize("act", ["os.open(path, os.O_WRONLY)", "maps(); areas.append(area)"])
def test_more_than_one_may_look_at_is_not_looked_at(path: Path, act: str) -> None:
    many = f"areas = []\ndef all():\n    for _ in range(500): {act}\nbegin(all)"
    with running(many, path) as process:
        assert inodes_held_for_writing(lambda: [process.pid], 400) is None
        found = inodes_held_for_writing(lambda: [process.pid], 2000)
        assert found is not None
        assert path.stat().st_ino in found


HANDS_ON = """
os.open(path, os.O_WRONLY)
os.write(1, b"up\\n")
sys.stdin.readline()
if not os.fork():
    os.write(1, b"up\\n")
    sys.stdin.read()
    os._exit(0)
os.closerange(3, 10)
os.write(1, b"up\\n")
os.wait()
"""


def test_what_a_process_hands_on_as_it_is_looked_at_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(HANDS_ON, path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers, opened = process.stdout, writable_inodes._opened
        assert answers.readline() == "up\n"
        waiting = [process.stdin]

        def hand_on_first(table: bytes, room: writable_inodes._Room) -> Iterator[int]:
            while waiting:
                asked = waiting.pop()
                asked.write("\n")
                asked.flush()
                assert [answers.readline() for _ in range(2)] == ["up\n", "up\n"]
            return opened(table, room)

        monkeypatch.setattr(writable_inodes, "_opened", hand_on_first)
        found = inodes_held_for_writing(lambda: [process.pid])
        assert found is not None
        assert path.stat().st_ino in found
