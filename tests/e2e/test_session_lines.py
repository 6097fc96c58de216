"""Lines at the prompt of `session shell` that a safeguard holds, or that open steps of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.control.remote_service import connect

from ..waiting import wait_until
from .test_session_shell import HOLDFAST, PROMPT, Begin, Person, Terminal
from .test_session_shell import begin as begin

ME = f"{sys.executable} -m holdfast"
FILES = tuple(f"f{number}" for number in range(6))
SHELLS = pytest.mark.parametrize("shell", ["bash", "zsh"])


def guarded(begin: Begin, shell: str = "bash") -> Person:
    """A person with files to lose, who is asked about the second one that a step deletes or overwrites."""
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    for name in FILES:
        (person.tree / name).write_text(f"content of {name}\n")
    person.run("checkpoint")
    person.environment |= {"HOLDFAST_SAFEGUARD_DELETES": "2", "HOLDFAST_SAFEGUARD_TIMEOUT": "1000"}
    return person


def sit_down(person: Person) -> Terminal:
    terminal = person.sit_down()
    terminal.expect(PROMPT)
    return terminal


def run_line(terminal: Terminal, line: str) -> None:
    terminal.type(f"{line}\r")
    terminal.expect(PROMPT)


def held(person: Person) -> dict[str, Any]:
    """What waits, as soon as something does."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = person.run("safeguard", "list")["held"]
        return bool(found)

    wait_until(is_there)
    return found[0]


def steps(person: Person) -> list[tuple[str, str]]:
    """The first word of each step's command, and its state."""
    return [(" ".join(step["command"]).split(" ")[0], step["state"]) for step in person.run("steps")["steps"]]


def there(person: Person) -> set[str]:
    return set(os.listdir(person.tree)) - {"sub", ".holdfast"}


def leave(terminal: Terminal) -> None:
    terminal.type("exit\r")
    terminal.end()


@SHELLS
@pytest.mark.parametrize("allowed", [True, False])
def test_a_line_that_is_held_when_the_prompt_comes_back_waits_for_its_answer(
    begin: Begin, shell: str, allowed: bool
) -> None:
    person = guarded(begin, shell)
    terminal = sit_down(person)
    terminal.type("(rm f0; rm f1; rm f2; echo 1 > job) & read x\r")
    ticket = held(person)
    terminal.type("\r")
    terminal.expect(PROMPT)
    run_line(terminal, "echo 2 > next; rm f3")
    assert held(person)["id"] == ticket["id"]
    assert steps(person) == [("(rm", "open"), ("echo", "done")]
    person.run("safeguard", "allow" if allowed else "deny", str(ticket["id"]))
    expected = "done" if allowed else "undone"
    wait_until(lambda: steps(person)[0] == ("(rm", expected))
    run_line(terminal, "wait; echo 3 > last")
    assert steps(person) == [("(rm", expected), ("echo", "done"), ("wait;", "done")]
    lost = {"f0", "f1", "f2", "f3"} if allowed else {"f3"}
    assert there(person) == {*FILES, "next", "last", *(["job"] if allowed else [])} - lost
    leave(terminal)
    for _ in range(3 if allowed else 0):
        person.run("undo")
    assert not allowed or there(person) == {*FILES}


def test_jobs_that_wait_together_go_on_in_the_step_of_their_line_and_keep_no_prompt_waiting(begin: Begin) -> None:
    person = guarded(begin)
    terminal = sit_down(person)
    for _ in range(2):
        terminal.type("for i in 0 1 2 3 4 5; do (echo a > a$i; rm f$i; echo b > b$i) & done; read x\r")
        ticket = held(person)
        terminal.type("\r")
        terminal.expect(PROMPT)
        for number in range(3):
            run_line(terminal, f"echo {number} > meanwhile")
        person.run("safeguard", "allow", str(ticket["id"]))
        run_line(terminal, "wait")
        wait_until(lambda: "open" not in {state for _, state in steps(person)})
        assert len(there(person)) == 13
        for _ in range(4):
            person.run("undo")
        assert there(person) == {*FILES}
    leave(terminal)


def interrupt(terminal: Terminal) -> None:
    """Type Ctrl-C, and once more where that does not bring the prompt back: a shell that is about to give its terminal
    to a command may be the only one to get it.
    """
    terminal.type("\x03")
    try:
        terminal.expect(PROMPT, 20)
    except AssertionError:
        terminal.type("\x03")
        terminal.expect(PROMPT)


@SHELLS
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("echo 1 > made; rm f0; rm f1; rm f2", id="what it waits for"),
        pytest.param("for i in 0 1 2; do : > f$i; done; echo 1 > made", id="the shell itself"),
        pytest.param("(rm f0; rm f1; rm f2) & sleep 1000", id="what waits beside it"),
        pytest.param("sh -c 'trap : INT; rm f0 f1; rm f2; rm f3'", id="what goes on after it"),
    ],
)
def test_ctrl_c_denies_a_line_that_is_held_and_brings_the_prompt_back(begin: Begin, shell: str, line: str) -> None:
    person = guarded(begin, shell)
    before = {name: (person.tree / name).read_text() for name in FILES}
    terminal = sit_down(person)
    for at in (0, 1):
        terminal.type(f"{line}\r")
        ticket = held(person)
        terminal.expect(
            rf"held: `holdfast safeguard allow {ticket['id']}` or `deny {ticket['id']}` in another terminal"
        )
        interrupt(terminal)
        assert person.run("safeguard", "list")["held"] == []
        assert steps(person)[at][1] == "undone"
        assert {name: (person.tree / name).read_text() for name in there(person)} == before
    run_line(terminal, "echo 2 > next")
    assert (person.tree / "next").exists()
    leave(terminal)
    assert b"step 1 was not allowed, and was taken back" in terminal.shown


def test_what_goes_on_after_its_prompt_is_not_denied_by_a_later_ctrl_c(begin: Begin) -> None:
    person = guarded(begin)
    terminal = sit_down(person)
    terminal.type("(rm f0; rm f1) & read x\r")
    ticket = held(person)
    terminal.type("\r")
    terminal.expect(PROMPT)
    terminal.type("sh -c 'echo begun; exec sleep 1000'\r")
    terminal.expect("\nbegun")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    assert held(person) == ticket
    person.run("safeguard", "allow", str(ticket["id"]))
    run_line(terminal, "wait")
    leave(terminal)
    assert there(person) == {*FILES} - {"f0", "f1"}


def test_what_is_held_when_the_terminal_is_lost_is_denied(begin: Begin) -> None:
    """The process that has the session is killed; its shell is hung up, and ends."""
    person = guarded(begin)
    terminal = sit_down(person)
    terminal.type("rm f0; rm f1; rm f2; rm f3\r")
    held(person)
    (socket,) = Path(person.environment["HOLDFAST_HOME"]).rglob(os.fsdecode(KEEPER_SOCKET))
    log = os.fsencode(socket.parent)
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.end()

    def has_ended() -> bool:
        keeper = connect(log)
        if keeper is not None:
            keeper.close()
        return keeper is None

    wait_until(has_ended)
    assert steps(person) == [("rm", "undone")]
    assert there(person) == {*FILES}


@SHELLS
def test_after_a_step_that_is_opened_inside_of_it_the_rest_of_a_line_is_a_step(begin: Begin, shell: str) -> None:
    person = begin(shell)
    (person.user / ".bashrc").write_text("PS1='@@ '\n")
    (person.user / ".zshrc").write_text("PS1='@@ '\nunsetopt zle prompt_sp\n")
    (person.tree / "script").write_text(
        f"echo 1 > s1; {ME} step begin inner; echo 2 > s2; {ME} step commit; echo 3 > s3"
    )
    person.run("checkpoint")
    terminal = sit_down(person)
    run_line(terminal, f"echo 1 > a; {ME} step begin mine; echo 2 > b; {ME} step commit; echo 3 > c; mkdir d")
    run_line(terminal, f"touch e; {ME} step begin two; touch never; {ME} step rollback; touch f; ln f g")
    run_line(terminal, "sh script; echo 4 > s4")
    run_line(terminal, f"{ME} step begin three; touch i; {ME} step commit; {ME} step begin four; touch j")
    run_line(terminal, f"touch k; {ME} step commit; touch l")
    leave(terminal)
    made = [
        *({"a"}, {"b"}, {"c", "d"}),
        *({"e"}, {"f", "g"}),
        *({"s1"}, {"s2"}, {"s3", "s4"}),
        *({"i"}, {"j", "k"}, {"l"}),
    ]
    left = {"script"}.union(*made)
    for each in reversed(made):
        assert there(person) == left
        person.run("undo")
        left -= each
    assert there(person) == {"script"}


def test_a_command_that_is_held_says_how_it_is_answered(begin: Begin) -> None:
    person = guarded(begin, "sh")
    words = [*HOLDFAST, "session", "exec", "rm f0 f1 f2 || echo Operation not permitted >&2; false"]
    with subprocess.Popen(words, cwd=person.tree, env=person.environment, text=True, stderr=subprocess.PIPE) as running:
        number = held(person)["id"]
        assert running.stderr is not None
        shown = running.stderr.readline() + running.stderr.readline() + running.stderr.readline()
        assert "is about to delete its file number 2: " in shown
        assert f"held: `holdfast safeguard allow {number}` or `deny {number}` in another terminal" in shown
        person.run("safeguard", "deny", str(number))
        said = running.communicate()[1]
        assert "step 1 was not allowed, and was taken back" in said
        assert "supervision may have caused" not in said, "the denial has"
    assert there(person) == {*FILES}


@SHELLS
def test_a_function_that_is_called_read_is_not_asked_for_the_answer(begin: Begin, shell: str) -> None:
    terminal = sit_down(guarded(begin, shell))
    run_line(terminal, "read() { :; }")
    run_line(terminal, "echo o''n")
    assert b"on\r\n" in terminal.shown
    terminal.type("exit\r")
    assert terminal.end() == 0
