"""The native loop against Python's: the same programs under both get the same answers, leave the same trees and the
same records, and are taken back.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from platform import machine

import msgspec
import pytest

import holdfast
from holdfast.files.linux.metadata import Metadata
from holdfast.files.linux.native import SWITCH
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.journal.records import AnyRecord, Begin, Keeping
from holdfast.undo.journal.segments import read_journal

from ..sampling import some
from ..some_calls import CWD, plant, some_call

pytestmark = pytest.mark.skipif(importlib.util.find_spec("holdfast._hot") is None, reason="it was not built")

_AGENT = """
import base64, ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
opened = -1
NULL = base64.b64encode(b"/dev/null").decode()
for line in sys.stdin:
    directory, calls = json.loads(line)
    os.chdir(directory)
    answers = []
    for number, arguments, opens in calls:
        given = []
        for one in arguments:
            if isinstance(one, str):
                given.append(ctypes.c_char_p(base64.b64decode(one).replace(b"OPENED", b"%d" % opened)))
            else:
                given.append(ctypes.c_uint64(opened & (1 << 64) - 1 if one == -1 else one))
        result = libc.syscall(ctypes.c_long(number), *given)
        answers.append(-ctypes.get_errno() if result < 0 else 0 if opens else result)
        if opens:
            if opened >= 0:
                os.close(opened)
            if arguments[1] == NULL and result >= 0:  # (whose mode is not for a test to change)
                os.close(result)
                result = -1
            opened = result
            if opened >= 0:
                os.write(opened, b"written")
    if opened >= 0:
        os.close(opened)
    opened = -1
    print(json.dumps(answers), flush=True)
"""
_TREES = 30
_LATE = 15_000_000_000
"""A time of which nanoseconds take all 64 bits; where the file system has none as late, the last that it has."""
_CALLS = 60


class Agent:
    """A run whose process makes the calls that it is told."""

    def __init__(self, base: Path, *, is_native: bool, **more: str) -> None:
        self.top = base / "tree"
        for number in range(_TREES):
            plant(self.top / str(number))
            (self.top / str(number) / "ws/large").write_bytes(random.Random(number).randbytes(50_000))
            for marked in ("ws/b/y", "ws/b/d"):
                with suppress(OSError):  # (where the file system has no such attributes)
                    os.setxattr(self.top / str(number) / marked, "user.mark", b"1")
            for late in ("ws/large", "ws/x", "ws/a"):
                os.utime(self.top / str(number) / late, (_LATE, _LATE))
        self._environment = os.environ | {SWITCH: str(int(is_native)), "HOLDFAST_HOME": str(base / "home")} | more
        self.holdfast("init")
        self.before = photograph(self.top)
        command = (sys.executable, "-m", "holdfast", "--log-level", "info", "run", "--", sys.executable, "-c", _AGENT)
        self._run = subprocess.Popen(
            command, cwd=self.top, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._seen = 0
        self.make(".", [])
        self.holdfast("step", "begin")  # (which lasts, however long the calls take)

    def holdfast(self, *words: str) -> str:
        done = subprocess.run(
            (sys.executable, "-m", "holdfast", *words),
            cwd=self.top,
            env=self._environment,
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make(self, directory: str, calls: object) -> list[int]:
        assert self._run.stdin is not None
        assert self._run.stdout is not None
        self._run.stdin.write(json.dumps((str(self.top / directory), calls)) + "\n")
        self._run.stdin.flush()
        return json.loads(self._run.stdout.readline())

    def records(self) -> list[AnyRecord]:
        """Those that were written since."""
        (journal,) = (self.top.parent / "home").glob("workspaces/*/undo/journal-*")
        found = [record for record in read_journal(os.fsencode(journal.parent)).records if record.seq > self._seen]
        self._seen = max((record.seq for record in found), default=self._seen)
        return found

    def end(self) -> None:
        assert self._run.stdin is not None
        assert self._run.stdout is not None
        self._run.stdin.close()
        assert self._run.wait() == 0
        self._run.stdout.close()

    def log(self) -> str:
        (log,) = (self.top.parent / "home").glob("workspaces/*/undo/keeper.log")
        return log.read_text()

    def natively(self) -> int:
        told = [json.loads(line) for line in self.log().splitlines()]
        return sum(line["natively"] for line in told if "natively" in line)


@pytest.fixture
def agents(tmp_path: Path) -> Generator[tuple[Agent, Agent]]:
    both = Agent(tmp_path / "native", is_native=True), Agent(tmp_path / "python", is_native=False)
    yield both
    for agent in both:
        agent.end()


def _comparable(records: Iterable[AnyRecord]) -> list[object]:
    """Without what says when it was, and with numbers for objects by the order in which they come."""
    objects: dict[object, int] = {}
    numbers: dict[object, int] = {}
    found: list[object] = []
    for record in records:
        if isinstance(record, Begin):
            continue  # (it has the run's id)
        fields = msgspec.structs.asdict(record)
        if fields.get("replaced"):
            fields |= {
                f"replaced {name}": value for name, value in msgspec.structs.asdict(fields.pop("replaced")).items()
            }
        for name, value in fields.items():
            if name in ("at", "mtime"):
                fields[name] = None
            elif name in ("seq", "make", "failed", "step"):
                fields[name] = numbers.setdefault(value, len(numbers))
            elif isinstance(value, Metadata):
                fields[name] = value._replace(mtime=0)
            elif isinstance(value, Keeping):
                fields[name] = value.how, bool(value.number), value.content, value.shared
            elif name.endswith("identity"):
                fields[name] = objects.setdefault(value, len(objects))
        found.append((type(record).__name__, repr(sorted(fields.items(), key=lambda field: field[0]))))
    return found


def _usual_call(chance: random.Random) -> tuple[str, tuple[int | bytes, ...]]:
    """One of those that the native loop is for."""
    names = (b"x", b"y", b"new", b"made", b"e", b"large")

    def path() -> bytes:
        return chance.choice((b"", b"a/", b"a/c/", b"b/", b"b/d/")) + chance.choice(names)

    flags = (
        chance.choice((os.O_WRONLY, os.O_RDWR)) | chance.choice((0, 0, os.O_APPEND)) | chance.choice((0, os.O_TRUNC))
    )
    calls: tuple[tuple[str, tuple[int | bytes, ...]], ...] = (
        *(("openat", (CWD, path(), flags | chance.choice((0, os.O_CREAT, os.O_CREAT | os.O_EXCL)), 0o640)),) * 4,
        ("mkdirat", (CWD, path(), 0o750)),
        *(("unlinkat", (CWD, path(), chance.choice((0, 0, 0x200)))),) * 2,
        *(("renameat2", (CWD, path(), CWD, path(), chance.choice((0, 0, 1)))),) * 2,
        *(("linkat", (CWD, path(), CWD, path(), chance.choice((0, 0x400)))),) * 2,
        ("symlinkat", (b"x", CWD, path())),
        ("fchmodat", (CWD, path(), chance.choice((0o600, 0o4711)))),
        ("fchownat", (CWD, path(), chance.choice((0, 12345)), 0xFFFFFFFF, 0)),
        ("utimensat", (CWD, path(), struct.pack("qqqq", 5, 6, 7, chance.choice((8, (1 << 30) - 2))), 0)),
        ("openat", (CWD, b"/dev/null", flags | chance.choice((0, os.O_CREAT, os.O_CREAT | os.O_EXCL)), 0o640)),
        ("fchmodat", (CWD, b"/proc/self/fd/OPENED", chance.choice((0o600, 0o755)))),
        ("fchmodat", (CWD, b"/proc/self/fd/0OPENED", 0o700)),
        ("fchmod", (-1, chance.choice((0o600, 0o755)))),
        ("fchown", (-1, chance.choice((0, 12345)), 0)),
        ("utimensat", (-1, 0, 0, 0)),
        ("umask", (chance.choice((0o22, 0o77, 0)),)),
        ("utimensat", (CWD, path(), struct.pack("qqqq", _LATE, 0, _LATE, 0), 0)),
    )
    return chance.choice(calls)


def _program(chance: random.Random) -> list[tuple[int, list[int | str], bool]]:
    """Numbers of calls, their arguments (-1: what was opened last), and whether they open something."""
    numbers = ARCHITECTURES[machine()].numbers
    calls: list[tuple[int, list[int | str], bool]] = []
    for _ in range(_CALLS):
        name, arguments = some_call(chance)
        if chance.random() < 0.7:
            name, arguments = _usual_call(chance)
        given = [base64.b64encode(one).decode() if isinstance(one, bytes) else one for one in arguments]
        calls.append((numbers[name], given, name in ("openat", "openat2")))
    return calls


@pytest.mark.parametrize("seed", some(range(12), 3))
def test_both_loops_do_the_same(agents: tuple[Agent, Agent], seed: int) -> None:
    fast, slow = agents
    for number in range(_TREES):
        chance = random.Random(seed * _TREES + number)
        program = _program(chance)
        told = f"program {seed * _TREES + number}"
        assert fast.make(str(number) + "/ws", program) == slow.make(str(number) + "/ws", program), told
        ones, others = _comparable(fast.records()), _comparable(slow.records())
        assert [*enumerate(ones)] == [*enumerate(others)], told
        left = [
            {path: seen._replace(mtime=0) for path, seen in photograph(agent.top / str(number)).items()}
            for agent in agents
        ]
        assert differences(*left) == [], told
    for agent in agents:
        agent.holdfast("step", "commit")
        agent.end()
        agent.holdfast("undo")
        assert differences(agent.before, photograph(agent.top)) == []
    assert fast.natively() > _TREES * _CALLS // 4
    assert slow.natively() == 0


@pytest.mark.slow
def test_nothing_is_wrong_with_what_the_native_loop_does_to_memory(tmp_path: Path) -> None:
    """The module that is installed, built anew with sanitizers."""
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so")]
    if not all(libraries):
        pytest.skip("needs gcc, with its sanitizers")
    package = tmp_path / "src" / "holdfast"
    package.mkdir(parents=True)
    for path in Path(holdfast.__file__).parent.iterdir():
        if not path.name.startswith("_hot.abi3"):
            (package / path.name).symlink_to(path)
    specification = importlib.util.spec_from_file_location("build", Path(__file__).parents[2] / "native/build.py")
    assert specification is not None
    assert specification.loader is not None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    flags = ("-g", "-U_FORTIFY_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    builder.build(package / builder.NAME, ("gcc",), flags)
    agent = Agent(
        tmp_path,
        is_native=True,
        PYTHONPATH=str(package.parent),
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0",
    )
    pipes = [base64.b64encode(name).decode() for name in (b"one", b"two")]  # (which Python makes)
    mknodat = ARCHITECTURES[machine()].numbers["mknodat"]
    assert agent.make(".", [(mknodat, [CWD, pipe, 0o10600, 0], False) for pipe in pipes]) == [0, 0]
    for number, directory in enumerate((".", *(f"{number}/ws" for number in range(9)))):
        agent.make(directory, _program(random.Random(number)))
    agent.holdfast("step", "commit")
    agent.end()
    assert "runtime error" not in agent.log()
    assert "AddressSanitizer" not in agent.log()
    assert agent.natively() > 10 * _CALLS // 4


def _library(name: str) -> str:
    if shutil.which("gcc") is None:
        return ""
    found = subprocess.run(("gcc", f"-print-file-name={name}"), capture_output=True, text=True, check=True).stdout
    return found.strip() if found.startswith("/") else ""
