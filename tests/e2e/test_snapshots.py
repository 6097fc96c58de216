"""``holdfast snapshot``: what providers capture is taken, listed, looked at, worked in and discarded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.model.paths import parse_display

from ..disks import mounted
from ..waiting import wait_until
from .conftest import INSTALLED, Cli

TAKES_ALL = ("copy", "overlay")


def lay(cli: Cli) -> None:
    cli.write(".gitignore", "*.o\n")
    cli.write("src/a", "a\n")
    cli.write("src/a.o", "built\n")


def content(path: str) -> dict[str, str]:
    top = Path(os.fsdecode(parse_display(path)))
    return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}


def left(cli: Cli) -> list[Path]:
    """What providers have left in the home, and beside it."""
    found = [path for path in cli.home.rglob("*") if path.is_file() and "/snapshots/" in str(path)]
    beside = [cli.home.with_name(cli.home.name + "-forks"), cli.root / ".holdfast"]
    return [path for path in found if path.suffix != ".lock"] + [path for path in beside if path.exists()]


def git(cli: Cli, *words: str) -> str:
    identity = ("-c", "user.name=U", "-c", "user.email=u@example.org")
    return subprocess.run(["git", *identity, *words], cwd=cli.root, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("provider", ["copy", "holdfast", "git", pytest.param("overlay", marks=pytest.mark.root)])
def test_a_snapshot_from_beginning_to_end(cli: Cli, provider: str) -> None:
    lay(cli)
    if provider == "git":
        git(cli, "init", "--quiet")
        git(cli, "add", "--all")
        git(cli, "commit", "--quiet", "-m", "m")
    first = cli.json("snapshot", "take", "-m", "first", "--provider", provider)
    assert (first["provider"], first["label"], first["parent"], first["views"]) == (provider, "first", None, [])
    assert cli.is_documented("snapshot take", first)
    cli.write("src/a", "changed\n")
    second = cli.json("snapshot", "take", "--provider", provider)
    assert second["parent"] == first["id"]
    listed = cli.json("snapshot", "list")["snapshots"]
    assert [one["id"] for one in listed] == [first["id"], second["id"]]
    assert first["id"] in cli("snapshot", "list").out
    shown = cli.json("snapshot", "mount", first["id"][:8])["path"]
    found = content(shown)
    assert found["src/a"] == "a\n"
    assert ("src/a.o" in found) == (provider in TAKES_ALL)
    assert cli.json("snapshot", "show", "first")["views"] == [shown]
    assert shown in cli("snapshot", "show", "first").out
    refused = json.loads(cli("snapshot", "discard", "first", "--json", code=4).err)["error"]
    assert refused["code"] == "in_use"
    assert content(shown) == found
    assert cli.json("snapshot", "unmount", "first") == {"unmounted": [shown]}
    assert cli.json("snapshot", "unmount", "first") == {"unmounted": []}
    assert cli.json("snapshot", "discard", "first") == {"discarded": first["id"]}
    cli("snapshot", "show", "first", code=3)
    # What is left is whole without the one before it.
    assert content(cli.json("snapshot", "mount", second["id"])["path"])["src/a"] == "changed\n"
    cli("snapshot", "unmount", second["id"])
    cli("snapshot", "discard", second["id"])
    assert left(cli) == []
    if provider == "git":
        assert git(cli, "for-each-ref", "refs/holdfast") == ""


def test_what_the_best_provider_leaves_out_is_said(cli: Cli) -> None:
    lay(cli)
    git(cli, "init", "--quiet")
    said = cli("snapshot", "take").out
    assert "by git" in said
    assert "no untracked files" in said
    assert "ignored files too" in cli("snapshot", "take", "--with-ignored").out
    assert "git" in cli("snapshot", "take", "--with-ignored", "--provider", "git", code=1).err
    for one in cli.json("snapshot", "list")["snapshots"]:
        cli("snapshot", "discard", one["id"])
    assert left(cli) == []


def test_names_that_mean_none_or_several(cli: Cli) -> None:
    lay(cli)
    for _ in range(2):
        cli("snapshot", "take", "--provider", "copy", "-m", "same")
    several = json.loads(cli("snapshot", "show", "same", "--json", code=2).err)["error"]
    assert several["code"] == "ambiguous"
    for name in ("", "abc", "0" * 16, "other", "../same"):
        cli("snapshot", "discard", name, code=3)
    assert len(cli.json("snapshot", "list")["snapshots"]) == 2


def test_a_fork_of_a_session_needs_nothing_of_what_is_discarded(cli: Cli) -> None:
    lay(cli)
    git(cli, "init", "--quiet")
    git(cli, "add", "--all")
    git(cli, "commit", "--quiet", "-m", "m")
    cli.write("src/a", "changed\n")
    taken = cli.json("snapshot", "take", "--provider", "git")
    cli("session", "start", "one")
    fork = cli.json("session", "fork", "side", "--on-branch", "side")["root"]
    head = subprocess.run(["git", "branch", "--show-current"], cwd=fork, check=True, capture_output=True).stdout
    assert head == b"side\n"
    cli("snapshot", "discard", taken["id"])
    git(cli, "gc", "--quiet", "--prune=now")
    subprocess.run(["git", "fsck", "--strict"], cwd=fork, check=True, capture_output=True)
    assert (Path(fork) / "src/a").read_text() == "changed\n"
    cli("session", "delete", "side", "--yes")
    for name in ("", "@", "HEAD", "-x", "a..b", "a b"):
        assert "is no name for a branch of Git" in cli("session", "fork", f"--on-branch={name}", code=2).err
    assert left(cli) == []


@pytest.mark.parametrize("provider", ["copy", "holdfast"])
def test_snapshots_of_a_fork_go_with_it(cli: Cli, provider: str) -> None:
    lay(cli)
    cli("session", "start", "one")
    fork = cli.json("session", "fork", "side", "--provider", "copy")["root"]
    taken = cli("-w", fork, "--json", "snapshot", "take", "--provider", provider).json["id"]
    cli("-w", fork, "snapshot", "mount", taken)
    cli("session", "delete", "side", "--yes")
    assert left(cli) == []
    assert len([path for path in cli.home.glob("workspaces/*") if path.is_dir()]) == 1


def test_no_session_is_called_as_the_snapshots_are(cli: Cli) -> None:
    lay(cli)
    cli("session", "start", "_snapshots", code=2)


@pytest.mark.root
def test_a_command_finds_the_workspace_at_its_own_path_and_changes_another_one(cli: Cli) -> None:
    lay(cli)
    before = cli.tree()
    work = "pwd; cat src/a.o; echo new > new; rm src/a; exit 3"
    done = cli.process("snapshot", "run", "-m", "made", "--", "sh", "-c", work, code=3)
    assert done.stdout.decode() == f"{cli.root}\nbuilt\n"
    assert cli.tree() == before
    made = cli.json("snapshot", "show", "made")
    assert made["id"] in done.stderr.decode()
    go_on = cli.process("snapshot", "run", "--from", "made", "--json", "ls", "-R", str(cli.root))
    assert b"new" in go_on.stdout
    assert b"a.o" in go_on.stdout
    assert json.loads(go_on.stderr.splitlines()[-1]) == {"exit_code": 0, "snapshot": None}
    kept = content(cli.json("snapshot", "mount", "made")["path"])
    assert (kept["new"], "src/a" in kept) == ("new\n", False)
    cli("snapshot", "unmount", "made")
    copied = cli.json("snapshot", "take", "--provider", "copy")["id"]
    refused = cli("snapshot", "run", "--from", copied, "true", code=1).err
    assert "no mode overlay" in refused
    for name in ("made", copied):
        cli("snapshot", "discard", name)
    assert left(cli) == []


@pytest.mark.root
def test_a_command_there_cannot_save_or_undo_as_if_it_were_the_workspace(cli: Cli) -> None:
    lay(cli)
    cli("checkpoint", "-m", "one")
    cli("session", "start", "one")
    for words in (
        ("checkpoint", "-m", "no"),
        ("run", "--", "rm", "src/a"),
        ("undo",),
        ("status",),
        ("init", "--force"),
        ("session", "exec", "-s", "one", "rm src/a"),
    ):
        inside = (sys.executable, "-P", "-m", "holdfast", *words)
        done = cli.process("snapshot", "run", "--", "sh", "-c", 'echo x > x; exec "$@"', "sh", *inside, code=4)
        assert "holdfast snapshot run -m LABEL" in done.stderr.decode()
    assert cli.json("status")["clean"]
    assert [row["labels"] for row in cli.json("log")["rows"]] == [["one"]]
    assert cli.json("session", "history", "-s", "one")["commands"] == []
    assert left(cli) == []


@pytest.mark.root
def test_what_a_killed_command_was_run_in_goes_with_the_next_change(cli: Cli) -> None:
    lay(cli)
    ready, stop = cli.root.with_name("ready"), cli.root.with_name("stop")
    work = f"echo > {ready}; while ! test -e {stop}; do sleep 0.05; done"
    started = cli.start("snapshot", "run", "--", "sh", "-c", work, process_group=0)
    wait_until(ready.exists)
    # Another change leaves alone what lives.
    taken = cli.json("snapshot", "take", "--provider", "copy")["id"]
    assert any("layers" in str(path) for path in left(cli))
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate()
    stop.touch()
    cli("snapshot", "discard", taken)
    assert left(cli) == []


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_nothing_is_left(cli: Cli, number: signal.Signals) -> None:
    lay(cli)
    ready = cli.root.with_name("ready")
    started = cli.start("snapshot", "run", "--", "sh", "-c", f"echo > {ready}; exec sleep 1000")
    wait_until(ready.exists)
    started.send_signal(number)
    started.communicate()
    assert started.returncode == 128 + number
    assert left(cli) == []


def test_what_runs_supervised_changes_none(cli: Cli) -> None:
    lay(cli)
    taken = cli.json("snapshot", "take", "--provider", "copy")["id"]
    work = '"$0" snapshot list -q && ! "$0" snapshot discard "$1"'
    done = cli.process("run", "--", "sh", "-c", work, INSTALLED[0], taken)
    assert taken in done.stdout.decode()
    assert b"inside_run" in done.stderr or b"supervised" in done.stderr
    assert [one["id"] for one in cli.json("snapshot", "list")["snapshots"]] == [taken]


@pytest.mark.root
@pytest.mark.parametrize(("kind", "provider"), [("xfs", "reflink"), ("btrfs", "btrfs")])
def test_file_systems_that_capture_all_of_it(cli: Cli, tmp_path: Path, kind: str, provider: str) -> None:
    with mounted(kind, tmp_path) as disk:
        tree = disk / "tree"
        if kind == "btrfs":
            subprocess.run(["btrfs", "subvolume", "create", tree], check=True, capture_output=True)
        else:
            tree.mkdir()
        (tree / "file").write_text("1")
        there = ("-w", str(tree), "--home", str(disk / "home"))
        cli("init", str(tree), "--home", str(disk / "home"))
        taken = cli(*there, "--json", "snapshot", "take", "-m", "one", "--with-ignored").json
        assert taken["provider"] == provider
        (tree / "file").write_text("2")
        shown = cli(*there, "-q", "snapshot", "mount", "one").out.strip()
        assert (Path(shown) / "file").read_text() == "1"
        cli(*there, "snapshot", "unmount", "one")
        cli(*there, "snapshot", "discard", "one")
