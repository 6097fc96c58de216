"""What concerns a whole home needs no workspace: all of them may be deleted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from e2e.conftest import Cli


def test_everything_can_be_let_go_when_no_workspace_is_left(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.write("file", "kept\n")
    cli("checkpoint", "-m", "one")
    monkeypatch.chdir(place)
    shutil.rmtree(cli.root)
    assert "one" in cli("log", "--all").out
    assert cli.json("log", "--all")["head"] is None
    assert cli.json("verify")["checkpoints"] == 1
    assert cli.json("stats")["checkpoints"] == 1
    assert cli("log", code=3).err.startswith("holdfast: ")
    assert [item["label"] for item in cli.json("forget", "--gone")["removed"]] == ["one"]
    assert cli.json("gc", "--grace", "0")["blobs_deleted"] > 0
    assert cli.json("verify", "--read-data")["blobs"] == 0


def test_a_deleted_workspace_is_gone_for_who_stands_in_it_as_well(cli: Cli, place: Path) -> None:
    cli.write("file", "kept\n")
    cli("checkpoint")
    cli("fork", str(place / "fork"))
    for path in (cli.root, place / "fork"):
        shutil.rmtree(path)
    assert len(cli.json("-w", str(cli.root), "forget", "--gone")["removed"]) == 2


def test_a_directory_that_is_named_must_be_in_a_workspace(cli: Cli, place: Path) -> None:
    assert cli("-w", str(place), "stats", "--json", code=3).error["code"] == "no_workspace"


def test_a_home_that_never_was_is_not_made_by_asking(bare: Cli, place: Path) -> None:
    for words in (["forget", "--gone"], ["gc"], ["verify"], ["stats"], ["log", "--all"]):
        assert bare(*words, code=3).err
    assert not (place / "home").exists()
