"""Every object store keeps the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.store.local import LocalObjects
from holdfast.store.remote import open_bucket
from holdfast.testing.object_store_contract import ObjectStoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.objects import ObjectStore


class TestLocalObjects(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return LocalObjects(str(tmp_path / "home" / "objects"))


class TestRemoteObjectsInMemory(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> ObjectStore:
        return open_bucket("memory://")
