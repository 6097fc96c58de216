"""The command line over a catalog on PostgreSQL."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli

HOLDFAST = shlex.join([sys.executable, "-P", "-m", "holdfast"])


@pytest.fixture
def shared(bare: Cli, catalog_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A workspace whose catalog has a password in its URL."""
    monkeypatch.setenv("HOLDFAST_STORE_CATALOG", catalog_url.replace("postgres@", "postgres:s3cret@"))
    bare("init")
    return bare


def test_saving_going_back_and_cleaning_up(shared: Cli) -> None:
    shared.write("f", "1")
    first = shared.json("checkpoint", "-m", "first")
    shared.write("f", "2")
    shared("checkpoint")
    shared("undo")
    assert (shared.root / "f").read_text() == "1"
    shared("redo")
    assert (shared.root / "f").read_text() == "2"
    shared("forget", first["id"])
    assert shared.json("gc", "--grace", "0")["blobs_deleted"] > 0
    assert shared.json("verify", "--read-data")["problems"] == []
    assert not (shared.home / "catalog.db").exists()


def test_no_password_is_ever_shown(shared: Cli, monkeypatch: pytest.MonkeyPatch, catalog_url: str) -> None:
    said = [shared(*words, "--log-level", "debug") for words in (("status",), ("stats",), ("log",))]
    monkeypatch.setenv("HOLDFAST_LOCK_TIMEOUT", "100ms")
    for url, code in (
        ("postgresql://postgres:s3cret@127.0.0.1:1/x", 1),
        ("postgresql://postgres:s3#cret@h/x?y", 2),
        ("mysql://me:s3cret@h", 2),
        (catalog_url.replace("postgres@", "nobody:s3cret@"), 1),
    ):
        monkeypatch.setenv("HOLDFAST_STORE_CATALOG", url)
        said.append(shared("log", "--json", "--log-level", "debug", code=code))
    for ran in said:
        assert "cret" not in ran.out + ran.err
    assert said[-1].error["code"] == "unreachable"


def test_no_command_that_is_started_gets_the_password(shared: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `run`, in a session, as a hook, or to apply a change anew; what is inside can still look at the catalog,
    as far as the server lets it in without a password, or it finds one elsewhere.
    """
    shared.write("f", "".join(f"{at}\n" for at in range(20)))
    shared("checkpoint")
    said: list[str] = [shared.process("run", "--", "env").stdout.decode()]
    hooked = shared.root / "hooked"
    monkeypatch.setenv("HOLDFAST_HOOKS_BEFORE_CHECKPOINT", f"sh\n-c\nenv > {hooked}")
    assert shared.process("session", "start", "one").returncode == 0
    said.append(shared.process("session", "exec", "-s", "one", "--", "env").stdout.decode())
    shared.process("session", "checkpoint", "-s", "one")
    said.append(hooked.read_text())
    assert shared.process("fork", "@", str(shared.root.parent / "fork")).returncode == 0
    asked = shared.home / "asked"
    (shared.root.parent / "fork/f").write_text("theirs\n")
    shared.write("f", "ours\n")
    monkeypatch.setenv("HOLDFAST_MERGE_LADDER", "command")
    monkeypatch.setenv("HOLDFAST_MERGE_COMMAND", f"sh\n-c\nenv > {asked}; exit 1")
    shared.process("merge", str(shared.root.parent / "fork"), code=None)
    said.append(asked.read_text())
    for environment in said:
        assert "HOLDFAST_STORE_CATALOG=postgresql://postgres@/" in environment
        assert "s3cret" not in environment


def test_what_runs_supervised_looks_at_it_and_does_not_write_it(shared: Cli) -> None:
    shared.write("f", "1")
    shared("checkpoint", "-m", "before")
    script = f"echo 2 > f; {HOLDFAST} log --json; {HOLDFAST} checkpoint --json -m inside; {HOLDFAST} gc --json; true"
    done = shared.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    log, saved = (json.loads(line) for line in done.stdout.splitlines())
    assert [point["label"] for point in log["checkpoints"]] == ["before"]
    assert saved["created"], "by the launcher, which is outside"
    assert b'"inside_run"' in done.stderr or b'"read_only"' in done.stderr
    assert [point["label"] for point in shared.json("log")["checkpoints"]] == ["inside", "before"]


def test_a_copy_is_made_there_by_words_alone_and_found_again(
    bare: Cli, catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home that is made says where its catalog is, but for the password, which no file, log or answer holds."""
    bare("init")
    bare.write("f", "1")
    bare("checkpoint", "-m", "first")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    url = catalog_url.replace("postgres@", "postgres:s3cret@")
    there, objects = tmp_path / "there", tmp_path / "objects"
    words = ("--to-home", str(there), "--to-catalog", url, "--to-objects", str(objects))
    said = [bare("store", "copy", *words, *more, "--log-level", "trace") for more in ((), ("-v",), ("--json",))]
    assert not (there / "catalog.db").exists()
    assert bare.json("--home", str(there), "log")["checkpoints"][0]["label"] == "first"
    said += [bare("--home", str(there), *look, "--json") for look in (("store", "info"), ("stats",))]
    said.append(bare("--home", str(there), "doctor", "--json", code=1))  # the tests' server does not sync
    for ran in said:
        assert "s3cret" not in ran.out + ran.err
    for path in (*bare.home.rglob("*"), *there.rglob("*"), *objects.rglob("*")):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
