"""Edits by others while a supervised program runs: they are barriers, and what the program does itself never is."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast.files.watch import open_watcher
from holdfast.model.errors import RefusedError, UnsupportedError
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.service import BarrierInfo

from ..waiting import wait_until
from .conftest import INSTALLED

if TYPE_CHECKING:
    from e2e.conftest import Cli

ROOT = Path(__file__).parents[2]
ENDED_BY_A_THREAD = "import os, threading; threading.Thread(target=lambda: os._exit(os.write(1, bytes(1)) - 1)).start()"


class Site(NamedTuple):
    """A tree, its undo log, and how edits by others are seen."""

    tree: Path
    log: Path
    watch: str

    @contextmanager
    def running(self, script: str) -> Generator[RemoteUndoService]:
        """Run the script, and after it wait with the processes still there; in the block it has come so far."""
        words = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run"]
        words += ["--log", str(self.log), "--root", str(self.tree), "--watch", self.watch, "--"]
        words += ["sh", "-c", f"{script}\necho done\nread line"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        with subprocess.Popen(
            words, cwd=self.tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdin is not None
            assert run.stdout is not None
            assert run.stdout.readline() == "done\n"
            remote = connect(os.fsencode(self.log))
            assert remote is not None
            with remote:
                yield remote
            run.communicate("\n", timeout=60)
        assert run.returncode == 0

    def edit(self, script: str) -> None:
        """Somebody else at work."""
        subprocess.run(["sh", "-c", script], cwd=self.tree, check=True)

    def barriers(self, remote: RemoteUndoService) -> dict[bytes, BarrierInfo]:
        return {path: barrier for barrier in remote.barriers() for path in barrier.paths}


@pytest.fixture(name="site", params=["fanotify", "inotify"])
def _site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    (tmp_path / "tree").mkdir()
    try:
        open_watcher(os.fsencode(tmp_path / "tree"), request.param).close()
    except UnsupportedError as error:
        pytest.skip(str(error))
    return Site(tmp_path / "tree", tmp_path / "log", request.param)


def python(script: str) -> str:
    return f"{sys.executable} -c {shlex.quote(script)}"


MAPPED = """
import mmap, os
fd = os.open("mapped", os.O_RDWR)
os.ftruncate(fd, 4096)
with mmap.mmap(fd, 4096) as area:
    os.close(fd)
    area[:4] = b"mine"
"""

INHERITED = """
import os, subprocess
fd = os.open("inherited", os.O_WRONLY | os.O_CREAT)
for _ in range(30):
    if not os.fork():
        os.write(fd, b"x")
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""

OWN = {
    "a storm": "mkdir many; for i in $(seq 300); do mkdir many/$i; echo $i > many/$i/file; done; rm -r many/1?",
    "git": "git init -q r; cd r; echo a > a; git add a; git -c user.name=a -c user.email=a@b commit -qm a;"
    " git checkout -q -b other; git rm -q a; git -c user.name=a -c user.email=a@b commit -qm b;"
    " git checkout -q -; cat a > /dev/null",
    "mappings": f"truncate -s 1 mapped; {python(MAPPED)}",
    "children that end at once": python(INHERITED),
    "directories that move": "mkdir a; (echo one; mv a b; echo two) > a/file; mv b c; chmod 700 c; touch c; rm -r c",
    "orphans": "(sh -c 'exec 3> orphan; (for i in 1 2 3; do echo $i >&3; done; echo end > last) & ' &);"
    " while ! [ -s last ]; do :; done",
}


@pytest.mark.parametrize("name", OWN)
def test_what_a_supervised_program_does_is_no_barrier(site: Site, name: str) -> None:
    site.edit("echo before > there")
    with site.running(OWN[name]) as remote:
        assert list(remote.barriers()) == []
        site.edit("echo edited > there")  # it is seen at all
        assert list(site.barriers(remote)) == [b"there"]


def test_an_edit_is_a_barrier_until_it_is_taken_back(site: Site) -> None:
    """I8."""
    site.edit("echo theirs > also")
    # (A child each, so that the steps are over.)
    with site.running("(echo one > file; :) ; (echo other > free; :)") as remote:
        file, free = (step.id for step in remote.steps())
        (site.tree / "file").write_text("edited\n")
        (site.tree / "also").write_text("edited\n")
        barriers = site.barriers(remote)
        if site.watch == "fanotify":
            assert set(barriers) == {b"file", b"also"}
            assert f"({os.getpid()})" in barriers[b"file"].who
        else:
            assert b"also" in barriers  # an edit to what was written just now cannot be told from a late event
        assert [step.barrier_after for step in remote.steps()] == [False, True]
        with pytest.raises(
            RefusedError, match=r"has changed.* file.* since|another process has changed .* file"
        ) as refused:
            remote.undo([file])
        assert refused.value.code == "barrier"
        assert (site.tree / "file").read_text() == "edited\n"
        remote.undo([free])
        assert not (site.tree / "free").exists()
        assert set(site.barriers(remote)) == set(barriers)


def test_who_is_gone_at_once_is_known_by_what_nothing_explains(site: Site) -> None:
    with site.running("(echo one > file; :)") as remote:
        site.edit("echo edited > file; echo more > new")
        found = site.barriers(remote)
        assert b"new" in found
        assert site.watch != "fanotify" or b"file" in found


def test_who_is_gone_at_once_and_changes_only_what_the_step_has_changed_is_known(site: Site) -> None:
    """inotify reports no process: there it cannot be told from a late event of the step's."""
    if site.watch != "fanotify":
        pytest.skip("inotify reports no process")
    with site.running("(echo one > file; :)") as remote:
        (step,) = (step.id for step in remote.steps())
        for _ in range(20):
            site.edit("echo edited >> file")
        assert set(site.barriers(remote)) == {b"file"}
        with pytest.raises(RefusedError, match="file"):
            remote.undo([step])
        assert (site.tree / "file").read_text() == "one\n" + "edited\n" * 20


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("(for n in $(seq 100); do /bin/echo $n; done > file)", id="inherited descriptor"),
        pytest.param("(sh -c 'echo one > file; kill -9 $$'; :)", id="killed"),
        pytest.param(
            "(for n in $(seq 30); do sh -c 'echo one; kill -9 $$'; done > file; :)", id="killed without a call"
        ),
        pytest.param("(for n in $(seq 100); do (echo $n) & done > file; wait)", id="at once"),
        pytest.param(f"(python3 -c '{ENDED_BY_A_THREAD}' > file)", id="ended by a thread"),
    ],
)
def test_what_a_step_writes_by_processes_that_are_gone_is_no_edit(site: Site, script: str) -> None:
    with site.running(f"{script}\nsleep 0.1") as remote:
        assert list(remote.barriers()) == []


@pytest.mark.skipif(not shutil.which("setpriv"), reason="there is no setpriv")
def test_without_root_an_edit_while_a_step_writes_the_file_is_taken_back_with_it_and_brought_back(cli: Cli) -> None:
    """As docs/reference/limits.md says: inotify reports no process."""
    cli.write("f", "before")
    script = "(echo step > f; touch ready; while ! [ -e stop ]; do sleep 0.01; done)"
    plain = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    with subprocess.Popen([*plain, *INSTALLED, "-w", str(cli.root), "run", "--", "sh", "-c", script]) as run:
        wait_until((cli.root / "ready").exists)
        subprocess.run(["sh", "-c", "echo edit >> f"], cwd=cli.root, check=True)
        (cli.root / "stop").write_text("")
        assert run.wait(60) == 0
    cli("undo", "--run")
    assert (cli.root / "f").read_text() == "before"
    cli("redo")
    assert (cli.root / "f").read_text() == "step\nedit\n"


def test_an_edit_that_came_and_went_is_no_barrier(site: Site) -> None:
    with site.running("(mkdir dir; echo one > dir/file; :)") as remote:
        (step,) = (step.id for step in remote.steps())
        site.edit("echo swap > dir/.swap; rm dir/.swap")
        assert b"dir/.swap" in site.barriers(remote)
        site.edit("echo stays > dir/stays")
        with pytest.raises(RefusedError, match="dir/stays"):
            remote.undo([step])
        site.edit("rm dir/stays")
        assert remote.undo([step]).conflicts == ()
        assert not (site.tree / "dir").exists()


def test_what_happens_in_quiet_and_by_undo_is_no_barrier(site: Site) -> None:
    with site.running("(echo one > file; :)") as remote:
        (step,) = (step.id for step in remote.steps())
        with remote.quiet():
            site.edit("echo restored > other")
        remote.undo([step])
        remote.redo([step])
        assert list(remote.barriers()) == []


@pytest.mark.parametrize("policy", ["barrier", "warn"])
def test_the_policy_says_whether_undo_stops_at_an_edit(cli: Cli, policy: str) -> None:
    """I8."""
    (cli.home / "config.toml").write_text(f"[undo]\noutside = '{policy}'\n")
    cli.write("f", "0")
    script = "(mkdir dir; :); touch ready; while ! [ -e stop ]; do sleep 0.01; done"
    run = Thread(target=lambda: cli.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL))
    run.start()
    wait_until((cli.root / "ready").exists)
    (cli.root / "dir" / "theirs").write_text("theirs")
    (cli.root / "stop").write_text("")
    run.join()
    found = [barrier for barrier in cli.json("barriers")["barriers"] if "dir/theirs" in barrier["paths"]]
    assert [barrier["blocks"] for barrier in found] == [policy == "barrier"]
    step = cli.json("steps")["steps"][0]["id"]
    if policy == "barrier":
        assert "dir/theirs" in str(cli.process("undo", "--step", str(step), code=4).stderr)
    else:
        assert (
            b"something else is there now" in cli.process("undo", "--step", str(step), code=4).stderr
        )  # it goes as far as it can
    assert (cli.root / "dir" / "theirs").read_text() == "theirs"


def same_size(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"HAND")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"HAND\n")


@pytest.mark.parametrize(
    ("name", "before", "edit", "after", "left"),
    [
        pytest.param("h", "echo c1 >> h", append, ":", "orig\nc1\nHAND\n", id="append"),
        pytest.param("h", "echo c1 >> h", same_size, ":", "HAND\nc1\n", id="same size"),
        pytest.param("new", "echo c1 > new", append, ":", "c1\nHAND\n", id="created"),
        pytest.param("h", "echo c1 >> h", append, "echo c2 >> h", "orig\nc1\nHAND\nc2\n", id="edit, then command"),
    ],
)
def test_an_edit_while_a_command_runs_is_not_taken_back(
    cli: Cli, name: str, before: str, edit: Callable[[Path], None], after: str, left: str
) -> None:
    """I8."""
    try:
        open_watcher(os.fsencode(cli.root), "fanotify").close()
    except UnsupportedError as error:
        pytest.skip(str(error))
    cli.write("h", "orig\n")
    ready, go_on = cli.root.parent / "ready", cli.root.parent / "go-on"
    script = f"{before}; : > {ready}; while ! [ -e {go_on} ]; do sleep 0.01; done; {after}"
    with cli.start("run", "--", "sh", "-c", script, stdout=subprocess.DEVNULL) as run:
        wait_until(ready.exists)
        edit(cli.root / name)
        go_on.touch()
        run.communicate(timeout=60)
    cli.process("undo", "--dry-run", code=4)
    refused = cli.process("undo", code=4).stderr.decode()
    assert f"({os.getpid()}) has changed {name}" in refused
    assert (cli.root / name).read_text() == left
    rescue = cli.json("undo", "--force")["rescue"]
    assert not (cli.root / "new").exists()
    assert (cli.root / "h").read_text() == "orig\n"
    assert cli("cat", f"{rescue}:{name}").out == left
    cli("redo")
    assert (cli.root / name).read_text() == left
    cli.process("undo", code=4)


BY_OTHER_NAMES = [
    pytest.param("echo c1 >> h", "also", ":", id="another name"),
    pytest.param("echo c1 >> h", "new", ":", id="a new name"),
    pytest.param("echo c1 >> h", "../away", ":", id="outside"),
    pytest.param("echo c1 >> h; rm h", "also", ":", id="the step's name is gone"),
    pytest.param("echo c1 >> also; rm also", "h", "echo c2 > other", id="the other name is gone"),
    pytest.param("ln h third; echo c1 >> third", "also", "echo c2 >> h", id="edit, then command"),
]


@pytest.mark.parametrize(("before", "name", "after"), BY_OTHER_NAMES)
def test_an_edit_by_another_name_while_a_command_runs_is_not_taken_back(
    cli: Cli, before: str, name: str, after: str
) -> None:
    """I8."""
    try:
        open_watcher(os.fsencode(cli.root), "fanotify").close()
    except UnsupportedError as error:
        pytest.skip(str(error))
    cli.write("h", "orig\n")
    for other in ("also", "../away"):
        os.link(cli.root / "h", cli.root / other)
    ready, go_on = cli.root.parent / "ready", cli.root.parent / "go-on"
    script = f"{before}; : > {ready}; while ! [ -e {go_on} ]; do sleep 0.01; done; {after}"
    with cli.start("run", "--one-step", "--", "sh", "-c", script, stdout=subprocess.DEVNULL) as run:
        wait_until(ready.exists)
        if name == "new":
            os.link(cli.root / "h", cli.root / name)
        append(cli.root / name)
        go_on.touch()
        run.communicate(timeout=60)
    there = photograph(cli.root)
    cli.process("undo", code=4)
    assert differences(there, photograph(cli.root)) == []
    assert "HAND" in (cli.root / name).read_text()


_ANSWERING = """
import os
def said(to, back):
    to.write("x")
    to.flush()
    return back.read(1)
with open(%r, "w") as ready, open(%r) as edited:
    for number in range(%d):
        said(ready, edited)
        open(f"f{number}", "w").write("step")
"""


@pytest.mark.parametrize("way", ["written", "replaced"])
def test_an_edit_just_before_the_step_comes_to_the_file_is_what_undo_gives_back(cli: Cli, way: str) -> None:
    """I8: the news of it is still to be read by then."""
    try:
        open_watcher(os.fsencode(cli.root), "fanotify").close()
    except UnsupportedError as error:
        pytest.skip(str(error))
    files = [cli.root / f"f{number}" for number in range(30)]
    for file in files:
        file.write_text("before")
    ready, edited = (cli.root.parent / name for name in ("ready", "edited"))
    for pipe in (ready, edited):
        os.mkfifo(pipe)
    script = _ANSWERING % (os.fspath(ready), os.fspath(edited), len(files))
    with cli.start("run", "--one-step", "--", sys.executable, "-c", script, stdout=subprocess.DEVNULL) as run:
        with ready.open() as asked, edited.open("w") as answer:
            for file in files:
                assert asked.read(1)
                if way == "written":
                    file.write_text("by hand")
                else:
                    file.with_suffix(".new").write_text("by hand")
                    file.with_suffix(".new").rename(file)
                answer.write("x")
                answer.flush()
        run.communicate(timeout=60)
    assert {file.read_text() for file in files} == {"step"}
    cli("undo")
    assert {file.read_text() for file in files} == {"by hand"}


def test_a_lock_is_refused_with_the_reason(cli: Cli) -> None:
    (cli.home / "config.toml").write_text("[undo]\noutside = 'lock'\n")
    cli.write("f", "0")
    done = cli.process("run", "--", "touch", "new", code=4, stdin=subprocess.DEVNULL)
    assert b"which is impossible" in done.stderr
    assert not (cli.root / "new").exists()
