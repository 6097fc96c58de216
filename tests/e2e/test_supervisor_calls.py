"""Programs that try to get past the supervisor (I7), and its answers to single calls in a real tree."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.tree_state import differences, photograph

from .afterwards import service, undo_each

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is for Linux")

ATTACK = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
kind, inside, outside = sys.argv[1], *map(os.fsencode, sys.argv[2:])
paths = [inside.ljust(300, b"\\0"), outside.ljust(300, b"\\0")]
path = ctypes.create_string_buffer(512)
path.raw = paths[0].ljust(512, b"\\0")
end = time.monotonic() + 2
def flip():
    at = 0
    while time.monotonic() < end:
        ctypes.memmove(path, paths[at], 300)
        at ^= 1
threading.Thread(target=flip).start()
while time.monotonic() < end:
    if kind == "open":
        fd = libc.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if fd >= 0:
            libc.write(fd, b"x", 1)
            libc.close(fd)
    elif kind == "unlink":
        libc.unlink(path)
        for kept in (inside, outside):
            try:
                open(kept, "x").close()
            except OSError:
                pass
    elif kind == "rename":
        libc.rename(path, path.raw.rstrip(b"\\0").split(b"\\0")[0] + b".moved")
        for kept in (inside, outside):
            try:
                os.rename(kept + b".moved", kept)
            except OSError:
                pass
"""

SWAP = """
import os, threading, time
end = time.monotonic() + 2
def swap():
    while time.monotonic() < end:
        os.rename("dir", "kept"); os.symlink("../outside", "dir")
        os.unlink("dir"); os.rename("kept", "dir")
threading.Thread(target=swap).start()
while time.monotonic() < end:
    for act in (
        lambda: open("dir/file", "a").close(),
        lambda: os.truncate("dir/file", 1),
        lambda: os.chmod("dir/file", 0o600),
        lambda: os.unlink("dir/file"),
    ):
        try:
            act()
        except OSError:
            pass
"""


def supervised(base: Path, *command: str) -> str:
    """Run a command in the tree ``base``/tree as one step; returns what it printed."""
    launch = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run"]
    options = ["--log", str(base / "log"), "--root", str(base / "tree")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    words = [*launch, *options, "--", *command]
    run = subprocess.run(
        words, cwd=base / "tree", env=environment, timeout=60, check=True, stdout=subprocess.PIPE, text=True
    )
    return run.stdout


DOMAIN = """
import ctypes, errno, os, struct
libc = ctypes.CDLL(None, use_errno=True)
WRITE_FILE = struct.pack("Q", 1 << 1)
for arguments in ((None, ctypes.c_size_t(0), 1), (WRITE_FILE, ctypes.c_size_t(8), 0)):
    assert libc.syscall(444, *arguments) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
assert libc.syscall(446, 0, 0) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
"""


@pytest.fixture(name="base")
def _base(tmp_path: Path) -> Path:
    for name in ("tree/dir", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tree" / "dir" / "file").write_bytes(b"inside")
    (tmp_path / "outside" / "file").write_bytes(b"outside")
    return tmp_path


@pytest.mark.parametrize("kind", ["open", "unlink", "rename"])
def test_a_thread_that_flips_the_path_changes_nothing_unrecorded(base: Path, kind: str) -> None:
    """I7."""
    before = photograph(base / "tree")
    paths = [str(base / "tree" / "dir" / "file"), str(base / "outside" / "file")]
    supervised(base, sys.executable, "-c", ATTACK, kind, *paths)
    if kind == "open":
        assert b"x" in (base / "tree" / "dir" / "file").read_bytes(), "the attack did not take place"
        assert b"x" in (base / "outside" / "file").read_bytes(), "the attack did not take place"
    undo_each(base / "log", base / "tree")
    assert differences(before, photograph(base / "tree")) == []


def test_a_directory_that_is_swapped_for_a_link_leads_nothing_astray(base: Path) -> None:
    """I7."""
    before = photograph(base / "tree")
    supervised(base, sys.executable, "-c", SWAP)
    undo_each(base / "log", base / "tree")
    assert differences(before, photograph(base / "tree")) == []


def test_a_program_is_not_let_believe_that_a_domain_of_its_own_confines_it(base: Path) -> None:
    """The keeper is not in that domain."""
    supervised(base, sys.executable, "-c", DOMAIN)


FOREIGN = {
    # ELF's number of the architecture, its flags, and: mkdir("made", 0o700), exit(0)
    "x86_64": (3, 0, "b827000000 bb70000100 b9c0010000 cd80  b801000000 31db cd80"),
    "aarch64": (40, 0x5000000, "2770a0e3 10008fe2 071da0e3 000000ef  0170a0e3 0000a0e3 000000ef"),
}
"""For processors that run 32-bit programs as well, one in which a directory is made; its name lies after 28 bytes."""


@pytest.mark.skipif(platform.machine() not in FOREIGN, reason="the supervisor does not support this machine")
def test_a_program_for_the_same_processor_with_other_calls_is_ended_before_it_changes_anything(base: Path) -> None:
    """I1: its numbers mean something else."""
    machine, flags, code = FOREIGN[platform.machine()]
    address, headers = 0x10000, 52 + 32
    text = bytes.fromhex(code).ljust(28, b"\0") + b"made\0"
    header = struct.pack("=2H5I6H", 2, machine, 1, address + headers, 52, 0, flags, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("=8I", 1, 0, address, address, headers + len(text), headers + len(text), 5, 0x10000)
    program = base / "foreign"
    program.write_bytes(b"\x7fELF\1\1\1".ljust(16, b"\0") + header + segment + text)
    program.chmod(0o755)
    try:
        assert subprocess.run([program], cwd=base / "outside", check=False).returncode == 0
    except OSError as error:
        pytest.skip(f"no 32-bit programs here: {error}")
    assert (base / "outside" / "made").is_dir()
    run = f"import subprocess; print(subprocess.run([{str(program)!r}]).returncode)"
    assert supervised(base, sys.executable, "-c", run) == f"{-signal.SIGSYS}\n"
    assert not (base / "tree" / "made").exists()


FOREIGN_CALL = """
import ctypes, mmap
# push rbx; mov eax, 39 (mkdir); mov ebx, edi; mov ecx, 0o700; int 0x80; pop rbx; ret
code = bytes.fromhex("53 b827000000 89fb b9c0010000 cd80 5b c3")
MAP_32BIT = 0x40
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT
memory = mmap.mmap(-1, 4096, flags, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(code.ljust(64) + b"made\\0")
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
print(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(address)(address + 64))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no such calls")
def test_a_call_of_another_kind_from_a_program_of_this_one_ends_it_before_it_changes_anything(base: Path) -> None:
    """I1."""
    words = [sys.executable, "-c", FOREIGN_CALL]
    if subprocess.run(words, cwd=base / "outside", capture_output=True, check=False).stdout != b"0\n":
        pytest.skip("the kernel carries out no 32-bit calls")
    assert (base / "outside" / "made").is_dir()
    run = f"import subprocess; print(subprocess.run({words!r}).returncode)"
    assert supervised(base, sys.executable, "-c", run) == f"{-signal.SIGSYS}\n"
    assert not (base / "tree" / "made").exists()


LEASE = """
import fcntl, os, signal, sys, threading
act = {
    "open": lambda: os.open("dir/file", os.O_WRONLY),
    "cut": lambda: os.open("dir/file", os.O_RDWR | os.O_TRUNC),
    "outside": lambda: os.open("../outside/file", os.O_WRONLY),
    "truncate": lambda: os.truncate("dir/file", 1),
}[sys.argv[1]]
path = "../outside/file" if sys.argv[1] == "outside" else "dir/file"
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
leased = os.open(path, os.O_RDONLY)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
done = []
other = threading.Thread(target=lambda: done.append(act()))
other.start()
signal.sigwait([signal.SIGIO])
open("unrelated", "w").close()
assert not done, "nobody else got on before the lease was given back"
try:
    os.open(path, os.O_WRONLY | os.O_NONBLOCK)
except BlockingIOError:
    print("would block")
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_UNLCK)
other.join()
assert done[0] is None or not fcntl.fcntl(done[0], fcntl.F_GETFL) & os.O_NONBLOCK
if sys.argv[1] != "truncate":
    os.write(done[0], b"x")
"""


@pytest.mark.parametrize(
    ("act", "inside", "outside"),
    [
        ("open", b"xnside", b"outside"),
        ("cut", b"x", b"outside"),
        ("outside", b"inside", b"xutside"),
        ("truncate", b"i", b"outside"),
    ],
)
def test_who_waits_for_the_end_of_a_lease_waits_alone(base: Path, act: str, inside: bytes, outside: bytes) -> None:
    before = photograph(base / "tree")
    assert supervised(base, sys.executable, "-c", LEASE, act) == "would block\n"
    assert (base / "tree" / "dir" / "file").read_bytes() == inside
    assert (base / "outside" / "file").read_bytes() == outside
    undo_each(base / "log", base / "tree")
    assert differences(before, photograph(base / "tree")) == []


PIPE = """
import os
os.mkfifo("pipe")
waiting = []
for _ in range(100):
    pid = os.fork()
    if not pid:
        fd = os.open("pipe", os.O_WRONLY)
        os.write(fd, b"x")
        os._exit(0)
    waiting.append(pid)
for number in range(100):
    open(f"dir/{number}", "w").close()
gone = waiting.pop()
os.kill(gone, 9)
os.waitpid(gone, 0)
reader, received = os.open("pipe", os.O_RDONLY), b""
while piece := os.read(reader, 100):
    received += piece
    if len(received) == len(waiting):
        break
print(len(received), {os.waitpid(pid, 0)[1] for pid in waiting})
"""


def test_a_hundred_who_wait_for_a_reader_hold_up_nobody(base: Path) -> None:
    before = photograph(base / "tree")
    assert supervised(base, sys.executable, "-c", PIPE) == "99 {0}\n"
    with service(base / "log", base / "tree") as opened:  # (the time of the pipe is what all of them have changed)
        assert opened.undo([step.id for step in opened.steps()]).conflicts == ()
    assert differences(before, photograph(base / "tree")) == []


def either_way(base: Path, program: str) -> str:
    """What a program prints in the tree, supervised, which is what it prints natively."""
    command = [sys.executable, "-c", program]
    native = subprocess.run(command, cwd=base / "outside", check=True, capture_output=True, text=True).stdout
    assert supervised(base, *command) == native
    return native


OWN_TABLE = """
import ctypes, os, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
first = socket.socket(socket.AF_UNIX)
def thread():
    assert libc.unshare(0x400) == 0  # CLONE_FILES
    other = socket.socket(socket.AF_UNIX)
    os.dup2(other.fileno(), first.fileno())
    first.bind("socket")
    print("the thread's:", first.getsockname())
running = threading.Thread(target=thread)
running.start()
running.join()
print("the first one's:", first.getsockname())
"""


def test_a_thread_binds_the_socket_that_it_has_itself(base: Path) -> None:
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 9):
        pytest.skip("needs Linux 6.9: descriptors of a thread cannot be had before")
    assert either_way(base, OWN_TABLE) == "the thread's: socket\nthe first one's: \n"


COMMON_MASK = """
import ctypes, os, platform, signal
libc = ctypes.CDLL(None, use_errno=True)
def make(name):
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o666))
    print(name, oct(os.stat(name).st_mode & 0o777))
def below(flags, mask):
    pid = libc.syscall({"x86_64": 56, "aarch64": 220}[platform.machine()], flags | signal.SIGCHLD, 0, 0, 0, 0)
    if not pid:
        libc.umask(mask)
        os._exit(0)
    os.waitpid(pid, 0)
os.umask(0o022); make("first")
below(0x200, 0o077); make("common")  # CLONE_FS
below(0, 0); make("its own")
"""


def test_a_umask_is_that_of_all_who_have_it_in_common(base: Path) -> None:
    """Nothing is made more open than its maker has asked for."""
    assert either_way(base, COMMON_MASK) == "first 0o644\ncommon 0o600\nits own 0o600\n"


PLACES = """
import os
def make(path, **at):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, **at))
    except OSError as error:
        print(path, error.strerror)
top = os.getcwd()
for name in ("a/d", "b/d", "gone", "swapped"):
    os.makedirs(name)
os.chdir("a"); make("d/1"); os.chdir("../b"); make("d/1"); make("d/2")
os.chdir("d"); make("3"); os.rename("../d", "../e"); make("4"); os.mkdir("../d"); make("../d/5"); os.unlink("3")
os.chdir(top); make("b/d/6"); os.rename("b/d", "b/f"); os.mkdir("b/d"); make("b/d/6"); os.unlink("b/f/5")
make("b/e/7"); os.rename("b", "c"); make("c/e/8"); os.chmod("c/e/7", 0o600); make("b/e/9")
make("swapped/1"); os.rename("swapped", "kept"); os.symlink("a", "swapped"); make("swapped/1"); make("kept/2")
fd = os.open("a", os.O_RDONLY); make("10", dir_fd=fd)
other = os.open("c", os.O_RDONLY); os.dup2(other, fd); make("10", dir_fd=fd); make(top + "/a/11"); make(top + "/c/11")
os.chdir("gone"); make("12"); os.unlink("12"); os.rmdir(top + "/gone"); make("13"); make("14", dir_fd=fd)
os.mkdir(top + "/gone"); make("15"); make(top + "/gone/16")
"""


def test_the_same_words_lead_to_another_place_as_soon_as_anything_was_moved(base: Path) -> None:
    """What was found a moment ago is not taken for what is there now, and the undo log names what is there now."""
    before = photograph(base / "tree")
    native = base / "native"
    shutil.copytree(base / "tree", native)
    command = [sys.executable, "-c", PLACES]
    expected = subprocess.run(command, cwd=native, check=True, capture_output=True, text=True).stdout
    assert expected.splitlines() == [f"{path} No such file or directory" for path in ("b/e/9", "13", "15")]
    assert supervised(base, *command) == expected
    assert seen(base / "tree") == seen(native)
    undo_each(base / "log", base / "tree")
    assert differences(before, photograph(base / "tree")) == []


def seen(tree: Path) -> list[str]:
    return sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))


SETTINGS = """
import os, sys
def attempt(path, flags=os.O_WRONLY):
    try:
        # (What is written is what is there, so that nothing comes to harm if it is let through.)
        with open(path, "rb", buffering=0) as file:
            content = file.read()
    except OSError:
        content = b""
    try:
        fd = os.open(path, flags)
        os.write(fd, content)
        os.close(fd)
        return "written"
    except OSError as error:
        return type(error).__name__
core = "/proc/sys/kernel/core_pattern"
huge = "/sys/kernel/mm/transparent_hugepage/enabled"
for path in (core, "/proc/self/../sys/kernel/core_pattern", huge, *sys.argv[1:]):
    print(attempt(path), attempt(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
print(attempt("/proc/self/oom_score_adj"), attempt(f"/proc/{os.getppid()}/oom_score_adj"))
if not os.fork():
    child = os.getpid()
    print(attempt("/proc/thread-self/comm", os.O_WRONLY | os.O_TRUNC), attempt(f"/proc/{child}/comm"), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may change the kernel's settings")
def test_root_changes_no_setting_of_the_kernel_and_what_is_its_own_in_proc(base: Path) -> None:
    link = base / "tree/link"
    link.symlink_to("/proc/sys/kernel/core_pattern")
    found = supervised(base, sys.executable, "-c", SETTINGS, "link").splitlines()
    assert found[:4] == ["PermissionError PermissionError"] * 4
    assert found[4] == "written PermissionError"  # (the tree's parent is outside of it)
    assert found[5] == "written written"
