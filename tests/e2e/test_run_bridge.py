"""`run --bridge fuse`: what a command changes comes by a mount that it alone sees, and is taken back as ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.processes.process_tree import descendants
from holdfast.testing.tree_state import differences, photograph

from ..fuse import ONLY_WITH_FUSE
from ..processes import command_of
from ..waiting import wait_until
from .as_user import USER
from .conftest import INSTALLED

if TYPE_CHECKING:
    from e2e.conftest import Cli

pytestmark = [ONLY_WITH_FUSE, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may mount")]
BRIDGED = ("run", "--bridge", "fuse")


@pytest.fixture(name="bench")
def _bench(cli: Cli) -> Iterator[Cli]:
    """With some files; afterwards no process and no mount is left, and the keeper has nothing to complain of."""
    before = set(descendants(os.getpid()))
    mounts = Path("/proc/self/mountinfo").read_text()
    cli.write(".gitignore", "cache\n")
    cli.write("f", "0")
    cli.write("cache/old", "0")
    for number in range(5):
        cli.write(f"many/{number}", str(number))
    cli("checkpoint")
    yield cli
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    assert Path("/proc/self/mountinfo").read_text() == mounts
    for notes in cli.home.rglob("keeper.log"):
        assert [json.loads(line) for line in notes.read_text().splitlines()] == []


def run(cli: Cli, *words: str, code: int = 0) -> tuple[str, str]:
    """What a run says on standard output, and on standard error."""
    done = cli.process(*BRIDGED, *words, code=code, stdin=subprocess.DEVNULL)
    return done.stdout.decode(), done.stderr.decode()


def shell(cli: Cli, script: str, *options: str) -> subprocess.Popen[bytes]:
    """Begin a run of a shell."""
    return cli.start(*BRIDGED, *options, "--", "sh", "-c", script)


def finish(running: subprocess.Popen[bytes], code: int = 0) -> str:
    """Wait for the end of one; what it said on standard error."""
    _, err = running.communicate(timeout=60)
    assert running.returncode == code, err
    return err.decode()


@contextmanager
def mounted(path: Path, *what: str) -> Generator[Path]:
    """Something, on a new directory."""
    path.mkdir()
    subprocess.run(["mount", *what, str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_what_ran_is_taken_back_step_by_step_and_brought_forward(bench: Cli) -> None:
    before = photograph(bench.root)
    out, err = run(bench, "--", "sh", "-c", "rm -r cache many; mkdir new; cp f new/g; stat -f -c %T .; rm f")
    assert out == "fuseblk\n" or "fuse" in out
    assert "holdfast undo --run" in err
    after = photograph(bench.root)
    steps = bench.json("steps")["steps"]
    assert [step["command"][0] for step in steps] == ["rm", "mkdir", "cp", "rm"]
    assert all(step["exit_code"] == 0 and step["protected"] and step["run"] for step in steps)
    assert bench.json("undo")["steps"] == [steps[-1]["id"]]
    assert (bench.root / "f").read_text() == "0"
    bench("undo", "3")
    assert differences(before, photograph(bench.root)) == []
    bench("redo", "4")
    assert differences(after, photograph(bench.root)) == []
    bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []


def test_a_clone_and_work_in_it_are_one_run(bench: Cli, place: Path) -> None:
    script = """
    git init -q origin && cd origin && echo 1 > file && mkdir d && echo 2 > d/g && git add . &&
    git -c user.name=n -c user.email=e commit -qm first && cd .. && git clone -q origin copy &&
    cd copy && git checkout -qb other && rm -r d && git status --short && git gc -q
    """
    before = photograph(bench.root)
    out, _ = run(bench, "--", "sh", "-c", script)
    assert out == " D d/g\n"
    bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []


def test_exit_codes_one_step_and_json(bench: Cli) -> None:
    run(bench, "sh", "-c", "exit 7", code=7)
    run(bench, "sh", "-c", "kill -TERM $$", code=143)
    _, err = run(bench, "no-such-command", code=127)
    assert "cannot run no-such-command: No such file or directory" in err
    out, err = run(bench, "--json", "--one-step", "--", "sh", "-c", "echo $HOLDFAST_RUN; touch x; rm f; true")
    result = json.loads(err.splitlines()[-1])
    assert out.strip() == result["run"]
    assert [step["paths"] for step in result["steps"]] == [2]
    assert bench.is_documented("run", result)


def test_it_runs_where_it_was_started(bench: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.root / "many")
    out, _ = run(bench, "--", "sh", "-c", "pwd; exec rm 0 ../f")
    assert out == f"{bench.root}/many\n"
    (step,) = bench.json("steps")["steps"]
    assert step["paths"] == 2
    bench("undo")
    assert sorted(os.listdir(bench.root / "many")) == ["0", "1", "2", "3", "4"]


def test_inside_is_what_is_inside_of_any_run(bench: Cli) -> None:
    me = " ".join(INSTALLED)
    script = f"""
    {me} undo; echo undo $?
    {me} checkpoint -qm inside; echo checkpoint $?
    {me} step begin together -q; echo 1 > a; echo 2 > b; {me} step commit; echo commit $?
    touch {bench.home}/mine; echo home $?
    umount .; echo umount $?
    ls /proc/{os.getpid()}/root; echo root $?
    kill -TERM {os.getpid()}; echo kill $?
    """
    out, err = run(bench, "--", "sh", "-c", script)
    said = [line for line in out.splitlines() if line.partition(" ")[0] != "Closed"]
    assert said == ["undo 4", "checkpoint 0", "commit 0", "home 1", "umount 32", "root 2", "kill 1"], err
    assert "[inside]" in bench("log").out or "inside" in bench("log").out
    (step,) = bench.json("steps")["steps"]
    assert (step["kind"], step["paths"]) == ("explicit", 2)


def test_what_it_left_running_is_served_until_it_ends(bench: Cli) -> None:
    run(bench, "--", "sh", "-c", "(until [ -e go ]; do sleep 0.01; done; echo later > later) > /dev/null 2>&1 &")
    assert not (bench.root / "later").exists()
    before = photograph(bench.root)
    (bench.root / "go").touch()
    wait_until((bench.root / "later").exists)
    wait_until(lambda: bench.json("steps")["steps"] and bench.json("steps")["steps"][-1]["state"] == "done")
    bench("undo", "--step", str(bench.json("steps")["steps"][-1]["id"]))
    assert sorted(photograph(bench.root)) == sorted([*before, b"go"])


def test_an_undo_and_an_edit_beside_it_are_seen_at_once(bench: Cli) -> None:
    running = shell(
        bench,
        """
        rm f; ls > /dev/null; touch removed
        until [ -e f ]; do sleep 0.01; done
        cat f; cat many/0; echo read > cat
        until [ "$(cat many/0)" = edited ]; do sleep 0.01; done
        """,
    )
    wait_until((bench.root / "removed").exists)
    steps = bench.json("steps")["steps"]
    first = next(step for step in steps if step["command"][0] == "rm")
    bench("undo", "--step", str(first["id"]))
    wait_until((bench.root / "cat").exists)
    (bench.root / "many" / "0").write_text("edited")
    finish(running)


def test_a_supervised_run_beside_it_is_told_apart_and_seen(bench: Cli) -> None:
    bridged = shell(bench, "touch one; until [ -e two ]; do sleep 0.01; done; rm two; touch three")
    wait_until((bench.root / "one").exists)
    supervised = bench.start("run", "--", "sh", "-c", "touch two; until [ -e three ]; do sleep 0.01; done; rm three")
    finish(bridged)
    finish(supervised)
    runs = {step["run"] for step in bench.json("steps")["steps"]}
    assert len(runs) == 2
    told = bench("undo", "--run", code=4).err
    assert "step" in told, "each has changed what the other made"


def test_a_safeguard_holds_and_what_is_denied_is_taken_back(bench: Cli) -> None:
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 3\n")
    before = photograph(bench.root)
    running = shell(bench, "rm many/0 many/1 many/2; echo code $? > code")
    wait_until(lambda: bench.json("safeguard", "list")["held"])
    (ticket,) = bench.json("safeguard", "list")["held"]
    assert (bench.root / "many" / "2").exists()
    bench("safeguard", "deny", str(ticket["id"]))
    finish(running)
    assert (bench.root / "code").read_text() == "code 1\n"
    bench("undo")
    assert differences(before, photograph(bench.root)) == []


def test_a_safeguard_that_is_allowed_lets_it_go_on(bench: Cli) -> None:
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 3\n")
    running = shell(bench, "rm many/0 many/1 many/2 many/3; echo code $? > code")
    wait_until(lambda: bench.json("safeguard", "list")["held"])
    (ticket,) = bench.json("safeguard", "list")["held"]
    bench("safeguard", "allow", str(ticket["id"]))
    finish(running)
    assert (bench.root / "code").read_text() == "code 0\n"
    assert os.listdir(bench.root / "many") == ["4"]


def test_a_safeguard_that_nobody_answers_for_seconds_refuses_and_what_is_allowed_then_goes_on(bench: Cli) -> None:
    """I9: what is refused is taken back at once, whatever its program does next."""
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 3\ntimeout = 300\n")
    running = shell(
        bench,
        """
        rm -r many 2> said; ls many > left; mv left seen
        until [ -e again ]; do sleep 0.01; done
        rm -r many
        """,
    )
    wait_until((bench.root / "seen").exists)
    assert "not permitted" in (bench.root / "said").read_text()
    assert (bench.root / "seen").read_text().split() == ["0", "1", "2", "3", "4"]
    assert sorted(os.listdir(bench.root / "many")) == ["0", "1", "2", "3", "4"]
    (ticket,) = bench.json("safeguard", "list")["held"]
    bench("safeguard", "allow", str(ticket["id"]))
    (bench.root / "again").touch()
    finish(running)
    assert not (bench.root / "many").exists()


@pytest.mark.parametrize("end", ["the command", "the run"])
def test_what_is_killed_while_it_is_held_leaves_nothing_of_its_step(bench: Cli, end: str) -> None:
    """I9."""
    (bench.home / "config.toml").write_text("[safeguard]\ndeletes = 3\ntimeout = 300\n")
    before = photograph(bench.root / "many")
    running = shell(bench, "exec rm -r many")
    wait_until(lambda: bench.json("safeguard", "list")["held"])
    if end == "the run":
        running.kill()
    else:
        (command,) = [pid for pid in descendants(running.pid) if command_of(pid).startswith(b"rm\0")]
        os.kill(command, signal.SIGKILL)
    running.communicate(timeout=60)
    wait_until(lambda: not differences(before, photograph(bench.root / "many")))


def test_a_killed_keeper_ends_it_and_its_step_is_rolled_back(bench: Cli) -> None:
    """I3."""
    before = photograph(bench.root)
    running = shell(bench, "rm -r many; echo 1 > f; touch ready; sleep 1000")
    wait_until((bench.root / "ready").exists)
    keepers: list[int] = []
    for pid in descendants(running.pid):
        with suppress(FileNotFoundError):  # it has ended
            if b"supervisor.keeper" in command_of(pid):
                keepers.append(pid)
    (keeper,) = keepers
    os.kill(keeper, signal.SIGKILL)
    assert "its keeper was killed" in finish(running, 1)
    bench("undo", "--run", "--force")  # (what was touched a moment before may still count as being written to)
    assert differences(before, photograph(bench.root)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_is_killed_leaves_nothing(bench: Cli, number: signal.Signals) -> None:
    before = photograph(bench.root)
    running = shell(bench, "rm -r many; touch ready; exec sleep 1000")
    wait_until((bench.root / "ready").exists)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == (143 if number == signal.SIGTERM else -9)
    wait_until(lambda: all(step["state"] == "done" for step in bench.json("steps")["steps"]))
    bench("undo", "--run")
    assert differences(before, photograph(bench.root)) == []


def test_who_opens_more_than_there_is_room_for_gets_an_error_and_the_rest_goes_on(bench: Cli) -> None:
    """I3: the keeper has descriptors left for what it does itself, and other runs go on."""
    before = photograph(bench.root)
    script = """
import errno, os, resource, sys
files = []
try:
    while True: files.append(os.open(f"new{len(files) % 7}", os.O_RDWR | os.O_CREAT))
except OSError as error:
    print(errno.errorcode[error.errno], os.listdir("many") if len(files) < 50 else "", flush=True)
sys.stdin.readline()
"""
    low = ["prlimit", "--nofile=300:300", *INSTALLED, *BRIDGED, "--", "prlimit", "--nofile=300", sys.executable]
    with subprocess.Popen([*low, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == b"ENFILE \n"
        run(bench, "--", "sh", "-c", "cat f many/*; echo 1 > f")
        bench.process("run", "--", "sh", "-c", "echo 2 > f")
        running.stdin.close()
        assert running.wait() == 0
    assert len(bench.json("steps")["steps"]) == 3
    bench("undo", "3")
    assert differences(before, photograph(bench.root)) == []


MANY = """
import subprocess, sys
started, said = [], []
for number in range(80):
    words = ["sh", "-c", f"echo {number} > new{number} && echo done; exec cat"]
    child = subprocess.Popen(words, stdin=-1, stdout=-1, stderr=subprocess.STDOUT, text=True)
    started.append(child)
    said.append(child.stdout.readline())
refused = [line for line in said if line != "done\\n"]
print(len(refused), all("Too many open files in system" in line for line in refused), flush=True)
sys.stdin.readline()
for child in started:
    child.communicate()
print(subprocess.run(["sh", "-c", "echo again > again"]).returncode, flush=True)
"""


@pytest.mark.parametrize("bridged", [True, False])
def test_very_many_processes_get_an_error_and_the_rest_goes_on(bench: Cli, bridged: bool) -> None:
    """I3: no process is recorded that the keeper cannot watch, nor keeps it from watching others'."""
    before = photograph(bench.root)
    low = ["prlimit", "--nofile=300:300", *INSTALLED, "run", *(["--bridge", "fuse"] if bridged else []), "--"]
    words = [*low, "prlimit", "--nofile=300", sys.executable, "-c", MANY]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        refused, is_said = running.stdout.readline().split()
        assert 80 - 45 <= int(refused) < 80
        assert is_said == "True"
        run(bench, "--", "sh", "-c", "cat f many/*; echo 1 > f; sh -c 'echo 2 > g'")
        bench.process("run", "--", "sh", "-c", "echo 2 > f")
        running.stdin.close()
        assert running.stdout.readline() == "0\n"
        assert running.wait() == 0
    assert len([path for path in photograph(bench.root) if path.startswith(b"new")]) == 80 - int(refused)
    assert not [step for step in bench.json("steps")["steps"] if step["kind"] == "ambient"]
    bench("undo", str(len(bench.json("steps")["steps"])))
    assert differences(before, photograph(bench.root)) == []


def test_who_comes_in_from_outside_is_recorded_but_none_of_the_run(bench: Cli) -> None:
    before = photograph(bench.root)
    running = shell(bench, "echo $$ > pid; touch ready; exec sleep 1000")
    wait_until((bench.root / "ready").exists)
    inside = f"/proc/{(bench.root / 'pid').read_text().strip()}/cwd"
    come = f"echo 1 > {inside}/theirs; touch {inside}/child; echo done; exec sleep 1000"
    with subprocess.Popen(["sh", "-c", come], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"done\n"
        running.kill()
        running.communicate(timeout=60)
        wait_until(lambda: all(step["state"] == "done" for step in bench.json("steps")["steps"]))
        assert other.poll() is None, "nobody outside ends with a run"
        other.kill()
    assert [step["paths"] for step in bench.json("steps")["steps"] if step["kind"] == "ambient"] == [2]
    bench("undo", "--run")
    assert sorted(set(photograph(bench.root)) - set(before)) == [b"child", b"theirs"]


def test_what_is_holdfasts_own_is_neither_moved_nor_changed_by_whatever_path(bench: Cli) -> None:
    """With a mount made outside that shows all of it elsewhere, and one that shows a part."""
    place, other, part = bench.home.parent, bench.home.parent / "other", bench.home.parent / "part"
    for path in (other, part):
        path.mkdir()
    before = sorted(place.rglob("*"))
    script = f"""
    mount --bind {place} {other} && mount --bind {bench.home}/workspaces {part} || exit 9
    exec {" ".join(INSTALLED)} run --bridge fuse -- sh -c '
        for path in {bench.home} {other}/home {part}; do touch $path/new && echo made $path; done
        touch {other}/home/workspaces/new && echo made below
        mv {bench.home} {place}/moved && echo moved the home
        mv {place} {place}-moved && echo moved what it lies in
        mv {other}/home {other}/moved && echo moved it elsewhere
        mkdir {place}/beside && mv {place}/beside {place}/user && rmdir {place}/user/beside && echo others move
        df {place} > {place}/said && rm {place}/said && rm f && echo done'
    """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"others move\ndone\n"
    assert [path for path in before if not path.exists()] == [bench.root / "f"]
    assert not [path for path in place.rglob("*") if path.name in {"new", "moved"}]
    bench("undo")
    assert (bench.root / "f").read_text() == "0"


def test_the_undo_log_in_another_workspace_is_left_alone(bench: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(bench.home.parent / "disk", "-t", "tmpfs", "tmpfs") as disk:
        monkeypatch.chdir(disk)
        bench("init")
        bench.process("run", "--", "touch", "x")
        assert (disk / ".holdfast" / "undo").is_dir()
        monkeypatch.chdir(bench.root)
        script = f"cd {disk}/.holdfast && ! touch undo/new && ! mv undo gone && cd .. && ! mv .holdfast gone && rm x"
        run(bench, "--", "sh", "-c", script)
        assert not (disk / "x").exists()


def test_what_is_mounted_in_the_workspace_is_seen_and_taken_back(bench: Cli) -> None:
    """Another file system, and directories of the same one: from outside, and of the workspace itself."""
    outside = bench.home.parent / "outside"
    (outside / "d").mkdir(parents=True)
    with (
        mounted(bench.root / "tmpfs", "-t", "tmpfs", "tmpfs"),
        mounted(bench.root / "bind", "--bind", str(outside)),
        mounted(bench.root / "self", "--bind", str(bench.root / "many")),
    ):
        for name in ("tmpfs", "bind/d"):
            (bench.root / name / "g").write_text("0")
            os.link(bench.root / name / "g", bench.root / name / "h")
        before = photograph(bench.root)
        script = """
        for at in tmpfs bind/d; do
            echo 1 > $at/new && echo 1 >> $at/g && rm $at/h && mkdir $at/e && mv $at/g $at/e && cat $at/e/g || exit 1
        done
        mv bind/d bind/D && rm -r bind/D/e && echo 1 > self/0 && cat many/0 && rm many/1 && ! cat self/1
        """
        out, _ = run(bench, "--", "sh", "-c", script)
        assert out == "01\n01\n1\n"
        assert not (outside / "d").exists()
        bench("undo", "--run")
        assert differences(before, photograph(bench.root)) == []


@pytest.mark.parametrize("level", ["namespace", "vm"])
def test_isolation_is_refused(bench: Cli, level: str) -> None:
    done = bench("--json", *BRIDGED, "--isolation", level, "--", "touch", "x", code=1)
    assert done.error["code"] == "unsupported"
    assert not (bench.root / "x").exists()


def test_an_ordinary_user_has_it_in_a_user_namespace(place: Path) -> None:
    for name in ("theirs", "theirs/work", "dev"):
        (place / name).mkdir()
    for name in ("theirs", "theirs/work"):
        os.chown(place / name, USER, USER)
    for path in (place, *place.parents):
        if path.stat().st_mode & 0o001 == 0 and path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o011)
    me = " ".join([sys.executable, "-m", "holdfast"])
    script = f"""
    cd work; echo 0 > f; mkdir d; echo 1 > d/g; {me} init -q
    {me} run -q --bridge fuse -- sh -c 'cat f; rm -r d; echo 2 > n; umount .; unshare -rm umount -l .; id -u
        mv ../home ../moved && echo moved; touch ../home/new && echo made; mkdir ../d && mv ../d ../e && rmdir ../e'
    ls; {me} undo -q --run; ls
    """
    home = place / "theirs"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("as_user.py")), str(place / "dev"), "/bin/sh", "-c", script],
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HOLDFAST_HOME": str(home / "home"),
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        },
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.decode().split() == ["0", str(USER), "f", "n", "d", "f"], done.stderr.decode()


WAITING = """
import errno, os, select, socket
def added(fd):
    try:
        poll.register(fd, select.EPOLLIN)
        return "added"
    except OSError as error:
        return errno.errorcode[error.errno]
poll, (one, other), (end, _) = select.epoll(), socket.socketpair(), os.pipe()
file, directory = os.open("f", os.O_RDONLY), os.open(".", os.O_RDONLY)
os.mkfifo("pipe")
pipe = os.open("pipe", os.O_RDWR)
print(*map(added, (file, os.dup(file), directory, one.fileno(), one.fileno(), end, pipe, 99)))
other.send(b"x")
print(poll.poll(0) == [(one.fileno(), select.EPOLLIN)])
"""


def test_a_regular_file_cannot_be_waited_for_and_all_else_can_as_without_a_run(bench: Cli) -> None:
    native = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=True, cwd=bench.root)
    assert native.stdout == "EPERM EPERM EPERM added EEXIST added added EBADF\nTrue\n"
    (bench.root / "pipe").unlink()
    assert run(bench, "--", sys.executable, "-c", WAITING)[0] == native.stdout
