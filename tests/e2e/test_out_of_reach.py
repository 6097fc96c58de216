"""What is out of a tree's reach, by names that somebody outside has given it: mounts, what others have open (I7)."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import INSTALLED
from .test_supervisor_calls import supervised

if TYPE_CHECKING:
    from .conftest import Cli

MOUNTS = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]

needs_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*MOUNTS, "true"], check=False).returncode != 0,
    reason="nothing can be mounted",
)


def in_mounts(directory: Path, mount: str, command: str) -> str:
    """What a shell says in a run in the directory, with mounts that were made before."""
    hf = shlex.join([*INSTALLED, "run", "--", "sh", "-c", command])
    command = f"{mount}; {hf}"
    done = subprocess.run(
        [*MOUNTS, "sh", "-ec", command], cwd=directory, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done
    return done.stdout


ATTEMPTS = """
try() { "$@" 2> /dev/null && echo "done: $*"; }
for at in mnt/*/*/undo part above/home/*/*/undo; do
    [ -e $at/lock ] || echo "not there: $at"
    for name in lock new; do
        try sh -c ": >> $at/$name"
        try sh -c ": > $at/$name"
        try truncate -s 1 $at/$name
        try chmod 777 $at/$name
        try rm $at/$name
        try mv $at/$name .
        try ln $at/$name .
        try mkdir $at/$name
    done
done
try sh -c ': >> one'
try mv deep other
try mv mnt other
try sh -c ': >> beside' || echo beside
"""


@needs_mounts
def test_the_home_is_out_of_reach_wherever_it_is_mounted(cli: Cli) -> None:
    """I14: its parts and single files too, and what it lies in."""
    cli.process("run", "--", "touch", "first")
    (log,) = cli.home.glob("*/*/undo")
    for name in ("mnt", "part", "above", "deep/mnt"):
        (cli.root / name).mkdir(parents=True)
    for name in ("one", "beside"):
        cli.write(name, "content")
    places = {"mnt": cli.home, "part": log, "one": log / "lock", "above": cli.home.parent, "deep/mnt": cli.home}
    mount = "; ".join(shlex.join(["mount", "--bind", str(path), name]) for name, path in places.items())
    before = sorted((path, path.stat().st_mode) for path in log.iterdir() if path.name in ("lock", "new"))
    assert in_mounts(cli.root, mount, ATTEMPTS).splitlines() == ["done: sh -c : >> beside"]
    assert sorted((path, path.stat().st_mode) for path in log.iterdir() if path.name in ("lock", "new")) == before


@needs_mounts
def test_the_log_of_another_workspace_is_out_of_reach_wherever_it_is_mounted(cli: Cli) -> None:
    (cli.root.parent / "other/.holdfast/undo").mkdir(parents=True)
    for name in ("log", "keeps"):
        (cli.root / name).mkdir()
    other = shlex.quote(str(cli.root.parent / "other/.holdfast"))
    mount = f"mount --bind {other} keeps; mount --bind {other}/undo log"
    command = "for at in keeps/undo log keeps; do mkdir $at/made 2> /dev/null && echo $at; done; :"
    assert in_mounts(cli.root, mount, command) == "keeps\n"


@needs_mounts
def test_what_proc_says_of_others_is_out_of_reach_wherever_it_is_mounted(cli: Cli) -> None:
    """A process outside has a file open, by a ``/proc`` that is mounted elsewhere, in part, or under another name."""
    victim = cli.root.parent / "victim"
    victim.write_text("content")
    with victim.open() as file, subprocess.Popen(["cat"], stdin=-1, pass_fds=[file.fileno()]) as outside:
        for name in ("mnt", "part", "fds"):
            (cli.root / name).mkdir()
        top = f"/proc/{outside.pid}"
        mount = f"mount --bind /proc mnt; mount --bind {top} part; mount --bind {top}/fd fds"
        cli.write("beside", "content")
        cli.write(".gitignore", "/mnt/\n/part/\n/fds/\n")  # (To save all that a kernel says takes long.)
        ways = [f"{way}/{file.fileno()}" for way in (f"mnt/{outside.pid}/fd", "part/fd", f"{top}/fd", "fds")]
        each = f"for way in {' '.join(ways)} mnt/self/fd/7 /dev/fd/7"
        command = f"exec 7< beside; {each}; do (: > $way) 2> /dev/null && echo $way; done; :"
        said = in_mounts(cli.root, mount, command)
        assert said.split() == ["mnt/self/fd/7", "/dev/fd/7"]
        outside.communicate()
    assert victim.read_text() == "content"


PEERS = """
import os, subprocess, sys, threading
outside, keeper = sys.argv[1:3]
def attempt(path, act):
    try:
        act(path)
    except PermissionError:
        return
    sys.exit(path + " led there")
for path in (f"/proc/{outside}/fd/0", f"/proc/{outside}/task/{outside}/fd/0"):
    attempt(path, lambda path: os.open(path, os.O_WRONLY))
attempt(f"/proc/{outside}/cwd", lambda path: os.mkdir(path + "/made"))
attempt(f"/proc/{outside}/root", lambda path: os.truncate(path + keeper, 0))
attempt("/proc/1/oom_score_adj", lambda path: os.open(path, os.O_WRONLY))
attempt(f"/proc/{os.getppid()}/cwd", lambda path: os.chmod(path, 0o777))
with open("mine", "w") as file:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    for pid in (os.getpid(), child.pid):
        for top in (f"/proc/{pid}", f"/proc/{pid}/task/{pid}"):
            with open(f"{top}/fd/{file.fileno()}", "a") as again:
                again.write("x")
    reads = f"echo y >> /proc/{os.getpid()}/fd/{file.fileno()}; sleep 0 & echo y >> /proc/$!/cwd/mine; wait"
    subprocess.run(["sh", "-c", reads], check=True)
    def thread():
        with open(f"/proc/{threading.get_native_id()}/fd/{file.fileno()}", "a") as again:
            again.write("x")
    one = threading.Thread(target=thread)
    one.start()
    one.join()
child.communicate()
print(open("mine").read())
"""


def test_what_a_process_outside_has_open_is_no_way(tmp_path: Path) -> None:
    """And what those of the tree have open is one, for each other."""
    (tmp_path / "tree").mkdir()
    with subprocess.Popen(["cat"], stdin=-1, stdout=-1, cwd=tmp_path) as outside:
        precious = tmp_path / "precious"
        precious.write_text("content")
        said = supervised(tmp_path, sys.executable, "-c", PEERS, str(outside.pid), str(precious))
        assert outside.communicate()[0] == b""
    assert said == "xxxxy\ny\nx\n"
    assert precious.read_text() == "content"
    assert sorted(os.listdir(tmp_path)) == ["log", "precious", "tree"]
