"""One command by a real shell: what it leaves, however it ends; what it writes; and how it is ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from holdfast.engine.sessions.holder.lock import InFlight, end_orphans, note_path
from holdfast.engine.sessions.shell import _shell_programs as shell_programs
from holdfast.engine.sessions.shell.execution import ShellCommand, ShellResult, Streams, run_command
from holdfast.model.errors import StorageError, UnsupportedError, UsageError
from holdfast.model.session_types import SessionId, ShellName

from .....waiting import wait_until

SHELLS: tuple[ShellName, ...] = ("bash", "sh", "zsh")
Run = Callable[..., ShellResult]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> ShellName:
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}")
    return request.param


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = (tmp_path / "place").resolve()
    (found / "a b\n").mkdir(parents=True)
    return found


@pytest.fixture
def run(place: Path, shell: ShellName) -> Run:
    def run_it(command: str, variables: dict[str, str] | None = None, **options: object) -> ShellResult:
        environment = {"PATH": os.environ["PATH"], "HOME": "/", "LOGNAME": "me", "A": "1", "PWD": str(place)}
        environment |= variables or {}
        what = {"cwd": bytes(place), "environment": environment, "shell": shell} | options
        streams = Streams(*(what.pop(name, None) for name in Streams._fields))  # type: ignore[arg-type]
        order = ShellCommand(command, *(what.pop(name) for name in ShellCommand._fields[1:]))  # type: ignore[arg-type]
        return run_command(order, streams, **what)  # type: ignore[arg-type]

    return run_it


def new(ran: ShellResult) -> dict[str, str]:
    """What is exported besides what was given."""
    assert ran.carried is not None
    return {name: value for name, value in ran.carried.env.items() if name not in ("PATH", "HOME", "LOGNAME", "OLDPWD")}


MOVE = "cd a*; export B='x\ny'; unset A; "


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 3", 3),
        ("(exit 4); exit", 4),
        ("exec sh -c 'exit 5'", 5),
        ("exec 3>&1; false || exec sh -c 'exit 6'", 6),
        ("set -e; false; exit 99", 1),
        ("f() { exit 7; }; f", 7),
        ("trap 'echo bye' EXIT", 0),
        ("trap 'echo bye' EXIT; exit 8", 8),
        ("trap 'echo bye' EXIT; f() { exit 9; }; f", 9),
        ("kill -TERM $$", 143),
        ("kill -INT $$", 130),
        ("exec >&- 2>&-", 0),
        ("set -C", 0),
        ("set -u", 0),
        ("set -f", 0),
        ("set -a", 0),
        ("true & wait", 0),
        ('rmdir "$PWD"', 0),
        ("(cd /; export B=no; exit 2); (cd /; exec true); true", 0),
        ("(trap : EXIT; cd /; exit 2); true", 0),
        ("readonly R=1", 0),
    ],
)
def test_directory_and_variables_are_handed_on_however_it_ends(run: Run, place: Path, ending: str, code: int) -> None:
    ran = run(MOVE + ending)
    assert ran.result.exit_code == code
    assert ran.result.stdout == ("bye\n" if "bye" in ending else "")
    assert ran.result.stderr == ""
    assert ran.carried is not None
    assert ran.carried.cwd == bytes(place / "a b\n")
    assert new(ran) == {"B": "x\ny"}


@pytest.mark.parametrize("shell", ["bash", "zsh"], indirect=True)
def test_they_are_handed_on_where_a_trap_of_its_own_meets_a_failure(run: Run, place: Path) -> None:
    ran = run(MOVE + "trap 'echo bye' EXIT; set -e; false; echo no")
    assert (ran.result.exit_code, ran.result.stdout, ran.result.stderr) == (1, "bye\n", "")
    assert new(ran) == {"B": "x\ny"}


def test_what_is_killed_hands_on_nothing(run: Run) -> None:
    ran = run(MOVE + "kill -KILL $$")
    assert (ran.result.exit_code, ran.carried) == (137, None)


def test_odd_variables_are_handed_on(run: Run) -> None:
    ran = run("export B='  $x`y` \"'\"'\"' \\ ' C= D=\"$(printf 'a\\377b\\n\\nc')\"; readonly D")
    assert new(ran) == {"A": "1", "B": "  $x`y` \"' \\ ", "C": "", "D": "a\udcffb\n\nc"}
    again = run('printf \'%s|\' "$B" "$C" "$D"; D=changed', new(ran))
    assert again.result.stdout == "  $x`y` \"' \\ ||a\\xffb\n\nc|"
    assert new(again)["D"] == "changed"


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_exported_functions_are_handed_on(run: Run) -> None:
    ran = run('f() { echo "f $1"; }; export -f f')
    again = run("f 1; bash -c 'f 2'; exec true", new(ran))
    assert (again.result.stdout, again.result.stderr) == ("f 1\nf 2\n", "")


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_functions_with_the_names_of_builtins_do_no_harm(run: Run, place: Path) -> None:
    ran = run(MOVE + 'for f in printf pwd trap exit eval exec; do eval "$f() { echo no; }"; export -f $f; done')
    again = run(MOVE + "true", {name: value for name, value in new(ran).items() if name.startswith("BASH_FUNC")})
    assert again.carried is not None
    assert again.carried.cwd == bytes(place / "a b\n")


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_options_that_are_exported_hold_for_the_next_command_and_nothing_of_ours_is_traced(run: Run) -> None:
    ran = run("export SHELLOPTS; set -eux")
    again = run("echo hi; false; echo no", new(ran))
    assert (again.result.exit_code, again.result.stdout) == (1, "hi\n")
    assert again.result.stderr.splitlines()[-2:] == ["++ echo hi", "++ false"]
    assert "holdfast" not in again.result.stderr
    assert new(again) == {"A": "1", "SHELLOPTS": new(ran)["SHELLOPTS"]}


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_bash_env_is_for_the_scripts_that_it_starts(run: Run, place: Path) -> None:
    (place / "env").write_text("echo sourced; export A=0; cd /\n")
    ran = run('export BASH_ENV="$PWD/env"; bash -c "echo script"')
    again = run('echo here "$A" "$PWD"; bash -c "echo script"', new(ran))
    assert ran.result.stdout == "sourced\nscript\n"
    assert again.result.stdout == f"here 1 {place}\nsourced\nscript\n"


def test_a_trace_shows_nothing_of_ours(run: Run) -> None:
    ran = run("set -x; trap 'true bye' EXIT; cd a*; exit 3")
    assert ran.result.exit_code == 3
    assert "holdfast" not in ran.result.stderr
    assert "printf" not in ran.result.stderr


def test_positional_parameters_are_a_new_shells(run: Run) -> None:
    assert run('echo "$#"; set -- a b; echo $#; exit').result.stdout == "0\n2\n"


def test_a_mistake_in_it_is_told_by_the_shell(run: Run, place: Path) -> None:
    ran = run("if")
    assert ran.result.exit_code in (1, 2)
    assert ran.result.stderr
    assert ran.carried is not None
    assert ran.carried.cwd == bytes(place)


def test_a_long_command_is_run_as_any(run: Run) -> None:
    ran = run(f"x={'y' * 200_000}; cd a*; echo ${{#x}}; exit 3")
    assert (ran.result.stdout, ran.result.exit_code, ran.carried is not None) == ("200000\n", 3, True)


LONGEST = 32 * os.sysconf("SC_PAGE_SIZE") - 2
"""Bytes of a variable's name and value, behind which a program needs an ``=`` and a NUL."""


def test_what_is_too_long_for_a_program_is_left_out_and_named(run: Run, place: Path) -> None:
    ran = run(
        f"export A={'x' * LONGEST}; export FITS=$A; FITS=${{FITS#?????}}; export U={'é' * (LONGEST // 2)}; "
        "export OTHER='1\nexport A=2'; cd a*; set -eu; exit 3",
        {"LANG": "C.UTF-8"},
    )
    assert (ran.result.exit_code, ran.carried is not None) == (3, True)
    assert ran.carried is not None
    assert sorted(ran.carried.too_long) == ["A", "U"]
    left = new(ran)
    assert left["FITS"] == "x" * (LONGEST - 5), "one that is just short enough"
    assert left["OTHER"] == "1\nexport A=2"
    assert "A" not in left
    assert ran.carried.cwd == bytes(place / "a b\n")


def test_more_than_a_program_can_be_started_with_is_told(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    limit = os.sysconf("SC_ARG_MAX") // (LONGEST - 10) + 1
    ran = run(f"x={'x' * (LONGEST - 10)}; " + "; ".join(f"export V{number}=$x" for number in range(limit)))
    assert ran.carried is None
    (warned,) = caplog.records
    assert "keeps its previous directory and variables" in warned.getMessage()
    caplog.clear()


def test_output_is_passed_on_whole_and_kept_in_part(run: Run) -> None:
    passed: list[tuple[str, bytes]] = []
    ran = run(
        "head -c 300000 /dev/zero; printf '\\377' >&2", max_output_bytes=100, output=lambda *said: passed.append(said)
    )
    assert b"".join(data for name, data in passed if name == "stdout") == bytes(300_000)
    assert b"".join(data for name, data in passed if name == "stderr") == b"\xff"
    assert ran.result.truncated
    assert ran.result.stdout == "\0" * 50 + "\n[… 299,900 bytes left out …]\n" + "\0" * 50
    assert ran.result.stderr == "\\xff"


def test_it_reads_what_it_is_given_and_else_nothing(run: Run) -> None:
    assert run("cat").result.stdout == ""
    reader, writer = os.pipe()
    os.write(writer, b"words")
    os.close(writer)
    try:
        assert run("cat", stdin=reader).result.stdout == "words"
    finally:
        os.close(reader)


def test_the_end_of_its_time_ends_all_of_its_group(run: Run, place: Path) -> None:
    ran = run(MOVE + "sh -c 'echo $$; echo $$ >pid; while :; do sleep 60; done'", timeout=0.5)
    assert (ran.result.exit_code, ran.result.timed_out) == (143, True)
    assert new(ran) == {"B": "x\ny"}
    assert is_gone(int((place / "a b\n/pid").read_text()))


def test_who_does_not_end_when_asked_is_made_to(run: Run, place: Path) -> None:
    ran = run("trap '' TERM; (trap '' TERM; sh -c 'echo $$ >pid; sleep 60'; sleep 60)", timeout=0.5, grace=0.1)
    assert (ran.result.exit_code, ran.result.timed_out, ran.carried) == (137, True, None)
    assert is_gone(int((place / "pid").read_text()))


def test_it_is_ended_when_that_is_asked_for(run: Run) -> None:
    stop = threading.Event()
    ran = run("sh -c 'echo started; exec sleep 60'", stop=stop, output=lambda *_: stop.set())
    assert (ran.result.exit_code, ran.result.timed_out, ran.result.stdout) == (143, False, "started\n")


def test_an_interrupt_is_passed_on(run: Run) -> None:
    ran = run(
        "trap 'echo caught; exit 3' INT; sh -c 'echo started'; while :; do sleep 0.01; done",
        output=lambda _name, data: os.kill(os.getpid(), signal.SIGINT) if data == b"started\n" else None,
    )
    assert (ran.result.stdout, ran.result.exit_code, ran.interrupted) == ("started\ncaught\n", 3, True)


def test_a_second_interrupt_ends_it(run: Run) -> None:
    ran = run(
        "trap 'echo caught' INT; sh -c 'echo started'; while :; do sleep 0.01; done",
        output=lambda *_: os.kill(os.getpid(), signal.SIGINT),
    )
    assert (ran.result.exit_code, ran.interrupted) == (143, True)


def test_what_it_leaves_running_goes_on_and_may_write(run: Run, place: Path) -> None:
    os.mkfifo(place / "go")
    ran = run("(read line <go; echo late; echo late >&2; echo $line >alive) & cd a*; echo early")
    assert (ran.result.stdout, ran.carried is not None) == ("early\n", True)
    (place / "go").write_text("still here\n")
    wait_until(lambda: (place / "alive").exists() and (place / "alive").read_text() == "still here\n")


def test_an_error_of_whoever_takes_the_output_ends_it(run: Run, place: Path) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run("echo $$ >pid; echo word; sleep 60", output=fail)
    assert is_gone(int((place / "pid").read_text()))


def test_what_cannot_be_run_is_refused(run: Run, place: Path) -> None:
    with pytest.raises(UsageError, match="NUL"):
        run("echo a\0b")
    with pytest.raises(StorageError, match="No such file") as caught:
        run("true", cwd=bytes(place / "none"))
    assert caught.value.code == "cannot_start"
    with pytest.raises(UnsupportedError, match="no ksh93"):
        run("true", shell="ksh93")


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_what_was_started_before_that_was_noted_is_found_by_its_private_directory(tmp_path: Path) -> None:
    lock = bytes(tmp_path / "one.lock")
    flight = InFlight(note_path(lock))
    started = shell_programs.prepare_start(
        "sh", "read line", {"PATH": "/bin:/usr/bin"}, folder=flight.folder, said=flight.folder + b"/s"
    )
    with subprocess.Popen(
        started.arguments, env=started.environment, stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        end_orphans(lock, SessionId("one"))
        # (It gets several signals at once, and ends by one of them, or by what it reads.)
        assert child.wait() in (-signal.SIGHUP, -signal.SIGTERM) or child.returncode > 0
    assert not os.path.exists(flight.folder)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("folder", ["", "/", ".", "holdfast-0123456789abcdef", "/tmp/holdfast-", "/tmp/holdfast-0123"])
def test_a_directory_that_is_not_private_to_one_command_leads_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    found: list[int] = []

    def end_all(find: Callable[[], Iterable[int]], _signals: object) -> int:
        found.extend(find())  # (nobody is ended here, whoever would be)
        return 0

    monkeypatch.setattr("holdfast.engine.sessions.holder.lock.end_all", end_all)
    lock = bytes(tmp_path / "one.lock")
    Path(os.fsdecode(note_path(lock))).write_text(json.dumps({"folder": folder}))
    end_orphans(lock, SessionId("one"))
    assert found == []
    assert os.listdir(tmp_path) == []
