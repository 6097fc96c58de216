"""A file that a step opened and that is written to after the step's end belongs to it, whoever has the descriptor."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.model.errors import RefusedError
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService

from . import afterwards

ROOT = Path(__file__).parents[2]

GO = "sys.stdin.readline()"

MAPPED = f"""
import mmap, os, sys
print("ready", flush=True)
{GO}
fd = os.open("log", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
area = mmap.mmap(fd, 4096)
os.close(fd)
print("opened", flush=True)
{GO}
area[:4] = b"late"
print("written", flush=True)
{GO}
"""

PASSED = f"""
import os, socket, sys
ours, theirs = socket.socketpair()
if not os.fork():
    _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
    print("opened", flush=True)
    {GO}
    os.write(fd, b"late")
    print("written", flush=True)
    {GO}
    os._exit(0)
print("ready", flush=True)
{GO}
fd = os.open("log", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"early")
socket.send_fds(ours, [b"x"], [fd])
os.close(fd)
os.wait()
"""

INHERITED = f"""
import os, sys
print("ready", flush=True)
{GO}
fd = os.open("log", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"early")
if not os.fork():
    print("opened", flush=True)
    {GO}
    os.write(fd, b"late")
    print("written", flush=True)
    {GO}
    os._exit(0)
os.close(fd)
os.wait()
"""

THREADED = f"""
import ctypes, os, sys, threading
def work():
    assert not ctypes.CDLL(None).unshare(0x400)  # a table of open files of its own
    fd = os.open("log", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"early")
    print("opened", flush=True)
    {GO}
    os.write(fd, b"late")
    print("written", flush=True)
    {GO}
print("ready", flush=True)
{GO}
threading.Thread(target=work).start()
"""


def python(script: str) -> str:
    return f"{sys.executable} -c {shlex.quote(script)}"


# Each waits, opens the file, writes to it when it is told to, and closes it when it is told again.
WRITERS = {
    "by the agent": "echo ready; read go; exec 3>log; echo early >&3; echo opened; read go; echo late >&3;"
    " echo written; read go; exec 3>&-",
    "by a child that inherited it": python(INHERITED),
    "by whom it was passed to": python(PASSED),
    "through a mapping": python(MAPPED),
    "by a thread alone": python(THREADED),
}


class Site(NamedTuple):
    """A tree and its undo log."""

    tree: Path
    log: Path

    @contextmanager
    def running(self, script: str) -> Generator[subprocess.Popen[str]]:
        words = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run"]
        words += ["--log", str(self.log), "--root", str(self.tree), "--", "sh", "-c", script]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        with subprocess.Popen(
            words, cwd=self.tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as run:
            yield run

    def service(self) -> AbstractContextManager[LocalUndoService]:
        return afterwards.service(self.log, self.tree)

    def remote(self) -> RemoteUndoService:
        remote = connect(os.fsencode(self.log))
        assert remote is not None
        return remote


def heard(run: subprocess.Popen[str], word: str) -> None:
    assert run.stdout is not None
    assert run.stdout.readline() == f"{word}\n"


def tell(run: subprocess.Popen[str]) -> None:
    assert run.stdin is not None
    run.stdin.write("\n")
    run.stdin.flush()


def opened(site: Site, run: subprocess.Popen[str], remote: RemoteUndoService) -> int:
    """The step in which the file was opened; it is over."""
    step = remote.begin("opens")
    tell(run)
    heard(run, "opened")
    assert remote.commit(step).paths == 1
    return step


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Site:
    (tmp_path / "tree").mkdir()
    return Site(tmp_path / "tree", tmp_path / "log")


@pytest.mark.parametrize("how", WRITERS)
def test_what_is_written_after_the_step_belongs_to_it(site: Site, how: str) -> None:
    (site.tree / "other").write_text("other")
    before = photograph(site.tree)
    with site.running(WRITERS[how]) as run:
        heard(run, "ready")
        with site.remote() as remote:
            step = opened(site, run, remote)
            with pytest.raises(RefusedError, match="still has log open for writing"):
                remote.undo([step])
            tell(run)
            heard(run, "written")
            with pytest.raises(RefusedError, match="still has log open for writing"):
                remote.undo([step])
        run.communicate("\n", timeout=60)
    assert b"late" in (site.tree / "log").read_bytes()
    after = photograph(site.tree)
    with site.service() as service:
        service.undo([step])
        assert differences(before, photograph(site.tree)) == []
        service.redo([step])
        assert differences(after, photograph(site.tree)) == []
        (site.tree / "log").write_text("by hand")
        with pytest.raises(RefusedError, match="another process has changed what step"):
            service.undo([step])


def test_it_is_settled_while_the_run_goes_on(site: Site) -> None:
    with site.running(WRITERS["by the agent"] + "; echo closed; read go") as run:
        heard(run, "ready")
        with site.remote() as remote:
            step = opened(site, run, remote)
            tell(run)
            heard(run, "written")
            tell(run)
            heard(run, "closed")
            assert remote.undo([step]).conflicts == ()
            assert not (site.tree / "log").exists()
        run.communicate("\n", timeout=60)


def test_later_steps_while_it_is_open(site: Site) -> None:
    """One that has nothing to do with the file is undone alone; one that wrote in between only with the first."""
    before = photograph(site.tree)
    script = "echo ready; read go; exec 3>>log; echo early >&3; echo opened; read go; (echo other > other; :)"
    script += "; (echo between >> log; :); echo late >&3; echo written; read go"
    with site.running(script) as run:
        heard(run, "ready")
        with site.remote() as remote:
            first = opened(site, run, remote)
            tell(run)
            heard(run, "written")
            other, between = (step.id for step in remote.steps() if step.id != first)
            assert remote.undo([other]).conflicts == ()
            assert not (site.tree / "other").exists()
            with pytest.raises(RefusedError, match="still has log open"):
                remote.undo([between])
        run.communicate("\n", timeout=60)
    assert (site.tree / "log").read_text() == "early\nbetween\nlate\n"
    with site.service() as service:
        with pytest.raises(RefusedError, match=f"step {first} has to do with log too"):
            service.undo([between])
        assert service.undo([first, between]).conflicts == ()
        assert differences(before, photograph(site.tree)) == []


@pytest.mark.parametrize(
    "script",
    [
        "exec 3>>log; echo first >&3; (echo between >> log; :); true",
        "exec 3>>log; echo first >&3; (echo between >> log; :); echo last >&3",
        "echo first >> log; (echo between >> log; :); echo last >> log",
    ],
    ids=["held open", "held open and written to", "opened anew"],
)
def test_of_steps_that_overlap_the_one_that_ends_last_says_what_they_left(site: Site, script: str) -> None:
    before = photograph(site.tree)
    with site.running(script) as run:
        run.communicate(timeout=60)
    after = photograph(site.tree)
    with site.service() as service:
        steps = [step.id for step in service.steps()]
        assert len(steps) == 2
        assert service.undo(steps).conflicts == ()
        assert differences(before, photograph(site.tree)) == []
        assert service.redo(steps).conflicts == ()
        assert differences(after, photograph(site.tree)) == []


def test_who_only_reads_is_not_waited_for(site: Site) -> None:
    with site.running("echo ready; read go; echo early > log; exec 3<log; echo opened; read go") as run:
        heard(run, "ready")
        with site.remote() as remote:
            remote.undo([opened(site, run, remote)])
            assert not (site.tree / "log").exists()
        run.communicate("\n", timeout=60)


def test_nothing_is_known_if_the_keeper_is_killed_meanwhile(site: Site) -> None:
    (site.tree / "log").write_text("before")
    with site.running(WRITERS["by the agent"]) as run:
        heard(run, "ready")
        with site.remote() as remote:
            step = opened(site, run, remote)
            os.kill(remote._connection.peer.pid, signal.SIGKILL)
        run.communicate("\n\n", timeout=60)
    with site.service() as service:
        with pytest.raises(RefusedError, match="left in log is not known") as refused:
            service.undo([step])
        assert refused.value.code == "barrier"
        service.undo([step], force=True)
        assert (site.tree / "log").read_text() == "before"


def test_a_file_is_opened_where_somebody_has_put_another_in_its_place(site: Site) -> None:
    """I8."""
    with site.running("echo 1 > log; true"):
        pass
    (site.tree / "log").unlink()
    (site.tree / "log").write_text("theirs\n")
    with site.running("exec 3>>log; sh -c 'echo b >> log; true'") as run:
        assert run.wait(60) == 0
    assert (site.tree / "log").read_text() == "theirs\nb\n"


SLOW_TO_END = f"""
import os, sys
fd = os.open("log", os.O_WRONLY | os.O_CREAT)
if not os.fork():
    ballast = b"x" * (256 << 20)
    {GO}
    os.write(fd, b"late")
    os._exit(0)
"""


def test_who_is_slow_to_end_is_waited_for(site: Site) -> None:
    """A process gives its memory back before it closes its files, and is out of supervision before both."""
    with site.running(f"exec {python(SLOW_TO_END)}") as run:
        assert run.wait(60) == 0
        run.communicate("\n", timeout=60)
    assert (site.tree / "log").read_bytes() == b"late"
    with site.service() as service:
        (step,) = service.steps()
        service.undo([step.id])
        assert not (site.tree / "log").exists()
