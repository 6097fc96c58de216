"""Exports where several machines share a catalog: each has its own, and a name is taken everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.ids import WorkspaceId
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.export_rows import ExportRow, ExportRows
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog_records import WorkspaceRow
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.testing.clocks import ManualClock


def test_each_machine_has_its_own_exports_and_names_are_taken_everywhere(tmp_path: Path) -> None:
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    clock = ManualClock()
    here, there = (Catalog(database, "local", clock, machine * 32) for machine in "ab")
    for catalog, name in ((here, "1" * 16), (there, "2" * 16)):
        catalog.add_workspace(WorkspaceRow(WorkspaceId(name), b"/srv/shop", 1, 2, clock.now(), None, live=True))
    ExportRows(here).add(ExportRow("shop", "directory", WorkspaceId("1" * 16), "", True, "development", clock.now()))
    row = ExportRow("shop", "directory", WorkspaceId("2" * 16), "", True, "development", clock.now())
    with pytest.raises(RefusedError, match="there is an export shop"):
        ExportRows(there).add(row)
    ExportRows(there).add(row._replace(name="shop-2"))
    assert [one.name for one in ExportRows(here).list()] == ["shop"]
    assert [one.name for one in ExportRows(there).list()] == ["shop-2"]
    with pytest.raises(NotFoundError):
        ExportRows(there).get("shop")
    with pytest.raises(NotFoundError):
        ExportRows(there).remove("shop")
    assert ExportRows(there).of_workspace(WorkspaceId("1" * 16)) is None
    # (The same path is another directory there, and overlaps nothing.)
    assert not ExportRows(Catalog(database, "other", clock, "c" * 32)).overlapping(b"/srv/shop")
    assert ExportRows(Catalog(database, "other", clock, "a" * 32)).overlapping(b"/srv/shop")
    database.close()
