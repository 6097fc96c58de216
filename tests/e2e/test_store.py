"""`store` and `doctor` on the command line: what is said, in words and in JSON, and with which exit code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep.doctor import Finding, _store

from ..answers import check_command
from ..buckets import CREDENTIALS, KEY, SECRET, Answer, Service
from .conftest import Cli


def given(cli: Cli, section: str, *words: str, code: int = 0) -> dict[str, Any]:
    """What a command of the family gives as JSON; its fields are the documented ones."""
    value = cli(*words, "--json", code=code).json
    check_command(section, value)
    return value


def in_bucket(home: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configure a new home for a new bucket."""
    service.proxy.reset()
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{service.bucket()}/p"
    options = [f"{name}={value}" for name, value in service.options().items()]
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'[store]\nurl = "{url}"\noptions = {json.dumps(options)}\nretries = 1\n')
    return url


def diagnosed(home: Path) -> list[Finding]:
    """What `doctor` says of the store alone."""
    opener = Opener(home=os.fsencode(home))
    try:
        return list(_store(opener))
    finally:
        opener.close()


def test_what_a_store_in_a_directory_is(cli: Cli) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    info = given(cli, "store info", "store", "info")
    assert (info["remote"], info["encryption_key"], info["location"]) == (False, "", f"{cli.home}/objects")
    assert "encrypted  no" in cli("store", "info").out
    probed = given(cli, "store probe", "store", "probe")
    assert probed["ok"]
    assert "write, read, delete: works" in cli("store", "probe").out
    assert "needs no claim" in cli("store", "claim", code=2).err
    assert not (Path(cli.home) / "objects/probe/local").exists() or not list(
        (Path(cli.home) / "objects/probe/local").iterdir()
    )


def test_a_copy_is_told_and_refused(cli: Cli, tmp_path: Path) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    other = tmp_path / "other"
    done = given(cli, "store copy", "store", "copy", "--to-home", str(other))
    assert (done["home"], done["checkpoints"], done["copied_objects"]) == (str(other), 1, done["objects"])
    again = cli("store", "copy", "--to-home", str(other)).out
    assert again.startswith("Copied 0 objects")
    assert "Verified" in again
    assert cli("--home", str(other), "log").out == cli("log").out
    cli.write("g", "2")
    cli("checkpoint")
    assert "gone on since" in cli("store", "copy", "--to-home", str(other), code=4).err
    assert "a place" in cli("store", "copy", code=2).err
    assert "home itself" in cli("store", "copy", "--to-home", cli.home.__fspath__(), code=4).err
    for words in (["info"], ["probe"], ["claim"], ["copy", "--to-home", str(other)]):
        ran = cli("--home", str(tmp_path / "nowhere"), "store", *words, code=3)
        assert "holds no data" in ran.err
    assert not (tmp_path / "nowhere").exists()


def test_a_bucket_is_told_of(cli: Cli, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree, home = tmp_path / "its tree", tmp_path / "its home"
    url = in_bucket(home, service, monkeypatch)
    tree.mkdir()
    (tree / "f").write_text("1")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    where = ("--home", str(home), "-w", str(tree))
    info = given(cli, "store info", *where, "store", "info")
    assert (info["location"], info["claimed"], info["conditional_writes"]) == (url, url, "yes")
    assert info["id"] in cli(*where, "store", "claim").out
    probed = given(cli, "store probe", *where, "store", "probe")
    assert [step["name"] for step in probed["steps"]] == [
        "write",
        "read",
        "ranges",
        "list",
        "conditional writes",
        "delete",
    ]
    told = diagnosed(home)
    assert [found.verdict for found in told] == ["good", "good"]
    assert url in told[0].message
    assert "conditional" in told[1].message
    service.proxy.before = lambda _: Answer(403, f"<Error><Code>AccessDenied</Code>{SECRET}</Error>".encode())
    told = diagnosed(home)
    assert [found.verdict for found in told] == ["wrong"]
    assert "denied" in told[0].message
    failed = cli(*where, "store", "probe", code=1)
    (tree / "f").write_text("2")
    refused = cli(*where, "-v", "--log-level", "debug", "checkpoint", code=1)
    for text in (str(told), failed.out, failed.err, refused.err, refused.out):
        assert SECRET not in text
        assert KEY not in text
    service.proxy.reset()
    cli(*where, "checkpoint")


def test_verify_names_what_a_bucket_has_lost_or_shortened_and_restore_refuses_first(
    cli: Cli, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Case 5, for a bucket; what is cached here does not hide it."""
    tree, home = tmp_path / "its tree", tmp_path / "its home"
    url = in_bucket(home, service, monkeypatch)
    bucket = url.split("/")[2]
    tree.mkdir()
    (tree / "f").write_text("1\n" * 1000)
    (tree / "large").write_bytes(bytes(range(256)) * 5000)
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("first")
        before = {path: service.ask("GET", f"/{bucket}/{path}")[1] for path in names(service, bucket)}
        (tree / "f").write_text("2")
        (tree / "large").write_text("small")
        workspace.checkpoint("second")
    where = ("--home", str(home), "-w", str(tree))
    for path, content in before.items():
        if path.startswith("p/claims"):
            continue
        key = path.removeprefix("p/")
        for damaged in (None, content[:-7], flipped(content)):
            if damaged is None:
                service.ask("DELETE", f"/{bucket}/{path}")
            else:
                service.ask("PUT", f"/{bucket}/{path}", damaged)
            assert key in cli(*where, "verify", "--read-data", code=5).out
            shutil.rmtree(home / "object-cache", ignore_errors=True)
            if damaged is None and not key.startswith("checkpoints"):
                assert "missing" in cli(*where, "restore", "first", code=5).err
                assert (tree / "f").read_text() == "2"
        service.ask("PUT", f"/{bucket}/{path}", content)
    cli(*where, "verify", "--read-data")
    cli(*where, "restore", "first")
    assert (tree / "f").read_text() == "1\n" * 1000


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes((content[middle] ^ 1,)) + content[middle + 1 :]


def names(service: Service, bucket: str) -> list[str]:
    import re

    return re.findall(r"<Key>([^<]*)</Key>", service.ask("GET", f"/{bucket}?list-type=2")[1].decode())
