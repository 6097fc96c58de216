"""``holdfast doctor`` finds out by trying, says what is broken, and begins nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing.tree_state import differences, photograph

from .conftest import INSTALLED, WITHOUT_NAMESPACES

if TYPE_CHECKING:
    from .conftest import Cli


def found(cli: Cli, code: int = 0) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What it found, by area and verdict."""
    findings: dict[tuple[str, str], list[dict[str, Any]]] = {}
    answer = cli.json("doctor", code=code)
    assert answer["ok"] == (code == 0)
    for finding in answer["findings"]:
        findings.setdefault((finding["area"], finding["verdict"]), []).append(finding)
    return findings


def test_without_anything_it_begins_nothing(bare: Cli) -> None:
    findings = found(bare)
    assert "is not there yet" in findings["home", "good"][0]["message"]
    assert findings["workspace", "good"][0]["help"] == "`holdfast init` makes a directory a workspace"
    assert not bare.home.exists()
    assert os.listdir(bare.root) == []


def test_it_tries_what_a_workspace_can_have(cli: Cli) -> None:
    findings = found(cli)
    assert f"{cli.root}, on " in findings["workspace", "good"][0]["message"]
    assert any("sees changes by" in finding["message"] for finding in findings["watching", "good"])
    assert "records every change" in findings["supervision", "good"][0]["message"]
    said = cli("doctor").out
    assert said.startswith("system\n  + Holdfast ")
    assert said.splitlines()[-1].startswith("Nothing is broken")


def test_it_counts_the_workspaces_that_stats_counts(cli: Cli) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    for name in ("kept", "gone"):
        cli("fork", f"../{name}")
    shutil.rmtree(cli.root.parent / "gone")
    cli("forget", "--gone")
    assert cli.json("stats")["workspaces"] == 2
    assert any(one["message"].endswith("workspaces in it: 2") for one in found(cli)["home", "good"])


def test_isolation_that_cannot_be_had_is_named(cli: Cli) -> None:
    done = subprocess.run(
        [*WITHOUT_NAMESPACES, *INSTALLED, "doctor", "--json"],
        cwd=cli.root,
        capture_output=True,
        check=False,
        timeout=60,
    )
    if b"unshare" in done.stderr:
        pytest.skip(f"there are no user namespaces whose number could be limited: {done.stderr!r}")
    told = [one for one in json.loads(done.stdout)["findings"] if one["message"].startswith("namespace, network ")]
    assert {one["verdict"] for one in told} == {"limited"}, told
    assert "the box could not be made" in told[0]["message"]


def test_it_says_which_snapshot_provider_is_used_and_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("no repository" in finding["message"] for finding in found(cli)["snapshots", "limited"])
    subprocess.run(["git", "init", "--quiet", cli.root], check=True)
    told = [finding["message"] for finding in found(cli)["snapshots", "good"]]
    assert any(text.startswith("git: score 50, modes worktree, in-place") for text in told)
    assert " is used, as " in told[-1]
    monkeypatch.setenv("HOLDFAST_SNAPSHOT_PROVIDER", "git")
    assert found(cli)["snapshots", "good"][-1]["message"] == "git is used, as snapshot.provider names it"
    assert not list(cli.home.glob("workspaces/*/snapshots")), "nothing is begun"


def test_it_says_what_would_copy_production_for_a_promotion(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(verdict: str) -> list[str]:
        return [finding["message"] for finding in found(cli)["snapshots", verdict] if "romot" in finding["message"]]

    (chosen,) = told("good")
    assert chosen.startswith("a promotion to it is built in a copy that ")
    monkeypatch.setenv("HOLDFAST_PROMOTE_PROVIDER", "copy")
    assert told("good") == ["a promotion to it is built in a copy that copy makes, as promote.provider names it"]
    monkeypatch.setenv("HOLDFAST_PROMOTE_PROVIDER", "btrfs")
    assert told("good") == []
    assert told("limited")[0].startswith("the provider btrfs (promote.provider) cannot be used here: btrfs: ")


def test_what_cannot_be_had_is_said_with_the_reason(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_UNDO_OUTSIDE", "lock")
    (lock,) = found(cli, code=1)["workspace", "wrong"]
    assert lock["message"].startswith("undo.outside is lock, which is impossible: the kernel asks")


def test_inside_of_a_run_it_says_so(cli: Cli) -> None:
    done = cli.process("run", "--", *INSTALLED, "doctor")
    assert b"+ inside of a run" in done.stdout
    assert b"a supervised process may not try them" in done.stdout


@pytest.mark.parametrize("damage", ["catalog", "settings", "own settings"])
def test_what_is_broken_is_an_exit_code(cli: Cli, damage: str) -> None:
    path = {"catalog": cli.home / "catalog.db", "settings": cli.home / "config.toml"}
    broken = path.get(damage, cli.root / "holdfast.toml")
    kept = broken.read_bytes() if broken.exists() else None
    broken.write_bytes(b"[capture\n" * 1000)
    try:
        wrong = [finding for (_, verdict), some in found(cli, code=1).items() if verdict == "wrong" for finding in some]
        assert any(broken.name in finding["message"] for finding in wrong), wrong
        things = "thing is" if len(wrong) == 1 else "things are"
        assert cli("doctor", code=1).out.splitlines()[-1].startswith(f"{len(wrong)} {things} broken: ")
    finally:
        broken.unlink() if kept is None else broken.write_bytes(kept)


def test_a_workspace_that_is_gone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.root / "file").write_text("1")
    cli("checkpoint")
    monkeypatch.chdir(cli.root.parent)
    shutil.rmtree(cli.root)
    answer = cli.json("-w", str(cli.root), "doctor")
    helps = [finding["help"] for finding in answer["findings"] if finding["verdict"] == "limited"]
    assert "`holdfast restore @` brings it back" in helps
    cli("-w", str(cli.root), "restore", "@")
    assert (cli.root / "file").read_text() == "1"


def test_what_it_tries_leaves_no_trace_where_the_temporary_directory_is_in_the_workspace(cli: Cli) -> None:
    (cli.root / "tmp").mkdir()
    before = photograph(cli.root)
    cli.process("doctor", env=os.environ | {"TMPDIR": str(cli.root / "tmp")}, code=None)
    assert differences(before, photograph(cli.root)) == []
