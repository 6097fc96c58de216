"""The installed command as a process: pipes, signals, terminals, refusals, its start-up."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast

from ..contexts import context_of

if TYPE_CHECKING:
    from e2e.conftest import Cli

_COMMAND = Path(sys.executable).with_name("holdfast")
INSTALLED = [str(_COMMAND)] if _COMMAND.exists() else [sys.executable, "-m", "holdfast"]
"""The command as it is installed beside the interpreter; else the module that it would run."""


def test_version(place: Path) -> None:
    done = subprocess.run([*INSTALLED, "--version"], capture_output=True, check=True, text=True)
    assert done.stdout == f"holdfast {holdfast.__version__}\n"
    again = subprocess.run(
        [sys.executable, "-m", "holdfast", "-q", "--version"], capture_output=True, check=True, text=True
    )
    assert again.stdout == done.stdout


def test_version_loads_nothing_that_takes_time() -> None:
    code = "import sys; from holdfast.cli.main import main; main(['--version']); print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "argparse",
        "json",
        "logging",
        "sqlite3",
        "msgspec",
        "rich",
        "blake3",
        "asyncio",
        "dataclasses",
    }


def test_a_status_loads_no_progress_bar_and_no_network(cli: Cli) -> None:
    cli("checkpoint")
    code = "import sys; from holdfast.cli.main import main; main(['status']); print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not set(done.stdout.split()) & {"rich", "obstore", "asyncio", "shtab", "difflib", "zstandard"}


@pytest.mark.parametrize(
    "line",
    [
        "checkpoint -m two",
        "status",
        "diff --stat @-",
        "restore @- f --dry-run",
        "undo",
        "log -n 3 --json",
        "steps",
        "gc --dry-run",
        "session list --all",
        "hook claude-code frob",
        "run -- true -x",
    ],
)
def test_a_plain_line_is_read_without_argparse(cli: Cli, line: str) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    cli.write("f", "2")
    cli("checkpoint")
    code = (
        "import sys; from holdfast.cli.main import main; code = main(); print('', *sys.modules, sep='\\n'); exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], capture_output=True, text=True, input="", check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"argparse", "gettext", "holdfast.cli.argparse_parser"}
    assert "locale" not in loaded or "subprocess" in loaded  # which loads it for itself


@pytest.mark.parametrize(
    "line", ["checkpoint", "status", "log", "diff --name-status", "restore @ --dry-run", "--version"]
)
@pytest.mark.parametrize("changed", [True, False])
def test_a_short_command_loads_no_types_and_no_patterns(cli: Cli, line: str, changed: bool) -> None:
    """Each of them takes some milliseconds to load, of the forty that such a command has
    (`holdfast.model.fast_typing`).
    """
    cli.write("f", "1" * 1000)
    cli("checkpoint")
    if changed:
        cli.write("f", "2" + "1" * 999)
    code = (
        "import sys; before = set(sys.modules); from holdfast.cli.main import main; code = main(); "
        "print('', *(set(sys.modules) - before), sep='\\n'); exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"typing", "re", "enum", "signal", "argparse", "locale", "platform", "json"}


def test_json_loads_no_types_of_what_it_holds(cli: Cli) -> None:
    cli("checkpoint")
    code = (
        "import sys; from holdfast.cli.main import main; main(['--json', 'log']); print('\\n', *sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert "holdfast.model.json_encoder" in loaded
    assert not loaded & {"holdfast.model.answers.words", "holdfast.model.json_schema", "msgspec"}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(cli: Cli, unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    cli.write("big", b"x" * (1 << 20))
    cli("checkpoint")
    process = subprocess.Popen([*INSTALLED, "cat", "@:big"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output_is_a_message(
    cli: Cli, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*INSTALLED, "status"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"holdfast: No space left on device")
    assert done.stderr.count(b"\n") == 2


def test_closed_streams_are_no_error_and_no_file_takes_their_place(cli: Cli) -> None:
    cli.write("f", "1")
    command = " ".join(map(shlex.quote, INSTALLED))
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{command} checkpoint {closed}", shell=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed
    assert cli.json("status")["clean"]


@pytest.mark.parametrize("told", ["", "env -u PWD ", "env PWD=. "])
def test_undo_works_from_a_directory_that_was_deleted(cli: Cli, told: str) -> None:
    """Whatever a script of a shell, as the installed command may be one, has made of ``PWD`` by then."""
    cli.write("f", "1")
    cli.write("sub/g", "2")
    cli("checkpoint")
    # (Such a script says itself that there is no directory.)
    command = f"{told}{shlex.quote(sys.executable)} -m holdfast"
    script = f'cd "{cli.root}" && rm -rf "{cli.root}" && {command} undo'
    done = subprocess.run(script, shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert cli.tree() == {"f": b"1", "sub/g": b"2"}


def test_ctrl_c_is_exit_130_and_one_line(cli: Cli) -> None:
    # The process waits for another's lock when it is interrupted.
    cli("checkpoint")
    holder = (
        "import sys, holdfast\n"
        "with holdfast.open('.') as w, w._context.lock():\n    print('held', flush=True); sys.stdin.read()\n"
    )
    waiter = "import sys\nfrom holdfast.cli.main import main\nprint('ready', flush=True)\nsys.exit(main(['status']))\n"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holder], stdin=pipe, stdout=pipe) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"held\n"
        with subprocess.Popen([sys.executable, "-c", waiter], stdout=pipe, stderr=pipe) as waiting:
            assert waiting.stdout is not None
            assert waiting.stderr is not None
            assert waiting.stdout.readline() == b"ready\n"
            while not _sleeps(waiting.pid):
                pass
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(60) == 130
            # (On a busy machine it has waited for so long by then that it says so first.)
            said = [line for line in waiting.stderr.read().splitlines() if b"; waiting at most" not in line]
            assert said == [b"holdfast: interrupted"]
        holding.communicate(b"")


def _sleeps(pid: int) -> bool:
    """True if the process waits in a call that sleeps, which it does only for the lock."""
    with open(f"/proc/{pid}/syscall") as file:
        number = file.read().split()[0]
    return number in {"35", "230", "73", "115", "101", "32"}


def test_another_process_that_holds_the_workspace_is_exit_4(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOCK_TIMEOUT", "0")
    with holdfast.open(".") as workspace, context_of(workspace) as context, context.lock():
        error = cli("checkpoint", "--json", code=4).error
    assert error["code"] == "locked"


def test_roots_that_nobody_means_are_refused(bare: Cli, place: Path) -> None:
    for root in ("/", str(place / "user"), "/proc"):
        assert bare("init", root, "--json", code=4).error["code"] == "refused"
    assert bare("init", str(place / "nowhere"), code=3).err
    bare("init", str(place / "user"), "--force")


def test_a_terminal_gets_colours_and_no_control_characters_of_a_file(cli: Cli) -> None:
    cli.write("f", "before\n")
    cli("checkpoint")
    cli.write("f", "after \x1b[2J\n")
    shown = _on_terminal(["diff"]).output
    assert "\x1b[31m-before\x1b[0m" in shown
    assert "\x1b[32m+after \\x1b[2J\x1b[0m" in shown
    assert "\x1b[33m  M f" in _on_terminal(["status"]).output or "\x1b[33mM f" in _on_terminal(["status"]).output
    assert "\x1b" not in _on_terminal(["diff"], NO_COLOR="1").output
    assert "\x1b" not in cli("diff", "--stat").out


def test_something_huge_is_asked_about_on_a_terminal_and_warned_of_in_a_pipe(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CAPTURE_WARN_FILES", "5")
    for number in range(9):
        cli.write(f"node_modules_of_mine/f{number}", "x")
    refused = _on_terminal(["checkpoint"], typed="n\n")
    assert "node_modules_of_mine" in refused.output
    assert "Save all of it?" in refused.output
    assert refused.code == 4
    assert cli.json("log")["checkpoints"] == []
    ran = cli("checkpoint")
    assert "node_modules_of_mine" in ran.err
    assert "9 added" in ran.out
    cli.write("f", "1")
    assert cli("checkpoint").err == ""


CUT_SHORT = """
import os, sys
from holdfast.engine.history import restore
from holdfast.cli.main import main
restore.record_end = lambda *_, **_k: os._exit(9)
main(["restore", "one"])
"""


def _cut_short(cli: Cli) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "one")
    cli.write("f", "2")
    done = subprocess.run([sys.executable, "-c", CUT_SHORT], capture_output=True, check=False)
    assert done.returncode == 9, done


def test_a_restore_that_was_cut_short_is_noticed_by_every_command_and_finished(cli: Cli) -> None:
    _cut_short(cli)
    for command in ("status", "log", "show", "diff", "stats"):
        err = cli(command).err
        assert "restore --continue" in err, command
        assert "restore --abort" in err, command
    assert "Next:" not in cli("status").out  # the warning says how to go on
    assert cli.json("status")["unfinished_restore"] == cli.json("show", "one")["id"]
    assert cli("undo", "--json", code=4).error["code"] == "unfinished_restore"
    cli("restore", "--continue")
    assert cli.tree() == {"f": b"1"}
    assert cli("status").err == ""
    assert cli("restore", "--continue", "--json", code=3).error["code"] == "nothing_unfinished"


def test_a_restore_that_was_cut_short_is_taken_back(cli: Cli) -> None:
    _cut_short(cli)
    cli("restore", "--abort")
    assert cli.tree() == {"f": b"2"}
    assert cli("status").err == ""


def test_on_a_terminal_undo_asks_what_becomes_of_a_restore_that_was_cut_short(cli: Cli) -> None:
    _cut_short(cli)
    assert _on_terminal(["undo"], typed="q\n").code == 4
    done = _on_terminal(["undo"], typed="b\n")
    assert "cut short" in done.output
    assert done.code == 0


def test_a_terminal_is_shown_steps_in_its_width_and_a_pipe_all_of_them(cli: Cli) -> None:
    cli("checkpoint")
    said = "said " * 30
    cli.process("run", "--", "sh", "-c", f"echo {said}> f; true", stdin=subprocess.DEVNULL)
    cli.process("run", "--", "sh", "-c", f"sh -c 'echo {said}> g; exit 3'; true", stdin=subprocess.DEVNULL)
    narrow = _on_terminal(["steps"], COLUMNS="90", NO_COLOR="1").output.splitlines()
    assert all(len(line) <= 90 for line in narrow)
    assert narrow[0].split() == ["step", "began", "kind", "changed", "command"]
    assert narrow[1].endswith("…  exit 3")
    assert narrow[2].endswith("…")
    assert all(said in line for line in cli("steps").out.splitlines())


class _Shown:
    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output


def _on_terminal(words: list[str], typed: str = "", **environment: str) -> _Shown:
    """Run the command at a pseudo terminal, type ``typed``, and collect what is shown."""
    ours, theirs = pty.openpty()
    options = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **environment}
    with subprocess.Popen([*INSTALLED, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=options) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        shown_something = select.poll()
        shown_something.register(ours, select.POLLIN)
        while shown_something.poll(60_000):
            try:
                piece = os.read(ours, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            shown += piece
        code = process.wait(60)
    os.close(ours)
    return _Shown(code, shown.decode().replace("\r\n", "\n"))


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_text_that_the_output_cannot_hold_is_escaped(
    cli: Cli, encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cli.write("\u2603.txt", b"x")
    cli("checkpoint", "-m", "snow \u2603")
    cli.write("\u2603.txt", b"y")
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    snowman = "\u2603" if encoding == "utf-8" else "\\xe2\\x98\\x83"
    fork = str(tmp_path / "fork \u2603")
    for words, said in (
        (["status"], f"{snowman}.txt"),
        (["log"], f"snow {snowman}"),
        (["show"], f"{snowman}.txt"),
        (["fork", "@", fork], f"fork {snowman}"),
    ):
        done = subprocess.run([*INSTALLED, *words], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert said in done.stdout.decode(encoding)
    done = subprocess.run([*INSTALLED, "cat", "@:\u2603"], capture_output=True, check=False)
    assert done.returncode == 3
    assert snowman in done.stderr.decode(encoding)


@pytest.mark.parametrize("descriptors", [40, 64])
def test_a_process_that_may_open_few_files_restores_many_directories(cli: Cli, descriptors: int) -> None:
    for number in range(100):
        cli.write(f"d{number}/e/f/g/file", b"one")
        cli.write(f"d{number}/file", b"one")
    cli("checkpoint", "-m", "one")
    for number in range(100):
        cli.write(f"d{number}/e/f/g/file", b"other")
        (cli.root / f"d{number}/file").unlink()
        cli.write(f"d{number}/new", b"new")
    for command in ("restore one", "undo", "redo"):
        script = f"ulimit -n {descriptors} && exec {shlex.join(INSTALLED)} {command}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, check=False, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert (cli.root / "d7/e/f/g/file").read_bytes() == (b"other" if command == "undo" else b"one")


@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), "memory"), (RuntimeError("can't start new thread"), "thread")]
)
def test_a_lack_of_resources_is_no_bug(cli: Cli, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(holdfast.Workspace, "status", fail)
    told = cli("status", "--json", code=1).error
    assert told["code"] == "no_resources"
    assert said in told["message"]
