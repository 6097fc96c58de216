"""Stores are lent to one request at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.api.rest._store_pool import StorePool
from holdfast.engine.opening.opener import Opener
from holdfast.model.errors import (
    NotFoundError,
    StorageError,
)


def test_a_store_is_lent_to_one_at_a_time_and_kept(tmp_path: Path) -> None:
    opened: list[Opener] = []
    closed: list[Opener] = []

    class Noting(Opener):
        def close(self) -> None:
            closed.append(self)
            super().close()

    def open_tenant(tenant: str) -> Opener:
        opened.append(Noting(home=os.fsencode(tmp_path / "home"), flags={"store.tenant": tenant}))
        return opened[-1]

    stores = StorePool(open_tenant, 2)
    with stores.lend("a") as one, stores.lend("a") as two:
        assert one is not two
    with stores.lend("a") as again:
        assert again in (one, two)
    with pytest.raises(NotFoundError), stores.lend("a"):
        raise NotFoundError("it is the request's")
    assert len(opened) == 2
    with pytest.raises(StorageError), stores.lend("a"):
        raise StorageError("it may be about the store")
    with stores.lend("b"), stores.lend("b"):
        pass
    stores.close()
    with stores.lend("a"):
        pass
    assert set(closed) == set(opened)
