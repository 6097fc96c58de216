"""What the kernel refuses a program, by its own limits and in directories that are open to all, ``run`` refuses it as
well, with the same error, and nothing of it has happened.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.files.linux.native import SWITCH
from holdfast.testing.tree_state import differences, photograph

from ..disks import mounted
from .conftest import INSTALLED, Cli
from .test_run_closed import ORDINARY

_AS_IN_A_CONTAINER = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
"""Root has no CAP_SYS_RESOURCE there."""
_TELL = """
import os, resource, signal
from errno import errorcode
open("first", "w").close()
def tell(name, call, *arguments):
    try:
        answer = call(*arguments)
    except OSError as error:
        answer = errorcode[error.errno]
    print(name, answer)
"""
_ROOM = """
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    while True:
        last = os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
for name, flags in (("new", os.O_CREAT), ("only", os.O_CREAT | os.O_EXCL), ("kept", os.O_TRUNC), ("kept", 0)):
    tell(name, os.open, name, os.O_WRONLY | flags)
tell("new", os.path.exists, "new"), tell("only", os.path.exists, "only"), tell("kept", os.path.getsize, "kept")
os.close(last)
tell("again", os.open, "again", os.O_WRONLY | os.O_CREAT)
os.close(last)
os.dup2(1, 39)  # (not the lowest that is free)
os.close(last - 1)
tell("apart", os.open, "apart", os.O_WRONLY | os.O_CREAT)
"""
_SIZE = """
signal.signal(signal.SIGXFSZ, lambda *_: print("SIGXFSZ"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for size in (2000, 1001, 1000, 3):
    tell(size, os.truncate, "kept", size)
    tell(size, os.path.getsize, "kept")
tell("large", os.truncate, "large", 2000)
tell("large", os.truncate, "large", 2001)
"""
_STICKY = """
for name in ("file", "link", "pipe", "own"):
    for flags in (os.O_CREAT, os.O_CREAT | os.O_TRUNC, 0):
        tell(f"{name} {flags}", lambda: os.close(os.open(f"sticky/{name}", os.O_RDWR | os.O_NONBLOCK | flags)))
tell("chmod", os.chmod, "sticky/link", 0o600)
tell("through", os.mkdir, "sticky/way/made")
tell("through", lambda: os.close(os.open("sticky/way/file", os.O_WRONLY | os.O_CREAT)))
tell("remove", os.unlink, "sticky/link")
"""


@pytest.fixture(name="protected")
def _protected() -> Iterator[None]:
    """The kernel's settings as distributions have them."""
    settings = {
        Path("/proc/sys/fs", name): "" for name in ("protected_symlinks", "protected_regular", "protected_fifos")
    }
    if os.geteuid() or not all(os.access(path, os.W_OK) for path in settings):
        pytest.skip("needs root, and settings that can be changed")
    with next(iter(settings)).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # (They are the machine's, and other tests of the kind run beside this one.)
        for path in settings:
            settings[path] = path.read_text()
            path.write_text("1")
        yield
        for path, before in settings.items():
            path.write_text(before)


def _compare(cli: Cli, tmp_path: Path, program: str, before_run: Sequence[str] = ()) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(cli.root, alone, symlinks=True, ignore=shutil.ignore_patterns("pipe"))
    for path in cli.root.rglob("*"):
        copied, found = alone / path.relative_to(cli.root), path.lstat()
        if stat.S_ISFIFO(found.st_mode):
            os.mkfifo(copied)
            copied.chmod(found.st_mode & 0o7777)
        os.chown(copied, found.st_uid, found.st_gid, follow_symlinks=False)
    before = photograph(cli.root)
    command = (sys.executable, "-c", _TELL + program)
    natively = subprocess.run(command, cwd=alone, capture_output=True, check=True)
    supervised = subprocess.run([*before_run, *INSTALLED, "run", "--", *command], capture_output=True, check=True)
    assert supervised.stdout.splitlines() == natively.stdout.splitlines()
    both = ({path: one._replace(mtime=0) for path, one in photograph(top).items()} for top in (alone, cli.root))
    assert differences(*both) == []
    cli.process("undo", "--run")
    assert differences(before, photograph(cli.root)) == []


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("program", [_ROOM, _SIZE], ids=["descriptors", "size"])
def test_a_limit_of_the_callers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    cli.write("kept", "kept")
    cli.write("large", "." * 2000)
    _compare(cli, tmp_path, program)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
@pytest.mark.parametrize("program", [_ROOM, _SIZE], ids=["descriptors", "size"])
def test_a_limit_of_a_caller_that_became_another_user(cli: Cli, tmp_path: Path, program: str) -> None:
    cli.write("kept", "kept").chmod(0o666)
    cli.write("large", "." * 2000).chmod(0o666)
    cli.root.chmod(0o777)
    _compare(cli, tmp_path, f"os.seteuid(4321)\n{program}", _AS_IN_A_CONTAINER)


@pytest.mark.usefixtures("protected")
@pytest.mark.parametrize("switch", ["1", "0"])
def test_another_users_files_and_links_in_a_directory_that_is_open_to_all(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    (cli.root / "target").mkdir()
    sticky = cli.root / "sticky"
    sticky.mkdir()
    for name in ("file", "own"):
        (sticky / name).write_text(name)
    os.mkfifo(sticky / "pipe")
    (sticky / "link").symlink_to("own")
    (sticky / "way").symlink_to("../target")
    for name in ("file", "pipe", "link", "way"):
        os.chown(sticky / name, 4321, 4321, follow_symlinks=False)
    for name in ("file", "own", "pipe"):
        (sticky / name).chmod(0o666)
    os.chown(sticky, 1234, 1234)
    sticky.chmod(0o1777)
    _compare(cli, tmp_path, _STICKY)


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_time_of_which_64_bits_hold_no_nanoseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    late, early = (1 << 40) * 10**9, -(1 << 40) * 10**9
    with mounted("tmpfs", tmp_path):
        tree = tmp_path / "tree"
        tree.mkdir()
        for name in ("late", "early", "removed", "over", "set", "touched"):
            (tree / name).write_text(name)
        (tree / "directory").mkdir()
        for name, time in {"late": late, "early": early, "removed": late, "over": late, "directory": early}.items():
            os.utime(tree / name, ns=(0, time))
        before = photograph(tree)
        code = (
            f"import os; open('first', 'w'); os.utime('set', ns=(0, {late})); open('late', 'a').close();"
            "os.remove('removed'); os.rename('touched', 'over'); os.chmod('early', 0o700); os.mkdir('directory/new')"
        )
        for words in (("init",), ("run", "--", sys.executable, "-c", code), ("steps",), ("undo",)):
            subprocess.run((sys.executable, "-m", "holdfast", *words), cwd=tree, check=True, capture_output=True)
        after = photograph(tree)
        # (What is set again is set as far as 64 bits tell it.)
        assert differences(before, after | {b"directory": after[b"directory"]._replace(mtime=early)}) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("is_own", [True, False], ids=["the keeper's user", "another user"])
def test_what_could_not_be_removed_is_no_edit_by_another_process(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, switch: str, *, is_own: bool
) -> None:
    """As where a tool makes its directories read-only, `rm -rf` fails, and a chmod comes before the next one."""
    monkeypatch.setenv(SWITCH, switch)
    for name in ("closed/removed", "closed/replaced", "closed/moved", "open/file", "other"):
        cli.write(name, name)
    if not is_own:
        for path in (cli.root, *cli.root.rglob("*")):
            os.chown(path, 4321, 4321)
    (cli.root / "closed").chmod(0o555)
    before = photograph(cli.root)
    user = ("setpriv", "--reuid=4321", "--regid=4321", "--clear-groups")
    refused = ("rm -f closed/removed", "mv -f other closed/replaced", "mv -fT closed/moved open/file")
    commands = [f"sh -c '{words}' && exit 9" for words in refused]
    commands = ["touch closed/* open/file other", *commands, "chmod 640 closed/* open/file", "mkdir made"]
    by = (ORDINARY, ()) if is_own else ((), user)
    run = (*by[0], *INSTALLED, "run", "--", *by[1], "sh", "-c", "; ".join(commands))
    subprocess.run(run, check=True, capture_output=True)
    assert cli.json("barriers")["barriers"] == []
    cli.process("undo", "--run")
    assert differences(before, photograph(cli.root)) == []
