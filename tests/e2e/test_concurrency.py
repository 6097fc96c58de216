"""Several processes at once through the installed command: each result is a true state, and nobody sees a database."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import holdfast
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_COMMAND = Path(sys.executable).with_name("holdfast")
INSTALLED = [str(_COMMAND)] if _COMMAND.exists() else [sys.executable, "-m", "holdfast"]
NOBODY = 65534
LIMIT = 120

HOLDER = """
import sys, holdfast
with holdfast.open(sys.argv[1], home=sys.argv[2]) as workspace, workspace._context.lock():
    print("held", flush=True)
    sys.stdin.read()
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Place:
    """A home and workspaces in it, each used by processes of their own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"

    def make(self, name: str) -> Path:
        path = self.base / name
        path.mkdir()
        self.run(path, "init")
        return path

    def start(self, path: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*INSTALLED, "--home", str(self.home), "-w", str(path), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environ},
        )

    def run(self, path: Path, *words: str, code: int = 0, **environ: str) -> Done:
        done = finish(self.start(path, *words, **environ))
        assert done.code == code, done
        return done

    def json(self, path: Path, *words: str) -> dict[str, Any]:
        return json.loads(self.run(path, *words, "--json").out)


def finish(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=LIMIT)
    check(err)
    return Done(process.returncode, out, err)


def check(said: str) -> None:
    for leak in ("Traceback", "database is locked", "sqlite", "this is a bug"):
        assert leak not in said, said


@contextmanager
def held(path: Path, home: Path) -> Generator[subprocess.Popen[bytes]]:
    """Another process holds the workspace's lock for the length of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(LIMIT)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Generator[list[int]]:
    """Do ``work`` again and again in a thread until the block ends; counts the rounds. Its error is the block's."""
    stop = threading.Event()
    rounds = [0]
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.is_set():
                work()
                rounds[0] += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield rounds
    finally:
        stop.set()
        thread.join(LIMIT)
    if errors:
        raise errors[0]


@pytest.fixture(name="shared")
def _shared(tmp_path: Path) -> Iterator[Place]:
    shared = Place(tmp_path)
    first = shared.make("first")
    yield shared
    with holdfast.init(first, home=shared.home) as workspace:
        found = workspace.verify(read_data=True)
        assert found.ok, found.problems


def state(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_parallel_checkpoints_of_an_unchanged_tree_are_one(shared: Place) -> None:
    path = shared.base / "first"
    for number in range(50):
        (path / f"f{number}").write_text(f"{number}\n")
    processes = [shared.start(path, "checkpoint", "--json") for _ in range(6)]
    results = [finish(process) for process in processes]
    assert [done.code for done in results] == [0] * 6
    answers = [json.loads(done.out) for done in results]
    assert len({answer["id"] for answer in answers}) == 1
    assert sum(answer["created"] for answer in answers) == 1
    assert len(shared.json(path, "log")["checkpoints"]) == 1


def test_parallel_checkpoints_while_files_change_each_hold_a_true_state(shared: Place) -> None:
    # A writer replaces ``a``, then ``b``, with the same rising number: at any moment b is a or one less. Each file is
    # read whole or not at all, and no checkpoint goes back.
    path = shared.base / "first"
    number = 0

    def write() -> None:
        nonlocal number
        number += 1
        for name in ("a", "b"):
            temporary = path / f"{name}.swp"
            temporary.write_text(f"{number:06d}" * 200)
            temporary.rename(path / name)

    write()
    results: list[Done] = []
    with meanwhile(write) as rounds:
        for _ in range(3):
            processes = [shared.start(path, "checkpoint", "--json") for _ in range(4)]
            results += [finish(process) for process in processes]
    assert rounds[0] > 3
    assert [done.code for done in results] == [0] * 12
    assert any(json.loads(done.out)["created"] for done in results)
    previous = 0
    with holdfast.open(path, home=shared.home) as workspace:
        for checkpoint in reversed(workspace.log().checkpoints):
            held_there = {change.path for change in workspace.diff(checkpoint.id).changes}
            assert held_there <= {b"a", b"b"}
            for name in (b"a", b"b"):
                text = b"".join(workspace.cat(checkpoint.id, name)).decode()
                assert text == text[:6] * 200, "a torn file"
            seen = int(b"".join(workspace.cat(checkpoint.id, b"a"))[:6])
            assert seen >= previous
            previous = seen
        log = workspace.log().checkpoints
        assert [checkpoint.parent for checkpoint in log] == [*[one.id for one in log[1:]], None], "one line"
    final = shared.json(path, "checkpoint")
    assert finish(shared.start(path, "cat", f"{final['id']}:a")).out == (path / "a").read_text()


def test_two_workspaces_in_one_home_with_everything_else_at_once(shared: Place) -> None:
    # I11
    paths = [shared.base / "first", shared.make("second")]
    common = [os.urandom(3000) for _ in range(6)]
    expected: dict[str, dict[str, bytes]] = {}
    lock = threading.Lock()
    turn = dict.fromkeys(paths, 0)

    def keep_house() -> None:
        for words in (("gc", "--grace", "0"), ("forget", "--keep-last", "2"), ("verify",), ("stats",)):
            done = finish(shared.start(paths[0], *words, "--json"))
            assert done.code == 0 or json.loads(done.err.splitlines()[-1])["error"]["code"] == "locked", done

    def save(path: Path) -> None:
        turn[path] += 1
        for name in range(4):
            (path / f"f{name}").write_bytes(common[(turn[path] + name) % len(common)])
        answer = shared.json(path, "checkpoint")
        with lock:
            expected[answer["id"]] = state(path)
        if turn[path] % 3 == 0:
            shared.run(path, "undo")

    with meanwhile(keep_house), meanwhile(lambda: save(paths[0])) as one, meanwhile(lambda: save(paths[1])) as two:
        for _ in range(6):
            shared.run(paths[1], "log")
            shared.run(paths[0], "status")
    assert one[0]
    assert two[0]
    kept = 0
    for path in paths:
        with holdfast.open(path, home=shared.home) as workspace:
            for checkpoint in workspace.log().checkpoints:
                if checkpoint.id in expected:
                    kept += 1
                    assert {
                        name: b"".join(workspace.cat(checkpoint.id, name.encode())) for name in expected[checkpoint.id]
                    } == expected[checkpoint.id]
    assert kept


def test_a_checkpoint_while_a_restore_runs_waits_and_saves_its_outcome(shared: Place) -> None:
    path = shared.base / "first"
    for number in range(400):
        (path / f"f{number}").write_text(f"one {number}\n")
    one = shared.json(path, "checkpoint", "-m", "one")
    for number in range(400):
        (path / f"f{number}").write_text(f"two {number}\n")
    two = shared.json(path, "checkpoint", "-m", "two")
    for goal, name in ((one, "one"), (two, "two"), (one, "one")):
        restoring = shared.start(path, "restore", name, "--json")
        saving = [shared.start(path, "checkpoint", "--json") for _ in range(3)]
        done = finish(restoring)
        assert done.code == 0, done
        assert json.loads(done.out)["skipped"] == []
        for process in saving:
            saved = finish(process)
            assert saved.code == 0, saved
            answer = json.loads(saved.out)
            assert not answer["created"], "half a restore was saved"
            assert answer["id"] in (one["id"], two["id"])
        assert {text.split()[0] for text in state(path).values()} == {name.encode()}
        assert shared.json(path, "status")["last_checkpoint"] == goal["id"]


def test_who_waits_too_long_is_refused_with_exit_4_and_told_by_whom(shared: Place) -> None:
    path = shared.base / "first"
    (path / "f").write_text("1")
    shared.run(path, "checkpoint")
    (path / "f").write_text("2")
    with held(path, shared.home) as holder:
        for words in (("checkpoint",), ("status",), ("undo",), ("restore", "@"), ("diff",)):
            done = shared.run(path, *words, code=4, HOLDFAST_LOCK_TIMEOUT="0.05")
            assert f"process {holder.pid}" in done.err
            assert "lock.timeout" in done.err
        assert shared.run(path, "log", HOLDFAST_LOCK_TIMEOUT="0").code == 0, "looking at history needs no lock"
    assert shared.json(path, "checkpoint")["created"]


def test_the_lock_of_a_killed_holder_is_free(shared: Place) -> None:
    # I3
    path = shared.base / "first"
    (path / "f").write_text("1")
    with held(path, shared.home) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait(LIMIT)
        assert shared.run(path, "checkpoint", HOLDFAST_LOCK_TIMEOUT="10").code == 0


def test_a_checkpoint_killed_at_any_moment_holds_nobody_up(shared: Place) -> None:
    # I3, I11: killed where it happens to be, with others beside it.
    path = shared.base / "first"
    for turn in range(6):
        for number in range(60):
            (path / f"f{number}").write_bytes(os.urandom(500))
        victim = shared.start(path, "checkpoint")
        other = shared.start(path, "checkpoint", "--json")
        with holdfast.open(path, home=shared.home) as workspace:
            for _ in range(turn * 3):
                workspace.log()
        victim.kill()
        victim.communicate(timeout=LIMIT)
        done = finish(other)
        assert done.code == 0, done
        assert shared.json(path, "checkpoint")["id"] == json.loads(done.out)["id"]
        assert shared.json(path, "status")["clean"]


def test_the_first_commands_in_a_new_home_may_come_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    paths = [tmp_path / f"w{number}" for number in range(5)]
    for path in paths:
        path.mkdir()
        (path / "f").write_text(path.name)
    processes = [place.start(path, "init", str(path)) for path in [*paths, paths[0], paths[0]]]
    assert [finish(process).code for process in processes] == [0] * 7
    saving = [place.start(path, "checkpoint", "--json") for path in paths]
    assert [finish(process).code for process in saving] == [0] * 5
    with holdfast.open(paths[0], home=place.home) as workspace:
        assert len(workspace.log(everything=True).checkpoints) == 5
        assert workspace.stats().workspaces == 5
        assert workspace.verify(read_data=True).ok


# --- other users

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


AS_NOBODY = """
import argparse, dataclasses, datetime, decimal, difflib, enum, fnmatch, gc, importlib, json, logging, os, pkgutil
import shutil, sys, tempfile, tomllib, unicodedata, urllib.parse, uuid
import encodings.ascii, encodings.idna, encodings.latin_1
import holdfast
for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not module.name.startswith(("holdfast.testing", "holdfast.__main__")):
        importlib.import_module(module.name)
from holdfast.cli.main import main
nobody = int(sys.argv[1])
gc.freeze()
print(flush=True)
for line in sys.stdin:
    words, home, *said = json.loads(line)
    child = os.fork()
    if not child:
        os.environ["HOME"] = home
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(said, 1):
            os.dup2(os.open(path, os.O_WRONLY), number)
        sys.stdin = open(0)
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # (To take all that apart which was loaded takes longer than most commands.)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Everything is loaded before the privilege is given up: the interpreter may lie where no other user can read. That
takes a second: each command is run by a process that is forked then.
"""


class Nobody:
    """Runs commands as user 65534."""

    def __init__(self, process: subprocess.Popen[str], base: Path) -> None:
        self._process, self._base = process, base
        assert process.stdout is not None
        assert process.stdin is not None
        self._from, self._to = process.stdout, process.stdin
        assert self._from.readline() == "\n"

    def __call__(self, home: Path, tree: Path, *words: str) -> Done:
        said = [self._base / name for name in ("out", "err")]
        for path in said:
            path.write_text("")
        line = ["--home", str(home), "-w", str(tree), *words]
        self._to.write(json.dumps([line, str(tree.parent), *map(str, said)]) + "\n")
        self._to.flush()
        code = int(self._from.readline())
        done = Done(code, *(path.read_text() for path in said))
        check(done.err)
        return done


@pytest.fixture(name="as_nobody", scope="module")
def _as_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nobody]:
    """Who runs commands as user 65534."""
    words = [sys.executable, "-c", AS_NOBODY, str(NOBODY)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        yield Nobody(process, tmp_path_factory.mktemp("nobody"))


@pytest.fixture(name="stranger")
def _stranger() -> Iterator[Path]:
    """A directory of user 65534's own that he can reach."""
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="holdfast-nobody-"))
    path.chmod(0o755)
    (path / "own").mkdir()
    (path / "own/tree").mkdir()
    for inner in (path / "own", path / "own/tree"):
        os.chown(inner, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


@as_root
def test_an_unprivileged_user_can_do_everything_in_his_own_tree(stranger: Path, as_nobody: Nobody) -> None:
    home, tree = stranger / "own/home", stranger / "own/tree"

    def run(*words: str, code: int = 0) -> Done:
        done = as_nobody(home, tree, *words)
        assert done.code == code, done
        return done

    (tree / "d").mkdir()
    (tree / "d/f").write_text("1")
    (tree / "secret").write_text("root's")
    (tree / "secret").chmod(0o600)
    for path in (tree / "d", tree / "d/f"):
        os.chown(path, NOBODY, NOBODY)
    run("init", str(tree))
    saved = json.loads(run("checkpoint", "-m", "one", "--json").out)
    assert [found["path"] for found in saved["not_captured"]] == ["secret"]
    assert "ermission" in saved["not_captured"][0]["reason"]
    assert run("status").out.count("secret") == 1
    (tree / "d/f").write_text("2")
    run("diff")
    run("restore", "one")
    assert (tree / "d/f").read_text() == "1"
    run("undo")
    run("redo")
    shutil.rmtree(tree / "d")
    run("undo")
    assert (tree / "d/f").read_text() == "1"
    run("fork", "one", str(stranger / "own/forked"))
    run("forget", "--keep-last", "1")
    run("gc", "--grace", "0")
    run("verify", "--read-data")
    assert (tree / "secret").read_text() == "root's"
    for path in (tree / "d", tree / "d/f", stranger / "own/forked/d/f", home):
        assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY), path
    assert home.stat().st_mode & 0o777 == 0o700


@as_root
def test_a_directory_that_may_not_be_read_or_written_is_said(stranger: Path, as_nobody: Nobody) -> None:
    home, tree = stranger / "own/home", stranger / "own/tree"
    closed = tree / "closed"
    closed.mkdir(mode=0o700)
    (closed / "f").write_text("root's")
    fixed = tree / "fixed"
    fixed.mkdir(mode=0o755)
    (fixed / "f").write_text("1")
    assert as_nobody(home, tree, "init", str(tree)).code == 0
    saved = json.loads(as_nobody(home, tree, "checkpoint", "-m", "one", "--json").out)
    assert [found["path"] for found in saved["not_captured"]] == ["closed"]
    (fixed / "f").write_text("2")
    (fixed / "g").write_text("new")
    done = as_nobody(home, tree, "restore", "one", "--json")
    assert done.code == 4, done
    error = json.loads(done.err.splitlines()[-1])["error"]
    assert error["code"] == "left_alone"
    assert all(path in error["message"] for path in ("fixed/f", "fixed/g"))
    assert ((fixed / "f").read_text(), (fixed / "g").read_text()) == ("2", "new")
    assert as_nobody(home, tree, "verify", "--read-data").code == 0


@as_root
def test_another_users_home_is_refused(stranger: Path, as_nobody: Nobody) -> None:
    tree = stranger / "own/tree"
    theirs = stranger / "roots-home"
    theirs.mkdir(mode=0o755)
    for home in (theirs, stranger / "not-there"):
        done = as_nobody(home, tree, "init", str(tree), "--json")
        assert done.code in (1, 4)
        assert json.loads(done.err.splitlines()[-1])["error"]["code"] in ("refused", "storage")
    assert list(theirs.iterdir()) == []
    assert as_nobody(stranger / "own/home", tree, "init", str(tree)).code == 0
    (tree / "f").write_text("1")
    with pytest.raises(HoldfastError, match="belongs to user 65534"):
        holdfast.init(tree, home=stranger / "own/home")
