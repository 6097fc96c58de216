"""``merge`` on the command line, and an agent that answers over MCP what it cannot merge."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from .mcp_client import Place, call, refused, run

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli

NUMBERS = "".join(f"{number}\n" for number in range(12))


@pytest.fixture
def two(cli: Cli, tmp_path: Path) -> Path:
    """A fork of the workspace; both have changed `a` and something else."""
    cli.write("a", NUMBERS)
    cli.write("b", "b\n")
    cli("checkpoint")
    fork = tmp_path / "fork"
    cli("fork", "@", str(fork))
    cli.write("a", "first\n" + NUMBERS)
    cli.write("here", "x")
    (fork / "a").write_text(NUMBERS + "last\n")
    (fork / "b").unlink()
    return fork


def test_what_no_checkpoint_of_the_fork_holds_is_named_and_here_it_stays(cli: Cli, tmp_path: Path) -> None:
    (cli.home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    cli.write("a", "a\n")
    cli("checkpoint")
    fork = tmp_path / "fork"
    cli("fork", "@", str(fork))
    (fork / "model").write_bytes(bytes(70_000))
    out = cli("merge", str(fork)).out
    assert "This workspace has everything saved in" in out
    assert "only the directory of the fork has them:\n  model: too large" in out
    (fork / "a").write_bytes(bytes(70_000))
    merged = cli.json("merge", str(fork))
    assert (merged["uncaptured"], [one["path"] for one in merged["not_captured"]]) == (["a"], ["a", "model"])
    assert cli.tree() == {"a": b"a\n"}


def test_a_fork_is_merged_and_that_is_undone_i6(cli: Cli, two: Path) -> None:
    before = cli.tree()
    planned = cli.json("merge", str(two), "--dry-run")
    assert (planned["result"], planned["dry_run"], planned["merged"]) == ("needs_reapply", True, None)
    assert planned["changes"]["overlapping"] == 1
    out = cli("merge", str(two), "--dry-run").out
    assert "0 files written, 1 deleted, 1 kept as here, 1 to be applied anew" in out
    assert "  a: Modified in changeset Δ1 of the fork and here." in out
    assert cli.tree() == before
    done = cli.json("merge", str(two))
    assert (done["result"], done["files"][0]["outcome"]) == ("clean", "reapplied")
    after = {"a": f"first\n{NUMBERS}last\n".encode(), "here": b"x"}
    assert cli.tree() == after
    assert "This workspace has everything in" in cli("merge", str(two)).out
    cli("undo")
    assert cli.tree() == before
    cli("redo")
    assert cli.tree() == after


def test_the_exit_code_of_a_dry_run_says_that_something_waits(
    cli: Cli, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("merge", str(two), "--dry-run")
    (two / "a").write_text("last\n")
    ran = cli("merge", str(two), "--dry-run", code=4)
    assert "    person: would be asked" in ran.out
    assert "1 file waits for an agent or a person; nothing was changed" in ran.err
    found = cli("merge", str(two), "--dry-run", "--json", code=4)
    assert (found.error["code"], found.json["dry_run"], found.json["result"]) == (
        "needs_reapply",
        True,
        "needs_reapply",
    )
    cli("merge", str(two), code=4)
    cli("merge", str(two), "--dry-run", "--keep", "a")
    monkeypatch.setenv("HOLDFAST_MERGE_COMMAND", "false")
    assert "    command: would be asked" in cli("merge", str(two), "--dry-run", code=4).out


def test_a_person_decides_what_is_left_open(cli: Cli, two: Path, tmp_path: Path) -> None:
    (two / "a").write_text("last\n")
    before = cli.tree()
    ran = cli("merge", str(two), code=4)
    assert "1 file could not be applied anew; nothing was changed" in ran.err
    assert "--resolve PATH=FILE" in ran.err
    assert "      +first" in ran.out
    assert "      +last" in ran.out
    assert cli.tree() == before
    told = cli.json("merge", str(two), code=4)
    assert told["files"][0]["tried"][-1]["rung"] == "person"
    (tmp_path / "both").write_text("both\n")
    assert "is no PATH=FILE" in cli("merge", str(two), "--resolve", "a", code=2).err
    assert "cannot be read" in cli("merge", str(two), "--resolve", "a=/nonexistent", code=2).err
    assert "is larger than" in cli("merge", str(two), "--resolve", "a=/dev/zero", code=2).err
    assert "decided twice" in cli("merge", str(two), "--keep", "a", "--take", "a", code=2).err
    assert "does not overlap" in cli("merge", str(two), "--keep", "here", code=2).err
    out = cli("merge", str(two), "--resolve", f"a={tmp_path / 'both'}", "-m", "both of it").out
    assert "  a: decided by a person" in out
    assert cli.tree() == {"a": b"both\n", "here": b"x"}
    assert f"merged the fork {two}: both of it" in cli("log").out


def test_only_decisions_that_work_are_offered_where_a_directory_has_a_files_place(cli: Cli, tmp_path: Path) -> None:
    cli.write("a", "a\n")
    cli.write("b", "b\n")
    cli("checkpoint")
    fork = tmp_path / "fork"
    cli("fork", "@", str(fork))
    cli.write("a", "here\n")
    (fork / "a").unlink()
    (fork / "a").mkdir()
    (fork / "a/x").write_text("x\n")
    err = cli("merge", str(fork), code=4).err
    assert "hint: give way to the directory with --take a, and run the same command again" in err
    err = cli("merge", str(fork), "--keep", "a", code=4).err
    assert "hint: rename the file or the directory where both have one name, and run" in err
    assert "rename one of them" in cli("merge", str(fork), "--resolve", f"a/x={fork}/b", code=2).err
    done = cli.json("merge", str(fork), "--take", "a", "--dry-run")
    assert [(one["path"], one["outcome"]) for one in done["files"]] == [("a", "decided")]
    out = cli("merge", str(fork), "--take", "a").out
    assert "  a: decided by a person\n" in out
    assert "nobody" not in out
    assert cli.tree() == {"a/x": b"x\n", "b": b"b\n"}
    cli.write("n", "n\n")
    (fork / "n").mkdir()
    (fork / "n/x").write_text("x\n")
    (fork / "b").write_text("there\n")
    cli.write("b", "here\n")
    err = cli("merge", str(fork), code=4).err
    assert "decide each with --resolve PATH=FILE, --keep PATH or --take PATH; rename the file or the directory" in err
    (cli.root / "n").rename(cli.root / "m")
    assert "Merged" in cli("merge", str(fork), "--keep", "b").out


def test_what_is_left_open_is_decided_by_the_name_that_is_printed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = tmp_path / "fork"
    for name in (b"caf\xe9", b"sub/g"):
        cli.write(name, "a\n")
    cli("checkpoint")
    cli("fork", "@", str(fork))
    for name in (b"caf\xe9", b"sub/g"):
        cli.write(name, "here\n")
        (fork / os.fsdecode(name)).write_text("there\n")
    monkeypatch.chdir(cli.root / "sub")
    shown = cli("merge", str(fork), code=4).out
    assert r"  caf\xe9: " in shown
    assert "  sub/g: " in shown
    cli("merge", str(fork), "--take", r"caf\xe9", "--take", "sub/g")
    assert (cli.root / os.fsdecode(b"caf\xe9")).read_text() == "there\n"
    assert (cli.root / "sub/g").read_text() == "there\n"


def test_what_cannot_be_merged_is_said(cli: Cli, tmp_path: Path) -> None:
    cli.write("a", "a")
    cli("checkpoint")
    assert "no checkpoint is called 'no-such-fork'" in cli("merge", "no-such-fork", code=3).err
    assert "the directory ../nosuch does not exist\n" in cli("merge", "../nosuch", code=3).err
    assert "./a is not a directory" in cli("merge", "./a", code=3).err
    assert "cannot be merged into itself" in cli("merge", str(cli.root), code=4).err


def test_an_agent_that_is_configured_is_asked(
    cli: Cli, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (two / "a").write_text("last\n")
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, sys\ngiven = json.load(sys.stdin)\n"
        "print(json.dumps({'content': given['current'] + given['after'], 'version': given['version']}))\n"
    )
    monkeypatch.setenv("HOLDFAST_MERGE_LADDER", "command")
    monkeypatch.setenv("HOLDFAST_MERGE_COMMAND", f"{sys.executable}\n{script}")
    out = cli("merge", str(two)).out
    assert "  a: applied anew by command" in out
    assert cli.tree()["a"] == f"first\n{NUMBERS}last\n".encode()


def test_an_agent_asks_for_changes_and_answers_them_over_mcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MERGE_LADDER", "queue")
    place = Place(tmp_path)
    fork = tmp_path / "fork"
    (place.tree / "a").write_text("a\n")
    place.holdfast("init")
    place.holdfast("checkpoint")
    place.holdfast("fork", "@", str(fork))
    (place.tree / "a").write_text("ours\n")
    (fork / "a").write_text("theirs\n")
    place.holdfast("merge", str(fork), code=4)

    async def work() -> None:
        async with place.client() as client:
            change = (await call(client, "next_reapply"))["change"]
            assert (change["path"], change["current"], change["after"]) == ("a", "ours\n", "theirs\n")
            assert "change" not in await call(client, "next_reapply")
            given = {name: change[name] for name in ("id", "token", "version")}
            assert await refused(client, "answer_reapply", **given) == "bad_answer"
            assert await refused(client, "answer_reapply", **given, content="<<<<<<< a\n") == "bad_answer"
            wrong = given | {"token": "x"}
            assert await refused(client, "answer_reapply", **wrong, content="both\n") == "not_held"
            assert await refused(client, "answer_reapply", **(given | {"id": "x"}), content="") == "no_reapply"
            done = await call(client, "answer_reapply", **given, content="both\n", said="put together")
            assert done == {"id": change["id"], "status": "answered"}
            assert await refused(client, "answer_reapply", **given, content="again\n") == "answered"

    run(work)
    done = json.loads(place.holdfast("merge", str(fork), "--json"))
    assert done["files"][0]["tried"][-1]["said"] == "put together"
    assert (place.tree / "a").read_text() == "both\n"
    assert os.listdir(place.tree) == ["a"]
