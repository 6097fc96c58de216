"""``watch`` as a process: it saves by itself, other commands use it, and it ends cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening.watch_client import connect
from holdfast.model.errors import LockedError

from ..waiting import has_ended, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Cli

COMMAND = [sys.executable, "-m", "holdfast"]


@pytest.fixture(name="quick", autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Iterator[None]:
    """A watcher that does not wait long, and that is gone at the end. The source is found from everywhere."""
    monkeypatch.setenv("HOLDFAST_WATCH_DEBOUNCE", "50ms")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    yield
    cli("watch", "--stop")


def test_a_detached_watcher_saves_by_itself(cli: Cli) -> None:
    cli.write("f", "1")
    started = cli.json("watch", "--detach")
    assert started["pid"] > 0
    assert cli.json("status")["watching"]
    assert "a watcher is running" in cli("status").out
    assert cli("watch", "--json", code=4).error["code"] == "locked"
    assert cli("watch", "--detach", "--json", code=4).error["code"] == "locked"
    cli.write("sub/g", "2")
    wait_until(lambda: any("sub/g" in cli.json("show", i["id"])["paths"]["added"] for i in _log(cli)))
    assert {item["kind"] for item in _log(cli)} == {"auto"}
    assert all(item["label"].startswith("auto-") for item in _log(cli))
    assert cli.json("watch", "--stop") == {"stopped": True, "unsaved": None}
    assert not cli.json("status")["watching"]
    assert cli.json("watch", "--stop") == {"stopped": False, "unsaved": None}


def test_commands_beside_a_watcher(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WATCH_DEBOUNCE", "1h")
    cli.write("f", "1")
    cli("watch", "--detach")
    made = cli.json("checkpoint", "-m", "one", "--message", "why")
    assert (made["created"], made["label"], made["changes"]["added"]) == (True, "one", 1)
    assert cli.json("show")["message"] == "why"
    cli.write("f", "2")
    assert cli.json("status")["modified"] == ["f"]
    cli("restore", "one")
    assert cli.tree() == {"f": b"1"}
    cli("undo")
    assert cli.tree() == {"f": b"2"}
    assert cli("checkpoint", "-m", "@bad", "--json", code=2).error["code"] == "usage"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_saves_and_ends_it(cli: Cli, number: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"Watching ")
        cli.write("f", "1")
        wait_until(lambda: bool(_log(cli)))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"Stopped; everything is saved.\n")
    assert b"Traceback" not in err
    assert err.startswith(b"holdfast: saved ")


def test_a_killed_watcher_is_in_nobodys_way(cli: Cli) -> None:
    with subprocess.Popen([*COMMAND, "watch"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"Watching ")
        process.kill()
        process.wait(60)
    cli.write("f", "1")
    assert cli.json("checkpoint")["created"]
    assert not cli.json("status")["watching"]
    assert cli.json("watch", "--detach")["pid"] != process.pid


def _log(cli: Cli) -> list[dict[str, str]]:
    return cli.json("log")["checkpoints"]


def test_a_watcher_that_hangs_is_not_waited_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WATCH_DEBOUNCE", "1h")
    cli.write("f", "1")
    pid = cli.json("watch", "--detach")["pid"]
    assert cli.json("checkpoint")["created"]
    stop(pid)
    try:
        monkeypatch.setenv("HOLDFAST_WATCH_ANSWER_TIMEOUT", "50ms")
        cli.write("f", "2")
        alone = cli("status", "--json")
        assert alone.json["modified"] == ["f"]
        assert not alone.json["watching"]
        assert "the watcher is not asked: the watcher has not answered for 0.05 s" in alone.err
        alone = cli("checkpoint", "-m", "alone", "--json")
        assert (alone.json["created"], alone.json["changes"]["modified"]) == (True, 1)
        assert "the watcher is not asked" in alone.err
        # It holds its place all the same: two that save would be in each other's way.
        assert f"(pid {pid})" in cli("watch", "--json", code=4).error["message"]
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.delenv("HOLDFAST_WATCH_ANSWER_TIMEOUT")
    wait_until(lambda: cli.json("status")["watching"])
    again = cli("status", "--json")
    assert (again.json["modified"], again.err) == ([], "")
    cli.write("g", "3")
    made = cli.json("checkpoint")
    assert (made["created"], made["changes"]["added"], made["changes"]["modified"]) == (True, 1, 0)
    assert [item["label"] for item in _log(cli)] == ["", "alone", ""]


def test_status_says_when_the_watcher_saves(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("f", "1")
    cli.json("checkpoint")
    monkeypatch.setenv("HOLDFAST_WATCH_DEBOUNCE", "1h")
    monkeypatch.setenv("HOLDFAST_WATCH_MAX_INTERVAL", "1h")
    cli.json("watch", "--detach")
    cli.write("f", "2")
    wait_until(lambda: cli.json("status")["next_save_at"] is not None)
    due = cli.json("status")["next_save_at"]
    assert due > cli.json("show")["created_at"]
    assert "Next: the watcher saves that at " in cli("status").out
    cli.json("watch", "--stop")
    monkeypatch.setenv("HOLDFAST_WATCH_MAX_INTERVAL", "2h")
    cli.json("watch", "--detach")
    cli.write("f", "3")
    wait_until(lambda: cli.json("status")["next_save_at"] is not None)
    found = cli.json("status")
    assert found["next_save_at"] < found["next_save_by"]
    assert " if nothing more changes, at " in cli("status").out
    cli.json("watch", "--stop")
    assert cli.json("status")["next_save_at"] is None


def test_a_watcher_that_cannot_save_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("f", "1")
    cli.json("checkpoint")
    monkeypatch.setenv("HOLDFAST_STORE_MAX_BYTES", "1")
    cli.json("watch", "--detach")
    cli.write("g", "2")
    wait_until(lambda: cli.json("status")["watch_failure"] is not None)
    assert "The watcher fails, and tries again: saving: " in cli("status").out
    stopped = cli("watch", "--stop", "--json", code=1)
    assert stopped.json["stopped"]
    assert stopped.json["unsaved"]
    assert stopped.error["code"] == "unsaved"
    monkeypatch.delenv("HOLDFAST_STORE_MAX_BYTES")
    assert cli.json("status")["added"] == ["g"]


def test_a_watcher_that_does_not_stop_is_named_with_a_way_to_end_it(cli: Cli) -> None:
    pid = cli.json("watch", "--detach")["pid"]
    with holdfast.open(cli.root) as workspace:
        folder = workspace.folder
    stop(pid)
    try:
        watcher = connect(folder, wait=0.05)
        assert watcher is not None
        with watcher, pytest.raises(LockedError, match=f"process {pid}") as refused:
            watcher.stop()
        assert f"`kill -9 {pid}`" in str(refused.value.hint)
    finally:
        os.kill(pid, signal.SIGCONT)
    # It was told, and obeys as soon as it can.
    wait_until(lambda: has_ended(pid))


@pytest.mark.parametrize("backend", ["auto", "inotify"])
@pytest.mark.parametrize("whose", ["user", "repository"])
def test_excludes_outside_of_the_tree_are_obeyed_while_they_change(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, backend: str, whose: str
) -> None:
    if whose == "user":
        excludes = Path(os.environ["HOME"]) / "excludes"
        (Path(os.environ["HOME"]) / ".gitconfig").write_text(f"[core]\n\texcludesFile = {excludes}\n")
    else:
        subprocess.run(["git", "init", "-q"], check=True)
        excludes = cli.root / ".git" / "info" / "exclude"
    excludes.write_text("/away/\n")
    cli.write("away/f", "1")
    cli.write("here/f", "1")
    monkeypatch.setenv("HOLDFAST_WATCH_BACKEND", backend)
    cli("watch", "--detach")
    cli("checkpoint")
    assert cli.json("show")["total_files"] == 1
    # The watcher learns that it needs not look into an excluded directory when something happens there.
    cli.write("away/f", "11")
    cli("status")
    excludes.write_text("/here/\n")
    cli("checkpoint")
    assert (cli.json("show")["total_files"], cli.json("show")["total_bytes"]) == (1, 2)
    cli.write("away/f", "222")
    wait_until(lambda: cli.json("show")["total_bytes"] == 3)


@pytest.mark.parametrize("now", ["", '[capture]\nexclude = ["/data/", "*.pem"]\n'], ids=["fewer", "more"])
def test_settings_of_the_workspace_that_change_are_obeyed(cli: Cli, now: str) -> None:
    """Nobody who checkpoints asks whether a watcher began before the last edit of ``holdfast.toml``."""
    cli.write("holdfast.toml", '[capture]\nexclude = ["/data/"]\n')
    cli("checkpoint")
    cli("watch", "--detach")
    try:
        cli.write("holdfast.toml", now)
        cli.write("data/x", "precious")
        cli.write("key.pem", "secret")
        cli("checkpoint", "-m", "changed")
    finally:
        cli("watch", "--stop")
    assert cli("cat", "changed:data/x", code=3 if now else 0).out == ("" if now else "precious")
    assert cli("cat", "changed:key.pem", code=3 if now else 0).out == ("" if now else "secret")
