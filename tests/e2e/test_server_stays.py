"""A server that a run has left goes on: what came after it, and has nothing to do with it, is taken back; the rest
names the process that holds it, and `undo --run --stop` ends that first.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.testing.tree_state import photograph

from ..processes import command_of
from ..waiting import has_ended, wait_until
from .test_run import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Cli

__all__ = ["bench"]

OPENS_ANEW = "while :; do echo more >> served; sleep 0.05; done"
KEEPS_OPEN = "exec >> served; while :; do echo more; sleep 0.05; done"


class Server:
    """What a run has left running. It begins its ``script`` when the run's command has ended; with ``early`` the
    command ends when the server has written.
    """

    def __init__(self, cli: Cli, script: str, *, early: bool = False) -> None:
        self.cli = cli
        self.pid_file = cli.root.parent / f"pid-{len(list(cli.root.parent.iterdir()))}"
        command_ended = self.pid_file.with_suffix(".go")
        wait = "" if early else f"while ! [ -e {command_ended} ]; do sleep 0.01; done; "
        command = f"echo by-run > f; sh -c 'echo $$ > {self.pid_file}; {wait}{script}' < /dev/null > /dev/null 2>&1 &"
        if early:
            command += "while ! [ -s served ]; do sleep 0.01; done"
        cli.process("run", "--", "sh", "-c", command)
        command_ended.touch()
        wait_until(lambda: self.pid_file.exists() and self.pid_file.read_text().endswith("\n"), "the server")
        self.pid = int(self.pid_file.read_text())

    def goes_on(self) -> None:
        """Wait until it has written once more."""
        before = self.size()
        wait_until(lambda: self.size() > before, "a write of the server")

    def size(self) -> int:
        return (self.cli.root / "served").stat().st_size if (self.cli.root / "served").exists() else 0


@pytest.fixture(name="start")
def _start(bench: Cli) -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda server=server: has_ended(server.pid), "the end of the server")


@pytest.mark.parametrize("script", [OPENS_ANEW, KEEPS_OPEN])
def test_a_later_edit_is_taken_back_and_the_rest_names_the_process(
    bench: Cli, start: list[Server], script: str
) -> None:
    before = photograph(bench.root)
    server = Server(bench, script)
    start.append(server)
    server.goes_on()
    (bench.root / "g").write_text("by hand")
    dry = bench.json("undo", "--dry-run")
    assert dry["deleted"] == ["g"]
    done = bench.json("undo")
    assert (done["steps"], done["written"], done["deleted"]) == ([], [], ["g"])
    server.goes_on()
    assert bench.json("redo")["written"] == ["g"]
    assert (bench.root / "g").read_text() == "by hand"
    assert bench.json("undo")["deleted"] == ["g"]
    server.goes_on()
    error = bench("undo", "--run", "--json", code=4).error
    run = bench.json("steps")["steps"][-1]["run"]
    assert f"holdfast undo --run {run} --stop" in error["hint"]
    for words in (("undo", "9"), ("undo", "--run")):
        error = bench(*words, "--json", code=4).error
        assert error["code"] in ("step_open", "still_written")
        assert server.pid in [one["pid"] for one in error["processes"]]
        assert str(server.pid) in bench(*words, code=4).err
    stopped = bench.json("undo", "--run", "--stop")
    assert server.pid in [one["pid"] for one in stopped["stopped"]]
    assert has_ended(server.pid)
    after = photograph(bench.root)
    assert {path: one.content for path, one in before.items()} == {path: one.content for path, one in after.items()}
    bench("redo")
    assert (bench.root / "f").read_text() == "by-run\n"


def test_what_holds_on_is_killed_and_nothing_of_another_run(bench: Cli, start: list[Server], monkeypatch) -> None:
    other = Server(bench, "while :; do sleep 0.05; done")
    start.append(other)
    server = Server(bench, f"trap : TERM; {OPENS_ANEW}")
    start.append(server)
    server.goes_on()
    monkeypatch.setenv("HOLDFAST_UNDO_STOP_TIMEOUT", "0.3s")
    said = bench("undo", "--run", "--stop").out
    assert f"process {server.pid} (sh -c " in said
    assert has_ended(server.pid)
    assert not has_ended(other.pid)
    assert not (bench.root / "served").exists()
    assert b"sleep 0.05" in command_of(other.pid)


def test_what_is_older_than_what_the_server_has_done_is_not_taken_from_under_it(
    bench: Cli, start: list[Server]
) -> None:
    (bench.root / "f").write_text("older")
    bench("checkpoint")
    server = Server(bench, "while :; do echo more >> served; sleep 0.05; done")
    start.append(server)
    server.goes_on()
    while bench.process("undo", code=None, cwd=bench.root).returncode == 0:
        pass
    assert f"process {server.pid}" in bench("undo", code=4).err
    assert (bench.root / "f").read_text() in ("older", "by-run\n")


def test_what_would_come_in_the_place_of_what_the_server_holds_is_refused(bench: Cli, start: list[Server]) -> None:
    (bench.root / "d").write_text("file")
    bench("checkpoint")
    server = Server(bench, f"while ! [ -d d ]; do sleep 0.01; done; echo held > d/held; {OPENS_ANEW}")
    start.append(server)
    (bench.root / "d").unlink()
    (bench.root / "d").mkdir()
    (bench.root / "d" / "mine").write_text("by hand")
    server.goes_on()
    bench("checkpoint")
    for words in (("undo", "--dry-run"), ("undo",)):
        error = bench(*words, "--json", code=4).error
        assert error["code"] == "step_open"
        assert error["message"].startswith("d would replace files of ")
        assert server.pid in [one["pid"] for one in error["processes"]]
    assert (bench.root / "d" / "held").read_text() == "held\n"
    assert (bench.root / "d" / "mine").read_text() == "by hand"


def test_a_directory_does_not_come_in_the_place_of_the_servers_file(bench: Cli, start: list[Server]) -> None:
    bench.write("d/mine", "by hand")
    bench("checkpoint")
    server = Server(bench, f"while [ -d d ]; do sleep 0.01; done; echo held > d; {OPENS_ANEW}")
    start.append(server)
    (bench.root / "d" / "mine").unlink()
    (bench.root / "d").rmdir()
    server.goes_on()
    for words in (("undo", "--dry-run"), ("undo",)):
        error = bench(*words, "--json", code=4).error
        assert error["message"].startswith("d/mine would replace files of ")
    assert (bench.root / "d").read_text() == "held\n"


def test_what_lies_beside_in_a_directory_of_the_servers_is_taken_back(bench: Cli, start: list[Server]) -> None:
    server = Server(bench, f"mkdir d; echo held > d/held; {OPENS_ANEW}")
    start.append(server)
    server.goes_on()
    bench.write("d/mine", "by hand")
    assert bench.json("undo")["deleted"] == ["d/mine"]
    assert bench.json("redo")["written"] == ["d/mine"]
    (bench.root / "d" / "mine").unlink()
    assert bench.json("undo")["written"] == ["d/mine"]
    assert (bench.root / "d" / "held").read_text() == "held\n"


def test_stopping_is_for_a_run(bench: Cli) -> None:
    for words in (("undo", "--stop"), ("undo", "--run", "--stop", "--dry-run")):
        assert "--stop" in bench(*words, code=2).err


def test_what_a_server_holds_stays_in_an_undo_to_a_prompt_which_is_said(bench: Cli, start: list[Server]) -> None:
    with holdfast.open(bench.root, home=bench.home) as workspace:
        prompt = f"prompt:{workspace.prompt('start the server').prompt}"
    server = Server(bench, OPENS_ANEW)
    start.append(server)
    server.goes_on()
    (bench.root / "g").write_text("by hand")
    for words in (("--dry-run",), ()):
        done = bench("undo", "--to", prompt, *words)
        assert "is still running, and its changes stay: served" in done.err
    assert not (bench.root / "g").exists()
    server.goes_on()
    assert bench("undo", "--to", prompt, "--json", code=4).error["code"] in ("step_open", "still_written")
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(one["state"] == "open" for one in bench.json("steps")["steps"]), "the end of its step")
    # (Until the kernel has let go of the last of its processes.)
    wait_until(lambda: bench.process("undo", "--to", prompt).returncode == 0, "that it can be undone")
    assert not (bench.root / "served").exists()


def test_an_undo_to_a_prompt_is_refused_where_the_run_itself_has_written_what_its_server_holds(
    bench: Cli, start: list[Server]
) -> None:
    with holdfast.open(bench.root, home=bench.home) as workspace:
        prompt = f"prompt:{workspace.prompt('start the server').prompt}"
    server = Server(bench, OPENS_ANEW, early=True)
    start.append(server)
    server.goes_on()
    for words in (("--dry-run",), ()):
        error = bench("undo", "--to", prompt, *words, "--json", code=4).error
        assert "has to do with served too" in error["message"]
        assert "--stop" in error["hint"]
    assert (bench.root / "f").read_text() == "by-run\n"
