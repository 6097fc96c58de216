"""Boxes made of namespaces whose trees are supervised: both at once, and neither in the other's way."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.tree_state import differences, photograph

from . import afterwards
from .isolated import need_namespaces

ROOT = Path(__file__).parents[2]

RUNNER = """
import json, os, sys
from holdfast.sandbox.namespace import Namespace
from holdfast.sandbox.policy import FileAccess, SandboxPolicy, parse_network
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.supervisor.launch.supervised_run import SupervisedCommand, supervise
tree, log, network, *command = sys.argv[1:]
tree, log = os.fsencode(tree), os.fsencode(log)
box = Namespace(SandboxPolicy(FileAccess(tree, (log,)), parse_network(*json.loads(network))))
settings = KeeperSettings(root=tree, log=log)
sys.exit(supervise(SupervisedCommand([os.fsencode(word) for word in command], directory=tree), settings, box=box))
"""

LOOK = """
import ctypes, errno, json, os, struct
libc = ctypes.CDLL(None, use_errno=True)
found = {}
def attempt(name, function):
    try:
        found[name] = function()
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error))
def openat2(path, flags, resolve=0):
    how = struct.pack("=QQQ", flags, 0, resolve)
    fd = libc.syscall(437, -100, os.fsencode(path), how, len(how))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "")
    return fd
def name(fd, path):
    if libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, path, 0x400):
        raise OSError(ctypes.get_errno(), "")
    return os.stat(path).st_nlink
def write(path):
    # (Enough to find out, and harmless where it should not have been possible.)
    os.close(os.open(path, os.O_WRONLY))
    return "written"
"""


class Place:
    """A tree and its undo log."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.log = folder / "log"
        self.tree.mkdir()
        self.log.mkdir(mode=0o700)

    def words(self, *command: str, network: list[object] | None = None) -> list[str]:
        words = [sys.executable, "-P", "-c", RUNNER, str(self.tree), str(self.log), json.dumps(network or ["open"])]
        return [*words, *command]

    def run(self, *command: str, code: int = 0, network: list[object] | None = None) -> str:
        words = self.words(*command, network=network)
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False, env=environment())
        notes = (self.log / "keeper.log").read_text()
        assert (done.returncode, done.stderr, notes) == (code, "", ""), done
        return done.stdout

    def undo_all(self) -> int:
        with afterwards.service(self.log, self.tree) as service:
            steps = [step.id for step in service.steps() if step.state == "done"]
            assert service.undo(steps).conflicts == ()
            return len(steps)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    need_namespaces()
    return Place(tmp_path)


@pytest.mark.parametrize(
    "network", [["open"], ["disabled"], ["allow", ["192.0.2.7"], ["192.0.2.53"]]], ids=lambda n: n[0]
)
def test_every_step_in_a_box_can_be_undone(place: Place, network: list[object]) -> None:
    (place.tree / "kept").write_text("kept")
    (place.tree / "over").write_text("over")
    (place.tree / "folder/deep").mkdir(parents=True)
    (place.tree / "folder/deep/file").write_text("deep")
    (place.tree / "link").symlink_to(place.tree / "kept")
    before = photograph(place.tree)
    place.run(
        "sh",
        "-c",
        """
        sh -c 'rm kept; echo new > new; ln new again; ln -s new soft'
        sh -c 'mv new over; rm -r folder; mkdir folder; echo 1 > folder/1; echo 2 >> again; echo 3 > soft'
        sh -c 'cd folder; mkdir deep; cd deep; echo up > ../../up; chmod 600 ../1; touch -d 2001-01-01 .'
        sh -c "cp $PWD/up $PWD/folder/copy; truncate -s 1 link 2>/dev/null; mkfifo pipe; echo out > /dev/stdout"
        """,
        network=network,
    )
    assert (place.tree / "over").exists()
    assert not (place.tree / "folder/deep/file").exists()
    assert place.undo_all() == 4
    assert differences(before, photograph(place.tree)) == []


def test_what_is_removed_in_a_box_is_kept_without_a_copy(place: Place) -> None:
    # Two mounts of one file system cannot rename between each other: the undo log has to do it where it is mounted.
    for name in ("removed", "replaced", "beside"):
        (place.tree / name).write_text(name)
    before = {path.name: path.stat().st_ino for path in place.tree.iterdir()}
    place.run("sh", "-c", "rm removed; mv beside replaced")
    place.undo_all()
    assert {path.name: path.stat().st_ino for path in place.tree.iterdir()} == before


def test_nothing_that_is_handed_in_leads_out(place: Place) -> None:
    secret = place.log.parent / "outside"
    secret.mkdir()
    (secret / "file").write_text("secret")
    up = "../" * 30 + str(place.log).lstrip("/")
    code = f"""
os.mkdir("q")
def listed(fd):
    return os.listdir(os.open({up!r}, os.O_RDONLY, dir_fd=fd))
for flags in (os.O_RDONLY | os.O_DIRECTORY, os.O_PATH | os.O_DIRECTORY):
    attempt(f"relative {{flags}}", lambda: listed(openat2("q", flags)))
    attempt(f"absolute {{flags}}", lambda: listed(openat2(os.getcwd() + "/q", flags)))
    attempt(f"beneath {{flags}}", lambda: listed(openat2("q", flags, 8)))
attempt("without links", lambda: os.close(openat2("q", os.O_RDONLY | os.O_DIRECTORY, 4)))
os.mkdir("gone")
gone = os.open("gone", os.O_RDONLY)
os.rmdir("gone")
attempt("create in gone", lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=gone))
attempt("mkdir in gone", lambda: os.mkdir("new", dir_fd=gone))
attempt("create above gone", lambda: os.open("../new", os.O_CREAT | os.O_WRONLY | os.O_EXCL, dir_fd=gone))
attempt("setting", lambda: write("/proc/self/../sys/kernel/core_pattern"))
attempt("root", lambda: write("/proc/self/root/etc/passwd"))
attempt("outside", lambda: write({str(secret / "file")!r}))
print(json.dumps(found))
"""
    found = json.loads(place.run(sys.executable, "-I", "-S", "-c", LOOK + code))
    for name in [name for name in found if name.startswith(("relative", "absolute", "beneath"))]:
        # (Nothing that is open for its place alone can be handed in.)
        assert found.pop(name) in ([], "EXDEV", "ENOSYS" if name.endswith(str(os.O_PATH | os.O_DIRECTORY)) else []), (
            name
        )
    assert found.pop("without links") is None
    above = found.pop("create above gone")
    assert isinstance(above, int) or above == "ENOENT"
    assert found.pop("create in gone") == found.pop("mkdir in gone") == "ENOENT"
    assert set(found.values()) <= {"EROFS", "ENOENT", "EACCES"}, found
    assert not list(place.log.rglob("new"))
    assert (secret / "file").read_text() == "secret"


def test_a_program_finds_itself_in_proc(place: Place) -> None:
    code = """
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
attempt("unnamed", lambda: name(fd, b"named"))
for path in ("/dev/stdout", "/dev/fd/1", "/proc/thread-self/comm", "/proc/self/oom_score_adj", "/dev/null"):
    attempt(path, lambda: write(path))
attempt("again", lambda: [os.link("named", "again"), os.stat("again").st_nlink])
print(json.dumps(found))
"""
    out = place.run(sys.executable, "-I", "-S", "-c", LOOK + code)
    found = json.loads(out[out.index("{") :])
    assert found.pop("unnamed") == 1
    assert found.pop("again") == [None, 2]
    assert set(found.values()) == {"written"}, found


def test_signals_and_exit_codes_are_the_command_s(place: Place) -> None:
    script = "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(place.words("sh", "-c", script), stdout=subprocess.PIPE, env=environment()) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        run.send_signal(signal.SIGTERM)
        assert run.stdout.read() == b"got\n"
        assert run.wait(30) == 3
    place.run("sh", "-c", "kill -KILL $$", code=137)
    # (What Python ignores, a command does not expect to be ignored.)
    assert place.run("sh", "-c", "(yes; echo $? >&2) 2>/dev/null | head -n 1") == "y\n"
    ignored = place.run("sh", "-c", "grep SigIgn /proc/self/status").split()[1]
    # (32 and 33 are the C library's own; whoever starts the tests may leave them ignored.)
    assert int(ignored, 16) & ~(3 << 31) == 0


def test_an_interrupt_from_the_terminal_is_the_command_s_to_handle(place: Place) -> None:
    words = place.words("sh", "-c", "trap 'echo caught' INT; echo up; until read line; do :; done; echo end $line")
    pid, terminal = pty.fork()
    if not pid:
        os.execve(words[0], words, environment())
    seen = b""

    def wait_for(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(terminal, 4096)

    wait_for(b"up")
    os.write(terminal, b"\x03")
    wait_for(b"caught")
    os.write(terminal, b"now\n")
    wait_for(b"end now")
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def test_of_what_proc_says_in_a_box_a_tree_reaches_its_own(place: Place) -> None:
    """I7: processes have other numbers there than the keeper gives them."""
    code = """
import os, subprocess
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
for name in ("self", str(os.getpid()), "thread-self", str(child.pid), f"self/task/{os.getpid()}"):
    with open(f"/proc/{name}/cwd/file", "a") as file:
        file.write("x")
for path in ("/proc/1/cwd", f"/proc/{os.getppid()}/root/tmp", "/proc/1/task/1/root/tmp"):
    try:
        os.chmod(path, 0o700)
    except PermissionError:
        print("refused")
child.communicate()
print(open("file").read())
"""
    said = place.run(sys.executable, "-c", code)
    assert said.split() == ["refused"] * 3 + ["xxxxx"]
