"""What runs a session's command in a virtual machine, and says what the shell has left: by this host's shells, as the
machine has the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.engine.sessions.shell import _shell_programs as shell_programs
from holdfast.engine.sessions.shell._shell_programs import ShellState
from holdfast.model.errors import UsageError
from holdfast.model.session_types import ShellName

MACHINE = {"PATH": os.defpath, "OWN": "the machine's", "LANG": "C.UTF-8"}


def run(
    folder: Path, shell: ShellName, command: str, directory: Path, **variables: str
) -> tuple[subprocess.CompletedProcess[str], ShellState | None]:
    start = shell_programs.prepare_guest_start(
        shell, command, variables, bytes(directory), folder=bytes(folder / "private")
    )
    done = subprocess.run(
        start.arguments, env=MACHINE, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    said = subprocess.run(
        shell_programs.guest_report(bytes(folder / "private")), env=MACHINE, capture_output=True, check=True
    )
    assert not (folder / "private").exists()
    return done, shell_programs.parse_guest_state(said.stdout)


@pytest.fixture(params=["bash", "sh", "zsh"])
def shell(request: pytest.FixtureRequest) -> ShellName:
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    return request.param


def test_directory_and_variables_but_not_those_of_the_machine(shell: ShellName, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    script = "pwd; echo $GIVEN $OWN; cd 'a b'; export NEW='x\ny'; OWN=other; exit 4"
    done, left = run(tmp_path, shell, script, tmp_path, GIVEN="again")
    assert (done.returncode, done.stdout, done.stderr) == (4, f"{tmp_path}\nagain the machine's\n", "")
    assert left is not None
    assert left.cwd == bytes(tmp_path / "a b")
    assert [left.env.get(name) for name in ("GIVEN", "NEW", "OWN", "LANG")] == ["again", "x\ny", "other", None]
    _, left = run(tmp_path, shell, 'OWN="the machine\'s"', tmp_path, OWN="other")
    assert left is not None
    assert "OWN" not in left.env


def test_a_directory_that_is_gone(shell: ShellName, tmp_path: Path) -> None:
    done, left = run(tmp_path, shell, "pwd", tmp_path / "gone" / "below")
    assert done.stdout == f"{tmp_path}\n"
    assert done.stderr == f"holdfast: warning: {tmp_path}/gone/below is gone: the command begins in {tmp_path}\n"
    assert left is not None
    assert left.cwd == bytes(tmp_path)


def test_a_link_stays_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done, left = run(tmp_path, "sh", "pwd", tmp_path / "link")
    assert done.stdout == f"{tmp_path}/link\n"
    assert left is not None
    assert left.cwd == bytes(tmp_path / "link")


def test_a_shell_that_was_killed_says_nothing(tmp_path: Path) -> None:
    done, left = run(tmp_path, "bash", "kill -KILL $$", tmp_path)
    assert (done.returncode, left) == (-9, None)


def test_what_no_machine_can_be_given() -> None:
    with pytest.raises(UsageError, match="in a virtual machine no more than 100000"):
        shell_programs.prepare_guest_start("bash", "#" * 100_001, {}, b"/", folder=b"/nowhere")
    with pytest.raises(UsageError, match="NUL"):
        shell_programs.prepare_guest_start("bash", "\0", {}, b"/", folder=b"/nowhere")
