"""Tables that another library keeps in the catalog's database do it no harm, and none is called as one of ours."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from holdfast.engine.promotion.durable import _engine, launched
from holdfast.engine.promotion.work import Site
from holdfast.store.database import SqliteDatabase
from holdfast.store.schema import APPLICATION_ID, MIGRATIONS

pytest.importorskip("dbos", reason="dbos is not installed")

PAGE = Path(__file__).parents[4] / "docs/formats/catalog.md"


def test_they_are_made_beside_the_catalog_s_and_documented(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "home" / "catalog.db")
    os.mkdir(tmp_path / "home", 0o700)
    site = Site(os.fsencode(tmp_path / "home"), {}, {})

    def tables() -> set[str]:
        database = SqliteDatabase(path, MIGRATIONS, application_id=APPLICATION_ID)
        with database.reading() as session:
            found = {name for (name,) in session.all("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert database.check() == []
        database.close()
        return {name for name in found if not name.startswith("sqlite_")}

    with site.opened() as opener:
        assert opener.store()
    ours = tables()
    with launched(site):
        pass
    theirs = tables() - ours
    said = PAGE.read_text().partition("## Tables of others")[2].partition("They are there once")[0]
    assert theirs == set(re.findall("`([a-z_]+)`", said)) - {"holdfast_workflows"}
    assert not theirs & ours


def test_the_time_is_known_to_any_sqlite(tmp_path: Path) -> None:
    """dbos asks for it in these words as soon as Python is 3.12: older versions of SQLite say NULL."""
    os.mkdir(tmp_path / "home", 0o700)
    with Site(os.fsencode(tmp_path / "home"), {}, {}).opened() as opener:
        engine = _engine(opener.store().catalog.database.connector)
        before = time.time()
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "CREATE TEMP TABLE one (at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000), x)"
            )
            connection.exec_driver_sql("INSERT INTO one (x) VALUES (1)")
            at = connection.exec_driver_sql("SELECT at FROM one").scalar_one()
        engine.dispose()
    assert int(before) * 1000 <= at <= (time.time() + 1) * 1000
