"""Commands in a session, by real shells."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.shell.execution import Streams, execute
from holdfast.model.errors import StorageError
from holdfast.model.session_types import SessionConfig, ShellName


@pytest.fixture
def sessions(home: Path, tree: Path) -> Iterator[Sessions]:
    with holdfast.init(tree, home=home) as workspace:
        (tree / "sub").mkdir()
        with Sessions(home=bytes(home), agent="me") as found:
            yield found
        checked = workspace.verify(read_data=True)
        assert checked.ok, checked.problems


@pytest.fixture
def session(sessions: Sessions, tree: Path) -> Iterator[Session]:
    with sessions.start(bytes(tree), "one") as found:
        yield found


def stdout(session: Session, command: str, **options: object) -> str:
    entry = execute(session, command, **options)  # type: ignore[arg-type]
    assert entry.result is not None
    return entry.result.stdout


def test_directory_and_variables_go_from_command_to_command_and_beyond_the_process(
    session: Session, sessions: Sessions, tree: Path
) -> None:
    execute(session, "cd sub; export B='x\ny' HOME=/nowhere; unset LANG")
    assert session.state.cwd == "sub"
    session.close()
    with sessions.open("one") as again:
        said = stdout(again, 'pwd; echo "$B" "$HOME" "${LANG-none}" "$HOLDFAST_SESSION"; cd -')
    assert said == f"{tree}/sub\nx\ny /nowhere none one\n{tree}\n"
    with sessions.open("one") as again:
        assert again.state.cwd == "."


def test_a_variable_that_is_too_long_is_told_once_and_stays_what_it_was(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    execute(session, "export BIG=before")
    for _ in range(2):
        execute(session, f"export BIG={'x' * 200_000} OTHER=1; cd sub 2>/dev/null")
    assert session.state.env["BIG"] == "before"
    assert (session.state.env["OTHER"], session.state.cwd) == ("1", "sub")
    assert session.too_long == ["BIG"]
    (warned,) = caplog.records
    assert "the variable BIG is too long to start a program with" in warned.getMessage()
    caplog.clear()


def test_what_was_not_changed_is_not_kept(session: Session) -> None:
    execute(session, "true")
    execute(session, "cd sub")
    assert dict(session.state.env).keys() <= {"OLDPWD"}
    assert session.state.unset == ()


def test_the_history_tells_what_was_run_and_how_it_ended(session: Session, tree: Path) -> None:
    first = execute(session, "echo out; echo err >&2; echo new >file; exit 3", input="make a file", generated=True)
    second = execute(session, "cd sub")
    assert session.history() == [second, first]
    assert first.result is not None
    assert (first.result.exit_code, first.result.stdout, first.result.stderr) == (3, "out\n", "err\n")
    assert (first.input, first.generated, first.seq, first.cwd) == ("make a file", True, 1, ".")
    assert first.before != first.after
    assert second.before == second.after == first.after


def test_variables_for_one_command_alone_do_not_stay(session: Session) -> None:
    execute(session, "export A=1 B=1")
    assert stdout(session, "echo $A$B$C; export D=$C B=3", env={"A": "2", "B": "2", "C": "2"}) == "222\n"
    assert stdout(session, "echo $A$B${C-none}$D") == "13none2\n"


def test_the_configured_time_holds_unless_another_is_given(session: Session) -> None:
    session.configure(msgspec.structs.replace(session.config, timeout_seconds=0.3))
    ended = execute(session, "exec sleep 60").result
    assert ended is not None
    assert (ended.timed_out, ended.exit_code) == (True, 143)
    assert stdout(session, "sleep 0.4; echo here", timeout=0) == "here\n"


def test_a_directory_that_is_gone_is_left(session: Session, tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    execute(session, "mkdir -p sub/deep; cd sub/deep; rmdir ../deep")
    assert session.state.cwd == "sub/deep"
    assert stdout(session, "pwd") == f"{tree}/sub\n"
    assert "is gone: the command begins in" in caplog.text


def test_links_that_lead_into_the_tree_are_inside(session: Session, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    execute(session, f"cd {tmp_path}/link/sub")
    assert session.state.cwd == "sub"
    execute(session, "cd /")
    assert session.state.cwd == "/"


def test_an_interrupt_is_journalled_as_how_the_command_ended(session: Session) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(
            session,
            "trap 'exit 5' INT; sh -c 'echo go'; while :; do sleep 0.01; done",
            streams=Streams(output=lambda *_: os.kill(os.getpid(), signal.SIGINT)),
        )
    result = session.history(1)[0].result
    assert result is not None
    assert (result.exit_code, result.stdout) == (5, "go\n")


def test_what_fails_meanwhile_leaves_nothing_in_flight(session: Session) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        execute(session, "echo go; sleep 60", streams=Streams(output=fail))
    with pytest.raises(StorageError, match="cannot be started"):
        execute(session, "true", env={"X": "x" * 1_000_000})
    last, first = (entry.result for entry in session.history())
    assert first is not None
    assert last is not None
    assert (first.exit_code, last.exit_code) == (137, 126)
    assert "cannot be started" in last.stderr
    assert stdout(session, "echo on") == "on\n"


def test_a_command_that_begins_with_a_hyphen_is_no_option(sessions: Sessions, tree: Path) -> None:
    program = tree / "-x"
    program.write_text("#!/bin/sh\necho run $1\n")
    program.chmod(0o755)
    with sessions.start(os.fsencode(tree), "one") as session:
        assert stdout(session, "-x 1", env={"PATH": f"{tree}:{os.environ['PATH']}"}) == "run 1\n"
        ended = execute(session, "-y").result
        assert ended is not None
        assert ended.exit_code == 127
        assert ended.stderr.endswith("line 1: -y: command not found\n")


@pytest.mark.parametrize("shell", ["bash", "sh", "zsh"])
def test_a_session_has_the_shell_that_it_was_begun_with(sessions: Sessions, tree: Path, shell: ShellName) -> None:
    if not any(os.access(f"{place}/{shell}", os.X_OK) for place in ("/bin", "/usr/bin")):
        pytest.skip(f"needs {shell}")
    with sessions.start(bytes(tree), "two", config=SessionConfig(shell=shell)) as session:
        said = stdout(session, "export A=1; echo ${BASH_VERSION:+bash}${ZSH_VERSION:+zsh}")
        assert said == f"{'' if shell == 'sh' else shell}\n"
        assert stdout(session, "echo $A") == "1\n"
