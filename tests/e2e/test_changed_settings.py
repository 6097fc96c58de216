"""Settings that change while a process has the workspace open: what it saves goes by the files as they are then."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening.watch_client import connect
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import ConfigError

from ..waiting import wait_until
from .rest import Place

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import Cli

COMMAND = [sys.executable, "-m", "holdfast"]
EXCLUDES = '[capture]\nexclude = ["/data/"]\n'
BROKEN = '[capture]\nexclude = ["/data/"\n'


def test_an_open_workspace_captures_by_the_files_of_now(tree: Path, home: Path) -> None:
    (tree / "data").mkdir()
    (tree / "data/x").write_text("precious")
    (tree / "large").write_text("12345")
    file, of_home = tree / "holdfast.toml", home / "config.toml"
    file.write_text(EXCLUDES)
    with holdfast.init(tree, home=home) as workspace:
        saved = workspace.checkpoint("one")
        with pytest.raises(holdfast.NotFoundError):
            b"".join(workspace.cat("one", "data/x"))
        file.write_text("")
        assert {change.path for change in workspace.status().changes} == {b"holdfast.toml", b"data/x"}
        workspace.checkpoint("two")
        assert b"".join(workspace.cat("two", "data/x")) == b"precious"
        of_home.write_text("[capture]\nmax_file_bytes = 4\n[identity]\nauthor = 'ann'\n")
        (tree / "large").write_text("123456")
        (tree / "data/x").write_text("p")
        saved = workspace.checkpoint("three")
        assert [one.path for one in saved.not_captured] == [b"large"]
        assert saved.checkpoint.provenance.author == "ann"
        of_home.unlink()
        workspace.checkpoint("four")
        assert b"".join(workspace.cat("four", "large")) == b"123456"


def test_flags_of_the_caller_win_over_a_file_that_changes(tree: Path, home: Path) -> None:
    holdfast.init(tree, home=home).close()
    (tree / "large").write_text("12345")
    with holdfast.open(tree, home=home, flags={"capture.max_file_bytes": 4}) as workspace:
        (tree / "key.pem").write_text("K")
        (home / "config.toml").write_text("[capture]\nmax_file_bytes = 99\nexclude = ['*.pem']\n")
        saved = workspace.checkpoint()
        assert ([one.path for one in saved.not_captured], saved.checkpoint.total_files) == ([b"large"], 0)


def test_a_store_that_is_open_stays(tree: Path, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
        (home / "config.toml").write_text(f'[store]\nurl = "file://{tmp_path}/elsewhere"\n')
        (tree / "f").write_text("1")
        workspace.checkpoint("kept")
        assert b"".join(workspace.cat("kept", "f")) == b"1"
    assert "store.* has changed" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


def test_an_open_workspace_saves_nothing_by_a_broken_file_and_goes_back(tree: Path, home: Path) -> None:
    (tree / "holdfast.toml").write_text(EXCLUDES)
    (tree / "f").write_text("1")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("one")
        (tree / "holdfast.toml").write_text(BROKEN)
        for _ in range(2):
            with pytest.raises(ConfigError, match="it is not TOML") as raised:
                workspace.checkpoint("two")
            assert "correct it" in str(raised.value.hint)
        (tree / "data").mkdir()
        (tree / "data/x").write_text("secret")
        assert b"data/x" not in {change.path for change in workspace.status().changes}
        workspace.restore("one")
        assert (tree / "holdfast.toml").read_text() == EXCLUDES
        assert not workspace.checkpoint("three").created


def test_a_watcher_outlives_a_broken_file_and_says_what_is_wrong(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WATCH_DEBOUNCE", "50ms")
    cli.write("holdfast.toml", EXCLUDES)
    cli("checkpoint")
    pid = cli.json("watch", "--detach")["pid"]
    try:
        cli.write("holdfast.toml", BROKEN)
        wait_until(lambda: "it is not TOML" in (cli.json("status")["watch_failure"] or ""))
        assert "it is not TOML" in cli("checkpoint", code=2).err
        cli.write("data/x", "secret")
        with holdfast.open(cli.root, home=cli.home, lenient=True) as workspace:
            watcher = connect(workspace.folder)
            assert watcher is not None
            with watcher, pytest.raises(ConfigError, match="it is not TOML"):
                watcher.checkpoint(CheckpointRequest())
        cli.write("holdfast.toml", "")
        wait_until(lambda: cli.json("status")["watch_failure"] is None)
        cli("checkpoint", "-m", "mended")
        with holdfast.open(cli.root, home=cli.home) as workspace:
            watcher = connect(workspace.folder)
            assert watcher is not None
            with watcher:
                assert watcher.ping().pid == pid
    finally:
        cli("watch", "--stop")
    assert cli("cat", "mended:data/x").out == "secret"


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_saves_by_the_file_that_its_command_wrote(cli: Cli, broken: bool) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    text = BROKEN if broken else EXCLUDES
    cli.write("../new.toml", text)
    line = 'cp ../new.toml holdfast.toml; mkdir data; echo S >data/x; echo 2 >f; exec "$@"'
    inside = [*COMMAND, "--home", str(cli.home), "checkpoint", "-m", "inside"]
    done = cli.process("run", "--", "sh", "-c", line, "sh", *inside, code=2 if broken else 0)
    assert (b"it is not TOML" in done.stderr) == broken
    assert cli("cat", "@:f").out == "2\n", "what the command has done is saved"
    if not broken:
        cli("cat", "inside:data/x", code=3)
        cli("cat", "@:data/x", code=3)
    cli("undo", "--run")
    assert (cli.root / "f").read_text() == "1"


@pytest.mark.parametrize("now", ["", '[capture]\nexclude = ["/data/", "*.pem"]\n'], ids=["fewer", "more"])
def test_a_server_saves_an_export_by_the_file_of_now(tmp_path: Path, now: str) -> None:
    place = Place(tmp_path)
    path = place.directory("shop", a="1")
    (path / "holdfast.toml").write_text(EXCLUDES)
    with place.server(watch_debounce="100ms") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        client.post("/api/exports/shop/checkpoint")
        (path / "holdfast.toml").write_text(now)
        (path / "data").mkdir()
        (path / "data/x").write_text("precious")
        (path / "key.pem").write_text("secret")
        client.post("/api/exports/shop/checkpoint", {"label": "changed"})
        assert server.stop() == 0
    with holdfast.open(path, home=place.home) as workspace:
        held = {change.path for change in workspace.show("changed").changes}
    assert (b"data/x" in held, b"key.pem" in held) == ((False, False) if now else (True, True))
