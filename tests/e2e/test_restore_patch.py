"""`restore --patch` brings back what is taken of the differences; `--dry-run --patch` shows them beforehand."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .conftest import Cli

LINES = [f"{number}\n" for number in range(1, 41)]
ASKS = b",?]? "


def edited(**changes: str) -> str:
    """The lines, with some of them replaced: ``_3="three\\n"``."""
    return "".join(changes.get(f"_{at}", line) for at, line in enumerate(LINES, 1))


def answered(
    cli: Cli, *words: str, answers: Sequence[bytes | Callable[[], bytes]], code: int = 0
) -> tuple[str, list[str]]:
    """What the command shows at a terminal where each of its questions gets an answer, and the questions."""
    left = list(answers)
    child, terminal = pty.fork()
    if not child:
        os.chdir(cli.root)
        known = {"HOLDFAST_HOME": str(cli.home), "PATH": os.environ["PATH"], "TERM": "dumb", "COLUMNS": "200"}
        os.execve(sys.executable, [sys.executable, "-P", "-m", "holdfast", *words], known)
    shown = b""
    with closing(os.fdopen(terminal, "r+b", buffering=0)) as screen, suppress(OSError):
        while piece := screen.read(4096):  # (an error: the last process has closed it)
            shown += piece
            if shown.endswith(ASKS) and left:
                answer = left.pop(0)
                screen.write(answer if isinstance(answer, bytes) else answer())
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = shown.decode().replace("\r\n", "\n")
    assert (ended, left) == (code, []), text
    return text, re.findall(r"^\((.*)\) (.*) \[y,n,a,d,q,\?\]\?", text, re.MULTILINE)


def questions(found: list[str]) -> list[str]:
    return [" ".join(one) for one in found]


def test_single_hunks_are_restored_and_undo_brings_all_back(cli: Cli) -> None:
    cli.write("f", "".join(LINES)).chmod(0o600)
    cli("checkpoint", "-m", "v1")
    cli.write("f", edited(_2="two\n", _20="twenty\n", _39="")).chmod(0o600)
    before = cli.tree()
    shown, asked = answered(cli, "restore", "v1", "--patch", answers=[b"y\n", b"n\n", b"y\n"])
    assert questions(asked) == [f"{at}/3 Restore this hunk of f" for at in (1, 2, 3)]
    assert shown.count("diff --git a/f b/f\n") == 1
    assert "-two\n+2\n" in shown
    assert cli.tree() == {"f": edited(_20="twenty\n").encode()}
    assert (cli.root / "f").stat().st_mode & 0o777 == 0o600
    newest, *older = cli.json("log")["rows"]
    target = older[-1]["checkpoint"]
    assert (newest["kind"], newest["made"], newest["text"]) == ("restore", True, f"a part of {target[:12]}")
    assert [row["kind"] for row in older] == ["checkpoint", "checkpoint"]
    status = cli.json("status")
    assert not status["added"] + status["modified"] + status["deleted"]
    cli("undo")
    assert cli.tree() == before
    cli("redo")
    assert cli.tree() == {"f": edited(_20="twenty\n").encode()}
    cli("verify", "--read-data")


def test_the_rest_is_asked_for_again_of_the_last_checkpoint(cli: Cli) -> None:
    cli.write("f", "".join(LINES))
    cli("checkpoint")
    cli.write("f", edited(_2="two\n", _20="twenty\n"))
    answered(cli, "restore", "--patch", answers=[b"y\n", b"q\n"])
    assert cli.tree() == {"f": edited(_20="twenty\n").encode()}
    _, asked = answered(cli, "restore", "@", "f", "--patch", answers=[b"y\n"])
    assert questions(asked) == ["1/1 Restore this hunk of f"]
    assert cli.tree() == {"f": "".join(LINES).encode()}


def test_the_letters(cli: Cli) -> None:
    for name in "abcd":
        cli.write(name, "".join(LINES))
    cli("checkpoint", "-m", "v1")
    changed = edited(_2="two\n", _20="twenty\n", _39="last\n")
    for name in "abcd":
        cli.write(name, changed)
    shown, asked = answered(
        cli, "restore", "v1", "--patch", answers=[b"n\n", b"a\n", b"y\n", b"?\n", b"d\n", b"y\n", b"q\n"]
    )
    assert [one[1][-1] for one in asked] == ["a", "a", "b", "b", "b", "c", "c"]
    assert "q - stop here" in shown
    first = edited(_20="twenty\n", _39="last\n").encode()
    assert cli.tree() == {"a": edited(_2="two\n").encode(), "b": first, "c": first, "d": changed.encode()}


@pytest.mark.parametrize("answer", [b"n\n", b"q\n", b"\x04", b"x\nx\nx\n"])
def test_nothing_is_written_where_nothing_is_taken(cli: Cli, answer: bytes) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "v1")
    cli.write("f", "2")
    logged = cli.json("log")["rows"]
    shown, _ = answered(cli, "restore", "v1", "--patch", answers=[answer])
    assert shown.endswith("Nothing was changed.\n")
    assert cli.tree() == {"f": b"2"}
    assert cli.json("log")["rows"] == logged


def test_an_interrupt_leaves_everything_as_it_is(cli: Cli) -> None:
    cli.write("f", "".join(LINES))
    cli("checkpoint", "-m", "v1")
    cli.write("f", edited(_2="two\n", _20="twenty\n"))
    answered(cli, "restore", "v1", "--patch", answers=[b"y\n", b"\x03"], code=128 + signal.SIGINT)
    assert cli.tree() == {"f": edited(_2="two\n", _20="twenty\n").encode()}


def test_what_has_no_hunks_is_one_question(cli: Cli) -> None:
    cli.write("binary", b"\0one")
    cli.write("d/deleted", "1")
    cli.write("left", "1")
    cli.write("mode", "1")
    cli.write("modes", "".join(LINES))
    (cli.root / "link").symlink_to("old")
    cli("checkpoint", "-m", "v1")
    cli.write("binary", b"\0two")
    shutil.rmtree(cli.root / "d")
    (cli.root / "left").unlink()
    cli.write("added", "1")
    (cli.root / "mode").chmod(0o755)
    cli.write("modes", edited(_2="two\n")).chmod(0o755)
    (cli.root / "link").unlink()
    (cli.root / "link").symlink_to("new")
    answers = [b"y\n", b"y\n", b"y\n", b"n\n", b"y\n", b"y\n", b"y\n", b"n\n"]
    _, asked = answered(cli, "restore", "v1", "--patch", answers=answers)
    assert questions(asked) == [
        "1/1 Delete added",
        "1/1 Restore binary",
        "1/1 Bring d/deleted back",
        "1/1 Bring left back",
        "1/1 Restore link",
        "1/1 Restore the permissions of mode",
        "1/2 Restore the permissions of modes",
        "2/2 Restore this hunk of modes",
    ]
    got = cli.tree()
    assert got.keys() == {"binary", "d/deleted", "mode", "modes"}
    assert (got["binary"], got["modes"]) == (b"\0one", edited(_2="two\n").encode())
    assert os.readlink(cli.root / "link") == "old"
    assert [(cli.root / name).stat().st_mode & 0o777 for name in ("mode", "modes")] == [0o644, 0o644]


def test_the_end_of_a_file_without_a_line_feed(cli: Cli) -> None:
    cli.write("f", "".join(LINES) + "end")
    cli("checkpoint", "-m", "v1")
    cli.write("f", edited(_2="two\n") + "end\nmore")
    answered(cli, "restore", "v1", "--patch", answers=[b"y\n", b"n\n"])
    assert cli.tree()["f"] == ("".join(LINES) + "end\nmore").encode()
    answered(cli, "restore", "v1", "--patch", answers=[b"y\n"])
    assert cli.tree()["f"] == ("".join(LINES) + "end").encode()


def test_a_file_that_changes_while_the_question_stands_is_not_overwritten(cli: Cli) -> None:
    cli.write("f", "1\n")
    cli.write("g", "1\n")
    cli("checkpoint", "-m", "v1")
    cli.write("f", "2\n")
    cli.write("g", "2\n")

    def answer(name: str) -> Callable[[], bytes]:
        def edit() -> bytes:
            cli.write(name, "somebody else's\n")
            return b"q\n"

        return edit

    shown, _ = answered(cli, "restore", "v1", "--patch", answers=[b"y\n", answer("f")], code=4)
    assert "f has changed meanwhile; nothing was written" in shown
    assert cli.tree() == {"f": b"somebody else's\n", "g": b"2\n"}
    answered(cli, "restore", "v1", "--patch", answers=[b"y\n", answer("g")])
    assert cli.tree() == {"f": b"1\n", "g": b"somebody else's\n"}


def test_a_database_goes_with_its_log(cli: Cli) -> None:
    path = cli.root / "data.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("pragma wal_autocheckpoint=0")
        database.execute("create table t (value)")
        shutil.copytree(cli.root, cli.root.parent / "one")
        database.execute("insert into t values (1)")
        shutil.copytree(cli.root, cli.root.parent / "two")
    path.unlink()
    for name in ("data.db", "data.db-wal"):
        shutil.copy(cli.root.parent / "two" / name, cli.root)
    cli("checkpoint", "-m", "two")
    path.write_bytes(path.read_bytes() + b"\0" * 4096)
    shutil.copy(cli.root.parent / "one/data.db-wal", cli.root)
    _, asked = answered(cli, "restore", "two", "--patch", answers=[b"y\n"])
    assert questions(asked) == ["1/1 Restore data.db and data.db-wal"]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("select * from t").fetchall() == [(1,)]


def test_it_needs_a_terminal(cli: Cli) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "v1")
    cli.write("f", "2")
    refused = cli("restore", "v1", "--patch", code=4)
    assert "no terminal to ask at" in refused.err
    assert "--dry-run --patch" in refused.err
    for words in (("restore", "v1", "--patch", "--dry-run", "--json"), ("undo", "--patch"), ("redo", "--patch")):
        cli(*words, code=2)
    cli("restore", "--continue", "--patch", code=2)
    assert cli.tree() == {"f": b"2"}


def foretold(cli: Cli, *words: str) -> str:
    """Check that a command does what its patch says, but for what it warns of; what it warns."""
    copy = cli.root.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(cli.root, copy, symlinks=True)
    shown = cli.process(*words, "--dry-run", "--patch", cwd=cli.root)
    subprocess.run(["git", "apply", "--allow-empty", "-"], cwd=copy, input=shown.stdout, check=True)
    cli(*words)
    assert files(copy) == files(cli.root)
    return shown.stderr.decode()


def files(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_a_dry_run_shows_the_patch(cli: Cli) -> None:
    cli.write("f", "".join(LINES))
    cli.write("old", "".join(LINES[:9]))
    cli("checkpoint", "-m", "v1")
    cli.write("f", edited(_2="two\n"))
    (cli.root / "old").rename(cli.root / "new")
    shown = cli("undo", "--dry-run", "--patch").out
    assert "rename from new\nrename to old\n" in shown
    assert "-two\n+2\n" in shown
    assert foretold(cli, "undo") == ""
    assert foretold(cli, "redo") == ""
    assert foretold(cli, "restore", "v1", "f") == ""
    assert foretold(cli, "restore", "v1") == ""
    assert foretold(cli, "undo", "2") == ""
    assert cli("restore", "v1", "f", "--dry-run", "--patch").out.startswith("diff --git a/f b/f\n")


def run(cli: Cli, script: str) -> None:
    cli.process("run", "--", sys.executable, "-c", script, cwd=cli.root)


EDIT = "open('f', 'a').write('by the step\\n'); import os; os.mkdir('d'); os.rename('g', 'd/g')"


def test_of_steps_it_shows_what_checkpoints_hold(cli: Cli) -> None:
    cli.write("f", "1\n")
    cli.write("g", "1\n")
    cli.write(".checkpointignore", "build\n")
    cli("checkpoint")
    cli.write("f", "2\n")
    run(cli, EDIT)
    for words in (("undo",), ("redo",), ("undo", "--run"), ("redo",), ("undo", "--step", "1"), ("redo", "--step", "1")):
        told = foretold(cli, *words) if words != ("redo", "--step", "1") else cli(*words).err
        assert told == "", words
    run(cli, "import os; os.rename('d', 'e')")
    cli.write("f", "3\n")
    assert foretold(cli, "undo", "2") == ""
    assert foretold(cli, "undo", "2") == ""
    assert cli.tree()["f"] == b"1\n"
    assert foretold(cli, "redo", "3") == ""


def test_what_no_checkpoint_holds_is_named(cli: Cli) -> None:
    cli.write("f", "1\n")
    cli.write(".checkpointignore", "build\n")
    cli.write("build", "ignored")
    cli("checkpoint")
    both = "import subprocess, sys; [subprocess.run([sys.executable, '-c', one]) for one in {}]".format(
        ["open('f', 'a').write('one\\n')", "open('f', 'a').write('two\\n'); open('build', 'w').write('2')"]
    )
    run(cli, both)
    steps = [step["id"] for step in cli.json("steps")["steps"]]
    last = cli("undo", "--step", str(max(steps)), "--dry-run", "--patch")
    assert last.out == ""
    assert "no checkpoint holds what would be changed in 2 more paths: build, f" in last.err
    whole = cli("undo", "--run", "--dry-run", "--patch")
    assert "-one\n-two\n" in whole.out
    assert "1 more path: build" in whole.err


def test_a_path_without_a_checkpoint_gets_the_command_that_works(cli: Cli) -> None:
    cli.write("f", "1\n")
    cli("checkpoint", "-m", "v1")
    shown, _ = answered(cli, "restore", "--patch", "f", answers=[], code=3)
    assert "`holdfast restore --patch @ f`" in shown
