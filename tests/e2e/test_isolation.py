"""Boxes made of namespaces, tried from the inside: as root, and as a user without any privilege."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..waiting import wait_until
from .isolated import ATTEMPTS, STAGE, USERS, copied, need_namespaces, python_for

RUNNER = """
import json, os, sys
given = json.loads(sys.argv[1])
sys.path.insert(0, given["source"])
if given["user"] != os.geteuid():
    os.setgroups([])
    os.setgid(given["user"])
    os.setuid(given["user"])
from holdfast.sandbox.namespace import Namespace
from holdfast.sandbox.policy import FileAccess, SandboxPolicy, parse_network
def paths(name):
    return tuple(path.encode() for path in given.get(name, ()))
files = FileAccess(
    given["workspace"].encode(), paths("secret"), paths("hidden"), paths("writable"), given.get("tmp", "own")
)
policy = SandboxPolicy(files, parse_network(*given.get("network", ["open"])))
command = [word.encode() for word in given["command"]]
open_file = os.open("/", os.O_RDONLY)
for fd in (open_file, os.dup2(open_file, 150)):
    os.set_inheritable(fd, True)
with Namespace(policy).prepare(command, directory=files.workspace, environment=dict(os.environb)) as prepared:
    for fd in prepared.descriptors:
        os.set_inheritable(fd, True)
    os.execve(prepared.arguments[0], prepared.arguments, prepared.environment)
"""


class Stage:
    """A workspace and what lies around it, which everybody may enter, and boxes with it."""

    def __init__(self, folder: Path, python: str, user: int) -> None:
        self.folder = folder
        self.python = python
        self.user = user
        self.tree = folder / "tree"
        self.home = folder / "home"
        for path in (self.tree, self.home, folder / "beside"):
            path.mkdir()
            (path / "file").write_text("before")
            if os.geteuid() == 0:
                os.chown(path, user, -1)
                os.chown(path / "file", user, -1)

    def words(self, *command: str, **policy: object) -> list[str]:
        given = {"source": str(self.folder / "src"), "user": self.user, "workspace": str(self.tree)}
        given |= {"secret": [str(self.home)], "command": command, **policy}
        return [self.python, "-I", "-S", "-B", "-c", RUNNER, json.dumps(given)]

    def inside(self, code: str, *, networked: bool = False, **policy: object) -> dict[str, Any]:
        """What attempts, carried out inside, found."""
        text = ATTEMPTS + textwrap.dedent(code) + "\nprint(json.dumps(found))"
        words = self.words(self.python, "-I", "-S", "-B", "-c", text, **policy)
        if networked:
            words = ["unshare", "--net", self.python, "-I", "-S", "-c", STAGE, *words]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done
        assert done.stderr == ""
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Path, str]]:
    """The package and a Python that every user may read."""
    need_namespaces()
    with copied("holdfast") as folder:
        yield folder, python_for(USERS[-1])


@pytest.fixture(params=USERS, ids=lambda user: f"user{user}")
def stage(shared: tuple[Path, str], request: pytest.FixtureRequest) -> Stage:
    folder = Path(tempfile.mkdtemp(dir=shared[0]))
    folder.chmod(0o755)
    (folder / "src").symlink_to("../src")
    return Stage(folder, shared[1], request.param)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the host addresses and mounts")


needs_tmp = pytest.mark.skipif(tempfile.gettempdir() not in ("/tmp", "/var/tmp"), reason="needs a tree in /tmp")


# Files --------------------------------------------------------------------------------------------------------------


def test_only_the_workspace_can_be_written_to(stage: Stage) -> None:
    beside = stage.folder / "beside"
    found = stage.inside(
        f"""
        attempt("workspace", lambda: make("new"))
        attempt("beside", lambda: make({str(beside / "new")!r}))
        attempt("file beside", lambda: make({str(beside / "file")!r}))
        attempt("removal", lambda: os.unlink({str(beside / "file")!r}))
        attempt("by /proc", lambda: make("/proc/self/root{beside}/new"))
        attempt("by pid 1", lambda: make("/proc/1/root{beside}/new"))
        attempt("up", lambda: make("../beside/new"))
        attempt("/", lambda: make("/new"))
        attempt("tmp", lambda: make("/tmp/new"))
        attempt("reading", lambda: open("/etc/passwd").read(4))
        """
    )
    assert found.pop("workspace") == "made"
    assert found.pop("reading") == "root"
    assert found.pop("tmp") == "made"
    # (Its own /tmp hides what lies there, where it can be written to and leaves no trace.)
    assert set(found.values()) <= {"EROFS", "EACCES", "ENOENT"}, found
    assert (stage.tree / "new").read_text() == "x"
    assert sorted(path.name for path in beside.iterdir()) == ["file"]
    assert (beside / "file").read_text() == "before"
    assert not Path("/tmp/new").exists()


def test_what_is_hidden_cannot_be_seen(stage: Stage) -> None:
    hidden = stage.folder / "beside"
    found = stage.inside(
        f"""
        attempt("home", lambda: os.listdir({str(stage.home)!r}))
        attempt("home's file", lambda: open({str(stage.home / "file")!r}).read())
        attempt("new in home", lambda: make({str(stage.home / "new")!r}))
        attempt("hidden", lambda: os.listdir({str(hidden)!r}))
        attempt("hidden file", lambda: open({str(stage.folder / "src/holdfast/__main__.py")!r}).read())
        attempt("unmount", lambda: checked(libc.umount2({str(stage.home).encode()!r}, 2)))
        attempt("sockets", lambda: os.listdir("/run"))
        """,
        hidden=[str(hidden), os.path.realpath(stage.folder / "src/holdfast/__main__.py")],
        tmp="shared",
    )
    assert found == {
        "home": [],
        "home's file": "ENOENT",
        "new in home": "EROFS",
        "hidden": [],
        "hidden file": "EACCES",
        "unmount": "EPERM",
        "sockets": [],
    }


def test_links_hide_nothing_from_being_hidden(stage: Stage) -> None:
    beside = stage.folder / "beside"
    (stage.folder / "link").symlink_to(beside)
    code = f"""attempt("beside", lambda: os.listdir({str(beside)!r}))"""
    assert stage.inside(code, hidden=[str(stage.folder / "link")], tmp="shared") == {"beside": []}


def test_what_a_box_needs_is_there_even_where_it_is_hidden(stage: Stage) -> None:
    source = os.path.realpath(stage.folder / "src")
    found = stage.inside(
        f"""
        attempt("above", lambda: os.listdir({os.path.dirname(source)!r}) != [])
        attempt("beside", lambda: os.path.exists({str(stage.folder / "beside")!r}))
        attempt("resolver", lambda: len(open("/etc/resolv.conf").read()))
        attempt("rest", lambda: os.path.exists("/etc/passwd"))
        """,
        hidden=[os.path.dirname(source), "/etc"],
        tmp="shared",
    )
    assert found == {
        "above": True,
        "beside": False,
        "resolver": len(Path("/etc/resolv.conf").read_text()),
        "rest": False,
    }


@needs_tmp
def test_the_workspace_cannot_be_moved_by_what_it_lies_in(stage: Stage) -> None:
    # Its path is how it is known outside: under another one, changes to it would be nobody's.
    found = stage.inside(
        f"""
        path = {str(stage.tree)!r}
        while path != {tempfile.gettempdir()!r}:
            attempt(path, lambda: os.rename(path, path + "-moved"))
            path = os.path.dirname(path)
        """
    )
    assert len(found) >= 3
    assert set(found.values()) <= {"EBUSY", "EROFS"}, found


def test_more_can_be_made_writable(stage: Stage) -> None:
    beside = stage.folder / "beside"
    found = stage.inside(f"""attempt("beside", lambda: make({str(beside / "new")!r}))""", writable=[str(beside)])
    assert found == {"beside": "made"}
    assert (beside / "new").exists()


def test_the_environment_and_the_descriptors_are_the_box_s(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("TOKEN", "secret")
    found = stage.inside(
        """
        attempt("environment", lambda: sorted(set(os.environ) & {"PATH", "HOME", "SSH_AUTH_SOCK", "TOKEN"}))
        attempt("descriptors", lambda: [fd for fd in range(3, 200) if os.path.exists(f"/proc/self/fd/{fd}")])
        attempt("host name", lambda: socket.gethostname())
        attempt("user", lambda: [os.getuid(), os.getgid()])
        """
    )
    assert found["environment"] == ["HOME", "PATH"]
    assert found["descriptors"] == []
    assert found["host name"] == "holdfast"
    assert found["user"][0] == stage.user


LATER = """
import subprocess, sys
beside, *words = sys.argv[1:]
with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
    assert run.stdout.readline() == "up\\n"
    subprocess.run(["mount", "-t", "tmpfs", "none", beside], check=True)
    run.stdin.write("look\\n")
    run.stdin.flush()
    print(run.stdout.read(), end="")
"""


@needs_root
def test_what_is_mounted_later_does_not_turn_up(stage: Stage) -> None:
    beside = str(stage.folder / "beside")
    words = stage.words("sh", "-c", f"echo up; read _; ls {beside}", tmp="shared")
    later = ["unshare", "--mount", "--propagation", "shared", stage.python, "-I", "-S", "-c", LATER, beside, *words]
    assert subprocess.run(later, capture_output=True, text=True, check=True, timeout=60).stdout == "file\n"


# Processes and the kernel -------------------------------------------------------------------------------------------


def test_nothing_outside_can_be_seen_or_touched(stage: Stage) -> None:
    outside = os.getpid()
    found = stage.inside(
        f"""
        CLONE_NEWUSER, CLONE_NEWNS, PTRACE_ATTACH = 0x10000000, 0x20000, 16
        attempt("signal", lambda: os.kill({outside}, 0))
        attempt("seen", lambda: os.path.exists("/proc/{outside}"))
        attempt("first", lambda: open("/proc/1/comm").read().strip())
        attempt("trace", lambda: checked(libc.ptrace(PTRACE_ATTACH, {outside}, 0, 0)))
        attempt("mount", lambda: checked(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)))
        attempt("remount", lambda: checked(libc.mount(b"none", b"/", None, 0x20 | 0x1000, None)))
        attempt("user namespace", lambda: checked(libc.unshare(CLONE_NEWUSER)))
        attempt("mount namespace", lambda: checked(libc.unshare(CLONE_NEWNS)))
        attempt("chroot", lambda: os.chroot("/tmp"))
        attempt("device", lambda: os.mknod("disk", 0o60666, os.makedev(8, 0)))
        pattern = open("/proc/sys/kernel/core_pattern").read()
        attempt("setting", lambda: open("/proc/sys/kernel/core_pattern", "w").write(pattern))
        attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w").close())
        keyctl = {{"x86_64": 250, "aarch64": 219}}[os.uname().machine]
        attempt("keyring", lambda: checked(libc.syscall(keyctl, 0, -3, 0)))
        attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
        attempt("host name", lambda: socket.sethostname("other"))
        attempt("capabilities", lambda: [line.split()[1] for line in open("/proc/self/status") if "CapEff" in line])
        attempt("set-id", lambda: [line.split()[1] for line in open("/proc/self/status") if "NoNewPrivs" in line])
        """
    )
    assert found.pop("seen") is False
    assert found.pop("first") == "bwrap"
    assert found.pop("signal") == found.pop("trace") == "ESRCH"
    assert found.pop("capabilities") == ["0000000000000000"]
    assert found.pop("set-id") == ["1"]
    assert found.pop("keyring") == "ENOSYS"
    assert found.pop("vsock") == "EAFNOSUPPORT"
    assert set(found.values()) <= {"EPERM", "EACCES", "EROFS", "ENOSPC", "ENOENT"}, found


def test_nothing_can_be_typed_into_the_terminal(stage: Stage) -> None:
    code = """
    import fcntl, termios
    attempt("typing", lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x"))
    attempt("size", lambda: len(fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))))
    attempt("terminal", lambda: os.isatty(0))
    attempt("foreground", lambda: os.tcgetpgrp(0) == os.getpgrp())
    """
    text = ATTEMPTS + textwrap.dedent(code) + "\nprint(json.dumps(found))"
    words = stage.words(stage.python, "-I", "-S", "-B", "-c", text)
    pid, terminal = pty.fork()
    if not pid:
        os.execv(words[0], words)
    out = b""
    try:
        while piece := os.read(terminal, 65536):
            out += piece
    except OSError:
        pass  # it has been hung up
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out
    assert json.loads(out) == {"typing": "EPERM", "size": 8, "terminal": True, "foreground": True}


def test_exit_codes(stage: Stage) -> None:
    for command, code in (("exit 7", 7), ("kill -KILL $$", 137)):
        assert subprocess.run(stage.words("sh", "-c", command), check=False).returncode == code


# The network --------------------------------------------------------------------------------------------------------

REACH = """
attempt("allowed", lambda: talk(("192.0.2.7", 8001)))
attempt("other port", lambda: talk(("192.0.2.7", 8002)))
attempt("other address", lambda: talk(("192.0.2.8", 8001)))
attempt("six", lambda: talk(("2001:db8::7", 8001), socket.AF_INET6))
attempt("host", lambda: talk(("127.0.0.1", 8003)))
attempt("abstract", lambda: talk("\\0holdfast-isolation", socket.AF_UNIX))
"""


@needs_root
def test_an_open_network_is_the_host_s_but_for_abstract_sockets(stage: Stage) -> None:
    found = stage.inside(REACH, networked=True)
    assert found.pop("abstract") == "EPERM"
    assert all(" at " in answer for answer in found.values()), found


@needs_root
def test_a_disabled_network_reaches_nothing(stage: Stage) -> None:
    found = stage.inside(REACH, networked=True, network=["disabled"])
    assert set(found.values()) <= {"ENETUNREACH", "ECONNREFUSED"}, found


@needs_root
def test_what_is_allowed_is_reached_and_nothing_else(stage: Stage) -> None:
    found = stage.inside(
        REACH
        + """
attempt("question", lambda: ask(("192.0.2.53", 53)))
attempt("question at home", lambda: ask(("127.0.0.53", 53)))
attempt("long question", lambda: talk(("192.0.2.53", 53)))
attempt("other server", lambda: ask(("192.0.2.8", 53)))
attempt("much", lambda: talk(("192.0.2.7", 8001), text=bytes(3000000)))
attempt("nobody there", lambda: talk(("192.0.2.7", 9)))
attempt("servers", lambda: open("/etc/resolv.conf").read())
def own():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=20):
            return "own"
attempt("own", own)
""",
        networked=True,
        network=["allow", ["192.0.2.7:8001", "192.0.2.7:9", "2001:db8::/32"], ["192.0.2.53", "127.0.0.53"]],
    )
    assert found == {
        "allowed": "5 at ('192.0.2.7', 8001)",
        "other port": "EHOSTUNREACH",
        "other address": "EHOSTUNREACH",
        "six": "5 at ('2001:db8::7', 8001)",
        "host": "ECONNREFUSED",
        "abstract": "ECONNREFUSED",
        "question": "answer to question",
        "question at home": "answer to question",
        "long question": "5 at ('192.0.2.53', 53)",
        "other server": "EPERM",
        "much": "3000000 at ('192.0.2.7', 8001)",
        "nobody there": "ECONNRESET",
        "servers": "nameserver 192.0.2.53\nnameserver 127.0.0.53\n",
        "own": "own",
    }


@needs_root
def test_the_rules_cannot_be_changed_from_inside(stage: Stage) -> None:
    found = stage.inside(
        """
import subprocess
def run(*words):
    return subprocess.run(words, capture_output=True).returncode
attempt("flush", lambda: run("nft", "flush", "ruleset") != 0)
attempt("look", lambda: run("nft", "list", "ruleset") != 0)
attempt("route", lambda: run("ip", "route", "flush", "table", "local") != 0)
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
attempt("join", lambda: checked(libc.setns(os.open("/proc/1/ns/net", os.O_RDONLY), 0)))
"""
        + REACH,
        networked=True,
        network=["allow", ["192.0.2.8:8001"]],
    )
    assert found.pop("flush") is found.pop("look") is found.pop("route") is True
    assert found.pop("other address") == "5 at ('192.0.2.8', 8001)"
    for name in ("allowed", "other port", "six"):
        assert found.pop(name) in ("EHOSTUNREACH", "EACCES"), name
    assert set(found.values()) <= {"EPERM", "EACCES", "ECONNREFUSED"}, found


# The end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [["open"], ["allow", ["192.0.2.7"], ["192.0.2.53"]]], ids=["open", "allow"])
def test_nothing_is_left_when_it_is_killed(stage: Stage, network: list[object]) -> None:
    mark = str(stage.tree / "mark")
    command = ["sh", "-c", f"setsid sleep 1000 & echo {mark} > mark; exec sleep 1000"]
    with subprocess.Popen(stage.words(*command, network=network)) as run:
        wait_until((stage.tree / "mark").exists)
        left = _below(run.pid)
        assert len(left) >= (5 if network[0] == "allow" else 4), left
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: not [pid for pid in left if _is_alive(pid)])


def test_what_the_command_leaves_running_ends_with_it(stage: Stage) -> None:
    with subprocess.Popen(
        stage.words("sh", "-c", "setsid sleep 1000 & echo $! > mark; read _"), stdin=subprocess.PIPE
    ) as run:
        assert run.stdin is not None
        wait_until((stage.tree / "mark").exists)
        left = _below(run.pid)
        run.stdin.close()
        assert run.wait(30) == 1
    wait_until(lambda: not [pid for pid in left if _is_alive(pid)])


def _below(top: int) -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
    found = [top]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False
