from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.model.errors import ConfigError
from holdfast.model.store_location import is_catalog_url, without_secrets
from holdfast.store.postgresql.catalog_url import parse


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://me:s3cret@db.example:5433/holdfast?sslmode=verify-full",
            "postgresql://me@db.example:5433/holdfast",
        ),
        ("postgres://db/x", "postgresql://db/x"),
        ("postgresql://a:s3cret@one:1,two:2/x", "postgresql://a@one:1,two:2/x"),
        ("postgresql://a@one,two/x?password=s3cret", "postgresql://a@one,two/x"),
        ("postgresql:///x?host=/run/postgresql&sslpassword=s3cret", "postgresql:///run/postgresql/x"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown):
    address = parse(url)
    assert address.shown == shown
    for text in (repr(address), str(address), f"{address}"):
        assert "s3cret" not in text
    if "s3cret" in url:
        assert address.scrub("it said s3cret,\ntwice: s3cret") == "it said ***, twice: ***"


@pytest.mark.parametrize(
    ("url", "rest"),
    [
        ("postgresql://me:s3cret@db:5433/x?sslmode=require", "postgresql://me@db:5433/x?sslmode=require"),
        ("postgres://me:s3?cret:s3@one:1,two:2/x", "postgres://me@one:1,two:2/x"),
        ("postgresql://db/x?password=s3cret&user=me@here&sslpassword=s3cret", "postgresql://db/x?user=me@here"),
        ("postgresql:///x?pass%77ord=s3cret", "postgresql:///x"),
        ("postgresql://me@/x?host=%2Frun", "postgresql://me@/x?host=%2Frun"),
        ("mysql://me:s3cret@db", ""),
        ("", ""),
    ],
)
def test_an_address_is_handed_on_without_its_password(url: str, rest: str) -> None:
    """What libpq reads of it is all that it read before, but for that."""
    assert without_secrets(url) == rest
    if rest:
        secrets = {"password", "sslpassword"}
        before, after = parse(url).parameters, parse(rest).parameters
        assert after == {name: value for name, value in before.items() if name not in secrets}


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@db/x",
        "sqlite:///s3cret",
        "s3cret",
        "postgresql://me:%s3cret@db/x",
        "postgresql://me:s3cret@db/x?nosuchkey=s3cret",
        "postgresql://me:s3cret@[db/x",
        "POSTGRESQL://me:s3cret@db/x",
        "postgresql://me:1/s3cret@db/x",
        "postgresql://me:1@s3cret@db/x",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError) as refused:
        parse(url)
    error = refused.value
    assert "store.catalog" in error.message
    assert "s3cret" not in error.message + (error.hint or "")
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_psycopg_is_not_loaded_by_what_does_not_need_it():
    code = (
        "import sys, holdfast, holdfast.cli.main, holdfast.store.store, holdfast.store.postgresql.catalog_url\n"
        "assert not {'psycopg', 'holdfast.store._shared_catalog', 'holdfast.store.postgresql.database'}"
        " & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert is_catalog_url("postgresql://x")


def test_without_psycopg_it_is_said_how_to_get_it(monkeypatch):
    from holdfast.model.errors import UnsupportedError
    from holdfast.model.extras import install_command

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnsupportedError) as missing:
        parse("postgresql://me:s3cret@db/x")
    assert missing.value.hint == install_command("server")
    assert "s3cret" not in missing.value.message
