"""`holdfast run --isolation vm`: commands in a virtual machine, whose changes in the workspace can be taken back."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.sandbox.images.manifest import Image
from holdfast.testing.tree_state import photograph

from ..processes import command_of
from ..waiting import wait_until

pytestmark = pytest.mark.slow
SECONDS = 1800


class Bench:
    """A workspace, and a home that has the image."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.home, self.root = folder / "home", folder / "project"
        self.home.mkdir(0o700)
        self.root.mkdir()
        # (An image never changes: it may be shared.)
        (self.home / "images").symlink_to(Path(os.fsdecode(image.kernel)).parents[1])
        (self.root / "src").mkdir()
        (self.root / "src" / "main.py").write_text("print('hello')\n")
        (self.root / "notes").write_text("to keep\n")
        os.symlink("src/main.py", self.root / "link")
        self.environment = {**os.environ, "HOLDFAST_HOME": str(self.home), "GREETING": "from the host"}
        self.holdfast("init")

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "holdfast", *words]

    def holdfast(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words(*words),
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert code is None or done.returncode == code, done
        return done

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words(*words),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *words: str) -> dict[str, object]:
        return json.loads(self.holdfast(*words, "--json").stdout)

    def steps(self) -> list[tuple[str, str]]:
        """The commands and states of all steps, oldest first."""
        found = self.json("steps")["steps"]
        assert isinstance(found, list)
        return [(" ".join(each["command"]), each["state"]) for each in sorted(found, key=lambda each: each["id"])]

    def machines(self) -> list[dict[str, object]]:
        found = self.json("vm", "status")["running"]
        assert isinstance(found, list)
        return found


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, built_image: Image) -> Bench:
    return Bench(tmp_path, built_image)


SCRIPT = """
id -un; pwd; echo "$GREETING"; cat ~/given; stat -c %a ~/given
mkdir build; echo made > build/out
rm -rf src
chmod 600 notes
ln notes other; mv link moved
sudo -n touch /installed
exit 7
"""


def test_each_command_is_a_step_and_undo_is_exact(bench: Bench) -> None:
    before = photograph(bench.root)
    (Path.home() / "given").write_text("a file of the user's\n")
    (Path.home() / "given").chmod(0o740)
    (bench.home / "config.toml").write_text('[vm]\nenvironment = ["GREETING"]\nfiles = ["~/given"]\n')
    done = bench.holdfast("run", "--isolation", "vm", "--", "sh", "-c", SCRIPT, code=7)
    lines = done.stdout.splitlines()
    assert lines[1:3] == [str(bench.root), "from the host"]
    assert lines[3:5] == ["a file of the user's", "740"]
    assert not (bench.root / "src").exists()
    assert (bench.root / "build" / "out").read_text() == "made\n"
    commands = [command for command, _ in bench.steps()]
    assert [each for each in commands if not each.startswith("sh -c")] == [
        "mkdir build", "rm -rf src", "chmod 600 notes", "ln notes other", "mv link moved"
    ]  # fmt: skip
    assert bench.machines() == []
    bench.holdfast("undo", "--run")
    assert photograph(bench.root) == before
    # The disk stays, until it is reset; nothing of the workspace is on it.
    assert bench.holdfast("run", "--isolation", "vm", "--", "ls", "/installed").stdout == "/installed\n"
    assert bench.json("vm", "reset") == {"reset": True}
    assert bench.json("vm", "reset") == {"reset": False}
    assert bench.holdfast("run", "--isolation", "vm", "--", "ls", "/installed", code=2).stdout == ""


WORK = """
set -e
git config --global user.email agent@example.org; git config --global user.name agent
git clone -q project.bundle clone
cd clone
python3 -m unittest -q
cat > double.py <<'END'
def double(x):
    return 2 * x
END
cat > test_double.py <<'END'
import unittest, double
class T(unittest.TestCase):
    def test(self):
        self.assertEqual(double.double(2), 4)
END
python3 -m unittest -q
git add -A && git commit -qm double
git branch work && git checkout -q -b other HEAD~1
echo other > other && git add -A && git commit -qm other
git merge -q work -m merged
python3 - <<'END'
import mmap, os
with open("mapped", "wb+") as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[4096:4101] = b"hello"
os.link("mapped", "linked")
os.symlink("mapped", "symbolic")
os.setxattr("linked", "user.note", b"kept")
END
git -C . gc -q
cd .. && rm -rf src && mv clone/double.py notes
"""


def test_real_work_is_taken_back_exactly(bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "base.py").write_text("VALUE = 1\n")
    (source / "test_base.py").write_text(
        "import unittest, base\nclass T(unittest.TestCase):\n    def test(self): base.VALUE\n"
    )
    bundle = str(bench.root / "project.bundle")
    for words in (
        ("init", "-q"),
        ("add", "-A"),
        ("commit", "-qm", "first"),
        ("commit", "--allow-empty", "-qm", "second"),
        ("bundle", "create", "-q", bundle, "HEAD"),
    ):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=source, check=True)
    before = photograph(bench.root)
    done = bench.holdfast("run", "--isolation", "vm", "--", "sh", "-c", WORK)
    assert "double" in (bench.root / "notes").read_text(), done
    mapped = (bench.root / "clone" / "mapped").read_bytes()
    assert (len(mapped), mapped[4096:4101]) == (1 << 20, b"hello")
    assert (bench.root / "clone" / "linked").stat().st_nlink == 2
    assert len(bench.steps()) > 10, "each command of the script is a step"
    bench.holdfast("undo", "--run")
    assert photograph(bench.root) == before
    bench.holdfast("redo")
    assert os.getxattr(bench.root / "clone" / "linked", "user.note") == b"kept"
    subprocess.run(["git", "fsck", "--strict"], cwd=bench.root / "clone", check=True, capture_output=True)


def test_a_held_change_stops_the_machine_until_a_person_has_answered(bench: Bench) -> None:
    (bench.root / "many").mkdir()
    for number in range(60):
        (bench.root / "many" / str(number)).write_text(str(number))
    before = photograph(bench.root)
    running = bench.start("run", "--guard", "--isolation", "vm", "--", "sh", "-c", "rm -rf many; echo $?; date +%s%N")

    def held() -> list[dict[str, object]]:
        found = bench.json("safeguard", "list")["held"]
        assert isinstance(found, list)
        return found

    wait_until(held, "that it is held", SECONDS)
    assert bench.holdfast("vm", "reset", code=4).stderr.startswith("holdfast: 1 virtual machine ")
    bench.holdfast("safeguard", "deny", str(held()[0]["id"]))
    out, errors = running.communicate(timeout=SECONDS)
    assert out.splitlines()[0] == "1", errors
    assert "Operation not permitted" in errors
    assert photograph(bench.root) == before


@pytest.mark.parametrize("killed", ["monitor", "keeper", "holdfast"])
def test_what_is_killed_takes_the_rest_with_it_and_the_tree_can_be_brought_back(bench: Bench, killed: str) -> None:
    before = photograph(bench.root)
    command = "echo begun > begun; rm -rf src; echo ready; sleep 1000"
    running = bench.start("run", "--isolation", "vm", "--", "sh", "-c", command)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    (machine,) = bench.machines()
    monitor = machine["pid"]
    assert isinstance(monitor, int)
    keeper = next(int(name) for name in os.listdir("/proc") if name.isdigit() and is_keeper(int(name), bench.home))
    os.kill({"monitor": monitor, "keeper": keeper, "holdfast": running.pid}[killed], signal.SIGKILL)
    _, errors = running.communicate(timeout=SECONDS)
    wait_until(lambda: not os.path.exists(f"/proc/{monitor}"), "the end of the machine", SECONDS)
    if killed == "monitor":
        assert "the machine was killed (SIGKILL)" in errors
    elif killed == "keeper":
        assert "its keeper was killed" in errors
    assert bench.machines() == []
    wait_until(lambda: all(state != "open" for _, state in bench.steps()), "that all steps are at their end")
    if photograph(bench.root) != before:
        bench.holdfast("undo", "--run")
    assert photograph(bench.root) == before
    bench.holdfast("verify")


def is_keeper(pid: int, home: Path) -> bool:
    """Whether a process keeps an undo log below a home."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
        if b"holdfast" not in command_of(pid):
            return False
        targets = [os.readlink(f"/proc/{pid}/fd/{each}") for each in descriptors]
    except OSError:
        return False
    return any(target.startswith(f"{home}/workspaces/") and target.endswith("keeper.log") for target in targets)


def test_a_shell_at_a_terminal_goes_as_on_the_host(bench: Bench) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(bench.root)
        os.execve(sys.executable, bench.words("run", "--isolation", "vm", "--", "bash", "--norc"), bench.environment)
    said = b""

    def expect(text: bytes) -> None:
        nonlocal said
        end = time.monotonic() + SECONDS
        while text not in said:
            ready, _, _ = select.select([terminal], [], [], end - time.monotonic())
            assert ready, said
            said += os.read(terminal, 65536)
        said = said.partition(text)[2]

    expect(b"# " if os.geteuid() == 0 else b"$ ")
    # (What the program itself says has it in the foreground.)
    os.write(terminal, b"sh -c 'echo st\"\"arted; exec sleep 1000'\r")
    expect(b"started")
    os.write(terminal, b"\x03")
    os.write(terminal, b'code=$?; sh -c "echo code-$code-; exec sleep 1000"\r')
    expect(b"code-130-")
    os.write(terminal, b"\x1a")
    expect(b"Stopped")
    os.write(terminal, b"kill -9 %1; tty; exit 9\r")
    expect(b"/dev/pts/")
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass  # it has hung up
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    os.close(terminal)


def test_a_machine_that_takes_too_long_says_what_may_be_changed(bench: Bench) -> None:
    bench.environment["HOLDFAST_VM_START_TIMEOUT"] = "1s"
    said = bench.holdfast("run", "--isolation", "vm", "--", "true", code=1).stderr
    assert "the machine did not come up in time" in said
    assert "vm.start_timeout" in said
    assert bench.machines() == []


def test_what_cannot_be_is_said_before_anything_begins(bench: Bench) -> None:
    for words, code, text in (
        (("--isolation", "vm", "--memory", "1GiB"), 2, "vm.memory"),
        (("--isolation", "vm", "--hide", "/etc"), 2, "isolation.hidden"),
        (("--isolation", "vm", "--tmp", "shared"), 2, "isolation.tmp"),
        (("--isolation", "vm", "--env", "A=B"), 2, "isolation.environment: 'A=…' is not the name of a variable"),
    ):
        assert text in bench.holdfast("run", *words, "--", "true", code=code).stderr
    (bench.home / "config.toml").write_text(f'[vm]\nfiles = ["{bench.root}/notes"]\n')
    said = bench.holdfast("run", "--isolation", "vm", "--", "true", code=2).stderr
    assert f"vm.files: {bench.root}/notes lies in a directory that the machine sees as it is" in said
    (bench.home / "config.toml").write_text('[vm]\nimage = "other"\n')
    assert "holdfast image build" in bench.holdfast("run", "--isolation", "vm", "--", "true", code=3).stderr
    assert bench.json("log")["rows"] == []
