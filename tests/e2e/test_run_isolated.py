"""`run --isolation namespace` by the command line: what is asked for holds, and is undone as without."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import UnsupportedError
from holdfast.sandbox._resource_limits import enforce_quota
from holdfast.sandbox.policy import Quota
from holdfast.testing.tree_state import differences, photograph

from .isolated import USERS, copied, need_namespaces, python_for, switch_to


class Place:
    """A workspace, a home and something beside them that belong to a user, and the command line as that user."""

    def __init__(self, folder: Path, python: str, user: int) -> None:
        self.folder = folder
        self.python = python
        self.user = user
        self.tree = folder / "tree"
        self.home = folder / "home"
        self.beside = folder / "beside"
        for path in (self.tree, self.home, self.beside):
            path.mkdir()
            os.chown(path, user, user if user != os.geteuid() else -1)
        (self.beside / "key").write_text("secret")

    def __call__(self, *words: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Holdfast's in the workspace, and check its exit code."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment |= {
            "HOLDFAST_HOME": str(self.home),
            "HOME": str(self.folder),
            "PYTHONPATH": str(self.folder.parent / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [self.python, "-P", "-m", "holdfast", *words],
            cwd=self.tree,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            **switch_to(self.user),
        )
        assert done.returncode == code, done
        return done

    def isolated(self, *words: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """`holdfast run --isolation namespace`."""
        return self("run", "--isolation", "namespace", *words, code=code, **variables)


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A directory that every user may enter, and copies of all packages that are needed."""
    need_namespaces()
    with copied("holdfast", "blake3", "lz4", "msgspec", "pathspec", "zstandard") as folder:
        yield folder


@pytest.fixture(params=USERS, ids=lambda user: f"user{user}")
def place(shared: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(dir=shared))
    folder.chmod(0o755)
    place = Place(folder, python_for(request.param, compiled=True), request.param)
    place("init")
    yield place
    assert json.loads(place("verify", "--read-data", "--json").stdout)["problems"] == []


def test_only_the_workspace_changes_and_that_is_undone(place: Place) -> None:
    place.isolated("--", "sh", "-c", "mkdir -p cache && echo 1 > f && echo cache > .gitignore && echo 1 > cache/f")
    before = photograph(place.tree)
    beside = place.beside
    attempts = f"echo 2 > f; rm -r cache; touch {beside}/new /usr/new; ls -A {place.home}; cat {beside}/key"
    done = place.isolated("--json", "--hide", str(place.beside), "--", "sh", "-c", f"{attempts}; exit 7", code=7)
    assert done.stdout == ""  # neither the home nor what is hidden
    result = json.loads(done.stderr.splitlines()[-1])
    assert result["isolation"]["level"] == "namespace"
    assert result["isolation"]["hidden"] == [str(place.beside)]
    assert sum(step["paths"] for step in result["steps"]) == 3
    assert [path.name for path in place.beside.iterdir()] == ["key"]
    assert not Path("/usr/new").exists()
    place("undo", "--run")
    assert differences(before, photograph(place.tree)) == []


def test_what_can_be_reached_is_what_was_asked_for(place: Place) -> None:
    look = "echo $SECRET $WANTED; cat /etc/resolv.conf; touch $0/new"
    words = ("--env", "WANTED", "--dns", "192.0.2.53", "--writable", str(place.beside), "--", "sh", "-c", look)
    done = place.isolated(*words, str(place.beside), SECRET="1", WANTED="2")
    assert done.stdout == "2\nnameserver 192.0.2.53\n"
    assert (place.beside / "new").exists()
    done = place.isolated("--network", "disabled", "--", "cat", "/proc/net/dev")
    assert [line.split(":")[0].strip() for line in done.stdout.splitlines() if ":" in line] == ["lo"]


def test_the_home_s_settings_hold_and_flags_go_before_them(place: Place) -> None:
    settings = """[isolation]
level = "namespace"
network = "allow"
allow = ["192.0.2.7:443"]
hidden = ["~/beside"]
"""
    (place.home / "config.toml").write_text(settings)
    look = ("--", "sh", "-c", "cat ~/beside/key; wc -l < /proc/net/dev")
    done = place("run", "--json", *look)
    assert "secret" not in done.stdout
    found = json.loads(done.stderr.splitlines()[-1])["isolation"]
    assert (found["network"], found["allow"], found["hidden"]) == ("allow", ["192.0.2.7:443"], ["~/beside"])
    done = place("run", "--json", "--network", "open", *look)
    found = json.loads(done.stderr.splitlines()[-1])["isolation"]
    assert (found["network"], found["allow"], found["hidden"]) == ("open", [], ["~/beside"])
    done = place("run", "--json", "--isolation", "none", *look)
    assert "secret" in done.stdout
    assert json.loads(done.stderr.splitlines()[-1])["isolation"] is None
    (place.tree / "holdfast.toml").write_text('[isolation]\nlevel = "none"\n')
    assert "a workspace's own file may not set it" in place("run", *look, code=2).stderr
    (place.tree / "holdfast.toml").unlink()


def test_holdfast_inside_is_told_that_it_has_no_home(place: Place) -> None:
    words = ("--env", "PYTHONPATH", "--env", "HOLDFAST_HOME", "--", place.python, "-P", "-m", "holdfast", "checkpoint")
    done = place.isolated(*words, code=4)
    assert "cannot reach the saved data" in done.stderr


def test_a_checkpoint_is_taken_inside_of_a_run_without_isolation(place: Place) -> None:
    save = f"echo 1 > f; {place.python} -P -m holdfast checkpoint -m half; {place.python} -P -m holdfast log --json"
    done = place("run", "--", "sh", "-c", save)
    log = json.loads(done.stdout.splitlines()[-1])["checkpoints"]
    assert log[0]["label"] == "half"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--network", "disabled"), 2, "only with isolation"),
        (("--isolation", "namespace", "--network", "disabled", "--dns", "192.0.2.53"), 2, "only with the network"),
        (("--isolation", "namespace", "--allow", "example.org"), 2, "names are not taken"),
        (("--isolation", "namespace", "--writable", "/no/such/place"), 2, "is not there"),
        (("--isolation", "namespace", "--hide", "sub"), 2, "lies in the workspace"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_run(
    place: Place, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in place("run", *words, "--", "touch", "ran", code=code).stderr
    assert not (place.tree / "ran").exists()
    assert json.loads(place("log", "--json").stdout)["checkpoints"] == []


def test_what_cannot_be_had_is_refused_with_what_would_help(place: Place) -> None:
    failing = place.folder / "bwrap"
    failing.write_text("#!/bin/sh\necho no namespaces today >&2\nexit 1\n")
    failing.chmod(0o755)
    done = place.isolated("--json", "--", "touch", "ran", code=1, PATH=f"{place.folder}:{os.environ['PATH']}")
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["code"] == "unsupported"
    assert "no namespaces today" in error["message"]
    assert error["hint"]
    assert not (place.tree / "ran").exists()
    assert json.loads(place("log", "--json").stdout)["checkpoints"] == []


def test_what_is_tried_beforehand_leaves_no_trace_where_the_temporary_directory_is_in_the_workspace(
    place: Place,
) -> None:
    (place.tree / "tmp").mkdir(0o777)
    (place.tree / "tmp").chmod(0o777)
    before = photograph(place.tree)
    place.isolated("--", "true", TMPDIR=str(place.tree / "tmp"))
    assert differences(before, photograph(place.tree)) == []


def test_credentials_are_hidden_unless_they_are_let_in(place: Place) -> None:
    (place.folder / ".ssh").mkdir()
    (place.folder / ".ssh/key").write_text("secret\n")
    (place.folder / ".netrc").write_text("secret\n")
    look = ("--", "sh", "-c", "cat ~/.ssh/key; cat ~/.netrc; cat /etc/shadow; true")
    assert place.isolated("--tmp", "shared", *look).stdout == ""
    assert place.isolated("--tmp", "shared", "--show", "~/.ssh", *look).stdout == "secret\n"
    (place.home / "config.toml").write_text('[isolation]\nvisible = ["~/.ssh", "~/.netrc"]\n')
    assert place.isolated("--tmp", "shared", *look).stdout == "secret\nsecret\n"
    hidden = place.isolated("--tmp", "shared", "--hide", "~/.ssh", "--json", *look)
    assert hidden.stdout == "secret\n"
    assert json.loads(hidden.stderr.splitlines()[-1])["isolation"]["visible"] == ["~/.ssh", "~/.netrc"]


FILLS = """
import os
def attempt(what, function):
    try:
        function()
        print(what, "done")
    except (OSError, MemoryError) as error:
        print(what, type(error).__name__, getattr(error, "errno", ""))
def fill(path, size):
    with open(path, "wb", buffering=0) as file:
        for _ in range(0, size, 1 << 16):
            file.write(bytes(1 << 16))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
attempt("memory", lambda: bytearray(400 << 20))
attempt("little memory", lambda: bytearray(50 << 20))
fill("/tmp/one", 3 << 20)
attempt("more files", lambda: fill("/tmp/two", 3 << 20))
attempt("a file", lambda: fill("file", 5 << 20))
attempt("shared memory", lambda: fill("/dev/shm/file", 5 << 20))
attempt("a device", lambda: fill("/dev/file", 1 << 16))
"""
FORKS = """
import os, signal
children = []
try:
    for _ in range(100):
        if not (child := os.fork()):
            signal.pause()
        children.append(child)
except BlockingIOError:
    print(len(children))
for child in children:
    os.kill(child, signal.SIGKILL)
"""


def test_what_it_may_take_is_limited(place: Place) -> None:
    python = python_for(place.user)
    limits = ("--memory", "300MiB", "--disk", "4MiB")
    said = place.isolated(*limits, "--", python, "-c", FILLS).stdout.splitlines()
    assert said[1:] == [
        "little memory done",
        "more files OSError 28",
        "a file OSError 27",
        "shared memory OSError 27",
        "a device OSError 30",
    ]
    assert said[0].startswith("memory MemoryError")
    assert place.isolated("--", python, "-c", FILLS).stdout.count("done") == 6


def test_processes_are_limited_or_that_is_refused(place: Place) -> None:
    words = ("--processes", "20", "--", python_for(place.user), "-c", FORKS)
    if place.user:
        assert place.isolated(*words).stdout == "19\n"  # and itself
    else:
        can = is_delegated()
        done = place.isolated(*words, code=0 if can else 1)
        assert done.stdout == ("19\n" if can else "")
        assert can or "the kernel does not limit root's processes" in done.stderr


def is_delegated() -> bool:
    """Whether there is a control group that limits root."""
    try:
        with enforce_quota(Quota(processes=20)) as (group, _):
            return bool(group)
    except UnsupportedError:
        return False


def test_limits_without_a_namespace_are_refused(place: Place) -> None:
    (place.home / "config.toml").write_text('[isolation]\nmemory = "1GiB"\n')
    assert "need the isolation namespace" in place("run", "--", "true", code=2).stderr
    place("run", "--isolation", "none", "--", "true")
    assert "temporary directories" in place.isolated("--disk", "1MiB", "--tmp", "shared", "--", "true", code=2).stderr
