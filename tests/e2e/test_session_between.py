"""``session merge``, ``pick``, ``bisect`` and ``replay`` on the command line."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.sessions.registry import Sessions

from ..waiting import has_ended, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


@pytest.fixture
def two(cli: Cli) -> Cli:
    """A session, and a fork of it that has changed two files."""
    for name in "abc":
        cli.write(name, f"{name}\n")
    cli("session", "start", "main")
    cli("session", "fork", "side")
    cli("session", "exec", "-s", "side", "echo side > a")
    cli("session", "exec", "-s", "side", "echo side > new; rm b")
    return cli


def test_a_fork_is_merged_and_that_is_undone_i6(two: Cli) -> None:
    before = two.tree()
    said = two("session", "merge", "side", "-s", "main", "--dry-run").out
    assert said.splitlines() == ["Would merge the session side: 3 files changed.", "  M a", "  D b", "  A new"]
    assert two.tree() == before
    out = two("session", "merge", "side", "-s", "main").out
    assert "Merged the session side: 2 files written, 1 deleted." in out
    assert two.tree() == {"a": b"side\n", "c": b"c\n", "new": b"side\n"}
    two("undo")
    assert two.tree() == before


@pytest.fixture
def large(cli: Cli) -> Cli:
    """A session, and a fork of it with a file that is too large for any checkpoint, and nothing else."""
    (cli.home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    cli.write("a", "a\n")
    cli("session", "start", "main")
    cli("session", "fork", "side")
    cli("session", "exec", "-s", "side", "head -c 70000 /dev/zero > model")
    return cli


def test_a_merge_names_what_it_cannot_bring(large: Cli) -> None:
    out = large("session", "merge", "side", "-s", "main").out.splitlines()
    assert out[0] == "This session has everything saved in the session side already."
    assert out[1] == "No checkpoint holds these; only the directory of the session side has them:"
    assert out[2].startswith("  model: too large")
    large("session", "exec", "-s", "side", "echo n > note")
    merged = large("session", "merge", "side", "-s", "main", "--json").json
    assert (merged["added"], [one["path"] for one in merged["not_captured"]]) == (["note"], ["model"])
    large.write("model", bytes(70_000))
    assert [one["path"] for one in large("session", "merge", "side", "-s", "main", "--json").json["not_captured"]] == [
        "model"
    ]


def test_a_checkout_names_what_it_cannot_bring_and_leaves_alone(large: Cli) -> None:
    large("session", "exec", "-s", "side", "head -c 70000 /dev/zero > a; echo n > note")
    found = large("session", "checkout", "forks/side", "-s", "main", "--json", code=4)
    assert found.error["code"] == "left_alone"
    assert [one["path"] for one in found.json["restored"]["skipped"]] == ["a"]
    assert [one["path"] for one in found.json["not_captured"]] == ["a", "model"]
    assert large.tree() == {"a": b"a\n", "note": b"n\n"}
    large("session", "exec", "-s", "side", "echo more > note; echo a > a")
    out = large("session", "checkout", "forks/side", "-s", "main").out
    assert "only the directory of forks/side has them:\n  model: too large" in out


def test_deleting_a_fork_names_what_goes_for_good(large: Cli) -> None:
    assert [one["path"] for one in large("session", "delete", "side", "--dry-run", "--json").json["not_captured"]] == [
        "model"
    ]
    ran = large("session", "delete", "side", code=4)
    assert "No checkpoint holds 1 path of that." in ran.err
    ran = large("session", "delete", "side", "--yes")
    assert "only the directory of the session side has them:" in ran.err
    assert "model: too large" in ran.err
    assert ran.out.startswith("Deleted session side")


def test_deleting_a_fork_does_not_name_what_is_here_as_well(large: Cli) -> None:
    large.write("data", bytes(70_000))
    large("session", "fork", "whole", "-s", "main", "--with-ignored")
    assert large("session", "delete", "whole", "--yes", "--json").json["not_captured"] == []


def test_conflicts_are_listed_and_settled(two: Cli) -> None:
    two("session", "exec", "-s", "main", "echo main > a")
    ran = two("session", "merge", "side", "-s", "main", code=4)
    assert "  a: changed on both sides" in ran.out
    assert "    there:\n      @@ -1 +1 @@\n      -a\n      +side\n" in ran.out
    assert "nothing was changed" in ran.err
    ran = two("session", "merge", "side", "-s", "main", "--json", code=4)
    assert [one["why"] for one in ran.json["conflicts"]] == ["content"]
    assert ran.error["code"] == "conflicts"
    out = two("session", "merge", "side", "-s", "main", "--prefer", "theirs").out
    assert "  a: changed on both sides, the other's taken" in out
    assert two.tree()["a"] == b"side\n"
    assert "everything in the session side already" in two("session", "merge", "side", "-s", "main").out


def test_conflicts_are_decided_one_by_one(two: Cli, tmp_path: Path) -> None:
    two("session", "exec", "-s", "main", "echo main > a; echo main > b")
    ran = two("session", "merge", "side", "-s", "main", code=4)
    assert "decide each with --resolve PATH=FILE, --keep PATH or --take PATH" in ran.err
    (tmp_path / "both").write_text("both\n")
    out = two("session", "merge", "side", "-s", "main", "--resolve", f"a={tmp_path / 'both'}", "--take", "b").out
    assert "  a: changed on both sides, decided" in out
    assert two.tree() == {"a": b"both\n", "c": b"c\n", "new": b"side\n"}


def test_lines_that_do_not_touch_are_no_conflict(two: Cli) -> None:
    two.write("c", "".join(f"{number}\n" for number in range(1, 9)))
    two("session", "fork", "lines", "-s", "main")
    two("session", "exec", "-s", "lines", "sed -i s/8/eight/ c")
    two("session", "exec", "-s", "main", "sed -i s/1/one/ c")
    out = two("session", "merge", "lines", "-s", "main", "--dry-run").out
    assert "  c: the changes of both sides would be merged" in out
    assert two("session", "merge", "lines", "-s", "main", "--dry-run", "--json").json["modified"] == ["c"]
    assert "  c: applied anew by text" in two("session", "merge", "lines", "-s", "main").out
    assert two.tree()["c"] == b"one\n2\n3\n4\n5\n6\n7\neight\n"


def test_of_a_file_in_the_place_of_a_directory_it_is_said_what_helps_and_that_helps(two: Cli) -> None:
    two("session", "exec", "-s", "main", "mkdir new; echo main > new/c")
    for more in ((), ("--prefer", "ours"), ("--prefer", "theirs")):
        ran = two("session", "merge", "side", "-s", "main", *more, code=4)
        assert ": a file on one side, a directory on the other" in ran.out
        assert "rename or remove the one here, and run the same command again" in ran.err
        assert "--prefer" not in ran.err
    two("session", "exec", "-s", "main", "mv new new-here; echo main > a")
    two("session", "merge", "side", "-s", "main", "--prefer", "theirs")
    assert two.tree() == {"a": b"side\n", "c": b"c\n", "new": b"side\n", "new-here/c": b"main\n"}


def test_what_a_side_settles_beside_a_file_in_the_place_of_a_directory_is_said_too(two: Cli) -> None:
    two("session", "exec", "-s", "side", "rm c; mkdir c; echo side > c/in")
    two("session", "exec", "-s", "main", "echo main > c; echo main > a")
    ran = two("session", "merge", "side", "-s", "main", code=4)
    assert "rename or remove the one here" in ran.err
    assert "--prefer ours or --prefer theirs settles the rest" in ran.err
    two("session", "exec", "-s", "main", "mv c c-here")
    assert "settle it with --prefer ours" in two("session", "merge", "side", "-s", "main", code=4).err
    two("session", "merge", "side", "-s", "main", "--prefer", "ours")
    assert two.tree() == {"a": b"main\n", "c-here": b"main\n", "c/in": b"side\n", "new": b"side\n"}


def test_one_command_is_picked(two: Cli) -> None:
    number = two("session", "history", "-s", "side", "--json").json["commands"][0]["seq"]
    assert f"Merged the command {number} of side" in two("session", "pick", "side", str(number), "-s", "main").out
    assert two.tree() == {"a": b"a\n", "c": b"c\n", "new": b"side\n"}
    two("session", "pick", "side", "99", "-s", "main", code=3)


def test_the_first_bad_state_is_found(two: Cli, tmp_path: Path) -> None:
    for number in range(6):
        two("session", "exec", "-s", "main", f"echo {number} > c")
    first = two("session", "history", "-s", "main", "--json").json["commands"]
    good = min(first, key=lambda one: one["seq"])["after"]
    out = two("session", "bisect", "-s", "main", "--good", good, "test $(cat c) -lt 4").out
    assert "The command 5 made it: echo 4 > c" in out
    found = two("session", "bisect", "-s", "main", "--good", good, "test $(cat c) -lt 4", "--json").json
    assert len(found["candidates"]) == 1
    assert {one["verdict"] for one in found["tried"]} == {"good", "bad"}
    assert "not_bisectable" in two("session", "bisect", "-s", "main", "--good", good, "true", "--json", code=4).err
    assert two.tree()["c"] == b"5\n"
    assert "try-" not in two("session", "list").out


def test_commands_are_run_again(two: Cli) -> None:
    two("session", "exec", "-s", "main", "exit 3", code=3)
    two("session", "exec", "-s", "main", "echo main > c")
    ran = two("session", "replay", "main", "--from", "1", "-s", "side")
    assert [line.split()[1:3] for line in ran.out.splitlines()] == [["exit", "3"], ["exit", "0"]]
    two("session", "exec", "-s", "main", "test -e b")
    ran = two("session", "replay", "main", "--from", "3", "-s", "side", code=4)
    assert "exit 1, was 0" in ran.out
    two("session", "replay", "main", "--from", "3", "-s", "side", "--keep-going", "--json", code=0)
    two("session", "replay", "main", "--from", "3", "--to", "2", "-s", "side", code=2)


def test_a_search_that_is_interrupted_leaves_nothing(two: Cli, tmp_path: Path) -> None:
    two("session", "exec", "-s", "main", "echo 1 > c")
    running = two.start("session", "bisect", "-s", "main", "--good", "@-", f"echo $$ > {tmp_path}/shell; sleep 600")
    wait_until(lambda: (tmp_path / "shell").exists() and (tmp_path / "shell").read_text(), what="the command")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert has_ended(int((tmp_path / "shell").read_text()))
    with Sessions() as sessions:
        assert {one.id for one in sessions.list()} == {"main", "side"}
