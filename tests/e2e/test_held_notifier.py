"""``safeguard.notify``: a command of the user's says that a safeguard waits, and nothing supervised has a say in it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ..waiting import wait_until
from .conftest import INSTALLED, Cli

_TELL = """#!/bin/sh
env -0 > "{folder}/$HOLDFAST_HELD_TICKET.new"
pwd > "{folder}/directory"
mv "{folder}/$HOLDFAST_HELD_TICKET.new" "{folder}/ticket-$HOLDFAST_HELD_TICKET"
{then}
"""


@pytest.fixture(name="guarded")
def _guarded(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for number in range(5):
        cli.write(f"many/{number}", "x")
    monkeypatch.setenv("HOLDFAST_SAFEGUARD_DELETES", "3")
    return cli


def _notify(cli: Cli, *words: str, more: str = "") -> None:
    (cli.home / "config.toml").write_text(f"[safeguard]\nnotify = {json.dumps(words)}\n{more}")


def _program(folder: Path, then: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / "tell"
    program.write_text(_TELL.format(folder=folder, then=then))
    program.chmod(0o755)
    return program


def _told(folder: Path, ticket: int) -> dict[str, str]:
    at = folder / f"ticket-{ticket}"
    wait_until(at.exists)
    return dict(item.split("=", 1) for item in at.read_text().split("\0") if item)


def _keeper_log(cli: Cli) -> str:
    return "".join(path.read_text() for path in cli.home.rglob("keeper.log"))


def test_it_is_started_once_for_each_held_call_outside_of_the_tree_and_told_what_waits(
    guarded: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "told"
    _notify(guarded, str(_program(folder)), "a b")
    inside, elsewhere = guarded.root / "bin", tmp_path / "bin"
    inside.mkdir()
    monkeypatch.setenv("PATH", f"{inside}:{elsewhere}:{os.environ['PATH']}")
    monkeypatch.setenv("BASH_ENV", f"{guarded.root}/rc")
    monkeypatch.setenv("HELD_TEST", "the user's own")
    before = guarded.tree()
    for _ in range(2):
        with guarded.start("run", "--", "rm", "-r", "many") as process:
            told = _told(folder, 1)  # (each run has a keeper of its own, which counts anew)
            (held,) = guarded.json("safeguard")["held"]
            assert told["HOLDFAST_HELD_TICKET"] == str(held["id"])
            assert told["HOLDFAST_HELD_STEP"] == str(held["step"])
            assert told["HOLDFAST_HELD_KIND"] == "delete"
            assert told["HOLDFAST_HELD_PATH"] == held["path"]
            assert told["HOLDFAST_HELD_FILES"] == "3"
            assert told["HOLDFAST_HELD_WORKSPACE"] == os.fsdecode(os.path.realpath(guarded.root))
            assert told["HOLDFAST_HELD_MESSAGE"] == held["message"]
            assert int(told["HOLDFAST_HELD_UNTIL"]) > time.time() - 60
            assert told["HOLDFAST_HOME"] == str(guarded.home)
            (run,) = [step["run"] for step in guarded.json("steps")["steps"] if step["state"] == "open"]
            assert told["HOLDFAST_HELD_RUN"] == run
            assert told["HELD_TEST"] == "the user's own"
            assert "BASH_ENV" not in told
            assert "HOLDFAST_RUN" not in told
            assert str(inside) not in told["PATH"].split(":")
            assert str(elsewhere) in told["PATH"].split(":")
            assert (folder / "directory").read_text() == "/\n"
            guarded("safeguard", "deny", str(held["id"]))
            process.communicate(timeout=60)
        assert sorted(os.listdir(folder)) == ["directory", "tell", "ticket-1"]
        (folder / "ticket-1").unlink()
    assert guarded.tree() == before
    assert "safeguard.notify" not in _keeper_log(guarded)


def test_it_may_answer_as_a_person_does(guarded: Cli, tmp_path: Path) -> None:
    holdfast = " ".join(f"'{word}'" for word in INSTALLED)
    program = _program(
        tmp_path / "told", f'{holdfast} -w "$HOLDFAST_HELD_WORKSPACE" safeguard allow "$HOLDFAST_HELD_TICKET"'
    )
    _notify(guarded, str(program))
    assert guarded.process("run", "--", "rm", "-r", "many").returncode == 0
    assert not (guarded.root / "many").exists()


def test_it_is_started_for_what_a_session_holds_too(guarded: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "told"
    _notify(guarded, str(_program(folder)))
    guarded("session", "start", "one")
    with guarded.start("session", "exec", "--json", "rm -r many", stdout=subprocess.PIPE) as process:
        (run,) = {one["run"] for one in _told_step(guarded, folder)}
        assert run
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())["message"]
        assert "is about to delete its file number 3" in said
        assert "`holdfast safeguard allow 1` or `deny 1`" in said
        guarded("safeguard", "deny", "1")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert "step 1 was not allowed, and was taken back" in messages


def _told_step(cli: Cli, folder: Path) -> list[dict[str, Any]]:
    """The step that was told of."""
    told = _told(folder, 1)
    steps = [one for one in cli.json("steps")["steps"] if str(one["id"]) == told["HOLDFAST_HELD_STEP"]]
    assert [one["run"] for one in steps] == [told["HOLDFAST_HELD_RUN"]]
    return steps


@pytest.mark.parametrize(
    "kind", ["no such program", "in the workspace", "by a link", "found in the workspace", "fails"]
)
def test_what_cannot_be_run_is_logged_and_holds_nothing_up(
    guarded: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "told"
    lies_inside = guarded.write("bin/tell-me", f"#!/bin/sh\n: > {tmp_path}/was-run\n")
    lies_inside.chmod(0o755)
    monkeypatch.setenv("PATH", f"{guarded.root}/bin:{os.environ['PATH']}")
    (tmp_path / "link").symlink_to(guarded.root)
    words = {
        "by a link": ["sh", f"{tmp_path}/./link/bin/tell-me"],
        "no such program": ["/nowhere/tell"],
        "in the workspace": ["sh", str(lies_inside)],
        "found in the workspace": ["tell-me"],
        "fails": [str(_program(folder, "echo the screen is dark >&2; exit 3"))],
    }[kind]
    said = {
        "no such program": "/nowhere/tell is no program outside of the workspace",
        "in the workspace": "it lies in the workspace",
        "by a link": "it lies in the workspace",
        "found in the workspace": "tell-me is no program outside of the workspace",
        "fails": "it ended with 3: the screen is dark",
    }[kind]
    _notify(guarded, *words)
    with guarded.start("run", "--", "rm", "-r", "many") as process:
        wait_until(lambda: bool(guarded.json("safeguard")["held"]))
        wait_until(lambda: said in _keeper_log(guarded))
        guarded("safeguard", "allow", "1")
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert not (tmp_path / "was-run").exists()


def test_a_file_of_the_workspace_cannot_set_it(guarded: Cli, tmp_path: Path) -> None:
    program = _program(tmp_path / "told")
    guarded.write("holdfast.toml", f'[safeguard]\nnotify = ["{program}"]\n')
    assert "safeguard.notify" in guarded("run", "--", "true", code=2).err
