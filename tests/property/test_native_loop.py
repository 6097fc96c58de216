"""The native loop against Python's: the same programs under both get the same answers, leave the same trees and the
same records, and are taken back.
"""

from __future__ import annotations

import base64
import errno
import importlib.util
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import machine
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.files.linux.metadata import Metadata
from holdfast.files.linux.native import SWITCH
from holdfast.supervisor.control.remote_service import connect
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.journal.records import AnyRecord, Failed, Keeping, Link, Make, Move, Remove
from holdfast.undo.journal.segments import read_journal

from ..sampling import examples
from ..some_calls import CALLS, CWD, Call, call, flags, one, plant, programs, some_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("holdfast._hot") is None, reason="it was not built")

Program: TypeAlias = "list[tuple[int, list[int | str], bool]]"
"""Numbers of calls, their arguments (-1: what was opened last), and whether they open something."""
_AGENT = """
import base64, ctypes, json, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NULL = base64.b64encode(b"/dev/null").decode()
HERE = (1 << 64) - 100

def play(here, calls):
    opened, answers = -1, []
    for number, arguments, opens in calls:
        given = []
        for one in arguments:
            if isinstance(one, str):
                given.append(ctypes.c_char_p(base64.b64decode(one).replace(b"OPENED", b"%d" % opened)))
            else:
                known = {-1: opened & (1 << 64) - 1, HERE: here}
                given.append(ctypes.c_uint64(known.get(one, one)))
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
    return answers

class Thread(threading.Thread):
    def __init__(self, program):
        super().__init__()
        self.program = program
    def run(self):
        here = os.open(self.program[0], os.O_RDONLY)  # (the working directory is that of all threads)
        self.answers = play(here, self.program[1])
        os.close(here)
    def result(self):
        self.join()
        return self.answers

class Process:
    def __init__(self, program):
        self.program = program
    def start(self):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            os.chdir(self.program[0])
            with open(theirs, "w") as answers:
                json.dump(play(HERE, self.program[1]), answers)
            os._exit(0)
        os.close(theirs)
        self.answers = open(ours)
    def result(self):
        with self.answers:
            found = json.load(self.answers)
        os.wait()
        return found

for line in sys.stdin:
    kind, programs = json.loads(line)
    callers = [{"threads": Thread, "processes": Process}[kind](program) for program in programs]
    for caller in callers:
        caller.start()
    print(json.dumps([caller.result() for caller in callers]), flush=True)
"""
_TREES = 100
_LATE = 15_000_000_000
"""A time of which nanoseconds take all 64 bits; where the file system has none as late, the last that it has."""
_CALLS = 60


class Agent:
    """A run whose process makes the calls that it is told, in directories of the tree."""

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
        environment = os.environ | {SWITCH: str(int(is_native)), "HOLDFAST_HOME": str(base / "home")} | more
        command = (sys.executable, "-m", "holdfast")
        subprocess.run((*command, "init", "-q"), cwd=self.top, env=environment, check=True)
        self._run = subprocess.Popen(
            (*command, "--log-level", "info", "run", "--", sys.executable, "-c", _AGENT),
            cwd=self.top, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._seen = 0
        self.play("processes", [(".", [])])  # (by then it has a keeper)
        (self._folder,) = (base / "home").glob("workspaces/*/undo")
        keeper = connect(os.fsencode(self._folder))
        assert keeper is not None
        self._keeper = keeper
        self._step = 0

    def begin(self) -> None:
        """What comes is one step, however long it takes."""
        self._step = self._keeper.begin("")

    def play(self, kind: str, programs: list[tuple[str, Program]]) -> list[list[int]]:
        """Make the calls of each program in its directory, by a thread or process each; the answers."""
        assert self._run.stdin is not None
        assert self._run.stdout is not None
        told = [(str(self.top / directory), program) for directory, program in programs]
        self._run.stdin.write(json.dumps((kind, told)) + "\n")
        self._run.stdin.flush()
        return json.loads(self._run.stdout.readline())

    def records(self) -> list[AnyRecord]:
        """Those that were written since."""
        found = [record for record in read_journal(os.fsencode(self._folder)).records if record.seq > self._seen]
        self._seen = max((record.seq for record in found), default=self._seen)
        return found

    def photograph(self, directory: str) -> dict[bytes, PathState]:
        return photograph(self.top / directory)

    def commit(self) -> None:
        """End the step, if it has not ended."""
        if self._step:
            self._keeper.commit(self._step)
            self._step = 0

    def undo(self) -> None:
        """End the step, and take it back."""
        step = self._step
        self.commit()
        assert self._keeper.undo([step]).conflicts == ()
        self.records()

    def end(self) -> None:
        """Let it end, and its keeper."""
        assert self._run.stdin is not None
        assert self._run.stdout is not None
        self._keeper.close()
        self._run.stdin.close()
        assert self._run.wait() == 0
        self._run.stdout.close()

    def log(self) -> str:
        return (self._folder / "keeper.log").read_text()

    def natively(self) -> int:
        told = [json.loads(line) for line in self.log().splitlines()]
        return sum(line["natively"] for line in told if "natively" in line)


class Agents:
    """Two runs, whose calls are carried out natively and in Python. Each program gets a directory that nothing has
    changed before, so that it comes out the same however often it is tried.
    """

    def __init__(self, folders: Iterator[Path]) -> None:
        self._folders = folders
        self._pair: list[Agent] = []
        self._free: list[str] = []
        self.natively: list[int] = []

    def directories(self, count: int) -> list[str]:
        if len(self._free) < count:
            self.end()
            base = next(self._folders)
            self._pair = [Agent(base / name, is_native=name == "native") for name in ("native", "python")]
            self._free = [str(number) for number in range(_TREES)]
        return [self._free.pop() for _ in range(count)]

    @contextmanager
    def step(self, directories: list[str]) -> Generator[tuple[Agent, Agent]]:
        """What is done inside is one step, which is taken back afterwards: these directories must be as before."""
        fast, slow = self._pair
        before = [agent.photograph(name) for agent in self._pair for name in directories]
        try:
            for agent in self._pair:
                agent.begin()
            yield fast, slow
            for agent in self._pair:
                agent.undo()
            after = [agent.photograph(name) for agent in self._pair for name in directories]
            for one, other in zip(before, after, strict=True):
                assert differences(one, other) == []
        except BaseException as error:
            # (The others are as before; to begin with new ones each time takes longer than all that is tried.)
            if isinstance(error, AssertionError):
                for agent in self._pair:
                    agent.commit()
                    agent.records()
            else:
                self._free = []
            raise

    def end(self) -> None:
        for agent in self._pair:
            agent.end()
            self.natively.append(agent.natively())
        self._pair = []


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Generator[Agents]:
    found = Agents(tmp_path_factory.mktemp("agents") / str(number) for number in itertools.count())
    yield found
    found.end()
    assert sum(found.natively[::2]) > 100
    assert sum(found.natively[1::2]) == 0


def _path_of(record: AnyRecord) -> bytes:
    """The one that says whose it is."""
    return getattr(record, "path", b"") or next(iter(getattr(record, "paths", ())), b"")


def _below(directory: str, records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """The records of what was done in a directory, and to it."""
    found: list[AnyRecord] = []
    numbers: set[int] = set()
    for record in records:
        is_its = (_path_of(record) + b"/").startswith(os.fsencode(directory) + b"/")
        if is_its or getattr(record, "make", 0) in numbers or getattr(record, "failed", 0) in numbers:
            found.append(record)
            numbers.add(record.seq)
    return found


def _comparable(records: Iterable[AnyRecord]) -> list[object]:
    """Without what says when it was, and with numbers for objects by the order in which they come."""
    objects: dict[object, int] = {}
    numbers: dict[object, int] = {}
    found: list[object] = []
    for record in records:
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


_USUAL_PATH = st.tuples(
    st.sampled_from((b"", b"a/", b"a/c/", b"b/", b"b/d/")),
    st.sampled_from((b"x", b"y", b"new", b"made", b"e", b"large")),
).map(b"".join)
_WRITING = (os.O_WRONLY, os.O_RDWR), (0, 0, os.O_APPEND), (0, os.O_TRUNC)
_MAKING = (0, os.O_CREAT, os.O_CREAT | os.O_EXCL)
_USUAL = some_of(
    {
        call("openat", CWD, _USUAL_PATH, flags(*_WRITING, _MAKING), 0o640): 4,
        call("mkdirat", CWD, _USUAL_PATH, 0o750): 1,
        call("unlinkat", CWD, _USUAL_PATH, one(0, 0, 0x200)): 2,
        call("renameat2", CWD, _USUAL_PATH, CWD, _USUAL_PATH, one(0, 0, 1)): 2,
        call("linkat", CWD, _USUAL_PATH, CWD, _USUAL_PATH, one(0, 0x400)): 2,
        call("symlinkat", b"x", CWD, _USUAL_PATH): 1,
        call("fchmodat", CWD, _USUAL_PATH, one(0o600, 0o4711)): 1,
        call("fchownat", CWD, _USUAL_PATH, one(0, 12345), 0xFFFFFFFF, 0): 1,
        call(
            "utimensat", CWD, _USUAL_PATH, one(*(struct.pack("qqqq", 5, 6, 7, to) for to in (8, (1 << 30) - 2))), 0
        ): 1,
        call("utimensat", CWD, _USUAL_PATH, struct.pack("qqqq", _LATE, 0, _LATE, 0), 0): 1,
        call("openat", CWD, b"/dev/null", flags(*_WRITING, _MAKING), 0o640): 1,
        call("fchmodat", CWD, b"/proc/self/fd/OPENED", one(0o600, 0o755)): 1,
        call("fchmodat", CWD, b"/proc/self/fd/0OPENED", 0o700): 1,
        call("fchmod", -1, one(0o600, 0o755)): 1,
        call("fchown", -1, one(0, 12345), 0): 1,
        call("utimensat", -1, 0, 0, 0): 1,
        call("umask", one(0o22, 0o77, 0)): 1,
    }
)
"""Those that the native loop is for."""
_ANY = some_of({_USUAL: 7, CALLS: 3})


_OF_PROCESSES = ("umask", "truncate", "setxattr", "removexattr")
"""What all threads of a process have in common, and what begins at their working directory, as ``by-proc`` does."""


def _encoded(program: list[Call], kind: str) -> Program:
    numbers = ARCHITECTURES[machine()].numbers
    return [
        (
            numbers[name],
            [base64.b64encode(one).decode() if isinstance(one, bytes) else one for one in arguments],
            name in ("openat", "openat2"),
        )
        for name, arguments in program
        if kind == "processes" or not (name in _OF_PROCESSES or "by-proc" in str(arguments))
    ]


def _kept(photo: dict[bytes, PathState]) -> dict[bytes, PathState]:
    """Two trees that are changed one after the other have other times."""
    return {path: seen._replace(mtime=0) for path, seen in photo.items()}


@pytest.mark.parametrize("kind", ["threads", "processes"])
@given(given=st.lists(programs(_ANY, _CALLS), min_size=1, max_size=4))
@settings(max_examples=examples(200, 20))
def test_both_loops_do_the_same(agents: Agents, given: list[list[Call]], kind: str) -> None:
    """Also where several threads, or processes, make calls at once, each in a directory of its own."""
    directories = agents.directories(len(given))
    told = [(f"{name}/ws", _encoded(one, kind)) for name, one in zip(directories, given, strict=True)]
    with agents.step(directories) as (fast, slow):
        assert fast.play(kind, told) == slow.play(kind, told)
        records = fast.records(), slow.records()
        for name in directories:
            ones, others = (_comparable(_below(name, found)) for found in records)
            assert [*enumerate(ones)] == [*enumerate(others)]
            assert differences(_kept(fast.photograph(name)), _kept(slow.photograph(name))) == []


_SHARED_NAME = st.sampled_from((b"made", b"e", b"a/new"))
_SHARED = some_of(
    {
        call("openat", CWD, _SHARED_NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640): 3,
        call("mkdirat", CWD, _SHARED_NAME, 0o750): 2,
        call("symlinkat", b"x", CWD, _SHARED_NAME): 1,
        call("linkat", CWD, b"x", CWD, _SHARED_NAME, 0): 1,
        call("renameat2", CWD, _SHARED_NAME, CWD, _SHARED_NAME, 1): 3,
        call("unlinkat", CWD, _SHARED_NAME, one(0, 0, 0x200)): 4,
        call("openat", CWD, _SHARED_NAME, flags(*_WRITING), 0): 1,
        call("fchmodat", CWD, _SHARED_NAME, 0o700): 1,
    }
)
"""Each makes a name that is free, or takes one away that is there, or changes none."""
_RACED = {0, *(-number for number in (errno.EEXIST, errno.ENOENT, errno.EISDIR, errno.ENOTDIR))}


def _changes(name: str, arguments: tuple[int | bytes, ...]) -> list[tuple[bytes, int]]:
    """The names that a call makes (1) and takes away (-1), if it can."""
    paths = [one for one in arguments if isinstance(one, bytes)]
    if name == "renameat2":
        return [(paths[0], -1), (paths[1], 1)]
    if name == "unlinkat":
        return [(paths[0], -1)]
    is_opened = name == "openat" and not int(arguments[2]) & os.O_CREAT
    return [] if is_opened or name == "fchmodat" else [(paths[-1], 1)]


def _recorded_changes(records: list[AnyRecord], there: set[bytes]) -> Counter[tuple[bytes, int]]:
    """The same, as the journal has it, whose order must be one in which they can have happened; ``there`` becomes what
    is there afterwards.
    """
    failed = {record.failed for record in records if isinstance(record, Failed)}
    found: Counter[tuple[bytes, int]] = Counter()
    for record in records:
        if record.seq in failed:
            continue
        if isinstance(record, Remove | Move):
            there.remove(record.path)
            found[record.path, -1] += 1
        if isinstance(record, Make | Link | Move):
            path = record.target if isinstance(record, Move) else record.path
            assert path not in there
            there.add(path)
            found[path, 1] += 1
    return found


@pytest.mark.parametrize("kind", ["threads", "processes"])
@given(raced=st.lists(programs(_SHARED, _CALLS), min_size=2, max_size=4))
@settings(max_examples=examples(200, 10))
def test_what_callers_do_to_the_same_names_happens_in_the_order_that_is_recorded(
    agents: Agents, raced: list[list[Call]], kind: str
) -> None:
    [name] = agents.directories(1)
    with agents.step([name]) as both:
        for agent in both:
            there = set(agent.photograph(name))
            answers = agent.play(kind, [(f"{name}/ws", _encoded(program, kind)) for program in raced])
            said: Counter[tuple[bytes, int]] = Counter()
            for (called, arguments), answer in zip(itertools.chain(*raced), itertools.chain(*answers), strict=True):
                assert answer in _RACED, (called, arguments)
                said.update((b"ws/" + path, way) for path, way in _changes(called, arguments) if not answer)
            top = os.fsencode(name) + b"/"
            named = {top + path for path in there}
            recorded = _recorded_changes(agent.records(), named)
            assert Counter({(top + path, way): count for (path, way), count in said.items()}) == recorded
            assert named == {top + path for path in agent.photograph(name)}


_ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags_", "names"),
    [(_ADDRESS, ("libasan.so", "libubsan.so")), (("-fsanitize=thread",), ("libtsan.so",))],
    ids=["memory", "threads"],
)
def test_sanitizers_find_nothing_in_the_native_loop(
    tmp_path: Path, flags_: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """The module that is installed, built anew with them: for what it does to memory, and without its locks."""
    libraries = [_library(name) for name in names]
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
    builder.build(package / builder.NAME, ("gcc",), ("-g", "-U_FORTIFY_SOURCE", *flags_))
    agent = Agent(
        tmp_path,
        is_native=True,
        PYTHONPATH=str(package.parent),
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0",
    )
    pipes = [base64.b64encode(name).decode() for name in (b"one", b"two")]  # (which Python makes)
    mknodat = ARCHITECTURES[machine()].numbers["mknodat"]
    assert agent.play("processes", [(".", [(mknodat, [CWD, pipe, 0o10600, 0], False) for pipe in pipes])]) == [[0, 0]]
    directories = itertools.cycle(range(_TREES))

    @given(programs(_ANY, _CALLS), st.lists(programs(_SHARED, _CALLS), max_size=3))
    @settings(max_examples=examples(100, 10))
    def play(alone: list[Call], raced: list[list[Call]]) -> None:
        directory = f"{next(directories)}/ws"
        agent.play("processes", [(directory, _encoded(program, "processes")) for program in (alone, *raced)])

    play()
    agent.end()
    assert "runtime error" not in agent.log()
    assert "Sanitizer" not in agent.log()
    assert agent.natively() > 20


def _library(name: str) -> str:
    if shutil.which("gcc") is None:
        return ""
    found = subprocess.run(("gcc", f"-print-file-name={name}"), capture_output=True, text=True, check=True).stdout
    return found.strip() if found.startswith("/") else ""
