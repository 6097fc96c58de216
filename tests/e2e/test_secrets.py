"""No password and no key is ever said, whatever goes wrong, at any level of the log; nor written into the home."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.main import main

from ..buckets import CUT, SECRET, Answer, Service
from ..stored import configured

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli

pytest.importorskip("cryptography", reason="needs cryptography (extra dev)")
pytest.importorskip("psycopg", reason="needs psycopg (extra server)")

DENIED = Answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
LOOKS = (
    ("log",),
    ("status",),
    ("store", "info"),
    ("store", "probe"),
    ("doctor",),
    ("stats",),
    ("verify", "--read-data"),
)


@pytest.mark.usefixtures("credentials")
def test_no_secret_is_said_or_written(
    bare: Cli,
    catalog_url: str,
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = [os.urandom(32).hex() for _ in range(2)]
    monkeypatch.setenv("THE_KEY", keys[0])
    monkeypatch.setenv("HOLDFAST_STORE_RETRIES", "0")
    monkeypatch.setenv("HOLDFAST_LOCK_TIMEOUT", "200ms")
    monkeypatch.setenv("PGPASSWORD", "s3cret-of-the-environment")
    configured(bare.home, service, url=f"s3://{service.bucket()}/p", encryption_key="env:THE_KEY")
    right = catalog_url.replace("postgres@", "postgres:s3cret@")
    monkeypatch.setenv("HOLDFAST_STORE_CATALOG", right)
    bare("init")
    bare.write("f", "1")
    said: list[str] = []

    def say(*words: str) -> None:
        more = ("--json",) if len(said) % 2 else ()
        capsys.readouterr()
        main([*words, "-v", "--log-level", "trace", *more])
        said.append("".join(capsys.readouterr()))
        assert said[-1], words

    def look() -> None:
        bare.write("f", str(len(said)))
        say("checkpoint")
        for words in LOOKS:
            say(*words)

    look()
    service.proxy.before = lambda _: DENIED
    look()
    service.proxy.before = lambda _: CUT
    look()
    service.proxy.reset()
    monkeypatch.setenv("THE_KEY", keys[1])
    say("checkpoint")
    monkeypatch.setenv("THE_KEY", keys[0][:-1])
    say("log")
    monkeypatch.setenv("THE_KEY", keys[0])
    for wrong in (
        "postgresql://postgres:s3cret@127.0.0.1:1/x",
        catalog_url.replace("postgres@", "nobody:s3cret@"),
        catalog_url.replace("postgres@", "postgres:s3cret@").replace("?", "nosuch?"),
        "postgresql://postgres:s3cret@127.0.0.1:1/x?sslrootcert=/nowhere&sslmode=verify-full",
        "postgresql://me:1/s3cret@h/x",
    ):
        monkeypatch.setenv("HOLDFAST_STORE_CATALOG", wrong)
        say("log")
        say("store", "copy", "--to-home", str(tmp_path / "copy"))
    monkeypatch.setenv("HOLDFAST_STORE_CATALOG", right)
    assert len(said) > 30
    for text in said:
        for secret in ("s3cret", SECRET, *keys, keys[0][:-1]):
            assert secret not in text
    for path in bare.home.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in ("s3cret", SECRET, *keys):
                assert secret.encode() not in content, path
