"""Tokens: kept as hashes, good until their end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engine.exports import tokens
from holdfast.engine.opening.opener import Opener
from holdfast.model.errors import (
    UsageError,
)
from holdfast.store.catalog.catalog import Catalog
from holdfast.testing.clocks import ManualClock


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(home=os.fsencode(tmp_path / "home"))
    yield opener
    opener.close()


@pytest.fixture
def catalog(opener: Opener) -> Catalog:
    return opener.store().catalog


def test_a_token_is_kept_as_a_hash_and_is_good_until_its_end(catalog: Catalog) -> None:
    clock = ManualClock()
    secret, row = tokens.create_token(catalog, clock, os.urandom, rights="write", lasts=60)
    found = tokens.authenticate(catalog.database, secret, clock.now())
    assert found == ("local", row)
    for wrong in (secret[:-1] + ("0" if secret[-1] != "0" else "1"), secret + "0", secret.upper(), secret[:20]):
        assert tokens.authenticate(catalog.database, wrong, clock.now()) is None
    clock.advance(61)
    assert tokens.authenticate(catalog.database, secret, clock.now()) is None
    with catalog.database.reading() as session:
        assert secret.rpartition("_")[2] not in str(session.all("SELECT * FROM tokens"))
    secret, _ = tokens.create_token(catalog, clock, os.urandom, rights="read")
    with catalog.database.writing() as session:
        session.run("UPDATE tokens SET rights = 'admin'")
    assert tokens.authenticate(catalog.database, secret, clock.now()) is None, "the row is damaged"


@pytest.mark.parametrize(
    "wrong",
    [{"rights": "root"}, {"exports": ["../x"]}, {"exports": ["a"], "roots": [b"/a"]}, {"label": "a\nb"}],
)
def test_a_token_that_makes_no_sense_is_refused(catalog: Catalog, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        tokens.create_token(catalog, ManualClock(), os.urandom, **{"rights": "read", **wrong})  # type: ignore[arg-type]
