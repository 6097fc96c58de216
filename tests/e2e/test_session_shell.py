"""`session shell`: a person at a terminal, whose every line is journalled."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HOLDFAST = [sys.executable, "-m", "holdfast"]


class Terminal:
    """A program at a terminal of its own, 33 lines by 99 columns."""

    def __init__(self, words: list[str], environment: dict[str, str], directory: Path) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(directory)
                os.execvpe(words[0], words, environment)
            finally:
                os._exit(99)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        self.shown = b""
        self._at = 0

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def expect(self, pattern: str, limit: float = 60) -> None:
        """Wait until it has shown ``pattern``, behind what was waited for last."""
        end = time.monotonic() + limit
        while (found := re.compile(pattern.encode()).search(self.shown, self._at)) is None:
            assert select.select([self._fd], [], [], max(0, end - time.monotonic()))[0], self.shown
            assert self._read(), self.shown
        self._at = found.end()

    def insist(self, text: str, pattern: str) -> None:
        """Type ``text`` again and again until ``pattern`` is shown."""
        for _ in range(100):
            self.type(text)
            with contextlib.suppress(AssertionError):
                return self.expect(pattern, 0.2)
        return self.expect(pattern)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            return False
        self.shown += data
        return bool(data)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Person:
    """Somebody with a home directory, a workspace, and a session with a shell."""

    def __init__(self, place: Path, shell: str, *flags: str) -> None:
        self.tree = place / "tree"
        (self.tree / "sub").mkdir(parents=True)
        self.user = place / "user"
        self.user.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user),
            "HOLDFAST_HOME": str(place / "home"),
            "TERM": "dumb",
            "GONE": "here",
            "PS1": "@@ ",
        }
        self.run("init")
        self.run("session", "start", "one", "--shell", shell, *flags)

    def run(self, *words: str) -> Any:
        done = subprocess.run(
            [*HOLDFAST, "--json", *words], cwd=self.tree, env=self.environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def sit_down(self, *flags: str) -> Terminal:
        return Terminal([*HOLDFAST, *(flags or ("-q",)), "session", "shell"], self.environment, self.tree)

    def history(self) -> list[dict[str, Any]]:
        return list(reversed(self.run("session", "history")["commands"]))


PROMPT = r"(@@|\$) "
Begin = Callable[..., Person]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    people: list[Person] = []

    def begin_it(shell: str, *flags: str) -> Person:
        if shutil.which(shell) is None:
            pytest.skip(f"needs {shell}")
        people.append(Person(tmp_path, shell, *flags))
        return people[-1]

    yield begin_it
    for person in people:
        assert person.run("verify", "--read-data")["ok"]


def lines(entries: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(entry["command"], entry["exit_code"], entry["stdout"]) for entry in entries]


@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_every_line_is_journalled_with_what_it_shows_and_how_it_ends(begin: Begin, shell: str) -> None:
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    terminal = person.sit_down()
    for line in (
        "cd sub; export Q=1",
        'echo "$PWD" $Q; (exit 7)',
        "echo new >file",
        "for i in 1 2; do\necho $i; done",
        "printf 'a\\tb\\n'; false",
        "cd ..; true",
    ):
        terminal.expect(PROMPT)
        terminal.type(line.replace("\n", "\r") + "\r")
    terminal.expect(PROMPT)
    terminal.type("exit 5\r")
    assert terminal.end() == 5
    found = [entry for entry in person.history() if entry["command"] != "exit 5"]
    loop = "for i in 1 2; do echo $i; done" if shell == "bash" else "for i in 1 2; do\necho $i; done"
    assert lines(found) == [
        ("cd sub; export Q=1", 0, ""),
        ('echo "$PWD" $Q; (exit 7)', 7, f"{person.tree}/sub 1\n"),
        ("echo new >file", 0, ""),
        (loop, 0, "1\n2\n"),
        ("printf 'a\\tb\\n'; false", 1, "a\tb\n"),
        ("cd ..; true", 0, ""),
    ]
    assert [entry["before"] != entry["after"] for entry in found] == [False, False, True, False, False, False]
    info = person.run("session", "info")
    assert (info["directory"], info["env"]["Q"], info["running"], info["busy"]) == (".", "1", None, False)
    assert b"7717" not in terminal.shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_a_variable_that_is_too_long_is_told_once_and_the_rest_goes_on(begin: Begin, shell: str) -> None:
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    terminal = person.sit_down("--log-level", "warn")
    for line in (
        "BIG=$(head -c 200000 /dev/zero | tr '\\0' x); export BIG; export OTHER=1; cd sub",
        "export OTHER=2",
        "export OTHER=3",
    ):
        terminal.expect(PROMPT)
        terminal.type(f"{line}\r")
    terminal.expect(PROMPT)
    terminal.type("exit\r")
    assert terminal.end() == 0
    assert terminal.shown.count(b"the variable BIG is too long to start a program with") == 1
    info = person.run("session", "info")
    assert (info["directory"], info["env"]["OTHER"]) == ("sub", "3")
    assert "BIG" not in info["env"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_a_document_is_read_to_its_end(begin: Begin, shell: str) -> None:
    """Its lines are no commands."""
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type("cat <<E\rtouch made\rE\r")
    terminal.expect(PROMPT)
    terminal.type("exit\r")
    assert terminal.end() == 0
    assert not (person.tree / "made").exists()
    assert person.history()[0]["stdout"] == "touch made\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_is_the_users_own_and_has_what_the_session_has(begin: Begin, shell: str) -> None:
    person = begin(shell)
    rc = "PS1='@@ '\nalias hey='echo hello'\nexport A=rc B=rc\ncd /\n"
    (person.user / ".bashrc").write_text(rc + "PROMPT_COMMAND='echo status $?'\nPS0='[run]'\n")
    functions = "tell() { echo status $?; }; run() { echo '[run]'; }\nprecmd_functions=(tell) preexec_functions=(run)\n"
    (person.user / ".zshrc").write_text(f"{rc}unsetopt zle prompt_sp\n{functions}")
    person.run("session", "exec", "cd sub; export A=session; unset GONE")
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type('hey; echo "$A" "$B" "${GONE-none}" "$HOLDFAST_SESSION" "$ZDOTDIR"; (exit 3)\r')
    terminal.expect(r"\[run\]")
    terminal.expect("hello\r\nsession rc none one \r\n")
    terminal.expect("status 3")
    terminal.expect(PROMPT)
    terminal.type("stty size; pwd\r")
    terminal.expect("33 99\r\n")
    terminal.expect(PROMPT)
    terminal.type("\x04")
    assert terminal.end() == 0
    assert person.history()[-1]["stdout"] == f"33 99\n{person.tree}/sub\n"


@pytest.mark.parametrize(
    ("flags", "refused"), [((), "cannot ask for"), (("--unsupervised",), "each would wait for the other")]
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "sh"])
def test_the_session_is_asked_from_its_own_shell_and_from_another_terminal(
    begin: Begin, shell: str, flags: tuple[str, ...], refused: str
) -> None:
    person = begin(shell, *flags)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    me = f"{sys.executable} -m holdfast session"
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type("echo 1 >f; export A=1\r")
    terminal.expect(PROMPT)
    beside = person.run("session", "checkpoint", "-m", "at the prompt")
    assert beside["message"] == "at the prompt"
    terminal.type(f"{me} branch inside; echo code $?\r")
    terminal.expect("code 0")
    terminal.expect(PROMPT)
    # (By one stream: what came first of two is not known.)
    terminal.type(f"{me} exec true 2>&1; echo code $?\r")
    terminal.expect(refused)
    terminal.expect("code 4")
    terminal.expect(PROMPT)
    terminal.type("exit\r")
    assert terminal.end() == 0
    assert [one["name"] for one in person.run("session", "branches")["branches"]] == ["branches/one/inside"]
    found = person.history()
    assert [entry["seq"] for entry in found] == list(range(1, len(found) + 1))
    assert found[0]["command"].startswith("echo 1")
    assert person.run("session", "info")["env"]["A"] == "1"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_jobs_are_controlled_by_the_shell(begin: Begin, shell: str) -> None:
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type("sh -c 'echo go; exec sleep 60'\r")
    terminal.expect("\ngo\r\n")
    terminal.type("\x1a")
    terminal.expect(PROMPT)
    terminal.type("jobs; fg\r")
    terminal.expect("sleep 60.*\n(.*\n)*.*sleep 60")
    terminal.insist("\x03", PROMPT)  # the shell says that it goes on a moment before the job has the terminal
    terminal.type("exit\r")
    terminal.end()
    stopped, continued = person.history()[:2]
    assert stopped["exit_code"] in (146, 148, 20)
    assert (continued["command"], continued["exit_code"]) == ("jobs; fg", 130)


def test_what_bash_is_to_keep_out_of_its_history_stays_out_of_both(begin: Begin) -> None:
    person = begin("bash")
    (person.user / ".bashrc").write_text("PS1='@@ '\nHISTCONTROL=ignoreboth\nHISTIGNORE='l[s]:secret*'\n")
    terminal = person.sit_down()
    for line in (" echo one", "echo two", "echo two", "ls", "secret three", "echo 'four", "five'", "history"):
        terminal.expect(r"(@@|>) ")
        terminal.type(line + "\r")
    terminal.expect("@@ ")
    terminal.type("exit\r")
    terminal.end()
    hidden = "# a line that the shell was to keep out of its history"
    kept = [(entry["command"], entry["stdout"]) for entry in person.history()[:-2]]
    assert kept == [
        (hidden, ""),
        ("echo two", "two\n"),
        ("echo two", "two\n"),
        (hidden, ""),
        (hidden, ""),
        ("echo 'four\nfive'", "four\nfive\n"),
    ]
    history = person.history()[-2]["stdout"]
    assert re.sub(r" +\d+  ", "", history) == "echo two\necho 'four\nfive'\nhistory\n"
    assert (person.user / ".bash_history").read_text().splitlines()[0] == "echo two"


def test_an_idle_shell_saves_the_session(begin: Begin) -> None:
    person = begin("bash")
    person.environment |= {"HOLDFAST_SESSION_IDLE": "0", "HOLDFAST_SESSION_MIN_INTERVAL": "0"}
    person.run("session", "start", "two")
    person.environment["HOLDFAST_SESSION"] = "two"
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    before = person.run("session", "info")["checkpoint"]
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type("echo new >file\r")
    terminal.expect(PROMPT)
    end = time.monotonic() + 60
    while (info := person.run("session", "info"))["checkpoint"] == before or info["journal"]:
        assert time.monotonic() < end
    terminal.type("exit\r")
    assert terminal.end() == 0


def test_a_terminal_that_is_closed_leaves_the_session_as_it_is(begin: Begin) -> None:
    person = begin("bash")
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    terminal.type("cd sub; export Q=1\r")
    terminal.expect(PROMPT)
    terminal.type("sleep 60\r")
    terminal.expect("sleep 60")
    os.kill(terminal.pid, signal.SIGHUP)
    terminal.end()
    info = person.run("session", "info")
    assert (info["directory"], info["env"]["Q"]) == ("sub", "1")
    assert person.run("session", "exec", "echo $Q")["stdout"] == "1\n"


def test_it_needs_a_terminal(begin: Begin) -> None:
    person = begin("bash")
    done = subprocess.run(
        [*HOLDFAST, "session", "shell"], cwd=person.tree, env=person.environment, capture_output=True, check=False
    )
    assert (done.returncode, b"needs a terminal" in done.stderr) == (2, True)
